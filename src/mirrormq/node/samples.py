"""How this node and the queues mastered on it fare, second by second, in `mirrormq.samples` (docs/events.md).

Guarantees
- A round looks at every queue mastered here once, in slices, and tells of those whose counters or depths have
  changed since the last round. What it counts is counted since then, so nothing is counted twice when a queue
  moves to another master or a process starts again, and at most one period is missing.
- A round is one message, or several if many queues have changed; the last one has the node's own row. While
  nothing has changed there is one in `samples_idle_us`, so that a silent node can be told from an idle one.
- Nothing is built and nothing is published if samples are off or the queue cannot take them; what was counted
  meanwhile comes with the next round.

A body is MessagePack: a head, and one array per column. Columns may be added; readers go by their names.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from mirrormq.base import limits
from mirrormq.base.walk import KeyWalk, let_go
from mirrormq.broker.queue import Queue
from mirrormq.meta import system
from mirrormq.node.eventexchange import plain
from mirrormq.node.systemqueues import SystemQueue

if TYPE_CHECKING:
    from mirrormq.node.node import Node

VERSION = 1
CONTENT_TYPE = "application/msgpack"

COLUMNS = (
    "vhost",
    "queue",
    "id",
    "epoch",
    "in_sync",
    "end",
    "received",
    "durable",
    "publishes",
    "deliveries",
    "redeliveries",
    "acks",
    "ready",
    "unacked",
    "bytes",
    "consumers",
    "confirm",
    "replication",
    "cursors",
)
"""`confirm` and `replication` are histograms as flat lists (bucket, batches, ...), `cursors` has (name, lag).
"""

_encode = msgspec.msgpack.Encoder().encode


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What is compared from round to round; nothing that Python's collector has to look at."""

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    ready: int = 0
    unacked: int = 0
    consumers: int = 0
    end: int = 0


_NEW = Seen()


class Round:
    """One look at all queues."""

    def __init__(self, queues: Iterator[Queue | None], since: int, mono: int) -> None:
        self.left = queues
        self.since = since
        self.mono = mono
        """When the round before began: a queue that had no turn since is as it was."""
        self.seen: dict[int, Seen] = {}
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.parts = self.ready = self.unacked = self.consumers = 0


class Samples:
    """The samples of this node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._queue = SystemQueue(node, system.SAMPLES, is_on=node.settings.samples)
        self._round: Round | None = None
        self._number = 0
        self._walk = KeyWalk(node.switch.masters)
        self._seen: dict[int, Seen] = {}
        self._past: dict[int, Seen] = {}
        """What was seen before that, of which a few are let go of in each pass."""
        self._told: tuple[Any, ...] = ()
        """What the last row of this node said, apart from what changes all the time."""
        self._begun_at = self._told_at = node.now.mono
        self._since = node.now.wall
        self._flushes = self._written = 0

    @property
    def needs_pass(self) -> bool:
        """Is a round under way?"""
        return self._round is not None or bool(self._past)

    def tick(self) -> None:
        """Every second: begin a round."""
        self._queue.tick()
        node = self._node
        mono = node.now.mono
        # A timer may come a moment early, and still mean this second.
        is_due = mono - self._begun_at >= limits.samples_period_us * 9 // 10
        if is_due and self._queue.is_on and self._round is None and self._queue.may_publish:
            self._number += 1
            self._round = Round(self._queues(), self._since, self._begun_at)
            self._begun_at = mono

    def step(self) -> None:
        """Look at some queues."""
        current = self._round
        if current is None:
            let_go(self._past, limits.samples_slice_queues)
            return
        rows = 0
        for _ in range(limits.samples_slice_queues):
            try:
                queue = next(current.left)
            except StopIteration:
                self._round = None
                self._end(current)
                return
            if queue is not None and not system.is_system(queue.record.vhost, queue.record.name):
                rows += self._look(current, queue)
            if rows == limits.samples_slice_rows:
                break
        if len(current.columns["queue"]) > limits.samples_rows_max - limits.samples_slice_rows:
            self._publish(current, None)

    # --- queues ---------------------------------------------------------------------------------

    def _queues(self) -> Iterator[Queue | None]:
        masters = self._node.switch.masters
        return (None if number is None else masters[number] for number in self._walk.each())

    def _look(self, current: Round, queue: Queue) -> bool:
        """Look at a queue; has it changed?"""
        number = queue.record.id
        if number in current.seen:
            return False  # it went and came again: a walk may give it out twice
        before = self._seen.get(number, _NEW)
        is_same = queue.pace.turned_at < current.mono and before is not _NEW
        now = before if is_same else _seen(queue)
        current.seen[number] = now
        current.ready += now.ready
        current.unacked += now.unacked
        current.consumers += now.consumers
        if is_same or now == before:
            return False
        self._add(current.columns, queue, before, now)
        return True

    def _add(self, columns: dict[str, list[Any]], queue: Queue, before: Seen, now: Seen) -> None:
        node, record, kept = self._node, queue.record, queue.log.kept
        view = node.meta.views.get(record.identity)
        copy = None if node.copies is None else node.copies.mirrors.copies.get(record.id)
        master = None if copy is None else copy.master
        confirm, mirroring = ({}, {}) if kept is None else kept.latencies.take()
        row = (
            plain(record.vhost),
            plain(record.name),
            f"{record.log_id:016x}",
            1 if view is None else view.epoch,
            1 if view is None else len(view.members),
            now.end,
            now.end if master is None else master.received,
            int(queue.log.durable),
            max(0, now.published - before.published),
            max(0, now.delivered - before.delivered),
            max(0, now.redelivered - before.redelivered),
            max(0, now.acked - before.acked),
            now.ready,
            now.unacked,
            queue.core.ready_bytes + queue.core.unacked_bytes,
            now.consumers,
            [number for pair in sorted(confirm.items()) for number in pair],
            [number for pair in sorted(mirroring.items()) for number in pair],
            [] if kept is None or not len(kept.cursors) else _cursors(queue),
        )
        for name, value in zip(COLUMNS, row, strict=True):
            columns[name].append(value)

    # --- messages -------------------------------------------------------------------------------

    def _end(self, current: Round) -> None:
        node = self._node
        self._seen, self._past = current.seen, self._seen
        row = self._row(current)
        steady = tuple(row[name] for name in ("connections", "channels", "consumers", "queues", "alarms"))
        is_new = bool(current.columns["queue"]) or current.parts > 0 or steady != self._told
        if is_new or node.now.mono - self._told_at >= limits.samples_idle_us:
            self._told, self._told_at = steady, node.now.mono
            self._publish(current, row)
            self._since = node.now.wall

    def _row(self, current: Round) -> dict[str, Any]:
        node = self._node
        flushes, written = node.journal.flush_count, node.journal.added_bytes
        row = {
            "connections": node.census.connections,
            "channels": sum(node.census.channels.values()),
            "consumers": current.consumers,
            "queues": len(current.seen),
            "ready": current.ready,
            "unacked": current.unacked,
            "memory": node.memory_used,
            "disk_free": node.disk_free,
            "alarms": sorted(node.alarms),
            "is_leader": node.membership.raft.is_leader,
            "flushes": flushes - self._flushes,
            "written": written - self._written,
        }
        self._flushes, self._written = flushes, written
        return row

    def _publish(self, current: Round, row: dict[str, Any] | None) -> None:
        node = self._node
        columns, current.columns = current.columns, {name: [] for name in COLUMNS}
        current.parts += 1
        body = {
            "v": VERSION,
            "node": node.node_name,
            "start": node.membership.identity.start,
            "round": self._number,
            "part": current.parts,
            "since": current.since,
            "at": node.now.wall,
            "of_node": row,
            "queues": columns if columns["queue"] else {},
        }
        self._queue.publish(node.node_name, "sample", CONTENT_TYPE, _encode(body))


def _seen(queue: Queue) -> Seen:
    core = queue.core
    delivered = core.delivered + core.delivered_no_ack + core.got
    depths = core.ready, core.unacked, len(queue.consumers)
    return Seen(core.published, delivered, core.redelivered, core.acked, *depths, queue.log.end)


def _cursors(queue: Queue) -> list[list[Any]]:
    kept = queue.log.kept
    assert kept is not None
    found = islice(kept.cursors.cursors(), limits.samples_cursors_max)
    return [[cursor.name, max(0, int(queue.log.durable) + 1 - cursor.seq)] for cursor in found]
