# cython: language_level=3
"""Messages of a queue whose master is another node, on their way there and back.

Guarantee: a block of records is taken whole or refused whole; a malformed one changes nothing. What was
taken before (by its number) is not taken again, and nothing is taken behind a gap.

A block is a run of records (outbuffer.pxd: head, route, properties, body) whose numbers are dense, so only
the first number travels. At the home node a block is made of the waiting entries of a queue (publishes); at
the master it is what the deliver loop wrote into a compact output (deliveries, numbered by delivery tag).
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mirrormq.kernel.cores cimport HOW_UNSEEN, ChannelCore
from mirrormq.kernel.index cimport (ENTRY_REDELIVERED, Chunk, Entry, EntryList, chunk_items, list_front,
                                    list_join, list_pop, list_push)
from mirrormq.kernel.message cimport (MSG_PERSISTENT, Message, Msg, PropInfo, msg_body, msg_new, msg_release,
                                      walk_properties)
from mirrormq.kernel.outbuffer cimport WIRE_CONSUMER, WIRE_FLAGS, WIRE_HEAD, WIRE_REDELIVERED, put_wire
from mirrormq.kernel.store cimport Level, QueueStore

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
        p = put_wire(p, e.msg, WIRE_REDELIVERED if e.flags & ENTRY_REDELIVERED else 0, 0)
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
    put_wire(<uint8_t*>PyBytes_AS_STRING(block), message.msg, WIRE_REDELIVERED if resent else 0, 0)
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
    cdef Entry e
    cdef Msg* m
    while count:
        if at >= end:
            raise Malformed("a block has fewer records than it says")
        m = message_at(&data[at], end - at, &size)
        flags = data[at + WIRE_FLAGS]
        memcpy(&consumer, &data[at + WIRE_CONSUMER], 4)
        e = Entry(m, 0, 0, consumer, 0, ENTRY_REDELIVERED if flags & WIRE_REDELIVERED else 0, 0)
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


def take_deliveries(QueueStore core not None, const uint8_t[::1] data, uint64_t at, uint64_t first,
                    uint64_t count) -> None:
    """The home node takes a block of deliveries with tags from `first` on: ready, in the order of the tags.

    The pid of an entry is the number of the consumer it is for.
    """
    cdef EntryList entries = EntryList(NULL, NULL, 0)
    cdef Entry e
    try:
        read_block(&entries, data, at, count)
        while entries.count and not core.gone:
            e = list_front(&entries)[0]
            e.seq = first
            core.make_ready(&e)
            list_pop(&entries)
            first += 1
    finally:
        drop(&entries)
    core.note_touch()


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


def take_returned(QueueStore core not None) -> list:
    """[(first, last), …] of the seqs that came back to a counted queue; they leave it."""
    cdef list spans = []
    cdef uint64_t first = 0
    cdef uint64_t last = 0
    while core.coming_back.count:
        add_span(spans, list_front(&core.coming_back).seq, &first, &last)
        msg_release(list_front(&core.coming_back).msg)
        list_pop(&core.coming_back)
    if first:
        spans.append((first, last))
    return spans


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
