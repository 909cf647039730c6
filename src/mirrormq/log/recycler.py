"""Empties the oldest journal file, so that recovery never reads more than a few of them.

Guarantee: a journal file is removed only when every live record in it lies in a flushed segment and a
durable checkpoint says so. At each moment a crash finds either the old checkpoint with all journal files,
or the new one with files it makes redundant; records that are in both a segment and the journal are found
once, because recovery takes nothing from the journal at or below the end of a queue's segments.

Steps: copy (slice by slice, live publishes into segments) → flush the segments → flush the journal (the
checkpoint may say nothing that is not flushed) → write the checkpoint → remove the file. One file at a
time; no step holds the loop.
"""

from collections.abc import Callable

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log import checkpoint, journal
from mirrormq.log.disk import DiskOutbox, ReadDone
from mirrormq.log.durable import DurableLog
from mirrormq.log.journal import Journal
from mirrormq.log.places import Place
from mirrormq.log.scan import Head, scan

Reader = Callable[[str, int, int, ReadDone], None]
"""Reads from a file at an offset so many bytes, and calls back."""


class Recycler:
    """One emptying at a time."""

    def __init__(
        self,
        outbox: DiskOutbox,
        read: Reader,
        next_token: Callable[[], int],
        *,
        journal: Journal,
        logs: dict[int, DurableLog],
    ) -> None:
        self._outbox = outbox
        self._read = read
        self._next_token = next_token
        self._journal = journal
        self._logs = logs
        self.is_tight = False
        """The disk is nearly full: whatever is dead is given back at once."""
        self.damaged: Callable[[int, str], None] = _ignore
        self._is_busy = False
        self._next_first = 0
        """First journal file needed after the step under way."""
        self._tokens: set[int] = set()
        self._after_tokens: Callable[[], None] = _nothing
        self._holder: Callable[[], None] | None = None
        self._is_stuck = False
        """The oldest file cannot be read: it stays, and so do all later ones."""
        self._moved: dict[int, list[Place]] = {}
        self._touched: set[str] = set()
        self.orphans: list[str] = []
        """Files of deleted queues, removed with the next checkpoint."""

    @property
    def first_serial(self) -> int:
        """The oldest journal file still needed."""
        return self._journal.serials[0]

    def step(self) -> None:
        """End of a pass: begin with the oldest file if there are too many."""
        if not self._is_busy and len(self._journal.serials) > limits.journal_files_max:
            self._empty_oldest()

    def tick(self) -> None:
        """Once in a while: give back the space of segments that are dead."""
        if self._is_busy:
            return
        dead = sum(log.segments.dead_bytes(log.dead) for log in self._logs.values() if log.segments.all)
        if dead >= limits.segment_dead_bytes_max or self.orphans or (dead and self.is_tight):
            self._is_busy = True
            self._next_first = self.first_serial
            self._flush_journal()
        elif self.is_tight and self._journal.serial > self.first_serial and self._is_mostly_dead():
            self._empty_oldest()

    def _is_mostly_dead(self) -> bool:
        """Is so little of the journal live that emptying it gives back more than it takes for a while?"""
        live = total = 0
        for log in self._logs.values():
            if log.end > log.segments.end:
                total += log.end - log.segments.end
                live += log.dead.missing_count(log.segments.end + 1, log.end)
        return 2 * live <= total

    def _empty_oldest(self) -> None:
        self._is_busy = True
        self._next_first = self._journal.serials[1]
        self._copy_from(journal.HEAD_BYTES, limits.recycle_slice_bytes)

    def hold(self, then: Callable[[], None]) -> None:
        """Call `then` when nothing is being emptied; from then on no file changes or goes until `release`."""
        assert self._holder is None, "held already"
        self._holder = then
        if not self._is_busy or self._is_stuck:
            self._rest()

    def release(self) -> None:
        """Go on as needed."""
        self._is_busy = self._is_stuck

    def done(self, token: int) -> bool:
        """The disk has done what `token` stands for. False if it is not one of ours."""
        if token not in self._tokens:
            return False
        self._tokens.discard(token)
        if not self._tokens:
            self._after_tokens()
        return True

    # --- copy ---

    def _copy_from(self, offset: int, length: int) -> None:
        file = journal.file_name(self.first_serial)
        self._read(file, offset, length, lambda data, error: self._on_slice(offset, length, data, error))

    def _on_slice(self, offset: int, length: int, data: bytes | None, error: str | None) -> None:
        if data is None:
            # The file stays; its queues are still complete in memory and on disk, but nothing can be moved.
            self.damaged(0, f"{journal.file_name(self.first_serial)} cannot be read: {error}")
            self._is_stuck = True
            self._rest()
            return
        end = self._journal.ends.get(journal.file_name(self.first_serial))
        if end is not None:
            data = data[: max(end - offset, 0)]
        found = scan(data)
        for at, head in found.batches:
            self._copy_batch(data, at, head)
        if len(data) < length:
            self._flush_segments()
        else:
            self._copy_from(offset + found.resume, max(found.need, limits.recycle_slice_bytes))

    def _copy_batch(self, data: bytes, at: int, head: Head) -> None:
        log = self._logs.get(head[1])
        if log is None or not head[5]:
            return
        live = records.copy_live(data, at, log.dead, log.segments.end)
        if live is None:
            return
        batch, kept, first, last, transients = live
        place = log.segments.add(batch, first, last, publishes=kept, transients=transients)
        self._touched.add(place.file)
        moved = self._moved.setdefault(head[1], [])
        before = moved[-1] if moved else None
        if (
            before is None
            or before.file != place.file
            or place.offset - before.offset >= limits.place_bytes_min
        ):
            moved.append(place)

    # --- make it durable, then let go ---

    def _flush_segments(self) -> None:
        files, self._touched = self._touched, set()
        self._await([self._flush(file) for file in sorted(files)], self._flush_journal)

    def _flush_journal(self) -> None:
        """Fix now what the checkpoint will say, and write it when all of that is flushed."""
        gone, self.orphans = self.orphans, []
        for log in self._logs.values():
            gone += log.segments.take_dead(log.dead)
            log.forget_letters(self._logs)
        parts = [part_of(log) for log in self._logs.values()]
        self._journal.after_flush(lambda: self._write_checkpoint(parts, gone))

    def _write_checkpoint(self, parts: list[checkpoint.QueuePart], gone: list[str]) -> None:
        token = self._next_token()
        self._outbox.replace(checkpoint.NAME, checkpoint.encode(self._next_first, parts), token)
        self._await([token], lambda: self._let_go(gone))

    def _let_go(self, gone: list[str]) -> None:
        if self._next_first > self.first_serial:
            gone.append(journal.file_name(self._journal.serials.pop(0)))
            self._journal.ends.pop(gone[-1], None)
        for queue_id, log in self._logs.items():
            for name in gone:
                log.places.forget(name)
            # What was moved may have died since, and its segment with it.
            moved = self._moved.get(queue_id, [])
            log.places.insert([place for place in moved if place.file not in gone])
        for name in gone:
            self._outbox.remove(name)
        self._moved = {}
        self._rest()

    def _rest(self) -> None:
        """A step is over: if somebody wants the files to stay as they are, nothing new begins."""
        holder, self._holder = self._holder, None
        self._is_busy = self._is_stuck or holder is not None
        if holder is not None:
            holder()
        elif self.is_tight:
            self.tick()

    def _flush(self, file: str) -> int:
        token = self._next_token()
        self._outbox.flush(file, token)
        return token

    def _await(self, tokens: list[int], then: Callable[[], None]) -> None:
        self._tokens = set(tokens)
        self._after_tokens = then
        if not tokens:
            then()


def part_of(log: DurableLog) -> checkpoint.QueuePart:
    """What a checkpoint written now says of a queue."""
    return checkpoint.QueuePart(
        queue_id=log.queue_id,
        epoch=log.epoch,
        end=log.end,
        horizon=log.horizon,
        last_wall=log.last_wall,
        dead=log.dead.spans_list(),
        segments_end=log.segments.end,
        segments=[(*segment,) for segment in log.segments.all],
        last_number=log.last_number,
        letters=list(log.letters.items()),
        dying=list(log.dying.values()),
    )


def _nothing() -> None:
    """Nothing to do."""


def _ignore(queue_id: int, reason: str) -> None:
    """Nobody listens yet."""
