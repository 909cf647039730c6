# cython: language_level=3
"""Outstanding deliveries of one channel by delivery tag.

Tags are dense, so the slot of tag t is found by subtraction: a single ack is O(1) in any order, a multiple
one walks from the front. A settled slot in the middle stays as a gap until everything before it is settled;
a whole block of gaps gives its memory back, so one delivery that is never acked costs 8 bytes per 64 later
ones. Blocks of slots never move; only their directory grows.

Invariants: the first slot is outstanding, or there is none; the last block is allocated, if there is one.

The references a slot owns are invisible to the garbage collector: whoever drops a channel calls release()
first.
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
        cdef Slot* s
        cdef Slot last
        while self.slots:  # only if release() was not called: the entries are lost with the channel
            s = self.find(self.base)
            last = s[0]
            self.forget(self.base)
            msg_release(last.e.msg)
            Py_DECREF(<object>last.queue)
            Py_XDECREF(last.consumer)
        for i in range(self.blocks_used):
            free(self.blocks[self.blocks_first + i])
        free(self.blocks)

    @property
    def memory(self) -> int:
        """Bytes held for outstanding deliveries."""
        cdef size_t held = self.blocks_room * sizeof(Block*)
        cdef uint32_t i
        for i in range(self.blocks_used):
            if self.blocks[self.blocks_first + i] != NULL:
                held += sizeof(Block)
        return held

    cdef Slot* find(self, uint64_t tag) noexcept:
        """The slot of an outstanding delivery, or NULL."""
        cdef uint64_t i
        cdef Block* block
        if tag < self.base or tag - self.base >= self.slots:
            return NULL
        i = tag - self.base + self.head
        block = self.blocks[self.blocks_first + (i >> SLOT_SHIFT)]
        if block == NULL or block.slots[i & (SLOT_BLOCK - 1)].queue == NULL:
            return NULL
        return &block.slots[i & (SLOT_BLOCK - 1)]

    cdef int make_room(self) except -1:
        """After this the next push cannot fail."""
        cdef Block** bigger
        cdef Block** place
        cdef Block* block
        if ((self.head + self.slots) >> SLOT_SHIFT) < self.blocks_used:
            return 0
        if self.blocks_first + self.blocks_used == self.blocks_room:
            if self.blocks_first > self.blocks_room // 2:
                memmove(self.blocks, self.blocks + self.blocks_first, self.blocks_used * sizeof(Block*))
                self.blocks_first = 0
            else:
                bigger = <Block**>realloc(self.blocks, (<size_t>self.blocks_room * 2 + 4) * sizeof(Block*))
                if bigger == NULL:
                    raise MemoryError()
                self.blocks = bigger
                self.blocks_room = self.blocks_room * 2 + 4
        block = <Block*>malloc(sizeof(Block))
        if block == NULL:
            raise MemoryError()
        block.live = 0
        place = self.blocks + self.blocks_first + self.blocks_used
        place[0] = block
        if self.blocks_used and place[-1].live == 0:
            free(place[-1])
            place[-1] = NULL
        self.blocks_used += 1
        return 0

    cdef Slot* push(self, bint tracked) noexcept:
        """Use up the next tag; make_room was called. NULL if nothing is to be remembered of it."""
        cdef uint64_t i = self.head + self.slots
        cdef Block* block
        cdef Slot* s
        self.next_tag += 1
        if not tracked and self.slots == 0:
            self.base = self.next_tag
            return NULL
        block = self.blocks[self.blocks_first + (i >> SLOT_SHIFT)]
        s = &block.slots[i & (SLOT_BLOCK - 1)]
        s.queue = NULL
        self.slots += 1
        block.live += tracked
        return s

    cdef void forget(self, uint64_t tag) noexcept:
        """An outstanding delivery is settled; the references of its slot now belong to the caller."""
        cdef uint64_t i = tag - self.base + self.head
        cdef Block** place = self.blocks + self.blocks_first + (i >> SLOT_SHIFT)
        place[0].slots[i & (SLOT_BLOCK - 1)].queue = NULL
        place[0].live -= 1
        if place[0].live == 0 and (i >> SLOT_SHIFT) + 1 < self.blocks_used:
            free(place[0])
            place[0] = NULL
        if tag == self.base:
            self.trim()

    cdef void trim(self) noexcept:
        """Forget the gaps at the front. The last block is kept: a steady consumer allocates nothing."""
        cdef Block* block
        cdef uint32_t n
        while self.slots:
            block = self.blocks[self.blocks_first]
            if block == NULL:
                n = SLOT_BLOCK - self.head
            elif block.slots[self.head].queue == NULL:
                n = 1
            else:
                return
            self.head += n
            self.base += n
            self.slots -= n
            if self.head == SLOT_BLOCK:
                self.head = 0
                if self.blocks_used > 1:
                    free(block)
                    self.blocks_first += 1
                    self.blocks_used -= 1
