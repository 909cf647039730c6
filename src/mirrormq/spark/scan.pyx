# cython: language_level=3, wraparound=False
"""Log batches (docs/format/batch.md) become the columns of Arrow batches, in one pass over the octets.

Guarantees: a row is a record of an undamaged batch of one queue, once, in seq order; anything else raises
ValueError. No length is believed before it was compared with what is there (`whole_at` walks a batch once
before anything of it is read). No Python object is made per row.

The state of a message as of a later record: `Removals` takes the batches that tell what left the queue, and
a `Scanner` looks there. Seqs come in order, so a look-up is a step.
"""
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, qsort, realloc

from mirrormq.kernel.crc32c cimport crc_of
from mirrormq.kernel.records cimport (FLAG_RESENT, HEAD, KIND_EPOCH, KIND_PUBLISH, KIND_REMOVE, PUBLISH_HEAD,
                                      RECORD, SPAN_BYTES, TAIL, Head, get16, get32, get64, head_at, whole_at)
from mirrormq.spark.columns cimport Column
from mirrormq.spark.headers cimport Headers, be32, be64

cdef extern from *:
    int __builtin_clz(unsigned int x) nogil

cdef enum:
    KIND_LAST = 18
    FLAG_PURGE = 1
    FLAG_RESTARTED = 1
    ROW_BYTES = 96  # what a row takes in columns of fixed width, about
    LOST = 254
    PURGED = 255

# Python's times end with the year 9999. What a publisher says lies behind is null; what the broker's clock
# says is never null, and goes no further.
cdef uint64_t SECONDS_MAX = 253402300799
cdef uint64_t MICROS_MAX = 253402300799999999

REASON_LOST = LOST
REASON_PURGED = PURGED

cdef struct Removal:
    uint64_t first
    uint64_t last
    uint8_t reason


cdef int by_first(const void* a, const void* b) noexcept nogil:
    cdef uint64_t left = (<const Removal*>a).first
    cdef uint64_t right = (<const Removal*>b).first
    return -1 if left < right else left > right


cdef uint64_t whole_size(const uint8_t* p, uint64_t n, Head* h) except 0:
    """Octets of the batch that begins here; if it is not all there, that is more than n."""
    if n < HEAD:
        return HEAD
    if not head_at(p, n, h):
        raise ValueError("no batch where one should begin")
    if HEAD + <uint64_t>h.size + TAIL > n:
        return HEAD + <uint64_t>h.size + TAIL
    if not whole_at(p, n, h):
        raise ValueError(f"damaged batch of records {h.first_seq} and following")
    return HEAD + <uint64_t>h.size + TAIL


cdef int check_removal(const uint8_t* p, uint32_t size, uint8_t flags, uint64_t seq) except -1:
    """The spans of a REMOVE or EPOCH record lie inside it."""
    cdef uint32_t at
    if flags & FLAG_PURGE:
        if size < 16 or size % 8:
            raise ValueError(f"malformed purge in record {seq}")
        return 0
    if size < 8 or (size - 8) % SPAN_BYTES:
        raise ValueError(f"malformed removal in record {seq}")
    for at in range(8, size, SPAN_BYTES):
        if get64(p + at) > get64(p + at + 8) or get64(p + at + 8) >= seq or get64(p + at + 16) >= LOST:
            raise ValueError(f"malformed removal in record {seq}")
    return 0


cdef int64_t lost_spans(const uint8_t* p, uint32_t size, uint64_t seq) except -1:
    """Where the spans of lost messages begin in an EPOCH record of a restarted node."""
    cdef uint64_t at
    cdef uint64_t i
    cdef uint64_t count
    if size < 2:
        raise ValueError(f"malformed epoch in record {seq}")
    at = 2 + get16(p)
    if at + 4 > size:
        raise ValueError(f"malformed epoch in record {seq}")
    count = get32(p + at)
    if count * 16 > size - at - 4:
        raise ValueError(f"malformed epoch in record {seq}")
    for i in range(count):
        if get64(p + at + 4 + i * 16) > get64(p + at + 12 + i * 16) or get64(p + at + 12 + i * 16) >= seq:
            raise ValueError(f"malformed epoch in record {seq}")
    return at


@cython.final
cdef class Removals:
    """What left a queue, and why."""

    cdef Removal* spans
    cdef size_t count
    cdef size_t room
    cdef size_t at
    cdef size_t spans_max
    cdef uint64_t purged_to
    cdef set kept
    cdef readonly uint64_t position

    def __cinit__(self, size_t spans_max, uint64_t start=0):
        self.spans_max = spans_max
        self.position = start
        self.kept = set()

    def __dealloc__(self):
        free(self.spans)

    cdef int add(self, uint64_t first, uint64_t last, uint8_t reason) except -1:
        cdef Removal* bigger
        if self.count and self.spans[self.count - 1].last + 1 == first \
                and self.spans[self.count - 1].reason == reason:
            self.spans[self.count - 1].last = last
            return 0
        if self.count == self.room:
            if self.room >= self.spans_max:
                raise MemoryError(f"more than {self.spans_max} runs of removals: read less at a time")
            bigger = <Removal*>realloc(self.spans, (self.room * 2 + 64) * sizeof(Removal))
            if bigger == NULL:
                raise MemoryError()
            self.spans = bigger
            self.room = self.room * 2 + 64
        self.spans[self.count] = Removal(first, last, reason)
        self.count += 1
        return 0

    def feed(self, const uint8_t[::1] data, uint64_t upto) -> int:
        """Note the removals of the whole batches in `data` before seq `upto`; octets of these batches."""
        cdef uint64_t n = data.shape[0]
        cdef uint64_t at = 0
        cdef uint64_t size
        cdef uint64_t seq
        cdef const uint8_t* p
        cdef uint32_t i
        cdef Head h
        while at < n:
            size = whole_size(&data[at], n - at, &h)
            if size > n - at:
                break
            p = &data[at] + HEAD
            for i in range(h.records):
                seq = h.first_seq + get32(p + 4)
                if self.position <= seq < upto:
                    self.position = seq + 1
                    self.take(p + RECORD, get32(p), p[8], p[9], seq)
                p += RECORD + get32(p)
            at += size
        return at

    cdef int take(self, const uint8_t* p, uint32_t size, uint8_t kind, uint8_t flags,
                  uint64_t seq) except -1:
        cdef uint64_t i
        if kind == KIND_REMOVE:
            check_removal(p, size, flags, seq)
            if flags & FLAG_PURGE:
                # What a later purge spared was live then: the last one decides for everything below it.
                self.purged_to = get64(p + 8)
                self.kept = {get64(p + i) for i in range(16, size, 8)}
                return 0
            for i in range(8, size, SPAN_BYTES):
                self.add(get64(p + i), get64(p + i + 8), <uint8_t>get64(p + i + 16))
        elif kind == KIND_EPOCH and flags & FLAG_RESTARTED:
            p += lost_spans(p, size, seq)
            for i in range(get32(p)):
                self.add(get64(p + 4 + i * 16), get64(p + 12 + i * 16), LOST)
        return 0

    def seal(self) -> None:
        """Everything was fed."""
        qsort(self.spans, self.count, sizeof(Removal), &by_first)
        self.at = 0

    def reason(self, uint64_t seq) -> int:
        """Why it left the queue; 0 if it has not."""
        return self.reason_of(seq)

    cdef uint8_t reason_of(self, uint64_t seq) except? 0:
        if self.at and self.spans[self.at - 1].last >= seq:
            self.at = 0
        while self.at < self.count and self.spans[self.at].last < seq:
            self.at += 1
        if self.at < self.count and self.spans[self.at].first <= seq:
            return self.spans[self.at].reason
        if seq <= self.purged_to and seq not in self.kept:
            return PURGED
        return 0


WIDTHS = {"epoch": 4, "seq": 8, "timestamp": 8, "app_timestamp": 8, "delivery_mode": 2, "priority": 2,
          "redelivered": -1, "body_crc": 4, "changed_at": 8}
TEXT_BITS = {"content_type": 15, "content_encoding": 14, "correlation_id": 10, "reply_to": 9, "expiration": 8,
             "message_id": 7, "type": 5, "user_id": 4, "app_id": 3}
OTHERS = ("exchange", "routing_key", "headers_raw", "body", "state", "op", "reason")


@cython.final
cdef class Scanner:
    """The publishes start <= seq < end of one queue as rows; with `changes` its removals, too."""

    cdef dict columns
    cdef PyObject* by_bit[16]
    cdef Column epoch, seq, timestamp, exchange, routing_key, app_timestamp, delivery_mode, priority
    cdef Column redelivered, headers_raw, body, body_crc, state, op, reason, changed_at
    cdef Headers headers
    cdef Removals removals
    cdef dict reasons
    cdef uint64_t start, end
    cdef bint changes
    cdef uint64_t rows, octets, rows_max, octets_max
    cdef uint64_t queue_id, last
    # Inside a batch: octets and number of the next record; inside a removal: its span and the seq in it.
    cdef uint64_t inside
    cdef uint32_t number
    cdef uint32_t span
    cdef uint64_t span_seq
    cdef readonly uint64_t position

    def __init__(self, object names, *, uint64_t start, uint64_t end, uint64_t rows_max, uint64_t octets_max,
                 dict reasons not None, Removals removals=None, bint changes=False):
        self.columns = {}
        for name in names:
            if name in WIDTHS:
                self.columns[name] = Column(WIDTHS[name])
            elif name in TEXT_BITS or name in OTHERS:
                self.columns[name] = Column(0)
            elif name == "headers":
                self.headers = Headers()
            else:
                raise ValueError(f"no column {name}")
        self.bind()
        self.start = start
        self.end = end
        self.position = start
        self.rows_max = rows_max
        self.octets_max = octets_max
        self.reasons = reasons
        self.removals = removals
        self.changes = changes

    cdef int bind(self) except -1:
        cdef dict known = self.columns
        cdef int bit
        for bit in range(16):
            self.by_bit[bit] = NULL
        for name, bit in TEXT_BITS.items():
            if name in known:
                self.by_bit[bit] = <PyObject*>known[name]
        self.epoch, self.seq, self.timestamp = known.get("epoch"), known.get("seq"), known.get("timestamp")
        self.exchange, self.routing_key = known.get("exchange"), known.get("routing_key")
        self.app_timestamp, self.delivery_mode = known.get("app_timestamp"), known.get("delivery_mode")
        self.priority, self.redelivered = known.get("priority"), known.get("redelivered")
        self.headers_raw, self.body = known.get("headers_raw"), known.get("body")
        self.body_crc, self.state, self.op = known.get("body_crc"), known.get("state"), known.get("op")
        self.reason, self.changed_at = known.get("reason"), known.get("changed_at")
        return 0

    def __len__(self) -> int:
        return self.rows

    @property
    def is_full(self) -> bool:
        """Take the rows before going on."""
        return self.full()

    cdef inline bint full(self) noexcept:
        return self.rows >= self.rows_max or self.octets >= self.octets_max

    def take(self) -> dict:
        """The columns of the rows so far (columns.pyx); begins anew."""
        cdef dict out = {name: (<Column>column).take(self.rows) for name, column in self.columns.items()}
        if self.headers is not None:
            out["headers"] = self.headers.take(self.rows)
        self.rows = 0
        self.octets = 0
        return out

    def scan(self, const uint8_t[::1] data, uint64_t at) -> int:
        """Read on at octet `at`; where to go on: before a batch that is not all there, or is not finished."""
        cdef uint64_t n = data.shape[0]
        cdef uint64_t size
        cdef Head h
        while at < n and not self.full():
            size = whole_size(&data[at], n - at, &h)
            if size > n - at:
                break
            if self.queue_id == 0:
                self.queue_id = h.queue_id
            if h.queue_id != self.queue_id:
                raise ValueError("a batch of another queue")
            if h.epoch > 0x7fffffff:
                raise ValueError(f"epoch {h.epoch}")
            if not self.batch(&data[at], &h):
                break
            at += size
        return at

    cdef bint batch(self, const uint8_t* start, const Head* h) except *:
        """Rows of one batch; False if the columns are full before its end."""
        cdef const uint8_t* p = start + (self.inside if self.inside else HEAD)
        cdef uint32_t size
        cdef uint64_t seq
        while self.number < h.records:
            if self.full():
                self.inside = p - start
                return False
            size = get32(p)
            seq = h.first_seq + get32(p + 4)
            if seq <= self.last:
                raise ValueError(f"record {seq} where {self.last + 1} or a later one should be")
            if p[8] == 0 or p[8] > KIND_LAST:
                raise ValueError(f"record {seq} is of kind {p[8]}, which this version does not know")
            if self.start <= seq < self.end:
                if p[8] == KIND_PUBLISH:
                    self.publish(p + RECORD, size, p[9], seq, h.epoch)
                elif self.changes and not self.removal(p + RECORD, size, p, seq, h.epoch):
                    self.inside = p - start
                    return False
            self.last = seq
            if seq >= self.position:
                self.position = seq + 1
            p += RECORD + size
            self.number += 1
        self.inside = 0
        self.number = 0
        return True

    cdef int publish(self, const uint8_t* p, uint32_t size, uint8_t flags, uint64_t seq,
                     uint64_t epoch) except -1:
        cdef uint64_t row = self.rows
        cdef uint64_t received = min(get64(p), MICROS_MAX)
        cdef uint32_t props_len = get32(p + 36)
        cdef uint16_t route_len = get16(p + 40)
        cdef const uint8_t* route = p + PUBLISH_HEAD
        cdef const uint8_t* body = route + route_len + props_len
        cdef size_t body_len = size - PUBLISH_HEAD - route_len - props_len
        self.common(row, seq, epoch)
        if self.timestamp is not None:
            self.timestamp.put64(row, received)
        if self.exchange is not None:
            self.exchange.put_text(row, route + 1, route[0])
        if self.routing_key is not None:
            self.routing_key.put_text(row, route + 2 + route[0], route[1 + route[0]])
        if self.redelivered is not None:
            self.redelivered.put_bit(row, flags & FLAG_RESENT or get32(p + 32) != 0)
        self.properties(row, route + route_len, props_len, seq)
        if self.body is not None:
            self.body.put_octets(row, body, body_len)
            self.octets += body_len
        if self.body_crc is not None:
            self.body_crc.put32(row, crc_of(body, body_len))
        if self.removals is not None and self.state is not None:
            self.word(self.state, row, self.reasons.get(self.removals.reason_of(seq), b"other"))
        if self.changes:
            self.word(self.op, row, b"publish")
            if self.changed_at is not None:
                self.changed_at.put64(row, received)
        self.rows += 1
        return 0

    cdef inline int common(self, uint64_t row, uint64_t seq, uint64_t epoch) except -1:
        if self.epoch is not None:
            self.epoch.put32(row, <uint32_t>epoch)
        if self.seq is not None:
            self.seq.put64(row, seq)
        self.octets += ROW_BYTES
        return 0

    cdef inline int word(self, Column column, uint64_t row, bytes word) except -1:
        return 0 if column is None else column.put_octets(row, word, len(word))

    cdef int properties(self, uint64_t row, const uint8_t* p, uint32_t n, uint64_t seq) except -1:
        cdef uint32_t at = 2
        cdef uint32_t size
        cdef uint16_t flags
        cdef int bit
        if n < 2:
            raise ValueError(f"malformed properties in record {seq}")
        flags = <uint16_t>p[0] << 8 | p[1]
        if flags & 3:
            raise ValueError(f"malformed properties in record {seq}")
        while flags:
            bit = 31 - __builtin_clz(flags)
            flags ^= 1 << bit
            if bit == 6:
                size = 8
            elif bit == 11 or bit == 12:
                size = 1
            elif bit == 13:
                size = be32(p + at) if n - at >= 4 else n
                at += 4
            else:
                size = p[at] if at < n else n
                at += 1
            if at > n or size > n - at:
                raise ValueError(f"malformed properties in record {seq}")
            self.property(row, bit, p + at, size)
            at += size
        if at != n:
            raise ValueError(f"malformed properties in record {seq}")
        return 0

    cdef int property(self, uint64_t row, int bit, const uint8_t* p, uint32_t n) except -1:
        if self.by_bit[bit] != NULL:
            (<Column>self.by_bit[bit]).put_text(row, p, n)
            self.octets += n
        elif bit == 13:
            if self.headers is not None:
                self.headers.put(row, p, n)
            if self.headers_raw is not None:
                self.headers_raw.put_octets(row, p, n)
            self.octets += 2 * n
        elif bit == 6:
            if self.app_timestamp is not None and be64(p) <= SECONDS_MAX:
                self.app_timestamp.put64(row, be64(p) * 1_000_000)
        elif bit == 12 or bit == 11:
            if bit == 12 and self.delivery_mode is not None:
                self.delivery_mode.put16(row, p[0])
            elif bit == 11 and self.priority is not None:
                self.priority.put16(row, p[0])
        return 0

    cdef bint removal(self, const uint8_t* p, uint32_t size, const uint8_t* record, uint64_t seq,
                      uint64_t epoch) except *:
        """Rows of a record that removes; False if there is no room for all of them."""
        cdef uint64_t time
        if record[8] == KIND_REMOVE:
            check_removal(p, size, record[9], seq)
            time = get64(p)
            if record[9] & FLAG_PURGE:
                self.purge(p, size, time, epoch)
                return True
            return self.removed(p + 8, (size - 8) // SPAN_BYTES, SPAN_BYTES, time, epoch)
        if record[8] == KIND_EPOCH and record[9] & FLAG_RESTARTED:
            p += lost_spans(p, size, seq)
            return self.removed(p + 4, get32(p), 16, 0, epoch)
        return True

    cdef bint removed(self, const uint8_t* p, uint32_t spans, uint32_t width, uint64_t time,
                      uint64_t epoch) except *:
        cdef bytes reason
        cdef uint64_t last
        while self.span < spans:
            reason = self.reasons.get(get64(p + self.span * width + 16) if width == SPAN_BYTES else LOST,
                                      b"other")
            if self.span_seq == 0:
                self.span_seq = get64(p + self.span * width)
            last = get64(p + self.span * width + 8)
            while self.span_seq <= last:
                if self.full():
                    return False
                self.change(b"remove", self.span_seq, reason, time, epoch)
                self.word(self.state, self.rows, reason)
                self.rows += 1
                self.span_seq += 1
            self.span_seq = 0
            self.span += 1
        self.span = 0
        return True

    cdef int purge(self, const uint8_t* p, uint32_t size, uint64_t time, uint64_t epoch) except -1:
        """One row: everything up to its seq is gone, except what its body lists."""
        cdef uint32_t i
        kept = ",".join([str(get64(p + i)) for i in range(16, size, 8)])
        self.change(b"purge", get64(p + 8), self.reasons[PURGED], time, epoch)
        self.word(self.body, self.rows, f"[{kept}]".encode())
        self.rows += 1
        return 0

    cdef int change(self, bytes op, uint64_t seq, bytes reason, uint64_t time, uint64_t epoch) except -1:
        self.common(self.rows, seq, epoch)
        self.word(self.op, self.rows, op)
        self.word(self.reason, self.rows, reason)
        if self.changed_at is not None and 0 < time <= MICROS_MAX:
            self.changed_at.put64(self.rows, time)
        return 0
