"""What the log of a staging queue says about its sink (docs/protocol/sink.md, docs/format/batch.md).

Guarantees
- The same STAGE and COMMIT_SET records give the same state on every node: which transactions are staged,
  which batch was committed last, which rows are on their way and under which numbers.
- The first COMMIT_SET of a batch is its commit: it gives each block of rows its numbers, dense per target
  queue, in the order of the partitions and, within one, of the rows.
- A block is a PUBLISH of the staging queue. It is live from its staging until every row of it is in its
  target for good, or its transaction was dropped.

Pure: who writes the records, and when they are safe, is the business of `broker/staging.py`.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mirrormq.kernel.ranges import RangeSet

_STAGED = struct.Struct("<QQQQII")
_BLOCK = struct.Struct("<QQII")
_U64 = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")

STAGED, DROPPED, SKIPPED = 0, 1, 2
"""Flags of a STAGE record: a transaction is complete; transactions are given up; rows lost their target."""

NO_BATCH = -1


class Staged(NamedTuple):
    """One block of rows for one queue."""

    seq: int
    target: int
    """Log id of the queue."""
    rows: int
    op: int


class Tx(NamedTuple):
    """A transaction that is staged and not committed."""

    tx: int
    batch: int
    time: int
    """When it began (wall µs)."""
    until: int
    """After this it cannot be committed."""
    partition: int
    blocks: tuple[Staged, ...]

    @property
    def rows(self) -> int:
        """Rows, counted once per queue they go to."""
        return sum(block.rows for block in self.blocks)


class Sending(NamedTuple):
    """A committed block on its way."""

    seq: int
    target: int
    first: int
    """Number of its first row at that target."""
    rows: int
    op: int

    @property
    def last(self) -> int:
        """Number of its last row."""
        return self.first + self.rows - 1


class Saved(msgspec.Struct, frozen=True, array_like=True):
    """The state as checkpoints and full copies hold it."""

    last: int
    committed: int
    skipped: int
    txs: list[Tx]
    sending: list[Sending]
    numbers: list[tuple[int, int]]


class SinkState:
    """The sink behind one staging queue."""

    def __init__(self) -> None:
        self.last = NO_BATCH
        """The last batch that was committed."""
        self.committed = 0
        """Rows committed so far, counted once per queue they go to."""
        self.skipped = 0
        """Rows of those whose queue was deleted before they reached it."""
        self.txs: dict[int, Tx] = {}
        self.sending: dict[int, Sending] = {}
        """Committed blocks that have not been removed, by seq, in the order of their numbers."""
        self.numbers: dict[int, int] = {}
        """The last number given to a row, by target."""

    def copy(self) -> "SinkState":
        """The same state, which changes on its own."""
        return SinkState.load(self.save())

    def save(self) -> Saved:
        """The state, to be kept."""
        return Saved(
            self.last,
            self.committed,
            self.skipped,
            list(self.txs.values()),
            list(self.sending.values()),
            list(self.numbers.items()),
        )

    @staticmethod
    def load(saved: Saved) -> "SinkState":
        """A state that was kept."""
        state = SinkState()
        state.last, state.committed, state.skipped = saved.last, saved.committed, saved.skipped
        state.txs = {tx.tx: tx for tx in saved.txs}
        state.sending = {block.seq: block for block in saved.sending}
        state.numbers = dict(saved.numbers)
        return state

    # --- records ---

    def stage(self, flags: int, payload: bytes) -> None:
        """Heed a STAGE record."""
        if flags == STAGED:
            tx = decode_tx(payload)
            self.txs[tx.tx] = tx
        elif flags == DROPPED:
            for (number,) in _U64.iter_unpack(payload[_U64.size :]):
                self.txs.pop(number, None)
        else:
            self.skipped += _PAIR.unpack(payload)[1]

    def commit(self, payload: bytes) -> None:
        """Heed a COMMIT_SET record: its blocks get their numbers."""
        _, batch = _PAIR.unpack_from(payload)
        self.last = max(self.last, batch)
        for (number,) in _U64.iter_unpack(payload[_PAIR.size :]):
            for seq, target, rows, op in self.txs.pop(number).blocks:
                first = self.numbers.get(target, 0) + 1
                self.numbers[target] = first + rows - 1
                self.sending[seq] = Sending(seq, target, first, rows, op)
                self.committed += rows

    def forget(self, dead: RangeSet) -> None:
        """Blocks that were removed have arrived, or have nowhere to go."""
        if self.sending:
            self.sending = {seq: block for seq, block in self.sending.items() if seq not in dead}

    def known(self) -> set[int]:
        """Seqs of all blocks that are to be kept."""
        return {*self.sending, *(block.seq for tx in self.txs.values() for block in tx.blocks)}


def encode_tx(tx: Tx) -> bytes:
    """The payload of a STAGE record for a transaction that is complete."""
    head = _STAGED.pack(tx.tx, tx.batch, tx.time, tx.until, tx.partition, len(tx.blocks))
    return head + b"".join([_BLOCK.pack(*block) for block in tx.blocks])


def decode_tx(payload: bytes) -> Tx:
    """The transaction of a STAGE record."""
    tx, batch, time, until, partition, count = _STAGED.unpack_from(payload)
    end = _STAGED.size + count * _BLOCK.size
    blocks = tuple(Staged(*block) for block in _BLOCK.iter_unpack(payload[_STAGED.size : end]))
    return Tx(tx, batch, time, until, partition, blocks)


def encode_dropped(time: int, txs: Sequence[int]) -> bytes:
    """The payload of a STAGE record for transactions that are given up."""
    return _U64.pack(time) + b"".join(map(_U64.pack, txs))


def encode_skipped(time: int, rows: int) -> bytes:
    """The payload of a STAGE record for rows that lost their queue."""
    return _PAIR.pack(time, rows)


def encode_commit(time: int, batch: int, txs: Sequence[int]) -> bytes:
    """The payload of a COMMIT_SET record: transactions in the order of their partitions."""
    return _PAIR.pack(time, batch) + b"".join(map(_U64.pack, txs))
