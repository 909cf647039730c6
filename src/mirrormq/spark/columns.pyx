# cython: language_level=3, wraparound=False
"""Columns of an Arrow batch while they grow: plain memory that Arrow takes over as it is.

What a row does not have costs nothing: a column is filled up to a row only when that row has a value. Text is
UTF-8 in Spark: octets that are not are read as Latin-1, as everywhere in this product.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset


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

    cdef int zero_to(self, size_t n) except -1:
        """Octets up to n, the new ones 0."""
        if n > self.n:
            self.reserve(n - self.n)
            memset(self.p + self.n, 0, n - self.n)
            self.n = n
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
        self.data = Buffer()
        self.valid = Buffer()
        self.offsets = Buffer() if width == 0 else None
        self.begin()

    cdef int begin(self) except -1:
        cdef int32_t zero = 0
        self.rows = 0
        self.present = 0
        return self.offsets.put(&zero, 4) if self.width == 0 else 0

    cdef int fill(self, uint64_t row) except -1:
        """Null up to this row."""
        cdef int32_t end
        if self.width == 0:
            end = <int32_t>self.data.n
            while self.rows < row:
                self.offsets.put(&end, 4)
                self.rows += 1
        else:
            self.data.zero_to((row + 7) >> 3 if self.width < 0 else row * self.width)
            self.rows = row
        return 0

    cdef int put_bit(self, uint64_t row, bint value) except -1:
        self.data.zero_to((row >> 3) + 1)
        if value:
            self.data.p[row >> 3] |= 1 << (row & 7)
        return self.note(row)

    cdef int refuse(self) except -1:
        raise ValueError("more than 2 GiB in one column")

    cdef tuple take(self, uint64_t rows):
        """(validity or None, offsets or None, data, nulls); None if no row has a value."""
        cdef tuple out = None
        if self.present:
            if self.rows < rows:
                self.fill(rows)
            self.valid.zero_to((rows + 7) >> 3)
            out = (None if self.present == rows else self.valid.take(),
                   self.offsets.take() if self.width == 0 else None, self.data.take(), rows - self.present)
        self.data.n = 0
        self.valid.n = 0
        if self.width == 0:
            self.offsets.n = 0
        self.begin()
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
