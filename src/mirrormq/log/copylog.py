"""The record stream of one mirrored queue on one node, whether its master is here or not.

Guarantees
- A batch is adopted as its master made it, byte for byte, or not at all; it follows the one before it.
- `durable` is how far this node has flushed. What was given up by `truncate` and what took its place are
  never mistaken for each other, by a flush that was under way least of all.
- `committed` is the fold of a prefix whose every record is durable on all in-sync members (`fold`): nothing
  in it is ever taken back. Checkpoints, recycling and full copies know that state only. What is above it is
  the *tail*: its records lie in the journal, and memory holds what they say but for the messages.
- A truncation is in the journal before whatever takes the place of the records it gives up: a restart finds
  the one or the other, never both.
- A *hollow* copy follows the log behind a base without the records that base calls live: it is no log yet,
  and becomes one when none of them is live any more.
- A promotion reads nothing: the master's state is the committed one and the tail on top of it, and messages
  are read back when they are delivered. Only a queue with priorities, with deaths under way or with counted
  returns, and a restarted node that has to find its transient messages, read files first (`copyfill`).

The same object stays with the log when its master comes and goes (`become_master`, `from_queue`).
"""

import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mirrormq.base import limits
from mirrormq.base.types import Now, Seq
from mirrormq.kernel import records, replay
from mirrormq.kernel.cores import QueueCore
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log import journal as journals
from mirrormq.log.copyfill import fill
from mirrormq.log.copyread import read_dense
from mirrormq.log.cursors import Cursors, seq_of
from mirrormq.log.disk import ReadDone, Reader
from mirrormq.log.durable import DurableLog
from mirrormq.log.fold import NOTHING, Dropped, Fold, Pending, encode_epoch
from mirrormq.log.queuelog import EVERYTHING
from mirrormq.log.recent import Recent, RecentPool

if TYPE_CHECKING:
    from mirrormq.log.copybase import Copying

_PAIR = struct.Struct("<QQ")

RESET = 1
"""Flag of a TRUNCATE note: everything is given up, and a full copy begins. With a seq: what follows lies
behind a base as of there, which only a checkpoint can tell.
"""

ReadBatches = Callable[[list[bytes] | None, str | None], None]
"""Gets batches that follow each other, or None and why they cannot be given."""


class NotFollowing(Exception):
    """A batch does not continue this log: somebody mistakes where it ends."""


class Pin:
    """Keeps records for a mirror that is being brought up to date, until it is released."""

    def __init__(self, copy: "CopyLog", keep_from: int, dead: RangeSet | None = None) -> None:
        self._copy = copy
        self.keep_from = keep_from
        """Every record from here on is kept."""
        self.dead = dead
        """What was dead when a full copy began: everything else is kept, too."""
        self.is_lost = False
        """It held more than it may, and was released: records it kept may be gone."""

    def advance(self, seq: int) -> None:
        """Records before `seq` are not wanted any more."""
        self.keep_from = max(self.keep_from, seq)

    def release(self) -> None:
        """Keep nothing any more."""
        if self in self._copy.pins:
            self._copy.pins.remove(self)

    @property
    def held_bytes(self) -> int:
        """Bytes written since the record this keeps first: what it holds at most."""
        return self._copy.bytes_from(self.keep_from)


class Position(NamedTuple):
    """Where a log ends, as mirrors tell each other."""

    seq: int
    epoch: int


class CopyLog:
    """The log of a mirrored queue on this node."""

    def __init__(self, log: DurableLog, pool: RecentPool, *, is_master: bool = False) -> None:
        """Make `log` that of a mirrored queue; everything it has counts as committed, once it is flushed.

        `is_master`: its queue is mastered here and had no mirrors so far.
        """
        self.log = log
        self.committed = Fold(log.queue_id, Cursors(log))
        self.committed.take(log)
        self.tail: deque[Pending] = deque()
        """What the batches above the committed ones say, in order."""
        self.recent = Recent(pool)
        self.pins: list[Pin] = []
        self.copying: Copying | None = None
        """A full copy that is under way: until it is over nothing here counts."""
        self.hollow = 0
        """Not 0: records up to here that are live in the committed state may be missing."""
        self.round = 0
        """Counts the full copies that began here."""
        self.missing_from = 1
        """Of a hollow copy: the first record that may be missing."""
        self.is_void = False
        """Hollow, and no checkpoint may say so yet."""
        self.is_saved = True
        """A restart finds this log: no checkpoint that tells of its base is under way."""
        self.held_from: Callable[[], int] = lambda: EVERYTHING
        """Who is served from this log needs it from here on."""
        self.is_master = is_master
        self._owed = log.end if is_master and not log.is_volatile else 0
        """What a queue brought along when it got its first mirrors: its flush may be under way still."""
        self._arriving: list[tuple[int, int]] = []
        """(end of its batch, seq) of cursors in the tail."""
        self.on_batch: Callable[[bytes, int, int], None] = _ignore
        """Told of every batch the master here appends: its bytes, first seq and number of records."""
        self._dropped = NOTHING
        self._lost: list[tuple[int, int]] = []
        """Seqs that no copy has any more, as this node found when it was to be the master."""
        self._filling: object = None
        self._noted = self.committed.written
        log.copy = self

    # --- where it stands ---

    @property
    def end(self) -> Seq:
        """The last record here."""
        return self.log.end

    @property
    def durable(self) -> Seq:
        """The last record that is flushed here."""
        return self.log.flushed

    @property
    def folded(self) -> Seq:
        """The last committed record that is known here as such: nothing up to it is ever given up."""
        if self.log.flushed < self._owed:
            return self.log.flushed
        return self.committed.end

    @property
    def low(self) -> int:
        """Every record from here on can be read."""
        return self.log.low

    @property
    def damage(self) -> str | None:
        """Why this copy cannot be used: it needs a full copy."""
        return self.log.damage

    @property
    def is_complete(self) -> bool:
        """Is this a log, and not the part of one that a full copy has brought so far?"""
        return self.copying is None and not self.hollow

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, seq of its first record), oldest first."""
        return self.log.index.epochs

    @property
    def position(self) -> Position:
        """The last record here and its epoch."""
        return Position(self.log.end, self.epoch_at(self.log.end))

    def epoch_at(self, seq: int) -> int:
        """The epoch of a record; 0 before the first."""
        return self.log.index.epoch_of(seq) if seq else 0

    # --- what recycling asks ---

    @property
    def disposable(self) -> RangeSet:
        """Seqs whose records may leave the disk: dead for good, and before any full copy began."""
        held = [pin.dead for pin in self.pins if pin.dead is not None]
        return held[0] if held else self.committed.dead

    @property
    def cursors_low(self) -> int:
        """Records from here on are kept for cursors."""
        low = self.committed.cursors.low
        # One that was just opened holds at once, here and on every member that has its record.
        if self.is_master:
            return min(low, self.log.cursors.low)
        return min([low, *(seq for _, seq in self._arriving)])

    @property
    def keep_from(self) -> int:
        """Records from here on are kept whatever becomes of them."""
        low = self.cursors_low
        held = self.held_from()
        if self.bytes_from(held) <= limits.copy_hold_bytes_max:
            low = min(low, held)
        return min([low, *(pin.keep_from for pin in self.pins)])

    def bytes_from(self, seq: int) -> int:
        """Bytes written since this record: what holding it holds at most."""
        return self.log.written - self.log.index.at(seq).written if seq <= self.log.end else 0

    def hold(self, seq: int) -> Pin:
        """Keep every record from `seq` on until the pin is released."""
        pin = Pin(self, seq)
        self.pins.append(pin)
        return pin

    # --- records ---

    def adopt(self, batch: bytes, now: Now) -> None:
        """Append a batch of the queue's master, whose checksums the caller has verified."""
        log = self.log
        assert not self.is_master, "a master adopts nothing"
        head = records.read_head(batch, 0)
        if head is None or head[0] != len(batch) or head[1] != log.queue_id:
            raise NotFollowing("this is no batch of this queue")
        _, _, epoch, first, count, publishes, time = head
        if self.copying is not None or first != log.end + 1 or epoch < self.epoch_at(log.end):
            raise NotFollowing(f"a batch of epoch {epoch} from {first} on does not follow {self.position}")
        if records.last_seq(batch, 0) != first + count - 1:
            raise NotFollowing(f"the batch from {first} on has gaps")
        rows, others, wants_flush = replay.facts(batch, 0)
        log.epoch, log.last_wall = epoch, max(log.last_wall, time)
        log.put_batch(batch, first, count, flush=wants_flush, now=now)
        log.published += publishes
        self._note(batch, Pending(first, first + count - 1, epoch, time, publishes, len(batch), rows, others))

    def appended(self, batch: bytes) -> None:
        """The master here has appended a batch."""
        assert self.is_master, "only a master appends"
        head = records.read_head(batch, 0)
        assert head is not None
        size, _, epoch, first, count, publishes, time = head
        rows, others, _ = replay.facts(batch, 0)
        self._note(batch, Pending(first, first + count - 1, epoch, time, publishes, size, rows, others))
        self.on_batch(batch, first, count)

    def _note(self, batch: bytes, pending: Pending) -> None:
        self.tail.append(pending)
        self._arriving += [
            (pending.last, seq_of(payload))
            for kind, _, _, payload in pending.others
            if kind == records.CURSOR
        ]
        self.recent.add(pending.first, pending.last, batch)

    def fold(self, seq: int, now: Now) -> None:
        """Every record up to `seq` is durable on all in-sync members, and those here are the same (matched
        in this epoch): both are for the caller to know.
        """
        tail, committed = self.tail, self.committed
        while tail and tail[0].last <= seq:
            committed.fold(tail.popleft())
        if self._arriving:
            self._arriving = [one for one in self._arriving if one[0] > committed.end]
        if not self.is_master:
            self.log.durable = committed.end
        for pin in [pin for pin in self.pins if pin.held_bytes > limits.copy_hold_bytes_max]:
            pin.is_lost = True
            pin.release()
        if committed.written - self._noted >= limits.copy_mark_bytes:
            self._noted = committed.written
            self._write_note(records.MARK, 0, committed.end, now, flush=False)

    def truncate(self, seq: int, now: Now) -> int:
        """Give up everything above `seq`, whole batches only; returns the end of what is left."""
        assert not self.is_master, "a master gives up nothing"
        if seq < self.folded:
            raise NotFollowing(f"records up to {self.folded} are committed, {seq} is below that")
        if seq >= self.log.end:
            return self.log.end
        while self.tail and self.tail[-1].last > seq:
            self.tail.pop()
        self._arriving = [one for one in self._arriving if one[0] <= seq]
        self._cut()
        self._note_cut(self._write_note(records.TRUNCATE, 0, self.log.end, now, flush=True))
        return self.log.end

    def _cut(self) -> None:
        """The log ends with the tail."""
        committed = self.committed
        end = self.tail[-1].last if self.tail else committed.end
        published = committed.published + sum(batch.publishes for batch in self.tail)
        written = committed.written + sum(batch.size for batch in self.tail)
        self.log.cut(end, published, written)
        self.recent.cut(end)

    def _note_cut(self, place: tuple[str, int]) -> None:
        serial = journals.serial_of(place[0])
        assert serial is not None
        self.log.cuts.append((serial, place[1], self.log.end))

    def _write_note(self, kind: int, flags: int, seq: int, now: Now, *, flush: bool) -> tuple[str, int]:
        note = encode_note(kind, flags, note_payload(self.log.queue_id, seq))
        return self.log.journal.add(self.log, note, flush=flush, now=now)

    def read(
        self, start: int, max_bytes: int, done: ReadBatches, *, read: Reader, upto: int = EVERYTHING
    ) -> None:
        """Give whole batches from `start` on, one at least if there is one up to `upto`; maybe later."""
        upto = min(upto, self.log.end)
        if start > upto:
            done([], None)
            return
        found = self.recent.read(start, upto, max_bytes)
        if found is None:
            read_dense(self.log, read, (start, upto, max_bytes), done)
        elif found and records.read_head(found[0], 0)[3] != start:  # type: ignore[index]
            done(None, f"no batch begins with {start}")
        else:
            done(found, None)

    def state_at_end(self) -> Fold:
        """What all records here say, the tail on top of what is committed."""
        state = Fold(self.log.queue_id, Cursors(self.log))
        state.take(self.committed)
        for batch in self.tail:
            state.fold(batch)
        return state

    # --- masters come and go ---

    def become_master(self) -> None:
        """Make this the log of a queue mastered here: its state is that of its end. What a hollow copy lacks
        is lost: somebody wants to go on without it.
        """
        log = self.log
        assert self.copying is None, "a full copy is under way"
        log.take_state(self.committed, self.tail)
        self._lost = [(self.missing_from, self.hollow)] if self.missing_from <= self.hollow else []
        log.note_dropped(Dropped(self._lost, []))
        log.durable, log.deliverable = self.committed.end, 0
        # Whoever was the master before may have been asked to flush any of it.
        log.last_persistent = log.last_transient = log.end
        self.is_master = True

    def fill_queue(
        self,
        core: QueueCore,
        read: Reader,
        done: Callable[[str | None], None],
        *,
        is_restarted: bool = False,
    ) -> None:
        """Fill the (empty) core of a queue mastered here; `done` gets an error or None.

        `is_restarted`: this process did not receive all of it, so transient messages are dropped, which the
        first EPOCH record says. If another node becomes the master meanwhile `done` hears nothing.
        """
        filling = self._filling = object()

        def read_on(file: str, offset: int, length: int, take: ReadDone) -> None:
            # Not when it comes too late: the state would be that of a copy by then.
            read(file, offset, length, lambda *found: take(*found) if self._filling is filling else None)

        def filled(dropped: Dropped, error: str | None) -> None:
            self._dropped = Dropped([*self._lost, *dropped.seqs], dropped.numbers)
            self._lost = []
            done(error)

        fill(self.log, core, read_on, filled, is_restarted=is_restarted)

    def begin_epoch(self, epoch: int, node: str, now: Now) -> None:
        """Write that `node`, this one, is the master from here on; first of all in an epoch."""
        log = self.log
        assert self.is_master, "only a master begins an epoch"
        assert epoch > self.epoch_at(log.end), (epoch, self.position)
        log.epoch = epoch
        dropped, self._dropped = self._dropped, NOTHING
        flags, payload = encode_epoch(node, dropped)
        opening, log.opening = log.opening, None
        log.write_other(records.EPOCH, flags, payload, now, flush=True)
        log.opening = opening

    def from_queue(self) -> None:
        """Another node is the master now: the log stays, and what this node made of its end does not."""
        self.is_master = False
        self._dropped = NOTHING
        self._filling = None
        log, committed = self.log, self.committed
        # What a copy shows of itself is the committed state; the rest is made anew if it is promoted again.
        log.dead, log.horizon, log.dying, log.counts = (
            committed.dead,
            committed.horizon,
            committed.dying,
            committed.counts,
        )
        log.letters, log.refused = committed.letters, committed.refused
        log.sink, log.origins = committed.sink, committed.origins
        log.forget_waiters()

    def detach(self) -> None:
        """The queue has no mirrors any more: the master's own state is what counts."""
        assert self.is_master
        self.recent.clear()
        self.pins.clear()
        log = self.log
        log.copy = log.on_flushed = None
        if log.flushed == log.end:
            log.raise_deliverable(log.horizon)
        log.raise_durable(log.flushed)


def encode_note(kind: int, flags: int, payload: bytes) -> bytes:
    """A batch of no queue: something this node notes for itself."""
    return records.encode_batch(0, 0, 0, 0, [(kind, flags, payload)])


def note_payload(queue_id: int, value: int) -> bytes:
    """What a note tells of one queue."""
    return _PAIR.pack(queue_id, value)


def decode_note(payload: bytes) -> list[tuple[int, int]]:
    """(queue id, seq) that a note tells."""
    return list(_PAIR.iter_unpack(payload))


def _ignore(batch: bytes, first: int, count: int) -> None:
    """Nobody sends it on yet."""
