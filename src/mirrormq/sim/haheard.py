"""What each node knew of the queues of the world, and when: it routes by that, whatever others know by then.

Guarantee: for every moment in the life of a process it can be told under which id it knew a queue.
"""

from bisect import bisect_right

from mirrormq.meta.records import Queue
from mirrormq.meta.tables import Change
from mirrormq.node.partition import AUTOHEAL, IGNORE, PAUSE_IF_ALL_DOWN
from mirrormq.sim.clusternode import SimNode

SPOOLING = (IGNORE, PAUSE_IF_ALL_DOWN, AUTOHEAL)
"""Modes in which a node takes publishes for as long as it is cut off."""
NOBODY_KNOWS = 0
"""Instead of an id: the queue was not there."""


class Heard:
    """Queues as processes have heard of them."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, str], list[tuple[int, int]]] = {}
        """By node, life and queue: since when it knew it under which id."""

    def begin(self, node: SimNode, now: int) -> None:
        """A process has started, with what its disk said."""
        assert node.node is not None
        for record in node.node.meta.queues.values():
            self._note(node, record.name, record.id, now)

    def hear(self, node: SimNode, change: Change, now: int) -> None:
        """A process has heard of a queue, or that it is gone."""
        record = change.record
        if isinstance(record, Queue):
            self._note(node, record.name, record.id if change.kind == "put" else NOBODY_KNOWS, now)

    def _note(self, node: SimNode, queue: str, number: int, now: int) -> None:
        rows = self._known.setdefault((node.name, node.life, queue), [])
        if not rows or rows[-1][1] != number:
            rows.append((now, number))

    def at(self, node: SimNode, queue: str, when: int) -> int:
        """The id under which a process knew a queue at a time."""
        return self.since(node, queue, when)[0]

    def since(self, node: SimNode, queue: str, when: int) -> list[int]:
        """The ids under which it knew it at that time and later."""
        rows = self._known.get((node.name, node.life, queue), [])
        place = bisect_right(rows, when, key=lambda row: row[0])
        first = rows[place - 1][1] if place else NOBODY_KNOWS
        return [first, *(number for _, number in rows[place:])]
