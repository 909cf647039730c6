"""Empties the oldest journal file and rewrites mostly dead segments, so that recovery never reads more than
a few files and no dead record holds the disk for long.

Guarantee: a file is removed only when every record in it that is live, or held by a cursor, lies in a
flushed segment and a durable checkpoint says so. At each moment a crash finds either the old checkpoint with
all the files it names, or the new one with files it makes redundant; records that are in both a segment and
the journal are found once, because recovery takes nothing from the journal at or below the end of a queue's
segments.

Steps: copy (slice by slice into segments) → flush the segments → flush the journal (the checkpoint may say
nothing that is not flushed) → write the checkpoint → remove the file. One file, or one run of segments, at a
time; no step holds the loop.

Nothing of a damaged queue is copied or removed: its part of the checkpoint is written again as it was, and
the journal files it needs are kept beside the others.
"""

from collections.abc import Callable, Container

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.log import checkpoint, journal
from mirrormq.log.disk import DiskOutbox, Reader
from mirrormq.log.durable import DurableLog
from mirrormq.log.index import Entry
from mirrormq.log.journal import Journal
from mirrormq.log.places import Place
from mirrormq.log.rewrite import Rewrite, Search
from mirrormq.log.scan import Head
from mirrormq.log.segments import Copied
from mirrormq.log.slices import Gap, Slices


class Recycler:
    """One emptying or rewriting at a time."""

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
        """Told of records that cannot be read: the queue (0: nobody can tell whose), and what is wrong."""
        self.sources: Callable[[], Container[int]] = lambda: logs
        """The queues of the whole cluster, by log id: letters of others never come again."""
        self.rewritten_bytes = 0
        """Bytes given back by rewriting."""
        self.kept: dict[int, int] = {}
        """Where journal files end that only damaged queues need, by serial."""
        self._is_busy = False
        self._source = 0
        """The journal file being emptied; 0 if none is."""
        self._next_first = 0
        """First journal file needed after the step under way."""
        self._tokens: set[int] = set()
        self._after_tokens: Callable[[], None] = _nothing
        self._holder: Callable[[], None] | None = None
        self._is_stuck = False
        """The oldest file cannot be read: it stays, and so do all later ones."""
        self._moved: dict[int, list[Place]] = {}
        self._passed: dict[int, Entry] = {}
        """Per queue, where in its stream the copying stands."""
        self._has_unnamed = False
        """Did the file being emptied have a gap that nobody can tell the owner of?"""
        self._touched: set[str] = set()
        self._search = Search(logs)
        self._rewrite: Rewrite | None = None
        self._was_rewrite = False
        """Was something rewritten in the step under way? Then there may be more of it."""
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

    def tick(self, now: Now) -> None:
        """Once in a while: look after cursors and give back the space of what is dead."""
        for log in self._logs.values():
            if len(log.cursors) and log.damage is None:
                log.cursors.check(now)
        self._tidy()

    def _tidy(self) -> None:
        if self._is_busy or not self._journal.serials:
            return
        dead = sum(
            log.segments.dead_bytes(log.dead, log.cursors.low)
            for log in self._logs.values()
            if log.segments.all and log.damage is None
        )
        if dead >= limits.segment_dead_bytes_max or self.orphans or (dead and self.is_tight):
            self._is_busy = True
            self._next_first = self.first_serial
            self._flush_journal()
        elif self._revived() or (
            self.is_tight and self._journal.serial > self.first_serial and self._is_mostly_dead()
        ):
            self._empty_oldest()
        else:
            self._rewrite_some()

    def _is_mostly_dead(self) -> bool:
        """Is so little of the journal live that emptying it gives back more than it takes for a while?"""
        live = total = 0
        for log in self._logs.values():
            if log.end > log.segments.end:
                total += log.end - log.segments.end
                free_end = min(log.end, max(log.cursors.low - 1, log.segments.end))
                live += log.end - free_end
                if free_end > log.segments.end:
                    live += log.dead.missing_count(log.segments.end + 1, free_end)
        return 2 * live <= total

    def _empty_oldest(self) -> None:
        self._is_busy = True
        self._has_unnamed = False
        self._passed = {}
        revived = [serial for serial in self.kept if any(log.since <= serial for log in self._revived())]
        if revived:
            # What it has in the files kept for it comes before anything the others still have there.
            self._source = min(revived)
            self._next_first = self.first_serial
            end = self.kept[self._source]
        else:
            self._source = self.first_serial
            self._next_first = self._journal.serials[1]
            end = self._journal.ends[journal.file_name(self._source)]
        Slices(self._read, self._file, (journal.HEAD_BYTES, end), self).start()

    def _revived(self) -> list[DurableLog]:
        """Logs that were damaged before the last start, are whole now and lie in files kept for them."""
        if not self.kept:
            return []
        return [log for log in self._logs.values() if log.since and log.damage is None]

    @property
    def _file(self) -> str:
        """The journal file being emptied."""
        return journal.file_name(self._source)

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

    def batches(self, data: bytes, found: list[tuple[int, Head]]) -> bool:
        """Copy what stays of the next batches of the journal file."""
        for at, head in found:
            log = self._logs.get(head[1])
            if log is not None and log.damage is None and self._takes_part(log):
                self._copy_batch(log, data, at, head)
        return True

    def _takes_part(self, log: DurableLog) -> bool:
        """Is this one of the logs whose records are in the file being emptied for the first time?"""
        return self._source >= self.first_serial or 0 < log.since <= self._source

    def gap(self, gap: Gap) -> None:
        """A part of the journal file cannot be read."""
        log = self._logs.get(gap.queue_id)
        if gap.queue_id == 0:
            self._has_unnamed = True
        elif log is not None and _needs(log, gap.first, gap.first + gap.records - 1):
            self._fail(log, f"{self._file} is damaged at byte {gap.at}")

    def end(self, error: str | None) -> None:
        """The journal file is copied, or cannot be read."""
        if error is not None:
            # The file stays; its queues are still complete in memory and on disk, but nothing can be moved.
            self.damaged(0, error)
            self._is_stuck = True
            self._moved = {}
            self._rest()
            return
        if self._has_unnamed:
            self._find_holes()
        self._flush_segments()

    def _copy_batch(self, log: DurableLog, data: bytes, at: int, head: Head) -> None:
        size, queue_id, _, first, count, publishes, time = head
        passed = self._passed.get(queue_id) or log.index.at(first)
        if passed.seq < first and self._has_unnamed and _needs(log, passed.seq, first - 1):
            self._fail(log, f"records {passed.seq} to {first - 1} cannot be read")
            return
        entry = passed._replace(seq=first, time=time)
        self._passed[queue_id] = Entry(
            first + count, time, passed.publishes + publishes, passed.written + size
        )
        keep = log.cursors.low
        if first < keep:
            log.raise_low(min(keep, first + count))
        if not publishes and first + count <= keep:
            return
        kept = records.copy_kept(data, at, log.dead, log.segments.end, keep)
        if kept is not None:
            copied = Copied(*kept)
            left = records.cut(data, at, first, copied.first) if copied.first > first else None
            before = entry.publishes + (left[2] if left is not None else 0)
            place = log.segments.add(copied, entry._replace(seq=copied.first, publishes=before))
            self._touched.add(place.file)
            self._note_moved(queue_id, place)

    def _note_moved(self, queue_id: int, place: Place) -> None:
        moved = self._moved.setdefault(queue_id, [])
        before = moved[-1] if moved else None
        if (
            before is None
            or before.file != place.file
            or place.offset - before.offset >= limits.place_bytes_min
        ):
            moved.append(place)

    def _find_holes(self) -> None:
        """Nobody could tell whose the unreadable bytes were: whoever lacks records at the end of the file."""
        for queue_id, log in self._logs.items():
            first = log.places.first_in(self._file)
            if first is None or log.damage is not None:
                continue
            following = log.places.after(self._file)
            end = following.seq if following is not None else log.end + 1
            passed = self._passed.get(queue_id)
            start = passed.seq if passed is not None else first.seq
            if start < end and _needs(log, start, end - 1):
                self._fail(log, f"records {start} to {end - 1} cannot be read from {self._file}")

    def _fail(self, log: DurableLog, reason: str) -> None:
        log.damage = log.damage or reason
        self.damaged(log.queue_id, reason)

    # --- rewriting ---

    def _rewrite_some(self) -> None:
        """Rewrite a run of mostly dead segments, unless the journal waits to be emptied."""
        behind = len(self._journal.serials) - limits.journal_files_max
        found = self._search.find() if behind <= 1 or self.is_tight else None
        if found is not None:
            self._is_busy = True
            self._next_first = self.first_serial
            self._rewrite = Rewrite(self._outbox, self._read, *found)
            self._rewrite.start(self._on_rewritten)

    def _on_rewritten(self) -> None:
        rewrite = self._rewrite
        assert rewrite is not None
        log = rewrite.log
        if rewrite.error is None and log.damage is None and self._logs.get(log.queue_id) is log:
            files = [] if rewrite.is_empty else [rewrite.file]
            self._await([self._flush(file) for file in files], self._flush_journal)
            return
        self._rewrite = None
        if not rewrite.is_empty:
            self.orphans.append(rewrite.file)
        if rewrite.is_damage:
            self._fail(log, rewrite.error or "")
        else:
            log.segments.note_poor(rewrite.run, log.dead)
        self._rest()

    def _swap(self) -> list[str]:
        """What was rewritten and is flushed takes the place of the old segments; returns their files."""
        rewrite, self._rewrite = self._rewrite, None
        if rewrite is None:
            return []
        log = rewrite.log
        if self._logs.get(log.queue_id) is not log or log.damage is not None or rewrite.is_empty:
            # Deleted or damaged meanwhile; or all of it is dead, and goes as every dead segment does.
            return [] if rewrite.is_empty else [rewrite.file]
        self._was_rewrite = True
        log.segments.swap(rewrite.run, rewrite.made, rewrite.marks)
        self._moved[log.queue_id] = rewrite.places
        old = sum(segment.size for segment in rewrite.run)
        self.rewritten_bytes += old - rewrite.made.size
        log.index.thin(rewrite.run[0].first, rewrite.run[-1].last, log.dead, log.cursors.low)
        return [log.segments.name(segment.number) for segment in rewrite.run]

    # --- make it durable, then let go ---

    def _flush_segments(self) -> None:
        files, self._touched = self._touched, set()
        self._await([self._flush(file) for file in sorted(files)], self._flush_journal)

    def _flush_journal(self) -> None:
        """Fix now what the checkpoint will say, and write it when all of that is flushed."""
        gone, self.orphans = self.orphans, []
        gone += self._swap()
        self._leave_source()
        parts: list[checkpoint.Part] = []
        sources = self.sources()
        for log in self._logs.values():
            if log.damage is None:
                gone += self._take_dead(log)
                log.forget_letters(sources)
                parts.append(part_of(log))
                continue
            if log.frozen is None:
                log.since = log.since or self.first_serial
                log.frozen = part_of(log)
            parts.append(log.frozen)
        kept = self._kept_after()
        self._journal.after_flush(lambda: self._write_checkpoint(parts, gone, kept))

    def _take_dead(self, log: DurableLog) -> list[str]:
        keep = log.cursors.low
        dead = log.segments.take_dead(log.dead, keep)
        for segment in dead:
            log.raise_low(segment.last + 1)
            log.index.thin(segment.first, segment.last, log.dead, keep)
        passed = self._passed.get(log.queue_id)
        first = log.places.first_in(self._file)
        if passed is not None and first is not None:
            log.index.thin(first.seq, passed.seq - 1, log.dead, keep)
        return [log.segments.name(segment.number) for segment in dead]

    def _leave_source(self) -> None:
        """What revived logs had in a kept file lies in segments now."""
        if 0 < self._source < self.first_serial:
            later = min((serial for serial in self.kept if serial > self._source), default=0)
            for log in self._revived():
                if log.since <= self._source:
                    log.since = later

    def _kept_after(self) -> dict[int, int]:
        """The journal files that stay after this step for the sake of damaged queues."""
        files = dict(self.kept)
        if self._next_first > self.first_serial:
            files[self.first_serial] = self._journal.ends[journal.file_name(self.first_serial)]
        spans = [(log.since, log.last_serial) for log in self._logs.values() if log.since]
        return {
            serial: end
            for serial, end in files.items()
            if any(first <= serial <= last for first, last in spans)
        }

    def _write_checkpoint(self, parts: list[checkpoint.Part], gone: list[str], kept: dict[int, int]) -> None:
        token = self._next_token()
        self._outbox.replace(checkpoint.NAME, checkpoint.encode(self._next_first, parts, kept), token)
        self._await([token], lambda: self._let_go(gone, kept))

    def _let_go(self, gone: list[str], kept: dict[int, int]) -> None:
        emptied = {self._source} if self._source else set()
        gone += [journal.file_name(serial) for serial in {*self.kept, *emptied} if serial not in kept]
        self.kept = kept
        if self._next_first > self.first_serial:
            self._journal.serials.pop(0)
            self._journal.ends.pop(self._file, None)
        self._forget_places([*gone, self._file])
        for name in gone:
            self._outbox.remove(name)
        self._moved = {}
        self._passed = {}
        self._source = 0
        self._rest()

    def _forget_places(self, gone: list[str]) -> None:
        for queue_id, log in self._logs.items():
            if log.damage is not None:
                continue
            for name in gone:
                log.places.forget(name)
            # What was moved may have died since, and its segment with it.
            moved = self._moved.get(queue_id, [])
            log.places.insert([place for place in moved if place.file not in gone])

    def _rest(self) -> None:
        """A step is over: if somebody wants the files to stay as they are, nothing new begins."""
        holder, self._holder = self._holder, None
        was_rewrite, self._was_rewrite = self._was_rewrite, False
        self._is_busy = self._is_stuck or holder is not None
        if holder is not None:
            holder()
        elif self.is_tight or was_rewrite:
            self._tidy()

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
    log.forget_counts()
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
        low=log.low,
        published=log.published,
        written=log.written,
        epochs=list(log.index.epochs),
        cursors=log.cursors.cursors(),
        counts=list(log.counts.items()),
        refused=[(row, numbers.spans_list()) for row, numbers in log.refused.items() if numbers],
        marks=[
            (mark.number, mark.offset, *mark.entry)
            for segment in log.segments.all
            for mark in log.segments.marks.get(segment.number, ())
        ],
        since=log.since,
    )


def _needs(log: DurableLog, first: int, last: int) -> bool:
    """Is any of these records of the journal live or held by a cursor?"""
    first = max(first, log.segments.end + 1)
    return last >= first and (last >= log.cursors.low or not log.dead.covers(first, last))


def _nothing() -> None:
    """Nothing to do."""


def _ignore(queue_id: int, reason: str) -> None:
    """Nobody listens yet."""
