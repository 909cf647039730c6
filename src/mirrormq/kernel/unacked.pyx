# cython: language_level=3
"""Outstanding deliveries of one channel by delivery tag.

Tags are dense, so the slot of tag t is found by subtraction: a single ack is O(1) in any order, a multiple one walks
from the front. A settled slot in the middle stays as a gap until everything before it is settled. Blocks of slots
never move; only their directory grows.
"""
from cpython.ref cimport Py_DECREF, Py_XDECREF
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memmove

from mirrormq.kernel.message cimport msg_release

cdef enum:
    SLOT_SHIFT = 6
    SLOT_BLOCK = 64


cdef class UnackedRing:
    """Slots of the tags from `base` on."""

    def __cinit__(self):
        self.next_tag = 1
        self.base = 1

    def __dealloc__(self):
        cdef uint32_t i
        while self.slots:  # only if release() was not called: entries are dropped with their queue's memory
            if self.slot(0).queue != NULL:
                msg_release(self.slot(0).e.msg)
                Py_DECREF(<object>self.slot(0).queue)
                Py_XDECREF(self.slot(0).consumer)
                self.slot(0).queue = NULL
            self.ring_trim()
        for i in range(self.blocks_used):
            free(self.blocks[self.blocks_first + i])
        free(self.blocks)

    cdef Slot* slot(self, uint64_t i) noexcept:
        i += self.head
        return &self.blocks[self.blocks_first + (i >> SLOT_SHIFT)][i & (SLOT_BLOCK - 1)]

    cdef Slot* ring_push(self) except NULL:
        """A new last slot. Blocks never move; only their directory is compacted or grown."""
        cdef uint64_t i = self.head + self.slots
        cdef Slot** bigger
        if (i >> SLOT_SHIFT) == self.blocks_used:
            if self.blocks_first + self.blocks_used == self.blocks_room:
                if self.blocks_first > self.blocks_room // 2:
                    memmove(self.blocks, self.blocks + self.blocks_first, self.blocks_used * sizeof(Slot*))
                    self.blocks_first = 0
                else:
                    bigger = <Slot**>realloc(self.blocks, (self.blocks_room * 2 + 4) * sizeof(Slot*))
                    if bigger == NULL:
                        raise MemoryError()
                    self.blocks = bigger
                    self.blocks_room = self.blocks_room * 2 + 4
            self.blocks[self.blocks_first + self.blocks_used] = <Slot*>malloc(SLOT_BLOCK * sizeof(Slot))
            if self.blocks[self.blocks_first + self.blocks_used] == NULL:
                raise MemoryError()
            self.blocks_used += 1
        self.slots += 1
        return self.slot(self.slots - 1)

    cdef void ring_trim(self) noexcept:
        """Forget settled slots at the front. The last block is kept: a steady consumer allocates nothing."""
        while self.slots and self.slot(0).queue == NULL:
            self.head += 1
            self.base += 1
            self.slots -= 1
            if self.head == SLOT_BLOCK:
                self.head = 0
                if self.blocks_used > 1:
                    free(self.blocks[self.blocks_first])
                    self.blocks_first += 1
                    self.blocks_used -= 1

    cdef uint64_t assign_tag(self, bint tracked) except 0:
        """The next delivery tag. Untracked (no-ack) ones leave a gap only between tracked ones."""
        cdef uint64_t tag = self.next_tag
        self.next_tag += 1
        if not tracked:
            if self.slots:
                self.ring_push().queue = NULL
            else:
                self.base = self.next_tag
        return tag
