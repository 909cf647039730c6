"""A full copy of a mirrored queue: for a mirror whose log has nothing in common with what the others kept.

Guarantees
- A copy shows one moment, K0, which was committed when it began: the *base* is the state there, and the
  records are those that were live there or held by a cursor, with their seqs, epochs and payloads. What
  happens afterwards comes behind it as ordinary records.
- The source keeps what it promised (`Source.pin`): what was live at K0, and every record behind it.
- One seq says how far a copy is. A source that cannot keep its pin makes a new base; the copy goes on where
  it stands, and what is dead in the new base is dead.
- The receiver gives up what it had before it takes anything; until all is flushed and a checkpoint says so,
  a restart finds an empty log. `done` means durable.
- A receiver that gets no old records, or not all of them, goes on behind K0 (`follow`, `salvage`). It is
  complete when a checkpoint says that nothing up to K0 is live or held by a cursor (`settle`); a restart
  before finds it as it was, or an empty log.

Copied records go to segments at once: they are old, and the journal is for what is new.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from mirrormq.base.types import Now, Seq
from mirrormq.kernel import records
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log import journal as journals
from mirrormq.log import origins as origins_
from mirrormq.log.copylog import RESET, CopyLog, NotFollowing, Pin, encode_note, note_payload
from mirrormq.log.copyread import Scan, slice_bytes
from mirrormq.log.cursors import Cursor
from mirrormq.log.disk import Reader
from mirrormq.log.dying import Death
from mirrormq.log.index import Entry, SeqIndex
from mirrormq.log.scan import Head
from mirrormq.log.segments import Copied
from mirrormq.log.sinkstate import Saved, SinkState


class Base(msgspec.Struct, frozen=True, array_like=True):
    """The state at K0, as it travels."""

    end: int
    epoch: int
    horizon: int
    last_wall: int
    dead: list[tuple[int, int]]
    last_number: int
    letters: list[tuple[int, int]]
    refused: list[tuple[int, list[tuple[int, int]]]]
    dying: list[Death]
    counts: list[tuple[int, int]]
    published: int
    written: int
    epochs: list[tuple[int, int]]
    cursors: list[Cursor]
    low: int
    """Every record from here on is part of the copy, dead or alive."""
    sink: Saved | None = None
    """Of a staging queue: its transactions."""
    origins: origins_.Saved | None = None
    """Of a queue of a mirror: what its messages are copies of."""


class Piece(NamedTuple):
    """A batch of a full copy, with the publishes and bytes that were written before it."""

    batch: bytes
    publishes: int
    written: int


Pieces = Callable[[list[Piece] | None, int, str | None], None]
"""Gets the next pieces and how far they reach, or None and why there are none."""


class Checkpoints(Protocol):
    """Who makes segments and what is known of them durable."""

    orphans: list[str]
    """Files nobody needs any more."""

    def checkpoint_soon(
        self, files: list[str], flushed: Callable[[], None], durable: Callable[[], None]
    ) -> None:
        """Flush these files, call `flushed`, then write a checkpoint; `durable` hears of it."""
        ...


class Source:
    """Where a full copy comes from: the log of a member that is in sync."""

    def __init__(self, copy: CopyLog) -> None:
        """The copy shows what is committed now, and is kept until `release`."""
        self._copy = copy
        log, state = copy.log, copy.committed
        state.forget_buried()
        self.k0 = int(state.end)
        # What is held for others than cursors is not part of the copy.
        self._low = max(min(copy.cursors_low, self.k0 + 1), log.low)
        self.dead = state.dead.copy()
        self.pin = Pin(copy, self._low, self.dead)
        # The oldest pin is looked at first: what died since then stays for all of them.
        copy.pins.append(self.pin)
        self.base = msgspec.msgpack.encode(
            Base(
                end=self.k0,
                epoch=state.epoch,
                horizon=state.horizon,
                last_wall=state.last_wall,
                dead=self.dead.spans_list(),
                last_number=state.last_number,
                letters=list(state.letters.items()),
                refused=[(row, numbers.spans_list()) for row, numbers in state.refused.items() if numbers],
                dying=list(state.dying.values()),
                counts=list(state.counts.items()),
                published=state.published,
                written=state.written,
                epochs=[(epoch, first) for epoch, first in log.index.epochs if first <= self.k0],
                cursors=state.cursors.cursors(),
                low=self._low,
                sink=state.sink.save() if state.sink is not None else None,
                origins=state.origins.save(state.dead) if state.origins is not None else None,
            )
        )

    def release(self) -> None:
        """The copy is complete, or given up."""
        self.pin.release()

    def read(self, position: int, most: tuple[int, int], done: Pieces, *, read: Reader) -> None:
        """What the copy holds behind `position`, `most` so many bytes and records of it; the answer reaches
        K0 at the latest. A batch with too many records is cut.
        """
        log = self._copy.log
        max_bytes, max_records = slice_bytes(most[0]), most[1]
        found: list[Piece] = []
        reached = position
        size = count = 0
        entry: Entry | None = None

        def visit(data: bytes, at: int, head: Head) -> bool:
            nonlocal reached, size, count, entry
            first = head[3]
            exact = log.index.at(first)
            before = exact if entry is None or exact.seq > entry.seq else entry
            entry = Entry(first + head[4], head[6], before.publishes + head[5], before.written + head[0])
            kept = records.copy_kept(data, at, self.dead, position, self._low)
            last = records.last_seq(data, at)
            if kept is not None:
                if kept[1] > max_records - count:
                    last = kept[3] + max_records - count - 1
                    kept = records.cut(kept[0], 0, kept[3], last + 1)
                    assert kept is not None, "its first record is in it"
                if found and size + len(kept[0]) > max_bytes:
                    return False
                # Of a batch that was cut before, some publishes have been sent.
                sent = min(max(position + 1 - first, 0), head[5])
                found.append(Piece(kept[0], before.publishes + sent, before.written))
                size += len(kept[0])
                count += kept[1]
            reached = last
            return reached < self.k0 and size < max_bytes and count < max_records

        def finished(error: str | None) -> None:
            if error is not None:
                done(None, position, error)
            else:
                done(
                    found,
                    reached if size >= max_bytes and reached < self.k0 else max(reached, next_live()),
                    None,
                )

        def next_live() -> int:
            """Nothing between what was read and the next live record is part of the copy."""
            return (
                min(self.dead.first_missing(reached + 1) - 1, self.k0) if reached + 1 < self._low else reached
            )

        if position >= self.k0:
            done([], self.k0, None)
        else:
            Scan(log, read, (position + 1, self.k0), visit).start(finished)


class Copying:
    """The receiving end of a full copy."""

    def __init__(self, copy: CopyLog, files: Checkpoints, now: Now) -> None:
        """Give up what the log had. Refused to a master, and by whoever knows that the copy is needed."""
        assert not copy.is_master, "a master has what it needs"
        self._copy = copy
        self._files = files
        self.position = 0
        """Everything up to here was received."""
        self.is_flushed = False
        """Does what was received survive a crash, if a checkpoint says so?"""
        self.is_finishing = False
        """All was received, and waits for a checkpoint."""
        self._base: Base | None = None
        self._names: dict[str, None] = {}
        log = copy.log
        copy.copying = self
        files.orphans += log.wipe()
        copy.committed.clear()
        copy.tail.clear()
        copy.recent.clear()
        copy.hollow, copy.missing_from, copy.is_void, copy.is_saved = 0, 1, False, True
        copy.round += 1
        self._note_reset(0, now)

    def _note_reset(self, seq: int, now: Now) -> None:
        log = self._copy.log
        note = encode_note(records.TRUNCATE, RESET, note_payload(log.queue_id, seq))
        file, offset = log.journal.add(log, note, flush=True, now=now)
        serial = journals.serial_of(file)
        assert serial is not None
        log.begins = (serial, offset)
        log.cuts = [(serial, offset, seq)]

    @property
    def k0(self) -> int:
        """The last record of the copy; 0 before its base is known."""
        return self._base.end if self._base is not None else 0

    def load_base(self, data: bytes) -> None:
        """This is the state the copy will show; a later base takes the place of an earlier one."""
        base = msgspec.msgpack.decode(data, type=Base)
        if base.end < max(self.position, self.k0):
            raise NotFollowing(f"a base at {base.end} for a copy that has reached {self.position}")
        if self._base is not None and base.low < min(self._base.low, self.position + 1):
            # What was dead before came without its records, and a cursor opened since wants them.
            raise NotFollowing(f"the copy has every record from {self._base.low} on, not from {base.low}")
        self._base = base
        self._copy.log.index.epochs = [(epoch, first) for epoch, first in base.epochs]

    def take(self, pieces: list[Piece], position: int) -> None:
        """The next records; with them everything up to `position` was received."""
        if self._base is None or not self.position <= position <= self._base.end:
            raise NotFollowing(f"the copy stands at {self.position}, {position} was received")
        log = self._copy.log
        for piece in pieces:
            copied = _copied(piece.batch, log.queue_id)
            if copied is None or copied.first <= self.position or copied.last > position:
                raise NotFollowing(f"a piece does not belong between {self.position} and {position}")
            head = records.read_head(piece.batch, 0)
            assert head is not None
            entry = Entry(copied.first, head[6], piece.publishes, piece.written)
            place = log.segments.add(copied, entry)
            log.places.insert([place])
            log.index.note(entry)
            self._names[place.file] = None
        self.position = position

    def finish(self, done: Callable[[str | None], None]) -> None:
        """Everything up to K0 was received: make it the log. `done` gets None when that is durable."""
        base, log, copy = self._base, self._copy.log, self._copy
        assert base is not None, "there is no base"
        assert self.position == base.end, (self.position, base.end)
        missing = self._missing(RangeSet(base.dead))
        if missing:
            done(f"record {missing} of the copy is missing")
            return
        self.is_finishing = True
        self._install(base)
        log.segments.end, log.low = base.end, base.low

        def flushed() -> None:
            self.is_flushed = True

        def durable() -> None:
            if copy.copying is not self:
                return  # given up for another one meanwhile
            # Not before: a flush of the journal alone must not make the copy count.
            self._end_at(base)
            log.flushed = Seq(base.end)
            done(None)

        self._files.checkpoint_soon(list(self._names), flushed, durable)

    def follow(self, now: Now) -> None:
        """The old records do not come: go on behind K0 without them, and without those that did."""
        log = self._copy.log
        assert not self.is_finishing, "all of it is here"
        self._files.orphans += log.segments.clear()
        log.places.clear()
        log.index = SeqIndex()
        self._names = {}
        self.position = 0
        self.salvage(now)

    def salvage(self, now: Now) -> None:
        """Nothing more will come: what did is all there is."""
        base, log, copy = self._base, self._copy.log, self._copy
        assert base is not None, "there is no base"
        self._install(base)
        self._end_at(base)
        log.segments.end, log.low = base.end, base.low if self.position == base.end else base.end + 1
        copy.hollow, copy.missing_from = base.end, self.position + 1
        copy.is_void, copy.is_saved = True, False
        # Behind this note lie records that mean nothing without a checkpoint that tells the base.
        self._note_reset(base.end, now)
        started = copy.round

        def flushed() -> None:
            if copy.round == started:
                copy.is_void = False

        def durable() -> None:
            if copy.round == started:
                copy.is_saved = True
                if log.on_flushed is not None:
                    log.on_flushed()

        self._files.checkpoint_soon(list(self._names), flushed, durable)

    def _install(self, base: Base) -> None:
        """What is committed is what the base says."""
        state = self._copy.committed
        state.dead = RangeSet(base.dead)
        state.end, state.epoch, state.horizon = Seq(base.end), base.epoch, base.horizon
        state.last_wall, state.last_number = base.last_wall, base.last_number
        state.letters, state.counts = dict(base.letters), dict(base.counts)
        state.refused = {row: RangeSet(spans) for row, spans in base.refused}
        state.dying = {death.seq: death for death in base.dying}
        state.published, state.written = base.published, base.written
        state.sink = SinkState.load(base.sink) if base.sink is not None else None
        state.origins = origins_.load(base.origins)
        state.cursors.load(base.cursors)
        self._copy.log.index.epochs = [(epoch, first) for epoch, first in base.epochs]

    def _end_at(self, base: Base) -> None:
        """The log ends with the base, and goes on behind it."""
        log, copy = self._copy.log, self._copy
        log.end = Seq(base.end)
        log.epoch, log.last_wall = base.epoch, base.last_wall
        log.published, log.written = base.published, base.written
        copy.copying = None
        copy.from_queue()

    def _missing(self, dead: RangeSet) -> int:
        """The first live record that no segment holds, as far as their counts can tell; 0 if none."""
        log = self._copy.log
        position = 0
        for segment in log.segments.all:
            if position + 1 < segment.first and not dead.covers(position + 1, segment.first - 1):
                return dead.first_missing(position + 1)
            if segment.publishes < segment.live(dead):
                return dead.first_missing(segment.first)
            position = segment.last
        rest = dead.first_missing(position + 1)
        return rest if rest <= self.k0 else 0


def is_settled(copy: CopyLog) -> bool:
    """Is nothing that a hollow copy may lack live or held by a cursor?"""
    if copy.missing_from > copy.hollow:
        return True
    state = copy.committed
    if state.dead.first_missing(copy.missing_from) <= copy.hollow:
        return False
    # A master that was made without old records has none for its cursors, and nobody else counts.
    return copy.is_master or state.cursors.low > copy.hollow


def settle(copy: CopyLog, files: Checkpoints, done: Callable[[], None]) -> None:
    """A hollow copy lacks nothing any more: `done` hears when that is durable."""
    started = copy.round
    copy.hollow = 0

    def durable() -> None:
        if copy.round == started:
            done()

    files.checkpoint_soon([], _nothing, durable)


def _copied(batch: bytes, queue_id: int) -> Copied | None:
    """A batch as a segment takes it; None if it is none of this queue."""
    head = records.read_head(batch, 0)
    if head is None or head[0] != len(batch) or head[1] != queue_id:
        return None
    transients = len(records.transients(batch, 0))
    return Copied(batch, head[4], head[5], head[3], records.last_seq(batch, 0), transients)


def _nothing() -> None:
    """Nothing is waited for."""
