"""Where the records of one queue lie: a sparse index over journal files and segments.

A place is kept for at most every `place_bytes_min` bytes a queue wrote into a file; reading a seq begins at
the last place at or before it and goes on batch by batch. Memory therefore grows with bytes on disk, not
with messages.
"""

from bisect import bisect_right, insort
from collections.abc import Container, Iterator
from typing import NamedTuple

from mirrormq.base import limits


class Place(NamedTuple):
    """From `seq` on, records of the queue lie in `file` at `offset` or later."""

    seq: int
    file: str
    offset: int


class Places:
    """Places of one queue in seq order."""

    def __init__(self) -> None:
        self._seqs: list[int] = []
        self._places: list[Place] = []
        self._firsts: dict[str, Place] = {}
        """The first place in each file."""
        self._end_file = ""
        self._end_offset = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    def note(self, seq: int, file: str, offset: int) -> bool:
        """A batch beginning with `seq` was appended there. True if it became a place."""
        if file == self._end_file and offset - self._end_offset < limits.place_bytes_min:
            return False
        assert not self._seqs or seq > self._seqs[-1], (seq, self._seqs[-1])
        self._seqs.append(seq)
        self._places.append(Place(seq, file, offset))
        self._end_file, self._end_offset = file, offset
        self._firsts.setdefault(file, self._places[-1])
        return True

    def at(self, seq: int) -> Place | None:
        """Where to begin reading for this seq: the last place not behind it, else the first."""
        if not self._places:
            return None
        return self._places[max(bisect_right(self._seqs, seq) - 1, 0)]

    def knows(self, file: str) -> bool:
        """Does anything of the queue still lie in this file?"""
        return file in self._firsts

    def first_in(self, file: str) -> Place | None:
        """Where the queue's records begin in this file."""
        return self._firsts.get(file)

    def after(self, file: str) -> Place | None:
        """The first place in the file that follows this one; the very first if this one is not known."""
        firsts = self._firsts.values()
        before = self._firsts.get(file)
        if before is None:
            return min(firsts, default=None)
        return min((place for place in firsts if place > before), default=None)

    def forget(self, file: str) -> None:
        """The file is gone."""
        if self._firsts.pop(file, None) is None:
            return
        kept = [place for place in self._places if place.file != file]
        self._places = kept
        self._seqs = [place.seq for place in kept]
        if self._end_file == file:
            self._end_file = ""

    def begin(self, place: Place) -> None:
        """What the queue had in this file before `place` lies elsewhere now."""
        kept = [one for one in self._places if one.file != place.file or one.seq > place.seq]
        self._places = kept
        self._seqs = [one.seq for one in kept]
        self._firsts.pop(place.file, None)
        self.insert([place])

    def pass_over(self, end: int, segments: Container[str], last: int) -> None:
        """Everything up to `end` lies in these segments. What a journal file has of it again, since it was
        given up and adopted once more, must not stand before the segment: what follows would not be found.
        Nothing follows if `end` is the `last` record there is.
        """
        twice = [place for place in self._places if place.seq <= end and place.file not in segments]
        if twice:
            kept = [place for place in self._places if place.seq > end or place.file in segments]
            if end < last:
                kept += {place.file: Place(end + 1, place.file, place.offset) for place in twice}.values()
            else:
                self._end_file = ""  # the next record is a place of its own
            self._places = sorted(kept)
            self._seqs = [place.seq for place in self._places]
            self._firsts = {}
            for place in self._places:
                self._firsts.setdefault(place.file, place)

    def cut(self, end: int) -> None:
        """Records above `end` were given up: nothing of theirs is to be found."""
        at = bisect_right(self._seqs, end)
        del self._seqs[at:]
        del self._places[at:]
        self._firsts = {file: first for file, first in self._firsts.items() if first.seq <= end}
        self._end_file = ""  # whatever comes next is a place of its own

    def clear(self) -> None:
        """Nothing of the queue lies anywhere."""
        self.cut(-1)

    def insert(self, places: list[Place]) -> None:
        """Add places of records that moved to a segment or were found by reading, in order with the
        others.
        """
        for place in places:
            at = bisect_right(self._places, place)
            if at and self._places[at - 1] == place:
                continue
            self._places.insert(at, place)
            insort(self._seqs, place.seq)
            first = self._firsts.get(place.file)
            if first is None or place < first:
                self._firsts[place.file] = place
