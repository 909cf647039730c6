"""Linearisable reads without an entry in the log.

Guarantee: a read is released when the state here holds every entry that was committed, on any node, before
the read was asked for. The commit index is noted after the leader has committed an entry of its own term; a
round of heartbeats begun afterwards and answered by a majority proves that nobody else was leading then.
Reads that come while a round is under way share the next one.
"""

from collections import deque

from msgspec import Struct


class _Read(Struct):
    ref: object
    index: int = -1
    round: int = 0


class Reads:
    """The reads of one leader."""

    def __init__(self) -> None:
        """None yet."""
        self._new: list[_Read] = []
        self._proving: deque[_Read] = deque()
        self._proven: deque[_Read] = deque()

    def __len__(self) -> int:
        return len(self._new) + len(self._proving) + len(self._proven)

    def add(self, ref: object) -> None:
        """A read was asked for."""
        self._new.append(_Read(ref))

    @property
    def wants_round(self) -> bool:
        """Do reads wait for a round that has not begun?"""
        return bool(self._new) and not self._proving

    def begin_round(self, number: int, commit_index: int) -> None:
        """A round of heartbeats is being sent."""
        for read in self._new:
            read.index, read.round = commit_index, number
            self._proving.append(read)
        self._new.clear()

    def on_proven(self, number: int) -> None:
        """A majority has answered this round, so it answers for earlier ones as well."""
        while self._proving and self._proving[0].round <= number:
            self._proven.append(self._proving.popleft())

    def take_ready(self, applied_index: int) -> list[tuple[object, int]]:
        """Reads that may be answered now, with the index each must see."""
        ready: list[tuple[object, int]] = []
        while self._proven and self._proven[0].index <= applied_index:
            read = self._proven.popleft()
            ready.append((read.ref, read.index))
        return ready

    def take_all(self) -> list[object]:
        """Every read that was not answered."""
        return [read.ref for read in (*self._proven, *self._proving, *self._new)]
