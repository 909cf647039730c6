# Output of one connection, written by the deliver loop and taken once per pass (see outbuffer.pyx).
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from libc.string cimport memcpy

from mirrormq.kernel.message cimport Msg, msg_route

# A message between nodes: body bytes u32, property bytes u32, consumer u32, route bytes u16, flags u8, 0 u8,
# seq u64 (little-endian), route, properties, body.
cdef enum:
    WIRE_HEAD = 24
    WIRE_CONSUMER = 8
    WIRE_FLAGS = 14
    WIRE_SEQ = 16
    WIRE_REDELIVERED = 1

cdef inline uint8_t* put_wire(uint8_t* p, Msg* m, uint8_t flags, uint32_t consumer,
                              uint64_t seq) noexcept:
    cdef uint32_t body_len = <uint32_t>m.body_len
    memcpy(p, &body_len, 4)
    memcpy(p + 4, &m.props_len, 4)
    memcpy(p + WIRE_CONSUMER, &consumer, 4)
    memcpy(p + 12, &m.route_len, 2)
    p[WIRE_FLAGS] = flags
    p[15] = 0
    memcpy(p + WIRE_SEQ, &seq, 8)
    # route, properties and body lie together in the message
    memcpy(p + WIRE_HEAD, msg_route(m), m.route_len + m.props_len + m.body_len)
    return p + WIRE_HEAD + m.route_len + m.props_len + m.body_len

cdef class Dirty:
    cdef list keys

cdef class OutBuffer:
    cdef public uint32_t frame_max
    cdef public uint32_t high
    cdef public bint blocked
    cdef public bint starved
    cdef readonly bint compact           # written for another node: records (forward.pyx) instead of frames
    cdef readonly object key
    cdef readonly uint64_t total
    cdef Dirty dirty
    cdef object buf
    cdef uint8_t* data
    cdef size_t used
    cdef size_t room
    cdef size_t hint

    cdef uint8_t* reserve(self, size_t n) except NULL
    cdef int grow(self, size_t n) except -1
    cdef size_t content_size(self, Msg* m) noexcept
    cdef void put_content(self, uint8_t* p, uint16_t channel, Msg* m) noexcept
    cdef int put_record(self, bytes tag, bint redelivered, uint64_t seq, Msg* m) except -1
    cdef int put_deliver(self, uint16_t channel, bytes tag, uint64_t delivery_tag, bint redelivered,
                         uint64_t seq, Msg* m) except -1
    cdef int put_get_ok(self, uint16_t channel, uint64_t delivery_tag, bint redelivered, uint64_t seq, Msg* m,
                        uint32_t left) except -1
