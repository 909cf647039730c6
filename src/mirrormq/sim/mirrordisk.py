"""Logs of the mirror world on simulated disks: the shipped journal, recycler and recovery, shared by all
queues of a node as they are in a real one.

Guarantee: what a crash leaves is what the disk promises and no more; what a copy is taken to have after a
crash, and what a new master serves, was read from its files.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mirrormq.base.staggered import StaggeredDict
from mirrormq.base.types import Now
from mirrormq.kernel import records, replay
from mirrormq.log.copybase import Copying
from mirrormq.log.copylog import CopyLog
from mirrormq.log.copyread import Scan, Visit
from mirrormq.log.disk import ReadDone
from mirrormq.log.durable import DurableLog
from mirrormq.log.fold import Fold
from mirrormq.log.journal import Journal
from mirrormq.log.recent import RecentPool
from mirrormq.log.recovery import Owner, Recovery
from mirrormq.log.recycler import Recycler
from mirrormq.log.scan import Head
from mirrormq.log.segments import Segments
from mirrormq.mirror.diskcopy import DiskCopy
from mirrormq.mirror.ports import Data
from mirrormq.sim.disk import MemoryDisk
from mirrormq.sim.mirrorstream import (
    Batch,
    Key,
    Live,
    Record,
    State,
    encode,
    has_publish,
    key_of,
    keys_of,
    records_of,
)
from mirrormq.sim.model import Violation

if TYPE_CHECKING:
    from mirrormq.sim.mirrornode import MirrorNode

TIDY_EVERY = 8
"""Ticks between two looks at what is dead."""


class NodeDisk(MemoryDisk):
    """The disk of a node: flushes take as long as its node says, those of one file end in order."""

    def __init__(self, node: "MirrorNode", before: MemoryDisk | None = None) -> None:
        super().__init__(before._durable if before is not None else None)
        if before is not None:
            self._ops = {file: ops.copy() for file, ops in before._ops.items()}
        self._node = node
        self._busy_until: dict[str, int] = {}
        self.done: Callable[[int], None] = lambda _: None
        self.is_gone = False
        """The process that used it is."""

    def _owe(self, file: str, token: int) -> None:
        world = self._node.world
        at = world.now + 1 + world.rng.randrange(self._node.flush_us)
        at = self._busy_until[file] = max(at, self._busy_until.get(file, 0))
        world.at(at, partial(self._due, file, token))

    def _due(self, file: str, token: int) -> None:
        node = self._node
        if self.is_gone:
            return
        if not node.is_running:
            node.world.at(max(node.paused_until, node.world.now + 1), partial(self._due, file, token))
            return
        self._finish(file, token)
        self.done(token)
        node.world.soon(node)


class Effects:
    """The disk as the core writes to it."""

    def __init__(self, disk: NodeDisk) -> None:
        self.append = disk.append
        self.flush = disk.flush
        self.replace = disk.replace
        self.remove = disk.remove

    def read(self, file: str, offset: int, length: int, token: int) -> None:
        """Whoever reads has a reader."""
        raise NotImplementedError


class SimDiskCopy(DiskCopy):
    """A copy on disk that remembers its batches beside it, for whoever checks."""

    def __init__(self, store: "DiskStore", copy: CopyLog) -> None:
        super().__init__(copy, store.read, store.recycler, lambda: store.now)
        self.store = store
        self.batches: list[Batch] = []
        """Dense, from the first that was found at the start on."""
        self.floor: dict[int, Live] = {}
        """What lies before them, and was live at the start or came by a full copy."""
        self.recovered = 0
        """Found on the disk at the start, and not given up since."""

    # --- for the checker ---

    @property
    def own(self) -> DurableLog:
        """What the master writes to."""
        return self.copy.log

    @property
    def kept(self) -> int:
        """What a crash does not take."""
        return max(self.durable, self.recovered)

    @property
    def state(self) -> State:
        """What is committed, with its messages read from the files."""
        return self._read_state(self.copy.committed)

    def whole_state(self) -> State:
        """The state of the queue on its master, with its messages read from the files."""
        assert self.copy.is_master
        return self._read_state(self.copy.log)

    def has(self, key: Key, seq: int) -> bool:
        """Whether a publish is here, or was and is removed."""
        if self.batches and seq >= self.batches[0].first:
            return has_publish(self.batches, key, seq)
        live = self.floor.get(seq)
        return live is not None and live.key == key

    def load(self, kept: int) -> None:
        """Look at what a start has found; up to `kept` it survives a power failure, too."""
        low = self.copy.log.low
        for batch in self._all_batches():
            found = records_of(batch.data)
            if batch.first >= low and len(found) == batch.last - batch.first + 1:
                self.batches.append(batch)
                continue
            for seq, kind, flags, payload in found:
                if kind == records.PUBLISH and seq not in self.copy.committed.dead:
                    self.floor[seq] = Live(key_of(payload), flags, batch.epoch, payload)
        self.recovered = min(self.copy.end, kept) if self.is_complete else 0

    def _all_batches(self) -> list[Batch]:
        found: list[Batch] = []

        def visit(data: bytes, at: int, head: Head) -> bool:
            found.append(Batch(head[3], records.last_seq(data, at), head[2], data[at : at + head[0]]))
            return True

        self.store.scan(self.copy.log, self.copy.end, visit)
        return found

    def _read_state(self, fold: Fold) -> State:
        state = State()
        for batch in self._all_batches():
            for seq, kind, flags, payload in records_of(batch.data):
                if kind == records.PUBLISH and seq <= fold.end and seq not in fold.dead:
                    state.insert(seq, Live(key_of(payload), flags, batch.epoch, payload))
        wanted = fold.dead.missing_count(1, fold.end) if fold.end else 0
        if len(state.live) != wanted:
            raise Violation(f"I2: {wanted} messages are live and {len(state.live)} can be read")
        state.rows = {row ^ records.PID_OF_LETTERS: last for row, last in fold.letters.items()}
        state.horizon = fold.horizon
        state.dropped = keys_of([(row, spans.spans_list()) for row, spans in fold.refused.items()])
        return state

    # --- changes ---

    def write(self, *written: Record) -> int:
        """The master appends; returns the first seq."""
        log, now = self.copy.log, self.store.now
        first = log.end + 1
        batch = encode(log.queue_id, log.epoch, first, now.wall, written)
        rows, others, wants_flush = replay.facts(batch, 0)
        log.put_batch(batch, first, len(written), flush=wants_flush, now=now)
        log.published += len(written) - len(others)
        for row in rows:
            log.note_row(*row)
        for kind, flags, seq, payload in others:
            log.dead.add(seq, seq)
            log.apply(kind, flags, payload)
        return first

    def adopt(self, batch: Data, now: Now) -> None:
        """A batch of the master's."""
        super().adopt(batch, now)
        self._shadow(bytes(batch))

    def _appended(self, batch: bytes, first: int, count: int) -> None:
        self._shadow(batch)
        super()._appended(batch, first, count)

    def _shadow(self, data: bytes) -> None:
        head = records.read_head(data, 0)
        assert head is not None
        self.batches.append(Batch(head[3], head[3] + head[4] - 1, head[2], data))

    def truncate(self, seq: int, now: Now) -> None:
        """Give up what is above."""
        super().truncate(seq, now)
        self.batches = [batch for batch in self.batches if batch.last <= seq]
        self.recovered = min(self.recovered, seq)

    def load_base(self, base: Data, position: int, now: Now) -> None:
        """A full copy begins, or goes on."""
        if not position:
            self._forget()
        super().load_base(base, position, now)

    def adopt_live(self, batches: Data, position: int, now: Now) -> None:
        """Records of a full copy."""
        if self.copy.copying is not None and not self.copy.copying.is_finishing:
            at, data = 0, bytes(batches)
            while at < len(data):
                head = records.read_head(data, at + 16)
                assert head is not None
                for seq, kind, flags, payload in records_of(data[at + 16 : at + 16 + head[0]]):
                    if kind == records.PUBLISH:
                        self.floor[seq] = Live(key_of(payload), flags, head[2], payload)
                at += 16 + head[0]
        super().adopt_live(batches, position, now)

    def _finish(self, copying: Copying) -> None:
        self.store.node.world.stats.copies += 1
        super()._finish(copying)

    def reset(self, now: Now) -> None:
        """Give up everything."""
        self._forget()
        super().reset(now)

    def _forget(self) -> None:
        self.batches, self.floor, self.recovered = [], {}, 0

    def compact(self, upto: int) -> None:  # noqa: ARG002
        """Give back what is dead."""
        self.store.recycler.tick(self.store.now)

    def lose_pins(self) -> None:
        """Whatever full copies hold is given up."""
        for pin in list(self.copy.pins):
            pin.is_lost = True
            pin.release()


class DiskStore:
    """What one process of a node has on its disk."""

    def __init__(self, node: "MirrorNode", disk: NodeDisk, kept: dict[int, int]) -> None:
        """Recover the logs of these queues; `kept`: up to where they survive a power failure."""
        self.node = node
        self.disk = disk
        self._effects = Effects(disk)
        disk.done = self._done
        self._token = 0
        self._ticks = 0
        self.journal = Journal(self._effects, self._next_token)
        self._logs: StaggeredDict[int, DurableLog] = StaggeredDict(0)
        self._pool = RecentPool()
        self.recycler = Recycler(
            self._effects, self.read, self._next_token, journal=self.journal, logs=self._logs
        )
        self.recycler.damaged = self._damaged
        self.logs: dict[int, SimDiskCopy] = {}
        for queue in kept:
            self.open(queue)
        owners = {queue: Owner(f"queue {queue}", None, log) for queue, log in self._logs.items()}
        recovery = Recovery(disk, owners)
        found = recovery.run()
        self.journal.start(found.next_serial, found.serials, found.previous_end, self._logs.values())
        self.journal.ends.update(recovery.ends)
        self.recycler.orphans += recovery.orphans
        self.recycler.kept = recovery.kept
        for queue, owner in owners.items():
            if owner.damage is not None:
                self._damaged(queue, owner.damage)
            self.logs[queue].load(kept[queue])

    @property
    def now(self) -> Now:
        """The time."""
        return self.node.now

    def open(self, queue: int) -> SimDiskCopy:
        """The copy of a queue, empty if there is none."""
        found = self.logs.get(queue)
        if found is None:
            log = self._logs[queue] = self.node.world.durable_log_class(
                self.journal, Segments(self._effects, queue)
            )
            found = self.logs[queue] = self.node.world.disk_copy_class(self, CopyLog(log, self._pool))
        return found

    def read(self, file: str, offset: int, length: int, done: ReadDone) -> None:
        """Read, sooner or later."""
        self.journal.before_read(file)
        self.node.world.later(self.node, lambda: self._answer(file, offset, length, done))

    def _answer(self, file: str, offset: int, length: int, done: ReadDone) -> None:
        if self.disk.list(file):
            done(self.disk.read_part(file, offset, length), None)
        else:
            done(None, "No such file or directory")

    def scan(self, log: DurableLog, upto: int, visit: Visit) -> None:
        """Show every batch of a log, as its files are now."""
        errors: list[str | None] = []
        waiting: list[tuple[str, int, int, ReadDone]] = []

        def read(file: str, offset: int, length: int, done: ReadDone) -> None:
            self.journal.before_read(file)
            waiting.append((file, offset, length, done))

        Scan(log, read, (1, upto), visit).start(errors.append)
        while waiting:
            self._answer(*waiting.pop())
        if errors != [None]:
            raise Violation(f"a copy cannot be read: {errors}")

    def end_pass(self) -> None:
        """Hand over what was written; flushes begin."""
        self.journal.commit(self.now)
        self.recycler.step()

    def tick(self) -> None:
        """Time has passed."""
        self._ticks += 1
        if self._ticks % TIDY_EVERY == 0:
            self.recycler.tick(self.now)

    def crashed(self, rng: random.Random, *, lose_all: bool, lose_nothing: bool) -> "DiskStore":
        """What the next process finds."""

        def pick(most: int) -> int:
            if lose_all or most == 0:
                return 0
            return most if lose_nothing else rng.randint(0, most)

        self.disk.is_gone = True
        if not lose_all and not lose_nothing and rng.random() < 0.4:
            # Only the process is gone: what it has written can be read, and a power failure may take it.
            disk = NodeDisk(self.node, self.disk.restart())
            return DiskStore(self.node, disk, {queue: log.kept for queue, log in self.logs.items()})
        disk = NodeDisk(self.node, self.disk.crash(pick, lose_pages=not lose_all and not lose_nothing))
        return DiskStore(self.node, disk, dict.fromkeys(self.logs, 1 << 62))

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _done(self, token: int) -> None:
        assert self.journal.flushed(token, self.now) or self.recycler.done(token)

    def _damaged(self, queue: int, reason: str) -> None:
        raise Violation(f"queue {queue} of {self.node.name} is damaged: {reason}")
