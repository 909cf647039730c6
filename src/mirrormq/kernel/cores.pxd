# Kernel halves of Queue, Consumer and Channel (see cores.pyx).
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from mirrormq.kernel.index cimport Entry
from mirrormq.kernel.message cimport Msg
from mirrormq.kernel.outbuffer cimport OutBuffer
from mirrormq.kernel.store cimport Level, QueueStore
from mirrormq.kernel.tally cimport Tally
from mirrormq.kernel.unacked cimport Slot, UnackedRing

cdef enum:
    HOW_ACK = 0
    HOW_REQUEUE = 1
    HOW_REJECT = 2
    HOW_UNSEEN = 3      # back to its place, marked but not counted: no client has seen it

cdef uint64_t next_stamp() noexcept

cdef class Group:
    cdef list members
    cdef Py_ssize_t turn

cdef class ChannelCore(UnackedRing):
    cdef readonly uint16_t number
    cdef readonly uint64_t uid
    cdef readonly OutBuffer out
    cdef readonly Tally tally
    cdef public bint confirm
    cdef public bint tx
    cdef public bint closing
    cdef public bint flow
    cdef public uint64_t publish_no
    cdef public uint32_t prefetch_limit
    cdef readonly uint32_t unacked
    cdef readonly uint32_t held          # unacked of consumers: what a shared prefetch counts
    cdef bint confirming                 # already in the reader's list of this pass
    cdef uint64_t stamp                  # of the barrier being collected
    cdef list targets                    # queues published to since the last barrier
    cdef list wanting                    # queues that stopped at the shared prefetch
    # content being assembled, owned by the frame reader
    cdef int expect
    cdef object route
    cdef uint8_t publish_bits
    cdef bint needs_python
    cdef Msg* partial
    cdef uint64_t body_left

    cdef void track(self, QueueCore queue, ConsumerCore consumer, const Entry* e, int64_t now_mono) noexcept
    cdef int note_target(self, QueueCore queue) except -1
    cdef int note_wanting(self, QueueCore queue) except -1
    cdef int wake_wanting(self) except -1
    cdef bint is_known(self, uint64_t tag, bint multiple) noexcept
    cdef bint end(self, uint64_t tag, bint multiple, int how) except -1
    cdef int finish(self, uint64_t tag, int how) except -1
    cdef int finish_upto(self, uint64_t tag, int how) except -1

cdef class ConsumerCore:
    cdef readonly ChannelCore channel
    cdef readonly bytes tag
    cdef readonly bint no_ack
    cdef readonly bint unbound             # no prefetch limit binds it: its client does not acknowledge
    cdef public uint32_t prefetch
    cdef readonly uint32_t unacked
    cdef readonly uint64_t delivered

    cdef bint has_credit(self) noexcept
    cdef bint able(self) noexcept

cdef class QueueCore(QueueStore):
    cdef readonly uint64_t unacked
    cdef readonly uint64_t unacked_bytes
    cdef readonly uint64_t delivered
    cdef readonly uint64_t delivered_no_ack
    cdef readonly uint64_t got           # by basic.get, with and without acknowledgement
    cdef readonly uint64_t got_no_ack
    cdef readonly uint64_t got_nothing
    cdef readonly uint64_t redelivered
    cdef readonly uint64_t acked
    cdef uint64_t fed_stamp              # the last reader, and the last barrier, that noted this queue
    cdef uint64_t barrier_stamp
    cdef list groups
    cdef list strays                     # (seq, how) of withheld messages that were given back or rejected

    cdef int make_room(self, ChannelCore channel, bint no_ack) except -1
    cdef void hand_out(self, ChannelCore channel, ConsumerCore consumer, Level* at, bint no_ack,
                       int64_t now_mono) noexcept
    cdef int take_end(self, const Entry* e, int how) except -1
