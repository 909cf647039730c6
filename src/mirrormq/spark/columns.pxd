# Columns of an Arrow batch while they grow (see columns.pyx).
cimport cython
from libc.stdint cimport int32_t, uint8_t, uint64_t
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
    cdef int zero_to(self, size_t n) except -1
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
    cdef uint64_t rows
    cdef uint64_t present
    cdef Buffer data
    cdef Buffer offsets
    cdef Buffer valid

    cdef int begin(self) except -1
    cdef int fill(self, uint64_t row) except -1
    cdef int put_bit(self, uint64_t row, bint value) except -1
    cdef int refuse(self) except -1
    cdef tuple take(self, uint64_t rows)

    cdef inline int note(self, uint64_t row) except -1:
        """This row has a value."""
        cdef size_t at = row >> 3
        if at >= self.valid.n:
            self.valid.zero_to(at + 1)
        self.valid.p[at] |= 1 << (row & 7)
        self.present += 1
        self.rows = row + 1
        return 0

    cdef inline int put(self, uint64_t row, const void* value) except -1:
        if self.rows < row:
            self.fill(row)
        self.data.put(value, self.width)
        return self.note(row)

    cdef inline int end_value(self, uint64_t row) except -1:
        """What was put into `data` since the last value is the value of this row."""
        cdef int32_t end
        if self.data.n > OFFSET_MAX:
            self.refuse()
        end = <int32_t>self.data.n
        self.offsets.put(&end, 4)
        return self.note(row)

    cdef inline int put_octets(self, uint64_t row, const uint8_t* p, size_t n) except -1:
        if self.rows < row:
            self.fill(row)
        self.data.put(p, n)
        return self.end_value(row)

    cdef inline int put_text(self, uint64_t row, const uint8_t* p, size_t n) except -1:
        if self.rows < row:
            self.fill(row)
        text_to(self.data, p, n)
        return self.end_value(row)


cdef int text_to(Buffer out, const uint8_t* p, size_t n) except -1
