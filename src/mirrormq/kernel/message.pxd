# The message allocation shared by every queue that holds it (see message.pyx).
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    MSG_PERSISTENT = 1

# One malloc: this head, then [len][exchange][len][routing key][raw properties][body].
# `refs` is not atomic: only the thread of the event loop touches messages.
cdef struct Msg:
    uint32_t refs
    uint32_t props_len
    uint64_t body_len
    int64_t ttl_us
    uint16_t route_len
    uint8_t exchange_len
    uint8_t priority
    uint8_t flags

# What a walk over raw properties found.
cdef struct PropInfo:
    int64_t ttl_us
    uint8_t persistent
    uint8_t priority
    bint needs_python

cdef inline uint8_t* msg_route(Msg* m) noexcept nogil:
    return (<uint8_t*>m) + sizeof(Msg)

cdef inline uint8_t* msg_props(Msg* m) noexcept nogil:
    return (<uint8_t*>m) + sizeof(Msg) + m.route_len

cdef inline uint8_t* msg_body(Msg* m) noexcept nogil:
    return (<uint8_t*>m) + sizeof(Msg) + m.route_len + m.props_len

cdef inline uint16_t be16(const uint8_t* p) noexcept nogil:
    return <uint16_t>((p[0] << 8) | p[1])

cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]

cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)

cdef Msg* msg_new(const uint8_t* route, uint16_t route_len, const uint8_t* props, uint32_t props_len,
                  uint64_t body_len, PropInfo* info) except NULL
cdef void msg_release(Msg* m) noexcept
cdef bint walk_properties(const uint8_t* p, uint32_t n, PropInfo* info) noexcept

cdef class Message:
    cdef Msg* msg

    @staticmethod
    cdef Message wrap(Msg* m)
