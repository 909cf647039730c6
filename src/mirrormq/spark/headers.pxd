# The column of headers (see headers.pyx).
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from mirrormq.spark.columns cimport Buffer, Column


cdef inline uint32_t be32(const uint8_t* p) noexcept:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef inline uint64_t be64(const uint8_t* p) noexcept:
    return <uint64_t>be32(p) << 32 | be32(p + 4)


@cython.final
cdef class Headers:
    cdef Column rows
    cdef Column names
    cdef Column values
    cdef Buffer scratch

    cdef int put(self, uint64_t row, const uint8_t* p, uint64_t n) except -1
    cdef bint read(self, const uint8_t* p, uint64_t n, uint64_t first) except *
    cdef size_t start_of(self, uint64_t entry) noexcept
    cdef bytes name(self, uint64_t entry)
    cdef bint is_known(self, uint64_t first, uint64_t entry, set seen) except *
    cdef int cut(self, uint64_t entries, size_t names, size_t values) except -1
    cdef tuple take(self, uint64_t rows)
