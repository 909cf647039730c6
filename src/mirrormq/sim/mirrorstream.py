"""Records of the mirror world's queues: how they are made, and what a stream of them means.

Guarantee: the meaning is worked out record by record and independently of `log`, so that both can be
compared.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Self

from mirrormq.kernel import records
from mirrormq.kernel.crc32c import crc32c
from mirrormq.log.fold import Dropped, decode_epoch
from mirrormq.mirror.ports import Data

PERSISTENT, RESENT = 1, 2
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


def encode(queue: int, epoch: int, first: int, wall: int, written: Sequence[Record]) -> bytes:
    """A batch, with its publishes counted: the kernel makes those of a queue's core only."""
    batch = bytearray(records.encode_batch(queue, epoch, first, wall, list(written)))
    publishes = sum(kind == records.PUBLISH for kind, _, _ in written)
    struct.pack_into("<I", batch, 44, publishes)
    struct.pack_into("<I", batch, 4, crc32c(bytes(batch[8 : records.HEAD_BYTES])))
    assert records.read_head(batch, 0) == (len(batch), queue, epoch, first, len(written), publishes, wall)
    return bytes(batch)


def key_of(payload: bytes) -> Key:
    """Whose publish it is."""
    _, _, pid, pseq = struct.unpack_from("<QQQQ", payload)
    return pid, pseq


def removal(seqs: Sequence[int]) -> Record:
    """A REMOVE record."""
    return records.REMOVE, 0, _U64.pack(0) + b"".join(struct.pack("<QQQ", seq, seq, 1) for seq in seqs)


def note(pid: int, pseq: int) -> Record:
    """A PUBNOTE record: nothing up to this number comes any more."""
    return records.PUBNOTE, 0, _PAIR.pack(pid | records.PID_OF_LETTERS, pseq)


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
                row, pseq = _PAIR.unpack(payload)
                pid = row ^ records.PID_OF_LETTERS
                self.rows[pid] = max(pseq, self.rows.get(pid, 0))
            elif kind == records.EPOCH:
                # The record names them: a copy without old records could not tell which they were.
                self.drop(decode_epoch(flags, payload)[1])

    def drop(self, dropped: Dropped) -> None:
        """These messages are lost."""
        for first, last in dropped.seqs:
            for seq in range(first, last + 1):
                self.remove(seq)
        self.dropped |= keys_of(dropped.numbers)

    def facts(self) -> tuple[object, ...]:
        """What must be the same on every in-sync member."""
        return sorted(self.live.items()), sorted(self.rows.items()), self.horizon, sorted(self.dropped)


def keys_of(numbers: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> set[Key]:
    """The publishes that rows of home nodes and spans of numbers name."""
    return {
        (row ^ records.PID_OF_LETTERS, number)
        for row, spans in numbers
        for first, last in spans
        for number in range(first, last + 1)
    }


def has_publish(batches: Sequence[Batch], key: Key, seq: int) -> bool:
    """Whether dense batches have this publish at this seq."""
    at = bisect_left(batches, seq, key=lambda batch: batch.last)
    return at < len(batches) and any(
        (one, kind) == (seq, records.PUBLISH) and key_of(payload) == key
        for one, kind, _, payload in records_of(batches[at].data)
    )
