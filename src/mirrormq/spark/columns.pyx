# cython: language_level=3, wraparound=False
"""Columns of an Arrow batch while they grow: plain memory that Arrow takes over as it is.

What a row does not have costs nothing: a column is filled up to a row only when that row has a value, and
keeps no bits of what is null before something is. Text is UTF-8 in Spark: octets that are not are read as
Latin-1, as everywhere in this product.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

cdef enum:
    ROWS_MIN = 1024


@cython.final
cdef class Buffer:
    """Octets that grow."""

    def __cinit__(self):
        self.clear(64)

    cdef int clear(self, size_t room) except -1:
        self.held = PyBytes_FromStringAndSize(NULL, room)
        self.p = <uint8_t*>PyBytes_AS_STRING(self.held)
        self.n = 0
        self.room = room
        return 0

    cdef int grow(self, size_t wanted) except -1:
        cdef size_t room = self.room * 2
        cdef bytes held
        if room < wanted:
            room = wanted
        held = PyBytes_FromStringAndSize(NULL, room)
        memcpy(PyBytes_AS_STRING(held), self.p, self.n)
        self.held = held
        self.p = <uint8_t*>PyBytes_AS_STRING(held)
        self.room = room
        return 0

    cdef tuple take(self):
        """(memory, octets used); begins anew with the same room."""
        cdef tuple out = (self.held, self.n)
        self.clear(self.room)
        return out


@cython.final
cdef class Column:
    """One column: values of fixed width, or (width 0) octets with offsets. Width -1: bits."""

    def __cinit__(self, int width):
        self.width = width
        self.data = Buffer() if width == 0 else None
        self.fixed = Buffer()
        self.valid = Buffer()

    cdef int make_room(self, uint64_t row) except -1:
        """Memory for this row and as many as were there before."""
        cdef uint64_t room = ROWS_MIN
        cdef int32_t zero = 0
        while room <= row:
            room *= 2
        self.fixed.n = self.octets_of(self.rows)
        self.valid.n = (self.rows + 7) >> 3 if self.nulls else 0
        self.fixed.reserve(self.octets_of(room) - self.fixed.n)
        self.valid.reserve(((room + 7) >> 3) - self.valid.n)
        if self.width == 0 and self.rows == 0:
            memcpy(self.fixed.p, &zero, 4)
        self.room = room
        return 0

    cdef size_t octets_of(self, uint64_t rows) noexcept:
        """What so many rows take in `fixed`."""
        return (rows + 7) >> 3 if self.width < 0 else (rows + 1) * 4 if self.width == 0 else rows * self.width

    cdef int prepare(self, uint64_t row) except -1:
        """Make room for this row, and null of those between it and the last one."""
        cdef uint64_t i
        cdef int32_t end
        if row >= self.room:
            self.make_room(row)
        if row == self.rows:
            return 0
        if self.nulls == 0:
            # The first null: all before it were there.
            memset(self.valid.p, 0xff, (self.rows + 7) >> 3)
        self.nulls += row - self.rows
        for i in range(self.rows, row):
            if i & 7 == 0:
                self.valid.p[i >> 3] = 0
            self.valid.p[i >> 3] &= ~(1 << (i & 7))
        if self.width == 0:
            end = <int32_t>self.data.n
            for i in range(self.rows, row):
                memcpy(self.fixed.p + (i + 1) * 4, &end, 4)
        elif self.width > 0:
            memset(self.fixed.p + self.rows * self.width, 0, (row - self.rows) * self.width)
        else:
            for i in range(self.rows, row):
                if i & 7 == 0:
                    self.fixed.p[i >> 3] = 0
        self.rows = row
        return 0

    cdef int cut(self, uint64_t rows, size_t octets) except -1:
        """Forget the rows from this one on; `octets` of those before are in `data`. None of them is null."""
        self.rows = rows
        self.data.n = octets
        return 0

    cdef int refuse(self) except -1:
        raise ValueError("more than 2 GiB in one column")

    cdef tuple take(self, uint64_t rows):
        """(validity or None, offsets or None, data, nulls); None if no row has a value. Begins anew."""
        cdef tuple out = None
        cdef tuple fixed = None
        cdef uint64_t nulls
        if self.rows > self.nulls:
            if self.rows < rows:
                self.prepare(rows)
            self.fixed.n = self.octets_of(rows)
            self.valid.n = (rows + 7) >> 3
            nulls = self.nulls
            fixed = self.fixed.take()
            out = (self.valid.take() if nulls else None, fixed if self.width == 0 else None,
                   self.data.take() if self.width == 0 else fixed, nulls)
        elif self.width == 0:
            self.data.n = 0
        self.rows = self.nulls = self.room = 0
        return out


cdef bint is_utf8(const uint8_t* p, size_t n) noexcept:
    """As Python decodes it: no overlong forms, no surrogates, nothing above U+10FFFF."""
    cdef const uint8_t* end = p + n
    cdef uint64_t eight
    cdef uint8_t a
    while p < end:
        if end - p >= 8:
            memcpy(&eight, p, 8)
            if eight & <uint64_t>0x8080808080808080 == 0:
                p += 8
                continue
        a = p[0]
        if a < 0x80:
            p += 1
        elif 0xC2 <= a <= 0xDF:
            if end - p < 2 or p[1] & 0xC0 != 0x80:
                return False
            p += 2
        elif 0xE0 <= a <= 0xEF:
            if end - p < 3 or p[1] & 0xC0 != 0x80 or p[2] & 0xC0 != 0x80:
                return False
            if (a == 0xE0 and p[1] < 0xA0) or (a == 0xED and p[1] > 0x9F):
                return False
            p += 3
        elif 0xF0 <= a <= 0xF4:
            if end - p < 4 or p[1] & 0xC0 != 0x80 or p[2] & 0xC0 != 0x80 or p[3] & 0xC0 != 0x80:
                return False
            if (a == 0xF0 and p[1] < 0x90) or (a == 0xF4 and p[1] > 0x8F):
                return False
            p += 4
        else:
            return False
    return True


cdef int text_to(Buffer out, const uint8_t* p, size_t n) except -1:
    """UTF-8 as it is, anything else as Latin-1."""
    cdef size_t i
    if is_utf8(p, n):
        return out.put(p, n)
    out.reserve(2 * n)
    for i in range(n):
        if p[i] < 0x80:
            out.p[out.n] = p[i]
            out.n += 1
        else:
            out.p[out.n] = 0xC0 | (p[i] >> 6)
            out.p[out.n + 1] = 0x80 | (p[i] & 0x3F)
            out.n += 2
    return 0
