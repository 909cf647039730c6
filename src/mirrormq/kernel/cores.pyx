# cython: language_level=3
"""Who takes and returns the messages of a queue: deliveries, acks, credit, publish numbers.

Guarantees: consumers of equal priority take turns, one message each; a delivery is written to the output
whole, or it stays in its queue; every unacked entry stands in exactly one channel until it is settled,
returned or rejected; the queues of a confirm barrier are all that got something since the last one.

Python visits a touched queue once per pass and calls admit, deliver, expire, drop; acks and plain
publishes never enter Python. Numbers that belong together change in one function. What can fail for lack
of memory comes before the first change.
"""
cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, Py_XINCREF
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mirrormq.kernel.index cimport ENTRY_REDELIVERED, Entry, list_front, list_pop, list_push
from mirrormq.kernel.message cimport MSG_PERSISTENT, Message, msg_release
from mirrormq.kernel.outbuffer cimport OutBuffer
from mirrormq.kernel.store cimport ACK, AUTO, EXPIRED, REJECTED, Level, QueueStore
from mirrormq.kernel.tally cimport ACK as ACKED
from mirrormq.kernel.tally cimport DELIVER, DELIVER_NO_ACK, GET, GET_EMPTY, GET_NO_ACK, REDELIVER, Tally
from mirrormq.kernel.unacked cimport Slot, UnackedRing

from mirrormq.kernel.store import (REASON_ACK, REASON_AUTO, REASON_DELIVERY_LIMIT, REASON_EXPIRED,
                                   REASON_MAXLEN, REASON_REJECTED, Worklist)

QUEUE_COUNTS = ("publish", "deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver",
                "ack", "messages_ready", "messages_unacknowledged")

cdef uint64_t STAMP = 0


cdef uint64_t next_stamp() noexcept:
    """A number nobody had before. Unlike an address it does not come back when its owner is gone."""
    global STAMP
    STAMP += 1
    return STAMP


@cython.final
cdef class Group:
    """Consumers of equal priority, served in turn."""

    def __cinit__(self, list members not None):
        self.members = [<ConsumerCore?>member for member in members]


@cython.final
cdef class ChannelCore(UnackedRing):
    """Delivery tags, unacked messages and publish numbers of one channel."""

    def __cinit__(self, uint16_t number, uint64_t uid, OutBuffer out not None):
        self.number = number
        self.uid = uid
        self.out = out
        self.tally = Tally()
        self.flow = True
        self.targets = []
        self.wanting = []
        self.stamp = next_stamp()

    def __dealloc__(self):
        if self.partial != NULL:
            msg_release(self.partial)

    # -- deliveries ------------------------------------------------------------------------------

    cdef void track(self, QueueCore queue, ConsumerCore consumer, const Entry* e, int64_t now_mono) noexcept:
        cdef Slot* s = self.push(True)
        s.queue = <PyObject*>queue
        Py_INCREF(queue)
        s.consumer = <PyObject*>consumer if consumer is not None else NULL
        Py_XINCREF(s.consumer)
        s.e = e[0]
        s.at = now_mono
        self.unacked += 1
        queue.unacked += 1
        queue.unacked_bytes += e.msg.body_len if e.msg != NULL else 0
        if consumer is not None:
            consumer.unacked += 1
            self.held += not consumer.unbound

    cdef int finish(self, uint64_t tag, int how) except -1:
        """One outstanding delivery ends: settled, returned to its queue, or rejected for good."""
        cdef Slot s = self.find(tag)[0]
        cdef QueueCore queue = <QueueCore>s.queue
        cdef uint64_t size = s.e.msg.body_len if s.e.msg != NULL else 0
        queue.take_end(&s.e, how)
        self.forget(tag)
        if how == HOW_ACK:
            self.tally.count(ACKED, 1)
        self.unacked -= 1
        queue.unacked -= 1
        queue.unacked_bytes -= size
        if s.consumer != NULL:
            (<ConsumerCore>s.consumer).unacked -= 1
            self.held -= not (<ConsumerCore>s.consumer).unbound
            if self.wanting and self.held < self.prefetch_limit:
                self.wake_wanting()
        # Last, when all numbers are right: dropping a reference may run anything.
        Py_XDECREF(s.consumer)
        Py_DECREF(queue)
        return 0

    cdef int note_wanting(self, QueueCore queue) except -1:
        if queue not in self.wanting:
            self.wanting.append(queue)
        return 0

    cdef int wake_wanting(self) except -1:
        """The shared prefetch has room again: an ack for one queue lets the consumers of others go on."""
        cdef list wanting = self.wanting
        cdef QueueCore queue
        self.wanting = []
        for queue in wanting:
            queue.note_touch()
        return 0

    cdef int finish_upto(self, uint64_t tag, int how) except -1:
        """All outstanding deliveries up to `tag`, in order (0 = all)."""
        while self.slots and (tag == 0 or self.base <= tag):
            self.finish(self.base, how)
        return 0

    cdef bint is_known(self, uint64_t tag, bint multiple) noexcept:
        return multiple if tag == 0 else self.find(tag) != NULL

    cdef bint end(self, uint64_t tag, bint multiple, int how) except -1:
        if not self.is_known(tag, multiple):
            return False
        if multiple:
            self.finish_upto(tag, how)
        else:
            self.finish(tag, how)
        return True

    def has(self, uint64_t tag, bint multiple) -> bool:
        """Is this delivery tag outstanding (0 with multiple: all of them)?"""
        return self.is_known(tag, multiple)

    def ack(self, uint64_t tag, bint multiple) -> bool:
        return self.end(tag, multiple, HOW_ACK)

    def nack(self, uint64_t tag, bint multiple, bint requeue) -> bool:
        return self.end(tag, multiple, HOW_REQUEUE if requeue else HOW_REJECT)

    def settle(self, uint64_t tag, bint multiple, int how) -> bool:
        """End outstanding deliveries (0 ack, 1 requeue, 2 reject); False = unknown tag, nothing done."""
        return self.end(tag, multiple, how)

    def release(self) -> None:
        """Everything outstanding goes back to its queue at its own position (recover, close)."""
        self.finish_upto(0, HOW_REQUEUE)

    def recover(self) -> None:
        self.release()

    def oldest_delivery(self) -> int:
        """When the longest outstanding delivery was sent (mono µs), 0 if there is none."""
        return self.find(self.base).at if self.slots else 0

    # -- publishes -------------------------------------------------------------------------------

    cdef int note_target(self, QueueCore queue) except -1:
        if queue.barrier_stamp != self.stamp:
            self.targets.append(queue)
            queue.barrier_stamp = self.stamp
        return 0

    def enqueue(self, Message message not None, list targets not None) -> None:
        """Python lane: publish to these queues under this channel's current publish number."""
        cdef QueueCore queue
        for target in targets:
            queue = <QueueCore?>target
            queue.append(message.msg, self.uid, self.publish_no)
            if queue.remote or (queue.durable and message.msg.flags & MSG_PERSISTENT):
                self.note_target(queue)

    def outstanding(self, QueueCore queue not None) -> list:
        """(seq, delivery tag) of one queue's entries that are outstanding here."""
        cdef list out = []
        cdef uint64_t tag
        cdef Slot* s
        for tag in range(self.base, self.base + self.slots):
            s = self.find(tag)
            if s != NULL and s.queue == <PyObject*>queue:
                out.append((s.e.seq, tag))
        return out

    def covered(self, uint64_t tag, bint multiple) -> list:
        """The queues of the outstanding deliveries that are meant, one or all up to `tag`, each once."""
        cdef dict found = {}
        cdef uint64_t each
        cdef Slot* s
        for each in range(self.base if multiple else tag, min(tag + 1, self.base + self.slots)):
            s = self.find(each)
            if s != NULL:
                found[<object>s.queue] = None
        return list(found)

    def lend(self, uint64_t tag, QueueCore into not None) -> None:
        """Put an outstanding entry, which stays so, behind what waits in a queue."""
        cdef Entry e = self.find(tag).e
        if e.msg == NULL:
            raise ValueError("its message lies in a log")
        e.seq = 0
        e.msg.refs += 1
        list_push(&into.waiting, &e)

    def renumber(self, uint64_t tag, uint64_t seq) -> None:
        """An outstanding entry has another place in its log."""
        self.find(tag).e.seq = seq

    def take_barrier(self) -> tuple:
        """(highest publish number, queues that got something since the last call, maybe repeated)."""
        cdef list targets = self.targets
        self.targets = []
        self.stamp = next_stamp()
        self.confirming = False
        return self.publish_no, targets


@cython.final
cdef class ConsumerCore:
    """Credit of one consumer."""

    def __cinit__(self, ChannelCore channel not None, bytes tag not None, bint no_ack, uint32_t prefetch,
                  bint unbound=False):
        self.unbound = unbound
        if len(tag) > 255:
            raise ValueError("a consumer tag holds at most 255 bytes")
        self.channel = channel
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch

    cdef bint has_credit(self) noexcept:
        cdef ChannelCore ch = self.channel
        if not ch.flow or ch.closing:
            return False
        if self.no_ack or self.unbound:
            return True
        if self.prefetch and self.unacked >= self.prefetch:
            return False
        return not ch.prefetch_limit or ch.held < ch.prefetch_limit

    cdef bint able(self) noexcept:
        """May it take one more message now? Stopping for lack of room marks the output as starved."""
        cdef OutBuffer out = self.channel.out
        if not self.has_credit():
            return False
        if out.blocked or out.used >= out.high:
            out.starved = True
            return False
        return True

    def may_take(self) -> bool:
        """Would it take a message, leaving aside whether its socket has room?"""
        return self.has_credit()


@cython.final
cdef class QueueCore(QueueStore):
    """A queue's entries and those who take them."""

    def __cinit__(self):
        self.groups = []
        self.strays = []

    def set_consumers(self, list groups not None) -> None:
        """Consumers as lists by falling priority; within a list they take turns."""
        self.groups = [Group(members) for members in groups]

    def take_local(self, QueueCore other not None) -> None:
        """What clients of this node published to another queue waits here; what came from elsewhere stays.

        Both keep their order.
        """
        cdef Entry e
        cdef uint64_t n = other.waiting.count
        while n:
            n -= 1
            e = list_front(&other.waiting)[0]
            list_push(&other.waiting if e.pid >> 62 else &self.waiting, &e)
            list_pop(&other.waiting)
        self.note_touch()

    cdef int make_room(self, ChannelCore channel, bint no_ack) except -1:
        """After this (and with the delivery written) hand_out cannot fail."""
        if no_ack:
            self.make_range_room()
        if not no_ack or channel.slots:
            channel.make_room()
        return 0

    cdef void hand_out(self, ChannelCore channel, ConsumerCore consumer, Level* at, bint no_ack,
                       int64_t now_mono) noexcept:
        """The head of the queue was written to the channel: unacked there from now on, or settled."""
        cdef Entry e
        self.pop(at, &e)
        if e.flags & ENTRY_REDELIVERED:
            self.redelivered += 1
            channel.tally.count(REDELIVER, 1)
        if no_ack:
            channel.push(False)
            self.settle_entry(&e, AUTO)
            msg_release(e.msg)
        else:
            channel.track(self, consumer, &e, now_mono)

    def deliver(self, int64_t now_wall, int64_t now_mono, uint64_t upto=0xffffffffffffffff) -> int:
        """Give ready entries with seq <= upto to consumers in turn, until either side has no more."""
        cdef Group group
        cdef ConsumerCore consumer
        cdef ChannelCore ch
        cdef Level* at = NULL
        cdef Entry* first
        cdef Py_ssize_t n, idle
        cdef int64_t sent = 0
        for group in self.groups:
            n = len(group.members)
            idle = 0
            while idle < n:
                if group.turn >= n:
                    group.turn = 0
                consumer = <ConsumerCore>group.members[group.turn]
                group.turn += 1
                if not consumer.able():
                    if consumer.channel.prefetch_limit:
                        consumer.channel.note_wanting(self)
                    idle += 1
                    continue
                first = self.head(&at)
                while first != NULL and first.expiry and first.expiry < now_wall:
                    self.remove(at, first, EXPIRED)
                    first = self.head(&at)
                if first == NULL or first.seq > upto:
                    group.turn -= 1
                    return sent
                ch = consumer.channel
                self.make_room(ch, consumer.no_ack)
                ch.out.put_deliver(ch.number, consumer.tag, ch.next_tag, first.flags & ENTRY_REDELIVERED,
                                   first.seq, first.msg)
                self.hand_out(ch, consumer, at, consumer.no_ack, now_mono)
                consumer.delivered += 1
                if consumer.no_ack:
                    self.delivered_no_ack += 1
                    ch.tally.count(DELIVER_NO_ACK, 1)
                else:
                    self.delivered += 1
                    ch.tally.count(DELIVER, 1)
                idle = 0
                sent += 1
        return sent

    def get(self, ChannelCore channel not None, bint no_ack, int64_t now_wall, int64_t now_mono,
            uint64_t upto=0xffffffffffffffff, uint64_t elsewhere=0) -> bool:
        """basic.get: writes get-ok and content; False = nothing ready. `elsewhere`: ready at the master."""
        cdef Level* at = NULL
        cdef Entry* first
        cdef uint64_t before = self.ready
        self.expire(now_wall)
        if self.ready != before:
            self.note_touch()  # what expired is settled or dead-lettered in the turn
        first = self.head(&at)
        if first == NULL or first.seq > upto:
            self.note_empty(channel)
            return False
        self.note_touch()
        self.make_room(channel, no_ack)
        channel.out.put_get_ok(channel.number, channel.next_tag, first.flags & ENTRY_REDELIVERED, first.seq,
                               first.msg, <uint32_t>min(self.ready - 1 + elsewhere, <uint64_t>0xffffffff))
        self.hand_out(channel, None, at, no_ack, now_mono)
        self.got += 1
        if no_ack:
            self.got_no_ack += 1
        channel.tally.count(GET_NO_ACK if no_ack else GET, 1)
        return True

    def note_empty(self, ChannelCore channel not None) -> None:
        """basic.get found nothing."""
        self.got_nothing += 1
        channel.tally.count(GET_EMPTY, 1)

    def counts(self) -> tuple:
        """All counters and depths in the order of QUEUE_COUNTS: what is compared from look to look."""
        return (self.published, self.delivered, self.delivered_no_ack, self.got - self.got_no_ack,
                self.got_no_ack, self.got_nothing, self.redelivered, self.acked, self.ready, self.unacked)

    cdef int take_end(self, const Entry* e, int how) except -1:
        """A delivery of this entry ended; the reference to its message is taken over."""
        cdef Entry back
        if self.gone:
            msg_release(e.msg)
            return 0
        self.note_touch()
        if how == HOW_ACK:
            self.make_range_room()
            self.settle_entry(e, ACK)
            self.acked += 1
            msg_release(e.msg)
        elif e.msg == NULL and not self.paired and (how != HOW_REJECT or self.dead_letter):
            self.strays.append((e.seq, how))  # its message has to be read first
        elif how == HOW_REQUEUE or how == HOW_UNSEEN:
            back = e[0]
            # Also if nobody saw it: later ones may have been delivered, and the mark excuses the order.
            back.flags |= ENTRY_REDELIVERED
            if self.counted and how == HOW_REQUEUE:
                list_push(&self.coming_back, &back)
            else:
                self.give_back(&back)
        else:
            self.discard(e, REJECTED)
        return 0

    def take_strays(self) -> list:
        """(seq, 1 requeue, 2 reject, 3 never seen) of withheld messages whose deliveries ended."""
        cdef list strays = self.strays
        self.strays = []
        return strays

    @property
    def has_strays(self) -> bool:
        return bool(self.strays)

    def destroy(self) -> int:
        """The queue is deleted: later acks of its messages change nothing. Returns ready + waiting."""
        cdef uint64_t count = self.ready + self.waiting.count
        self.gone = True
        self.bury_all()
        self.groups = []
        return count
