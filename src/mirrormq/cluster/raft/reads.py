"""Linearisable reads without an entry in the log.

Guarantee: a read is released when the state here holds every entry that was committed, on any node, before
the read was asked for. The commit index is noted after the leader has committed an entry of its own term; a
round of heartbeats begun afterwards and answered by a majority proves that nobody else was leading then.
Reads that come while a round is under way share the next one.

A node that follows asks its leader for that index and waits until it has applied as much. What is on its way
when the leader, or the link to it, changes is refused, and asked for again by whoever wants to know.
"""

from collections import deque

from msgspec import Struct


class RemoteRead(Struct, frozen=True):
    """A read that another node has asked for."""

    peer: str
    number: int


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


class ForwardedReads:
    """The reads of one node while it follows.

    Numbers rise over all leaders, links and starts of the node: an answer that comes late must not be taken
    for one to a later request.
    """

    def __init__(self, start: int) -> None:
        """None yet; `start` counts the starts of the node's folder."""
        self._new: list[object] = []
        self._asked: deque[tuple[int, list[object]]] = deque()
        self._answered: deque[tuple[int, list[object]]] = deque()
        self._number = start << 32

    def __len__(self) -> int:
        return len(self._new) + sum(len(refs) for _, refs in (*self._asked, *self._answered))

    def add(self, ref: object) -> None:
        """A read was asked for."""
        self._new.append(ref)

    def take_request(self) -> int:
        """The number to ask the leader with, for all reads since the last one; 0 if there are none."""
        if not self._new:
            return 0
        self._number += 1
        self._asked.append((self._number, self._new))
        self._new = []
        return self._number

    def on_answer(self, number: int, index: int) -> None:
        """The leader has answered everything up to `number`."""
        while self._asked and self._asked[0][0] <= number:
            self._answered.append((index, self._asked.popleft()[1]))

    def take_ready(self, applied_index: int) -> list[tuple[object, int]]:
        """Reads that may be answered now, with the index each must see."""
        ready: list[tuple[object, int]] = []
        while self._answered and self._answered[0][0] <= applied_index:
            index, refs = self._answered.popleft()
            ready += [(ref, index) for ref in refs]
        return ready

    def take_all(self) -> list[object]:
        """Every read that was not answered."""
        waiting = [ref for _, refs in (*self._answered, *self._asked) for ref in refs] + self._new
        self._answered.clear()
        self._asked.clear()
        self._new = []
        return waiting
