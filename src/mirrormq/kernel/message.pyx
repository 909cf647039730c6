# cython: language_level=3
"""One allocation per publish, whatever the number of queues that hold it.

Guarantee: a message never refers to the read buffer it came from, and its bytes never change after it
was built. Queues hold `Msg*` with a reference count, invisible to the garbage collector; `Message` is
the Python handle for the slow lane, dead-lettering and the admin API.

`walk_properties` is the only place that reads raw properties on the hot path. It checks that the list
is well formed to the last byte (consumers get these bytes as they are) and says whether the message
needs the Python lane.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

cdef enum:
    TABLE_DEPTH_MAX = 64
    REPLY_TO_LEN = 21

cdef int64_t TTL_MS_MAX = 315360000000  # ten years, as limits.ttl_ms_max

cdef uint64_t BODY_MAX = 1 << 48  # more than any machine addresses

cdef const char* REPLY_TO = "amq.rabbitmq.reply-to"


cdef Msg* msg_new(const uint8_t* route, uint16_t route_len, const uint8_t* props, uint32_t props_len,
                  uint64_t body_len, PropInfo* info) except NULL:
    """Room for a whole message; the caller fills the body. `route` is [len][exchange][len][key]."""
    cdef Msg* m = NULL
    if body_len <= BODY_MAX:  # otherwise the sum below could wrap round to a small number
        m = <Msg*>malloc(sizeof(Msg) + route_len + props_len + body_len)
    if m == NULL:
        raise MemoryError()
    m.refs = 1
    m.props_len = props_len
    m.body_len = body_len
    m.route_len = route_len
    m.exchange_len = route[0]
    m.ttl_us = info.ttl_us
    m.priority = info.priority
    m.flags = MSG_PERSISTENT if info.persistent else 0
    memcpy(msg_route(m), route, route_len)
    memcpy(msg_props(m), props, props_len)
    return m


cdef void msg_release(Msg* m) noexcept:
    if m == NULL:  # of an entry whose message lies only in the log
        return
    m.refs -= 1
    if m.refs == 0:
        free(m)


cdef int64_t value_size(uint8_t kind, const uint8_t* p, uint32_t n, int depth) noexcept:
    """Bytes taken by one field value after its type octet, or -1."""
    cdef uint32_t size
    if kind == c'V':
        return 0
    if kind == c't' or kind == c'b' or kind == c'B':
        return 1
    if kind == c's' or kind == c'u':
        return 2
    if kind == c'I' or kind == c'i' or kind == c'f':
        return 4
    if kind == c'l' or kind == c'L' or kind == c'd' or kind == c'T':
        return 8
    if kind == c'D':
        return 5
    if kind == c'S' or kind == c'x' or kind == c'A' or kind == c'F':
        if n < 4:
            return -1
        size = be32(p)
        if size > n - 4:
            return -1
        if kind == c'F' and not table_ok(p + 4, size, depth + 1, NULL):
            return -1
        if kind == c'A' and not array_ok(p + 4, size, depth + 1):
            return -1
        return 4 + <int64_t>size
    return -1


cdef bint array_ok(const uint8_t* p, uint32_t n, int depth) noexcept:
    cdef uint32_t at = 0
    cdef int64_t size
    if depth > TABLE_DEPTH_MAX:
        return False
    while at < n:
        size = value_size(p[at], p + at + 1, n - at - 1, depth)
        if size < 0 or size > n - at - 1:
            return False
        at += 1 + <uint32_t>size
    return True


cdef bint table_ok(const uint8_t* p, uint32_t n, int depth, bint* has_cc) noexcept:
    """Is this a well formed field table? With `has_cc`: does its top level name CC or BCC?"""
    cdef uint32_t at = 0
    cdef uint32_t name_len
    cdef int64_t size
    if depth > TABLE_DEPTH_MAX:
        return False
    while at < n:
        name_len = p[at]
        at += 1
        if name_len + 1 > n - at:
            return False
        if has_cc != NULL and ((name_len == 2 and memcmp(p + at, b"CC", 2) == 0)
                               or (name_len == 3 and memcmp(p + at, b"BCC", 3) == 0)):
            has_cc[0] = True
        at += name_len
        size = value_size(p[at], p + at + 1, n - at - 1, depth)
        if size < 0 or size > n - at - 1:
            return False
        at += 1 + <uint32_t>size
    return True


cdef int64_t parse_ttl(const uint8_t* p, uint32_t n) noexcept:
    """An expiration in ms as decimal digits → µs, or -1 where RabbitMQ refuses the string."""
    cdef int64_t value = 0
    cdef uint32_t i
    if n == 0 or n > 12:
        return -1
    for i in range(n):
        if p[i] < c'0' or p[i] > c'9':
            return -1
        value = value * 10 + (p[i] - c'0')
    return value * 1000 if value <= TTL_MS_MAX else -1


cdef void note_string(int bit, const uint8_t* p, uint32_t n, PropInfo* info) noexcept:
    """A string property: expiration, user-id or reply-to matter here, the others only to the receiver."""
    if bit == 8:
        info.ttl_us = parse_ttl(p, n)
        if info.ttl_us < 0:
            info.needs_python = True  # refused there, with the reason
    elif bit == 4:
        info.needs_python = True
    elif bit == 9 and n >= REPLY_TO_LEN and memcmp(p, REPLY_TO, REPLY_TO_LEN) == 0:
        info.needs_python = True


cdef bint walk_properties(const uint8_t* p, uint32_t n, PropInfo* info) noexcept:
    """False if the property list is malformed; otherwise `info` holds what the hot path needs."""
    cdef uint32_t at = 2
    cdef uint32_t size
    cdef uint16_t flags
    cdef int bit
    cdef bint has_cc = False
    info.ttl_us = -1
    info.persistent = 0
    info.priority = 0
    info.needs_python = False
    if n < 2:
        return False
    flags = be16(p)
    if flags & 3:  # the two lowest bits announce more flag words, which class basic does not have
        return False
    if flags == 0:
        return n == 2
    for bit in range(15, 1, -1):
        if not flags & (1 << bit):
            continue
        if bit == 13:
            if n - at < 4:
                return False
            size = be32(p + at)
            at += 4
            if size > n - at or not table_ok(p + at, size, 0, &has_cc):
                return False
            if has_cc:
                info.needs_python = True
        elif bit == 12 or bit == 11:
            size = 1
            if n - at < 1:
                return False
            if bit == 12:
                info.persistent = p[at] == 2
                if p[at] != 1 and p[at] != 2:
                    info.needs_python = True  # refused there
            else:
                info.priority = p[at]
        elif bit == 6:
            size = 8
        else:
            if n - at < 1:
                return False
            size = p[at]
            at += 1
            if size > n - at:
                return False
            note_string(bit, p + at, size, info)
        if size > n - at:
            return False
        at += size
    return at == n


cdef Msg* new_empty() except NULL:
    cdef PropInfo info
    walk_properties(<const uint8_t*>b"\0\0", 2, &info)
    return msg_new(<const uint8_t*>b"\0\0", 2, <const uint8_t*>b"\0\0", 2, 0, &info)


# What a handle refers to until it is told: a handle without a message does not exist.
cdef Msg* EMPTY = new_empty()


@cython.no_gc
@cython.final
@cython.freelist(64)
cdef class Message:
    """Python handle of one message allocation."""

    def __cinit__(self):
        self.msg = EMPTY
        EMPTY.refs += 1

    def __init__(self, bytes exchange not None, bytes routing_key not None, bytes properties not None,
                 bytes body not None):
        cdef uint8_t route[512]
        cdef PropInfo info
        cdef Py_ssize_t ex = PyBytes_GET_SIZE(exchange)
        cdef Py_ssize_t rk = PyBytes_GET_SIZE(routing_key)
        cdef const uint8_t* props = <const uint8_t*>PyBytes_AS_STRING(properties)
        if ex > 255 or rk > 255:
            raise ValueError("exchange and routing key hold at most 255 bytes")
        if PyBytes_GET_SIZE(properties) > 0x7fffffff:
            raise ValueError("properties are too long")
        if not walk_properties(props, <uint32_t>PyBytes_GET_SIZE(properties), &info):
            raise ValueError("malformed properties")
        route[0] = <uint8_t>ex
        memcpy(&route[1], PyBytes_AS_STRING(exchange), ex)
        route[1 + ex] = <uint8_t>rk
        memcpy(&route[2 + ex], PyBytes_AS_STRING(routing_key), rk)
        cdef Msg* m = msg_new(route, <uint16_t>(ex + rk + 2), props, <uint32_t>PyBytes_GET_SIZE(properties),
                              <uint64_t>PyBytes_GET_SIZE(body), &info)
        memcpy(msg_body(m), PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        msg_release(self.msg)
        self.msg = m

    def __dealloc__(self):
        msg_release(self.msg)

    @staticmethod
    cdef Message wrap(Msg* m):
        """A handle with a reference of its own."""
        cdef Message self = Message.__new__(Message)
        msg_release(self.msg)
        m.refs += 1
        self.msg = m
        return self

    @property
    def exchange(self) -> bytes:
        return PyBytes_FromStringAndSize(<char*>msg_route(self.msg) + 1, self.msg.exchange_len)

    @property
    def routing_key(self) -> bytes:
        cdef Py_ssize_t at = self.msg.exchange_len + 2
        return PyBytes_FromStringAndSize(<char*>msg_route(self.msg) + at, self.msg.route_len - at)

    @property
    def properties(self) -> bytes:
        return PyBytes_FromStringAndSize(<char*>msg_props(self.msg), self.msg.props_len)

    @property
    def body(self) -> bytes:
        return PyBytes_FromStringAndSize(<char*>msg_body(self.msg), <Py_ssize_t>self.msg.body_len)

    @property
    def body_size(self) -> int:
        return self.msg.body_len

    @property
    def persistent(self) -> bool:
        return bool(self.msg.flags & MSG_PERSISTENT)

    @property
    def priority(self) -> int:
        return self.msg.priority

    @property
    def ttl_us(self) -> int:
        return self.msg.ttl_us
