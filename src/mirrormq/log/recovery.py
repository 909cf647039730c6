"""Reading the journal after a restart: every flushed record is found, or its queue is named as damaged.

Two passes over the files, in slices that stay in the processor's cache, so that neither time nor memory
depends on the length of the queues. The first learns which seqs are dead, where each queue ends and how far
its deliveries went; the second makes the live publishes ready again, in order, as many as a queue may hold
in memory. Both check every batch they use. Recovery writes nothing but a new file, so a crash during it
leaves nothing half done.

A batch that cannot be read is the torn end of the journal if nothing says that it was flushed; then it and
all behind it are dropped, as nobody was told of them. Otherwise it is damage: the queue it belongs to (or, if
even that cannot be read, the queue whose seqs have a hole) comes up `damaged` and the others serve.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from mirrormq.base import limits
from mirrormq.base.types import Seq
from mirrormq.kernel import records, replay
from mirrormq.kernel.cores import QueueCore
from mirrormq.kernel.ranges import RangeSet
from mirrormq.kernel.replay import Replay
from mirrormq.log import checkpoint, dying, journal, segments
from mirrormq.log.disk import Disk, LogRefused
from mirrormq.log.durable import PURGE, DurableLog
from mirrormq.log.index import Entry
from mirrormq.log.places import Place
from mirrormq.log.scan import next_batch, scan

RECORD_OVERHEAD = 80
"""Bytes of a record that are not its body, about: good enough to know how long a queue is after a restart."""

_U64 = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")


@dataclass(slots=True)
class Owner:
    """A queue whose records are being read."""

    text: str
    core: QueueCore
    log: DurableLog
    damage: str | None = None
    since: int = 0
    """The first journal file with records of this queue that the checkpoint has not."""
    part: checkpoint.Part | None = None
    """What the checkpoint says of it."""


ZEROS = bytes(limits.recovery_slice_bytes)
EVERY_SERIAL = (1 << 63) - 1


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
        """A queue with more bytes in memory than the first keeps half of it, and no more entries than the
        second.
        """
        self.first_serial = 0
        self.orphans: list[str] = []
        """Files that belong to nothing any more: journal files before the checkpoint, segments of deleted
        queues.
        """
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
        messages = sum(self._restore_segments(owner) for owner in self._owners.values())
        for queue_id, owner in self._owners.items():
            self._replays[queue_id].after = owner.log.segments.end
            self._replays[queue_id].counts = owner.log.counts
        dropped = 0
        for file in files:
            restored, transient = self._restore(file)
            messages += restored
            dropped += transient
        for owner in self._owners.values():
            log = owner.log
            # Nothing is durable or deliverable yet: see Journal.start.
            log.redelivered_upto = log.horizon
            self._freeze(owner, files[-1].serial if files else 0)
        files = [file for file in files if file.serial not in self.kept]
        self.ends = {file.name: file.end for file in files}
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
        for at, file in enumerate(files):
            self._learn(file, files[at + 1 :])
            if self._torn_at is not None:
                # Nothing behind a torn end was flushed either, later files included.
                self.orphans += [later.name for later in files[at + 1 :]]
                del files[at + 1 :]
        for queue_id, owner in self._owners.items():
            log, learnt = owner.log, self._replays[queue_id]
            log.end, log.epoch, log.horizon = Seq(learnt.end), learnt.epoch, learnt.horizon
            log.last_wall = learnt.last_wall
            log.last_serial = max(log.last_serial, learnt.last_serial)
            _count(log, learnt)
            log.dying = {seq: death for seq, death in log.dying.items() if seq not in log.dead}
            log.forget_counts()
            for seq in (*log.dying, *log.counts):
                log.set_aside.add(seq, seq)
            self._find_hole(owner)
        return files

    def seen(self, queue_id: int) -> list[tuple[int, int]]:
        """Which seqs of a queue the journal holds."""
        return self._replays[queue_id].seen.spans_list()

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
                self._load_part(owner.log, part)
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
            if owner is not None and found is not None and owner.damage is not None:
                owner.log.segments.avoid(found[1])
            elif owner is None or found is None or not owner.log.segments.lists(found[1]):
                self.orphans.append(name)
                if owner is not None and found is not None:
                    owner.log.segments.avoid(found[1])

    def _load_part(self, log: DurableLog, part: checkpoint.QueuePart) -> None:
        log.end, log.epoch, log.horizon, log.last_wall = (
            Seq(part.end),
            part.epoch,
            part.horizon,
            part.last_wall,
        )
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
        log.segments.load(checkpoint.segments_of(part), part.segments_end, checkpoint.marks_of(part))
        for segment in log.segments.all:
            name = log.segments.name(segment.number)
            log.places.insert([Place(segment.first, name, segments.HEAD_BYTES)])
            for mark in log.segments.marks.get(segment.number, ()):
                log.index.note(mark.entry)
                log.places.insert([Place(mark.entry.seq, name, mark.offset)])

    def _restore_segments(self, owner: Owner) -> int:
        """Make the live records of a queue's segments ready again; returns how many there are."""
        log, core = owner.log, owner.core
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
            done, rare, missing = replay.learn(self._replays, data, file.end - at, where)
            for queue_id, offset, first, last in missing:
                self._note_missing(file, offset, self._owners[queue_id], (first, last))
            for queue_id, kind, flags, payload in rare:
                _apply(self._owners[queue_id].log, kind, flags, payload)
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
                for _, _, _, payload in records.other_records(data, at):
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


def _apply(log: DurableLog, kind: int, flags: int, payload: bytes) -> None:
    """Heed a record of one of the rarer kinds."""
    if kind == records.REMOVE and flags == PURGE:
        (upto,) = _U64.unpack_from(payload, 8)
        log.bury_purged(upto, [held for (held,) in _U64.iter_unpack(payload[16:])])
    elif kind == records.DYING:
        log.note_dying(dying.decode(payload))
    elif kind == records.REQUEUE:
        log.note_counts(payload)
    elif kind == records.PUBNOTE:
        log.raise_row(*_PAIR.unpack(payload))
    elif kind == records.CURSOR:
        log.cursors.apply(flags, payload)
    else:
        raise UnknownKind(kind, log.queue_id)


class UnknownKind(LogRefused):
    """A record of a kind this version does not know: refused, never skipped."""

    def __init__(self, kind: int, queue_id: int) -> None:
        super().__init__(
            f"a record of unknown kind {kind} in the log of queue {queue_id}: a newer version wrote it"
        )
