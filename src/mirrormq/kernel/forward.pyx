# cython: language_level=3
"""Messages of a queue whose master is another node, on their way there and back.

Guarantee: a block of records is taken whole or refused whole; a malformed one changes nothing. What was
taken before (by its number) is not taken again, and nothing is taken behind a gap.

A block is a run of records (outbuffer.pxd: head, route, properties, body) whose numbers are dense, so only
the first number travels. At the home node a block is made of the waiting entries of a queue (publishes); at
the master it is what the deliver loop wrote into a compact output (deliveries, numbered by delivery tag).

What clients hold survives a change of masters: a delivery is outstanding under a tag at both ends, and the
home node knows which record it is (`Entry.pseq` is its seq, `Entry.deliveries` its epoch). At a new master it
is an outstanding delivery without a message, which lies in the log only (`inherit`).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mirrormq.kernel.cores cimport HOW_UNSEEN, ChannelCore, ConsumerCore, QueueCore
from mirrormq.kernel.index cimport (ENTRY_REDELIVERED, Chunk, Entry, EntryList, chunk_items, list_drop_back,
                                    list_ends_with_run, list_front, list_join, list_pop, list_push)
from mirrormq.kernel.message cimport (MSG_PERSISTENT, Message, Msg, PropInfo, msg_body, msg_new, msg_release,
                                      walk_properties)
from mirrormq.kernel.outbuffer cimport (WIRE_CONSUMER, WIRE_FLAGS, WIRE_HEAD, WIRE_REDELIVERED, WIRE_SEQ,
                                        put_wire)
from mirrormq.kernel.store cimport Level, QueueStore
from mirrormq.kernel.unacked cimport Slot

cdef enum:
    OWNER_BYTES = 16

HEAD_BYTES = WIRE_HEAD
MEMORY_BYTES = sizeof(Entry) + sizeof(Msg)


class Malformed(ValueError):
    """A block that no node of this version writes."""


cdef inline uint64_t wire_size(const Msg* m) noexcept:
    return WIRE_HEAD + m.route_len + m.props_len + m.body_len


def take_waiting(QueueStore core not None, uint64_t most) -> tuple:
    """(block, count, owners) of the first waiting entries, about `most` bytes of them; they leave the queue.

    `owners` holds (pid u64, pseq u64) of each entry, in the machine's byte order, or is None if no publisher
    waits for a confirm.
    """
    cdef Chunk* c = core.waiting.front
    cdef uint64_t size = 0
    cdef uint64_t count = 0
    cdef uint64_t i
    cdef uint32_t at
    cdef bint is_awaited = False
    cdef Entry* e
    cdef bytes owners = None
    cdef uint8_t* o = NULL
    while c != NULL and size < most:
        for at in range(c.head, c.tail):
            e = &chunk_items(c)[at]
            size += wire_size(e.msg)
            is_awaited = is_awaited or e.pseq != 0
            count += 1
            if size >= most:
                break
        c = c.next
    cdef bytes block = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(block)
    if is_awaited:
        owners = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(count * OWNER_BYTES))
        o = <uint8_t*>PyBytes_AS_STRING(owners)
    for i in range(count):
        e = list_front(&core.waiting)
        p = put_wire(p, e.msg, WIRE_REDELIVERED if e.flags & ENTRY_REDELIVERED else 0, 0, 0)
        if o != NULL:
            memcpy(o, &e.pid, 8)
            memcpy(o + 8, &e.pseq, 8)
            o += OWNER_BYTES
        msg_release(e.msg)
        list_pop(&core.waiting)
    core.published += count
    return block, count, owners


def encode(Message message not None, bint resent) -> bytes:
    """A block of one message."""
    cdef bytes block = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>wire_size(message.msg))
    put_wire(<uint8_t*>PyBytes_AS_STRING(block), message.msg, WIRE_REDELIVERED if resent else 0, 0, 0)
    return block


cdef Msg* message_at(const uint8_t* p, uint64_t left, uint64_t* size) except NULL:
    """The message of the record at `p`, of which `left` bytes are there; how many it takes goes to `size`."""
    cdef uint32_t body_len, props_len
    cdef uint16_t route_len
    cdef const uint8_t* route = p + WIRE_HEAD
    cdef PropInfo info
    cdef Msg* m
    if left < WIRE_HEAD:
        raise Malformed("a record is cut short")
    memcpy(&body_len, p, 4)
    memcpy(&props_len, p + 4, 4)
    memcpy(&route_len, p + 12, 2)
    size[0] = <uint64_t>WIRE_HEAD + route_len + props_len + body_len
    if size[0] > left:
        raise Malformed("a record is cut short")
    if route_len < 2 or route[0] + 2u > route_len or route[0] + 2u + route[1 + route[0]] != route_len:
        raise Malformed("a record has no route")
    if not walk_properties(route + route_len, props_len, &info):
        raise Malformed("a record has malformed properties")
    m = msg_new(route, route_len, route + route_len, props_len, body_len, &info)
    memcpy(msg_body(m), route + route_len + props_len, body_len)
    return m


cdef int read_block(EntryList* out, const uint8_t[::1] data, uint64_t at, uint64_t count) except -1:
    """Append the entries of a block that goes from `at` to the end of `data`."""
    cdef uint64_t end = <uint64_t>data.shape[0]
    cdef uint64_t size = 0
    cdef uint8_t flags
    cdef uint32_t consumer = 0
    cdef uint64_t seq = 0
    cdef Entry e
    cdef Msg* m
    while count:
        if at >= end:
            raise Malformed("a block has fewer records than it says")
        m = message_at(&data[at], end - at, &size)
        flags = data[at + WIRE_FLAGS]
        memcpy(&consumer, &data[at + WIRE_CONSUMER], 4)
        memcpy(&seq, &data[at + WIRE_SEQ], 8)
        e = Entry(m, 0, 0, consumer, seq, ENTRY_REDELIVERED if flags & WIRE_REDELIVERED else 0, 0)
        try:
            list_push(out, &e)
        except MemoryError:
            msg_release(m)
            raise
        at += size
        count -= 1
    if at != end:
        raise Malformed("a block is longer than its records")
    return 0


cdef void drop(EntryList* entries) noexcept:
    while entries.count:
        msg_release(list_front(entries).msg)
        list_pop(entries)


def take_publishes(QueueStore core not None, const uint8_t[::1] data, uint64_t at, uint64_t first,
                   uint64_t count, uint64_t row, uint64_t pid, bint resent) -> tuple:
    """The master takes a block of publishes numbered from `first` on, of which it has those up to `row`.

    They wait in the queue with (pid, number); what was `resent` after the master's restart may have been
    delivered before and says so. Returns (the new row, how many of the new ones are persistent).
    """
    cdef EntryList entries = EntryList(NULL, NULL, 0)
    cdef Chunk* c
    cdef Entry* e
    cdef uint32_t i
    cdef uint64_t number = first
    cdef uint64_t persistent = 0
    if first == 0 or first > row + 1:
        raise Malformed("publishes are missing")
    if first + count < first:
        raise Malformed("a number runs over")
    try:
        read_block(&entries, data, at, count)
    except BaseException:
        drop(&entries)
        raise
    while entries.count and number <= row:
        msg_release(list_front(&entries).msg)
        list_pop(&entries)
        number += 1
    if entries.count == 0 or core.gone:
        drop(&entries)
        return max(row, first + count - 1), 0
    core.note_touch()
    c = entries.front
    while c != NULL:
        for i in range(c.head, c.tail):
            e = &chunk_items(c)[i]
            e.pid = pid
            e.pseq = number
            if resent:
                e.flags |= ENTRY_REDELIVERED
            persistent += e.msg.flags & MSG_PERSISTENT
            number += 1
        c = c.next
    list_join(&core.waiting, &entries)
    return number - 1, persistent


def take_copies(QueueStore core not None, const uint8_t[::1] data, uint64_t first, uint64_t count,
                uint64_t row, uint64_t pid, uint64_t high) -> list:
    """Take rows that are copies of another cluster's messages, as `take_publishes` takes publishes.

    Those whose origin is not above `high`, or not above the one before, are known: they are dropped. Returns
    [(seq at the origin, count), …] of those that were taken, runs of consecutive seqs.
    """
    cdef EntryList entries = EntryList(NULL, NULL, 0)
    cdef EntryList taken = EntryList(NULL, NULL, 0)
    cdef list runs = []
    cdef uint64_t number = first
    cdef uint64_t run = 0
    cdef uint64_t length = 0
    cdef Entry e
    try:
        read_block(&entries, data, 0, count)
        while entries.count:
            e = list_front(&entries)[0]
            if number > row and e.pseq > high and not core.gone:
                high = e.pseq
                if length and run + length == high:
                    length += 1
                else:
                    if length:
                        runs.append((run, length))
                    run = high
                    length = 1
                e.pid = pid
                e.pseq = number
                list_push(&taken, &e)
            else:
                msg_release(e.msg)
            list_pop(&entries)
            number += 1
    except BaseException:
        drop(&entries)
        drop(&taken)
        raise
    if length:
        runs.append((run, length))
        core.note_touch()
        list_join(&core.waiting, &taken)
    return runs


def origins(const uint8_t[::1] data, uint64_t count) -> list:
    """[(first, last), …] of the seqs at the origin that a block of rows names; bodies end runs."""
    cdef list spans = []
    cdef uint64_t at = 0
    cdef uint64_t end = <uint64_t>data.shape[0]
    cdef uint64_t size, seq, upto
    cdef uint64_t first = 0
    cdef uint64_t last = 0
    cdef uint32_t body_len, props_len
    cdef uint16_t route_len
    while count:
        if end - at < WIRE_HEAD:
            raise Malformed("a block has fewer records than it says")
        memcpy(&body_len, &data[at], 4)
        memcpy(&props_len, &data[at + 4], 4)
        memcpy(&route_len, &data[at + 12], 2)
        memcpy(&seq, &data[at + WIRE_SEQ], 8)
        size = <uint64_t>WIRE_HEAD + route_len + props_len + body_len
        if size > end - at:
            raise Malformed("a record is cut short")
        if seq:
            add_span(spans, seq, &first, &last)
            if body_len == 8:
                memcpy(&upto, &data[at + size - 8], 8)
                last = max(last, upto)
        at += size
        count -= 1
    if first:
        spans.append((first, last))
    return spans


def take_deliveries(QueueStore core not None, const uint8_t[::1] data, uint64_t at, uint64_t first,
                    uint64_t count, list epochs=None) -> None:
    """The home node takes a block of deliveries with tags from `first` on: ready, in the order of the tags.

    The pid of an entry is the number of the consumer it is for. `epochs`: (epoch, seq of its first record) in
    the master's log, oldest first.
    """
    cdef EntryList entries = EntryList(NULL, NULL, 0)
    cdef Entry e
    cdef uint64_t low = 1
    cdef uint64_t high = 0  # the epoch looked up last reaches from low to high
    cdef uint32_t epoch = 0
    try:
        read_block(&entries, data, at, count)
        while entries.count and not core.gone:
            e = list_front(&entries)[0]
            e.seq = first
            if not low <= e.pseq <= high:
                epoch = epoch_of(epochs, e.pseq, &low, &high)
            e.deliveries = epoch
            core.make_ready(&e)
            list_pop(&entries)
            first += 1
    finally:
        drop(&entries)
    core.note_touch()


cdef uint32_t epoch_of(list epochs, uint64_t seq, uint64_t* low, uint64_t* high) except? 0xffffffff:
    """The epoch of a record, and the seqs around it that have the same; 0 if it is not known."""
    cdef uint32_t found = 0
    low[0] = 0
    high[0] = 0xffffffffffffffff
    if epochs is not None:
        for epoch, first in reversed(epochs):
            low[0] = first
            if <uint64_t>first <= seq:
                return <uint32_t>epoch
            high[0] = <uint64_t>first - 1
        low[0] = 0
    return found


def first_run(QueueStore core not None) -> tuple | None:
    """(consumer, last tag) of the deliveries to one consumer that stand first, None if nothing is ready."""
    cdef Chunk* c = core.levels[0].ready.front
    cdef uint32_t i
    cdef uint64_t consumer, last
    if core.ready == 0 or c == NULL:
        return None
    consumer = chunk_items(c)[c.head].pid
    last = 0
    while c != NULL:
        for i in range(c.head, c.tail):
            if chunk_items(c)[i].pid != consumer:
                return consumer, last
            last = chunk_items(c)[i].seq
        c = c.next
    return consumer, last


def read_message(const uint8_t[::1] data, uint64_t at) -> Message:
    """The only message of a block."""
    cdef uint64_t size = 0
    if at >= <uint64_t>data.shape[0]:
        raise Malformed("a record is cut short")
    cdef Msg* m = message_at(&data[at], data.shape[0] - at, &size)
    cdef Message message = Message.wrap(m)
    msg_release(m)
    if at + size != <uint64_t>data.shape[0]:
        raise Malformed("a block is longer than its records")
    return message


def settle_span(ChannelCore channel not None, uint64_t first, uint64_t last, int how) -> int:
    """End the outstanding deliveries first..last (0 ack, 1 requeue, 2 reject, 3 never seen by a client).

    Tags that are not outstanding are passed over. Returns how many were.
    """
    cdef uint64_t tag
    cdef uint64_t low = channel.base
    cdef uint64_t high = channel.base + channel.slots
    cdef int ended = 0
    if how < 0 or how > HOW_UNSEEN:
        raise Malformed("a delivery ends in no such way")
    first = first if first > low else low
    if last >= high:
        last = high - 1
    tag = first
    while tag <= last:
        if channel.find(tag) != NULL:
            channel.finish(tag, how)
            ended += 1
        tag += 1
    return ended


cdef void add_span(list spans, uint64_t seq, uint64_t* first, uint64_t* last) except *:
    if first[0] and last[0] + 1 == seq:
        last[0] = seq
        return
    if first[0]:
        spans.append((first[0], last[0]))
    first[0] = seq
    last[0] = seq


def take_settled(QueueStore core not None) -> tuple:
    """([(first, last, reason), …], pairs) of the deliveries that ended.

    `pairs` holds (seq u64, epoch u64) at the master of each, in the machine's byte order.
    """
    cdef bytes pairs = PyBytes_FromStringAndSize(<char*>core.pairs.items, <Py_ssize_t>(core.pairs.count * 8))
    return core.take_settled(), pairs


cdef int add_pair(bytearray pairs, const Entry* e) except -1:
    cdef uint64_t epoch = e.deliveries
    pairs += PyBytes_FromStringAndSize(<char*>&e.pseq, 8)
    pairs += PyBytes_FromStringAndSize(<char*>&epoch, 8)
    return 0


def take_returned(QueueStore core not None) -> tuple:
    """([(first, last), …], pairs) of the deliveries that came back to a counted queue; they leave it."""
    cdef list spans = []
    cdef bytearray pairs = bytearray()
    cdef uint64_t first = 0
    cdef uint64_t last = 0
    while core.coming_back.count:
        add_span(spans, list_front(&core.coming_back).seq, &first, &last)
        add_pair(pairs, list_front(&core.coming_back))
        msg_release(list_front(&core.coming_back).msg)
        list_pop(&core.coming_back)
    if first:
        spans.append((first, last))
    return spans, bytes(pairs)


def take_ready(QueueStore core not None, uint64_t consumer=0) -> list:
    """[(first, last), …] of the deliveries that are ready for a consumer (0: for anybody); they leave."""
    cdef list spans = []
    cdef EntryList kept = EntryList(NULL, NULL, 0)
    cdef uint64_t first = 0
    cdef uint64_t last = 0
    cdef Level* at = NULL
    cdef Entry e
    while core.head(&at) != NULL:
        e = core.head(&at)[0]
        if consumer and e.pid != consumer:
            list_push(&kept, &e)
            core.pop(at, &e)
            continue
        add_span(spans, e.seq, &first, &last)
        core.pop(at, &e)
        msg_release(e.msg)
    while kept.count:
        core.make_ready(list_front(&kept))
        list_pop(&kept)
    if first:
        spans.append((first, last))
    return spans


# -- another master ----------------------------------------------------------------------------------


def held(ChannelCore channel not None, QueueCore core not None) -> list:
    """(tag, consumer, seq, epoch) of the deliveries of an inlet that a client's channel holds."""
    cdef list out = []
    cdef uint64_t tag
    cdef Slot* s
    for tag in range(channel.base, channel.base + channel.slots):
        s = channel.find(tag)
        if s != NULL and s.queue == <PyObject*>core:
            out.append((s.e.seq, s.e.pid, s.e.pseq, s.e.deliveries))
    return out


def renumber(ChannelCore channel not None, QueueCore core not None, dict tags not None) -> None:
    """The deliveries of an inlet that are outstanding have other tags from now on, 0 if not in `tags`."""
    cdef uint64_t tag
    cdef Slot* s
    for tag in range(channel.base, channel.base + channel.slots):
        s = channel.find(tag)
        if s != NULL and s.queue == <PyObject*>core:
            s.e.seq = tags.get(s.e.seq, 0)


cdef int move_slot(Slot* s, QueueCore to) except -1:
    cdef QueueCore before = <QueueCore>s.queue
    cdef uint64_t size = s.e.msg.body_len if s.e.msg != NULL else 0
    before.unacked -= 1
    before.unacked_bytes -= size
    to.unacked += 1
    to.unacked_bytes += size
    s.queue = <PyObject*>to
    Py_INCREF(to)
    Py_DECREF(before)
    return 0


def move_out(ChannelCore channel not None, QueueCore core not None, QueueCore inlet not None,
             uint64_t first, list epochs) -> int:
    """The master of a queue is elsewhere from now on: what a client here holds belongs to an inlet.

    Tags are given from `first` on; returns the next one. Consumers are named by `name_consumer`.
    """
    cdef uint64_t tag
    cdef uint64_t low, high
    cdef Slot* s
    for tag in range(channel.base, channel.base + channel.slots):
        s = channel.find(tag)
        if s != NULL and s.queue == <PyObject*>core:
            s.e.pseq = s.e.seq
            s.e.deliveries = epoch_of(epochs, s.e.seq, &low, &high)
            s.e.seq = first
            s.e.pid = 0
            first += 1
            move_slot(s, inlet)
    return first


def name_consumer(ChannelCore channel not None, QueueCore inlet not None, ConsumerCore consumer not None,
                  uint32_t number) -> None:
    """What this consumer holds of an inlet is known to the master under its number."""
    cdef uint64_t tag
    cdef Slot* s
    for tag in range(channel.base, channel.base + channel.slots):
        s = channel.find(tag)
        if s != NULL and s.queue == <PyObject*>inlet and s.consumer == <PyObject*>consumer:
            s.e.pid = number


def move_in(ChannelCore channel not None, QueueCore inlet not None, QueueCore core not None,
            set tags not None) -> int:
    """This node is the master from now on: what a client here holds belongs to the queue, if in `tags`.

    Its message lies in the log. Returns how many there are.
    """
    cdef uint64_t tag
    cdef uint64_t moved = 0
    cdef Slot* s
    for tag in range(channel.base, channel.base + channel.slots):
        s = channel.find(tag)
        if s != NULL and s.queue == <PyObject*>inlet and s.e.seq in tags:
            move_slot(s, core)
            core.unacked_bytes -= s.e.msg.body_len if s.e.msg != NULL else 0
            msg_release(s.e.msg)
            s.e = Entry(NULL, s.e.pseq, 0, 0, 0, ENTRY_REDELIVERED, 0)
            moved += 1
    return moved


def withhold(QueueStore core not None, uint64_t n) -> None:
    """So many messages of the run that ends level 0 are held by consumers: they are not ready."""
    cdef EntryList* l = &core.levels[0].ready
    cdef Chunk* run = l.back
    if not list_ends_with_run(l) or run.count < n:
        raise ValueError("fewer messages lie in the log")
    run.count -= n
    l.count -= n
    core.ready_bytes -= core.ready_bytes // core.ready * n if core.ready else 0
    core.ready -= n
    if run.count == 0:
        list_drop_back(l)
    if core.ready == 0:
        core.ready_bytes = 0


def give_to_run(QueueStore core not None, uint64_t seq, Message message=None) -> bool:
    """A withheld message is ready again. False: its place in the log was passed, it must be read alone; or
    its level is not known, since the message is not here."""
    cdef uint32_t level = core.level_of(message.msg.priority) if message is not None else 0
    cdef EntryList* l = &core.levels[level].ready
    if (core.max_priority and message is None) or not list_ends_with_run(l) or seq < l.back.first:
        return False
    # Behind its end, too: what is published next belongs to the run, and it would reach over this one.
    l.back.last = max(l.back.last, seq)
    l.back.count += 1
    l.count += 1
    core.ready += 1
    if message is not None:
        core.ready_bytes += message.msg.body_len
    return True


def come_back(QueueStore core not None, Message message not None, uint64_t seq, int64_t expiry,
              uint32_t deliveries) -> None:
    """A withheld message of a counted queue is requeued."""
    cdef Entry e = Entry(message.msg, seq, expiry, 0, 0, ENTRY_REDELIVERED, deliveries)
    if not core.gone:
        list_push(&core.coming_back, &e)
        message.msg.refs += 1
        core.note_touch()


def inherit(ChannelCore channel not None, QueueCore core not None, list rows not None, int64_t now) -> None:
    """A client of another node holds deliveries of the master before: (seq, consumer) of the next tags.

    Seq 0: the tag is used up. Their messages lie in the log. Consumers are put in by `bind_consumer`.
    """
    cdef Entry e
    cdef uint64_t seq
    cdef uint32_t number
    for seq, number in rows:
        channel.make_room()
        if seq:
            e = Entry(NULL, seq, 0, number, 0, ENTRY_REDELIVERED, 0)
            channel.track(core, None, &e, now)
        else:
            channel.push(False)


def bind_consumer(ChannelCore channel not None, ConsumerCore consumer not None, uint32_t number) -> None:
    """The consumer with this number is registered: what it inherited counts against its limits."""
    cdef uint64_t tag
    cdef Slot* s
    for tag in range(channel.base, channel.base + channel.slots):
        s = channel.find(tag)
        if s != NULL and s.e.msg == NULL and s.e.pid == number and s.consumer == NULL:
            s.consumer = <PyObject*>consumer
            Py_INCREF(consumer)
            consumer.unacked += 1
            channel.held += not consumer.unbound
