# cython: language_level=3
"""Bytes waiting for one client, in order, handed over once per loop pass without a copy.

The buffer is a `bytes` object under construction: `take` trims it and gives it away, so the socket
writes the very bytes the deliver loop wrote. An idle connection holds no buffer at all. Frame heads
are written here, for the frame-max of this consumer; the message holds none. A content is written whole
or not at all: its room is reserved in one piece, and that is the only step that can fail.

`blocked` is set by the driver while the socket takes nothing more; `starved` is set by the deliver
loop when it stopped for lack of room here, so that the node visits those queues again.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mirrormq.kernel.message cimport Message, Msg, msg_body, msg_props, msg_route

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 206
    FRAME_OVERHEAD = 8
    ROOM_MIN = 256
    HINT_MAX = 2097152  # growing a buffer by steps costs page faults, several times the copying itself
    HIGH_DEFAULT = 1048576
    PAYLOAD_MAX = 0x7fffffff  # of a body frame for a client without a frame-max


cdef inline void put16(uint8_t* p, uint16_t v) noexcept:
    p[0] = <uint8_t>(v >> 8)
    p[1] = <uint8_t>v


cdef inline void put32(uint8_t* p, uint32_t v) noexcept:
    put16(p, <uint16_t>(v >> 16))
    put16(p + 2, <uint16_t>v)


cdef inline void put64(uint8_t* p, uint64_t v) noexcept:
    put32(p, <uint32_t>(v >> 32))
    put32(p + 4, <uint32_t>v)


cdef inline uint8_t* frame_head(uint8_t* p, uint8_t kind, uint16_t channel, uint32_t size) noexcept:
    p[0] = kind
    put16(p + 1, channel)
    put32(p + 3, size)
    return p + 7


cdef inline void put_method(uint8_t* p, uint16_t channel, bytes payload) noexcept:
    cdef size_t size = <size_t>PyBytes_GET_SIZE(payload)
    p = frame_head(p, FRAME_METHOD, channel, <uint32_t>size)
    memcpy(p, PyBytes_AS_STRING(payload), size)
    p[size] = FRAME_END


cdef inline uint32_t body_part_max(uint32_t frame_max) noexcept:
    """Payload of a full body frame; 0 (no limit) and nonsense mean as much as fits a signed length."""
    return frame_max - FRAME_OVERHEAD if frame_max > FRAME_OVERHEAD else <uint32_t>PAYLOAD_MAX


@cython.final
cdef class Dirty:
    """Keys of the outputs that have bytes waiting, each once."""

    def __cinit__(self):
        self.keys = []

    def take(self) -> list:
        cdef list keys = self.keys
        self.keys = []
        return keys

    def __len__(self) -> int:
        return len(self.keys)


@cython.final
cdef class OutBuffer:
    """Output of one connection."""

    def __cinit__(self, Dirty dirty not None, object key, uint32_t frame_max=131072, bint compact=False):
        self.compact = compact
        self.dirty = dirty
        self.key = key
        self.frame_max = frame_max
        self.high = HIGH_DEFAULT
        self.hint = ROOM_MIN

    @property
    def size(self) -> int:
        return self.used

    cdef uint8_t* reserve(self, size_t n) except NULL:
        """Room for n more bytes at the end, counted as written."""
        if n > self.room - self.used or self.data == NULL:
            self.grow(n)
        if self.used == 0:
            self.dirty.keys.append(self.key)
        self.used += n
        return self.data + self.used - n

    cdef int grow(self, size_t n) except -1:
        cdef size_t room = max(self.used + n, self.room * 2 if self.data != NULL else self.hint)
        cdef object bigger = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>room)
        if self.used:
            memcpy(PyBytes_AS_STRING(bigger), self.data, self.used)
        self.buf = bigger
        self.data = <uint8_t*>PyBytes_AS_STRING(bigger)
        self.room = room
        return 0

    def write(self, bytes data not None) -> None:
        if data:
            memcpy(self.reserve(PyBytes_GET_SIZE(data)), PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def write_method(self, uint16_t channel, bytes payload not None) -> None:
        cdef uint8_t* p = self.reserve(<size_t>PyBytes_GET_SIZE(payload) + FRAME_OVERHEAD)
        put_method(p, channel, payload)

    def write_content(self, uint16_t channel, bytes method_payload not None,
                      Message message not None) -> None:
        cdef size_t size = <size_t>PyBytes_GET_SIZE(method_payload) + FRAME_OVERHEAD
        cdef uint8_t* p = self.reserve(size + self.content_size(message.msg))
        put_method(p, channel, method_payload)
        self.put_content(p + size, channel, message.msg)

    def write_heartbeat(self) -> None:
        frame_head(self.reserve(FRAME_OVERHEAD), FRAME_HEARTBEAT, 0, 0)[0] = FRAME_END

    def take(self):
        """All that waits; the buffer is empty afterwards."""
        cdef object buf = self.buf
        cdef size_t used = self.used
        if buf is None:
            return b""
        self.total += used
        self.hint = min(max(used, <size_t>ROOM_MIN), <size_t>HINT_MAX)
        self.buf = None
        self.data = NULL
        self.used = 0
        self.room = 0
        if used == <size_t>PyBytes_GET_SIZE(buf):
            return buf
        if used * 2 < <size_t>PyBytes_GET_SIZE(buf):
            return PyBytes_FromStringAndSize(PyBytes_AS_STRING(buf), <Py_ssize_t>used)
        return memoryview(buf)[:used]

    cdef size_t content_size(self, Msg* m) noexcept:
        """Bytes of the header and body frames, heads and ends included."""
        cdef size_t most = body_part_max(self.frame_max)
        cdef size_t frames = 1 if m.body_len <= most else (m.body_len + most - 1) // most
        if m.body_len == 0:
            frames = 0
        return 12 + m.props_len + m.body_len + (frames + 1) * FRAME_OVERHEAD

    cdef void put_content(self, uint8_t* p, uint16_t channel, Msg* m) noexcept:
        """Content header and body frames of at most frame_max bytes each."""
        cdef uint32_t head = 12 + m.props_len
        cdef uint64_t left = m.body_len
        cdef uint32_t most = body_part_max(self.frame_max)
        cdef const uint8_t* body = msg_body(m)
        cdef uint32_t part
        p = frame_head(p, FRAME_HEADER, channel, head)
        put16(p, 60)
        put16(p + 2, 0)
        put64(p + 4, left)
        memcpy(p + 12, msg_props(m), m.props_len)
        p[head] = FRAME_END
        p += head + 1
        while left:
            part = most if left > most else <uint32_t>left
            p = frame_head(p, FRAME_BODY, channel, part)
            memcpy(p, body, part)
            p[part] = FRAME_END
            p += part + 1
            body += part
            left -= part

    cdef int put_record(self, bytes tag, bint redelivered, uint64_t seq, Msg* m) except -1:
        """The message for another node. Delivery tags are dense there; the consumer's tag is its number."""
        cdef uint32_t consumer = 0
        if tag is not None and PyBytes_GET_SIZE(tag) == 4:
            memcpy(&consumer, PyBytes_AS_STRING(tag), 4)
        put_wire(self.reserve(WIRE_HEAD + m.route_len + m.props_len + m.body_len), m,
                 WIRE_REDELIVERED if redelivered else 0, consumer, seq)
        return 0

    cdef int put_deliver(self, uint16_t channel, bytes tag, uint64_t delivery_tag, bint redelivered,
                         uint64_t seq, Msg* m) except -1:
        if self.compact:
            return self.put_record(tag, redelivered, seq, m)
        cdef uint32_t tag_len = <uint32_t>PyBytes_GET_SIZE(tag)
        cdef uint32_t size = 4 + 1 + tag_len + 8 + 1 + m.route_len
        cdef uint8_t* p = self.reserve(size + FRAME_OVERHEAD + self.content_size(m))
        p = frame_head(p, FRAME_METHOD, channel, size)
        put16(p, 60)
        put16(p + 2, 60)
        p[4] = <uint8_t>tag_len
        memcpy(p + 5, PyBytes_AS_STRING(tag), tag_len)
        p += 5 + tag_len
        put64(p, delivery_tag)
        p[8] = redelivered
        memcpy(p + 9, msg_route(m), m.route_len)
        p[9 + m.route_len] = FRAME_END
        self.put_content(p + 10 + m.route_len, channel, m)
        return 0

    cdef int put_get_ok(self, uint16_t channel, uint64_t delivery_tag, bint redelivered, uint64_t seq, Msg* m,
                        uint32_t left) except -1:
        if self.compact:
            return self.put_record(None, redelivered, seq, m)
        cdef uint32_t size = 4 + 8 + 1 + m.route_len + 4
        cdef uint8_t* p = self.reserve(size + FRAME_OVERHEAD + self.content_size(m))
        p = frame_head(p, FRAME_METHOD, channel, size)
        put16(p, 60)
        put16(p + 2, 71)
        put64(p + 4, delivery_tag)
        p[12] = redelivered
        memcpy(p + 13, msg_route(m), m.route_len)
        put32(p + 13 + m.route_len, left)
        p[17 + m.route_len] = FRAME_END
        self.put_content(p + 18 + m.route_len, channel, m)
        return 0
