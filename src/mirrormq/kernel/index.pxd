# Ordered storage of queue entries: chunk lists, runs, the heap of returned entries (see index.pyx).
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from mirrormq.kernel.message cimport Msg

cdef enum:
    ENTRY_REDELIVERED = 1
    REASON_SHIFT = 8

# The per-queue head of a message: what one queue knows about it and the others do not.
cdef struct Entry:
    Msg* msg
    uint64_t seq
    int64_t expiry      # wall µs; 0 = never
    uint64_t pid        # publishing channel, and its publish number
    uint64_t pseq
    uint32_t flags
    uint32_t deliveries

# A piece of a list: `cap` entries in memory, or (cap == 0) a run that lies only in the log.
cdef struct Chunk:
    Chunk* next
    uint32_t head
    uint32_t tail
    uint32_t cap
    uint64_t bytes      # cost of its entries while none was taken out, else 0: to be counted
    uint64_t first
    uint64_t last
    uint64_t count

cdef struct EntryList:
    Chunk* front
    Chunk* back
    uint64_t count

cdef struct EntryHeap:
    Entry** blocks
    uint32_t block_count
    uint64_t count

# Seq and epoch at their master of deliveries that ended, as two numbers each.
cdef struct Pairs:
    uint64_t* items
    uint64_t count
    uint64_t room

cdef int pairs_make_room(Pairs* p) except -1
cdef void pairs_put(Pairs* p, const Entry* e) noexcept

cdef inline Entry* chunk_items(Chunk* c) noexcept:
    return <Entry*>((<uint8_t*>c) + sizeof(Chunk))

cdef inline uint64_t entry_cost(const Entry* e) noexcept:
    """Bytes of memory an entry and its message take, those of the allocator left out.

    There is no message where it lies in a log: of what a client holds since this node was the master.
    """
    if e.msg == NULL:
        return sizeof(Entry)
    return sizeof(Entry) + sizeof(Msg) + e.msg.route_len + e.msg.props_len + e.msg.body_len

cdef int list_push(EntryList* l, const Entry* e) except -1
cdef Entry* list_front(EntryList* l) noexcept
cdef void list_pop(EntryList* l) noexcept
cdef void list_join(EntryList* to, EntryList* other) noexcept
cdef uint64_t list_spill(EntryList* l, uint64_t keep, uint64_t keep_bytes, EntryList* gone,
                         uint64_t* freed_bytes) except? 0xffffffffffffffff
cdef void list_cut(EntryList* l, Chunk* prev, Chunk* c, uint32_t kept) noexcept
cdef int list_add_run(EntryList* l, uint64_t first, uint64_t last, uint64_t count) except -1
cdef int list_absorb(EntryList* l, EntryHeap* h, uint64_t last) except -1
cdef bint list_ends_with_run(EntryList* l) noexcept
cdef void list_drop_back(EntryList* l) noexcept
cdef bint list_front_is_run(EntryList* l) noexcept
cdef int list_refill(EntryList* l, EntryList* loaded, uint64_t upto) except -1

cdef int heap_push(EntryHeap* h, const Entry* e) except -1
cdef Entry* heap_top(EntryHeap* h) noexcept
cdef void heap_pop(EntryHeap* h) noexcept
cdef void heap_free(EntryHeap* h) noexcept

cdef class Graveyard:
    cdef EntryList dead

    cdef void bury(self, EntryList* l) noexcept
    cdef void bury_heap(self, EntryHeap* h) noexcept
    cdef void free_some(self, uint64_t most) noexcept
