"""Segments of one queue: where its live records go when the journal file that held them is emptied.

A segment begins with a head (docs/format/journal.md) and holds batches of one queue in seq order: publishes
that were live when they were moved, and every record that a cursor held. The first is small and each next
one twice as large up to a bound, so that ten thousand short queues cost little and a long one few files. A
segment goes as a whole when its last live record is dead and no cursor holds it; neighbours that are mostly
dead are rewritten as one (`rewrite`). Nothing here is flushed on its own: the recycler flushes before it
gives up the file the records came from.
"""

import struct
from typing import NamedTuple

from mirrormq.base import limits
from mirrormq.kernel.crc32c import crc32c
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log.disk import DiskOutbox, LogRefused
from mirrormq.log.index import Entry
from mirrormq.log.places import Place
from mirrormq.log.queuelog import EVERYTHING

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


class Copied(NamedTuple):
    """A batch on its way into a segment (`records.copy_kept`)."""

    batch: bytes
    records: int
    publishes: int
    first: int
    last: int
    transients: int


class Mark(NamedTuple):
    """A batch inside a segment whose place in the stream the checkpoint remembers."""

    number: int
    offset: int
    entry: Entry


class Segments:
    """The segments of one queue, oldest first."""

    def __init__(self, outbox: DiskOutbox, queue_id: int) -> None:
        self._outbox = outbox
        self.queue_id = queue_id
        self.folder = f"{PREFIX}{queue_id:020d}/"
        """Where the files of this queue lie."""
        self.all: list[Segment] = []
        self.end = 0
        """Every record up to this seq has left the journal, to a segment or for good."""
        self.marks: dict[int, list[Mark]] = {}
        """By number of the segment: its first batch, and one in every `index_mark_bytes`."""
        self._poor: dict[int, int] = {}
        """Segments that rewriting did not make smaller, and the live records they had then."""
        self._next_number = 1
        self._is_open = False
        """Was the last segment begun by this process? Others may have an end no checkpoint knows."""

    def load(self, segments: list[Segment], end: int, marks: list[Mark]) -> None:
        """Take over what a checkpoint lists."""
        self.all = list(segments)
        self.end = end
        for segment in segments:
            self.avoid(segment.number)
        for mark in marks:
            self.marks.setdefault(mark.number, []).append(mark)

    def clear(self) -> list[str]:
        """Begin anew; returns the files that nobody needs any more. Their numbers are not used again."""
        files = self.files()
        self.all, self.end, self._is_open = [], 0, False
        self.marks.clear()
        self._poor.clear()
        return files

    def avoid(self, number: int) -> None:
        """A file with this number exists: never write to it again."""
        self._next_number = max(self._next_number, number + 1)

    @property
    def last_number(self) -> int:
        """No file of this queue has a higher number, nor one that nobody needs and is still there."""
        return self._next_number - 1

    def lists(self, number: int) -> bool:
        """Is this one of the queue's segments?"""
        return any(segment.number == number for segment in self.all)

    def size_of(self, name: str) -> int | None:
        """Where a segment's valid batches end; None if it is no segment of this queue."""
        if not name.startswith(self.folder):
            return None
        number = int(name[len(self.folder) :])
        for segment in self.all:
            if segment.number == number:
                return segment.size
        return None

    def add(self, copied: Copied, entry: Entry) -> Place:
        """Append a batch behind everything stored so far; return where it lies. `entry`: where it begins."""
        current = self.all[-1] if self._is_open else None
        if current is None or current.size + len(copied.batch) > self._size_max(len(self.all)):
            current = Segment(self.draw_number(), copied.first, copied.first, 0, HEAD_BYTES)
            self._outbox.append(self.name(current.number), self.head(current.number))
            self.all.append(current)
            self._is_open = True
        self.end = copied.last
        name = self.name(current.number)
        self._outbox.append(name, copied.batch)
        note_mark(self.marks.setdefault(current.number, []), current, entry)
        self.all[-1] = grown(current, copied)
        return Place(copied.first, name, current.size)

    def take_dead(self, dead: RangeSet, keep: int) -> list[Segment]:
        """Forget the segments without a live record or one from `keep` on; their files go after the next
        checkpoint.
        """
        gone = [segment for segment in self.all if _is_dead(segment, dead, keep)]
        if gone:
            self._is_open = self._is_open and gone[-1] is not self.all[-1]
            self._forget(gone)
        return gone

    def dead_bytes(self, dead: RangeSet, keep: int) -> int:
        """Bytes in segments that `take_dead` would give back."""
        return sum(segment.size for segment in self.all if _is_dead(segment, dead, keep))

    # --- rewriting ---

    def mostly_dead(self, start: int, stop: int, dead: RangeSet, keep: int) -> list[Segment]:
        """The first run of neighbours in all[start:stop] worth rewriting as one; empty if there is none."""
        run: list[Segment] = []
        stays = size = 0
        for segment in self.all[start:stop]:
            live = 0 if segment.last >= keep else segment.live(dead)
            is_fit = 0 < live * limits.segment_live_part_min < segment.publishes
            is_fit = is_fit and live * 2 <= self._poor.get(segment.number, EVERYTHING)
            kept = segment.size * live // max(segment.publishes, 1)
            is_room = not run or (
                stays + kept <= limits.segment_bytes_max
                and size + segment.size <= limits.segment_rewrite_bytes_max
            )
            if is_fit and is_room:
                run.append(segment)
                stays, size = stays + kept, size + segment.size
            elif is_worth_it(stays, size):
                break
            else:
                run, stays, size = ([segment], kept, segment.size) if is_fit else ([], 0, 0)
        return run if is_worth_it(stays, size) else []

    def swap(self, run: list[Segment], made: Segment, marks: list[Mark]) -> None:
        """The records of a run of neighbours lie in another segment now."""
        at = self.all.index(run[0])
        assert self.all[at : at + len(run)] == run, "segments changed while they were rewritten"
        if run[-1] is self.all[-1]:
            self._is_open = False  # nothing is added to a file that was rewritten
        self._forget(run)
        self.all.insert(at, made)
        self.marks[made.number] = marks

    def note_poor(self, run: list[Segment], dead: RangeSet) -> None:
        """Rewriting these won nothing: not again before half of what is live has died."""
        self._poor.update((segment.number, segment.live(dead)) for segment in run)

    def draw_number(self) -> int:
        """A number no file of this queue ever had."""
        self._next_number += 1
        return self._next_number - 1

    def head(self, number: int) -> bytes:
        """How the file of a segment begins."""
        head = _HEAD.pack(MAGIC, VERSION, self.queue_id, number)
        return head + struct.pack("<I", crc32c(head))

    def files(self) -> list[str]:
        """Files of all segments."""
        return [self.name(segment.number) for segment in self.all]

    def name(self, number: int) -> str:
        """The file of a segment."""
        return f"{self.folder}{number:08d}"

    def _forget(self, gone: list[Segment]) -> None:
        numbers = {segment.number for segment in gone}
        self.all = [segment for segment in self.all if segment.number not in numbers]
        for number in numbers:
            self.marks.pop(number, None)
            self._poor.pop(number, None)

    @staticmethod
    def _size_max(count: int) -> int:
        return min(limits.segment_bytes_min << min(count, 16), limits.segment_bytes_max)


def _is_dead(segment: Segment, dead: RangeSet, keep: int) -> bool:
    return segment.last < keep and dead.covers(segment.first, segment.last)


def is_worth_it(stays: int, size: int) -> bool:
    """Does keeping `stays` of `size` bytes win enough to pay for a checkpoint?"""
    return (size - stays) * 2 >= limits.segment_bytes_min


def grown(segment: Segment, copied: Copied) -> Segment:
    """The segment with a batch more."""
    return segment._replace(
        last=copied.last,
        publishes=segment.publishes + copied.publishes,
        size=segment.size + len(copied.batch),
        transients=segment.transients + copied.transients,
    )


def note_mark(marks: list[Mark], segment: Segment, entry: Entry) -> None:
    """A batch comes to lie at the segment's end: remember it if the last one remembered is far enough."""
    if not marks or segment.size - marks[-1].offset >= limits.index_mark_bytes:
        marks.append(Mark(segment.number, segment.size, entry))


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
