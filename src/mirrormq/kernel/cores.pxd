# Kernel halves of Queue, Consumer and Channel (see cores.pyx).
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mirrormq.kernel.index cimport Entry, EntryHeap, EntryList, Graveyard
from mirrormq.kernel.message cimport Message, Msg
from mirrormq.kernel.outbuffer cimport OutBuffer
from mirrormq.kernel.unacked cimport Slot, UnackedRing

cdef struct Range:
    uint64_t first
    uint64_t last
    uint8_t reason

cdef struct Level:
    EntryList ready
    EntryHeap returned

cdef class Worklist:
    cdef list touched

cdef class Group:
    cdef list members
    cdef Py_ssize_t turn

cdef class ChannelCore(UnackedRing):
    cdef readonly uint16_t number
    cdef readonly uint64_t uid
    cdef readonly OutBuffer out
    cdef public bint confirm
    cdef public bint tx
    cdef public bint closing
    cdef public bint flow
    cdef public uint64_t publish_no
    cdef public uint32_t prefetch_limit
    cdef readonly uint32_t unacked
    cdef readonly uint32_t held          # unacked of consumers: what a shared prefetch counts
    cdef bint confirming                 # already in the reader's list of this pass
    cdef list targets                    # queues published to since the last barrier
    # content being assembled, owned by the frame reader
    cdef int expect
    cdef object route
    cdef uint8_t publish_bits
    cdef bint needs_python
    cdef Msg* partial
    cdef uint64_t body_left

    cdef int track(self, QueueCore queue, ConsumerCore consumer, const Entry* e, int64_t now_mono) except -1
    cdef int note_target(self, QueueCore queue) except -1
    cdef int finish(self, Slot* s, int how) except -1
    cdef int finish_upto(self, uint64_t tag, int how) except -1

cdef class ConsumerCore:
    cdef readonly ChannelCore channel
    cdef readonly bytes tag
    cdef readonly bint no_ack
    cdef public uint32_t prefetch
    cdef readonly uint32_t unacked
    cdef readonly uint64_t delivered

    cdef bint able(self) noexcept

cdef class QueueCore:
    cdef public object owner
    cdef public bint dead_letter
    cdef public bint counted             # returns go through Python: delivery limit and x-delivery-count
    cdef public int64_t ttl_us
    cdef readonly bint gone
    cdef readonly uint32_t max_priority
    cdef readonly uint64_t ready
    cdef readonly uint64_t ready_bytes
    cdef readonly uint64_t unacked
    cdef readonly uint64_t unacked_bytes
    cdef readonly uint64_t published
    cdef readonly uint64_t delivered
    cdef readonly uint64_t delivered_no_ack
    cdef readonly uint64_t got
    cdef readonly uint64_t redelivered
    cdef readonly uint64_t acked
    cdef Worklist work
    cdef Graveyard grave
    cdef bint touched
    cdef void* fed_by
    cdef void* barrier_by
    cdef EntryList waiting               # published, not yet in the log
    cdef uint64_t waiting_bytes
    cdef EntryList dying                 # rejected, expired, dropped: to be dead-lettered
    cdef EntryList coming_back           # requeued, to be counted
    cdef list refused
    cdef list groups
    cdef Level* levels
    cdef uint32_t top
    cdef Range* ranges
    cdef uint32_t range_count
    cdef uint32_t range_room

    cpdef touch(self)
    cdef int bury_ready(self) except -1
    cdef int bury_all(self) except -1
    cdef int append(self, Msg* m, uint64_t pid, uint64_t pseq) except -1
    cdef int settle_seq(self, uint64_t seq, uint8_t reason) except -1
    cdef Entry* head(self, Level** at) noexcept
    cdef void pop(self, Level* at, Entry* out) noexcept
    cdef int give_back(self, Entry* e) except -1
    cdef int discard(self, Entry* e, uint8_t reason) except -1
    cdef int send(self, ConsumerCore consumer, Entry* e, int64_t now_mono) except -1
