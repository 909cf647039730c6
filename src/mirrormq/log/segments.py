"""Segments of one queue: where its live records go when the journal file that held them is emptied.

A segment begins with a head (docs/format/journal.md) and holds batches of one queue in seq order, publishes
only. The first is small and each next one twice as large up to a bound, so that ten thousand short queues
cost little and a long one few files. A segment goes as a whole when its last live record is dead. Nothing
here is flushed on its own: the recycler flushes before it gives up the journal file.
"""

import struct
from typing import NamedTuple

from mirrormq.base import limits
from mirrormq.kernel.crc32c import crc32c
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log.disk import DiskOutbox, LogRefused
from mirrormq.log.places import Place

PREFIX = "segments/"
MAGIC = b"MQS1"
VERSION = 1
_HEAD = struct.Struct("<4sIQQ")
HEAD_BYTES = _HEAD.size + 4


class Segment(NamedTuple):
    """One file of consecutive records."""

    number: int
    first: int
    last: int
    publishes: int
    size: int
    transients: int = 0
    """How many of the publishes do not outlive a restart."""

    def live(self, dead: RangeSet) -> int:
        """How many of its publishes are live: every seq that is not one is dead from birth."""
        return dead.missing_count(self.first, self.last)


class Segments:
    """The segments of one queue, oldest first."""

    def __init__(self, outbox: DiskOutbox, queue_id: int) -> None:
        self._outbox = outbox
        self.queue_id = queue_id
        self.all: list[Segment] = []
        self.end = 0
        """Every record up to this seq has left the journal, to a segment or for good."""
        self._next_number = 1
        self._is_open = False
        """Was the last segment begun by this process? Others may have an end no checkpoint knows."""

    def load(self, segments: list[Segment], end: int) -> None:
        """Take over what a checkpoint lists."""
        self.all = list(segments)
        self.end = end
        for segment in segments:
            self.avoid(segment.number)

    def avoid(self, number: int) -> None:
        """A file with this number exists: never write to it again."""
        self._next_number = max(self._next_number, number + 1)

    def lists(self, number: int) -> bool:
        """Is this one of the queue's segments?"""
        return any(segment.number == number for segment in self.all)

    def size_of(self, name: str) -> int | None:
        """Where a segment's valid batches end; None if it is no segment of this queue."""
        return next((segment.size for segment in self.all if self.name(segment.number) == name), None)

    def add(self, batch: bytes, first: int, last: int, *, publishes: int, transients: int) -> Place:
        """Append a batch behind everything stored so far; return where it lies."""
        current = self.all[-1] if self._is_open else None
        if current is None or current.size + len(batch) > self._size_max(len(self.all)):
            current = self._begin(first)
        self.end = last
        name = self.name(current.number)
        self._outbox.append(name, batch)
        place = Place(first, name, current.size)
        self.all[-1] = current._replace(
            last=last,
            publishes=current.publishes + publishes,
            size=current.size + len(batch),
            transients=current.transients + transients,
        )
        return place

    def take_dead(self, dead: RangeSet) -> list[str]:
        """Forget the segments without a live record; returns their files, to go after the next checkpoint."""
        gone = [segment for segment in self.all if dead.covers(segment.first, segment.last)]
        if not gone:
            return []
        self._is_open = self._is_open and gone[-1] is not self.all[-1]
        self.all = [segment for segment in self.all if segment not in gone]
        return [self.name(segment.number) for segment in gone]

    def dead_bytes(self, dead: RangeSet) -> int:
        """Bytes in segments without a live record."""
        return sum(segment.size for segment in self.all if dead.covers(segment.first, segment.last))

    def files(self) -> list[str]:
        """Files of all segments."""
        return [self.name(segment.number) for segment in self.all]

    def name(self, number: int) -> str:
        """The file of a segment."""
        return f"{PREFIX}{self.queue_id:020d}/{number:08d}"

    def _begin(self, first: int) -> Segment:
        segment = Segment(self._next_number, first, first, 0, HEAD_BYTES)
        self._next_number += 1
        head = _HEAD.pack(MAGIC, VERSION, self.queue_id, segment.number)
        self._outbox.append(self.name(segment.number), head + struct.pack("<I", crc32c(head)))
        self.all.append(segment)
        self._is_open = True
        return segment

    @staticmethod
    def _size_max(count: int) -> int:
        return min(limits.segment_bytes_min << min(count, 16), limits.segment_bytes_max)


def identify(name: str) -> tuple[int, int] | None:
    """(queue id, number) of a segment file; None for other names."""
    queue_id, _, number = name.removeprefix(PREFIX).partition("/")
    if not name.startswith(PREFIX) or not queue_id.isdigit() or not number.isdigit():
        return None
    return int(queue_id), int(number)


def read_file_head(data: bytes | memoryview) -> tuple[int, int] | None:
    """(queue id, number) as the head of a segment says; None if the head is not whole."""
    if len(data) < HEAD_BYTES:
        return None
    magic, _, queue_id, number = _HEAD.unpack_from(data)
    (crc,) = struct.unpack_from("<I", data, _HEAD.size)
    if magic != MAGIC or crc != crc32c(bytes(data[: _HEAD.size])):
        return None
    return queue_id, number


class SegmentTooNew(LogRefused):
    """A segment was written by a newer version."""


def check_version(name: str, head: bytes) -> None:
    """Refuse a segment that a newer version wrote; damage is told by whoever reads it."""
    if len(head) < HEAD_BYTES or head[:4] != MAGIC:
        return
    (crc,) = struct.unpack_from("<I", head, _HEAD.size)
    version = _HEAD.unpack_from(head)[1]
    if version > VERSION and crc == crc32c(head[: _HEAD.size]):
        raise SegmentTooNew(
            f"{name} was written by a newer version (format {version}, this one reads {VERSION}): "
            "start the version that wrote it"
        )
