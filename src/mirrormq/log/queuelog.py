"""The seam between a queue and its durability: every change is appended here before it is applied.

Guarantee of the interface: seqs are dense and only grow; a position that was reported durable stays so. The
queue does not know what kind of log it has. A publish may be confirmed when `durable` has reached the
position its append returned; for `MemoryLog` that is at once.
"""

from collections.abc import Sequence
from typing import Protocol

from mirrormq.base.types import Seq

Removal = tuple[int, int, int]
"""(first seq, last seq, reason)"""


class QueueLog(Protocol):
    """What a queue needs of its log."""

    @property
    def end(self) -> Seq:
        """Seq of the last entry; 0 when there is none."""
        ...

    @property
    def durable(self) -> Seq:
        """Every entry up to here survives what this log promises to survive."""
        ...

    def append(self, count: int) -> Seq:
        """Number `count` publishes; return the seq of the first."""
        ...

    def settle(self, removals: Sequence[Removal]) -> Seq:
        """Record that these entries left the queue; return the position of the record."""
        ...

    def purge(self, upto: Seq) -> Seq:
        """Record that everything ready up to `upto` left the queue; return the position of the record."""
        ...


class MemoryLog:
    """A log that promises nothing beyond the life of the process: it only counts."""

    def __init__(self) -> None:
        self.end = Seq(0)

    @property
    def durable(self) -> Seq:
        """What was appended is as durable as it will ever be."""
        return self.end

    def append(self, count: int) -> Seq:
        """Number `count` publishes."""
        first = Seq(self.end + 1)
        self.end = Seq(self.end + count)
        return first

    def settle(self, removals: Sequence[Removal]) -> Seq:
        """Removals need a position of their own: a reader tells by it whether they happened."""
        if removals:
            self.end = Seq(self.end + 1)
        return self.end

    def purge(self, upto: Seq) -> Seq:
        """One entry stands for everything up to `upto`."""
        assert upto <= self.end, (upto, self.end)
        self.end = Seq(self.end + 1)
        return self.end
