# Outstanding deliveries of one channel (see unacked.pyx).
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from mirrormq.kernel.index cimport Entry

# One delivery tag. queue == NULL: settled, or delivered without ack. Both pointers own a reference.
cdef struct Slot:
    PyObject* queue
    PyObject* consumer
    Entry e
    int64_t at

cdef class UnackedRing:
    cdef readonly uint64_t next_tag
    # slot of tag t is `t - base`, at offset `head` of the first block
    cdef Slot** blocks
    cdef uint32_t blocks_first
    cdef uint32_t blocks_used
    cdef uint32_t blocks_room
    cdef uint32_t head
    cdef uint64_t base
    cdef uint64_t slots

    cdef Slot* slot(self, uint64_t i) noexcept
    cdef Slot* ring_push(self) except NULL
    cdef void ring_trim(self) noexcept
    cdef uint64_t assign_tag(self, bint tracked) except 0
