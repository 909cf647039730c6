"""The log of a copy in memory, with a disk that forgets: an honest stand-in for the one on disk.

Guarantee: whatever was done before a flush began survives a crash once that flush is done; of what came later
any beginning may survive, and nothing else. Records are real batches, so that their bytes can be compared.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import msgspec

from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.mirror.ports import Data, EpochStart

PERSISTENT, RESENT = 1, 2
DROPS = 1
"""Flag of EPOCH: transient messages are gone."""

_HEAD = struct.Struct("<QQQQIIHBB")
_RECORD = struct.Struct("<IIBBH")
_U64 = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")

Key = tuple[int, int]
"""(pid, pseq) of a publish."""
Record = tuple[int, int, bytes]
"""(kind, flags, payload)."""


class Live(NamedTuple):
    """A message in a queue."""

    key: Key
    flags: int
    epoch: int
    payload: bytes


class Batch(NamedTuple):
    """A batch in the log."""

    first: int
    last: int
    epoch: int
    data: bytes


def publish(key: Key, flags: int, body: bytes = b"") -> Record:
    """A PUBLISH record."""
    return records.PUBLISH, flags, _HEAD.pack(1, 0, *key, 0, 0, 2, 0, 0) + b"\0\0" + body


def key_of(payload: bytes) -> Key:
    """Whose publish it is."""
    _, _, pid, pseq = struct.unpack_from("<QQQQ", payload)
    return pid, pseq


def removal(seqs: Sequence[int]) -> Record:
    """A REMOVE record."""
    return records.REMOVE, 0, _U64.pack(0) + b"".join(struct.pack("<QQQ", seq, seq, 1) for seq in seqs)


def note(pid: int, pseq: int) -> Record:
    """A PUBNOTE record: nothing up to this number comes any more."""
    return records.PUBNOTE, 0, _PAIR.pack(pid, pseq)


def removed_by(payload: bytes) -> list[int]:
    """The seqs of a REMOVE record."""
    return [first for first, _, _ in struct.iter_unpack("<QQQ", payload[8:])]


def records_of(data: Data) -> list[tuple[int, int, int, bytes]]:
    """(seq, kind, flags, payload) of every record of a batch."""
    head = records.read_head(data, 0)
    assert head is not None
    at, out = records.HEAD_BYTES, []
    for _ in range(head[4]):
        size, offset, kind, flags, _ = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        out.append((head[3] + offset, kind, flags, bytes(data[at : at + size])))
        at += size
    return out


class State:
    """Fold of a record stream."""

    def __init__(self) -> None:
        self.live: dict[int, Live] = {}
        self.keys: dict[Key, int] = {}
        self.rows: dict[int, int] = {}
        """The highest publish number, by pid."""
        self.horizon = 0
        self.dropped: set[Key] = set()

    def clone(self) -> Self:
        """The same state, changed no more with this one."""
        other = type(self)()
        other.live, other.keys = dict(self.live), dict(self.keys)
        other.rows, other.horizon, other.dropped = dict(self.rows), self.horizon, set(self.dropped)
        return other

    def insert(self, seq: int, live: Live) -> None:
        """A message is here."""
        self.live[seq] = live
        self.keys[live.key] = seq

    def remove(self, seq: int) -> Live | None:
        """A message is gone."""
        live = self.live.pop(seq, None)
        if live is not None:
            self.keys.pop(live.key, None)
        return live

    def apply(self, batch: Batch) -> None:
        """The next batch of the stream."""
        for seq, kind, flags, payload in records_of(batch.data):
            if kind == records.PUBLISH:
                live = Live(key_of(payload), flags, batch.epoch, payload)
                self.insert(seq, live)
                self.rows[live.key[0]] = max(live.key[1], self.rows.get(live.key[0], 0))
            elif kind == records.REMOVE:
                for gone in removed_by(payload):
                    self.remove(gone)
            elif kind == records.HORIZON:
                self.horizon = max(self.horizon, _U64.unpack(payload)[0])
            elif kind == records.PUBNOTE:
                pid, pseq = _PAIR.unpack(payload)
                self.rows[pid] = max(pseq, self.rows.get(pid, 0))
            elif kind == records.EPOCH and flags & DROPS:
                # The record names them: a copy without old records could not tell which they were.
                for seq, pid, pseq in struct.iter_unpack("<QQQ", payload):
                    self.remove(seq)
                    self.dropped.add((pid, pseq))

    def facts(self) -> tuple[object, ...]:
        """What must be the same on every in-sync member."""
        return sorted(self.live.items()), sorted(self.rows.items()), self.horizon, sorted(self.dropped)


class CopySnapshot:
    """A pinned state."""

    def __init__(self, log: "MemoryCopyLog") -> None:
        self._log = log
        self.position = log.folded
        self._state = log.state.clone()
        epochs = [one for one in log.epochs() if one[1] <= self.position]
        state = self._state
        self.base = msgspec.msgpack.encode(
            (self.position, epochs, list(state.rows.items()), state.horizon, sorted(state.dropped))
        )
        self.is_lost = False
        self.is_closed = False
        log.snapshots.append(self)

    def read(self, after: int, max_bytes: int, done: Callable[[list[bytes], int], None]) -> None:
        """Batches of one record each: what is sparse has to say where it belongs."""
        batches: list[bytes] = []
        size, reach = 0, self.position
        for seq in sorted(seq for seq in self._state.live if seq > after):
            live = self._state.live[seq]
            batch = records.encode_batch(
                self._log.stream_id, live.epoch, seq, 1, [(records.PUBLISH, live.flags, live.payload)]
            )
            if batches and size + len(batch) > max_bytes:
                reach = seq - 1
                break
            batches.append(batch)
            size += len(batch)
        self._log.defer(lambda: done(batches, reach))

    def kept(self, upto: int) -> bytes:
        """Live seqs up to here, as ranges of one."""
        return b"".join(_PAIR.pack(seq, seq) for seq in sorted(self._state.live) if seq <= upto)

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
        data = records.encode_batch(self.stream_id, self.write_epoch, first, 1, list(written))
        self._append(data)
        self.on_batch(data, first, len(written))
        return first

    def begin_epoch(self, epoch: int, node: str, now: Now, *, drops_transient: bool) -> None:  # noqa: ARG002
        """Append EPOCH."""
        self.write_epoch = epoch
        if drops_transient:
            lost = [(seq, *live.key) for seq, live in sorted(self.whole_state().live.items())
                    if not live.flags & PERSISTENT]  # fmt: skip
            self.write((records.EPOCH, DROPS, b"".join(struct.pack("<QQQ", *one) for one in lost)))
        else:
            self.write((records.EPOCH, 0, node.encode()))

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

    def load_base(self, base: Data, position: int, kept: Data, now: Now) -> None:  # noqa: ARG002
        """Become a sparse copy."""
        self._do(("base", bytes(base), position, bytes(kept)))
        self._cap(0)
        if not self.base:
            self._finished_ops = len(self._ops)

    def adopt_live(self, batches: Data, position: int, now: Now) -> None:  # noqa: ARG002
        """Take sparse records."""
        self._do(("live", bytes(batches), position))
        if not self.base:
            self.on_copied()
            self._finished_ops = len(self._ops)

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
            case ("base", bytes(base), int(position), bytes(kept)):
                self._apply_base(base, position, kept)
            case ("live", bytes(data), int(position)):
                self._apply_live(data, position)

    def _apply_base(self, base: bytes, position: int, kept: bytes) -> None:
        end, epochs, rows, horizon, dropped = msgspec.msgpack.decode(base)
        old = self.floor.live
        state = State()
        for first, last in _PAIR.iter_unpack(kept):
            for seq in range(first, min(last, position) + 1):
                if seq in old:
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


def _nobody(batch: Data, first: int, count: int) -> None:
    """Nobody is told of appended batches yet."""
