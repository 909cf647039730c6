"""What happens in the cluster, as JSON messages in `mirrormq.events` (docs/events.md).

Guarantees
- An event is told by the node that tells of it anyway (`chronicle`), so it comes once, with an id of its own.
- Events of one node are in the order in which they happened there. `at` is when that was, even if the queue
  could take it only later: while the queue has no master, up to `events_waiting_max` of them wait here.
- Of what did not fit the number is told, in an event of its own.
- Building is done in slices: ten thousand queues that get another master at once never hold the loop.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mirrormq.base import limits
from mirrormq.meta import system
from mirrormq.node.eventexchange import plain
from mirrormq.node.systemqueues import SystemQueue

if TYPE_CHECKING:
    from mirrormq.node.node import Node

VERSION = 1
CONTENT_TYPE = "application/json"

Facts = Mapping[str, Any]
Source = Facts | Callable[[], Facts]
"""The facts of an event, or how to find them when it is its turn."""

_encode = msgspec.json.Encoder().encode


class EventQueue:
    """Events of this node on their way to the queue."""

    def __init__(self, node: "Node", most: int = limits.events_waiting_max) -> None:
        self._node = node
        self._most = most
        self._queue = SystemQueue(node, system.EVENTS, is_on=node.settings.events)
        self._waiting: deque[tuple[str, Source, int]] = deque()
        self.dropped = 0
        """Events that nobody will hear of."""
        self._told_dropped = 0

    @property
    def is_on(self) -> bool:
        """Are events wanted?"""
        return self._queue.is_on

    def add(self, key: str, facts: Source) -> None:
        """Something has happened now."""
        if not self._queue.is_on:
            return
        if len(self._waiting) >= self._most:
            self.dropped += 1
            return
        self._waiting.append((key, facts, self._node.now.wall))

    @property
    def needs_pass(self) -> bool:
        """Is there something to build that the queue would take?"""
        return bool(self._waiting) and self._queue.may_publish

    def tick(self) -> None:
        """Every second."""
        self._queue.tick()

    def step(self) -> None:
        """Build some of them."""
        if not self._waiting or not self._queue.may_publish:
            return
        for _ in range(min(len(self._waiting), limits.events_per_pass)):
            key, facts, wall = self._waiting.popleft()
            self._publish(key, facts() if callable(facts) else facts, wall)
        if self.dropped > self._told_dropped and not self._waiting:
            self._publish("events.dropped", {"count": self.dropped - self._told_dropped}, self._node.now.wall)
            self._told_dropped = self.dropped

    def _publish(self, key: str, facts: Facts, wall: int) -> None:
        told = {"v": VERSION, "event": key, "at": wall, "told_by": self._node.node_name}
        body = _encode({**told, **{name: plain(value) for name, value in facts.items()}})
        self._queue.publish(key, key, CONTENT_TYPE, body)
