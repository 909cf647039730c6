"""Links between simulated nodes, like TCP: in order, nothing lost while open, nothing that says why.

A direction that is cut holds what is sent until it is mended. Closing a link tells the closer at once and the
other side behind everything that is on its way. The end of a machine without power tells nobody: the other
side keeps its half until it gives up.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Deliver = Callable[[], None]
At = Callable[[int, Callable[[], None]], None]


@dataclass
class Direction:
    """One way of a connection."""

    queue: list[tuple[int, Deliver]] = field(default_factory=list)
    """(earliest arrival, what happens then), in order."""
    is_scheduled: bool = False


@dataclass
class Connection:
    """An open link; `ends` are the sides that have not closed it."""

    number: int
    ends: set[str]
    ways: dict[str, Direction]
    """By receiver."""


class Network:
    """All links of a world."""

    def __init__(self, rng: random.Random, at: At, now: Callable[[], int]) -> None:
        """`at` schedules, `now` tells the true time."""
        self._rng = rng
        self._at = at
        self._now = now
        self._count = 0
        self.delay_us = rng.choice([100, 1_000, 10_000])
        self.open: dict[tuple[str, str], Connection] = {}
        """By both ends, sorted; one connection per pair."""
        self.cut: set[tuple[str, str]] = set()
        """(sender, receiver) of directions that hold everything."""
        self.clogged: dict[tuple[str, str], int] = {}

    def pair(self, one: str, other: str) -> tuple[str, str]:
        """How a link is named."""
        return (one, other) if one < other else (other, one)

    def connect(self, one: str, other: str) -> Connection:
        """Open a new link in place of whatever was between the two."""
        self._count += 1
        connection = Connection(self._count, {one, other}, {one: Direction(), other: Direction()})
        self.open[self.pair(one, other)] = connection
        return connection

    def may_connect(self, one: str, other: str) -> bool:
        """Do packets pass in both directions?"""
        return (one, other) not in self.cut and (other, one) not in self.cut

    def send(self, connection: Connection, sender: str, receiver: str, deliver: Deliver) -> None:
        """Have something happen at the receiver, behind everything sent before."""
        way = connection.ways[receiver]
        delay = int(self._rng.expovariate(1 / self.delay_us)) + 20 + self.clogged.get((sender, receiver), 0)
        way.queue.append((self._now() + delay, deliver))
        self._schedule(connection, sender, receiver)

    def mend(self, direction: tuple[str, str]) -> None:
        """Let a direction pass again."""
        self.cut.discard(direction)
        connection = self.open.get(self.pair(*direction))
        if connection is not None:
            self._schedule(connection, *direction)

    def _schedule(self, connection: Connection, sender: str, receiver: str) -> None:
        way = connection.ways[receiver]
        if way.queue and not way.is_scheduled and (sender, receiver) not in self.cut:
            way.is_scheduled = True
            at = max(way.queue[0][0], self._now())
            self._at(at, lambda: self._arrive(connection, sender, receiver))

    def _arrive(self, connection: Connection, sender: str, receiver: str) -> None:
        way = connection.ways[receiver]
        way.is_scheduled = False
        if (sender, receiver) in self.cut:
            return
        if way.queue and way.queue[0][0] <= self._now():
            way.queue.pop(0)[1]()
        self._schedule(connection, sender, receiver)
