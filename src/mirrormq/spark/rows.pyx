# cython: language_level=3, wraparound=False
"""Columns of Arrow batches become rows of a sink (docs/protocol/sink.md), without a Python object per row.

Guarantee: a row that AMQP cannot carry (a text of more than 255 octets, a number that is no octet) raises
ValueError with the column's name; nothing of its batch is given out.

`RowWriter.write` gets addresses: the Arrow arrays they belong to must be held until it returns.
"""
import json

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from mirrormq.spark.columns cimport Buffer

cdef enum:
    ROW_HEAD = 13
    COUNTED = 9
    OP_PUBLISH = 0
    OP_COPY = 1
    OP_REMOVE = 2
    OP_COPY_AS = 3
    TEXTS = 9
    PERSISTENT = 2

cdef struct Texts:
    bint is_there
    const uint8_t* valid
    const int32_t* offsets
    const uint8_t* data
    int64_t start

cdef struct Numbers:
    bint is_there
    const uint8_t* valid
    const uint8_t* data
    int64_t start

# Properties with texts, and the bits of their flags; headers (13), delivery mode (12), priority (11) and time
# (6) are written in between.
NAMES = ("content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type",
         "user_id", "app_id")
cdef int[TEXTS] BITS = [15, 14, 10, 9, 8, 7, 5, 4, 3]


cdef inline bint is_set(const uint8_t* valid, int64_t at) noexcept:
    return valid == NULL or valid[at >> 3] >> (at & 7) & 1


cdef inline const uint8_t* text_at(const Texts* t, int64_t row, uint32_t* n) noexcept:
    """The text of a row and its length; NULL if it is null."""
    cdef int64_t at = t.start + row
    if not t.is_there or not is_set(t.valid, at):
        return NULL
    n[0] = <uint32_t>(t.offsets[at + 1] - t.offsets[at])
    return t.data + t.offsets[at]


cdef Texts texts_of(object column) except *:
    """(address of the validity or 0, of the offsets, of the data, first row), or None."""
    if column is None:
        return Texts(False, NULL, NULL, NULL, 0)
    valid, offsets, data, start = column
    return Texts(True, <const uint8_t*><size_t>valid, <const int32_t*><size_t>offsets,
                 <const uint8_t*><size_t>data, start)


cdef Numbers numbers_of(object column) except *:
    if column is None:
        return Numbers(False, NULL, NULL, 0)
    valid, data, start = column
    return Numbers(True, <const uint8_t*><size_t>valid, <const uint8_t*><size_t>data, start)


@cython.final
cdef class RowWriter:
    """Writes rows; a fixed exchange or key stands in for the column."""

    cdef Buffer out
    cdef bytes exchange
    cdef bytes key
    cdef Texts[TEXTS] texts
    cdef Texts column_exchange, column_key, headers, body, op, from_exchange, from_key
    cdef Numbers delivery_mode, priority, time, seq

    def __init__(self, bytes exchange, bytes key):
        self.out = Buffer()
        self.exchange = exchange
        self.key = key

    def write(self, dict columns not None, int64_t rows) -> bytes:
        """The rows of one batch; columns by name, as `texts_of` and `numbers_of` take them."""
        cdef int i
        cdef int64_t row
        for i in range(TEXTS):
            self.texts[i] = texts_of(columns.get(NAMES[i]))
        self.column_exchange = texts_of(columns.get("exchange"))
        self.column_key = texts_of(columns.get("routing_key"))
        self.headers = texts_of(columns.get("headers_raw"))
        self.body = texts_of(columns.get("body"))
        self.op = texts_of(columns.get("op"))
        self.from_exchange = texts_of(columns.get("from_exchange"))
        self.from_key = texts_of(columns.get("from_key"))
        self.delivery_mode = numbers_of(columns.get("delivery_mode"))
        self.priority = numbers_of(columns.get("priority"))
        self.time = numbers_of(columns.get("app_timestamp"))
        self.seq = numbers_of(columns.get("seq"))
        self.out.n = 0
        for row in range(rows):
            if self.is_purge(row):
                self.purge(row)
            else:
                self.row(row)
        return self.out.p[:self.out.n]

    cdef bint is_purge(self, int64_t row) noexcept:
        cdef uint32_t n = 0
        cdef const uint8_t* op = text_at(&self.op, row, &n)
        return op != NULL and n == 5 and memcmp(op, b"purge", 5) == 0

    cdef int purge(self, int64_t row) except -1:
        """Everything up to the row's seq goes but the seqs its body lists: a removal per run of others."""
        cdef uint32_t n = 0
        cdef const uint8_t* body = text_at(&self.body, row, &n)
        cdef uint64_t first = 1
        cdef uint64_t seq, kept
        memcpy(&seq, self.seq_at(row), 8)
        for kept in sorted(json.loads(body[:n])) if body != NULL and n else ():
            self.run(row, first, min(kept - 1, seq))
            first = kept + 1
        return self.run(row, first, seq)

    cdef int run(self, int64_t row, uint64_t first, uint64_t last) except -1:
        """Write a removal of all from `first` to `last`."""
        cdef uint32_t n = 0
        cdef uint32_t size
        cdef const uint8_t* key = self.route(&self.column_key, self.key, row, &n)
        if first > last:
            return 0
        if key == NULL or n > 255:
            raise ValueError("a row has no queue")
        size = COUNTED + n + 3 + 16
        self.out.put(<const uint8_t*>&size, 4)
        self.out.put_byte(OP_REMOVE)
        self.out.put(b"\0\0", 2)
        self.out.put_byte(<uint8_t>n)
        self.out.put(b"\0\3\0\0\0", 5)
        self.out.put(key, n)
        self.out.put(b"\x10\0\2", 3)
        self.out.put(<const uint8_t*>&first, 8)
        return self.out.put(<const uint8_t*>&last, 8)

    cdef int row(self, int64_t row) except -1:
        cdef size_t start = self.out.n
        cdef uint32_t exchange_len = 0, key_len = 0, body_len = 0, size, props_len
        cdef const uint8_t* exchange = self.route(&self.column_exchange, self.exchange, row, &exchange_len)
        cdef const uint8_t* key = self.route(&self.column_key, self.key, row, &key_len)
        cdef const uint8_t* body = text_at(&self.body, row, &body_len)
        cdef uint8_t op = self.op_of(row)
        cdef uint8_t* head
        if key == NULL:
            raise ValueError("a row has no routing_key")
        if exchange_len > 255 or key_len > 255:
            raise ValueError("exchange and routing_key have at most 255 bytes")
        if body == NULL and op != OP_REMOVE:
            raise ValueError("a row has no body: null cannot be published")
        self.out.reserve(ROW_HEAD)
        self.out.n += ROW_HEAD
        self.out.put(exchange, exchange_len)
        self.out.put(key, key_len)
        props_len = self.properties(row, op)
        if op != OP_PUBLISH:
            self.out.put(self.seq_at(row), 8)
        if op == OP_COPY_AS:
            self.origin(&self.from_exchange, row)
            self.origin(&self.from_key, row)
        if op == OP_REMOVE and body != NULL and body_len != 8:
            raise ValueError("the body of a removal is null, or the last seq of a run in 8 bytes")
        if body != NULL:
            self.out.put(body, body_len)
        if self.out.n - start - 4 > 0xffffffffu:
            raise ValueError("a row has more than 4 GiB")
        size = <uint32_t>(self.out.n - start - 4)
        head = self.out.p + start
        memcpy(head, &size, 4)
        head[4] = op
        memcpy(head + 5, &exchange_len, 2)
        memcpy(head + 7, &key_len, 2)
        memcpy(head + 9, &props_len, 4)
        return 0

    cdef const uint8_t* route(self, const Texts* column, bytes fixed, int64_t row, uint32_t* n) noexcept:
        if fixed is None:
            return text_at(column, row, n)
        n[0] = <uint32_t>len(fixed)
        return <const uint8_t*><const char*>fixed

    cdef uint8_t op_of(self, int64_t row) except 255:
        cdef uint32_t n = 0
        cdef const uint8_t* op
        if not self.op.is_there:
            return OP_PUBLISH
        op = text_at(&self.op, row, &n)
        word = b"" if op == NULL else op[:n]
        if word == b"publish":
            return OP_COPY_AS if self.from_key.is_there else OP_COPY
        if word == b"remove":
            return OP_REMOVE
        raise ValueError(f"op is publish, remove or purge, not {word.decode('utf-8', 'replace')!r}")

    cdef const uint8_t* seq_at(self, int64_t row) except NULL:
        cdef int64_t at = self.seq.start + row
        if not self.seq.is_there or not is_set(self.seq.valid, at):
            raise ValueError("a row with op has no seq")
        return self.seq.data + at * 8

    cdef int origin(self, const Texts* column, int64_t row) except -1:
        """Write an exchange or key that the message had at its source."""
        cdef uint32_t n = 0
        cdef const uint8_t* text = text_at(column, row, &n)
        if n > 255:
            raise ValueError("exchange and routing_key have at most 255 bytes")
        self.out.put_byte(<uint8_t>n)
        return self.out.put(text, n)

    cdef int64_t properties(self, int64_t row, uint8_t op) except -1:
        """Write flags and properties; how many octets they are."""
        cdef size_t start = self.out.n
        cdef uint16_t flags = 1 << 12
        cdef uint32_t n = 0
        cdef const uint8_t* text
        cdef int i
        self.out.put(b"\0\0", 2)
        if op == OP_REMOVE:
            self.out.put_byte(PERSISTENT)
        else:
            for i in range(TEXTS):
                if BITS[i] == 10:  # between content_encoding and correlation_id
                    flags |= self.middle(row)
                text = text_at(&self.texts[i], row, &n)
                if BITS[i] == 5:
                    flags |= self.stamp(row)
                if text == NULL:
                    continue
                if n > 255:
                    raise ValueError(f"{NAMES[i]} has at most 255 bytes")
                flags |= 1 << BITS[i]
                self.out.put_byte(<uint8_t>n)
                self.out.put(text, n)
        self.out.p[start] = flags >> 8
        self.out.p[start + 1] = flags & 0xff
        return self.out.n - start

    cdef uint16_t middle(self, int64_t row) except? 0:
        """Headers, delivery mode and priority."""
        cdef uint32_t n = 0
        cdef uint16_t flags = 0
        cdef const uint8_t* headers = text_at(&self.headers, row, &n)
        if headers != NULL:
            flags |= 1 << 13
            self.number(n, 4)
            self.out.put(headers, n)
        self.out.put_byte(self.octet(&self.delivery_mode, row, "delivery_mode", PERSISTENT))
        if self.priority.is_there and is_set(self.priority.valid, self.priority.start + row):
            flags |= 1 << 11
            self.out.put_byte(self.octet(&self.priority, row, "priority", 0))
        return flags

    cdef uint16_t stamp(self, int64_t row) except? 0:
        """The application's time, which AMQP has in seconds."""
        cdef int64_t at = self.time.start + row
        cdef int64_t micros
        if not self.time.is_there or not is_set(self.time.valid, at):
            return 0
        memcpy(&micros, self.time.data + at * 8, 8)
        if micros < 0:
            raise ValueError("app_timestamp is before 1970")
        self.number(micros // 1_000_000, 8)
        return 1 << 6

    cdef uint8_t octet(self, const Numbers* column, int64_t row, str name, uint8_t default) except? 255:
        cdef int64_t at = column.start + row
        cdef int16_t value
        if not column.is_there or not is_set(column.valid, at):
            return default
        memcpy(&value, column.data + at * 2, 2)
        if not 0 <= value <= 255:
            raise ValueError(f"{name} is a number from 0 to 255, not {value}")
        return <uint8_t>value

    cdef int number(self, uint64_t value, int size) except -1:
        while size:
            size -= 1
            self.out.put_byte(<uint8_t>(value >> (8 * size)))
        return 0
