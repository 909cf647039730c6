"""Holds confirms, and whoever else waits, until what they are about is durable.

Guarantee: nobody is told of a publish before the logs of all queues it went to are durable up to its end,
and neither before a queue that was declared a moment ago is itself durable.
"""

from collections.abc import Callable
from typing import Protocol

from mirrormq.broker.channel import Channel
from mirrormq.broker.confirm import Barrier, Position
from mirrormq.broker.connection import Connection
from mirrormq.kernel.cores import QueueCore
from mirrormq.node.membership import Membership


class ConfirmPort(Protocol):
    """The node, as confirms see it."""

    channels: dict[int, Channel]
    membership: Membership


class Confirms:
    """All confirms of this node's channels that are not out yet."""

    def __init__(self, node: ConfirmPort) -> None:
        self._node = node
        self._confirming: dict[int, Channel] = {}
        """Channels with barriers that are not released yet."""
        self._barriers: list[tuple[Barrier, Callable[[bool], None]]] = []

    def take(self, heard: list[Connection], mono: int) -> None:
        """Take in what was published in this pass, and release what is durable."""
        for connection in heard:
            for core in connection.reader.take_confirming():
                channel = self._node.channels.get(core.uid)
                if channel is not None:
                    publish_no, queues = core.take_barrier()
                    unconfirmed = channel.confirm.unconfirmed
                    pace = max((queue.owner.pace_us(unconfirmed) for queue in queues), default=0)
                    not_before = mono + pace if pace else 0
                    channel.confirm.barrier(publish_no, self._positions(queues), not_before)
                    self._confirming[core.uid] = channel
        for uid, channel in list(self._confirming.items()):
            channel.confirm.advance(mono)
            if not channel.confirm.waiting:
                del self._confirming[uid]
        if self._barriers:
            self._release()

    def after(self, queues: list[QueueCore], done: Callable[[bool], None]) -> None:
        """Call `done` at the end of the pass in which all that was published to these queues is durable, or
        with False if that will never be known of some of it.
        """
        self._barriers.append((Barrier(0, self._positions(queues)), done))

    def times(self) -> list[int]:
        """When `take` would release more without anything else happening."""
        return [channel.confirm.not_before for channel in self._confirming.values()]

    def _release(self) -> None:
        barriers, self._barriers = self._barriers, []
        for barrier, done in barriers:
            if barrier.is_released():
                done(not barrier.is_missing)
            else:
                self._barriers.append((barrier, done))

    def _positions(self, queues: list[QueueCore]) -> list[Position]:
        """Where the logs of these queues end now; a deleted queue holds nobody up."""
        membership = self._node.membership
        positions: list[Position] = []
        for core in dict.fromkeys(queues):
            positions += core.owner.positions
            if not core.gone and core.owner.declared_index > membership.durable:
                positions.append((membership, core.owner.declared_index))
        return positions
