# cython: language_level=3
"""The entries of one queue: in order, each in one place, and what left it as ranges for the log.

Guarantees: entries leave in (priority, seq) order; an entry is in exactly one place (waiting, ready, unacked
in one channel, dying, coming back); an entry that came back stands again at its own seq; the settled seqs of
a pass come out as coalesced ranges. Who takes the entries (consumers, channels) is the job of cores.pyx.

What can fail for lack of memory comes before the change of place: a MemoryError loses no entry.
"""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from mirrormq.kernel.index cimport (ENTRY_REDELIVERED, REASON_SHIFT, Chunk, Entry, EntryHeap, EntryList,
                                    Graveyard, chunk_items, entry_cost, heap_pop, heap_push, heap_top,
                                    list_absorb, list_add_run, list_cut, list_front, list_front_is_run,
                                    list_ends_with_run, list_join, list_pop, list_push, list_refill,
                                    list_spill, pairs_make_room, pairs_put)
from mirrormq.kernel.message cimport Message, Msg, msg_release

REASON_ACK = 1
REASON_AUTO = 2
REASON_REJECTED = 3
REASON_EXPIRED = 4
REASON_MAXLEN = 5
REASON_DELIVERY_LIMIT = 6

cdef enum:
    PRIORITY_MAX = 255
    LEVEL_SHIFT = 56  # of a position: level and seq in one number


@cython.final
cdef class Worklist:
    """Queues with something to do in this pass, each once, in the order they were touched."""

    def __cinit__(self):
        self.touched = []

    def take(self) -> list:
        cdef list touched = self.touched
        cdef QueueStore queue
        self.touched = []
        for queue in touched:
            queue.touched = False
        return touched

    def __len__(self) -> int:
        return len(self.touched)


@cython.no_gc_clear  # __dealloc__ still needs the graveyard
cdef class QueueStore:
    """Entries of one queue."""

    def __cinit__(self, Worklist work not None, Graveyard grave not None, object owner,
                  uint32_t max_priority):
        if max_priority > PRIORITY_MAX:
            raise ValueError("a priority is at most 255")
        self.work = work
        self.grave = grave
        self.owner = owner
        self.max_priority = max_priority
        self.ttl_us = -1
        self.refused = []
        self.levels = <Level*>calloc(max_priority + 1, sizeof(Level))
        if self.levels == NULL:
            raise MemoryError()

    def __dealloc__(self):
        if self.levels != NULL:
            self.bury_all()
            free(self.levels)
        free(self.ranges)
        free(self.pairs.items)

    cdef void bury_ready(self) noexcept:
        cdef uint32_t i
        for i in range(self.top + 1):
            self.grave.bury(&self.levels[i].ready)
            self.grave.bury_heap(&self.levels[i].returned)
            self.levels[i].latest = 0
        self.ready = 0
        self.ready_bytes = 0
        self.let_go(self.resident)
        self.sweep_at = 0
        self.top = 0

    cdef void bury_all(self) noexcept:
        self.bury_ready()
        self.grave.bury(&self.waiting)
        self.grave.bury(&self.dying)
        self.grave.bury(&self.coming_back)

    cdef int note_touch(self) except -1:
        if not self.touched and not self.gone:
            self.work.touched.append(self)
            self.touched = True
        return 0

    def touch(self) -> None:
        self.note_touch()

    # -- publish ---------------------------------------------------------------------------------

    cdef int append(self, Msg* m, uint64_t pid, uint64_t pseq, uint32_t flags=0) except -1:
        cdef Entry e
        if self.gone:
            return 0
        self.note_touch()
        e = Entry(m, 0, 0, pid, pseq, flags, 0)
        list_push(&self.waiting, &e)
        m.refs += 1
        return 0

    def push(self, Message message not None, uint64_t pid=0, uint64_t pseq=0, bint resent=False) -> None:
        """Publish; what is `resent` may have been delivered before a crash and says so."""
        self.append(message.msg, pid, pseq, ENTRY_REDELIVERED if resent else 0)

    def take_over(self, QueueStore other not None) -> None:
        """What clients of this node published to another queue, which is about to go, waits here.

        What other nodes and queues sent stays behind: they keep it, and send it to the new master.
        """
        cdef Entry e
        while other.waiting.count:
            e = list_front(&other.waiting)[0]
            if e.pid >> 62:
                msg_release(e.msg)
            else:
                list_push(&self.waiting, &e)
            list_pop(&other.waiting)
        self.note_touch()

    @property
    def pending(self) -> int:
        return self.waiting.count

    def fitting(self, uint64_t max_length, uint64_t max_bytes) -> int:
        """How many waiting entries from the first on fit into these limits."""
        cdef uint64_t room = max_length - self.ready if max_length > self.ready else 0
        cdef uint64_t bytes_left = max_bytes - self.ready_bytes if max_bytes > self.ready_bytes else 0
        cdef uint64_t n = 0
        cdef uint64_t size
        cdef uint32_t i
        c = self.waiting.front
        while c != NULL:
            for i in range(c.head, c.tail):
                size = chunk_items(c)[i].msg.body_len
                if n == room or size > bytes_left:
                    return n
                bytes_left -= size
                n += 1
            c = c.next
        return n

    def admit(self, uint64_t n, uint64_t first_seq, int64_t now_wall) -> None:
        """The first n waiting entries are in the log from first_seq on: now they are ready."""
        cdef Entry e
        if n > self.waiting.count:
            raise ValueError("fewer entries wait")
        while n:
            e = list_front(&self.waiting)[0]
            e.seq = first_seq
            if e.expiry == 0:
                e.expiry = self.expiry_of(e.msg, now_wall)
            self.make_ready(&e)
            list_pop(&self.waiting)
            self.published += 1
            first_seq += 1
            n -= 1

    cdef int64_t expiry_of(self, Msg* m, int64_t now_wall) noexcept:
        """When a message published now expires (wall µs), 0 = never."""
        cdef int64_t ttl = m.ttl_us
        if self.ttl_us >= 0 and (ttl < 0 or self.ttl_us < ttl):
            ttl = self.ttl_us
        return now_wall + ttl if ttl >= 0 else 0

    cdef int make_ready(self, const Entry* e) except -1:
        """Ready, at the end of its level."""
        cdef uint32_t level = self.level_of(e.msg.priority)
        # Behind a run the push gives the message up.
        cdef uint64_t size = e.msg.body_len
        cdef uint64_t cost = entry_cost(e)
        cdef bint is_kept = not list_ends_with_run(&self.levels[level].ready)
        list_push(&self.levels[level].ready, e)
        if level > self.top:
            self.top = level
        self.ready += 1
        self.ready_bytes += size
        if is_kept:
            self.hold(cost)
            self.note_expiry(&self.levels[level], e.expiry)
        return 0

    cdef void hold(self, uint64_t size) noexcept:
        self.resident += size
        if self.durable:
            self.work.resident += size

    cdef void let_go(self, uint64_t size) noexcept:
        self.resident -= size
        if self.durable:
            self.work.resident -= size

    def refuse(self, uint64_t n, bint to_dead_letter) -> None:
        """The first n waiting entries do not fit: told to their publishers, maybe dead-lettered."""
        cdef Entry e
        if n > self.waiting.count:
            raise ValueError("fewer entries wait")
        while n:
            e = list_front(&self.waiting)[0]
            self.refused.append((e.pid, e.pseq))
            if to_dead_letter and self.dead_letter:
                e.flags = MAXLEN << REASON_SHIFT
                list_push(&self.dying, &e)
            else:
                msg_release(e.msg)
            list_pop(&self.waiting)
            n -= 1

    def take_refused(self) -> list:
        cdef list refused = self.refused
        self.refused = []
        return refused

    # -- the head of the queue -------------------------------------------------------------------

    cdef uint32_t level_of(self, uint8_t priority) noexcept:
        return priority if priority < self.max_priority else self.max_priority

    cdef Entry* head(self, Level** at) noexcept:
        """The entry to deliver next, or NULL (empty, or its level begins with a run to be read back)."""
        cdef Level* level
        cdef Entry* first
        cdef Entry* back
        while True:
            level = &self.levels[self.top]
            back = heap_top(&level.returned)
            first = list_front(&level.ready)
            at[0] = level
            if back != NULL and (first == NULL or back.seq < first.seq):
                if first == NULL and list_front_is_run(&level.ready) and level.ready.front.first < back.seq:
                    return NULL
                return back
            if first != NULL:
                return first
            if self.top == 0 or list_front_is_run(&level.ready):
                return NULL
            self.top -= 1

    cdef void pop(self, Level* at, Entry* out) noexcept:
        """Take what head() returned; ready counts no longer include it."""
        cdef Entry* back = heap_top(&at.returned)
        cdef Entry* first = list_front(&at.ready)
        if back != NULL and (first == NULL or back.seq < first.seq):
            out[0] = back[0]
            heap_pop(&at.returned)
            at.returned_last = at.returned_last if at.returned.count else 0
        else:
            out[0] = first[0]
            list_pop(&at.ready)
            self.let_go(entry_cost(out))
            if at.ready.count == 0:
                at.latest = 0
        self.ready -= 1
        # After a restart the bytes that lie only in the log are an estimate.
        self.ready_bytes -= min(self.ready_bytes, out.msg.body_len)
        if self.ready == 0:
            self.ready_bytes = 0

    cdef int give_back(self, const Entry* e) except -1:
        """Ready again, at its own seq; one that the present log does not know is published again."""
        cdef Entry again
        cdef uint32_t level
        if e.seq <= self.unlogged_upto:
            again = e[0]
            again.seq = 0
            list_push(&self.waiting, &again)
            return 0
        level = self.level_of(e.msg.priority)
        heap_push(&self.levels[level].returned, e)
        self.levels[level].returned_last = max(self.levels[level].returned_last, e.seq)
        if level > self.top:
            self.top = level
        self.ready += 1
        self.ready_bytes += e.msg.body_len
        return 0

    def head_seq(self) -> int:
        """Seq of the entry to be delivered next, 0 if there is none in memory."""
        cdef Level* at = NULL
        cdef Entry* first = self.head(&at)
        return first.seq if first != NULL else 0

    # -- removal ---------------------------------------------------------------------------------

    cdef int discard(self, const Entry* e, uint8_t reason) except -1:
        """Out of the queue for `reason`: kept for dead-lettering, or settled."""
        cdef Entry dying
        if self.dead_letter:
            dying = e[0]
            dying.flags = (e.flags & ((1 << REASON_SHIFT) - 1)) | (<uint32_t>reason << REASON_SHIFT)
            list_push(&self.dying, &dying)
            return 0
        self.make_range_room()
        self.settle_entry(e, reason)
        msg_release(e.msg)
        return 0

    cdef int remove(self, Level* at, Entry* first, uint8_t reason) except -1:
        """Discard what is first in this level."""
        cdef Entry e = first[0]
        e.msg.refs += 1  # pop still looks at the message
        self.discard(&e, reason)
        self.pop(at, &e)
        msg_release(e.msg)
        return 0

    cdef int make_range_room(self) except -1:
        """After this the next settle_seq has room."""
        cdef Range* bigger
        if self.range_count == self.range_room:
            bigger = <Range*>realloc(self.ranges, (<size_t>self.range_room * 2 + 8) * sizeof(Range))
            if bigger == NULL:
                raise MemoryError()
            self.ranges = bigger
            self.range_room = self.range_room * 2 + 8
        return pairs_make_room(&self.pairs) if self.paired else 0

    cdef void settle_seq(self, uint64_t seq, uint8_t reason) noexcept:
        cdef Range* r
        if self.range_count:
            r = &self.ranges[self.range_count - 1]
            if r.reason == reason and r.last + 1 == seq:
                r.last = seq
                return
        self.ranges[self.range_count] = Range(seq, seq, reason)
        self.range_count += 1

    cdef void settle_entry(self, const Entry* e, uint8_t reason) noexcept:
        """The same for an entry. Of a delivery of another node its seq and epoch there are noted, too."""
        self.settle_seq(e.seq, reason)
        if self.paired:
            pairs_put(&self.pairs, e)

    def forget_settled(self) -> None:
        """Nobody wants to know what left the queue."""
        self.range_count = 0
        self.pairs.count = 0

    def take_settled(self) -> list:
        """(first seq, last seq, reason) of what left the queue since the last call."""
        cdef list out = []
        cdef uint32_t i
        for i in range(self.range_count):
            out.append((self.ranges[i].first, self.ranges[i].last, self.ranges[i].reason))
        self.range_count = 0
        self.pairs.count = 0
        return out

    def expire(self, int64_t now_wall) -> int:
        """Discard expired entries at the head of the queue; returns when the next head expires (0 = never).

        As in RabbitMQ, what stands behind a living entry of higher priority waits until it is the head.
        """
        cdef Level* at = NULL
        cdef Entry* first
        while True:
            first = self.head(&at)
            if first == NULL or not first.expiry:
                return 0
            if first.expiry > now_wall:
                return first.expiry
            self.remove(at, first, EXPIRED)

    # -- what expires behind a living entry --------------------------------------------------------

    cdef void note_expiry(self, Level* level, int64_t expiry) noexcept:
        """An entry joined this level's end. If one before it lives longer, it must be looked for."""
        if not expiry:
            level.latest = -1
        elif level.latest < 0 or expiry < level.latest:
            if not self.sweep_at or expiry < self.sweep_at:
                self.sweep_at = expiry
        else:
            level.latest = expiry

    def sweep(self, int64_t now_wall, uint64_t position, uint64_t most) -> int:
        """Discard expired entries anywhere, looking at about `most` from `position` on (0 = start).

        Returns where to go on, 0 when all were seen. Entries that lie only in the log, or came back, are
        discarded when they are the head.
        """
        cdef uint32_t i = <uint32_t>(position >> LEVEL_SHIFT)
        cdef uint64_t seq = position & ((<uint64_t>1 << LEVEL_SHIFT) - 1)
        cdef Chunk* c
        cdef Chunk* following
        cdef Chunk* prev
        cdef uint64_t seen = 0
        if position == 0:
            self.sweep_at = 0
        while i <= self.top:
            prev = NULL
            c = self.levels[i].ready.front
            if seq == 0:
                self.levels[i].latest = 0
            while c != NULL and c.cap:
                following = c.next
                if chunk_items(c)[c.tail - 1].seq < seq:
                    prev = c
                elif seen >= most:
                    return (<uint64_t>i << LEVEL_SHIFT) | chunk_items(c)[c.head].seq
                else:
                    seen += c.tail - c.head
                    if self.sweep_chunk(&self.levels[i], prev, c, now_wall):
                        prev = c
                c = following
            seq = 0
            i += 1
        return 0

    cdef int sweep_chunk(self, Level* level, Chunk* prev, Chunk* c, int64_t now_wall) except -1:
        """Discard the expired entries of a chunk; returns how many are left."""
        cdef Entry* items = chunk_items(c)
        cdef uint32_t kept = 0
        cdef uint32_t i
        try:
            for i in range(c.head, c.tail):
                if items[i].expiry and items[i].expiry <= now_wall:
                    self.discard_from(level, &items[i])
        finally:
            for i in range(c.head, c.tail):
                if items[i].msg != NULL:
                    self.note_expiry(level, items[i].expiry)
                    items[c.head + kept] = items[i]
                    kept += 1
            list_cut(&level.ready, prev, c, kept)
        return kept

    cdef int discard_from(self, Level* level, Entry* e) except -1:
        """Discard an entry that stands anywhere in the level's list; its place is left without a message."""
        cdef uint64_t cost = entry_cost(e)
        cdef uint64_t size = e.msg.body_len
        self.discard(e, EXPIRED)
        e.msg = NULL
        level.ready.count -= 1
        self.ready -= 1
        self.ready_bytes -= min(self.ready_bytes, size)
        self.let_go(cost)
        return 0

    def drop_head(self, uint64_t max_length, uint64_t max_bytes) -> int:
        """Discard from the head until the limits hold."""
        cdef Level* at = NULL
        cdef Entry* first
        cdef uint64_t before = self.ready
        while self.ready > max_length or self.ready_bytes > max_bytes:
            first = self.head(&at)
            if first == NULL:
                break
            self.remove(at, first, MAXLEN)
        return before - self.ready

    @property
    def has_settled(self) -> bool:
        return self.range_count != 0

    @property
    def has_dying(self) -> bool:
        return self.dying.count != 0

    def take_dying(self, bint settle=True) -> list:
        """(message, seq, reason) of entries to dead-letter; with this they have left the queue.

        Without `settle` they stay in the log until `leave` is called for each of them.
        """
        cdef list out = []
        cdef Entry e
        cdef uint8_t reason
        while self.dying.count:
            self.make_range_room()
            e = list_front(&self.dying)[0]
            list_pop(&self.dying)
            reason = <uint8_t>(e.flags >> REASON_SHIFT)
            if settle and e.seq:
                self.settle_seq(e.seq, reason)
            out.append((Message.wrap(e.msg), e.seq, reason))
            msg_release(e.msg)
        return out

    def leave(self, uint64_t seq, uint8_t reason) -> None:
        """A dying entry has left the queue; the log hears of it with the other removals."""
        self.make_range_room()
        self.settle_seq(seq, reason)

    @property
    def has_coming_back(self) -> bool:
        return self.coming_back.count != 0

    def take_coming_back(self) -> list:
        """(message, seq, expiry, deliveries so far) of requeued entries of a counted queue."""
        cdef list out = []
        cdef Entry e
        while self.coming_back.count:
            e = list_front(&self.coming_back)[0]
            list_pop(&self.coming_back)
            out.append((Message.wrap(e.msg), e.seq, e.expiry, e.deliveries))
            msg_release(e.msg)
        return out

    def put_back(self, Message message not None, uint64_t seq, int64_t expiry, uint32_t deliveries) -> None:
        """A counted entry is ready again, with its message as it now reads."""
        cdef Entry e = Entry(message.msg, seq, expiry, 0, 0, ENTRY_REDELIVERED, deliveries)
        if not self.gone:
            self.give_back(&e)
            message.msg.refs += 1

    def readmit(self, uint64_t upto) -> int:
        """All that is ready waits to be admitted again, as it is: the queue gets a log that knows nothing up
        to this seq. What consumers hold is published again if it comes back, unless it got a new seq.
        Returns how many there are."""
        cdef EntryList again = EntryList(NULL, NULL, 0)
        cdef Level* at = NULL
        cdef Entry e
        cdef uint64_t count = self.ready
        while self.head(&at) != NULL:
            self.pop(at, &e)
            e.seq = 0
            list_push(&again, &e)
        list_join(&again, &self.waiting)
        self.waiting = again
        self.unlogged_upto = upto
        self.published -= count
        self.note_touch()
        return count

    def throw_away(self, Message message not None, uint64_t seq, uint8_t reason) -> None:
        """A counted entry has used up its deliveries."""
        cdef Entry e = Entry(message.msg, seq, 0, 0, 0, ENTRY_REDELIVERED, 0)
        if not self.gone:
            message.msg.refs += 1
            self.discard(&e, reason)

    def purge(self) -> int:
        """All ready entries leave at once; memory is given back in slices."""
        cdef uint64_t count = self.ready
        self.bury_ready()
        return count

    # -- what lies only in the log ---------------------------------------------------------------

    def spill(self, uint64_t keep, uint64_t keep_bytes=0xffffffffffffffff) -> int:
        """Entries behind the first `keep` (or `keep_bytes`) of each level stay only in the log."""
        cdef uint64_t freed = 0
        cdef uint64_t freed_bytes = 0
        cdef uint32_t i
        for i in range(self.top + 1):
            freed += list_spill(&self.levels[i].ready, keep, keep_bytes, &self.grave.dead, &freed_bytes)
            list_absorb(&self.levels[i].ready, &self.levels[i].returned, self.levels[i].returned_last)
        self.let_go(freed_bytes)
        return freed

    def restore_run(self, uint64_t first, uint64_t last, uint64_t count, uint64_t body_bytes) -> None:
        """Recovery: `count` messages of level 0 between these seqs lie only in the log."""
        list_add_run(&self.levels[0].ready, first, last, count)
        self.ready += count
        self.ready_bytes += body_bytes

    def wanted(self) -> tuple | None:
        """(level, first seq, last seq, count) of the run to be read back before more can be delivered."""
        cdef Level* at = NULL
        if self.ready == 0 or self.head(&at) != NULL or not list_front_is_run(&at.ready):
            return None
        c = at.ready.front
        return self.top, c.first, c.last, c.count

    def refill(self, uint32_t level, list rows not None, uint64_t upto) -> None:
        """Rows (message, seq, expiry, redelivered, deliveries) of the front run, through seq `upto`."""
        cdef EntryList loaded = EntryList(NULL, NULL, 0)
        cdef Message message
        cdef Entry e
        cdef uint64_t size = 0
        if level > self.max_priority:
            raise ValueError("no such level")
        try:
            for row, seq, expiry, again, deliveries in rows:
                message = <Message?>row
                e = Entry(message.msg, seq, expiry, 0, 0, ENTRY_REDELIVERED if again else 0, deliveries)
                list_push(&loaded, &e)
                message.msg.refs += 1
                size += entry_cost(&e)
            list_refill(&self.levels[level].ready, &loaded, upto)
        except BaseException:
            self.grave.bury(&loaded)
            raise
        self.hold(size)
        self.note_touch()
