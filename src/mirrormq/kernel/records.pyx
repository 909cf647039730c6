# cython: language_level=3
"""The batch: unit of append, checksum, replication and recovery of records (docs/format/batch.md).

Guarantee: what is read back is what was written, or it is refused. Head, records and tail have checksums of
their own, so that damage inside a batch can be told from an unfinished end, and named by queue.

Numbers are little-endian. Head (56 bytes): magic u32, crc of the rest of the head u32, bytes of records u32,
crc of the records u32, queue id u64, epoch u64, first seq u64, records u32, publishes u32, time u64. Record
head (12 bytes): payload bytes u32, seq - first seq u32, kind u8, flags u8, 0 u16. Publish payload: received
u64, expiry u64, pid u64, pseq u64, deliveries u32, property bytes u32, route bytes u16, priority u8, 0 u8,
route, properties, body. Tail (24 bytes): queue id u64, first seq u64, records u32, crc of these u32.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from mirrormq.kernel.crc32c cimport crc_of
from mirrormq.kernel.index cimport (ENTRY_REDELIVERED, Chunk, Entry, EntryList, chunk_items, entry_cost,
                                    list_push, list_refill)
from mirrormq.kernel.message cimport (MSG_PERSISTENT, Message, Msg, PropInfo, msg_body, msg_new,
                                      msg_release, msg_route, walk_properties)
from mirrormq.kernel.ranges cimport RangeSet
from mirrormq.kernel.store cimport Level, QueueStore

PUBLISH, PUBNOTE, REMOVE, REQUEUE, HORIZON, DYING, POLICY, EPOCH = 1, 2, 3, 4, 5, 6, 7, 8
DELETE, HADCONSUMER, PRODGONE, CURSOR, STAGE, COMMIT_SET, BASE = 9, 10, 11, 12, 13, 14, 15
MARK, TRUNCATE, PROMISE = 16, 17, 18  # notes of the journal, never records of a queue
HEAD_BYTES = 56
PID_OF_LETTERS = 1 << 63
PID_OF_HOMES = 1 << 62

cdef enum:
    STAGED_BYTES = 5  # route and properties of a block of rows
    FLAG_ORIGINS = 1  # of a PUBNOTE: where the publishes before it in its batch come from

cdef void seal(uint8_t* p, const Head* h) noexcept:
    """Write the head in front of its finished records, and the tail behind them."""
    cdef uint8_t* tail = p + HEAD + h.size
    set64(tail, h.queue_id)
    set64(tail + 8, h.first_seq)
    set32(tail + 16, h.records)
    set32(tail + 20, crc_of(tail, TAIL - 4))
    set32(p, MAGIC)
    set32(p + 8, h.size)
    set32(p + 12, crc_of(p + HEAD, h.size))
    set64(p + 16, h.queue_id)
    set64(p + 24, h.epoch)
    set64(p + 32, h.first_seq)
    set32(p + 40, h.records)
    set32(p + 44, h.publishes)
    set64(p + 48, h.time)
    set32(p + 4, crc_of(p + 8, HEAD - 8))


cdef inline uint8_t* record_head(uint8_t* p, uint32_t size, uint32_t offset, uint8_t kind,
                                 uint8_t flags) noexcept:
    set32(p, size)
    set32(p + 4, offset)
    p[8] = kind
    p[9] = flags
    p[10] = 0
    p[11] = 0
    return p + RECORD


cdef inline uint64_t publish_size(const Msg* m) noexcept:
    return PUBLISH_HEAD + m.route_len + m.props_len + m.body_len


cdef uint8_t* put_publish(uint8_t* p, const Entry* e, uint32_t offset, uint64_t received,
                          uint64_t expiry) noexcept:
    cdef Msg* m = e.msg
    p = record_head(p, <uint32_t>publish_size(m), offset, KIND_PUBLISH,
                    (FLAG_PERSISTENT if m.flags & MSG_PERSISTENT else 0)
                    | (FLAG_RESENT if e.flags & ENTRY_REDELIVERED else 0))
    set64(p, received)
    set64(p + 8, expiry)
    set64(p + 16, e.pid)
    set64(p + 24, e.pseq)
    set32(p + 32, e.deliveries)
    set32(p + 36, m.props_len)
    memcpy(p + 40, &m.route_len, 2)
    p[42] = m.priority
    p[43] = 0
    # route, properties and body lie together in the message
    memcpy(p + PUBLISH_HEAD, msg_route(m), m.route_len + m.props_len + m.body_len)
    return p + publish_size(m)


def encode_publishes(QueueStore core not None, uint64_t n, uint64_t queue_id, uint64_t epoch,
                     uint64_t first_seq, uint64_t now, bytes note=None) -> tuple:
    """(batch of the first n waiting entries of a queue, how many of them are persistent).

    `note`: the payload of a PUBNOTE record about them that ends the batch.
    """
    cdef Chunk* c = core.waiting.front
    cdef uint64_t size = 0
    cdef uint64_t left = n
    cdef uint32_t i
    cdef uint32_t persistent = 0
    cdef Head h
    cdef bytes out
    cdef uint8_t* start
    cdef uint8_t* p
    cdef Entry* e
    if n == 0 or n > core.waiting.count:
        raise ValueError("nothing to encode")
    while left:
        for i in range(c.head, c.tail):
            size += RECORD + publish_size(chunk_items(c)[i].msg)
            left -= 1
            if left == 0:
                break
        c = c.next
    if note is not None:
        size += RECORD + <uint64_t>len(note)
    if size > 0xffffffffu:
        raise ValueError("a batch holds less than 4 GiB")
    out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(HEAD + size + TAIL))
    start = <uint8_t*>PyBytes_AS_STRING(out)
    p = start + HEAD
    c = core.waiting.front
    left = n
    while left:
        for i in range(c.head, c.tail):
            e = &chunk_items(c)[i]
            persistent += e.msg.flags & MSG_PERSISTENT
            p = put_publish(p, e, <uint32_t>(n - left), now,
                            e.expiry if e.expiry else core.expiry_of(e.msg, now))
            left -= 1
            if left == 0:
                break
        c = c.next
    if note is not None:
        p = record_head(p, <uint32_t>len(note), <uint32_t>n, KIND_PUBNOTE, FLAG_ORIGINS)
        memcpy(p, PyBytes_AS_STRING(note), len(note))
    h = Head(<uint32_t>size, 0, queue_id, epoch, first_seq, <uint32_t>(n + (note is not None)), <uint32_t>n,
             now)
    seal(start, &h)
    return out, persistent


def encode_removals(QueueStore core not None, RangeSet dead not None, uint64_t queue_id, uint64_t epoch,
                    uint64_t seq, uint64_t now) -> bytes | None:
    """One REMOVE record for all that left the queue since the last call; its seqs and its own join `dead`."""
    cdef uint32_t i
    cdef uint32_t size
    cdef bytes out
    cdef uint8_t* start
    cdef uint8_t* p
    cdef Head h
    if core.range_count == 0:
        return None
    size = RECORD + 8 + core.range_count * SPAN_BYTES
    out = PyBytes_FromStringAndSize(NULL, HEAD + size + TAIL)
    start = <uint8_t*>PyBytes_AS_STRING(out)
    p = record_head(start + HEAD, size - RECORD, 0, KIND_REMOVE, 0)
    set64(p, now)
    p += 8
    for i in range(core.range_count):
        set64(p, core.ranges[i].first)
        set64(p + 8, core.ranges[i].last)
        set64(p + 16, core.ranges[i].reason)
        dead.put(core.ranges[i].first, core.ranges[i].last)
        p += SPAN_BYTES
    core.range_count = 0
    dead.put(seq, seq)
    h = Head(size, 0, queue_id, epoch, seq, 1, 0, now)
    seal(start, &h)
    return out


def encode_batch(uint64_t queue_id, uint64_t epoch, uint64_t first_seq, uint64_t now,
                 list records not None) -> bytes:
    """A batch of records given as (kind, flags, payload); none of them a publish."""
    cdef uint64_t size = 0
    cdef uint32_t offset = 0
    cdef bytes payload
    cdef Head h
    for _, _, payload in records:
        size += RECORD + len(payload)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(HEAD + size + TAIL))
    cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(out)
    cdef uint8_t* p = start + HEAD
    for kind, flags, payload in records:
        p = record_head(p, <uint32_t>len(payload), offset, kind, flags)
        memcpy(p, PyBytes_AS_STRING(payload), len(payload))
        p += len(payload)
        offset += 1
    h = Head(<uint32_t>size, 0, queue_id, epoch, first_seq, offset, 0, now)
    seal(start, &h)
    return out


def encode_staged(uint64_t queue_id, uint64_t epoch, uint64_t seq, uint64_t now,
                  const uint8_t[::1] block not None) -> bytes:
    """A batch of one persistent publish whose body is a block of rows of a sink."""
    cdef uint64_t payload = PUBLISH_HEAD + STAGED_BYTES + <uint64_t>block.shape[0]
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(HEAD + RECORD + payload + TAIL))
    cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(out)
    cdef uint8_t* p = record_head(start + HEAD, <uint32_t>payload, 0, KIND_PUBLISH, FLAG_PERSISTENT)
    cdef Head h
    if block.shape[0] == 0 or payload > 0xffffffffu:
        raise ValueError("a block of this size cannot be written")
    memset(p, 0, PUBLISH_HEAD + STAGED_BYTES)
    set64(p, now)
    p[36] = 3  # bytes of properties
    p[40] = 2  # bytes of the route: no exchange, no key
    p[PUBLISH_HEAD + 2] = 0x10  # one property, the delivery mode
    p[PUBLISH_HEAD + 4] = 2
    memcpy(p + PUBLISH_HEAD + STAGED_BYTES, &block[0], block.shape[0])
    h = Head(<uint32_t>(RECORD + payload), 0, queue_id, epoch, seq, 1, 1, now)
    seal(start, &h)
    return out


def staged_blocks(const uint8_t[::1] data, uint64_t at, object wanted not None) -> list:
    """[(seq, block), …] of the publishes of a whole batch of a staging queue whose seqs are wanted."""
    cdef Head h
    cdef const uint8_t* p
    cdef uint32_t i, skipped
    cdef list out = []
    if not head_at(&data[at], data.shape[0] - at, &h):
        raise ValueError("no batch here")
    p = &data[at] + HEAD
    for i in range(h.records):
        if p[8] == KIND_PUBLISH and h.first_seq + get32(p + 4) in wanted:
            skipped = PUBLISH_HEAD + get16(p + RECORD + 40) + get32(p + RECORD + 36)
            out.append((h.first_seq + get32(p + 4), PyBytes_FromStringAndSize(
                <char*>p + RECORD + skipped, get32(p) - skipped)))
        p += RECORD + get32(p)
    return out


# -- reading ---------------------------------------------------------------------------------------


cdef bint head_at(const uint8_t* p, uint64_t n, Head* h) noexcept:
    """Is there a whole, undamaged head?"""
    if n < HEAD or get32(p) != MAGIC or get32(p + 4) != crc_of(p + 8, HEAD - 8):
        return False
    h.size = get32(p + 8)
    h.records_crc = get32(p + 12)
    h.queue_id = get64(p + 16)
    h.epoch = get64(p + 24)
    h.first_seq = get64(p + 32)
    h.records = get32(p + 40)
    h.publishes = get32(p + 44)
    h.time = get64(p + 48)
    return True


def read_head(const uint8_t[::1] data, uint64_t at) -> tuple | None:
    """(bytes of the batch, queue id, epoch, first seq, records, publishes, time), None if damaged or cut."""
    cdef Head h
    if at >= <uint64_t>data.shape[0] or not head_at(&data[at], data.shape[0] - at, &h):
        return None
    if h.records == 0 or h.size < RECORD:
        return None
    return (HEAD + <uint64_t>h.size + TAIL, h.queue_id, h.epoch, h.first_seq, h.records, h.publishes, h.time)


def is_whole(const uint8_t[::1] data, uint64_t at) -> bool:
    """Are the records behind this head all there and undamaged, and is each of them well formed?"""
    cdef Head h
    return at < <uint64_t>data.shape[0] and whole_at(&data[at], data.shape[0] - at, &h)


cdef bint whole_at(const uint8_t* p, uint64_t n, Head* h) noexcept:
    """Is there a whole, undamaged batch? Then every loop over its records stays inside it."""
    cdef const uint8_t* end
    cdef uint32_t i, size
    if not head_at(p, n, h) or <uint64_t>h.size + TAIL > n - HEAD:
        return False
    p += HEAD
    if crc_of(p, h.size) != h.records_crc:
        return False
    end = p + h.size
    for i in range(h.records):
        if end - p < RECORD:
            return False
        size = get32(p)
        if size > end - p - RECORD:
            return False
        if p[8] == KIND_PUBLISH and not publish_ok(p + RECORD, size):
            return False
        p += RECORD + size
    return p == end and get32(end + TAIL - 4) == crc_of(end, TAIL - 4)


cdef bint publish_ok(const uint8_t* p, uint32_t size) noexcept:
    cdef uint32_t route_len
    if size < PUBLISH_HEAD:
        return False
    route_len = get16(p + 40)
    if route_len < 2 or <uint64_t>PUBLISH_HEAD + route_len + get32(p + 36) > size:
        return False
    p += PUBLISH_HEAD
    return p[0] + 2u <= route_len and p[0] + 2u + p[1 + p[0]] == route_len


def read_tail(const uint8_t[::1] data, uint64_t end) -> tuple | None:
    """(queue id, first seq, records) of the batch that ends here, None if that cannot be read.

    It says whose a batch is when its head is damaged.
    """
    if end < TAIL or end > <uint64_t>data.shape[0]:
        return None
    if get32(&data[end - 4]) != crc_of(&data[end - TAIL], TAIL - 4):
        return None
    return get64(&data[end - TAIL]), get64(&data[end - TAIL + 8]), get32(&data[end - TAIL + 16])


def other_records(const uint8_t[::1] data, uint64_t at) -> list:
    """(kind, flags, seq, payload) of the records of a whole batch that are not publishes."""
    cdef Head h
    cdef const uint8_t* p
    cdef uint32_t i, size
    cdef list out = []
    if not head_at(&data[at], data.shape[0] - at, &h):
        raise ValueError("no batch here")
    p = &data[at] + HEAD
    for i in range(h.records):
        size = get32(p)
        if p[8] != KIND_PUBLISH:
            payload = PyBytes_FromStringAndSize(<char*>p + RECORD, size)
            out.append((p[8], p[9], h.first_seq + get32(p + 4), payload))
        p += RECORD + size
    return out


cdef Msg* message_of(const uint8_t* p, uint32_t size) except NULL:
    """The message of a publish payload (checked by is_whole)."""
    cdef uint16_t route_len = get16(p + 40)
    cdef uint32_t props_len = get32(p + 36)
    cdef uint64_t body_len = size - PUBLISH_HEAD - route_len - props_len
    cdef const uint8_t* route = p + PUBLISH_HEAD
    cdef PropInfo info
    if not walk_properties(route + route_len, props_len, &info):
        raise ValueError("damaged properties")
    cdef Msg* m = msg_new(route, route_len, route + route_len, props_len, body_len, &info)
    memcpy(msg_body(m), route + route_len + props_len, body_len)
    return m


cdef Entry entry_of(const uint8_t* record, uint32_t size, uint64_t seq, uint64_t horizon) except *:
    """The entry of a publish record, read from its head on."""
    cdef const uint8_t* p = record + RECORD
    cdef Msg* m = message_of(p, size)
    return Entry(m, seq, <int64_t>get64(p + 8), get64(p + 16), get64(p + 24),
                 ENTRY_REDELIVERED if seq <= horizon or record[9] & FLAG_RESENT else 0, get32(p + 32))


cdef int check_dead(uint64_t first, uint64_t before, RangeSet dead, RangeSet dying) except -1:
    """A seq that is not found where it should be has left the queue, or the log is damaged."""
    while first < before:
        if dead.has(first):
            first = dead.first_missing(first)
        elif dying is not None and dying.has(first):
            first += 1
        else:
            raise ValueError(f"record {first} is missing")
    return 0


def refill(QueueStore core not None, uint32_t level, list batches not None, uint64_t upto,
           RangeSet dead not None, uint64_t horizon, RangeSet dying=None) -> int:
    """Read back the front run of a level from whole batches [(data, at)], through seq `upto`.

    What is dying is not in it. Anything else that is not there raises ValueError, so that nothing behind a
    hole is served; among priorities that shows at the end of the run only.
    """
    cdef EntryList loaded = EntryList(NULL, NULL, 0)
    cdef uint64_t first
    cdef uint64_t seq
    cdef uint64_t size = 0
    cdef Head h
    cdef const uint8_t[::1] data
    cdef const uint8_t* p
    cdef uint64_t at
    cdef uint32_t i
    cdef Entry e
    cdef uint64_t count
    wanted = core.wanted()
    if wanted is None or wanted[0] != level:
        raise ValueError("nothing to read back")
    first = wanted[1]
    try:
        for view, where in batches:
            data = view
            at = where
            if not head_at(&data[at], data.shape[0] - at, &h):
                raise ValueError("no batch here")
            p = &data[at] + HEAD
            for i in range(h.records):
                seq = h.first_seq + get32(p + 4)
                if (p[8] == KIND_PUBLISH and first <= seq <= upto and core.level_of(p[RECORD + 42]) == level
                        and not dead.has(seq) and (dying is None or not dying.has(seq))):
                    if core.max_priority == 0:
                        check_dead(first, seq, dead, dying)
                    e = entry_of(p, get32(p), seq, horizon)
                    list_push(&loaded, &e)
                    core.note_expiry(&core.levels[level], e.expiry)
                    size += entry_cost(&e)
                    first = seq + 1
                p += RECORD + get32(p)
        if core.max_priority == 0:
            check_dead(first, min(upto, <uint64_t>wanted[2]) + 1, dead, dying)
        count = loaded.count
        list_refill(&core.levels[level].ready, &loaded, upto)
    except BaseException:
        core.grave.bury(&loaded)
        raise
    core.hold(size)
    core.note_touch()
    return count


def messages(const uint8_t[::1] data, uint64_t at, set wanted not None) -> list:
    """[(message, seq, expiry), …] of the publishes of a whole batch whose seqs are wanted."""
    cdef list out = []
    cdef Head h
    cdef const uint8_t* p
    cdef uint64_t seq
    cdef uint32_t i
    cdef Entry e
    if not head_at(&data[at], data.shape[0] - at, &h):
        raise ValueError("no batch here")
    p = &data[at] + HEAD
    for i in range(h.records):
        seq = h.first_seq + get32(p + 4)
        if p[8] == KIND_PUBLISH and seq in wanted:
            e = entry_of(p, get32(p), seq, 0)
            out.append((Message.wrap(e.msg), seq, e.expiry))
            msg_release(e.msg)
        p += RECORD + get32(p)
    return out


def last_seq(const uint8_t[::1] data, uint64_t at) -> int:
    """Seq of the last record of a whole batch."""
    cdef Head h
    cdef const uint8_t* p
    cdef uint32_t i
    cdef uint32_t offset = 0
    if not head_at(&data[at], data.shape[0] - at, &h):
        raise ValueError("no batch here")
    p = &data[at] + HEAD
    for i in range(h.records):
        offset = get32(p + 4)
        p += RECORD + get32(p)
    return h.first_seq + offset


cdef inline bint is_taken(const uint8_t* p, uint64_t seq, RangeSet dead, uint64_t after, uint64_t keep,
                          uint64_t end) noexcept:
    """Does a copy hold this record? Between the bounds: all from `keep` on, and live publishes before it."""
    if seq <= after or seq >= end:
        return False
    return seq >= keep or (p[8] == KIND_PUBLISH and not dead.has(seq))


cdef tuple copy_records(const uint8_t[::1] data, uint64_t at, RangeSet dead, uint64_t after, uint64_t keep,
                        uint64_t end):
    cdef Head h
    cdef const uint8_t* p
    cdef uint32_t i, size
    cdef uint64_t seq
    cdef uint64_t total = 0
    cdef uint32_t kept = 0
    cdef uint32_t publishes = 0
    cdef uint32_t transient = 0
    cdef uint64_t low = 0
    cdef uint64_t high = 0
    cdef uint8_t* start
    cdef uint8_t* q
    if not head_at(&data[at], data.shape[0] - at, &h):
        raise ValueError("no batch here")
    p = &data[at] + HEAD
    for i in range(h.records):
        size = get32(p)
        seq = h.first_seq + get32(p + 4)
        if is_taken(p, seq, dead, after, keep, end):
            total += RECORD + size
            if kept == 0:
                low = seq
            high = seq
            kept += 1
            if p[8] == KIND_PUBLISH:
                publishes += 1
                transient += not p[9] & FLAG_PERSISTENT
        p += RECORD + size
    if kept == 0:
        return None
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(HEAD + total + TAIL))
    start = <uint8_t*>PyBytes_AS_STRING(out)
    q = start + HEAD
    p = &data[at] + HEAD
    for i in range(h.records):
        size = get32(p)
        seq = h.first_seq + get32(p + 4)
        if is_taken(p, seq, dead, after, keep, end):
            memcpy(q, p, RECORD + size)
            set32(q + 4, <uint32_t>(seq - low))
            q += RECORD + size
        p += RECORD + size
    h = Head(<uint32_t>total, 0, h.queue_id, h.epoch, low, kept, publishes, h.time)
    seal(start, &h)
    return out, kept, publishes, low, high, transient


def copy_kept(const uint8_t[::1] data, uint64_t at, RangeSet dead not None, uint64_t after,
              uint64_t keep) -> tuple | None:
    """What stays of a whole batch above seq `after`: live publishes, and everything from `keep` on.

    (batch, records, publishes, first seq, last seq, transient publishes), None if nothing stays.
    """
    return copy_records(data, at, dead, after, keep, <uint64_t>-1)


def cut(const uint8_t[::1] data, uint64_t at, uint64_t first, uint64_t end) -> tuple | None:
    """The records first <= seq < end of a whole batch, as `copy_kept` gives them."""
    if first == 0:
        raise ValueError("seqs begin with 1")
    return copy_records(data, at, RangeSet(), first - 1, 0, end)


def transients(const uint8_t[::1] data, uint64_t at) -> list:
    """(seq, publishing channel, its publish number) of the transient publishes of a whole batch."""
    cdef Head h
    cdef const uint8_t* p
    cdef uint32_t i
    cdef list out = []
    if not head_at(&data[at], data.shape[0] - at, &h):
        raise ValueError("no batch here")
    p = &data[at] + HEAD
    for i in range(h.records):
        if p[8] == KIND_PUBLISH and not p[9] & FLAG_PERSISTENT:
            out.append((h.first_seq + get32(p + 4), get64(p + RECORD + 16), get64(p + RECORD + 24)))
        p += RECORD + get32(p)
    return out


def transient_seqs(const uint8_t[::1] data, uint64_t at) -> list:
    """Seqs of the publishes of a whole batch that do not outlive a restart."""
    cdef Head h
    cdef const uint8_t* p
    cdef uint32_t i
    cdef list out = []
    if not head_at(&data[at], data.shape[0] - at, &h):
        raise ValueError("no batch here")
    p = &data[at] + HEAD
    for i in range(h.records):
        if p[8] == KIND_PUBLISH and not p[9] & FLAG_PERSISTENT:
            out.append(h.first_seq + get32(p + 4))
        p += RECORD + get32(p)
    return out
