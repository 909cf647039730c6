# The batch as other kernel modules read it (see records.pyx).
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from mirrormq.kernel.index cimport Entry

cdef enum:
    MAGIC = 0x3142514D  # "MQB1"
    HEAD = 56
    RECORD = 12
    TAIL = 24
    PUBLISH_HEAD = 44
    KIND_PUBLISH = 1
    KIND_PUBNOTE = 2
    KIND_REMOVE = 3
    KIND_REQUEUE = 4
    KIND_HORIZON = 5
    KIND_EPOCH = 8
    KIND_TRUNCATE = 17
    FLAG_PERSISTENT = 1
    FLAG_RESENT = 2
    SPAN_BYTES = 24

# The head of a batch as `read_head` found it.
cdef struct Head:
    uint32_t size
    uint32_t records_crc
    uint64_t queue_id
    uint64_t epoch
    uint64_t first_seq
    uint32_t records
    uint32_t publishes
    uint64_t time


cdef inline uint16_t get16(const uint8_t* p) noexcept:
    cdef uint16_t v
    memcpy(&v, p, 2)
    return v


cdef inline uint32_t get32(const uint8_t* p) noexcept:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v


cdef inline uint64_t get64(const uint8_t* p) noexcept:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v


cdef inline void set32(uint8_t* p, uint32_t v) noexcept:
    memcpy(p, &v, 4)


cdef inline void set64(uint8_t* p, uint64_t v) noexcept:
    memcpy(p, &v, 8)


cdef void seal(uint8_t* p, const Head* h) noexcept
cdef bint head_at(const uint8_t* p, uint64_t n, Head* h) noexcept
cdef bint whole_at(const uint8_t* p, uint64_t n, Head* h) noexcept
cdef Entry entry_of(const uint8_t* record, uint32_t size, uint64_t seq, uint64_t horizon) except *
