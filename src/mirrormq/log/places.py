"""Where the records of one queue lie: a sparse index over journal files and segments.

A place is kept for at most every `place_bytes_min` bytes a queue wrote into a file; reading a seq begins at
the last place at or before it and goes on batch by batch. Memory therefore grows with bytes on disk, not
with messages.
"""

from bisect import bisect_right
from collections.abc import Iterator
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
        self._end_file = ""
        self._end_offset = 0

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    def note(self, seq: int, file: str, offset: int) -> None:
        """A batch beginning with `seq` was appended there."""
        if file == self._end_file and offset - self._end_offset < limits.place_bytes_min:
            return
        assert not self._seqs or seq > self._seqs[-1], (seq, self._seqs[-1])
        self._seqs.append(seq)
        self._places.append(Place(seq, file, offset))
        self._end_file, self._end_offset = file, offset

    def at(self, seq: int) -> Place | None:
        """Where to begin reading for this seq: the last place not behind it, else the first."""
        if not self._places:
            return None
        return self._places[max(bisect_right(self._seqs, seq) - 1, 0)]

    def knows(self, file: str) -> bool:
        """Does anything of the queue still lie in this file?"""
        return any(place.file == file for place in self._places)

    def after(self, file: str) -> Place | None:
        """The first place in the file that follows this one."""
        files = list(dict.fromkeys(place.file for place in self._places))
        at = files.index(file) + 1 if file in files else 0
        return next((p for p in self._places if p.file == files[at]), None) if at < len(files) else None

    def forget(self, file: str) -> None:
        """The file is gone."""
        if not self.knows(file):
            return
        kept = [place for place in self._places if place.file != file]
        self._places = kept
        self._seqs = [place.seq for place in kept]
        if self._end_file == file:
            self._end_file = ""

    def insert(self, places: list[Place]) -> None:
        """Add places of records that moved to a segment or were found by reading, in order with the
        others.
        """
        if not places:
            return
        merged = sorted({*self._places, *places})
        self._places = merged
        self._seqs = [place.seq for place in merged]
