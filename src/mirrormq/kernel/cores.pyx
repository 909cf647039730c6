# cython: language_level=3
"""What happens per message to a queue, a consumer and a channel, as compiled loops.

Guarantees: entries leave a queue in (priority, seq) order; an entry is in exactly one place (waiting,
ready, unacked in one channel, dying, coming back); a requeued entry stands again at its own seq; the
settled seqs of a pass come out as coalesced ranges for the log.

Python visits a touched queue once per pass and calls admit, deliver, expire, drop; acks and plain
publishes never enter Python. Numbers that belong together change in one function.
"""
cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from mirrormq.kernel.index cimport (ENTRY_REDELIVERED, REASON_SHIFT, Entry, EntryHeap, EntryList, Graveyard, heap_free,
                                    heap_pop, heap_push, heap_top, list_front, list_front_is_run, list_join, list_pop,
                                    list_push, list_refill, list_spill)
from mirrormq.kernel.message cimport Message, Msg, msg_release
from mirrormq.kernel.outbuffer cimport OutBuffer
from mirrormq.kernel.unacked cimport Slot, UnackedRing

# Why a record left its queue (written to the log with the removal).
REASON_ACK = 1
REASON_AUTO = 2
REASON_REJECTED = 3
REASON_EXPIRED = 4
REASON_MAXLEN = 5
REASON_DELIVERY_LIMIT = 6

cdef enum:
    ACK = 1
    AUTO = 2
    REJECTED = 3
    EXPIRED = 4
    MAXLEN = 5
    HOW_ACK = 0
    HOW_REQUEUE = 1
    HOW_REJECT = 2


cdef class Worklist:
    """Queues with something to do in this pass, each once, in the order they were touched."""

    def __init__(self):
        self.touched = []

    def take(self) -> list:
        cdef list touched = self.touched
        cdef QueueCore queue
        self.touched = []
        for queue in touched:
            queue.touched = False
        return touched

    def __len__(self) -> int:
        return len(self.touched)


cdef class Group:
    """Consumers of equal priority, served in turn."""

    def __init__(self, list members not None):
        self.members = members
        self.turn = 0


cdef class ChannelCore(UnackedRing):
    """Delivery tags, unacked messages and publish numbers of one channel."""

    def __init__(self, uint16_t number, uint64_t uid, OutBuffer out not None):
        self.number = number
        self.uid = uid
        self.out = out
        self.flow = True
        self.targets = []

    def __dealloc__(self):
        if self.partial != NULL:
            msg_release(self.partial)

    cdef int track(self, QueueCore queue, ConsumerCore consumer, const Entry* e, int64_t now_mono) except -1:
        cdef Slot* s = self.ring_push()
        s.queue = <PyObject*>queue
        Py_INCREF(queue)
        s.consumer = <PyObject*>consumer if consumer is not None else NULL
        Py_XINCREF(s.consumer)
        s.e = e[0]
        s.at = now_mono
        self.unacked += 1
        queue.unacked += 1
        queue.unacked_bytes += e.msg.body_len
        if consumer is not None:
            consumer.unacked += 1
            self.held += 1
        return 0

    cdef int finish(self, Slot* s, int how) except -1:
        """One outstanding delivery ends: settled, returned to its queue, or rejected for good."""
        cdef QueueCore queue = <QueueCore>s.queue
        cdef Entry e = s.e
        Py_DECREF(queue)
        s.queue = NULL
        if s.consumer != NULL:
            (<ConsumerCore>s.consumer).unacked -= 1
            self.held -= 1
            Py_DECREF(<object>s.consumer)
            s.consumer = NULL
        self.unacked -= 1
        queue.unacked -= 1
        queue.unacked_bytes -= e.msg.body_len
        if queue.gone:
            msg_release(e.msg)
            return 0
        queue.touch()
        if how == HOW_ACK:
            queue.acked += 1
            queue.settle_seq(e.seq, ACK)
            msg_release(e.msg)
        elif how == HOW_REQUEUE:
            e.flags |= ENTRY_REDELIVERED
            if queue.counted:
                list_push(&queue.coming_back, &e)
            else:
                queue.give_back(&e)
        else:
            queue.discard(&e, REJECTED)
        return 0

    cdef int finish_upto(self, uint64_t tag, int how) except -1:
        """All outstanding deliveries up to `tag`, in order (0 = all)."""
        while self.slots and (tag == 0 or self.base <= tag):
            if self.slot(0).queue != NULL:
                self.finish(self.slot(0), how)
            self.ring_trim()
        return 0

    def has(self, uint64_t tag, bint multiple) -> bool:
        """Is this delivery tag outstanding (0 with multiple: all of them)?"""
        if tag == 0:
            return multiple
        return self.base <= tag < self.base + self.slots and self.slot(tag - self.base).queue != NULL

    def ack(self, uint64_t tag, bint multiple) -> bool:
        return self.settle(tag, multiple, HOW_ACK)

    def nack(self, uint64_t tag, bint multiple, bint requeue) -> bool:
        return self.settle(tag, multiple, HOW_REQUEUE if requeue else HOW_REJECT)

    def settle(self, uint64_t tag, bint multiple, int how) -> bool:
        """End outstanding deliveries (0 ack, 1 requeue, 2 reject); False = unknown tag, nothing done."""
        if not self.has(tag, multiple):
            return False
        if multiple:
            self.finish_upto(tag, how)
        else:
            self.finish(self.slot(tag - self.base), how)
            self.ring_trim()
        return True

    def release(self) -> None:
        """Everything outstanding goes back to its queue at its own position (recover, close)."""
        self.finish_upto(0, HOW_REQUEUE)

    def recover(self) -> None:
        self.release()

    def oldest_delivery(self) -> int:
        """When the longest outstanding delivery was sent (mono µs), 0 if there is none."""
        return self.slot(0).at if self.slots else 0

    cdef int note_target(self, QueueCore queue) except -1:
        if queue.barrier_by != <void*>self:
            queue.barrier_by = <void*>self
            self.targets.append(queue)
        return 0

    def enqueue(self, Message message not None, list targets not None) -> None:
        """Python lane: publish to these queues under this channel's current publish number."""
        cdef QueueCore queue
        for queue in targets:
            queue.append(message.msg, self.uid, self.publish_no)
            self.note_target(queue)

    def take_barrier(self) -> tuple:
        """(highest publish number, queues that got something since the last call, maybe repeated)."""
        cdef list targets = self.targets
        cdef QueueCore queue
        self.targets = []
        self.confirming = False
        for queue in targets:
            queue.barrier_by = NULL
        return self.publish_no, targets


cdef class ConsumerCore:
    """Credit of one consumer."""

    def __init__(self, ChannelCore channel not None, bytes tag not None, bint no_ack, uint32_t prefetch):
        self.channel = channel
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch

    cdef bint able(self) noexcept:
        """May it take one more message now? Stopping for lack of room marks the output as starved."""
        cdef ChannelCore ch = self.channel
        if not ch.flow or ch.closing:
            return False
        if not self.no_ack:
            if self.prefetch and self.unacked >= self.prefetch:
                return False
            if ch.prefetch_limit and ch.held >= ch.prefetch_limit:
                return False
        if ch.out.blocked or ch.out.used >= ch.out.high:
            ch.out.starved = True
            return False
        return True

    def may_take(self) -> bool:
        """Would it take a message, leaving aside whether its socket has room?"""
        cdef ChannelCore ch = self.channel
        return ch.flow and not ch.closing and (
            self.no_ack or ((not self.prefetch or self.unacked < self.prefetch)
                            and (not ch.prefetch_limit or ch.held < ch.prefetch_limit)))


@cython.no_gc_clear  # __dealloc__ still needs the graveyard
cdef class QueueCore:
    """Entries of one queue."""

    def __init__(self, Worklist work not None, Graveyard grave not None, object owner, uint32_t max_priority):
        self.work = work
        self.grave = grave
        self.owner = owner
        self.max_priority = max_priority
        self.ttl_us = -1
        self.refused = []
        self.groups = []
        self.levels = <Level*>calloc(max_priority + 1, sizeof(Level))
        if self.levels == NULL:
            raise MemoryError()

    def __dealloc__(self):
        if self.levels != NULL:
            self.bury_all()
            free(self.levels)
        free(self.ranges)

    cdef int bury_ready(self) except -1:
        cdef uint32_t i
        for i in range(self.max_priority + 1):
            self.grave.bury(&self.levels[i].ready)
            self.grave.bury_heap(&self.levels[i].returned)
        self.ready = 0
        self.ready_bytes = 0
        self.top = 0
        return 0

    cdef int bury_all(self) except -1:
        self.bury_ready()
        self.grave.bury(&self.waiting)
        self.grave.bury(&self.dying)
        self.grave.bury(&self.coming_back)
        self.waiting_bytes = 0
        return 0

    cpdef touch(self):
        if not self.touched and not self.gone:
            self.touched = True
            self.work.touched.append(self)

    # -- publish ---------------------------------------------------------------------------------

    cdef int append(self, Msg* m, uint64_t pid, uint64_t pseq) except -1:
        cdef Entry e
        if self.gone:
            return 0
        m.refs += 1
        e = Entry(m, 0, 0, pid, pseq, 0, 0)
        list_push(&self.waiting, &e)
        self.waiting_bytes += m.body_len
        self.touch()
        return 0

    def push(self, Message message not None, uint64_t pid=0, uint64_t pseq=0) -> None:
        self.append(message.msg, pid, pseq)

    @property
    def pending(self) -> int:
        return self.waiting.count

    def fitting(self, uint64_t max_length, uint64_t max_bytes) -> int:
        """How many waiting entries from the first on fit into these limits."""
        cdef uint64_t room = max_length - self.ready if max_length > self.ready else 0
        cdef uint64_t bytes_left = max_bytes - self.ready_bytes if max_bytes > self.ready_bytes else 0
        cdef uint64_t n = 0
        cdef uint32_t i
        c = self.waiting.front
        while c != NULL:
            for i in range(c.head, c.tail):
                e = &(<Entry*>((<uint8_t*>c) + sizeof(c[0])))[i]
                if n == room or e.msg.body_len > bytes_left:
                    return n
                bytes_left -= e.msg.body_len
                n += 1
            c = c.next
        return n

    def admit(self, uint64_t n, uint64_t first_seq, int64_t now_wall) -> None:
        """The first n waiting entries are in the log from first_seq on: now they are ready."""
        cdef Entry e
        cdef uint32_t level
        cdef int64_t ttl
        while n:
            e = list_front(&self.waiting)[0]
            list_pop(&self.waiting)
            self.waiting_bytes -= e.msg.body_len
            e.seq = first_seq
            first_seq += 1
            ttl = e.msg.ttl_us
            if self.ttl_us >= 0 and (ttl < 0 or self.ttl_us < ttl):
                ttl = self.ttl_us
            if ttl >= 0:
                e.expiry = now_wall + ttl
            level = e.msg.priority if e.msg.priority < self.max_priority else self.max_priority
            self.ready += 1
            self.ready_bytes += e.msg.body_len
            self.published += 1
            if level > self.top:
                self.top = level
            list_push(&self.levels[level].ready, &e)
            n -= 1

    def refuse(self, uint64_t n, bint to_dead_letter) -> None:
        """The first n waiting entries are not accepted (overflow): told to their publishers, maybe dead-lettered."""
        cdef Entry e
        while n:
            e = list_front(&self.waiting)[0]
            list_pop(&self.waiting)
            self.waiting_bytes -= e.msg.body_len
            self.refused.append((e.pid, e.pseq))
            if to_dead_letter and self.dead_letter:
                e.flags |= MAXLEN << REASON_SHIFT
                list_push(&self.dying, &e)
            else:
                msg_release(e.msg)
            n -= 1

    def take_refused(self) -> list:
        cdef list refused = self.refused
        self.refused = []
        return refused

    # -- the head of the queue -------------------------------------------------------------------

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
        else:
            out[0] = first[0]
            list_pop(&at.ready)
        self.ready -= 1
        self.ready_bytes -= out.msg.body_len

    cdef int give_back(self, Entry* e) except -1:
        """Ready again, at its own seq."""
        cdef uint32_t level = e.msg.priority if e.msg.priority < self.max_priority else self.max_priority
        heap_push(&self.levels[level].returned, e)
        if level > self.top:
            self.top = level
        self.ready += 1
        self.ready_bytes += e.msg.body_len
        return 0

    cdef int discard(self, Entry* e, uint8_t reason) except -1:
        """Out of the queue for `reason`: kept for dead-lettering, or settled."""
        if self.dead_letter:
            e.flags = (e.flags & ((1 << REASON_SHIFT) - 1)) | (<uint32_t>reason << REASON_SHIFT)
            list_push(&self.dying, e)
            return 0
        self.settle_seq(e.seq, reason)
        msg_release(e.msg)
        return 0

    cdef int settle_seq(self, uint64_t seq, uint8_t reason) except -1:
        cdef Range* r
        cdef Range* bigger
        if self.range_count:
            r = &self.ranges[self.range_count - 1]
            if r.reason == reason and r.last + 1 == seq:
                r.last = seq
                return 0
        if self.range_count == self.range_room:
            bigger = <Range*>realloc(self.ranges, (self.range_room * 2 + 8) * sizeof(Range))
            if bigger == NULL:
                raise MemoryError()
            self.ranges = bigger
            self.range_room = self.range_room * 2 + 8
        self.ranges[self.range_count] = Range(seq, seq, reason)
        self.range_count += 1
        return 0

    def take_settled(self) -> list:
        """(first seq, last seq, reason) of what left the queue since the last call."""
        cdef list out = []
        cdef uint32_t i
        for i in range(self.range_count):
            out.append((self.ranges[i].first, self.ranges[i].last, self.ranges[i].reason))
        self.range_count = 0
        return out

    # -- delivery --------------------------------------------------------------------------------

    def set_consumers(self, list groups not None) -> None:
        """Consumers as lists by falling priority; within a list they take turns."""
        self.groups = [Group(members) for members in groups]

    cdef int send(self, ConsumerCore consumer, Entry* e, int64_t now_mono) except -1:
        cdef ChannelCore ch = consumer.channel
        cdef bint again = e.flags & ENTRY_REDELIVERED
        cdef uint64_t tag = ch.assign_tag(not consumer.no_ack)
        ch.out.put_deliver(ch.number, consumer.tag, tag, again, e.msg)
        consumer.delivered += 1
        self.redelivered += again
        if consumer.no_ack:
            self.delivered_no_ack += 1
            self.settle_seq(e.seq, AUTO)
            msg_release(e.msg)
        else:
            self.delivered += 1
            ch.track(self, consumer, e, now_mono)
        return 0

    def deliver(self, int64_t now_wall, int64_t now_mono, uint64_t upto=0xffffffffffffffff) -> int:
        """Give ready entries with seq <= upto to consumers in turn, until either side has no more."""
        cdef Group group
        cdef ConsumerCore consumer
        cdef Level* at = NULL
        cdef Entry* first
        cdef Entry e
        cdef Py_ssize_t n, idle
        cdef int sent = 0
        for group in self.groups:
            n = len(group.members)
            idle = 0
            while idle < n:
                if group.turn >= n:
                    group.turn = 0
                consumer = <ConsumerCore>group.members[group.turn]
                if not consumer.able():
                    group.turn += 1
                    idle += 1
                    continue
                first = self.head(&at)
                while first != NULL and first.expiry and first.expiry < now_wall:
                    self.pop(at, &e)
                    self.discard(&e, EXPIRED)
                    first = self.head(&at)
                if first == NULL or first.seq > upto:
                    return sent
                self.pop(at, &e)
                self.send(consumer, &e, now_mono)
                group.turn += 1
                idle = 0
                sent += 1
        return sent

    def get(self, ChannelCore channel not None, bint no_ack, int64_t now_wall, int64_t now_mono,
            uint64_t upto=0xffffffffffffffff) -> bool:
        """basic.get: writes get-ok and content; False = nothing ready."""
        cdef Level* at = NULL
        cdef Entry* first
        cdef Entry e
        cdef uint64_t tag
        self.expire(now_wall)
        first = self.head(&at)
        if first == NULL or first.seq > upto:
            return False
        self.pop(at, &e)
        tag = channel.assign_tag(not no_ack)
        self.got += 1
        self.redelivered += e.flags & ENTRY_REDELIVERED
        channel.out.put_get_ok(channel.number, tag, e.flags & ENTRY_REDELIVERED, e.msg, <uint32_t>self.ready)
        if no_ack:
            self.settle_seq(e.seq, AUTO)
            msg_release(e.msg)
        else:
            channel.track(self, None, &e, now_mono)
        self.touch()
        return True

    # -- removal ---------------------------------------------------------------------------------

    def expire(self, int64_t now_wall) -> int:
        """Discard expired entries at the head of every level; returns when the next head expires (0 = never)."""
        cdef int64_t soonest = 0
        cdef uint32_t i
        cdef Level* level
        cdef Entry* first
        cdef Entry* back
        cdef Entry e
        for i in range(self.max_priority + 1):
            level = &self.levels[i]
            while True:
                first = list_front(&level.ready)
                back = heap_top(&level.returned)
                if back != NULL and (first == NULL or back.seq < first.seq):
                    first = back
                if first == NULL or not first.expiry:
                    break
                if first.expiry > now_wall:
                    if soonest == 0 or first.expiry < soonest:
                        soonest = first.expiry
                    break
                self.pop(level, &e)
                self.discard(&e, EXPIRED)
        return soonest

    def drop_head(self, uint64_t max_length, uint64_t max_bytes) -> int:
        """Discard from the head until the limits hold."""
        cdef Level* at = NULL
        cdef Entry e
        cdef int dropped = 0
        while self.ready > max_length or self.ready_bytes > max_bytes:
            if self.head(&at) == NULL:
                break
            self.pop(at, &e)
            self.discard(&e, MAXLEN)
            dropped += 1
        return dropped

    def take_dying(self) -> list:
        """(message, seq, reason) of entries to dead-letter; with this they have left the queue."""
        cdef list out = []
        cdef Entry e
        cdef uint8_t reason
        while self.dying.count:
            e = list_front(&self.dying)[0]
            list_pop(&self.dying)
            reason = <uint8_t>(e.flags >> REASON_SHIFT)
            out.append((Message.wrap(e.msg), e.seq, reason))
            if e.seq:
                self.settle_seq(e.seq, reason)
            msg_release(e.msg)
        return out

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
        message.msg.refs += 1
        self.give_back(&e)

    def throw_away(self, Message message not None, uint64_t seq, uint8_t reason) -> None:
        """A counted entry has used up its deliveries."""
        cdef Entry e = Entry(message.msg, seq, 0, 0, 0, ENTRY_REDELIVERED, 0)
        message.msg.refs += 1
        self.discard(&e, reason)

    def purge(self) -> int:
        """All ready entries leave at once; memory is given back in slices."""
        cdef uint64_t count = self.ready
        self.bury_ready()
        return count

    def destroy(self) -> int:
        """The queue is deleted: later acks of its messages change nothing. Returns ready + waiting."""
        cdef uint64_t count = self.ready + self.waiting.count
        self.gone = True
        self.bury_all()
        self.groups = []
        return count

    # -- what lies only in the log ---------------------------------------------------------------

    def spill(self, uint64_t keep) -> int:
        """Entries behind the first `keep` of each level leave memory (they are in the log)."""
        cdef uint64_t freed = 0
        cdef uint32_t i
        for i in range(self.max_priority + 1):
            freed += list_spill(&self.levels[i].ready, keep)
        return freed

    def wanted(self) -> tuple | None:
        """(level, first seq, last seq, count) of the run that must be read back before more can be delivered."""
        cdef Level* at = NULL
        if self.ready == 0 or self.head(&at) != NULL or not list_front_is_run(&at.ready):
            return None
        c = at.ready.front
        return self.top, c.first, c.last, c.count

    def refill(self, uint32_t level, list rows not None, uint64_t upto) -> None:
        """Rows (message, seq, expiry, redelivered, deliveries) read back for the front run, through seq `upto`."""
        cdef EntryList loaded = EntryList(NULL, NULL, 0)
        cdef Message message
        cdef Entry e
        for message, seq, expiry, again, deliveries in rows:
            e = Entry(message.msg, seq, expiry, 0, 0, ENTRY_REDELIVERED if again else 0, deliveries)
            message.msg.refs += 1
            list_push(&loaded, &e)
        list_refill(&self.levels[level].ready, &loaded, upto)
        self.touch()
