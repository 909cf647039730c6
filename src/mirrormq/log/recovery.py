"""Reading the journal after a restart: every flushed record is found, or its queue is named as damaged.

Two passes over the files, in slices that stay in the processor's cache, so that neither time nor memory
depends on the length of the queues. The first learns which seqs are dead, where each queue ends and how far
its deliveries went; the second makes the live publishes ready again, in order, as many as memory may hold.
Both check every batch they use. Recovery writes but a new file: a crash during it leaves nothing half done.

A batch that cannot be read is the torn end of the journal if nothing says that it was flushed; then it and
all behind it are dropped, as nobody was told of them. Otherwise it is damage: the queue it belongs to (or, if
even that cannot be read, the queue whose seqs have a hole) comes up `damaged` and the others serve.
"""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from mirrormq.base import limits
from mirrormq.base.types import Seq
from mirrormq.kernel import records, replay
from mirrormq.kernel.cores import QueueCore
from mirrormq.kernel.replay import Replay
from mirrormq.log import checkpoint, journal, segments
from mirrormq.log.copyfill import EVERY_SERIAL, RECORD_OVERHEAD, fill_now
from mirrormq.log.copylog import CopyLog
from mirrormq.log.disk import Disk, LogRefused
from mirrormq.log.drops import Drops
from mirrormq.log.durable import DurableLog
from mirrormq.log.index import Entry
from mirrormq.log.recent import RecentPool
from mirrormq.log.relearn import CopyReplay, load_part, tell
from mirrormq.log.scan import next_batch, scan


@dataclass(slots=True)
class Owner:
    """A queue whose records are being read."""

    text: str
    core: QueueCore | None
    """Where its messages become ready; None if the log is a copy of a mirrored queue."""
    log: DurableLog
    damage: str | None = None
    since: int = 0
    """The first journal file with records of this queue that the checkpoint has not."""
    part: checkpoint.Part | None = None
    """What the checkpoint says of it."""

    @property
    def was_cut(self) -> bool:
        """Does the journal hold records of it that were given up, as the checkpoint knows?"""
        part = self.part
        return isinstance(part, checkpoint.QueuePart) and (bool(part.cuts) or part.begins != (0, 0))


ZEROS = bytes(limits.recovery_slice_bytes)


class Found(NamedTuple):
    """What recovery found."""

    next_serial: int
    serials: list[int]
    """Journal files that are needed, oldest first."""
    previous_end: int
    messages: int
    dropped_transient: int
    torn_bytes: int


class Fault(NamedTuple):
    """Something that cannot be read although it should be there."""

    file: str
    offset: int | None
    queue_id: int
    """0: it cannot be told whose it was."""
    text: str


class JournalDamaged(LogRefused):
    """A whole journal file is gone, or does not stay as it is: nobody can say what was in it."""


class JournalTooNew(LogRefused):
    """A journal file was written by a newer version."""


class JournalFile(NamedTuple):
    """A journal file that is still needed."""

    name: str
    serial: int
    end: int
    """Where the file's valid batches end, as far as is known before reading."""


class Recovery:
    """One recovery of all queues of a node."""

    def __init__(self, disk: Disk, owners: dict[int, Owner]) -> None:
        self._disk = disk
        self._owners = owners
        share = limits.node_memory_bytes // max(len(owners), 1)
        most = max(min(share, limits.queue_memory_bytes), limits.share_memory_bytes_min)
        self._memory = (most, limits.window_entries)
        """With more bytes in memory than the first a queue keeps half, not more entries than the second."""
        self.first_serial = 0
        self.orphans: list[str] = []
        """Files nobody needs: journal files before the checkpoint, segments of deleted queues."""
        self.numbers: dict[int, int] = {}
        """Of logs nobody knows: the highest number of a segment, whose file is there for a while."""
        self.faults: list[Fault] = []
        self.damaged_heads: list[str] = []
        """Journal files whose own head cannot be read, although their batches can."""
        self.ends: dict[str, int] = {}
        """Where the valid batches of each journal file end."""
        self.kept: dict[int, int] = {}
        """Where journal files end that only damaged queues need, by serial."""
        self.torn_bytes = 0
        """Bytes behind the last whole batch of the journal, which nobody was told of."""
        self._torn_at: tuple[int, int] | None = None
        self._highest_serial = 0
        self._replays: dict[int, Replay] = {}
        self._copies: dict[int, CopyReplay] = {}
        """The logs of mirrored queues."""
        self._truncated: set[int] = set()
        """Queues that have no mirrors any more, but had some when something of theirs was given up."""
        self._segment_files: set[str] = set()
        self._gaps: dict[tuple[str, int], int] = {}
        """Where reading goes on behind a damaged place."""
        self._flushed: tuple[int, int] | None = None
        """Up to where the notes say that all was flushed, once somebody had to know."""

    def run(self) -> Found:
        """Fill the queues from checkpoint, segments and journal."""
        files = self.learn()
        # Segments first: their records are older than anything the journal still holds of the same queue.
        # Only now is it known which of them died after the checkpoint.
        messages = dropped = 0
        self.drops = Drops(owner.log for owner in self._owners.values() if owner.core is not None)
        for queue_id, owner in self._owners.items():
            if queue_id in self._copies:
                restored, transient = self._fill_cut(owner)
                messages += restored
                dropped += transient
            else:
                messages += self._restore_segments(owner)
                self._replays[queue_id].after = owner.log.segments.end
                self._replays[queue_id].counts = owner.log.counts
        self._replays = {key: found for key, found in self._replays.items() if key not in self._copies}
        for file in files:
            restored, transient = self._restore(file)
            messages += restored
            dropped += transient
        for owner in self._owners.values():
            log = owner.log
            # Nothing is durable or deliverable yet: see Journal.start.
            log.redelivered_upto = log.horizon
            self._freeze(owner, files[-1].serial if files else 0)
        self.ends = {file.name: file.end for file in files}
        files = [file for file in files if file.serial not in self.kept]
        last = files[-1] if files else None
        end = 0
        if last is not None:
            end = self.ends[last.name] = self._torn_at[1] if self._torn_at else last.end
        serials = [file.serial for file in files]
        return Found(self._highest_serial + 1, serials, end, messages, dropped, self.torn_bytes)

    def learn(self) -> list[JournalFile]:
        """The first pass: what each queue's log says, but no message. Returns the journal files in order."""
        self._load_checkpoint()
        files = self._files(self.first_serial)
        self.first_serial = files[0].serial if files else max(self.first_serial, 1)
        files = [*self._kept_files(), *files]
        self._replays = {queue_id: _replay(owner) for queue_id, owner in self._owners.items()}
        for queue_id, owner in self._owners.items():
            if owner.log.copy is not None or owner.was_cut:
                self._begin_copy(queue_id, owner)
        self._learn_all(files)
        if self._truncated & set(self._replays):
            self._learn_again(files)
        for queue_id, owner in self._owners.items():
            if queue_id in self._copies:
                self._finish_copy(owner, self._copies[queue_id])
            else:
                self._finish(owner, self._replays[queue_id])
            self._find_hole(owner)
        return files

    def _learn_all(self, files: list[JournalFile]) -> None:
        for at, file in enumerate(files):
            self._learn(file, files[at + 1 :])
            if self._torn_at is not None:
                # Nothing behind a torn end was flushed either, later files included.
                self.orphans += [later.name for later in files[at + 1 :]]
                del files[at + 1 :]

    def _finish(self, owner: Owner, learnt: Replay) -> None:
        log = owner.log
        log.end, log.epoch, log.horizon = Seq(learnt.end), learnt.epoch, learnt.horizon
        log.last_wall = learnt.last_wall
        log.last_serial = max(log.last_serial, learnt.last_serial)
        _count(log, learnt)
        log.forget_buried()
        for seq in (*log.dying, *log.counts):
            log.set_aside.add(seq, seq)

    # --- logs of mirrored queues ---

    def _begin_copy(self, queue_id: int, owner: Owner) -> None:
        copy = owner.log.copy or CopyLog(owner.log, RecentPool())
        self._copies[queue_id] = CopyReplay(copy, owner.part, owner.since)
        self._replays[queue_id].is_copy = True

    def _learn_again(self, files: list[JournalFile]) -> None:
        """A queue without mirrors had some when it gave something up: what counts in the journal is known
        only when all of it was read, so those queues are read a second time.
        """
        replays, faults = self._replays, self.faults
        again = [queue_id for queue_id in replays if queue_id in self._truncated]
        for queue_id in again:
            owner = self._owners[queue_id]
            owner.damage = None
            owner.log.wipe()
            if isinstance(owner.part, checkpoint.QueuePart):
                load_part(owner.log, owner.part)
            replays[queue_id] = _replay(owner)
            self._begin_copy(queue_id, owner)
        self._replays, self.faults = {queue_id: replays[queue_id] for queue_id in again}, []
        self._learn_all(files)
        self._replays, self.faults = replays, faults

    def _finish_copy(self, owner: Owner, learnt: CopyReplay) -> None:
        learnt.finish()
        log = owner.log
        if learnt.missing is not None:
            text = f"records {learnt.missing[0]} to {learnt.missing[1]} are missing from the journal"
            self.faults.append(Fault(journal.PREFIX, None, log.queue_id, text))
            owner.damage = owner.damage or text
        if owner.core is not None:
            # No other node has a say in it any more: all that is there counts.
            log.take_state(learnt.copy.committed, learnt.copy.tail)
            log.copy = None

    def _fill_cut(self, owner: Owner) -> tuple[int, int]:
        """(ready, transient ones dropped) of a queue that had mirrors; a copy has nobody to be ready for."""
        log = owner.log
        for segment in log.segments.all:
            name, live = log.segments.name(segment.number), segment.live(log.dead)
            if live and name not in self._segment_files:
                owner.damage = owner.damage or f"{name} with {live} messages is missing"
        if owner.core is None or owner.damage is not None:
            return 0, 0
        dropped, owner.damage = fill_now(log, owner.core, self._disk)
        return owner.core.ready, dropped

    def seen(self, queue_id: int) -> list[tuple[int, int]]:
        """Which seqs of a queue the journal holds."""
        copy = self._copies.get(queue_id)
        return (copy or self._replays[queue_id]).seen.spans_list()

    def _find_hole(self, owner: Owner) -> None:
        """A live record must be in a segment or in the journal, also one the checkpoint counts already."""
        log = owner.log
        low = log.segments.end + 1
        for first, last in [*self.seen(log.queue_id), (log.end + 1, log.end + 1)]:
            if low < first and not log.dead.covers(low, first - 1):
                lost = log.dead.first_missing(low)
                text = f"record {lost} is neither in a segment nor in the journal"
                self.faults.append(Fault(journal.PREFIX, None, log.queue_id, text))
                owner.damage = owner.damage or text
                return
            low = max(low, last + 1)

    # --- files ---

    def _files(self, first_serial: int) -> list[JournalFile]:
        """The journal files in order, each with the end its successor's head tells."""
        found: list[tuple[int, str, journal.FileHead | None, int]] = []
        for name in self._disk.list(journal.PREFIX):
            serial = journal.serial_of(name)
            if serial is None or serial < first_serial:
                if serial not in self.kept:
                    self.orphans.append(name)
                continue
            head = journal.read_file_head(self._disk.read_part(name, 0, journal.HEAD_BYTES))
            if head is not None and head.version > journal.VERSION:
                raise JournalTooNew(
                    f"{name} was written by a newer version (format {head.version}, this one reads "
                    f"{journal.VERSION}): start the version that wrote it"
                )
            found.append((serial, name, head, self._disk.size(name)))
        self._highest_serial = max([first_serial, *(serial for serial, *_ in found)])
        return self._chain({serial: (name, head, size) for serial, name, head, size in found})

    def _chain(self, found: dict[int, tuple[str, journal.FileHead | None, int]]) -> list[JournalFile]:
        """The files that follow each other, as their heads say; an earlier recovery dropped the others.

        A file can come back although it was removed, and the newest can be there although the one before it
        is not: then it was never flushed.
        """
        for newest in sorted(found, reverse=True):
            files: list[JournalFile] = []
            serial, end = newest, found[newest][2]
            while serial in found:
                name, head, size = found[serial]
                if head is None and next_batch(self._disk.read(name), 0) is None:
                    break  # being begun when the node died: nothing in it was flushed
                if head is None:
                    self.damaged_heads.append(name)
                files.append(JournalFile(name, serial, min(end, size) if serial == newest else end))
                # A damaged head says nothing of the file before; its records are still good.
                before = head.previous_serial if head is not None else serial - 1
                end = head.previous_end if head is not None else found.get(before, ("", None, 0))[2]
                serial = before
            if files and (serial < self.first_serial or serial == 0):
                files.reverse()
                kept = {file.name for file in files}
                self.orphans += [name for name, _, _ in found.values() if name not in kept]
                return files
        for name, _, _ in found.values():
            if any(head[1] == 0 for _, head in scan(self._disk.read(name)).batches):
                raise JournalDamaged(
                    f"the journal file before {name} is missing, and what is left was flushed after it: "
                    f"{checkpoint.BACKUP}"
                )
        self.orphans += [name for name, _, _ in found.values()]
        return []

    def _kept_files(self) -> list[JournalFile]:
        """Files before the others that damaged queues need; one that is not there is damage of theirs."""
        there = {journal.serial_of(name) for name in self._disk.list(journal.PREFIX)}
        self.kept = {serial: end for serial, end in self.kept.items() if serial in there}
        return [
            JournalFile(journal.file_name(serial), serial, end) for serial, end in sorted(self.kept.items())
        ]

    def _freeze(self, owner: Owner, last_serial: int) -> None:
        """What is known of a damaged queue stays as it is; so do its files, for whoever repairs it."""
        log, part = owner.log, owner.part
        if owner.damage is None:
            log.since = owner.since if any(serial >= owner.since for serial in self.kept) else 0
            return
        log.damage = owner.damage
        log.since = owner.since or self.first_serial
        if part is None or not part.since:
            log.last_serial = last_serial  # what cannot be read may be in any of them
        log.last_serial = max([log.last_serial, *self.kept])
        if part is None:
            part = checkpoint.QueuePart(log.queue_id, log.epoch, 0, 0, 0, 0, [], [], low=1)
        if isinstance(part, checkpoint.QueuePart):
            part = msgspec.structs.replace(part, since=log.since)
        log.frozen = part

    # --- checkpoint and segments ---

    def _load_checkpoint(self) -> None:
        """Take what the checkpoint says of each queue."""
        if checkpoint.NAME not in self._disk.list("log/"):
            self._sort_segments()
            return
        found = checkpoint.decode(self._disk.read(checkpoint.NAME))
        self.first_serial = found.first_serial
        self.kept = dict(found.kept)
        for queue_id, owner in self._owners.items():
            owner.since = found.first_serial
            part = owner.part = found.damaged.get(queue_id) or found.parts.get(queue_id)
            if isinstance(part, checkpoint.QueuePart):
                owner.since = part.since or found.first_serial
                load_part(owner.log, part)
            elif part is not None:
                owner.damage = f"its part of {checkpoint.NAME} is damaged"
                owner.since = part.since
            elif found.damaged and self._disk.list(owner.log.segments.folder):
                # A part whose queue cannot be told may be this one's.
                owner.damage = f"it has no part in {checkpoint.NAME}, which is damaged"
        self._sort_segments()

    def _sort_segments(self) -> None:
        """Files that no checkpoint lists are left over from a step that was not finished."""
        self._segment_files = set(self._disk.list(segments.PREFIX))
        for name in sorted(self._segment_files):
            found = segments.identify(name)
            owner = self._owners.get(found[0]) if found is not None else None
            is_listed = owner is not None and found is not None and owner.log.segments.lists(found[1])
            if found is not None and not is_listed:
                self.numbers[found[0]] = max(found[1], self.numbers.get(found[0], 0))
            if not is_listed and (owner is None or owner.damage is None):
                self.orphans.append(name)
        for queue_id in self.numbers.keys() & self._owners.keys():
            self._owners[queue_id].log.segments.avoid(self.numbers.pop(queue_id))

    def _restore_segments(self, owner: Owner) -> int:
        """Make the live records of a queue's segments ready again; returns how many there are."""
        log, core = owner.log, owner.core
        assert core is not None
        messages = 0
        for segment in log.segments.all:
            name = log.segments.name(segment.number)
            live = segment.live(log.dead)
            if live and name not in self._segment_files:
                owner.damage = f"{name} with {live} messages is missing"
                continue
            if live and segment.transients:
                self._bury_transients(owner, segment)
                live = segment.live(log.dead)
            aside = log.aside_between(segment.first, segment.last)
            apart = sum(last - first + 1 - _dead_in(log, first, last) for first, last in aside.spans_list())
            if core.max_priority or apart:
                messages += self._restore_segment(owner, segment, only_dying=not core.max_priority)
            live -= apart
            if live and not core.max_priority:
                body_bytes = (
                    max(segment.size - segment.publishes * RECORD_OVERHEAD, 0) * live // segment.publishes
                )
                core.restore_run(segment.first, segment.last, live, body_bytes)
                messages += live
        return messages

    def _bury_transients(self, owner: Owner, segment: segments.Segment) -> None:
        """Messages that do not outlive a restart may have been moved to a segment: they are dead now."""
        log = owner.log
        if segment.transients == segment.publishes:
            log.dead.add(segment.first, segment.last)
            return
        name, at, want = log.segments.name(segment.number), segments.HEAD_BYTES, limits.recovery_slice_bytes
        while at < segment.size:
            data = self._disk.read_part(name, at, min(want, segment.size - at))
            found = scan(data)
            for place, _ in found.batches:
                for seq in records.transient_seqs(data, place):
                    log.dead.add(seq, seq)
            if len(data) < want:
                return
            at += found.resume
            want = max(found.need, limits.recovery_slice_bytes)

    def _restore_segment(self, owner: Owner, segment: segments.Segment, *, only_dying: bool) -> int:
        """A queue with priorities must know the priority of each message, and a letter is sent again at
        once: read the whole segment. What lies behind the end the checkpoint knows is in the journal too.
        """
        log = owner.log
        name, at, want = log.segments.name(segment.number), segments.HEAD_BYTES, limits.recovery_slice_bytes
        queue = {log.queue_id: _replay(owner)}
        messages = 0
        while at < segment.size:
            data = self._disk.read_part(name, at, want)
            done, restored, _ = replay.restore(
                queue, data, segment.size - at, (*self._memory, EVERY_SERIAL), only_dying
            )
            messages += restored
            at += done
            want = limits.recovery_slice_bytes if done else _larger(data, want)
            if not want:
                owner.damage = f"{name} is damaged at byte {at}"
                break
        return messages

    # --- first pass ---

    def _learn(self, file: JournalFile, later: list[JournalFile]) -> None:
        at, want = journal.HEAD_BYTES, limits.recovery_slice_bytes
        while at < file.end:
            data = self._disk.read_part(file.name, at, want)
            where = (file.name, at, limits.place_bytes_min, file.serial)
            done, rare, missing, told = replay.learn(self._replays, data, file.end - at, where)
            for queue_id, offset, first, last in missing:
                self._note_missing(file, offset, self._owners[queue_id], (first, last))
            for queue_id, kind, flags, payload in rare:
                self._owners[queue_id].log.apply(kind, flags, payload)
            self._truncated |= tell(self._copies, (file.name, file.serial), told)
            at += done
            want = limits.recovery_slice_bytes if done else _larger(data, want)
            if not want:
                if file.serial not in self.kept and not self._was_flushed(file, at, later):
                    self._torn_at = (file.serial, at)
                    self.torn_bytes = self._used_end(file, at) - at
                    return
                at = self._pass_over(file, at)
                want = limits.recovery_slice_bytes

    def _note_missing(self, file: JournalFile, at: int, owner: Owner, lost: tuple[int, int]) -> None:
        text = f"records {lost[0]} to {lost[1]} are missing from the journal before {file.name}"
        self.faults.append(Fault(file.name, at, owner.log.queue_id, text))
        owner.damage = owner.damage or text

    def _pass_over(self, file: JournalFile, at: int) -> int:
        """Note a damaged place; returns where the next whole batch begins."""
        data = self._disk.read(file.name)
        head = records.read_head(data, at)
        following = next_batch(data, at + 1)
        after = file.end if following is None else following
        named = (head[1], head[3], head[4]) if head is not None else records.read_tail(data, after)
        self._note_damage(named, file, at)
        self._gaps[file.name, at] = after
        return after

    def _was_flushed(self, file: JournalFile, at: int, later: list[JournalFile]) -> bool:
        """Does anything that can be read behind this byte say that it had been flushed?"""
        if self._flushed is None:
            # Behind the last batch lies space the file was given in advance: nothing to be read there.
            is_end = self._used_end(file, at) == at
            places = later if is_end else [file, *later]
            self._flushed = max((self._last_note(place.name) for place in places), default=(0, 0))
        return self._flushed > (file.serial, at)

    def _last_note(self, name: str) -> tuple[int, int]:
        """Up to where everything was flushed, as far as the notes in this file say."""
        data = self._disk.read(name)
        noted = (0, 0)
        at = next_batch(data, 0)
        while at is not None:
            head = records.read_head(data, at)
            assert head is not None
            if head[1] == 0:
                for kind, _, _, payload in records.other_records(data, at):
                    if kind == records.EPOCH:
                        noted = max(noted, journal.read_flushed_note(payload))
            at = next_batch(data, at + head[0])
        return noted

    def _used_end(self, file: JournalFile, at: int) -> int:
        """Where the zeros begin with which a file ends, not before `at`: no record begins so, and none was
        lost there.
        """
        end = file.end
        while end > at:
            low = max(at, end - len(ZEROS))
            data = self._disk.read_part(file.name, low, end - low)
            if data != ZEROS[: end - low]:
                return low + len(data.rstrip(b"\0"))
            end = low
        return at

    def _note_damage(self, named: tuple[int, ...] | None, file: JournalFile, at: int) -> None:
        """Name the queue by head or tail (queue id, first seq, records); if neither can be read, the hole in
        its seqs will.
        """
        text = f"{file.name} is damaged at byte {at}"
        if named is not None:
            text += f": records {named[1]} to {named[1] + named[2] - 1} cannot be read"
        self.faults.append(Fault(file.name, at, named[0] if named is not None else 0, text))
        owner = self._owners.get(named[0]) if named is not None else None
        if owner is not None and file.serial >= owner.since:
            owner.damage = owner.damage or text

    # --- second pass ---

    def _restore(self, file: JournalFile) -> tuple[int, int]:
        end = self._torn_at[1] if self._torn_at is not None and self._torn_at[0] == file.serial else file.end
        messages = dropped = 0
        at, want = journal.HEAD_BYTES, limits.recovery_slice_bytes
        while at < end:
            data = self._disk.read_part(file.name, at, want)
            done, restored, transient = replay.restore(
                self._replays, data, end - at, (*self._memory, file.serial)
            )
            messages += restored
            dropped += transient
            at += done
            want = limits.recovery_slice_bytes if done else _larger(data, want)
            if not want:
                if (file.name, at) not in self._gaps:
                    raise JournalDamaged(f"{file.name} changed at byte {at} while it was read")
                at, want = self._gaps[file.name, at], limits.recovery_slice_bytes
        return messages, dropped


def _replay(owner: Owner) -> Replay:
    """A queue as the checkpoint tells it, ready to learn more."""
    log = owner.log

    def note_place(seq: int, file: str, offset: int, entry: tuple[int, int, int]) -> None:
        if log.places.note(seq, file, offset):
            log.index.note(Entry(seq, *entry))

    made = Replay(owner.core, log.dead, log.set_aside, log.letters, (note_place, log.index.note_epoch))
    made.since, made.index_start, made.counts = owner.since, len(log.index), log.counts
    made.refused = log.refused
    made.end, made.epoch, made.horizon, made.last_wall = log.end, log.epoch, log.horizon, log.last_wall
    return made


def _dead_in(log: DurableLog, first: int, last: int) -> int:
    return last - first + 1 - log.dead.missing_count(first, last)


def _count(log: DurableLog, learnt: Replay) -> None:
    """Publishes and bytes are known at the checkpoint's end; the journal was counted from zero."""
    published = max(log.published - learnt.published_covered, 0)
    written = max(log.written - learnt.written_covered, 0)
    log.index.shift(learnt.index_start, published, written)
    log.published, log.written = published + learnt.published, written + learnt.written


def _larger(data: bytes, want: int) -> int:
    """How much to read so that the batch `data` begins with is all there; 0 if that would not help."""
    head = records.read_head(data, 0)
    return head[0] if head is not None and len(data) == want < head[0] else 0
