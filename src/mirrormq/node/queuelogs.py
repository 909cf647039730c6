"""Which log a queue has, and when the records of one that is gone may go.

Guarantee: records are let go only when the metadata command that makes them useless cannot be lost any more;
otherwise a crash could bring the queue back without them.
"""

from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mirrormq.broker.readback import unreadable
from mirrormq.log.cursors import Cursor
from mirrormq.log.durable import DurableLog
from mirrormq.log.queuelog import MemoryLog, QueueLog
from mirrormq.log.segments import Segments
from mirrormq.meta import merges, records
from mirrormq.meta.commands import Command, DeclareQueue, Transaction
from mirrormq.meta.tables import Tables

if TYPE_CHECKING:
    from mirrormq.node.node import Node


class QueueLogs:
    """The logs of this node's queues."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._dropped: OrderedDict[int, int] = OrderedDict()
        """Logs whose records are still kept, and the index of the metadata command that made each useless."""

    def open(self, record: records.Queue) -> QueueLog:
        """The log of a queue mastered here."""
        log = self._open(record)
        if log.kept is not None:
            log.kept.cursors.on_lost = partial(self._cursor_lost, record)
        return log

    def _cursor_lost(self, record: records.Queue, cursor: Cursor) -> None:
        where = f"queue '{record.name}' in vhost '{record.vhost}'"
        text = f"cursor '{cursor.name}' of {where} is lost: {cursor.lost}; its reader has to begin anew"
        self._node.note("warning", text, event="cursor.lost")

    def _open(self, record: records.Queue) -> QueueLog:
        node = self._node
        view = node.meta.views.get(record.identity)
        if view is not None and view.log_id == record.log_id:  # else a branch of the queue
            assert node.copies is not None
            return node.copies.open_log(record)
        if not record.outlives_restart:
            return MemoryLog()
        return self.make(record)

    def make(self, record: records.Queue) -> DurableLog:
        """An empty log that keeps its records."""
        node = self._node
        log = node.logs[record.log_id] = DurableLog(node.journal, Segments(node.effects, record.log_id))
        log.is_volatile = not record.outlives_restart
        return log

    def forget(self, log_id: int) -> None:
        """Nobody needs these records any more."""
        if log_id in self._node.logs and log_id not in self._dropped:
            self._dropped[log_id] = self._node.membership.index

    def let_go(self) -> None:
        """Let go of the logs that are durably useless; their files go with the next checkpoint."""
        node = self._node
        while self._dropped:
            log_id, index = next(iter(self._dropped.items()))
            if index > node.membership.durable:
                return
            del self._dropped[log_id]
            if log_id in node.logs:
                node.recycler.orphans += node.logs.pop(log_id).segments.files()

    def damaged(self, log_id: int, reason: str) -> None:
        """Recycling met records that cannot be read."""
        node = self._node
        for queue in node.switch.masters.values():
            if log_id and queue.record.log_id == log_id:
                unreadable(queue, reason)
                return
        if node.copies is not None and node.copies.branches.damaged(log_id, reason):
            return
        if node.copies is None or not node.copies.damaged(log_id, reason):
            owner = next((one for one in node.meta.queues.values() if log_id and one.log_id == log_id), None)
            what = (
                "records of no queue" if owner is None else f"queue '{owner.name}' in vhost '{owner.vhost}'"
            )
            text = f"{what}: damage was found in its log: {reason}; check the disk of this node"
            node.note("error", text, event="queue.log_damaged")


def letter_sources(meta: Tables, own: Iterable[int]) -> set[int]:
    """Whoever may send a numbered letter again: the queues, copies that are being salvaged, and branches,
    of which the metadata may know nothing yet if they are this node's own.
    """
    found = set(own)
    found.update(queue.log_id for queue in meta.queues.values())
    found.update(parting.id for view in meta.views.values() for parting in view.partings)
    found.update(merges.sources(meta))
    return found


def with_log_ids(node: "Node", command: Command) -> Command:
    """Queues to be declared get a name for their records that no other queue has, lost ones included."""
    if isinstance(command, Transaction):
        inner = tuple(with_log_ids(node, part) for part in command.commands)
        return replace(command, commands=inner)
    if isinstance(command, DeclareQueue) and not command.queue.log_id:
        drawn = int.from_bytes(node.rng.token(8), "big") >> 1 | 1
        queue = replace(command.queue, log_id=drawn)
        members = node.copies.policy.members_at_birth(queue) if node.copies is not None else ()
        return replace(command, queue=queue, members=members)
    return command
