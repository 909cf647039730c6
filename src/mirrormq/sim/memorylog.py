"""The log of a copy in memory, with a disk that forgets: an honest stand-in for the one on disk.

Guarantee: whatever was done before a flush began survives a crash once that flush is done; of what came later
any beginning may survive, and nothing else. Records are real batches, so that their bytes can be compared.
"""

import random
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from mirrormq.base.types import Now, Seq
from mirrormq.kernel import records
from mirrormq.kernel.cores import QueueCore
from mirrormq.log.fold import Dropped, encode_epoch
from mirrormq.mirror.ports import Data, EpochStart
from mirrormq.sim.mirrorstream import (
    PERSISTENT,
    Batch,
    Key,
    Live,
    Record,
    State,
    encode,
    has_publish,
    key_of,
    records_of,
)

if TYPE_CHECKING:
    from mirrormq.sim.mirrornode import MirrorNode

_U64 = struct.Struct("<Q")


class CopySnapshot:
    """A pinned state."""

    def __init__(self, log: "MemoryCopyLog") -> None:
        self._log = log
        self.position = log.folded
        self._state = log.state.clone()
        epochs = [one for one in log.epochs() if one[1] <= self.position]
        state = self._state
        self.base = msgspec.msgpack.encode(
            (
                self.position,
                epochs,
                list(state.rows.items()),
                state.horizon,
                sorted(state.dropped),
                sorted(state.live),
            )
        )
        self.is_lost = self.is_aged = False
        self.is_closed = False
        log.snapshots.append(self)

    def read(self, after: int, most: tuple[int, int], done: Callable[[list[bytes], int], None]) -> None:
        """Batches of one record each: what is sparse has to say where it belongs."""
        batches: list[bytes] = []
        size, reach = 0, self.position
        for seq in sorted(seq for seq in self._state.live if seq > after):
            live = self._state.live[seq]
            batch = encode(
                self._log.stream_id, live.epoch, seq, 1, [(records.PUBLISH, live.flags, live.payload)]
            )
            if batches and (size + len(batch) > most[0] or len(batches) == most[1]):
                reach = seq - 1
                break
            batches.append(batch)
            size += len(batch)
        self._log.defer(lambda: done(batches, reach))

    def close(self) -> None:
        """Hold nothing any more."""
        self.is_closed = True
        if self in self._log.snapshots:
            self._log.snapshots.remove(self)


class MemoryCopyLog:
    """One queue on one node; `crashed` gives what the disk has."""

    snapshot_class: type[CopySnapshot] = CopySnapshot

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.end = self.durable = self.folded = self.copied = self.base = 0
        self.low = 1
        self.damage: str | None = None
        self.state = State()
        """As of `folded`."""
        self.floor = State()
        """As of `low` - 1."""
        self.batches: list[Batch] = []
        self._epochs: list[EpochStart] = []
        self.write_epoch = 0
        self.on_batch: Callable[[Data, int, int], None] = _nobody
        self.on_flushed: Callable[[], None] = lambda: None
        self.on_copied: Callable[[], None] = lambda: None
        """A full copy has come to its end."""
        self.defer: Callable[[Callable[[], None]], None] = lambda do: do()
        """When reads are done."""
        self.held_from: Callable[[], int] = lambda: self.end + 1
        """F14: who is served from this log needs it from here on."""
        self.snapshots: list[CopySnapshot] = []
        self._saved = self._save()
        self._ops: list[tuple[object, ...]] = []
        """What was done since `_saved`, in the order it reaches the disk."""
        self._flushed_ops = 0
        self._flushes: list[list[int]] = []
        """Flushes under way: [operations, end, operations of a finished copy]."""
        self._finished_ops = 0
        """The operation that finished a full copy."""

    # --- records ---

    @property
    def backlog(self) -> tuple[int, int, int]:
        """What is not known to be everywhere."""
        return self.end - self.folded, 0, 0

    def hurt(self, reason: str) -> None:
        """Records of it cannot be read."""
        self.damage = reason

    @property
    def is_complete(self) -> bool:
        """Every live record is here, and flushed if it came by a full copy."""
        return not self.base and self._flushed_ops >= self._finished_ops

    def epoch_at(self, seq: int) -> int:
        """The epoch of a record."""
        at = bisect_right(self._epochs, seq, key=lambda one: one[1])
        return self._epochs[at - 1][0] if at else 0

    def epochs(self) -> Sequence[EpochStart]:
        """The epochs of the stream, in order."""
        return self._epochs

    def write(self, *written: Record) -> int:
        """The master appends; returns the first seq."""
        first = self.end + 1
        data = encode(self.stream_id, self.write_epoch, first, 1, written)
        self._append(data)
        self.on_batch(data, first, len(written))
        return first

    def begin_epoch(self, epoch: int, node: str, now: Now, *, drops_transient: bool) -> None:  # noqa: ARG002
        """Append EPOCH."""
        self.write_epoch = epoch
        lost = [(seq, live.key) for seq, live in sorted(self.whole_state().live.items())
                if drops_transient and not live.flags & PERSISTENT]  # fmt: skip
        seqs = [(seq, seq) for seq, _ in lost]
        numbers = [(pid | records.PID_OF_LETTERS, [(pseq, pseq)]) for _, (pid, pseq) in lost]
        self.write((records.EPOCH, *encode_epoch(node, Dropped(seqs, numbers))))

    def resign(self) -> None:
        """Whoever appends knows."""

    def adopt(self, batch: Data, now: Now) -> None:  # noqa: ARG002
        """Append a batch of the master's."""
        self._append(bytes(batch))

    def _append(self, data: bytes) -> None:
        self._do(("add", data))

    def truncate(self, seq: int, now: Now) -> None:  # noqa: ARG002
        """Give up everything above `seq`."""
        assert self.folded <= seq <= self.end, (self.folded, seq, self.end)
        self._do(("truncate", seq))
        self._cap(seq)

    def _cap(self, seq: int) -> None:
        """A flush under way says nothing about what takes the place of given-up records."""
        self.durable = min(self.durable, seq)
        for flush in self._flushes:
            flush[1] = min(flush[1], seq)

    def fold(self, seq: int) -> None:
        """Everything up to here is committed."""
        assert seq <= self.end, (seq, self.end)
        at = bisect_right(self.batches, self.folded, key=lambda batch: batch.last)
        while at < len(self.batches) and self.batches[at].last <= seq:
            self.state.apply(self.batches[at])
            self.folded = self.batches[at].last
            at += 1
        assert self.folded >= seq, "a mark inside a batch"

    def whole_state(self) -> State:
        """The state with everything that is in the log, committed or not."""
        state = self.state.clone()
        for batch in self.batches:
            if batch.first > self.folded:
                state.apply(batch)
        return state

    def read(self, start: int, max_bytes: int, done: Callable[[list[Data]], None]) -> None:
        """Whole batches from `start` on."""

        def answer() -> None:
            found: list[Data] = []
            size = 0
            for batch in self.batches if start >= self.low else ():
                if batch.first >= start and (not found or size + len(batch.data) <= max_bytes):
                    assert found or batch.first == start, "a position inside a batch"
                    found.append(batch.data)
                    size += len(batch.data)
                elif found:
                    break
            done(found)

        self.defer(answer)

    @property
    def own(self) -> "OwnLog":
        """What `MirroredLog` writes to."""
        return OwnLog(self, self.whole_state().horizon)

    @property
    def kept(self) -> int:
        """What a crash does not take."""
        return self.durable

    def has(self, key: Key, seq: int) -> bool:
        """Whether a publish is here, or was and is removed."""
        if seq < self.low:
            # Below the floor what is not live was removed by something committed.
            live = self.floor.live.get(seq)
            return live is not None and live.key == key
        return has_publish(self.batches, key, seq)

    def fill(self, core: QueueCore, done: Callable[[str | None], None], *, is_restarted: bool) -> None:
        """Nothing has to be read."""
        del core, is_restarted
        done(None)

    def lose_pins(self) -> None:
        """Whatever is held is given up."""
        for snapshot in self.snapshots:
            snapshot.is_lost = True

    def has_live_upto(self, seq: int) -> bool:
        """Whether any record up to here is live."""
        return any(one <= seq for one in self.state.live)

    def compact(self, upto: int) -> None:
        """Give up the records of a committed and flushed prefix that are not live any more."""
        upto = min(upto, self.folded, self.durable, self.held_from() - 1)
        while self.batches and self.batches[0].last <= upto and self.is_complete:
            batch = self.batches.pop(0)
            self.floor.apply(batch)
            self.low = batch.last + 1
        self._checkpoint()

    # --- full copies ---

    def snapshot(self) -> CopySnapshot:
        """Pin the folded state."""
        return self.snapshot_class(self)

    def load_base(self, base: Data, position: int, now: Now) -> None:  # noqa: ARG002
        """Become a sparse copy."""
        self._do(("base", bytes(base), position))
        self._cap(0)
        if not self.base:
            self._finished_ops = len(self._ops)

    def adopt_live(self, batches: Data, position: int, now: Now) -> None:  # noqa: ARG002
        """Take sparse records."""
        self._do(("live", bytes(batches), position))
        if not self.base:
            self.on_copied()
            self._finished_ops = len(self._ops)

    def reset(self, now: Now) -> None:  # noqa: ARG002
        """Give up everything."""
        base = msgspec.msgpack.encode((0, [], [], 0, [], []))
        self._do(("base", base, 0))
        self._cap(0)

    # --- the disk ---

    def begin_flush(self) -> bool:
        """Begin a flush, if there is anything to flush."""
        if self._flushes or self._flushed_ops == len(self._ops):
            return False
        self._flushes.append([len(self._ops), self.end])
        return True

    def finish_flush(self) -> None:
        """The oldest flush is done."""
        if self._flushes:
            ops, end = self._flushes.pop(0)
            self._flushed_ops = max(self._flushed_ops, ops)
            self.durable = max(self.durable, end)
            self.on_flushed()

    def crashed(self, keep: Callable[[int], int]) -> "MemoryCopyLog":
        """The log as the next process finds it; `keep(n)`: how many of n unflushed operations survive."""
        other = type(self)(self.stream_id)
        other._load(self._saved)
        last = self._flushed_ops + keep(len(self._ops) - self._flushed_ops)
        for op in self._ops[:last]:
            other._apply(op)
        other.on_copied = self.on_copied
        other._saved = self._saved
        other._ops = list(self._ops[:last])
        other._flushed_ops = last
        other._finished_ops = 0
        other.durable = other.end
        return other

    def _do(self, op: tuple[object, ...]) -> None:
        self._ops.append(op)
        self._apply(op)

    def _apply(self, op: tuple[object, ...]) -> None:
        match op:
            case ("add", bytes(data)):
                head = records.read_head(data, 0)
                assert head is not None
                _, queue, epoch, first, count = head[:5]
                assert queue == self.stream_id
                assert first == self.end + 1, (first, self.end)
                self.batches.append(Batch(first, first + count - 1, epoch, data))
                if not self._epochs or self._epochs[-1][0] != epoch:
                    assert not self._epochs or self._epochs[-1][0] < epoch, "epochs only grow"
                    self._epochs.append((epoch, first))
                self.end = first + count - 1
            case ("truncate", int(seq)):
                assert all(batch.last <= seq or batch.first > seq for batch in self.batches), "inside a batch"
                self.batches = [batch for batch in self.batches if batch.last <= seq]
                self._epochs = [one for one in self._epochs if one[1] <= seq]
                self.end = seq
            case ("base", bytes(base), int(position)):
                self._apply_base(base, position)
            case ("live", bytes(data), int(position)):
                self._apply_live(data, position)

    def _apply_base(self, base: bytes, position: int) -> None:
        end, epochs, rows, horizon, dropped, alive = msgspec.msgpack.decode(base)
        old = self.floor.live
        state = State()
        for seq in alive:
            if seq <= position and seq in old:
                state.insert(seq, old[seq])
        state.rows = dict(rows)
        state.horizon = horizon
        state.dropped = {(pid, pseq) for pid, pseq in dropped}
        self.batches = []
        self._epochs = [(epoch, first) for epoch, first in epochs]
        self.end = self.folded = end
        self.low = end + 1
        self.copied, self.base = position, end
        if position == end:
            self.copied = self.base = 0
        self.floor, self.state = state, state.clone()

    def _apply_live(self, data: bytes, position: int) -> None:
        at = 0
        while at < len(data):
            head = records.read_head(data, at)
            assert head is not None
            for seq, _, flags, payload in records_of(data[at : at + head[0]]):
                live = Live(key_of(payload), flags, head[2], payload)
                self.floor.insert(seq, live)
                # Nothing behind K0 is folded before the copy is complete, but in manual mode.
                self.state.insert(seq, live)
            at += head[0]
        self.copied = position
        if position >= self.base:
            self.copied = self.base = 0

    def _save(self) -> tuple[object, ...]:
        return (self.floor.clone(), list(self._epochs), self.low)

    def _load(self, saved: tuple[object, ...]) -> None:
        floor, epochs, low = saved
        assert isinstance(floor, State)
        assert isinstance(epochs, list)
        assert isinstance(low, int)
        self.floor, self.state, self.low = floor.clone(), floor.clone(), low
        self._epochs = [one for one in epochs if one[1] < low]
        self.end = self.folded = low - 1

    def _checkpoint(self) -> None:
        """Everything that is needed from before is on the disk by now, in another form."""
        if not self.is_complete or self._flushes:
            return
        self._saved = self._save()
        flushed = [batch for batch in self.batches if batch.last <= self.durable]
        self._ops = [("add", batch.data) for batch in self.batches]
        self._flushed_ops = len(flushed)
        self._finished_ops = 0


class OwnLog:
    """What `MirroredLog` writes to; this queue writes its publishes and removals itself."""

    def __init__(self, log: "MemoryCopyLog", horizon: int) -> None:
        self.log = log
        self.horizon = horizon
        self.last_wall = 0
        self.on_progress: Callable[[], None] = lambda: None
        self.deliverable = 0

    @property
    def end(self) -> Seq:
        """Seq of the last record."""
        return Seq(self.log.end)

    @property
    def durable(self) -> Seq:
        """Flushed here."""
        return Seq(self.log.durable)

    def append(self, core: QueueCore, count: int, now: Now) -> Seq:
        """Not this way."""
        raise NotImplementedError

    def settle(self, core: QueueCore, now: Now) -> None:
        """Not this way."""
        raise NotImplementedError

    def purge(self, held: Sequence[int], now: Now) -> None:
        """Not this way."""
        raise NotImplementedError

    def requeue(self, counts: Sequence[tuple[int, int]], now: Now) -> None:
        """Not this way."""
        raise NotImplementedError

    def reach(self, seq: int, ahead: int, now: Now) -> None:  # noqa: ARG002
        """Write a horizon."""
        if self.horizon < seq:
            self.horizon = seq + ahead
            self.log.write((records.HORIZON, 0, _U64.pack(self.horizon)))


class MemoryStore:
    """What one process of a node has in logs of this kind."""

    def __init__(self, node: "MirrorNode", logs: dict[int, MemoryCopyLog] | None = None) -> None:
        self.node = node
        self.logs = logs or {}

    def open(self, queue: int) -> MemoryCopyLog:
        """The copy of a queue, empty if there is none."""
        log = self.logs.get(queue)
        if log is None:
            log = self.logs[queue] = self.node.world.copy_log_class(queue)
            log.on_copied = self._copied
        log.defer = self.node.world.deferrer(self.node)
        return log

    def _copied(self) -> None:
        self.node.world.stats.copies += 1

    def end_pass(self) -> None:
        """Flushes begin."""
        for log in self.logs.values():
            if log.begin_flush():
                self.node.world.flush(self.node, log)

    def tick(self) -> None:
        """Time has passed."""

    def crashed(self, rng: random.Random, *, lose_all: bool, lose_nothing: bool) -> "MemoryStore":
        """What the next process finds."""

        def keep(most: int) -> int:
            if lose_all or most == 0:
                return 0
            return most if lose_nothing or rng.random() < 0.3 else rng.randint(0, most)

        return MemoryStore(self.node, {queue: log.crashed(keep) for queue, log in self.logs.items()})


def _nobody(batch: Data, first: int, count: int) -> None:
    """Nobody is told of appended batches yet."""
