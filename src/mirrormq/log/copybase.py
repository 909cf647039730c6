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

Copied records go to segments at once: they are old, and the journal is for what is new.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from mirrormq.base.types import Now, Seq
from mirrormq.kernel import records
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log import journal as journals
from mirrormq.log.copylog import RESET, CopyLog, NotFollowing, Pin, encode_note, note_payload
from mirrormq.log.copyread import Scan, slice_bytes
from mirrormq.log.cursors import Cursor
from mirrormq.log.disk import Reader
from mirrormq.log.dying import Death
from mirrormq.log.index import Entry
from mirrormq.log.scan import Head
from mirrormq.log.segments import Copied


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
        self._low = max(min(copy.keep_from, self.k0 + 1), log.low)
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
            )
        )

    def release(self) -> None:
        """The copy is complete, or given up."""
        self.pin.release()

    def read(self, position: int, max_bytes: int, done: Pieces, *, read: Reader) -> None:
        """What the copy holds behind `position`, some of it; the answer reaches K0 at the latest."""
        log = self._copy.log
        most = slice_bytes(max_bytes)
        found: list[Piece] = []
        reached = position
        size = 0
        entry: Entry | None = None

        def visit(data: bytes, at: int, head: Head) -> bool:
            nonlocal reached, size, entry
            first, count = head[3], head[4]
            exact = log.index.at(first)
            before = exact if entry is None or exact.seq > entry.seq else entry
            entry = Entry(first + count, head[6], before.publishes + head[5], before.written + head[0])
            kept = records.copy_kept(data, at, self.dead, position, self._low)
            if kept is not None:
                if found and size + len(kept[0]) > most:
                    return False
                found.append(Piece(kept[0], before.publishes, before.written))
                size += len(kept[0])
            reached = records.last_seq(data, at)
            return reached < self.k0 and size < most

        def finished(error: str | None) -> None:
            if error is not None:
                done(None, position, error)
            else:
                done(
                    found, reached if size >= most and reached < self.k0 else max(reached, next_live()), None
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
        self._base: Base | None = None
        self._names: dict[str, None] = {}
        log = copy.log
        copy.copying = self
        files.orphans += log.wipe()
        copy.committed.clear()
        copy.tail.clear()
        copy.recent.clear()
        note = encode_note(records.TRUNCATE, RESET, note_payload(log.queue_id, 0))
        file, offset = log.journal.add(log, note, flush=True, now=now)
        serial = journals.serial_of(file)
        assert serial is not None
        log.begins = (serial, offset)
        log.cuts = [(serial, offset, 0)]

    @property
    def k0(self) -> int:
        """The last record of the copy; 0 before its base is known."""
        return self._base.end if self._base is not None else 0

    def load_base(self, data: bytes) -> None:
        """This is the state the copy will show; a later base takes the place of an earlier one."""
        base = msgspec.msgpack.decode(data, type=Base)
        if base.end < max(self.position, self.k0):
            raise NotFollowing(f"a base at {base.end} for a copy that has reached {self.position}")
        self._base = base

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
        state = copy.committed
        state.dead = RangeSet(base.dead)
        missing = self._missing(state.dead)
        if missing:
            done(f"record {missing} of the copy is missing")
            return
        state.end, state.epoch, state.horizon = Seq(base.end), base.epoch, base.horizon
        state.last_wall, state.last_number = base.last_wall, base.last_number
        state.letters, state.counts = dict(base.letters), dict(base.counts)
        state.refused = {row: RangeSet(spans) for row, spans in base.refused}
        state.dying = {death.seq: death for death in base.dying}
        state.published, state.written = base.published, base.written
        state.cursors.load(base.cursors)
        log.index.epochs = [(epoch, first) for epoch, first in base.epochs]
        log.segments.end, log.low = base.end, base.low

        def flushed() -> None:
            self.is_flushed = True

        def durable() -> None:
            # Not before: a flush of the journal alone must not make the copy count.
            log.end = log.flushed = Seq(base.end)
            log.epoch, log.last_wall = base.epoch, base.last_wall
            log.published, log.written = base.published, base.written
            copy.copying = None
            copy.from_queue()
            done(None)

        self._files.checkpoint_soon(list(self._names), flushed, durable)

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


def _copied(batch: bytes, queue_id: int) -> Copied | None:
    """A batch as a segment takes it; None if it is none of this queue."""
    head = records.read_head(batch, 0)
    if head is None or head[0] != len(batch) or head[1] != queue_id:
        return None
    transients = len(records.transients(batch, 0))
    return Copied(batch, head[4], head[5], head[3], records.last_seq(batch, 0), transients)
