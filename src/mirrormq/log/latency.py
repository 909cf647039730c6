"""How long the publishes of one queue took until they were safe, counted in buckets.

Guarantees
- One measurement per batch, not per message: a batch is what is written, sent and flushed together.
- Nothing is kept per message and nothing grows: at most `latency_waiting_max` batches are under way at a
  time, and a histogram has at most `BUCKETS` entries. Whoever takes a histogram empties it.
- Buckets of different queues, nodes and times are the same, so histograms can be added up, and a percentile
  of the sum is one of all publishes. A bucket is a quarter of an octave wide: 25 % at its lower end.

`confirm`: from the master's append until the batch may be confirmed (flushed by every in-sync member).
`mirroring`: until every in-sync member has received it. Marks move only while the node handles an input, so
the time of that input is the time they moved.
"""

from collections import deque

from mirrormq.base import limits

BUCKETS = 4 * 40
"""From a microsecond to twelve days; what is slower counts as that."""

Histogram = dict[int, int]
"""Batches by bucket."""


def bucket_of(micros: int) -> int:
    """The bucket of a duration."""
    if micros < 4:
        return max(0, micros)
    octave = micros.bit_length() - 1
    return min(4 * (octave - 1) + (micros >> (octave - 2) & 3), BUCKETS - 1)


def upper_edge(bucket: int) -> int:
    """The smallest duration (µs) that is longer than those of a bucket."""
    if bucket < 4:
        return bucket + 1
    octave = bucket // 4 + 1
    return (5 + bucket % 4) << (octave - 2)


class Latencies:
    """Of one queue, on its master."""

    __slots__ = ("_confirming", "_mirroring", "confirm", "mirroring")

    def __init__(self) -> None:
        self.confirm: Histogram = {}
        self.mirroring: Histogram = {}
        self._confirming: deque[tuple[int, int]] = deque()
        """(last seq, when it was appended) of batches that may not be confirmed yet."""
        self._mirroring: deque[tuple[int, int]] = deque()

    def appended(self, seq: int, mono: int) -> None:
        """A batch that ends with `seq` was written."""
        if len(self._confirming) < limits.latency_waiting_max:
            self._confirming.append((seq, mono))
            self._mirroring.append((seq, mono))

    def mirrored(self, seq: int, mono: int) -> None:
        """Every in-sync member has what was written up to `seq`."""
        _count(self._mirroring, seq, mono, self.mirroring)

    def confirmed(self, seq: int, mono: int) -> None:
        """Everything up to `seq` may be confirmed."""
        _count(self._confirming, seq, mono, self.confirm)
        while self._mirroring and self._mirroring[0][0] <= seq:
            self._mirroring.popleft()  # nobody else has to have it

    def forget(self) -> None:
        """Another node is the master now: what is under way is not measured here."""
        self._confirming.clear()
        self._mirroring.clear()

    def take(self) -> tuple[Histogram, Histogram]:
        """What was measured since the last time: confirms and replications."""
        taken = self.confirm, self.mirroring
        if taken[0] or taken[1]:
            self.confirm, self.mirroring = {}, {}
        return taken


def _count(waiting: deque[tuple[int, int]], seq: int, mono: int, into: Histogram) -> None:
    while waiting and waiting[0][0] <= seq:
        bucket = bucket_of(mono - waiting.popleft()[1])
        into[bucket] = into.get(bucket, 0) + 1
