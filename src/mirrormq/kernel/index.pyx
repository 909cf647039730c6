# cython: language_level=3
"""Entries of a queue in seq order, without ever copying a long queue to grow it.

- `EntryList`: a chain of chunks. New chunks are larger than the last up to CHUNK_MAX, so an empty queue
  costs nothing and a deep one 1/CHUNK_MAX of overhead. A *run* is a chunk without entries: it says how
  many live records lie between two seqs in the log, and a queue of any length costs O(head window).
- `EntryHeap`: entries that came back (requeue), smallest seq on top. Blocks, not one array: growing
  moves no entry.
- `Graveyard`: what purge, delete and spill threw away; freed in slices so that no pass stalls.

A list whose back is a run grows only by counting: entries behind a run are never kept in memory,
otherwise order would depend on when they were loaded.
"""
cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from mirrormq.kernel.message cimport msg_release

cdef enum:
    CHUNK_MIN = 8
    CHUNK_MAX = 256
    BLOCK_SHIFT = 8
    BLOCK_SIZE = 256


cdef Chunk* chunk_new(uint32_t cap) except NULL:
    cdef Chunk* c = <Chunk*>malloc(sizeof(Chunk) + cap * sizeof(Entry))
    if c == NULL:
        raise MemoryError()
    c.next = NULL
    c.head = 0
    c.tail = 0
    c.cap = cap
    c.bytes = 0
    c.first = 0
    c.last = 0
    c.count = 0
    return c


cdef void list_link(EntryList* l, Chunk* c) noexcept:
    if l.back == NULL:
        l.front = c
    else:
        l.back.next = c
    l.back = c


cdef int list_push(EntryList* l, const Entry* e) except -1:
    """Append; behind a run the entry only counts, and the caller's reference is dropped."""
    cdef Chunk* c = l.back
    if c != NULL and c.cap == 0:
        c.last = e.seq
        c.count += 1
        l.count += 1
        msg_release(e.msg)
        return 0
    if c == NULL or c.tail == c.cap:
        c = chunk_new(CHUNK_MIN if c == NULL else min(c.cap * 2, <uint32_t>CHUNK_MAX))
        list_link(l, c)
    chunk_items(c)[c.tail] = e[0]
    if c.bytes or c.tail == 0:
        c.bytes += entry_cost(e)
    c.tail += 1
    l.count += 1
    return 0


cdef void list_drop_front(EntryList* l) noexcept:
    cdef Chunk* c = l.front
    l.front = c.next
    if l.front == NULL:
        l.back = NULL
    free(c)


cdef Entry* list_front(EntryList* l) noexcept:
    """The first entry, or NULL if the list is empty or begins with a run."""
    cdef Chunk* c = l.front
    if c == NULL or c.cap == 0:
        return NULL
    return &chunk_items(c)[c.head]


cdef bint list_front_is_run(EntryList* l) noexcept:
    return l.front != NULL and l.front.cap == 0


cdef void list_pop(EntryList* l) noexcept:
    """Forget the first entry (its reference now belongs to the caller)."""
    cdef Chunk* c = l.front
    c.head += 1
    c.bytes = 0
    l.count -= 1
    if c.head == c.tail:
        list_drop_front(l)


cdef void list_join(EntryList* to, EntryList* other) noexcept:
    """Move all of `other` to the end of `to`, by linking."""
    if other.front == NULL:
        return
    if to.back == NULL:
        to.front = other.front
    else:
        to.back.next = other.front
    to.back = other.back
    to.count += other.count
    other.front = NULL
    other.back = NULL
    other.count = 0


cdef int list_add_run(EntryList* l, uint64_t first, uint64_t last, uint64_t count) except -1:
    """Append a run; one at the end grows."""
    cdef Chunk* run = l.back
    if run == NULL or run.cap:
        run = chunk_new(0)
        run.first = first
        list_link(l, run)
    run.last = last
    run.count += count
    l.count += count
    return 0


cdef bint list_ends_with_run(EntryList* l) noexcept:
    return l.back != NULL and l.back.cap == 0


cdef void list_drop_back(EntryList* l) noexcept:
    """Forget the last chunk, in which nothing is left."""
    cdef Chunk* prev = NULL
    cdef Chunk* c = l.front
    while c != l.back:
        prev = c
        c = c.next
    if prev == NULL:
        l.front = NULL
    else:
        prev.next = NULL
    l.back = prev
    free(c)


cdef void list_cut(EntryList* l, Chunk* prev, Chunk* c, uint32_t kept) noexcept:
    """Only the first `kept` entries of chunk `c`, which follows `prev`, are still in it."""
    if c.head + kept != c.tail:
        c.bytes = 0
    c.tail = c.head + kept
    if kept:
        return
    if prev == NULL:
        l.front = c.next
    else:
        prev.next = c.next
    if l.back == c:
        l.back = prev
    free(c)


cdef Chunk* list_split(EntryList* l, Chunk* c, uint32_t at) except NULL:
    """Move the entries of a chunk from `at` on to one of their own behind it."""
    cdef uint32_t count = c.tail - at
    cdef Chunk* rest = chunk_new(count)
    memcpy(chunk_items(rest), &chunk_items(c)[at], count * sizeof(Entry))
    rest.tail = count
    rest.next = c.next
    c.next = rest
    c.tail = at
    c.bytes = 0
    if l.back == c:
        l.back = rest
    return rest


cdef uint64_t chunk_cost(Chunk* c) noexcept:
    """What its entries take. To ask each message costs a miss of the cache: a millisecond for a long list."""
    cdef uint64_t cost = c.bytes
    cdef uint32_t i
    if cost == 0:
        for i in range(c.head, c.tail):
            cost += entry_cost(&chunk_items(c)[i])
    return cost


cdef uint64_t list_spill(EntryList* l, uint64_t keep, uint64_t keep_bytes, EntryList* gone,
                         uint64_t* freed_bytes) except? 0xffffffffffffffff:
    """Turn what follows the first `keep` entries or `keep_bytes` bytes into one run.

    However large the first one is, it fits. The entries themselves are appended to `gone`, since to free
    tens of thousands takes milliseconds. Returns how many they are.
    """
    cdef Chunk* c = l.front
    cdef Chunk* prev = NULL
    cdef Chunk* run
    cdef Chunk* following
    cdef uint64_t seen = 0
    cdef uint64_t cost
    cdef uint64_t freed = 0
    cdef uint32_t i = 0
    while c != NULL and c.cap:
        i = c.head
        while i < c.tail:
            cost = entry_cost(&chunk_items(c)[i])
            if seen >= keep or (seen and cost > keep_bytes):
                break
            keep_bytes -= min(cost, keep_bytes)
            seen += 1
            i += 1
        if i < c.tail:
            break
        prev = c
        c = c.next
    if c == NULL or c.cap == 0:
        return 0
    if i > c.head:
        prev = c
        c = list_split(l, c, i)
    run = chunk_new(0)
    run.first = chunk_items(c)[c.head].seq
    while c != NULL:
        following = c.next
        c.next = NULL
        if c.cap:
            run.last = chunk_items(c)[c.tail - 1].seq
            run.count += c.tail - c.head
            freed += c.tail - c.head
            freed_bytes[0] += chunk_cost(c)
            list_link(gone, c)
        else:
            run.last = c.last
            run.count += c.count
            free(c)
        c = following
    gone.count += freed
    if prev == NULL:
        l.front = run
    else:
        prev.next = run
    l.back = run
    return freed


cdef int list_refill(EntryList* l, EntryList* loaded, uint64_t upto) except -1:
    """Put entries read back from the log in front of their run, which now begins after `upto`."""
    cdef Chunk* run = l.front
    cdef Chunk* rest
    if run == NULL or run.cap != 0:
        raise ValueError("the list does not begin with a run")
    if loaded.count > run.count:
        raise ValueError("more entries than the run holds")
    if upto >= run.last and loaded.count < run.count:
        raise ValueError("fewer entries than the run holds")  # it could never be emptied
    run.count -= loaded.count
    run.first = upto + 1
    l.count -= loaded.count
    if run.count == 0:
        rest = run.next
        free(run)
        l.front = rest
        if rest == NULL:
            l.back = NULL
    cdef EntryList tail = l[0]
    l.front = NULL
    l.back = NULL
    l.count = 0
    list_join(l, loaded)
    list_join(l, &tail)
    return 0


cdef int pairs_make_room(Pairs* p) except -1:
    """After this the next pair has room."""
    cdef uint64_t* bigger
    if p.count == p.room:
        bigger = <uint64_t*>realloc(p.items, (<size_t>p.room * 2 + 16) * sizeof(uint64_t))
        if bigger == NULL:
            raise MemoryError()
        p.items = bigger
        p.room = p.room * 2 + 16
    return 0


cdef void pairs_put(Pairs* p, const Entry* e) noexcept:
    p.items[p.count] = e.pseq
    p.items[p.count + 1] = e.deliveries
    p.count += 2


cdef inline Entry* heap_at(EntryHeap* h, uint64_t i) noexcept:
    return &h.blocks[i >> BLOCK_SHIFT][i & (BLOCK_SIZE - 1)]


cdef int heap_push(EntryHeap* h, const Entry* e) except -1:
    cdef uint64_t i = h.count
    cdef uint64_t parent
    cdef Entry** blocks
    if (i >> BLOCK_SHIFT) == h.block_count:
        blocks = <Entry**>realloc(h.blocks, (h.block_count + 1) * sizeof(Entry*))
        if blocks == NULL:
            raise MemoryError()
        h.blocks = blocks
        blocks[h.block_count] = <Entry*>malloc(BLOCK_SIZE * sizeof(Entry))
        if blocks[h.block_count] == NULL:
            raise MemoryError()
        h.block_count += 1
    h.count += 1
    while i:
        parent = (i - 1) >> 1
        if heap_at(h, parent).seq <= e.seq:
            break
        heap_at(h, i)[0] = heap_at(h, parent)[0]
        i = parent
    heap_at(h, i)[0] = e[0]
    return 0


cdef int list_absorb(EntryList* l, EntryHeap* h, uint64_t last) except -1:
    """What came back (no seq higher than `last`) and lies behind the beginning of the run becomes part of
    it, or it would be read twice.

    Only what a client held of another master can lie there: everything else was delivered before what is in
    the run. What is counted is not read with it (log/durable.py: aside_between), and stays.
    """
    cdef Chunk* run = l.back
    cdef Entry e
    cdef uint64_t i
    cdef uint64_t count = h.count
    if run == NULL or run.cap or count == 0 or last < run.first:
        return 0
    h.count = 0
    for i in range(count):
        e = heap_at(h, i)[0]
        if e.seq < run.first or e.deliveries:
            heap_push(h, &e)  # into a block that is there
        else:
            run.last = max(run.last, e.seq)
            run.count += 1
            l.count += 1
            msg_release(e.msg)
    if h.count == 0:
        heap_free(h)
    return 0


cdef Entry* heap_top(EntryHeap* h) noexcept:
    return heap_at(h, 0) if h.count else NULL


cdef void heap_pop(EntryHeap* h) noexcept:
    cdef uint64_t i = 0
    cdef uint64_t child
    cdef Entry last
    h.count -= 1
    if h.count == 0:  # a queue that once got something back costs no more than any other
        heap_free(h)
        return
    last = heap_at(h, h.count)[0]
    while True:
        child = 2 * i + 1
        if child >= h.count:
            break
        if child + 1 < h.count and heap_at(h, child + 1).seq < heap_at(h, child).seq:
            child += 1
        if last.seq <= heap_at(h, child).seq:
            break
        heap_at(h, i)[0] = heap_at(h, child)[0]
        i = child
    heap_at(h, i)[0] = last
    if h.block_count > (h.count >> BLOCK_SHIFT) + 1:
        h.block_count -= 1
        free(h.blocks[h.block_count])


cdef void heap_free(EntryHeap* h) noexcept:
    """Give the (empty) heap's memory back."""
    cdef uint32_t i
    for i in range(h.block_count):
        free(h.blocks[i])
    free(h.blocks)
    h.blocks = NULL
    h.block_count = 0
    h.count = 0


@cython.final
cdef class Graveyard:
    """Entries that nobody can see any more, freed some at a time."""

    cdef void bury(self, EntryList* l) noexcept:
        list_join(&self.dead, l)

    cdef void bury_heap(self, EntryHeap* h) noexcept:
        cdef EntryList moved = EntryList(NULL, NULL, 0)
        cdef uint64_t i
        for i in range(h.count):
            try:
                list_push(&moved, heap_at(h, i))
            except MemoryError:
                msg_release(heap_at(h, i).msg)
        heap_free(h)
        self.bury(&moved)

    cdef void free_some(self, uint64_t most) noexcept:
        cdef Entry* e
        while most and self.dead.front != NULL:
            e = list_front(&self.dead)
            if e == NULL:
                self.dead.count -= self.dead.front.count
                list_drop_front(&self.dead)
                continue
            msg_release(e.msg)
            list_pop(&self.dead)
            most -= 1

    def free(self, uint64_t most) -> int:
        """Free up to `most` entries; returns how many are left."""
        self.free_some(most)
        return self.dead.count

    def __dealloc__(self):
        self.free_some(0xffffffffffffffff)
