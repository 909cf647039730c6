# Output of one connection, written by the deliver loop and taken once per pass (see outbuffer.pyx).
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from mirrormq.kernel.message cimport Msg

cdef class Dirty:
    cdef list keys

cdef class OutBuffer:
    cdef public uint32_t frame_max
    cdef public uint32_t high
    cdef public bint blocked
    cdef public bint starved
    cdef readonly object key
    cdef readonly uint64_t total
    cdef Dirty dirty
    cdef object buf
    cdef uint8_t* data
    cdef size_t used
    cdef size_t room
    cdef size_t hint

    cdef uint8_t* reserve(self, size_t n) except NULL
    cdef int grow(self, size_t n) except -1
    cdef size_t content_size(self, Msg* m) noexcept
    cdef void put_content(self, uint8_t* p, uint16_t channel, Msg* m) noexcept
    cdef int put_deliver(self, uint16_t channel, bytes tag, uint64_t delivery_tag, bint redelivered,
                         Msg* m) except -1
    cdef int put_get_ok(self, uint16_t channel, uint64_t delivery_tag, bint redelivered, Msg* m,
                        uint32_t left) except -1
