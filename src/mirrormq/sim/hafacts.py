"""What is known of one mirrored queue: its views, and the records that were ever durable on all members.

Guarantee: a record stream is learnt once, from whoever was the master when it became durable; from then on it
can be compared with any copy, batch by batch, and says of every message where it is and why it left.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from mirrormq.kernel import records
from mirrormq.log import fold
from mirrormq.log.copylog import CopyLog
from mirrormq.log.durable import DurableLog
from mirrormq.log.fold import Pending
from mirrormq.log.inspect import records_in
from mirrormq.log.recent import RecentPool
from mirrormq.meta.records import View
from mirrormq.sim.model import Violation, number_of

_RECORD_BYTES = 12
_PUBLISH = struct.Struct("<QQQQIIHBB")
_REMOVAL = struct.Struct("<QQQ")
PERSISTENT = 1
PURGED = 0
"""Reason of a removal by a purge; the others as in docs/format/batch.md."""
DROPPED = -1
"""A transient message that a restarted master has lost."""


class Batch(NamedTuple):
    """A batch of a record stream, and its content in short."""

    first: int
    last: int
    epoch: int
    print: bytes


class Publish(NamedTuple):
    """A PUBLISH record."""

    seq: int
    number: int
    is_persistent: bool


class Removal(NamedTuple):
    """A span that left the queue, but for the seqs that stay."""

    first: int
    last: int
    reason: int
    held: frozenset[int] = frozenset()


def summed(data: bytes | memoryview) -> Batch:
    """A batch in short."""
    head = records.read_head(data, 0)
    assert head is not None
    return Batch(
        head[3], head[3] + head[4] - 1, head[2], hashlib.blake2b(bytes(data), digest_size=12).digest()
    )


def read_batch(data: bytes | memoryview) -> tuple[list[Publish], list[Removal]]:
    """The messages that came and went with a batch."""
    data = bytes(data)
    head = records.read_head(data, 0)
    assert head is not None
    publishes, removals = [], []
    at = records.HEAD_BYTES
    for seq, kind, flags, size in records_in(data, 0, head):
        payload = data[at + _RECORD_BYTES : at + _RECORD_BYTES + size]
        at += _RECORD_BYTES + size
        if kind == records.PUBLISH:
            _, _, _, _, _, properties, route, _, _ = _PUBLISH.unpack_from(payload)
            number = number_of(payload[_PUBLISH.size + properties + route :])
            assert number is not None, payload
            publishes.append(Publish(seq, number, bool(flags & PERSISTENT)))
        elif kind == records.REMOVE and flags == fold.PURGE:
            (upto,) = struct.unpack_from("<Q", payload, 8)
            held = frozenset(one for (one,) in struct.iter_unpack("<Q", payload[16:]))
            removals.append(Removal(1, upto, PURGED, held))
        elif kind == records.REMOVE:
            removals += [Removal(*span) for span in _REMOVAL.iter_unpack(payload[8:])]
        elif kind == records.EPOCH and flags:
            dropped = fold.decode_epoch(flags, payload)[1]
            removals += [Removal(first, last, DROPPED) for first, last in dropped.seqs]
    return publishes, removals


class WatchedCopyLog(CopyLog):
    """The log of a copy, remembered outside of it."""

    def __init__(self, log: DurableLog, pool: RecentPool, *, is_master: bool = False) -> None:
        self.batches: dict[int, tuple[Batch, bytes]] = {}
        """Those that came in this life, by their first seq."""
        self.verified = 0
        """Up to here it is what was committed."""
        self.published: list[Publish] = []
        """What the master here has appended since somebody looked."""
        super().__init__(log, pool, is_master=is_master)

    def appended(self, batch: bytes) -> None:
        """The master here has appended a batch."""
        self.published += read_batch(batch)[0]
        super().appended(batch)

    def has(self, seq: int, number: int) -> bool:
        """Did this message come in this life, and with this seq?"""
        found = [data for batch, data in self.batches.values() if batch.first <= seq <= batch.last]
        publishes = [publish for data in found for publish in read_batch(data)[0]]
        return any(publish.seq == seq and publish.number == number for publish in publishes)

    def _note(self, batch: bytes, pending: Pending) -> None:
        super()._note(batch, pending)
        self.batches[pending.first] = (summed(batch), bytes(batch))

    def _cut(self) -> None:
        super()._cut()
        self.verified = min(self.verified, self.end)
        self.batches = {first: kept for first, kept in self.batches.items() if kept[0].last <= self.end}


@dataclass(slots=True)
class QueueFacts:
    """What is known of one queue."""

    id: int
    name: str
    is_durable: bool
    view: View
    """The newest that any node has heard of."""
    made_at: int
    """When the first view was heard of."""
    led_at: int = 0
    """When it got another master last."""
    views: dict[int, View] = field(default_factory=dict)
    masters: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Who has acted as the master, by epoch."""
    delivering: int = 0
    """The newest mastership that could deliver."""
    known_from: int = 0
    """Records before this one were committed when nobody looked; 0: nothing is known yet."""
    durable: int = 0
    stream: dict[int, Batch] = field(default_factory=dict)
    """Committed batches by their first seq."""
    seqs: dict[int, int] = field(default_factory=dict)
    """Where a message is, by its number."""
    numbers: dict[int, Publish] = field(default_factory=dict)
    removed: dict[int, int] = field(default_factory=dict)
    """Why a message left for good, by its number."""
    appended: dict[int, int] = field(default_factory=dict)
    """Where a master has put a message, committed or not, by its number."""
    behind: dict[int, int] = field(default_factory=dict)
    """The same of masters that had not heard of the next one."""
    is_excused: bool = False
    """All copies were destroyed, or a loss was allowed: what was there may be lost."""
    is_deleted: bool = False

    def learn(self, data: bytes, may_double: Callable[[int], bool]) -> list[tuple[Publish, int]]:
        """The next batch is committed; returns the messages that left with it, and why."""
        batch = summed(data)
        if self.known_from and batch.first != self.durable + 1:
            raise Violation(
                f"{self.name}: a batch from {batch.first} on became durable behind {self.durable}"
            )
        self.known_from = self.known_from or batch.first
        self.durable = batch.last
        self.stream[batch.first] = batch
        publishes, removals = read_batch(data)
        for publish in publishes:
            if publish.number in self.seqs and not may_double(publish.number):
                raise Violation(f"I13: {self.name}: message {publish.number} is in the queue twice")
            self.seqs[publish.number] = publish.seq
            self.numbers[publish.seq] = publish
        return [gone for removal in removals for gone in self._remove(removal)]

    def _remove(self, removal: Removal) -> list[tuple[Publish, int]]:
        found = []
        for seq, publish in self.numbers.items():
            is_there = publish.number not in self.removed and seq not in removal.held
            if removal.first <= seq <= removal.last and is_there:
                self.removed[publish.number] = removal.reason
                found.append((publish, removal.reason))
        return found
