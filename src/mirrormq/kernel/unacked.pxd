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

cdef struct Block:
    uint32_t live       # slots that are outstanding
    Slot slots[64]

cdef class UnackedRing:
    cdef readonly uint64_t next_tag
    # slot of tag t is `t - base`, at offset `head` of the first block; base + slots == next_tag
    cdef Block** blocks
    cdef uint32_t blocks_first
    cdef uint32_t blocks_used
    cdef uint32_t blocks_room
    cdef uint32_t head
    cdef uint64_t base
    cdef uint64_t slots

    cdef Slot* find(self, uint64_t tag) noexcept
    cdef int make_room(self) except -1
    cdef Slot* push(self, bint tracked) noexcept
    cdef void forget(self, uint64_t tag) noexcept
    cdef void trim(self) noexcept
