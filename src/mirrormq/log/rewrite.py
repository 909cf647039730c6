"""Rewriting of neighbouring segments that are mostly dead, so that one old message does not hold gigabytes.

Guarantee: the old files stay listed, readable and untouched until the new one is flushed and a durable
checkpoint lists it instead; a crash finds the old files or the new one, and what is not listed is removed.
The copies have the seqs, epochs, times and payloads of the originals. Records that a cursor holds are never
rewritten.

This copies, slice by slice; the recycler flushes, writes the checkpoint and lets go.
"""

from collections.abc import Callable

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log.disk import DiskOutbox, Reader
from mirrormq.log.durable import DurableLog
from mirrormq.log.places import Place
from mirrormq.log.queuelog import EVERYTHING
from mirrormq.log.scan import Head
from mirrormq.log.segments import HEAD_BYTES, Copied, Mark, Segment, grown, note_mark
from mirrormq.log.slices import Gap, Slices


class Rewrite:
    """One rewriting of one run of segments."""

    def __init__(self, outbox: DiskOutbox, read: Reader, log: DurableLog, run: list[Segment]) -> None:
        self._outbox = outbox
        self._read = read
        self._done: Callable[[], None] = _nothing
        self.log = log
        self.run = run
        number = log.segments.draw_number()
        self.made = Segment(number, run[0].first, run[0].first, 0, HEAD_BYTES)
        """The new segment as far as it is written."""
        self.marks: list[Mark] = []
        self.places: list[Place] = []
        self.error: str | None = None
        """Why the old segments stay: they are damaged, or nothing would be won."""
        self.is_damage = False
        self._next = 0
        self._size = sum(segment.size for segment in run)
        # What is dropped here is gone from now on: no cursor may be opened in it.
        log.raise_low(run[-1].last + 1)

    @property
    def file(self) -> str:
        """The new file."""
        return self.log.segments.name(self.made.number)

    @property
    def is_empty(self) -> bool:
        """Did everything die meanwhile?"""
        return self.made.size == HEAD_BYTES

    def start(self, done: Callable[[], None]) -> None:
        """Copy; `done` is called when all is copied, or not to be."""
        self._done = done
        self._copy_next()

    def _copy_next(self) -> None:
        if self._next == len(self.run) or self.error is not None:
            self._done()
            return
        segment = self.run[self._next]
        self._next += 1
        name = self.log.segments.name(segment.number)
        Slices(self._read, name, (HEAD_BYTES, segment.size), self).start()

    # --- what `Slices` shows ---

    def batches(self, data: bytes, found: list[tuple[int, Head]]) -> bool:
        """Copy what is live."""
        out: list[bytes] = []
        for at, head in found:
            copied = records.copy_kept(data, at, self.log.disposable, 0, EVERYTHING)
            if copied is not None:
                self._take(Copied(*copied), head)
                out.append(copied[0])
        if out and self.error is None:
            if self.made.size == HEAD_BYTES + sum(map(len, out)):
                out.insert(0, self.log.segments.head(self.made.number))
            self._outbox.append(self.file, b"".join(out))
        if self.made.size * 2 > self._size and self.error is None:
            # Few messages are live but they are the large ones.
            self.error = "too little would be won"
        if self.error is not None:
            self._done()
        return self.error is None

    def gap(self, gap: Gap) -> None:
        """The old file is damaged: it stays as it is."""
        name = self.log.segments.name(self.run[self._next - 1].number)
        self.error = self.error or f"{name} is damaged at byte {gap.at}"
        self.is_damage = True

    def end(self, error: str | None) -> None:
        """A file is done."""
        if error is not None:
            self.error, self.is_damage = error, True
        self._copy_next()

    def _take(self, copied: Copied, head: Head) -> None:
        log = self.log
        entry = log.index.at(copied.first)._replace(seq=copied.first, time=head[6])
        note_mark(self.marks, self.made, entry)
        if self.is_empty:
            self.made = self.made._replace(first=copied.first)
        if not self.places or self.made.size - self.places[-1].offset >= limits.place_bytes_min:
            self.places.append(Place(copied.first, self.file, self.made.size))
        self.made = grown(self.made, copied)


class Search:
    """Looks for mostly dead segments, a few at a time, all queues in turn."""

    def __init__(self, logs: dict[int, DurableLog]) -> None:
        self._logs = logs
        self._round: list[tuple[int, int]] = []
        """(queue, first segment to look at) still to come in this round, last first."""

    def find(self, segmented: list[int]) -> tuple[DurableLog, list[Segment]] | None:
        """A run worth rewriting, if this look finds one. A new round is about the queues in `segmented`."""
        left = limits.rewrite_look_publishes
        if not self._round:
            self._round = [(queue_id, 0) for queue_id in segmented]
        while self._round and left > 0:
            queue_id, start = self._round.pop()
            log = self._logs.get(queue_id)
            if log is None or log.damage is not None or start >= len(log.segments.all):
                continue
            stop = start + limits.rewrite_look_segments
            if stop < len(log.segments.all):
                self._round.append((queue_id, stop))
            publishes = sum(segment.publishes for segment in log.segments.all[start:stop])
            left -= max(publishes, limits.rewrite_look_publishes // limits.survey_logs)
            run = log.segments.mostly_dead(start, stop, log.disposable, log.keep_from)
            if run:
                self._round.append((queue_id, start))  # there may be more of them
                return log, run
        return None


def _nothing() -> None:
    """Nobody waits yet."""
