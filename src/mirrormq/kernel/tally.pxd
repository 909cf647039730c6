# Counters of a channel, an exchange or a vhost (see tally.pyx).
from libc.stdint cimport uint64_t

cdef enum:
    # What a channel does, and all channels of a vhost together.
    PUBLISH = 0
    CONFIRM = 1
    RETURN_UNROUTABLE = 2
    DROP_UNROUTABLE = 3
    DELIVER = 4
    DELIVER_NO_ACK = 5
    GET = 6
    GET_NO_ACK = 7
    GET_EMPTY = 8
    REDELIVER = 9
    ACK = 10
    # What an exchange does.
    PUBLISH_IN = 0
    PUBLISH_OUT = 1
    WIDTH = 11

cdef class Tally:
    cdef uint64_t counts[WIDTH]
    cdef public Tally above          # counts the same for a larger whole

    cdef void count(self, int what, uint64_t times) noexcept
