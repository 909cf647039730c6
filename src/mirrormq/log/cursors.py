"""Named cursors of a durable queue: positions in its record stream from which on everything stays readable.

Guarantees
- While a cursor at seq s is not lost, every record from s on is kept, dead or alive, publish or not, in the
  journal or in a segment: a range read from s gives the same records today, after a restart and after any
  recycling. `low` is the lowest position that is held.
- A cursor is opened only where nothing is missing, and what a recycling step has given up counts as missing
  from the moment it was decided, not from the moment the file goes: the two cannot cross.
- Positions only grow. An advance that a crash takes back leaves the cursor further back, never ahead: files
  go only behind a checkpoint that knows the advance.
- A cursor that holds too much, or has not moved for too long, is lost: it holds nothing any more, and its
  name says so until it is dropped. Nobody is ever given a stream with a silent gap.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from mirrormq.base import limits
from mirrormq.base.types import Now, Seq
from mirrormq.kernel import records
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log.disk import LogRefused
from mirrormq.log.index import SeqIndex
from mirrormq.log.queuelog import EVERYTHING

HERE, DROPPED, LOST, CONSUMES = 0, 1, 2, 4
"""Flags of a CURSOR record. CONSUMES is as HERE, and its reader is the only one who takes from the queue."""

_HEAD = struct.Struct("<QQQB")

Overflow = Literal["lose", "hold"]
INVALIDATE, BLOCK = "invalidate", "block-publish"
"""How arguments and policies say it."""

Row = tuple[int, int, bytes]
"""Kind, flags and payload of a record that is no publish."""


class Cursor(NamedTuple):
    """One cursor."""

    name: str
    seq: int
    """The next record its reader wants: this and everything behind it is kept."""
    epoch: int
    """Epoch of the record before `seq`; 0 if there is none."""
    opened_at: int
    moved_at: int
    """When its reader was heard last (wall µs)."""
    lost: str = ""
    """Why it holds nothing any more."""
    query: str | None = None
    """Not None: its reader is the only one who takes messages from the queue, and says this of itself."""


class CursorRefused(Exception):
    """What was asked of a cursor cannot be done; the text is fit for a client (406)."""


class Holder(Protocol):
    """The log a cursor belongs to."""

    end: Seq
    low: int
    published: int
    written: int
    damage: str | None
    dead: RangeSet
    index: SeqIndex

    def write_other(self, kind: int, flags: int, payload: bytes, now: Now, *, flush: bool) -> None:
        """Append a record that is no publish."""
        ...

    def write_others(self, rows: "list[Row]", now: Now, *, flush: bool) -> None:
        """Append some of them as one batch."""
        ...


class Cursors:
    """The cursors of one log."""

    __slots__ = (
        "_all",
        "_consuming",
        "_log",
        "_noted_at",
        "is_over",
        "low",
        "max_age_us",
        "max_bytes",
        "on_lost",
        "overflow",
    )

    def __init__(self, log: Holder) -> None:
        self._log = log
        self._all: dict[str, Cursor] = {}
        self._consuming: Cursor | None = None
        self._noted_at: dict[str, int] = {}
        self.low = EVERYTHING
        """Records from here on are kept whatever becomes of them."""
        self.max_bytes = limits.cursor_bytes_max
        self.max_age_us = limits.cursor_age_us
        self.overflow: Overflow = "lose"
        self.is_over = False
        """With `hold`: a cursor holds more than it may, publishers should wait until its reader advances."""
        self.on_lost: Callable[[Cursor], None] = _nothing

    def __len__(self) -> int:
        return len(self._all)

    def cursors(self) -> list[Cursor]:
        """All cursors, lost ones included."""
        return list(self._all.values())

    @property
    def consuming(self) -> Cursor | None:
        """The one whose reader alone takes messages from the queue."""
        return self._consuming

    def set_bounds(self, max_bytes: int | None, max_age_us: int | None, overflow: str | None) -> None:
        """What a cursor may hold and for how long; None: the defaults, 0: anything."""
        self.max_bytes = limits.cursor_bytes_max if max_bytes is None else max_bytes
        self.max_age_us = limits.cursor_age_us if max_age_us is None else max_age_us
        self.overflow = "hold" if overflow == BLOCK else "lose"

    def get(self, name: str) -> Cursor:
        """The cursor with this name; refused if there is none."""
        found = self._all.get(name)
        if found is None:
            raise CursorRefused(f"there is no cursor '{name}'")
        return found

    # --- what a reader asks ---

    def open_cursor(self, name: str, at: int | None, now: Now, query: str | None = None) -> Cursor:
        """Begin to keep everything from seq `at` on (None: from what comes next).

        A cursor that is there already is returned as it stands. A new one holds from now on, and survives a
        crash when the log is durable up to its present end. With `query` nobody else may take messages.
        """
        log = self._log
        found = self._all.get(name)
        if found is not None:
            if (found.query is None) != (query is None):
                raise CursorRefused(f"cursor '{name}' was opened in the other mode")
            return _unless_lost(found)
        if not name or len(name.encode()) > limits.short_string_bytes_max:
            raise CursorRefused("a cursor's name has 1 to 255 bytes")
        if log.damage is not None:
            raise CursorRefused(f"the queue is damaged: {log.damage}")
        if len(self._all) >= limits.cursors_max:
            raise CursorRefused(f"the queue has {limits.cursors_max} cursors already")
        seq = log.end + 1 if at is None else at
        if seq < log.low:
            raise CursorRefused(f"records before {log.low} are no longer kept, {seq} was asked for")
        if seq > log.end + 1:
            raise CursorRefused(f"the log ends with record {log.end}, {seq} was asked for")
        made = Cursor(name, seq, log.index.epoch_of(seq - 1), now.wall, now.wall, query=query)
        return self._write(made, now, flush=True)

    def advance(self, name: str, to: int, now: Now, also: Sequence[Row] = ()) -> Cursor:
        """The reader is done with everything before `to`. Asking for the same place keeps a cursor young.
        `also` are records to be written in the same batch.
        """
        found = _unless_lost(self.get(name))
        if to < found.seq or to > self._log.end + 1:
            raise CursorRefused(
                f"cursor '{name}' stands at {found.seq} and the log ends with record {self._log.end}: "
                f"it cannot move to {to}"
            )
        moved = found._replace(
            seq=to, epoch=self._log.index.epoch_of(to - 1), moved_at=max(now.wall, found.moved_at)
        )
        if to == found.seq and not also and now.wall - self._noted_at.get(name, 0) < self.max_age_us // 8:
            self._put(moved)
            return moved
        return self._write(moved, now, flush=False, also=also)

    def drop(self, name: str, now: Now) -> None:
        """Hold nothing for this cursor any more and forget it."""
        found = self.get(name)
        self._log.write_other(records.CURSOR, DROPPED, encode(found, now), now, flush=False)
        self._forget(name)

    # --- bounds ---

    def held_bytes(self, cursor: Cursor) -> int:
        """Bytes kept for this cursor alone, about: what was written from it on, less what is live anyway."""
        log = self._log
        if cursor.lost or cursor.seq > log.end:
            return 0
        since = log.index.at(cursor.seq)
        written, publishes = log.written - since.written, log.published - since.publishes
        live = log.dead.missing_count(cursor.seq, log.end)
        return written - written * min(live, publishes) // publishes if publishes else written

    def check(self, now: Now) -> None:
        """Once in a while: give up cursors beyond their bounds, or say that publishers should wait."""
        self.is_over = False
        for cursor in self.cursors():
            if cursor.lost:
                continue
            if 0 < self.max_age_us < now.wall - cursor.moved_at:
                self._lose(cursor, f"nobody moved it for {(now.wall - cursor.moved_at) // 1_000_000} s", now)
            elif 0 < self.max_bytes < (held := self.held_bytes(cursor)):
                if self.overflow == "hold":
                    self.is_over = True
                else:
                    self._lose(cursor, f"it held {held} bytes, {self.max_bytes} are allowed", now)

    def _lose(self, cursor: Cursor, reason: str, now: Now) -> None:
        lost = cursor._replace(lost=reason)
        self._log.write_other(records.CURSOR, LOST, encode(lost, now), now, flush=False)
        self._put(lost)
        self.on_lost(lost)

    # --- the log's side ---

    def load(self, cursors: list[Cursor]) -> None:
        """These are the cursors, as a checkpoint or another copy says."""
        self._noted_at = {cursor.name: cursor.moved_at for cursor in cursors}
        self._all = {cursor.name: cursor for cursor in cursors}
        self._find_low()

    def apply(self, flags: int, payload: bytes) -> None:
        """What a CURSOR record says."""
        time, seq, epoch, size = _HEAD.unpack_from(payload)
        name = payload[_HEAD.size : _HEAD.size + size].decode()
        found = self._all.get(name)
        if flags == DROPPED:
            self._forget(name)
            return
        if flags not in (HERE, LOST, CONSUMES):
            raise LogRefused(f"a CURSOR record with unknown flag {flags}: a newer version wrote it")
        text = payload[_HEAD.size + size :].decode()
        self._noted_at[name] = time
        opened_at = found.opened_at if found is not None else time
        query = text if flags == CONSUMES else None
        self._put(Cursor(name, seq, epoch, opened_at, time, text if flags == LOST else "", query))

    def _write(self, cursor: Cursor, now: Now, *, flush: bool, also: Sequence[Row] = ()) -> Cursor:
        # Held before it is written: its own append may make the journal go on to a new file.
        self._noted_at[cursor.name] = cursor.moved_at
        if cursor.name not in self._all:
            self._put(cursor)
        flags = HERE if cursor.query is None else CONSUMES
        self._log.write_others([*also, (records.CURSOR, flags, encode(cursor, now))], now, flush=flush)
        self._put(cursor)
        return cursor

    def _put(self, cursor: Cursor) -> None:
        self._all[cursor.name] = cursor
        self._find_low()

    def _forget(self, name: str) -> None:
        self._all.pop(name, None)
        self._noted_at.pop(name, None)
        self._find_low()

    def _find_low(self) -> None:
        held = [one for one in self._all.values() if not one.lost]
        self.low = min((one.seq for one in held), default=EVERYTHING)
        self._consuming = next((one for one in held if one.query is not None), None)


def encode(cursor: Cursor, now: Now) -> bytes:
    """The payload of a CURSOR record."""
    name = cursor.name.encode()
    time = max(now.wall, cursor.moved_at)
    text = cursor.lost or cursor.query or ""
    return _HEAD.pack(time, cursor.seq, cursor.epoch, len(name)) + name + text.encode()


def seq_of(payload: bytes) -> int:
    """Where a CURSOR record says that its cursor stands."""
    return int(_HEAD.unpack_from(payload)[1])


def _unless_lost(cursor: Cursor) -> Cursor:
    if cursor.lost:
        raise CursorRefused(f"cursor '{cursor.name}' was lost: {cursor.lost}; drop it and begin anew")
    return cursor


def _nothing(cursor: Cursor) -> None:
    """Nobody listens yet."""
