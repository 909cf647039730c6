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
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.types import Now, Seq
from mirrormq.kernel import records
from mirrormq.kernel.cores import QueueCore
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log import dying, origins
from mirrormq.log.cursors import Cursors, Row
from mirrormq.log.dying import Death
from mirrormq.log.fold import PURGE, Fold, Pending
from mirrormq.log.index import Entry, SeqIndex
from mirrormq.log.latency import Latencies
from mirrormq.log.places import Places
from mirrormq.log.segments import Segments

if TYPE_CHECKING:
    from mirrormq.log.checkpoint import Part
    from mirrormq.log.copylog import CopyLog
    from mirrormq.log.journal import Journal

_U64 = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")
_SPAN = struct.Struct("<QQQ")
ACKNOWLEDGED = 1
"""Reason of a removal."""


class DurableLog(Fold):
    """Positions and dead seqs of one queue; its records are in the journal and in segments.

    The state it inherits is that of everything up to its end: what the queue's master needs.
    """

    is_open = True
    takes_publishes = True
    is_mirrored = False
    is_over = False
    is_behind = False

    def __init__(self, journal: "Journal", segments: Segments) -> None:
        super().__init__(segments.queue_id, Cursors(self))
        self.journal = journal
        self.segments = segments
        self.durable = Seq(0)
        self.flushed = Seq(0)
        """Every record up to here survives a crash of this node: what `durable` is without mirrors."""
        self.redelivered_upto = 0
        """Up to here an earlier process may have delivered: the horizon it left behind."""
        self.deliverable = 0
        """Entries up to this seq may be delivered: the flushed horizon."""
        self.places = Places()
        self.on_progress: Callable[[], None] = _nothing
        """Called when more may be delivered."""
        self.on_flushed: Callable[[], None] | None = None
        """Of a mirrored queue: called after a flush. Its `durable` and `deliverable` are raised by whoever
        knows about the mirrors (`raise_durable`, `raise_deliverable`), and by nobody else.
        """
        self.set_aside = RangeSet()
        """Seqs that recovery found dying or counted: they lie among those of messages that are ready."""
        self.withheld: set[int] = set()
        """Live, and held by consumers since before this node was the master: not among what is ready."""
        self.low = 1
        """Every record from here on is kept: the lowest seq a reader of the whole stream may begin with."""
        self.last_persistent = 0
        """The last batch of publishes of this process with a persistent one among them ends here."""
        self.last_transient = 0
        """The same with one that nobody asked to flush."""
        self.index = SeqIndex()
        self.damage: str | None = None
        """Why the queue cannot be served."""
        self.frozen: Part | None = None
        """What checkpoints say of this log while it is damaged."""
        self.since = 0
        """Of a log that is or was damaged, or whose records are not all durable everywhere: the first journal
        file it needs, if that is kept for it alone.
        """
        self.last_serial = 0
        """The last journal file that may hold a record of this log."""
        self.copy: CopyLog | None = None
        """What makes this the log of a mirrored queue."""
        self.cuts: list[tuple[int, int, int]] = []
        """(serial, offset, seq): what the journal holds of this log before that place and above that seq
        was given up.
        """
        self.begins = (0, 0)
        """Serial and offset: what the journal has of this queue before that is not part of its log."""
        self.life = 0
        """Counts the times something was given up: a flush that began before covers nothing above that."""
        self.opening: Callable[[Now], None] | None = None
        """Of a mirrored queue: called before a record is written, so that each epoch begins with EPOCH."""
        self.latencies = Latencies()
        """How long publishes took to be safe."""
        self.is_volatile = False
        """Of a mirrored queue that does not outlive a restart: nobody waits for a flush."""
        self._life_ends: list[tuple[int, int]] = []
        self._waiters: deque[tuple[int, Callable[[], None]]] = deque()

    # --- what others than the queue look at ---

    @property
    def kept(self) -> "DurableLog":
        """The log that keeps the records."""
        return self

    @property
    def confirmable(self) -> int:
        """Publishes up to here may be confirmed."""
        return self.durable

    def when_moved(self, again: Callable[[], None]) -> bool:  # noqa: ARG002
        """One flush is waited for, of all logs together."""
        return False

    def mends(self, reason: str) -> bool:  # noqa: ARG002
        """Nobody else has it."""
        return False

    @property
    def committed(self) -> Fold:
        """The state a checkpoint may tell: without mirrors all that was written."""
        return self if self.copy is None else self.copy.committed

    @property
    def disposable(self) -> RangeSet:
        """Seqs whose records may leave the disk."""
        return self.dead if self.copy is None else self.copy.disposable

    @property
    def keep_from(self) -> int:
        """Records from here on are kept whatever becomes of them."""
        return self.cursors.low if self.copy is None else self.copy.keep_from

    def is_own(self, epoch: int, first: int) -> bool:
        """Is a batch that was found in a file one of this log, and not one that was given up?

        Records of one seq and epoch are the same everywhere, so their epoch tells them apart.
        """
        return not self.cuts or self.index.epoch_of(first) == epoch

    def is_given_up(self, where: tuple[int, int], first: int) -> bool:
        """Was the batch at this place of the journal given up, to be adopted again behind it, or never?"""
        return any(where < cut[:2] and first > cut[2] for cut in self.cuts)

    # --- changes of the queue ---

    def append(self, core: QueueCore, count: int, now: Now) -> Seq:
        """Write the first `count` waiting entries; return the seq of the first."""
        if self.opening is not None:
            self.opening(now)
        first = Seq(self.end + 1)
        batch, persistent = records.encode_publishes(
            core, count, self.queue_id, self.epoch, first, self._wall(now)
        )
        is_waited_for = persistent > 0 and not self.is_volatile
        self.put_batch(batch, first, count, flush=is_waited_for, now=now)
        self.published += count
        if is_waited_for:
            self.last_persistent = self.end
        if persistent < count or self.is_volatile:
            self.last_transient = self.end
        self.latencies.appended(self.end, now.mono)
        return first

    def settle(self, core: QueueCore, now: Now) -> None:
        """Write what left the queue since the last call. It asks for no flush: see the journal."""
        if self.opening is not None and core.has_settled:
            self.opening(now)
        seq = Seq(self.end + 1)
        batch = records.encode_removals(core, self.dead, self.queue_id, self.epoch, seq, self._wall(now))
        if batch is not None:
            self.put_batch(batch, seq, 1, flush=False, now=now)

    def purge(self, held: Sequence[int], now: Now) -> None:
        """Write that everything so far left the queue, except the entries consumers hold."""
        if self.opening is not None:
            self.opening(now)
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
            if self.is_volatile and self.copy is None:
                self.raise_deliverable(self.horizon)

    def ask_flush(self, now: Now) -> None:
        """Have everybody who keeps this log flush it: removals ask for no flush by themselves."""
        self.write_other(records.HORIZON, 0, _U64.pack(self.horizon), now, flush=True)

    def die(self, deaths: Sequence[Death], now: Now, *, flush: bool = False) -> None:
        """Write what is on its way to the dead-letter exchange. Letters in the same journal ask to flush."""
        self.write_other(records.DYING, 0, dying.encode(deaths), now, flush=flush)
        self.note_dying(deaths)

    def requeue(self, counts: Sequence[tuple[int, int]], now: Now) -> None:
        """Write how often these messages have come back so far: (seq, times)."""
        new = [(seq, count) for seq, count in counts if self.counts.get(seq) != count]
        if new:
            self.counts.update(new)
            payload = b"".join(_PAIR.pack(seq, count) for seq, count in new)
            self.write_other(records.REQUEUE, 0, payload, now, flush=False)

    def take_between(self, name: str, first: int, to: int, now: Now) -> None:
        """A cursor's reader has taken what is live from `first` on before `to`, where it goes on: it leaves
        the queue as if it was acknowledged, in one batch with the cursor.
        """
        spans = self.live_spans([(first, to - 1)])
        taken = b"".join(_SPAN.pack(*span, ACKNOWLEDGED) for span in spans)
        row = (records.REMOVE, 0, _U64.pack(self._wall(now)) + taken)
        self.cursors.advance(name, to, now, [row] if spans else ())
        for span in spans:
            self.dead.add(*span)
        self.forget_counts()

    def live_spans(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """What is live in these spans, and not dying."""
        stays = self.dead
        if self.dying:
            stays = self.dead.copy()
            for seq in self.dying:  # their letters are on the way; they leave when those have arrived
                stays.add(seq, seq)
        found = RangeSet()
        for first, last in spans:
            for span in stays.missing_spans(max(first, 1), min(last, self.end)):
                found.add(*span)
        return found.spans_list()

    def aside_between(self, first: int, last: int) -> RangeSet:
        """Seqs in this range that are live in the log, but not among those that wait in it to be read: the
        dying, those that came back and are counted, and those that consumers hold.
        """
        found = RangeSet()
        for seqs in (self.dying, self.counts, self.withheld):
            for seq in seqs:
                if first <= seq <= last:
                    found.add(seq, seq)
        return found

    def stage(self, block: bytes, now: Now) -> Seq:
        """Write a block of rows of a sink; return its seq."""
        if self.opening is not None:
            self.opening(now)
        seq = Seq(self.end + 1)
        batch = records.encode_staged(self.queue_id, self.epoch, seq, self._wall(now), block)
        self.put_batch(batch, seq, 1, flush=True, now=now)
        self.published += 1
        self.last_persistent = self.end
        return seq

    def append_copies(self, core: QueueCore, runs: Sequence[tuple[int, int]], now: Now) -> Seq:
        """Write all that waits: copies of these runs of another cluster; return the seq of the first."""
        if self.opening is not None:
            self.opening(now)
        first, count = Seq(self.end + 1), core.pending
        note = origins.encode(first, runs)
        wall = self._wall(now)
        batch, _ = records.encode_publishes(core, count, self.queue_id, self.epoch, first, wall, note)
        self.dead.add(first + count, first + count)
        self.put_batch(batch, first, count + 1, flush=True, now=now)
        self.published += count
        self.last_persistent = self.end
        self.note_origins(note)
        return first

    def note_given_up(self, row: int, number: int, now: Now) -> None:
        """Write that a home node will not send its publishes up to this number any more."""
        self.write_other(records.PUBNOTE, 0, _PAIR.pack(row, number), now, flush=False)
        self.raise_row(row, number)

    def when_durable(self, position: int, done: Callable[[], None]) -> None:
        """Call `done` when everything up to this position is durable. Positions never decrease."""
        if self.durable >= position:
            done()
        else:
            self._waiters.append((position, done))

    def forget_waiters(self) -> None:
        """What waits to be durable is another master's business now."""
        self._waiters.clear()

    def end_of(self, file: str) -> int | None:
        """Where the valid batches of a file end; None if they go on to its end."""
        size = self.segments.size_of(file)
        return self.journal.ends.get(file) if size is None else size

    def readable_end(self, file: str) -> int | None:
        """Where the batches of a file end by now, those on their way to the disk included."""
        return self.journal.size if file == self.journal.current else self.end_of(file)

    # --- the journal's side ---

    def mark(self) -> tuple[Seq, int, int]:
        """What would be durable if a flush began now."""
        return self.end, self.horizon, self.life

    def on_durable(self, mark: object) -> None:
        """A flush that began at this mark is done."""
        assert isinstance(mark, tuple)
        end, horizon, life = mark
        if self._life_ends:
            end = min([end, *(seq for later, seq in self._life_ends if later > life)])
            self._life_ends = [cut for cut in self._life_ends if cut[0] > life]
        self.flushed = max(self.flushed, end)
        if self.copy is not None:
            if self.on_flushed is not None:
                self.on_flushed()
            return  # one node's flush is not enough for anybody
        self.raise_deliverable(horizon)
        self.raise_durable(self.flushed)
        self.latencies.confirmed(self.durable, self.journal.mono)

    def raise_deliverable(self, seq: int) -> None:
        """Entries up to this seq may be delivered from now on."""
        if seq > self.deliverable:
            self.deliverable = seq
            self.on_progress()

    def raise_durable(self, seq: int) -> None:
        """Everything up to this seq survives what the queue promises to survive."""
        self.durable = Seq(max(self.durable, seq))
        while self._waiters and self._waiters[0][0] <= self.durable:
            self._waiters.popleft()[1]()

    def raise_low(self, seq: int) -> None:
        """Records before `seq` are about to be given up."""
        self.low = max(self.low, seq)

    # --- helpers ---

    def write_other(self, kind: int, flags: int, payload: bytes, now: Now, *, flush: bool) -> None:
        """Append a record that is no publish."""
        self.write_others([(kind, flags, payload)], now, flush=flush)

    def write_others(self, rows: list[Row], now: Now, *, flush: bool) -> None:
        """Append records that are no publishes as one batch: all of them survive, or none."""
        if self.opening is not None:
            self.opening(now)
        seq = Seq(self.end + 1)
        batch = records.encode_batch(self.queue_id, self.epoch, seq, self._wall(now), rows)
        self.dead.add(seq, seq + len(rows) - 1)
        self.put_batch(batch, seq, len(rows), flush=flush and not self.is_volatile, now=now)

    def put_batch(self, batch: bytes, first: int, count: int, *, flush: bool, now: Now) -> None:
        """Append a batch that follows the end; the caller counts its publishes."""
        file, offset = self.journal.add(self, batch, flush=flush, now=now)
        if self.places.note(first, file, offset):
            self.index.note(Entry(first, self.last_wall, self.published, self.written))
            self.last_serial = self.journal.serial
        self.index.note_epoch(self.epoch, first)
        self.written += len(batch)
        self.end = Seq(first + count - 1)
        if self.copy is not None and self.copy.is_master:
            self.copy.appended(batch)
        elif self.copy is None and self.is_volatile:
            self.raise_durable(self.end)

    def begin_at(self, end: int) -> None:
        """Begin behind this seq: everything up to it was in no log, or is gone."""
        self.end = self.durable = self.flushed = Seq(end)
        self.low = end + 1
        self.segments.end = end
        if end:
            self.dead.add(1, end)

    def cut(self, end: int, published: int, written: int) -> None:
        """Records above `end` are given up; so many publishes and bytes are left."""
        self.end = Seq(end)
        self.published, self.written = published, written
        self.places.cut(end)
        self.index.cut(end)
        self.epoch = self.index.epochs[-1][0] if self.index.epochs else 1
        self.flushed = Seq(min(self.flushed, end))
        self.life += 1
        self._life_ends.append((self.life, end))

    def forget_cuts(self, first_serial: int) -> None:
        """Journal files before this one are not needed any more."""
        self.cuts = [cut for cut in self.cuts if cut[0] >= first_serial]
        if self.begins[0] < first_serial:
            self.begins = (0, 0)

    def wipe(self) -> list[str]:
        """Forget every record; returns the files nobody needs any more."""
        self.clear()
        self.durable = self.flushed = Seq(0)
        self.redelivered_upto = self.deliverable = self.since = 0
        self.low = 1
        self.damage = self.frozen = None
        self.places.clear()
        self.index = SeqIndex()
        self.set_aside = RangeSet()
        self.cuts = []
        self.life += 1
        self._life_ends.append((self.life, 0))
        return self.segments.clear()

    def take_state(self, committed: Fold, tail: Iterable[Pending]) -> None:
        """Become what the committed records and those above them say: this node is the master now."""
        self.take(committed)
        for batch in tail:
            self.fold(batch)
        self.forget_buried()
        self.redelivered_upto = min(self.horizon, self.end)

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
