"""The state of a queue after a prefix of its record stream.

Guarantee: the same records give the same state on every node, whatever lies on its disk and in which pieces
the records came: a fold looks at nothing but records, in their order. The log of a master is such a state at
its end, written down by whoever makes the records (`durable`); a mirrored queue has a second one at its
durable mark, made from the records themselves (`copylog`). Only that one may go into a checkpoint.
"""

import struct
from collections.abc import Container, Sequence
from typing import NamedTuple

from mirrormq.base import limits
from mirrormq.base.types import Seq
from mirrormq.kernel import records, replay
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log import dying
from mirrormq.log.cursors import Cursors
from mirrormq.log.disk import LogRefused
from mirrormq.log.dying import Death
from mirrormq.log.origins import Origins
from mirrormq.log.sinkstate import SinkState

ORIGINS = 1
"""Flag of a PUBNOTE record: where the publishes of its batch come from."""

PURGE = 1
"""Flag of a REMOVE record: everything up to a seq, except the seqs that follow."""

DROP = 1
"""Flag of an EPOCH record: transient messages were lost by a restart of the master, and are named."""

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")

Spans = list[tuple[int, int]]


class Dropped(NamedTuple):
    """Transient messages that a restarted master does not have any more."""

    seqs: Spans
    numbers: list[tuple[int, Spans]]
    """(row, numbers) of those that another node forwarded: never confirmed from now on."""


NOTHING = Dropped([], [])


class Pending(NamedTuple):
    """What one batch says, kept until it is known to be durable everywhere."""

    first: int
    last: int
    epoch: int
    time: int
    publishes: int
    size: int
    rows: list[tuple[int, int, int]]
    """(publishing channel, first number, last number) of dead letters and forwarded publishes."""
    others: list[tuple[int, int, int, bytes]]
    """(kind, flags, seq, payload) of records that are no publishes."""


class UnknownKind(LogRefused):
    """A record of a kind this version does not know: refused, never skipped."""

    def __init__(self, kind: int, queue_id: int) -> None:
        super().__init__(
            f"a record of unknown kind {kind} in the log of queue {queue_id}: a newer version wrote it"
        )


class Fold:
    """What a queue's records up to `end` say."""

    def __init__(self, queue_id: int, cursors: Cursors) -> None:
        self.queue_id = queue_id
        self.cursors = cursors
        self.clear()

    def clear(self) -> None:
        """Begin again with no record at all."""
        self.end = Seq(0)
        self.epoch = 1
        self.last_wall = 0
        self.dead = RangeSet()
        self.horizon = 0
        self.dying: dict[int, Death] = {}
        """Deaths whose letters are on their way, by seq."""
        self.counts: dict[int, int] = {}
        """How often a message of a queue that counts came back, by seq."""
        self.last_number = 0
        """Number of the last death that was written."""
        self.letters: dict[int, int] = {}
        """Highest number of the dead letters in this log, by the id of the queue they died in; and of the
        publishes forwarded by a home node, by its pid with the highest bit set.
        """
        self.refused: dict[int, RangeSet] = {}
        """Numbers of forwarded publishes up to the row that are not there: refused, given up by their home
        node, or transient and dropped by a restart. By pid as in `letters`; known ones leave.
        """
        self.sink: SinkState | None = None
        """Of a staging queue that was used: its transactions."""
        self.origins: Origins | None = None
        """Of a queue of a mirror: what its messages are copies of."""
        self.published = 0
        """Publishes written so far."""
        self.written = 0
        """Bytes of batches written so far."""
        self.cursors.load([])
        self._tidy_at = limits.fold_rows_min

    def take(self, other: "Fold") -> None:
        """Become what `other` is now; later changes of either leave the other alone."""
        self.end, self.epoch, self.last_wall = other.end, other.epoch, other.last_wall
        self.dead, self.horizon = other.dead.copy(), other.horizon
        self.dying, self.counts, self.last_number = dict(other.dying), dict(other.counts), other.last_number
        self.letters = dict(other.letters)
        self.refused = {row: numbers.copy() for row, numbers in other.refused.items()}
        self.sink = other.sink.copy() if other.sink is not None else None
        self.origins = other.origins.copy() if other.origins is not None else None
        self.published, self.written = other.published, other.written
        self.cursors.load(other.cursors.cursors())

    # --- one batch, one record ---

    def fold(self, batch: Pending) -> None:
        """The next batch counts."""
        assert batch.first == self.end + 1, (batch.first, self.end)
        self.end, self.epoch = Seq(batch.last), max(self.epoch, batch.epoch)
        self.last_wall = max(self.last_wall, batch.time)
        self.published += batch.publishes
        self.written += batch.size
        for pid, first, last in batch.rows:
            self.note_row(pid, first, last)
        for kind, flags, seq, payload in batch.others:
            self.dead.add(seq, seq)
            self.apply(kind, flags, payload)

    def apply(self, kind: int, flags: int, payload: bytes) -> None:
        """Heed a record that is no publish."""
        if kind == records.REMOVE and flags == PURGE:
            (upto,) = _U64.unpack_from(payload, 8)
            self.bury_purged(upto, [held for (held,) in _U64.iter_unpack(payload[16:])])
        elif kind == records.REMOVE:
            replay.bury(self.dead, payload)
        elif kind == records.HORIZON:
            self.horizon = max(self.horizon, _U64.unpack(payload)[0])
        elif kind == records.DYING:
            self.note_dying(dying.decode(payload))
        elif kind == records.REQUEUE:
            self.note_counts(payload)
        elif kind == records.PUBNOTE and flags & ORIGINS:
            self.note_origins(payload)
        elif kind == records.PUBNOTE:
            self.raise_row(*_PAIR.unpack(payload))
        elif kind == records.CURSOR:
            self.cursors.apply(flags, payload)
        elif kind in (records.STAGE, records.COMMIT_SET):
            self.sink = self.sink or SinkState()
            if kind == records.STAGE:
                self.sink.stage(flags, payload)
            else:
                self.sink.commit(payload)
        elif kind == records.EPOCH:
            self.note_dropped(decode_epoch(flags, payload)[1])
        else:
            raise UnknownKind(kind, self.queue_id)

    def bury_purged(self, upto: int, held: Sequence[int]) -> None:
        """Everything up to `upto` is dead but for what is held."""
        low = 1
        for seq in sorted(held):
            if seq > low:
                self.dead.add(low, seq - 1)
            low = seq + 1
        if low <= upto:
            self.dead.add(low, upto)

    # --- dead letters and counts ---

    def note_dying(self, deaths: Sequence[Death]) -> None:
        """These deaths are in the log."""
        for death in deaths:
            self.dying[death.seq] = death
            self.last_number = max(self.last_number, death.number)
        self._tidy()

    def note_counts(self, payload: bytes) -> None:
        """A REQUEUE record is in the log."""
        self.counts.update(_PAIR.iter_unpack(payload))
        self._tidy()

    def forget_counts(self) -> None:
        """Messages that left the queue count no longer."""
        if self.counts:
            self.counts = {seq: count for seq, count in self.counts.items() if seq not in self.dead}

    def forget_buried(self) -> None:
        """Deaths whose letters have all arrived are over, and so are the counts of what left."""
        self.dying = {seq: death for seq, death in self.dying.items() if seq not in self.dead}
        if self.sink is not None:
            self.sink.forget(self.dead)
        self.forget_counts()

    def _tidy(self) -> None:
        """Only now and then: a removal does not say whether what it removes was dying."""
        if len(self.dying) + len(self.counts) > self._tidy_at:
            self.forget_buried()
            self._tidy_at = 2 * (len(self.dying) + len(self.counts)) + limits.fold_rows_min

    # --- which publishes of others are there ---

    def note_row(self, pid: int, first: int, last: int) -> None:
        """Dead letters or forwarded publishes with these numbers are in the log."""
        row = pid ^ records.PID_OF_LETTERS
        before = self.letters.get(row, 0)
        if is_forwarded(pid) and first > before + 1:
            self.refuse(row, before + 1, first - 1)
        self.letters[row] = last

    def note_origins(self, payload: bytes) -> None:
        """Copies of another cluster's messages are in the log."""
        self.origins = self.origins or Origins()
        self.origins.note(payload)

    def refuse(self, row: int, first: int, last: int) -> None:
        """These publishes of a home node are not there."""
        self.refused.setdefault(row, RangeSet()).add(first, last)

    def raise_row(self, row: int, number: int) -> None:
        """Nothing up to this number is waited for."""
        self.letters[row] = max(self.letters.get(row, 0), number)

    def forget_row(self, row: int) -> None:
        """The home node has another process now: this one sends nothing again."""
        self.letters.pop(row, None)
        self.refused.pop(row, None)

    def forget_letters(self, sources: Container[int]) -> None:
        """Only these queues still exist: nobody else sends a letter again. Rows of home nodes stay."""
        if self.letters:
            self.letters = {
                source: last
                for source, last in self.letters.items()
                if source & records.PID_OF_LETTERS or source in sources
            }

    def note_dropped(self, dropped: Dropped) -> None:
        """These transient messages are gone."""
        for first, last in dropped.seqs:
            self.dead.add(first, last)
        for row, spans in dropped.numbers:
            for first, last in spans:
                self.refuse(row, first, last)


def is_forwarded(pid: int) -> bool:
    """Is this the publishing channel of what a home node forwarded?"""
    return bool(pid & records.PID_OF_HOMES) and not pid & records.PID_OF_LETTERS


def encode_epoch(node: str, dropped: Dropped = NOTHING) -> tuple[int, bytes]:
    """(flags, payload) of an EPOCH record."""
    name = node.encode()
    out = [_U16.pack(len(name)), name]
    if dropped == NOTHING:
        return 0, b"".join(out)
    out += [_spans(dropped.seqs), _U32.pack(len(dropped.numbers))]
    for row, spans in dropped.numbers:
        out += [_U64.pack(row), _spans(spans)]
    return DROP, b"".join(out)


def decode_epoch(flags: int, payload: bytes) -> tuple[str, Dropped]:
    """The node that began an epoch, and what it had lost."""
    (size,) = _U16.unpack_from(payload)
    at = _U16.size + size
    node = payload[_U16.size : at].decode()
    if not flags & DROP:
        return node, NOTHING
    seqs, at = _read_spans(payload, at)
    (count,) = _U32.unpack_from(payload, at)
    at += _U32.size
    numbers = []
    for _ in range(count):
        (row,) = _U64.unpack_from(payload, at)
        spans, at = _read_spans(payload, at + _U64.size)
        numbers.append((row, spans))
    return node, Dropped(seqs, numbers)


def _spans(spans: Spans) -> bytes:
    return _U32.pack(len(spans)) + b"".join(_PAIR.pack(*span) for span in spans)


def _read_spans(payload: bytes, at: int) -> tuple[Spans, int]:
    (count,) = _U32.unpack_from(payload, at)
    at += _U32.size
    end = at + count * _PAIR.size
    return list(_PAIR.iter_unpack(payload[at:end])), end
