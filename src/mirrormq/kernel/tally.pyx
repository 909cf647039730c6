# cython: language_level=3
"""Counters of what clients do: of one channel and, above it, of its vhost; of one exchange.

Guarantee: what is counted here is counted above, too, and stays counted there when this one is gone.
"""
cimport cython
from libc.stdint cimport uint64_t

CHANNEL_COUNTS = ("publish", "confirm", "return_unroutable", "drop_unroutable", "deliver", "deliver_no_ack",
                  "get", "get_no_ack", "get_empty", "redeliver", "ack")
EXCHANGE_COUNTS = ("publish_in", "publish_out")


@cython.final
cdef class Tally:
    """Numbers that only grow."""

    cdef void count(self, int what, uint64_t times) noexcept:
        self.counts[what] += times
        if self.above is not None:
            self.above.counts[what] += times

    def add(self, int what, uint64_t times=1) -> None:
        """Count something that Python did."""
        if what < 0 or what >= WIDTH:
            raise IndexError(what)
        self.count(what, times)

    def of_channel(self) -> tuple:
        """All counters in the order of CHANNEL_COUNTS."""
        cdef uint64_t* c = self.counts
        return (c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], c[10])

    def of_exchange(self) -> tuple:
        """All counters in the order of EXCHANGE_COUNTS."""
        return (self.counts[PUBLISH_IN], self.counts[PUBLISH_OUT])
