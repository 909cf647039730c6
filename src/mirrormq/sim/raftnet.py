"""Links between simulated nodes, as `peer` makes them: two lanes per direction, each in order but not against
the other, nothing lost while open, nothing that says why one ended.

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
class Lane:
    """One lane of a direction."""

    queue: list[tuple[int, Deliver]] = field(default_factory=list)
    """(earliest arrival, what happens then), in order."""
    is_scheduled: bool = False


@dataclass
class Direction:
    """One way of a connection; the last thing that arrives is its end."""

    control: Lane = field(default_factory=Lane)
    bulk: Lane = field(default_factory=Lane)
    end: Lane = field(default_factory=Lane)

    @property
    def is_busy(self) -> bool:
        """Is anything on its way?"""
        return bool(self.control.queue or self.bulk.queue or self.end.queue)

    def clear(self) -> None:
        """Lose what is on its way."""
        for lane in (self.control, self.bulk, self.end):
            lane.queue.clear()


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
        self.bulk_delay_us = rng.choice([100, 5_000, 200_000])
        """Added for what travels as bulk, which waits for its window and its turn."""
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

    def send(
        self, connection: Connection, way: tuple[str, str], deliver: Deliver, *, is_bulk: bool = False
    ) -> None:
        """Have something happen at the receiver, behind everything sent before on the same lane."""
        direction = connection.ways[way[1]]
        lane = direction.bulk if is_bulk else direction.control
        self._put(connection, way, lane, deliver)

    def end(self, connection: Connection, way: tuple[str, str], deliver: Deliver) -> None:
        """Have something happen at the receiver, behind everything."""
        self._put(connection, way, connection.ways[way[1]].end, deliver)

    def mend(self, way: tuple[str, str]) -> None:
        """Let a direction pass again."""
        self.cut.discard(way)
        connection = self.open.get(self.pair(*way))
        if connection is not None:
            self._schedule(connection, way)

    def _put(self, connection: Connection, way: tuple[str, str], lane: Lane, deliver: Deliver) -> None:
        mean = self.delay_us
        if lane is connection.ways[way[1]].bulk:
            mean += self.bulk_delay_us
        delay = int(self._rng.expovariate(1 / mean)) + 20 + self.clogged.get(way, 0)
        lane.queue.append((self._now() + delay, deliver))
        self._schedule(connection, way)

    def _schedule(self, connection: Connection, way: tuple[str, str]) -> None:
        if way in self.cut:
            return
        direction = connection.ways[way[1]]
        for lane in (direction.control, direction.bulk):
            self._schedule_lane(connection, way, lane)
        if not direction.control.queue and not direction.bulk.queue:
            self._schedule_lane(connection, way, direction.end)

    def _schedule_lane(self, connection: Connection, way: tuple[str, str], lane: Lane) -> None:
        if lane.queue and not lane.is_scheduled:
            lane.is_scheduled = True
            at = max(lane.queue[0][0], self._now())
            self._at(at, lambda: self._arrive(connection, way, lane))

    def _arrive(self, connection: Connection, way: tuple[str, str], lane: Lane) -> None:
        lane.is_scheduled = False
        if way in self.cut:
            return
        direction = connection.ways[way[1]]
        is_early = lane is direction.end and bool(direction.control.queue or direction.bulk.queue)
        if lane.queue and lane.queue[0][0] <= self._now() and not is_early:
            lane.queue.pop(0)[1]()
        self._schedule(connection, way)
