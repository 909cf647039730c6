"""Reading a file of batches from one end to the other without holding the loop.

Guarantees: every whole batch is shown once, in order; what lies between them and cannot be read is shown
too, so that whoever copies a file never drops a part of it silently. A step takes about a millisecond: the
bytes read at once follow the size of the batches, as a batch costs much the same however small it is.
"""

from typing import NamedTuple, Protocol

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log.disk import Reader
from mirrormq.log.scan import Head, Scanned, scan

SLICE_MIN = 8 * 1024


class Gap(NamedTuple):
    """Bytes of a file that cannot be read."""

    at: int
    queue_id: int
    """0: it cannot be told whose it was, nor the seqs."""
    first: int
    records: int


class Visitor(Protocol):
    """Whoever copies."""

    def batches(self, data: bytes, found: list[tuple[int, Head]]) -> bool:
        """The next whole batches; False to read no further."""
        ...

    def gap(self, gap: Gap) -> None:
        """Something between batches cannot be read."""
        ...

    def end(self, error: str | None) -> None:
        """The end of the file was reached; or reading failed, and why."""
        ...


class Slices:
    """One passage through one file."""

    def __init__(self, read: Reader, file: str, span: tuple[int, int], visitor: Visitor) -> None:
        """`span`: where the batches begin and end."""
        self._read = read
        self._file = file
        self.at, self._end = span
        """Where the slice begins that is being shown; and the end of all."""
        self._visitor = visitor
        self._gap_at: int | None = None
        self._slice = min(2 * SLICE_MIN, limits.recycle_slice_bytes)

    def start(self) -> None:
        """Begin, or go on."""
        self._read_on(self._slice)

    def _read_on(self, length: int) -> None:
        length = min(length, self._end - self.at)
        if length <= 0:
            self._finish()
            return
        self._read(self._file, self.at, length, lambda data, error: self._on_read(length, data, error))

    def _on_read(self, length: int, data: bytes | None, error: str | None) -> None:
        if data is None:
            self._visitor.end(f"{self._file} cannot be read: {error}")
            return
        found = scan(data)
        is_more = len(found.batches) > 2 * limits.recycle_slice_batches
        if is_more:
            # Behind large batches come very small ones: the rest is read again.
            rest, _ = found.batches[limits.recycle_slice_batches]
            few = found.batches[: limits.recycle_slice_batches]
            found = found._replace(batches=few, resume=rest, need=0)
            length = rest
        self._tell_gaps(data, found)
        if not self._visitor.batches(data, found.batches):
            return
        count = max(len(found.batches), 1)
        fair = length * limits.recycle_slice_batches // count
        self._slice = max(min(fair, 2 * self._slice, limits.recycle_slice_bytes), min(SLICE_MIN, length))
        is_cut = found.resume == 0 and not found.batches and max(found.need, self._slice) <= length
        if not is_more and (len(data) < length or self.at + length >= self._end or is_cut):
            if self.at + found.resume < self._end and self._gap_at is None:
                self._gap_at = self.at + found.resume
            self._finish()
            return
        self.at += found.resume
        self._read_on(max(found.need, self._slice))

    def _tell_gaps(self, data: bytes, found: Scanned) -> None:
        expected = 0
        for at, head in found.batches:
            if at > expected or self._gap_at is not None:
                self._tell_gap(data, expected, at)
            expected = at + head[0]
        # What is left is skipped as well, but its end may lie in the next slice.
        expected = self._tell_named(data, expected, found.resume)
        if found.resume > expected and self._gap_at is None:
            self._gap_at = self.at + expected

    def _tell_gap(self, data: bytes, at: int, end: int) -> None:
        at = self._tell_named(data, at, end)
        if at < end or self._gap_at is not None:
            start = self.at + at if self._gap_at is None else self._gap_at
            self._gap_at = None
            self._visitor.gap(Gap(start, *(records.read_tail(data, end) or (0, 0, 0))))

    def _tell_named(self, data: bytes, at: int, end: int) -> int:
        """Batches with a head but damaged records; returns where they end."""
        while at < end and self._gap_at is None:
            head = records.read_head(data, at)
            if head is None or at + head[0] > end:
                break
            self._visitor.gap(Gap(self.at + at, head[1], head[3], head[4]))
            at += head[0]
        return at

    def _finish(self) -> None:
        if self._gap_at is not None:
            self._visitor.gap(Gap(self._gap_at, 0, 0, 0))
        self._visitor.end(None)
