# cython: language_level=3
"""Splits a connection's bytes into frames and handles the frequent ones on the spot.

Guarantee: everything a channel sent takes effect in the order it was sent. A plain publish goes straight
into the waiting list of its queues; acks settle at once; at anything else the reader stops, hands out one
event, and goes on only when asked again, so Python sees it between its neighbours. A parked connection
simply does not ask; what was read is kept, bounded by one read plus one frame.

Nothing refers to the read buffer after `keep`. Body bytes are copied once, into the message.

This file decodes publish, ack, nack, reject, content headers and bodies, and no other method.
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memmove

from mirrormq.kernel.cores cimport HOW_ACK, HOW_REJECT, HOW_REQUEUE, ChannelCore, QueueCore, next_stamp
from mirrormq.kernel.message cimport (MSG_PERSISTENT, Message, Msg, PropInfo, be16, be32, be64, msg_body,
                                      msg_new, msg_release, walk_properties)
from mirrormq.kernel.tally cimport PUBLISH, PUBLISH_IN, PUBLISH_OUT, Tally

EV_METHOD = 1
EV_PUBLISH = 2
EV_ACK = 3
EV_HELD = 4
EV_ERROR = 5

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 206
    FRAME_OVERHEAD = 8
    EXPECT_METHOD = 0
    EXPECT_HEADER = 1
    EXPECT_BODY = 2
    BIT_MANDATORY = 1
    BIT_IMMEDIATE = 2
    SNIPPET = 600  # an error text may quote a whole basic.publish
    CARRY_KEEP = 4096
    MEMO_MAX = 4096


@cython.final
cdef class Route:
    """Where messages with this exchange and key go; `plain` = those two alone decide, all checks passed."""
    cdef readonly bytes exchange
    cdef readonly bytes routing_key
    cdef readonly list targets
    cdef readonly bint plain
    cdef Tally tally              # of the exchange
    cdef bytes raw
    cdef uint64_t age

    def __cinit__(self, bytes exchange not None, bytes routing_key not None, list targets not None,
                  bint plain, Tally tally=None):
        self.exchange = exchange
        self.routing_key = routing_key
        self.targets = [<QueueCore?>target for target in targets]
        self.plain = plain
        self.tally = tally
        self.raw = bytes((len(exchange),)) + exchange + bytes((len(routing_key),)) + routing_key


@cython.final
cdef class RouteMemo:
    """Remembers routes by (exchange, key) until the topology or a permission changes."""
    cdef object resolve
    cdef dict known
    cdef Route last
    cdef uint64_t age

    def __cinit__(self, resolve):
        self.resolve = resolve
        self.known = {}

    def clear(self) -> None:
        self.known = {}
        self.last = None
        self.age += 1

    cdef Route find(self, const uint8_t* raw, Py_ssize_t n):
        """`raw` is [len][exchange][len][key]."""
        cdef Route route = self.last
        if (route is not None and PyBytes_GET_SIZE(route.raw) == n
                and memcmp(PyBytes_AS_STRING(route.raw), raw, n) == 0):
            return route
        cdef bytes key = PyBytes_FromStringAndSize(<const char*>raw, n)
        cdef dict known = self.known
        cdef uint64_t age = self.age
        route = known.get(key)
        if route is None:
            route = <Route?>self.resolve(key[1:1 + raw[0]], key[2 + raw[0]:])
            route.age = age
            if known is not self.known:
                return route  # cleared meanwhile: good for this message, but not to be remembered
            if len(known) >= MEMO_MAX:
                known.clear()
            known[key] = route
        self.last = route
        return route


@cython.final
cdef class FrameReader:
    """Frames of one connection."""
    cdef public uint32_t frame_max
    cdef public uint64_t max_message_size
    cdef public bint hold_publish
    cdef public RouteMemo memo
    cdef readonly uint64_t frames
    cdef readonly uint64_t published
    cdef dict channels
    cdef ChannelCore last
    cdef list fed
    cdef list confirming
    cdef uint64_t stamp           # of the list `fed`
    cdef bint busy                # inside next(): the read position belongs to it
    # input: first the carried bytes, then the view
    cdef Py_buffer view
    cdef bint has_view
    cdef Py_ssize_t view_at
    cdef uint8_t* carry
    cdef size_t carry_at
    cdef size_t carry_len
    cdef size_t carry_room
    # a body frame being copied into its message
    cdef uint32_t frame_left
    cdef uint32_t frame_size
    cdef bint in_body
    cdef ChannelCore body_channel

    def __cinit__(self, uint32_t frame_max=4096, uint64_t max_message_size=134217728):
        self.frame_max = frame_max
        self.max_message_size = max_message_size
        self.stamp = next_stamp()
        self.channels = {}
        self.fed = []
        self.confirming = []

    def __dealloc__(self):
        if self.has_view:
            PyBuffer_Release(&self.view)
        free(self.carry)

    # -- channels --------------------------------------------------------------------------------

    def add_channel(self, ChannelCore channel not None) -> None:
        self.channels[channel.number] = channel
        self.last = None

    def remove_channel(self, uint16_t number) -> None:
        self.channels.pop(number, None)
        self.last = None

    cdef ChannelCore channel(self, uint16_t number):
        if self.last is not None and self.last.number == number:
            return self.last
        cdef ChannelCore found = self.channels.get(number)
        if found is not None:
            self.last = found
        return found

    def take_fed(self) -> list:
        """Queues this connection published to since the last call, maybe repeated."""
        cdef list fed = self.fed
        self.fed = []
        self.stamp = next_stamp()
        return fed

    def take_confirming(self) -> list:
        """Channels in confirm mode whose publish number moved since the last call."""
        cdef list channels = self.confirming
        self.confirming = []
        return channels

    # -- input -----------------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        return self.carry_len - self.carry_at

    def feed(self, data) -> None:
        """Input for `next`; the buffer must stay as it is until `keep`."""
        if self.has_view:
            raise ValueError("keep() was not called")
        self.check_idle()
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.has_view = True
        self.view_at = 0

    def keep(self) -> None:
        """Copy what was not read; afterwards nothing refers to the buffer that was fed."""
        if not self.has_view:
            return
        self.check_idle()
        if self.view_at < self.view.len:
            self.carry_more(self.view.len - self.view_at)
        PyBuffer_Release(&self.view)
        self.has_view = False
        if self.carry_at == self.carry_len and self.carry_room > CARRY_KEEP:
            free(self.carry)
            self.carry = NULL
            self.carry_room = 0
            self.carry_at = 0
            self.carry_len = 0

    cdef int check_idle(self) except -1:
        """What a route lookup calls must not move the bytes that are just being read."""
        if self.busy:
            raise RuntimeError("the reader is inside next()")
        return 0

    cdef int carry_more(self, size_t n) except -1:
        """Move n bytes from the view to the end of the carried ones."""
        cdef size_t room
        cdef uint8_t* bigger
        if self.carry_at:
            memmove(self.carry, self.carry + self.carry_at, self.carry_len - self.carry_at)
            self.carry_len -= self.carry_at
            self.carry_at = 0
        if self.carry_len + n > self.carry_room:
            room = max(self.carry_len + n, <size_t>256)
            bigger = <uint8_t*>realloc(self.carry, room)
            if bigger == NULL:
                raise MemoryError()
            self.carry = bigger
            self.carry_room = room
        memcpy(self.carry + self.carry_len, <const uint8_t*>self.view.buf + self.view_at, n)
        self.carry_len += n
        self.view_at += n
        return 0

    cdef const uint8_t* want(self, size_t n) except? NULL:
        """n contiguous bytes at the read position, or NULL if they have not all arrived."""
        cdef size_t have = self.carry_len - self.carry_at
        cdef size_t more = <size_t>(self.view.len - self.view_at) if self.has_view else 0
        if have == 0:
            return <const uint8_t*>self.view.buf + self.view_at if more >= n else NULL
        if have < n:
            if more == 0:
                return NULL
            self.carry_more(min(n - have, more))
            if self.carry_len - self.carry_at < n:
                return NULL
        return self.carry + self.carry_at

    cdef void skip(self, size_t n) noexcept:
        if self.carry_len - self.carry_at:
            self.carry_at += n
        else:
            self.view_at += n

    cdef size_t available(self) noexcept:
        """Contiguous bytes at the read position."""
        if self.carry_len - self.carry_at:
            return self.carry_len - self.carry_at
        return <size_t>(self.view.len - self.view_at) if self.has_view else 0

    def read(self, size_t n) -> bytes | None:
        """n raw bytes (the protocol header), or None until they are there."""
        cdef const uint8_t* p
        self.check_idle()
        p = self.want(n) if n else NULL
        if p == NULL:
            return None
        cdef bytes out = PyBytes_FromStringAndSize(<const char*>p, <Py_ssize_t>n)
        self.skip(n)
        return out

    # -- frames ----------------------------------------------------------------------------------

    def next(self) -> tuple | None:
        """The next event that Python must see; None = everything that arrived is handled."""
        self.check_idle()
        self.busy = True
        try:
            return self.run()
        finally:
            self.busy = False

    cdef object run(self):
        cdef const uint8_t* p
        cdef uint32_t size
        cdef uint16_t number
        cdef uint8_t kind
        cdef object event
        while True:
            if self.in_body:
                event = self.copy_body()
                if event is not None:
                    return event
                if self.in_body:
                    return None
                continue
            p = self.want(7)
            if p == NULL:
                return None
            kind = p[0]
            number = be16(p + 1)
            size = be32(p + 3)
            # As RabbitMQ: the payload, not the frame, is held against frame-max, before the type is seen.
            if self.frame_max and size > self.frame_max:
                return self.error(number, "too_large", kind, size, p + 7, 0)
            if kind == FRAME_BODY and self.starts_body(number, size):
                self.skip(7)
                continue
            p = self.want(<size_t>size + FRAME_OVERHEAD)
            if p == NULL:
                return None
            if p[7 + size] != FRAME_END:
                return self.error(number, "frame_end", kind, p[7 + size], p + 7, size)
            if self.hold_publish and kind == FRAME_METHOD and size >= 4 and be32(p + 7) == 0x003c0028:
                return (EV_HELD,)
            event = self.frame(kind, number, p + 7, size)
            self.frames += 1
            self.skip(<size_t>size + FRAME_OVERHEAD)
            if event is not None:
                return event

    cdef object error(self, uint16_t number, str code, uint8_t kind, uint64_t detail, const uint8_t* p,
                      uint32_t size):
        cdef Py_ssize_t n = min(size, <uint32_t>SNIPPET)
        return (EV_ERROR, number, code, kind, detail, PyBytes_FromStringAndSize(<const char*>p, n))

    cdef object frame(self, uint8_t kind, uint16_t number, const uint8_t* p, uint32_t size):
        """One whole frame → an event for Python, or None when it is done with."""
        cdef ChannelCore ch
        if kind != FRAME_METHOD and kind != FRAME_HEADER and kind != FRAME_BODY and kind != FRAME_HEARTBEAT:
            return self.error(number, "unknown_type", kind, size, p, size)
        if kind == FRAME_HEARTBEAT:
            if number == 0 and size == 0:
                return None
            return self.error(number, "bad_heartbeat", kind, size, p, size)
        ch = self.channel(number)
        if ch is None:
            if kind == FRAME_METHOD:
                return (EV_METHOD, number, PyBytes_FromStringAndSize(<const char*>p, size))
            return self.error(number, "not_open", kind, size, p, size)
        if ch.closing:
            if kind == FRAME_METHOD and size >= 4 and be16(p) == 20:
                return (EV_METHOD, number, PyBytes_FromStringAndSize(<const char*>p, size))
            return None
        if kind == FRAME_METHOD:
            if ch.expect != EXPECT_METHOD:
                return self.error(number, "unexpected_method", kind, ch.expect, p, size)
            return self.method(ch, p, size)
        if kind == FRAME_HEADER:
            if ch.expect != EXPECT_HEADER:
                return self.error(number, "unexpected_header", kind, ch.expect, p, size)
            return self.header(ch, p, size)
        return self.error(number, "unexpected_body", kind, ch.expect, p, size)

    cdef object method(self, ChannelCore ch, const uint8_t* p, uint32_t size):
        cdef uint32_t id = be32(p) if size >= 4 else 0
        if id == 0x003c0028:
            return self.publish(ch, p + 4, size - 4)
        if id == 0x003c0050 and size == 13:
            return self.settle(ch, "ack", be64(p + 4), p[12] & 1, HOW_ACK)
        if id == 0x003c0078 and size == 13:
            return self.settle(ch, "nack", be64(p + 4), p[12] & 1, HOW_REQUEUE if p[12] & 2 else HOW_REJECT)
        if id == 0x003c005a and size == 13:
            return self.settle(ch, "reject", be64(p + 4), False, HOW_REQUEUE if p[12] & 1 else HOW_REJECT)
        return (EV_METHOD, ch.number, PyBytes_FromStringAndSize(<const char*>p, size))

    cdef object settle(self, ChannelCore ch, str kind, uint64_t tag, bint multiple, int how):
        if not ch.tx and ch.end(tag, multiple, how):
            return None
        return (EV_ACK, ch.number, kind, tag, multiple, how == HOW_REQUEUE)

    cdef object publish(self, ChannelCore ch, const uint8_t* p, uint32_t size):
        """reserved u16, exchange, routing key, bits; the content follows in its own frames."""
        cdef uint32_t exchange_len, key_len
        if size < 5 or self.memo is None:
            return self.error(ch.number, "bad_publish", FRAME_METHOD, size, p, size)
        exchange_len = p[2]
        if exchange_len + 5 > size:
            return self.error(ch.number, "bad_publish", FRAME_METHOD, size, p, size)
        key_len = p[3 + exchange_len]
        if exchange_len + key_len + 5 != size:
            return self.error(ch.number, "bad_publish", FRAME_METHOD, size, p, size)
        ch.publish_bits = p[size - 1]
        ch.route = self.memo.find(p + 2, exchange_len + key_len + 2)
        ch.expect = EXPECT_HEADER
        return None

    cdef object header(self, ChannelCore ch, const uint8_t* p, uint32_t size):
        """class u16, weight u16, body size u64, raw properties."""
        cdef PropInfo info
        cdef Route route = ch.route
        cdef uint64_t body_size
        if size < 14:
            return self.error(ch.number, "bad_header", FRAME_HEADER, size, p, size)
        if be16(p) != 60:
            return self.error(ch.number, "class_mismatch", FRAME_HEADER, be16(p), p, size)
        if be16(p + 2) != 0:
            return self.error(ch.number, "bad_weight", FRAME_HEADER, be16(p + 2), p, size)
        body_size = be64(p + 4)
        if body_size > self.max_message_size:
            return self.error(ch.number, "message_too_big", FRAME_HEADER, body_size, p, size)
        if not walk_properties(p + 12, size - 12, &info):
            return self.error(ch.number, "bad_header", FRAME_HEADER, size, p, size)
        self.drop_partial(ch)
        ch.partial = msg_new(<const uint8_t*>PyBytes_AS_STRING(route.raw),
                             <uint16_t>PyBytes_GET_SIZE(route.raw), p + 12, size - 12, body_size, &info)
        ch.needs_python = info.needs_python
        ch.body_left = body_size
        if body_size == 0:
            return self.complete(ch)
        ch.expect = EXPECT_BODY
        return None

    cdef bint starts_body(self, uint16_t number, uint32_t size):
        """Is this the head of a body frame its channel waits for? Its bytes go straight to the message."""
        cdef ChannelCore ch = self.channel(number)
        if ch is None or ch.closing or ch.expect != EXPECT_BODY or size > ch.body_left:
            return False
        self.in_body = True
        self.body_channel = ch
        self.frame_left = size
        self.frame_size = size
        return True

    cdef object copy_body(self):
        """Copy what has arrived of the current body frame; at its end check the end octet."""
        cdef ChannelCore ch = self.body_channel
        cdef size_t n
        cdef const uint8_t* p
        cdef const uint8_t* body
        while self.frame_left:
            n = min(self.available(), <size_t>self.frame_left)
            if n == 0:
                return None
            p = self.want(n)
            memcpy(msg_body(ch.partial) + (ch.partial.body_len - ch.body_left), p, n)
            self.skip(n)
            ch.body_left -= n
            self.frame_left -= <uint32_t>n
        p = self.want(1)
        if p == NULL:
            return None
        if p[0] != FRAME_END:
            body = msg_body(ch.partial) + (ch.partial.body_len - ch.body_left - self.frame_size)
            return self.error(ch.number, "frame_end", FRAME_BODY, p[0], body, self.frame_size)
        self.skip(1)
        self.in_body = False
        self.body_channel = None
        self.frames += 1
        return self.complete(ch) if ch.body_left == 0 else None

    cdef object complete(self, ChannelCore ch):
        """A whole message: into its queues, or to Python."""
        cdef Route route = ch.route
        cdef Msg* m = ch.partial
        cdef QueueCore queue
        cdef object event
        ch.route = None
        ch.expect = EXPECT_METHOD
        if self.memo is not None and route.age != self.memo.age:
            # The content came later than the method, and the topology changed in between: by the old route it
            # would go to an object nobody looks at any more, or be overtaken by what is published next.
            route = self.memo.find(<const uint8_t*>PyBytes_AS_STRING(route.raw), PyBytes_GET_SIZE(route.raw))
        if ch.closing:  # the channel failed while its body was still arriving
            self.drop_partial(ch)
            return None
        self.published += 1
        if ch.confirm:
            ch.publish_no += 1
            if not ch.confirming:
                ch.confirming = True
                self.confirming.append(ch)
        if not route.plain or ch.needs_python or ch.tx or ch.publish_bits & BIT_IMMEDIATE:
            event = (EV_PUBLISH, ch.number, Message.wrap(m), bool(ch.publish_bits & BIT_MANDATORY),
                     bool(ch.publish_bits & BIT_IMMEDIATE))
            self.drop_partial(ch)
            return event
        ch.tally.count(PUBLISH, 1)
        if route.tally is not None:
            route.tally.count(PUBLISH_IN, 1)
            route.tally.count(PUBLISH_OUT, <uint64_t>len(route.targets))
        for queue in route.targets:
            queue.append(m, ch.uid, ch.publish_no)
            if queue.fed_stamp != self.stamp:
                self.fed.append(queue)
                queue.fed_stamp = self.stamp
            if ch.confirm and (queue.remote or (queue.durable and m.flags & MSG_PERSISTENT)):
                ch.note_target(queue)
        self.drop_partial(ch)
        return None

    cdef void drop_partial(self, ChannelCore ch) noexcept:
        """The channel's own reference goes last: an exception before it leaks nothing."""
        cdef Msg* m = ch.partial
        ch.partial = NULL
        if m != NULL:
            msg_release(m)

    def note_fed(self, QueueCore queue not None) -> None:
        """The Python lane published to this queue."""
        self.fed.append(queue)
