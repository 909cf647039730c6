# cython: language_level=3
"""Bytes waiting for one client, in order, handed over once per loop pass without a copy.

The buffer is a `bytes` object under construction: `take` trims it and gives it away, so the socket
writes the very bytes the deliver loop wrote. An idle connection holds no buffer at all. Frame heads
are written here, for the frame-max of this consumer; the message holds none.

`blocked` is set by the driver while the socket takes nothing more; `starved` is set by the deliver
loop when it stopped for lack of room here, so that the node visits those queues again.
"""
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
    HINT_MAX = 262144
    HIGH_DEFAULT = 1048576


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


cdef class Dirty:
    """Keys of the outputs that have bytes waiting, each once."""

    def __init__(self):
        self.keys = []

    def take(self) -> list:
        cdef list keys = self.keys
        self.keys = []
        return keys

    def __len__(self) -> int:
        return len(self.keys)


cdef class OutBuffer:
    """Output of one connection."""

    def __init__(self, Dirty dirty not None, object key, uint32_t frame_max=131072):
        self.dirty = dirty
        self.key = key
        self.frame_max = frame_max
        self.high = HIGH_DEFAULT
        self.blocked = False
        self.starved = False
        self.total = 0
        self.buf = None
        self.data = NULL
        self.used = 0
        self.room = 0
        self.hint = ROOM_MIN

    @property
    def size(self) -> int:
        return self.used

    cdef uint8_t* reserve(self, size_t n) except NULL:
        """Room for n more bytes at the end, counted as written."""
        cdef size_t room
        cdef object bigger
        if self.used == 0:
            self.dirty.keys.append(self.key)
        if n > self.room - self.used or self.data == NULL:
            room = self.room * 2 if self.data != NULL else self.hint
            while room < self.used + n:
                room *= 2
            bigger = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>room)
            if self.used:
                memcpy(PyBytes_AS_STRING(bigger), self.data, self.used)
            self.buf = bigger
            self.data = <uint8_t*>PyBytes_AS_STRING(bigger)
            self.room = room
        self.used += n
        return self.data + self.used - n

    def write(self, bytes data not None) -> None:
        if data:
            memcpy(self.reserve(PyBytes_GET_SIZE(data)), PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def write_method(self, uint16_t channel, bytes payload not None) -> None:
        cdef uint32_t size = <uint32_t>PyBytes_GET_SIZE(payload)
        cdef uint8_t* p = frame_head(self.reserve(size + FRAME_OVERHEAD), FRAME_METHOD, channel, size)
        memcpy(p, PyBytes_AS_STRING(payload), size)
        p[size] = FRAME_END

    def write_content(self, uint16_t channel, bytes method_payload not None, Message message not None) -> None:
        self.write_method(channel, method_payload)
        self.put_content(channel, message.msg)

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

    cdef int put_content(self, uint16_t channel, Msg* m) except -1:
        """Content header and body frames of at most frame_max bytes each."""
        cdef uint32_t head = 12 + m.props_len
        cdef uint64_t left = m.body_len
        cdef uint64_t most = self.frame_max - FRAME_OVERHEAD if self.frame_max else 0xffffffffu
        cdef uint64_t frames = (left + most - 1) // most
        cdef const uint8_t* body = msg_body(m)
        cdef uint32_t part
        cdef uint8_t* p = self.reserve(head + FRAME_OVERHEAD + left + frames * FRAME_OVERHEAD)
        p = frame_head(p, FRAME_HEADER, channel, head)
        put16(p, 60)
        put16(p + 2, 0)
        put64(p + 4, left)
        memcpy(p + 12, msg_props(m), m.props_len)
        p[head] = FRAME_END
        p += head + 1
        while left:
            part = <uint32_t>(most if left > most else left)
            p = frame_head(p, FRAME_BODY, channel, part)
            memcpy(p, body, part)
            p[part] = FRAME_END
            p += part + 1
            body += part
            left -= part
        return 0

    cdef int put_deliver(self, uint16_t channel, bytes tag, uint64_t delivery_tag, bint redelivered, Msg* m) except -1:
        cdef uint32_t tag_len = <uint32_t>PyBytes_GET_SIZE(tag)
        cdef uint32_t size = 4 + 1 + tag_len + 8 + 1 + m.route_len
        cdef uint8_t* p = frame_head(self.reserve(size + FRAME_OVERHEAD), FRAME_METHOD, channel, size)
        put16(p, 60)
        put16(p + 2, 60)
        p[4] = <uint8_t>tag_len
        memcpy(p + 5, PyBytes_AS_STRING(tag), tag_len)
        p += 5 + tag_len
        put64(p, delivery_tag)
        p[8] = redelivered
        memcpy(p + 9, msg_route(m), m.route_len)
        p[9 + m.route_len] = FRAME_END
        return self.put_content(channel, m)

    cdef int put_get_ok(self, uint16_t channel, uint64_t delivery_tag, bint redelivered, Msg* m, uint32_t left) except -1:
        cdef uint32_t size = 4 + 8 + 1 + m.route_len + 4
        cdef uint8_t* p = frame_head(self.reserve(size + FRAME_OVERHEAD), FRAME_METHOD, channel, size)
        put16(p, 60)
        put16(p + 2, 71)
        put64(p + 4, delivery_tag)
        p[12] = redelivered
        memcpy(p + 13, msg_route(m), m.route_len)
        put32(p + 13 + m.route_len, left)
        p[17 + m.route_len] = FRAME_END
        return self.put_content(channel, m)
