"""The log of one durable queue.

Guarantees
- Seqs are dense; every change of the queue has one before it is applied.
- `durable` is a position whose every record survives a crash; a persistent publish is confirmed at or
  behind it.
- Nothing above the flushed horizon is delivered, so after a crash a message that was ever delivered says
  so: recovery marks everything up to the horizon as redelivered. The horizon runs ahead of delivery, so
  nobody waits for it.
- `dead` holds every seq that is not a live publish; what is not in it must be found again after a crash.
- `dying` holds what was sent to the dead-letter exchange and is not known to be durable there; it is live
  until its removal is written, purges included, and never ready again.
- `letters` tells which dead letters and which forwarded publishes this queue has, even if they have left it
  since; `refused` which of those publishes it does not have although later ones of their home node are there.
- Every record from `low` on is kept, whatever became of it; `cursors` hold it where it is.
- The files of a log with `damage` stay as they are until it is repaired or its queue deleted.
"""

import struct
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.types import Now, Seq
from mirrormq.kernel import records
from mirrormq.kernel.cores import QueueCore
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log import dying
from mirrormq.log.cursors import Cursors
from mirrormq.log.dying import Death
from mirrormq.log.index import Entry, SeqIndex
from mirrormq.log.places import Places
from mirrormq.log.segments import Segments

if TYPE_CHECKING:
    from mirrormq.log.checkpoint import Part
    from mirrormq.log.journal import Journal

PURGE = 1
"""Flag of a REMOVE record: everything up to a seq, except the seqs that follow."""

_U64 = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")


class DurableLog:
    """Positions and dead seqs of one queue; its records are in the journal and in segments."""

    def __init__(self, journal: "Journal", segments: Segments) -> None:
        self._journal = journal
        self.segments = segments
        self.queue_id = segments.queue_id
        self.epoch = 1
        self.end = Seq(0)
        self.durable = Seq(0)
        self.dead = RangeSet()
        self.horizon = 0
        self.redelivered_upto = 0
        """Up to here an earlier process may have delivered: the horizon it left behind."""
        self.deliverable = 0
        """Entries up to this seq may be delivered: the flushed horizon."""
        self.places = Places()
        self.last_wall = 0
        self.on_progress: Callable[[], None] = _nothing
        """Called when more may be delivered."""
        self.dying: dict[int, Death] = {}
        """Deaths whose letters are on their way, by seq."""
        self.set_aside = RangeSet()
        """Seqs that recovery found dying or counted: they lie among those of messages that are ready."""
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
        self.low = 1
        """Every record from here on is kept: the lowest seq a reader of the whole stream may begin with."""
        self.last_persistent = 0
        """The last batch of publishes of this process with a persistent one among them ends here."""
        self.published = 0
        """Publishes written so far."""
        self.written = 0
        """Bytes of batches written so far."""
        self.index = SeqIndex()
        self.cursors = Cursors(self)
        self.damage: str | None = None
        """Why the queue cannot be served."""
        self.frozen: Part | None = None
        """What checkpoints say of this log while it is damaged."""
        self.since = 0
        """Of a log that is or was damaged: the first journal file it needs, if that is kept for it alone."""
        self.last_serial = 0
        """The last journal file that may hold a record of this log."""
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()

    # --- changes of the queue ---

    def append(self, core: QueueCore, count: int, now: Now) -> Seq:
        """Write the first `count` waiting entries; return the seq of the first."""
        first = Seq(self.end + 1)
        batch, persistent = records.encode_publishes(
            core, count, self.queue_id, self.epoch, first, self._wall(now)
        )
        self._add(batch, first, count, flush=persistent > 0, now=now)
        self.published += count
        if persistent:
            self.last_persistent = self.end
        return first

    def settle(self, core: QueueCore, now: Now) -> None:
        """Write what left the queue since the last call. It asks for no flush: see the journal."""
        seq = Seq(self.end + 1)
        batch = records.encode_removals(core, self.dead, self.queue_id, self.epoch, seq, self._wall(now))
        if batch is not None:
            self._add(batch, seq, 1, flush=False, now=now)

    def purge(self, held: Sequence[int], now: Now) -> None:
        """Write that everything so far left the queue, except the entries consumers hold."""
        upto = self.end
        held = [*held, *self.dying]
        payload = _U64.pack(self._wall(now)) + _U64.pack(upto) + b"".join(map(_U64.pack, sorted(held)))
        self.write_other(records.REMOVE, PURGE, payload, now, flush=True)
        self.bury_purged(upto, held)

    def reach(self, seq: int, ahead: int, now: Now) -> None:
        """Entries from `seq` on are about to be delivered: keep the horizon `ahead` of them."""
        if self.horizon < seq + ahead // 2:
            self.horizon = seq + ahead
            self.write_other(records.HORIZON, 0, _U64.pack(self.horizon), now, flush=True)

    def die(self, deaths: Sequence[Death], now: Now, *, flush: bool = False) -> None:
        """Write what is on its way to the dead-letter exchange. Letters in the same journal ask to flush."""
        self.write_other(records.DYING, 0, dying.encode(deaths), now, flush=flush)
        self.note_dying(deaths)

    def note_dying(self, deaths: Sequence[Death]) -> None:
        """These deaths are in the log."""
        for death in deaths:
            self.dying[death.seq] = death
            self.last_number = max(self.last_number, death.number)

    def requeue(self, counts: Sequence[tuple[int, int]], now: Now) -> None:
        """Write how often these messages have come back so far: (seq, times)."""
        new = [(seq, count) for seq, count in counts if self.counts.get(seq) != count]
        if new:
            self.counts.update(new)
            payload = b"".join(_PAIR.pack(seq, count) for seq, count in new)
            self.write_other(records.REQUEUE, 0, payload, now, flush=False)

    def note_counts(self, payload: bytes) -> None:
        """A REQUEUE record is in the log."""
        self.counts.update(_PAIR.iter_unpack(payload))

    def forget_counts(self) -> None:
        """Messages that left the queue count no longer."""
        if self.counts:
            self.counts = {seq: count for seq, count in self.counts.items() if seq not in self.dead}

    def aside_between(self, first: int, last: int) -> RangeSet:
        """Seqs in this range that are live in the log, but not among those that wait in it to be read: the
        dying, and those that came back and are counted.
        """
        found = RangeSet()
        for seqs in (self.dying, self.counts):
            for seq in seqs:
                if first <= seq <= last:
                    found.add(seq, seq)
        return found

    def forget_letters(self, sources: Container[int]) -> None:
        """Only these queues still exist: nobody else sends a letter again. Rows of home nodes stay."""
        if self.letters:
            self.letters = {
                source: last
                for source, last in self.letters.items()
                if source & records.PID_OF_LETTERS or source in sources
            }

    def note_given_up(self, row: int, number: int, now: Now) -> None:
        """Write that a home node will not send its publishes up to this number any more."""
        self.write_other(records.PUBNOTE, 0, _PAIR.pack(row, number), now, flush=False)
        self.raise_row(row, number)

    def raise_row(self, row: int, number: int) -> None:
        """Nothing up to this number is waited for."""
        self.letters[row] = max(self.letters.get(row, 0), number)

    def forget_row(self, row: int) -> None:
        """The home node has another process now: this one sends nothing again."""
        self.letters.pop(row, None)
        self.refused.pop(row, None)

    def bury_purged(self, upto: int, held: Sequence[int]) -> None:
        """Everything up to `upto` is dead but for what is held."""
        low = 1
        for seq in sorted(held):
            if seq > low:
                self.dead.add(low, seq - 1)
            low = seq + 1
        if low <= upto:
            self.dead.add(low, upto)

    def when_durable(self, position: int, done: Callable[[], None]) -> None:
        """Call `done` when everything up to this position is durable. Positions never decrease."""
        if self.durable >= position:
            done()
        else:
            self._waiters.append((position, done))

    def end_of(self, file: str) -> int | None:
        """Where the valid batches of a file end; None if they go on to its end."""
        size = self.segments.size_of(file)
        return self._journal.ends.get(file) if size is None else size

    def readable_end(self, file: str) -> int | None:
        """Where the batches of a file end by now, those on their way to the disk included."""
        return self._journal.size if file == self._journal.current else self.end_of(file)

    # --- the journal's side ---

    def mark(self) -> tuple[Seq, int]:
        """What would be durable if a flush began now."""
        return self.end, self.horizon

    def on_durable(self, mark: object) -> None:
        """A flush that began at this mark is done."""
        assert isinstance(mark, tuple)
        self.durable = max(self.durable, mark[0])
        if mark[1] > self.deliverable:
            self.deliverable = mark[1]
            self.on_progress()
        while self._waiters and self._waiters[0][0] <= self.durable:
            self._waiters.popleft()[1]()

    def raise_low(self, seq: int) -> None:
        """Records before `seq` are about to be given up."""
        self.low = max(self.low, seq)

    # --- helpers ---

    def write_other(self, kind: int, flags: int, payload: bytes, now: Now, *, flush: bool) -> None:
        """Append a record that is no publish."""
        seq = Seq(self.end + 1)
        batch = records.encode_batch(
            self.queue_id, self.epoch, seq, self._wall(now), [(kind, flags, payload)]
        )
        self.dead.add(seq, seq)
        self._add(batch, seq, 1, flush=flush, now=now)

    def _add(self, batch: bytes, first: int, count: int, *, flush: bool, now: Now) -> None:
        file, offset = self._journal.add(self, batch, flush=flush, now=now)
        if self.places.note(first, file, offset):
            self.index.note(Entry(first, self.last_wall, self.published, self.written))
            self.last_serial = self._journal.serial
        self.index.note_epoch(self.epoch, first)
        self.written += len(batch)
        self.end = Seq(first + count - 1)

    def _wall(self, now: Now) -> int:
        """A queue's time never goes back, whatever the machine's clock does."""
        self.last_wall = max(self.last_wall, now.wall)
        return self.last_wall


def horizon_ahead(prefetches: Sequence[int]) -> int:
    """How far the horizon runs ahead for consumers with these prefetch limits (0 = none)."""
    if not prefetches or 0 in prefetches:
        return limits.horizon_chunk_max
    return min(max(2 * sum(prefetches), limits.horizon_chunk_min), limits.horizon_chunk_max)


def _nothing() -> None:
    """Nobody listens yet."""
