"""Learning the copy of a mirrored queue from the journal after a restart.

Guarantee: the log ends where it ended: what was given up before the crash is not seen again, whether its
place was taken by other records or not. Records are committed as far as the checkpoint or a note in the
journal says so; the others are the tail, which a later master may still give up.

Everything is heeded in the order of the journal, because a truncation takes back what came before it.
"""

from array import array
from bisect import bisect_right
from typing import Any

from mirrormq.base.types import Seq
from mirrormq.kernel import records
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log import checkpoint, origins, segments
from mirrormq.log.copylog import RESET, CopyLog, decode_note
from mirrormq.log.durable import DurableLog
from mirrormq.log.fold import Pending
from mirrormq.log.index import Entry
from mirrormq.log.places import Place
from mirrormq.log.sinkstate import SinkState

Where = tuple[int, int]
"""Serial of a journal file and offset in it."""


class CopyReplay:
    """One copy while the journal is read; the checkpoint has been loaded into its log."""

    def __init__(self, copy: CopyLog, part: checkpoint.Part | None, since: int) -> None:
        """`since`: the first journal file that is read for it."""
        log = copy.log
        copy.committed.take(log)
        self.copy = copy
        self.seen = RangeSet()
        self.missing: tuple[int, int] | None = None
        """The first records that should lie between two others and do not."""
        self._since = since
        self._known = log.end
        """What the checkpoint has."""
        self._position: int | None = None
        """The last record of the journal so far that is part of the log."""
        known = part if isinstance(part, checkpoint.QueuePart) else None
        self._begins: Where = (known.begins[0], known.begins[1]) if known is not None else (0, 0)
        self._cuts = sorted(cut for cut in known.cuts if cut[0] >= since) if known is not None else []
        log.cuts = list(self._cuts)
        copy.hollow = known.base if known is not None and known.end else 0
        self._is_void = known is not None and known.base > known.end
        """What the journal holds lies behind a base that no checkpoint tells."""
        self._index_start = len(log.index)
        # Of each batch so far: its last seq, and the publishes and bytes up to there, counted from zero.
        self._lasts, self._publishes, self._bytes = array("Q"), array("Q"), array("Q")

    def batch(self, where: Where, file: str, told: tuple[Any, ...]) -> None:
        """A batch of this queue lies here."""
        size, epoch, first, last, publishes, time, facts = told
        if where[0] < self._since or where < self._begins or self._is_void:
            return
        self._cut_before(where)
        copy, log = self.copy, self.copy.log
        before = self._position if self._position is not None else min(first - 1, self._known)
        if first <= before:
            if log.index.epoch_of(first) == epoch:
                return
            self._cut(first - 1)
            self._note_cut(where, first - 1)
        elif first > before + 1 and self.missing is None:
            self.missing = (before + 1, first - 1)
        self._position = last
        self.seen.add(first, last)
        if last > log.segments.end:
            counts = (self._publishes[-1], self._bytes[-1]) if self._lasts else (0, 0)
            # Of a batch that was moved to a segment, in a file that had to stay, the dead end is left here.
            if log.places.note(max(first, log.segments.end + 1), file, where[1]):
                log.index.note(Entry(first, time, *counts))
            log.index.note_epoch(epoch, first)
            log.last_serial = where[0]
            self._lasts.append(last)
            self._publishes.append(counts[0] + publishes)
            self._bytes.append(counts[1] + size)
        if first > self._known:
            copy.tail.append(Pending(first, last, epoch, time, publishes, size, facts[0], facts[1]))

    def note(self, where: Where, kind: int, flags: int, value: int) -> None:
        """The journal notes something about this queue."""
        if where[0] < self._since or where <= self._begins:
            return  # in a file that is kept for another queue, for one
        self._cut_before(where)
        copy = self.copy
        if kind == records.TRUNCATE and flags & RESET:
            self._begin_again(where)
            self._is_void = value > 0
        elif self._is_void:
            return
        elif kind == records.TRUNCATE:
            self._cut(value)
            self._note_cut(where, value)
        elif kind == records.MARK and self.missing is None:
            while copy.tail and copy.tail[0].last <= value:
                copy.committed.fold(copy.tail.popleft())

    def finish(self) -> None:
        """The journal was read."""
        self._cut_before((1 << 63, 0))
        copy, log = self.copy, self.copy.log
        covered = bisect_right(self._lasts, self._known)
        published, written = (self._publishes[covered - 1], self._bytes[covered - 1]) if covered else (0, 0)
        base = max(log.published - published, 0), max(log.written - written, 0)
        log.index.shift(self._index_start, *base)
        tail = copy.tail
        log.end = Seq(tail[-1].last if tail else copy.committed.end)
        log.epoch = log.index.epochs[-1][0] if log.index.epochs else 1
        log.published = copy.committed.published + sum(batch.publishes for batch in tail)
        log.written = copy.committed.written + sum(batch.size for batch in tail)
        log.last_wall = max([log.last_wall, copy.committed.last_wall, *(batch.time for batch in tail)])
        copy.committed.forget_buried()
        copy.from_queue()
        if self.missing is not None:
            copy.tail.clear()

    def _cut_before(self, where: Where) -> None:
        """What the checkpoint remembers of truncations whose own notes may be gone."""
        while self._cuts and self._cuts[0][:2] <= where:
            self._cut(self._cuts.pop(0)[2])

    def _cut(self, seq: int) -> None:
        copy, log = self.copy, self.copy.log
        if self._position is not None:
            self._position = min(self._position, seq)
        while copy.tail and copy.tail[-1].last > seq:
            copy.tail.pop()
        self.seen.cut(seq + 1)
        kept = max(seq, log.segments.end)
        log.places.cut(kept)
        log.index.cut(kept)
        at = bisect_right(self._lasts, kept)
        del self._lasts[at:], self._publishes[at:], self._bytes[at:]
        if self.missing is not None and self.missing[1] > seq:
            self.missing = None

    def _note_cut(self, where: Where, seq: int) -> None:
        if (*where, seq) not in self.copy.log.cuts:  # else the checkpoint knows it, too
            self.copy.log.cuts.append((*where, seq))

    def _begin_again(self, where: Where) -> None:
        """A full copy began here and did not end: nothing is left of the log."""
        copy, log = self.copy, self.copy.log
        log.wipe()
        copy.committed.clear()
        copy.tail.clear()
        self.__init__(copy, None, where[0])  # type: ignore[misc]
        self._begins = log.begins = where


def load_part(log: DurableLog, part: checkpoint.QueuePart) -> None:
    """Take what the checkpoint says of a queue."""
    log.end, log.epoch, log.horizon, log.last_wall = Seq(part.end), part.epoch, part.horizon, part.last_wall
    for first, last in part.dead:
        log.dead.add(first, last)
    log.note_dying(part.dying)
    log.last_number = part.last_number
    log.letters = dict(part.letters)
    log.refused = {row: RangeSet(spans) for row, spans in part.refused}
    log.counts = dict(part.counts)
    log.low = part.low or part.end + 1
    log.published, log.written = part.published, part.written
    log.index.epochs = [(epoch, first) for epoch, first in part.epochs]
    log.cursors.load(part.cursors)
    log.sink = SinkState.load(part.sink) if part.sink is not None else None
    log.origins = origins.load(part.origins)
    log.begins = (part.begins[0], part.begins[1])
    log.segments.load(checkpoint.segments_of(part), part.segments_end, checkpoint.marks_of(part))
    for segment in log.segments.all:
        name = log.segments.name(segment.number)
        log.places.insert([Place(segment.first, name, segments.HEAD_BYTES)])
        for mark in log.segments.marks.get(segment.number, ()):
            log.index.note(mark.entry)
            log.places.insert([Place(mark.entry.seq, name, mark.offset)])


def tell(replays: dict[int, CopyReplay], where: tuple[str, int], told: list[tuple[Any, ...]]) -> set[int]:
    """Heed what a slice of the file (name, serial) told; returns other queues that were truncated."""
    others: set[int] = set()
    file, serial = where
    for queue_id, offset, *rest in told:
        if queue_id:
            replays[queue_id].batch((serial, offset), file, tuple(rest))
            continue
        kind, flags, payload = rest
        for named, value in decode_note(payload):
            if named in replays:
                replays[named].note((serial, offset), kind, flags, value)
            elif kind == records.TRUNCATE:
                others.add(named)
    return others
