"""Reading a range of a queue's record stream from its files, sans-io.

Guarantees
- A range [start, end) gives exactly its records, in order, each once, with the epoch, kind, flags and
  payload they were written with; or it fails with a text. Never a stream with a gap.
- Nothing beyond the durable mark is given: what a reader has seen survives a crash.
- One slice of a file is in memory at a time, however long the range is.
- Files may be emptied, rewritten and removed meanwhile: what was being read is valid, and the reader goes on
  where the records are then. A cursor at or before its position keeps them.

Use: `ask` names the piece to be read next (None: finished), `feed` takes what was read and returns batches
that hold records of the range only.
"""

from typing import NamedTuple

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log.durable import DurableLog
from mirrormq.log.scan import Head, scan


class RangeRefused(Exception):
    """The range cannot be read here, or not now."""


class RangeLost(Exception):
    """Records of the range are gone or cannot be read."""


class Piece(NamedTuple):
    """A part of a file to be read."""

    file: str
    offset: int
    length: int


class Walk:
    """The batches of one queue that reach seq `position` or lie behind it, in order."""

    def __init__(self, log: DurableLog, position: int, *, slice_bytes: int = 0) -> None:
        self._log = log
        self.position = position
        self._slice = slice_bytes or limits.range_slice_bytes
        self._next: Piece | None = None
        self._asked: Piece | None = None

    def ask(self) -> Piece | None:
        """What to read next; None if nothing lies behind what was read."""
        while True:
            piece = self._next or self._locate()
            if piece is None:
                return None
            end = self._log.readable_end(piece.file)
            length = piece.length if end is None else min(piece.length, end - piece.offset)
            if length > 0:
                self._asked = piece._replace(length=length)
                return self._asked
            self._next = self._following(piece.file)
            if self._next is None:
                return None

    def feed(self, data: bytes | None, error: str | None) -> list[tuple[bytes, int, Head]]:
        """(data, offset, head) of this queue's batches in what was read."""
        if data is None:
            self.failed(error)
            return []
        found = scan(data)
        own: list[tuple[bytes, int, Head]] = []
        for at, head in found.batches:
            if head[1] == self._log.queue_id and self._log.is_own(head[2], head[3]):
                last = records.last_seq(data, at)
                if last >= self.position:
                    own.append((data, at, head))
                    self.position = last + 1
        self.passed(len(data), found.resume, found.need)
        return own

    def failed(self, error: str | None) -> None:
        """What was asked for cannot be read: lost, unless it lies elsewhere by now."""
        piece = self._asked
        assert piece is not None, "nothing was asked for"
        if self._log.places.knows(piece.file):
            raise RangeLost(f"{piece.file} cannot be read: {error}")
        self._next = None  # emptied or rewritten while we waited

    def passed(self, size: int, resume: int, need: int) -> None:
        """So many bytes were read; it goes on at `resume`, where a batch takes `need` bytes if not 0."""
        piece = self._asked
        assert piece is not None, "nothing was asked for"
        if not self._log.places.knows(piece.file):
            self._next = None
            return
        end = self._log.readable_end(piece.file)
        is_more = size == piece.length and (end is None or piece.offset + size < end)
        if is_more and max(resume, need) > 0:
            length = max(need, self._slice)
            self._next = Piece(piece.file, piece.offset + resume, length)
        else:
            self._next = self._following(piece.file) or Piece(piece.file, piece.offset + size, 0)

    def _locate(self) -> Piece | None:
        place = self._log.places.at(self.position)
        return Piece(place.file, place.offset, self._slice) if place is not None else None

    def _following(self, file: str) -> Piece | None:
        place = self._log.places.after(file)
        return Piece(place.file, place.offset, self._slice) if place is not None else None


class RangeReader:
    """One reading of one range."""

    def __init__(self, log: DurableLog, start: int, end: int) -> None:
        """Refused if not all of start <= seq < end is kept and durable."""
        if log.damage is not None:
            raise RangeRefused(f"the queue is damaged: {log.damage}")
        if not 1 <= start <= end:
            raise RangeRefused(f"{start} to {end} is no range")
        if start < log.low:
            raise RangeRefused(f"records before {log.low} are no longer kept, {start} was asked for")
        if end > log.durable + 1:
            raise RangeRefused(f"records are durable up to {log.durable}, {end - 1} was asked for")
        self._log = log
        self._end = end
        self._walk = Walk(log, start)
        self.position = start
        """The next record to be given."""

    @property
    def is_done(self) -> bool:
        """Was everything given?"""
        return self.position >= self._end

    def ask(self) -> Piece | None:
        """What to read next; None when the range is done."""
        if self.is_done:
            return None
        self._check_low()
        piece = self._walk.ask()
        if piece is None:
            raise RangeLost(f"record {self.position} is in no file")
        return piece

    def feed(self, data: bytes | None, error: str | None) -> list[bytes]:
        """Batches with the next records of the range, for what `ask` asked for."""
        out: list[bytes] = []
        for source, at, _ in self._walk.feed(data, error):
            cut = records.cut(source, at, self.position, self._end)
            if cut is None:
                continue
            batch, count, _, first, last, _ = cut
            if first != self.position or last - first + 1 != count:
                self._check_low()
                raise RangeLost(f"a record between {self.position} and {last} is missing")
            out.append(batch)
            self.position = last + 1
            if self.is_done:
                break
        return out

    def _check_low(self) -> None:
        if self.position < self._log.low:
            raise RangeLost(f"records before {self._log.low} were given up, {self.position} is wanted")
