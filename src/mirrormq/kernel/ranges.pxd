# A set of seqs as sorted ranges (see ranges.pyx).
from libc.stdint cimport uint64_t

cdef struct Span:
    uint64_t first
    uint64_t last

cdef class RangeSet:
    cdef Span* spans
    cdef size_t count
    cdef size_t room

    cdef size_t find(self, uint64_t seq) noexcept
    cdef bint has(self, uint64_t seq) noexcept
    cdef int put(self, uint64_t first, uint64_t last) except -1
