"""Committed rows of a sink on their way from its staging queue to the queues they are for.

Guarantees
- The blocks of one target leave in the order of their numbers, at most `limits.sink_window_bytes` of them at
  once; a target that cannot be reached, or does not take them, holds back nobody else's.
- A block counts as arrived when its target has it for good, or is deleted; until then it is kept in the log.
- At most `limits.sink_cache_bytes` of blocks are kept in memory; others are read back from the log.
"""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.broker.queueport import QueuePort, Rows
from mirrormq.kernel import forward, records
from mirrormq.log.copyread import Scan
from mirrormq.log.scan import Head
from mirrormq.log.sinkstate import Sending

if TYPE_CHECKING:
    from mirrormq.broker.staging import Staging


class Route:
    """The way to one target, as the target sees it: where rows come from."""

    __slots__ = ("_sender", "in_flight", "queue_id", "target", "waiting")

    def __init__(self, sender: "RowSender", source: int, target: int) -> None:
        self._sender = sender
        self.queue_id = source
        self.target = target
        self.waiting: deque[Sending] = deque()
        """Committed blocks that have not left."""
        self.in_flight: dict[int, tuple[Sending, int]] = {}
        """Those that have, by the number of their last row, and their bytes."""

    @property
    def in_flight_bytes(self) -> int:
        """Bytes under way."""
        return sum(size for _, size in self.in_flight.values())

    def arrived(self, number: int) -> None:
        """The target has the rows up to this number for good, or is gone."""
        found = self.in_flight.pop(number, None)
        if found is not None:
            self._sender.arrived(self, found[0])


class RowSender:
    """What one staging queue sends."""

    def __init__(self, staging: "Staging") -> None:
        self._staging = staging
        self._routes: dict[int, Route] = {}
        self._cache: dict[int, bytes] = {}
        """Blocks that were staged here and are probably wanted soon."""
        self._cache_bytes = 0
        self._is_reading = False
        self._arrived: list[tuple[Sending, bool]] = []
        """Blocks that are where they belong, and whether their target is gone."""
        self._resent: set[int] = set()
        """Blocks that an earlier master may have sent."""
        self._targets: tuple[int, dict[int, QueuePort]] = (-1, {})

    # --- blocks in memory ---

    def keep(self, seq: int, block: bytes) -> None:
        """A block was staged: keep it if there is room."""
        if self._cache_bytes + len(block) <= limits.sink_cache_bytes:
            self._cache[seq] = block
            self._cache_bytes += len(block)

    def forget(self, seq: int) -> None:
        """A block has left the log."""
        self._cache_bytes -= len(self._cache.pop(seq, b""))
        self._resent.discard(seq)

    def stop(self) -> None:
        """Another node is the master, or the queue is gone."""
        self._cache.clear()
        self._cache_bytes = 0

    @property
    def kept(self) -> int:
        """Blocks in memory."""
        return len(self._cache)

    # --- sending ---

    def release(self, seqs: Iterable[int], *, is_resent: bool = False) -> None:
        """The commit of these blocks is durable."""
        staging = self._staging
        for seq in seqs:
            block = staging.state.sending.get(seq)
            if block is not None:
                route = self._routes.get(block.target)
                if route is None:
                    route = self._routes[block.target] = Route(
                        self, staging.queue.record.log_id, block.target
                    )
                route.waiting.append(block)
                if is_resent:
                    self._resent.add(seq)
        staging.queue.core.touch()

    def arrived(self, route: Route, block: Sending) -> None:
        """A block is where it belongs, or its target is gone."""
        self._arrived.append((block, route.target not in self._known_targets()))
        self._staging.queue.core.touch()

    def _known_targets(self) -> dict[int, QueuePort]:
        """The queues of this vhost by log id."""
        vhost = self._staging.queue.vhost
        if self._targets[0] != vhost.version:
            self._targets = (vhost.version, {one.record.log_id: one for one in vhost.queues.values()})
        return self._targets[1]

    def take_arrived(self) -> list[tuple[Sending, bool]]:
        """Blocks that are where they belong since the last call, and whether their target is gone."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def send(self) -> None:
        """Send what targets have room for."""
        targets = self._known_targets()
        missing: list[int] = []
        loaded = sum(route.in_flight_bytes for route in self._routes.values())
        is_waiting = False
        for route in list(self._routes.values()):
            target = targets.get(route.target)
            if target is None:
                self._arrived += [(block, True) for block in route.waiting]
                route.waiting.clear()
            elif not target.is_available and route.waiting:
                is_waiting = True
                continue
            flying = route.in_flight_bytes
            while route.waiting and flying < limits.sink_window_bytes and loaded < limits.sink_cache_bytes:
                block = route.waiting[0]
                data = self._cache.get(block.seq)
                if data is None:
                    missing.append(block.seq)
                    break
                assert target is not None
                route.waiting.popleft()
                flying += len(data)
                loaded += len(data)
                route.in_flight[block.last] = (block, len(data))
                self._post(target, route, block, data)
            if not route.waiting and not route.in_flight:
                del self._routes[route.target]
        if missing:
            self._read(missing)
        if self._arrived:
            self._staging.queue.core.touch()
        if self._routes:
            self._staging.queue.used_at = self._staging.now.mono
        if is_waiting:
            self._staging.queue.wake_in(limits.sink_retry_us)

    def _post(self, target: QueuePort, route: Route, block: Sending, data: bytes) -> None:
        rows, is_resent = Rows(data, block.first, block.rows, block.op), block.seq in self._resent
        if target.is_local and not target.outlives:
            take_unnumbered(target, rows, is_resent=is_resent)
            route.arrived(block.last)
        else:
            target.receive(rows, route, block.last, is_resent=is_resent)

    def _read(self, missing: list[int]) -> None:
        """Blocks that lie on disk only: read the first of them, and others that lie near."""
        if self._is_reading:
            return
        self._is_reading = True
        first = min(missing)
        wanted = {block.seq for route in self._routes.values() for block in route.waiting}
        found: list[tuple[int, bytes]] = []
        size = 0

        def visit(data: bytes, at: int, head: Head) -> bool:
            nonlocal size
            if head[5]:
                blocks = records.staged_blocks(data, at, wanted)
                found.extend(blocks)
                size += sum(len(block) for _, block in blocks)
            return size < limits.sink_window_bytes

        def finished(error: str | None) -> None:
            self._is_reading = False
            if self._staging.queue.core.gone or self._staging.queue.staging is not self._staging:
                return
            if error is not None or not any(seq == first for seq, _ in found):
                self._staging.queue.fail(error or f"rows {first} of the sink are in no file")
                return
            for seq, block in found:
                if seq not in self._cache and seq in self._staging.state.sending:
                    self._cache[seq] = block
                    self._cache_bytes += len(block)
            self._staging.queue.core.touch()

        Scan(
            self._staging.log, self._staging.queue.host.read, (first, int(self._staging.log.end)), visit
        ).start(finished)


def take_unnumbered(target: QueuePort, rows: Rows, *, is_resent: bool) -> None:
    """Put rows into a queue that forgets everything at a restart anyway."""
    forward.take_publishes(target.core, rows.data, 0, rows.first, rows.records, rows.first - 1, 0, is_resent)
