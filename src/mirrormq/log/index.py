"""Where in a queue's record stream a time or an amount of bytes lies, and how many publishes lie before it.

Guarantee: an entry is a fact about the stream (this seq has this time, so many publishes and bytes come
before it), not about files; it stays true when records move, so a lookup and a recycling never race.

An entry is made with every place (`places`): for at most every `place_bytes_min` bytes of a file, so the
next entry is never further away than that and one batch. After a restart what lies in segments has the
entries of the checkpoint, one per `index_mark_bytes`. An entry takes 32 bytes; entries whose records are all
gone go with them, so memory follows the bytes on disk.
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from mirrormq.kernel.ranges import RangeSet


class Entry(NamedTuple):
    """The stream at one seq."""

    seq: int
    time: int
    publishes: int
    """Publishes before `seq`, dead or alive."""
    written: int
    """Bytes of the batches before `seq`, as they were written to the journal."""


START = Entry(1, 0, 0, 0)


class SeqIndex:
    """Entries of one queue in seq order, and where its epochs begin."""

    __slots__ = ("_publishes", "_seqs", "_times", "_written", "epochs")

    def __init__(self) -> None:
        self._seqs = array("Q")
        self._times = array("Q")
        self._publishes = array("Q")
        self._written = array("Q")
        self.epochs: list[tuple[int, int]] = []
        """(epoch, seq of its first record), oldest first."""

    def __len__(self) -> int:
        return len(self._seqs)

    def note(self, entry: Entry) -> None:
        """A batch begins here; entries come in seq order."""
        if self._seqs and entry.seq <= self._seqs[-1]:
            return
        for column, value in zip(self._columns(), entry, strict=True):
            column.append(value)

    def note_epoch(self, epoch: int, seq: int) -> None:
        """The record `seq` was written in this epoch."""
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs.append((epoch, seq))

    def epoch_of(self, seq: int) -> int:
        """The epoch of a record; 0 if it is older than what is known."""
        at = bisect_right(self.epochs, seq, key=_second) - 1
        return self.epochs[at][0] if at >= 0 else 0

    def at(self, seq: int) -> Entry:
        """The last entry not behind this seq."""
        return self._entry(bisect_right(self._seqs, seq) - 1)

    def before_time(self, time: int) -> Entry:
        """The last entry older than this time: the first record that is not older lies at it or behind."""
        return self._entry(bisect_left(self._times, time) - 1)

    def before_byte(self, written: int) -> Entry:
        """The last entry with at most so many bytes before it."""
        return self._entry(bisect_right(self._written, written) - 1)

    def thin(self, first: int, last: int, dead: RangeSet, keep: int) -> None:
        """What of first..last is dead and below `keep` has left the disk: drop the entries of nothing."""
        low = bisect_left(self._seqs, first)
        high = bisect_right(self._seqs, last)
        stay = []
        for at in range(low, high):
            following = self._seqs[at + 1] if at + 1 < len(self._seqs) else last + 1
            if following > keep or following > last + 1 or not dead.covers(self._seqs[at], following - 1):
                stay.append(at)
        if len(stay) < high - low:
            for column in self._columns():
                column[low:high] = array("Q", [column[at] for at in stay])

    def cut(self, end: int) -> None:
        """Records above `end` were given up."""
        at = bisect_right(self._seqs, end)
        for column in self._columns():
            del column[at:]
        self.epochs = [(epoch, first) for epoch, first in self.epochs if first <= end]

    def shift(self, start: int, publishes: int, written: int) -> None:
        """The entries from the start-th on were counted from zero: they begin with so many."""
        for at in range(start, len(self._seqs)):
            self._publishes[at] += publishes
            self._written[at] += written

    def _columns(self) -> tuple["array[int]", ...]:
        return self._seqs, self._times, self._publishes, self._written

    def _entry(self, at: int) -> Entry:
        if at < 0:
            return START
        return Entry(self._seqs[at], self._times[at], self._publishes[at], self._written[at])


def _second(row: tuple[int, int]) -> int:
    return row[1]
