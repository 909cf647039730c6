# cython: language_level=3
"""Rows of a sink on their way into blocks, one block per target queue.

Guarantee: every row of what was fed is put into the block of each of its targets, in order, or asked about;
a malformed one raises and nothing behind it is looked at. A block is a run of records as they travel between
nodes (outbuffer.pxd), so its target takes it as it takes publishes of another node.

A row is: bytes behind this field u32, op u8, exchange bytes u16, key bytes u16, property bytes u32
(little-endian), exchange, key, raw properties, body. A row may go on in the next piece that is fed. The body
of a row with an origin begins with the seq of its record there, u64. That of a removal may end with another
seq: all up to that one go. So does that of a "take", which names messages of its own queue, by their seqs
there. Behind the seq of a "copy as" stand exchange and key that the message had there,
a length u8 before each; exchange and key of the row only say where it goes.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from mirrormq.kernel.crc32c import crc32c
from mirrormq.kernel.message cimport PropInfo, walk_properties
from mirrormq.kernel.outbuffer cimport WIRE_HEAD, WIRE_SEQ
from mirrormq.kernel.records cimport get16, get32

cdef enum:
    ROW_HEAD = 13
    ORIGIN_BYTES = 8
    OP_PUBLISH = 0
    OP_COPY = 1
    OP_REMOVE = 2
    OP_COPY_AS = 3
    OP_TAKE = 4

PUBLISH, COPY, REMOVE, TAKE = OP_PUBLISH, OP_COPY, OP_REMOVE, OP_TAKE


class BadRow(ValueError):
    """A row that no client of this version sends."""


cdef inline uint64_t route_bytes(const uint8_t* p, uint64_t n) noexcept:
    """Octets of the exchange and key behind the seq, lengths included; 0 if they are not all there."""
    cdef uint64_t at = ORIGIN_BYTES
    if n < at + 2:
        return 0
    at += 1 + <uint64_t>p[at]
    if n < at + 1:
        return 0
    at += 1 + <uint64_t>p[at]
    return at - ORIGIN_BYTES if at <= n else 0


@cython.final
cdef class Block:
    """The rows for one target that were not taken yet."""

    cdef uint8_t* data
    cdef size_t used
    cdef size_t room
    cdef readonly uint32_t rows
    cdef readonly uint8_t op

    def __dealloc__(self):
        free(self.data)

    @property
    def size(self) -> int:
        return self.used

    cdef uint8_t* reserve(self, size_t n) except NULL:
        cdef size_t room = self.room
        cdef uint8_t* data
        if self.used + n > room:
            room = max(2 * room, self.used + n, <size_t>4096)
            data = <uint8_t*>realloc(self.data, room)
            if data == NULL:
                raise MemoryError()
            self.data = data
            self.room = room
        return self.data + self.used

    def take(self) -> tuple:
        """(the block, its rows, what they do); the next one is empty."""
        cdef bytes out = PyBytes_FromStringAndSize(<char*>self.data, <Py_ssize_t>self.used)
        cdef uint32_t rows = self.rows
        self.used = 0
        self.rows = 0
        return out, rows, self.op


@cython.final
cdef class RowSplitter:
    """Takes the rows of one transaction apart."""

    cdef object rest                 # the beginning of a row whose end was not fed yet
    cdef object data
    cdef uint64_t at
    cdef dict routes                 # (op, exchange, key) as they stand in a row: list of Blocks, or None
    cdef list last
    cdef bytes last_route
    cdef uint64_t row_max
    cdef readonly uint64_t count
    cdef readonly uint32_t crc
    cdef list full                   # blocks that have reached their size
    cdef uint64_t most

    def __cinit__(self, uint64_t row_max, uint64_t most):
        """`row_max`: bytes of a row at most; `most`: of a block, about."""
        self.routes = {}
        self.row_max = row_max
        self.most = most
        self.full = []
        self.rest = b""
        self.data = b""

    def forget_routes(self) -> None:
        """The topology or permissions changed."""
        self.routes = {}
        self.last_route = None
        self.last = None

    def feed(self, data not None) -> None:
        """More bytes; what was fed before has been dealt with (`run` returned None)."""
        self.crc = crc32c(data, self.crc)
        if self.rest:
            self.data = bytes(self.rest) + bytes(data)
            self.rest = b""
        else:
            self.data = bytes(data)
        self.at = 0

    @property
    def is_whole(self) -> bool:
        """Does no row wait for its end?"""
        return not self.rest and self.at == <uint64_t>len(self.data)

    def run(self) -> tuple | None:
        """Go on until somebody has to be asked: (op, exchange, key, properties, body) of the row at hand.

        `place` says where that row goes; with `learn` before it, also where later ones like it go. None: all
        of the rows that are there have their places, or some block is full.
        """
        cdef const uint8_t[::1] view = self.data
        cdef uint64_t n = view.shape[0]
        cdef const uint8_t* p
        cdef uint32_t size, props
        cdef uint16_t exchange, key
        cdef uint64_t body
        cdef PropInfo info
        while not self.full:
            if n - self.at < 4:
                break
            p = &view[self.at]
            size = get32(p)
            if size < ROW_HEAD - 4 or size > self.row_max:
                raise BadRow(f"a row of {size} bytes")
            if n - self.at < 4 + <uint64_t>size:
                break
            exchange = get16(p + 5)
            key = get16(p + 7)
            props = get32(p + 9)
            if p[4] > OP_TAKE or exchange > 255 or key > 255:
                raise BadRow("a row has no such op, or a name of more than 255 bytes")
            if <uint64_t>ROW_HEAD - 4 + exchange + key + props > size:
                raise BadRow("a row is shorter than its parts")
            body = size - (ROW_HEAD - 4) - exchange - key - props
            if p[4] != OP_PUBLISH and body < ORIGIN_BYTES:
                raise BadRow("a row has no origin")
            if p[4] in (OP_REMOVE, OP_TAKE) and body != ORIGIN_BYTES and body != 2 * ORIGIN_BYTES:
                raise BadRow("a removal is one seq, or the first and the last of a run")
            if p[4] == OP_COPY_AS and not route_bytes(p + ROW_HEAD + exchange + key + props, body):
                raise BadRow("a row does not say how its message was published")
            if not walk_properties(p + ROW_HEAD + exchange + key, props, &info):
                raise BadRow("a row has malformed properties")
            found = self.find(p + 4, exchange + key)
            if found is None or info.needs_python or not info.persistent:
                start = ROW_HEAD + exchange + key
                return (p[4], p[ROW_HEAD:ROW_HEAD + exchange], p[ROW_HEAD + exchange:start],
                        p[start:start + props], p[start + props:4 + size])
            if self.put(<list>found, p, exchange, key, props, body):
                self.at += 4 + <uint64_t>size
        if not self.full and self.at < n:
            self.rest = self.data[self.at:]
            self.data = b""
            self.at = 0
        return None

    cdef object find(self, const uint8_t* p, uint32_t names):
        """Blocks for the route at `p`: op, two lengths, 4 bytes of something else, two names."""
        cdef bytes route = self.last_route
        cdef const uint8_t* q
        if route is not None and len(route) == <Py_ssize_t>names + 5:
            q = <const uint8_t*>PyBytes_AS_STRING(route)
            if memcmp(q, p, 5) == 0 and memcmp(q + 5, p + 9, names) == 0:
                return self.last
        route = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>names + 5)
        memcpy(PyBytes_AS_STRING(route), p, 5)
        memcpy(PyBytes_AS_STRING(route) + 5, p + 9, names)
        found = self.routes.get(route)
        if found is not None:
            self.last_route = route
            self.last = <list>found
        return found

    cdef bint put(self, list blocks, const uint8_t* p, uint16_t exchange, uint16_t key, uint32_t props,
                  uint64_t body) except -1:
        """Add the row at `p` to these blocks as it is; not if rows of another op have to be taken before."""
        cdef Block block
        cdef uint8_t* q
        cdef uint16_t route = exchange + key + 2
        cdef uint32_t body_len
        cdef uint32_t skipped = ORIGIN_BYTES if p[4] != OP_PUBLISH else 0
        cdef uint8_t op = OP_COPY if p[4] == OP_COPY_AS else p[4]
        cdef const uint8_t* rest = p + ROW_HEAD + exchange + key + props
        cdef size_t size
        if p[4] == OP_COPY_AS:
            route = <uint16_t>route_bytes(rest, body)
            skipped += route
        size = WIRE_HEAD + route + props + body - skipped
        body_len = <uint32_t>(body - skipped)
        for block in blocks:
            if block.rows and block.op != op and block not in self.full:
                self.full.append(block)
        if self.full:
            return False
        for block in blocks:
            q = block.reserve(size)
            memcpy(q, &body_len, 4)
            memcpy(q + 4, &props, 4)
            q[8] = q[9] = q[10] = q[11] = 0
            memcpy(q + 12, &route, 2)
            q[14] = q[15] = 0
            if skipped:
                memcpy(q + WIRE_SEQ, rest, 8)
            else:
                q[16] = q[17] = q[18] = q[19] = q[20] = q[21] = q[22] = q[23] = 0
            q += WIRE_HEAD
            if p[4] == OP_COPY_AS:
                memcpy(q, rest + ORIGIN_BYTES, route)
            else:
                q[0] = <uint8_t>exchange
                memcpy(q + 1, p + ROW_HEAD, exchange)
                q[1 + exchange] = <uint8_t>key
                memcpy(q + 2 + exchange, p + ROW_HEAD + exchange, key)
            memcpy(q + route, p + ROW_HEAD + exchange + key, props)
            memcpy(q + route + props, rest + skipped, body_len)
            block.op = op
            block.used += size
            block.rows += 1
            if block.used >= self.most and block not in self.full:
                self.full.append(block)
        self.count += 1
        return True

    def learn(self, uint8_t op, bytes exchange not None, bytes key not None, list blocks not None) -> None:
        """Rows like the one at hand go into these blocks, unless their properties have a say."""
        cdef uint16_t[2] sizes = [<uint16_t>len(exchange), <uint16_t>len(key)]
        route = bytes([op]) + PyBytes_FromStringAndSize(<char*>sizes, 4) + exchange + key
        self.routes[route] = [<Block?>block for block in blocks]

    def place(self, list blocks not None, bytes properties not None) -> None:
        """The row at hand goes into these blocks, with these properties, and `run` goes on behind it."""
        cdef const uint8_t[::1] view = self.data
        cdef const uint8_t* p = &view[self.at]
        cdef uint32_t size = get32(p)
        cdef uint16_t exchange = get16(p + 5)
        cdef uint16_t key = get16(p + 7)
        cdef uint32_t props = get32(p + 9)
        cdef uint32_t before = ROW_HEAD + exchange + key
        cdef uint32_t new_props = <uint32_t>len(properties)
        cdef uint64_t body = size + 4 - before - props
        cdef bytes row
        cdef uint8_t* q
        cdef bint is_done
        blocks = [<Block?>block for block in blocks]
        if new_props == props and memcmp(p + before, PyBytes_AS_STRING(properties), props) == 0:
            is_done = self.put(blocks, p, exchange, key, props, body)
        else:
            row = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(before + new_props + body))
            q = <uint8_t*>PyBytes_AS_STRING(row)
            memcpy(q, p, before)
            memcpy(q + 9, &new_props, 4)
            memcpy(q + before, PyBytes_AS_STRING(properties), new_props)
            memcpy(q + before + new_props, p + before + props, body)
            is_done = self.put(blocks, q, exchange, key, new_props, body)
        if is_done:  # else `run` comes back to it
            self.at += 4 + <uint64_t>size

    def take_full(self) -> list:
        """Blocks that have reached their size; `run` goes on after this."""
        cdef list full = self.full
        self.full = []
        return full
