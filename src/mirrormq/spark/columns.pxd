# Columns of an Arrow batch while they grow (see columns.pyx).
cimport cython
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    OFFSET_MAX = 0x7fffffff


@cython.final
cdef class Buffer:
    cdef bytes held
    cdef uint8_t* p
    cdef size_t n
    cdef size_t room

    cdef int clear(self, size_t room) except -1
    cdef int grow(self, size_t wanted) except -1
    cdef tuple take(self)

    cdef inline int reserve(self, size_t n) except -1:
        return self.grow(self.n + n) if self.n + n > self.room else 0

    cdef inline int put(self, const void* p, size_t n) except -1:
        self.reserve(n)
        memcpy(self.p + self.n, p, n)
        self.n += n
        return 0

    cdef inline int put_byte(self, uint8_t value) except -1:
        self.reserve(1)
        self.p[self.n] = value
        self.n += 1
        return 0


@cython.final
cdef class Column:
    cdef int width
    cdef readonly uint64_t rows
    cdef uint64_t room
    cdef uint64_t nulls
    cdef Buffer data
    # Values of fixed width, or where the octets in `data` of each row end; a bit per row once one is null.
    cdef Buffer fixed
    cdef Buffer valid

    cdef int make_room(self, uint64_t row) except -1
    cdef size_t octets_of(self, uint64_t rows) noexcept
    cdef int prepare(self, uint64_t row) except -1
    cdef int refuse(self) except -1
    cdef int cut(self, uint64_t rows, size_t octets) except -1
    cdef tuple take(self, uint64_t rows)

    cdef inline int ready(self, uint64_t row) except -1:
        """What is before this row is in place, and there is room for its value."""
        return self.prepare(row) if row != self.rows or row >= self.room else 0

    cdef inline int note(self, uint64_t row) except -1:
        """This row has a value."""
        if self.nulls:
            if row & 7 == 0:
                self.valid.p[row >> 3] = 0
            self.valid.p[row >> 3] |= 1 << (row & 7)
        self.rows = row + 1
        return 0

    cdef inline int put64(self, uint64_t row, uint64_t value) except -1:
        self.ready(row)
        memcpy(self.fixed.p + row * 8, &value, 8)
        return self.note(row)

    cdef inline int put32(self, uint64_t row, uint32_t value) except -1:
        self.ready(row)
        memcpy(self.fixed.p + row * 4, &value, 4)
        return self.note(row)

    cdef inline int put16(self, uint64_t row, uint16_t value) except -1:
        self.ready(row)
        memcpy(self.fixed.p + row * 2, &value, 2)
        return self.note(row)

    cdef inline int put_bit(self, uint64_t row, bint value) except -1:
        self.ready(row)
        if row & 7 == 0:
            self.fixed.p[row >> 3] = 0
        self.fixed.p[row >> 3] |= (1 if value else 0) << (row & 7)
        return self.note(row)

    cdef inline int end_value(self, uint64_t row) except -1:
        """What was put into `data` since the last value is the value of this row, which is `ready`."""
        cdef int32_t end = <int32_t>self.data.n
        if self.data.n > OFFSET_MAX:
            self.refuse()
        memcpy(self.fixed.p + (row + 1) * 4, &end, 4)
        return self.note(row)

    cdef inline int put_octets(self, uint64_t row, const uint8_t* p, size_t n) except -1:
        self.ready(row)
        self.data.put(p, n)
        return self.end_value(row)

    cdef inline int put_text(self, uint64_t row, const uint8_t* p, size_t n) except -1:
        self.ready(row)
        if n:
            text_to(self.data, p, n)
        return self.end_value(row)


cdef int text_to(Buffer out, const uint8_t* p, size_t n) except -1
