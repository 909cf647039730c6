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
the journal files it needs are kept beside the others. So are those with records of a mirrored queue that are
not known to be durable everywhere: they may still be given up, and a segment forgets nothing.
"""

from collections.abc import Callable, Container
from functools import partial

from mirrormq.base import limits
from mirrormq.base.staggered import StaggeredDict
from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.log import checkpoint, journal
from mirrormq.log.disk import DiskOutbox, Reader
from mirrormq.log.draft import Draft, Senders, part_of
from mirrormq.log.durable import DurableLog
from mirrormq.log.index import Entry
from mirrormq.log.journal import Journal
from mirrormq.log.logwalk import LogWalk
from mirrormq.log.places import Place
from mirrormq.log.rewrite import Rewrite, Search
from mirrormq.log.scan import Head
from mirrormq.log.segments import Copied
from mirrormq.log.slices import Gap, Slices
from mirrormq.log.survey import Survey


class Recycler:
    """One emptying or rewriting at a time."""

    def __init__(
        self,
        outbox: DiskOutbox,
        read: Reader,
        next_token: Callable[[], int],
        *,
        journal: Journal,
        logs: StaggeredDict[int, DurableLog],
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
        self.rewritten_bytes = self.recycled_files = 0
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
        self._slices: Slices | None = None
        self._held: dict[int, Place] = {}
        """Mirrored queues with records in the file being emptied that have to stay in it, and the first."""
        self._wanted: list[tuple[Callable[[], None], Callable[[], None]]] = []
        """Those who asked for a checkpoint of files of theirs: told when the files are flushed, and when a
        checkpoint is durable that was made after that.
        """
        self._due: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._touched: set[str] = set()
        self._survey = Survey(logs)
        self._walk = LogWalk(logs)
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

    @property
    def needs_pass(self) -> bool:
        """Is there more to look at?"""
        return self._survey.is_under_way or self._walk.is_under_way

    def step(self) -> None:
        """End of a pass: go on, look on, and begin with the oldest file if there are too many."""
        self._walk.step()
        if self._survey.is_under_way:
            self._look_on()
        if not self._is_busy and len(self._journal.serials) > limits.journal_files_max:
            self._empty_oldest()

    def tick(self, now: Now) -> None:
        """Once in a while: look after cursors and give back the space of what is dead."""
        self._survey.begin(now)
        if len(self._logs) < limits.survey_logs:
            self._look_on()  # else in the passes that follow: a tick has enough to do

    def _tidy(self) -> None:
        """Give back the space of what is dead."""
        if self._wanted and not self._is_busy and self._journal.serials:
            self._begin_checkpoint()  # somebody waits for it, whatever is dead
        elif not self._is_busy:
            self._survey.begin()
            self._look_on()

    def _look_on(self) -> None:
        if self._survey.step(is_tight=self.is_tight) and not self._is_busy and self._journal.serials:
            self._act()

    def _act(self) -> None:
        """All logs were looked at, and nothing is under way."""
        dead = self._survey.dead_bytes
        if dead >= limits.segment_dead_bytes_max or self.orphans or (dead and self.is_tight) or self._wanted:
            self._begin_checkpoint()
        elif self._revived() or (
            self.is_tight and self._journal.serial > self.first_serial and self._survey.is_mostly_dead
        ):
            self._empty_oldest()
        else:
            self._rewrite_some()

    def _begin_checkpoint(self) -> None:
        self._is_busy = True
        self._next_first = self.first_serial
        self._flush_segments()

    def _empty_oldest(self) -> None:
        self._is_busy = True
        self._has_unnamed = False
        self._passed = {}
        self._held = {}
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
        self._slices = Slices(self._read, self._file, (journal.HEAD_BYTES, end), self)
        self._slices.start()

    def _revived(self) -> list[DurableLog]:
        """Logs that were damaged before the last start, are whole now and lie in files kept for them; and
        those whose records in such a file are all committed by now.
        """
        if not self.kept:
            return []
        return [log for log in self._logs.values() if log.since and log.damage is None and _is_settled(log)]

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
        assert self._slices is not None
        for at, head in found:
            log = self._logs.get(head[1])
            if log is None or log.damage is not None or not self._takes_part(log):
                continue
            where = (self._source, self._slices.at + at)
            if where < log.begins or log.is_given_up(where, head[3]):
                # A full copy took its place, or it lies behind what was cut off here: if it was adopted again
                # it is found there, with all that goes before it, of which this file may not be the first.
                continue
            if log.is_own(head[2], head[3]) and not self._stays(log, at, head):
                self._copy_batch(log, data, at, head)
        return True

    def _stays(self, log: DurableLog, at: int, head: Head) -> bool:
        """Must this batch stay in the journal? Then all behind it stays: segments are in seq order."""
        if log.copy is None or log.queue_id in self._held:
            return log.copy is not None
        if head[3] + head[4] - 1 <= log.committed.end and not 0 < log.since < self._source:
            return False
        assert self._slices is not None
        self._held[log.queue_id] = Place(head[3], self._file, self._slices.at + at)
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
        for queue_id in self._held:
            log = self._logs.get(queue_id)
            if log is not None and not log.since:
                log.since = self._source
        self._flush_segments()

    def _copy_batch(self, log: DurableLog, data: bytes, at: int, head: Head) -> None:
        size, queue_id, _, first, count, publishes, time = head
        seen = self._passed.get(queue_id)
        if seen is not None and first < seen.seq:
            return  # given up and then adopted again: the same batch twice
        passed = seen or log.index.at(first)
        if passed.seq < first and self._has_unnamed and _needs(log, passed.seq, first - 1):
            self._fail(log, f"records {passed.seq} to {first - 1} cannot be read")
            return
        entry = passed._replace(seq=first, time=time)
        self._passed[queue_id] = Entry(
            first + count, time, passed.publishes + publishes, passed.written + size
        )
        keep = log.keep_from
        if not publishes and first + count <= keep:
            log.raise_low(first + count)
            return
        kept = records.copy_kept(data, at, log.disposable, log.segments.end, keep)
        if first < keep and (kept is None or kept[1] < count):
            log.raise_low(min(keep, first + count))  # at once: no cursor may be opened in what is left out
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
        found = self._search.find(self._survey.segmented) if behind <= 1 or self.is_tight else None
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
            log.segments.note_poor(rewrite.run, log.disposable)
        self._rest()

    def _swap(self) -> list[str]:
        """What was rewritten and is flushed takes the place of the old segments; returns their files."""
        rewrite, self._rewrite = self._rewrite, None
        if rewrite is None:
            return []
        log = rewrite.log
        is_there = self._logs.get(log.queue_id) is log and rewrite.run[0] in log.segments.all
        if not is_there or log.damage is not None or rewrite.is_empty:
            # Deleted, damaged or replaced by a full copy meanwhile; or all of it is dead, and goes as every
            # dead segment does.
            return [] if rewrite.is_empty else [rewrite.file]
        self._was_rewrite = True
        log.segments.swap(rewrite.run, rewrite.made, rewrite.marks)
        self._moved[log.queue_id] = rewrite.places
        old = sum(segment.size for segment in rewrite.run)
        self.rewritten_bytes += old - rewrite.made.size
        log.index.thin(rewrite.run[0].first, rewrite.run[-1].last, log.disposable, log.keep_from)
        return [log.segments.name(segment.number) for segment in rewrite.run]

    # --- make it durable, then let go ---

    def _flush_segments(self) -> None:
        files, self._touched = self._touched, set()
        self._due, self._wanted = self._wanted, []
        self._await([self._flush(file) for file in sorted(files)], self._flush_journal)

    def _flush_journal(self) -> None:
        """Make what the checkpoint will say, some queues per pass; write it when all of that is flushed."""
        due, self._due = self._due, []
        for flushed, _ in due:
            flushed()
        # Before any part is made: a file that nobody needs from now on may be listed by one of them.
        gone, self.orphans = self.orphans, []
        senders = Senders(self.sources, lambda: self._walk.steps)
        draft = Draft(self._next_first, gone + self._swap(), [durable for _, durable in due], senders)
        files = dict(self.kept)
        if self._next_first > self.first_serial:
            files[self.first_serial] = self._journal.ends[journal.file_name(self.first_serial)]
        write = partial(self._write_checkpoint, draft)
        self._walk.begin(partial(self._tell, draft, files), lambda: self._journal.on_disk(write))

    def _tell(self, draft: Draft, files: dict[int, int], log: DurableLog) -> int:
        """Add what is to be said of a log now; `files` could be kept for it. Returns the bytes of it."""
        if log.damage is None:
            self._leave_source(log)
            draft.gone += self._take_dead(log)
            log.forget_letters(draft.sources)
            log.committed.forget_letters(draft.sources)
            part: checkpoint.Part = self._part_of(log)
        else:
            if log.frozen is None:
                log.since = log.since or self.first_serial
                log.frozen = self._part_of(log)
            part = log.frozen
        # In the same moment as its part: what it needs may change before those of the others are made.
        draft.kept.update((serial, end) for serial, end in files.items() if _needs_file(log, serial))
        return draft.add(part)

    def _part_of(self, log: DurableLog) -> checkpoint.QueuePart:
        return part_of(log)

    def _take_dead(self, log: DurableLog) -> list[str]:
        keep = log.keep_from
        dead = log.segments.take_dead(log.disposable, keep)
        for segment in dead:
            log.raise_low(segment.last + 1)
            log.index.thin(segment.first, segment.last, log.disposable, keep)
        passed = self._passed.get(log.queue_id)
        first = log.places.first_in(self._file)
        if passed is not None and first is not None:
            log.index.thin(first.seq, passed.seq - 1, log.disposable, keep)
        return [log.segments.name(segment.number) for segment in dead]

    def _leave_source(self, log: DurableLog) -> None:
        """What a revived log had in a kept file lies in segments now."""
        if not log.since:
            return
        if 0 < self._source < self.first_serial and log.since <= self._source and log.copy is None:
            log.since = min((serial for serial in self.kept if serial > self._source), default=0)
        elif log.copy is not None:
            files = {*self.kept} - {self._source}
            if log.queue_id in self._held:
                files.add(self._source)
            log.since = min((serial for serial in files if _needs_file(log, serial)), default=0)

    def _write_checkpoint(self, draft: Draft) -> None:
        token = self._next_token()
        self._outbox.replace(checkpoint.NAME, draft.encode(), token)
        self._await([token], lambda: self._forget(draft))

    def checkpoint_soon(
        self, files: list[str], flushed: Callable[[], None], durable: Callable[[], None]
    ) -> None:
        """Flush these segments; `flushed` lets their log count them, `durable` hears of the checkpoint that
        says so.
        """
        self._touched.update(files)
        self._wanted.append((flushed, durable))
        self._tidy()

    def _forget(self, draft: Draft) -> None:
        """The checkpoint is durable: no log looks for anything any more in what it does not name."""
        emptied = {self._source} if self._source else set()
        files = [serial for serial in {*self.kept, *emptied} if serial not in draft.kept]
        draft.gone += [journal.file_name(serial) for serial in files]
        names = draft.gone_by_queue()
        names.setdefault(0, []).append(self._file)
        # The files go when every log was told: until then they may be read, by those that were not.
        self._walk.begin(partial(self._forget_places, names), lambda: self._let_go(draft))

    def _let_go(self, draft: Draft) -> None:
        gone, self.kept = draft.gone, draft.kept
        if self._next_first > self.first_serial:
            self._journal.serials.pop(0)
            self.recycled_files += 1
        for name in gone:
            self._outbox.remove(name)
            # Not of a file that stays for some log: behind its end may lie what a power failure has orphaned.
            self._journal.ends.pop(name, None)
        self._touched.difference_update(gone)
        self._moved = {}
        self._passed = {}
        self._held = {}
        self._source = 0
        for durable in draft.told:
            durable()
        self._rest()

    def _forget_places(self, names: dict[int, list[str]], log: DurableLog) -> int:
        """Files are about to go: those that may hold records of any queue (0), and those of one."""
        if log.cuts or log.begins != (0, 0):
            log.forget_cuts(min(log.since or self._next_first, self._next_first))
        if log.damage is not None:
            return 0
        queue_id = log.queue_id
        gone = names.get(queue_id, []) + names[0]
        for name in gone:
            if queue_id not in self._held or name != self._file:
                log.places.forget(name)
        if queue_id in self._held:
            self._keep_held(log, self._held[queue_id])
        # What was moved may have died since, and its segment with it; or a full copy has begun.
        moved = self._moved.get(queue_id)
        if moved:
            files = {*log.segments.files()}.difference(gone)
            log.places.insert([place for place in moved if place.file in files])
            log.places.pass_over(log.segments.end, files, log.end)
        return 0

    def _keep_held(self, log: DurableLog, place: Place) -> None:
        """What is before this place in its file lies in a segment; unless it was given up meanwhile."""
        if place.seq <= log.end and log.places.knows(place.file):
            log.places.begin(place)

    def _rest(self) -> None:
        """A step is over: if somebody wants the files to stay as they are, nothing new begins."""
        holder, self._holder = self._holder, None
        was_rewrite, self._was_rewrite = self._was_rewrite, False
        self._is_busy = self._is_stuck or holder is not None
        if holder is not None:
            holder()
        elif self.is_tight or was_rewrite or self._wanted:
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


def _needs(log: DurableLog, first: int, last: int) -> bool:
    """Is any of these records of the journal live or held by a cursor?"""
    first = max(first, log.segments.end + 1)
    return last >= first and (last >= log.keep_from or not log.disposable.covers(first, last))


def _needs_file(log: DurableLog, serial: int) -> bool:
    """Must a journal file that the others need no longer be kept for this log?"""
    if not 0 < log.since <= serial:
        return False
    if log.damage is None and log.copy is not None:
        return log.places.knows(journal.file_name(serial))
    return serial <= log.last_serial


def _is_settled(log: DurableLog) -> bool:
    """Are the records of a log in the first file that is kept for it committed?"""
    file = journal.file_name(log.since)
    if log.copy is None or not log.places.knows(file):
        return True
    following = log.places.after(file)
    return log.committed.end >= (following.seq - 1 if following is not None else log.end)


def _nothing() -> None:
    """Nothing to do."""


def _ignore(queue_id: int, reason: str) -> None:
    """Nobody listens yet."""
