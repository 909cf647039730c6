"""Reading the journal after a restart: every flushed record is found, or its queue is named as damaged.

Two passes over the files. The first learns which seqs are dead, where each queue ends and how far its
deliveries went; the second makes the live publishes ready again, in order. Recovery writes nothing but a new
file, so a crash during it leaves nothing half done.

A batch that cannot be read is the torn end of the journal if nothing says that it was flushed; then it and
all behind it are dropped, as nobody was told of them. Otherwise it is damage: the queue it belongs to (or, if
even that cannot be read, the queue whose seqs have a hole) comes up `damaged` and the others serve.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from mirrormq.base.types import Seq
from mirrormq.kernel import records
from mirrormq.kernel.cores import QueueCore
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log import checkpoint, dying, journal, segments
from mirrormq.log.disk import Disk, LogRefused
from mirrormq.log.durable import PURGE, DurableLog
from mirrormq.log.places import Place
from mirrormq.log.scan import next_batch, scan

RECORD_OVERHEAD = 80
"""Bytes of a record that are not its body, about: good enough to know how long a queue is after a restart."""

_U64 = struct.Struct("<Q")
_SPAN = struct.Struct("<QQQ")


@dataclass(slots=True)
class Owner:
    """A queue whose records are being read."""

    text: str
    core: QueueCore
    log: DurableLog
    damage: str | None = None
    seen: RangeSet = field(default_factory=RangeSet)
    """Seqs of the records that the journal holds."""


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
    """A whole journal file is gone: nobody can say what was in it."""


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
        self.first_serial = 0
        self.orphans: list[str] = []
        """Files that belong to nothing any more: journal files before the checkpoint, segments of deleted
        queues.
        """
        self.faults: list[Fault] = []
        self.ends: dict[str, int] = {}
        """Where the valid batches of each journal file end."""
        self.torn_bytes = 0
        """Bytes behind the last whole batch of the journal, which nobody was told of."""
        self._torn_at: tuple[int, int] | None = None
        self._highest_serial = 0

    def run(self) -> Found:
        """Fill the queues from checkpoint, segments and journal."""
        files = self.learn()
        # Segments first: their records are older than anything the journal still holds of the same queue.
        # Only now is it known which of them died after the checkpoint.
        messages = sum(self._restore_segments(owner) for owner in self._owners.values())
        dropped = 0
        for file in files:
            restored, transient = self._restore(file)
            messages += restored
            dropped += transient
        for owner in self._owners.values():
            log = owner.log
            # Nothing is durable or deliverable yet: see Journal.start.
            log.redelivered_upto = log.horizon
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
        for at, file in enumerate(files):
            self._learn(file, files[at + 1 :])
            if self._torn_at is not None:
                # Nothing behind a torn end was flushed either, later files included.
                self.orphans += [later.name for later in files[at + 1 :]]
                del files[at + 1 :]
        for owner in self._owners.values():
            log = owner.log
            log.forget_letters(self._owners)
            log.dying = {seq: death for seq, death in log.dying.items() if seq not in log.dead}
            for seq in log.dying:
                log.dying_found.add(seq, seq)
            self._find_hole(owner)
        return files

    def _find_hole(self, owner: Owner) -> None:
        """A live record must be in a segment or in the journal, also one the checkpoint counts already."""
        log = owner.log
        low = log.segments.end + 1
        for first, last in [*owner.seen.spans_list(), (log.end + 1, log.end + 1)]:
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
                self.orphans.append(name)
                continue
            data = self._disk.read(name)
            head = journal.read_file_head(data)
            if head is not None and head.version > journal.VERSION:
                raise JournalTooNew(
                    f"{name} was written by a newer version (format {head.version}, this one reads "
                    f"{journal.VERSION}): start the version that wrote it"
                )
            found.append((serial, name, head, len(data)))
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
                    "restore the data folder from a backup"
                )
        self.orphans += [name for name, _, _ in found.values()]
        return []

    # --- checkpoint and segments ---

    def _load_checkpoint(self) -> None:
        """Take what the checkpoint says of each queue."""
        if checkpoint.NAME not in self._disk.list("log/"):
            self._sort_segments()
            return
        found = checkpoint.decode(self._disk.read(checkpoint.NAME))
        self.first_serial = found.first_serial
        for queue_id in found.damaged & self._owners.keys():
            self._owners[queue_id].damage = f"its part of {checkpoint.NAME} is damaged"
        for queue_id, part in found.parts.items():
            if queue_id in self._owners:
                self._load_part(self._owners[queue_id].log, part)
        self._sort_segments()

    def _sort_segments(self) -> None:
        """Files that no checkpoint lists are left over from a step that was not finished."""
        for name in self._disk.list(segments.PREFIX):
            found = segments.identify(name)
            owner = self._owners.get(found[0]) if found is not None else None
            if owner is None or found is None or not owner.log.segments.lists(found[1]):
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
        log.segments.load(checkpoint.segments_of(part), part.segments_end)
        for segment in log.segments.all:
            log.places.insert([Place(segment.first, log.segments.name(segment.number), segments.HEAD_BYTES)])

    def _restore_segments(self, owner: Owner) -> int:
        """Make the live records of a queue's segments ready again; returns how many there are."""
        log, core = owner.log, owner.core
        messages = 0
        for segment in log.segments.all:
            name = log.segments.name(segment.number)
            live = segment.live(log.dead)
            if live and not self._disk.list(name):
                owner.damage = f"{name} with {live} messages is missing"
                continue
            if live and segment.transients:
                self._bury_transients(owner, name, segment.size)
                live = segment.live(log.dead)
            span = segment.last - segment.first + 1
            dead_letters = span - log.dying_found.missing_count(segment.first, segment.last)
            if core.max_priority or dead_letters:
                messages += self._restore_segment(owner, segment, only_dying=not core.max_priority)
            live -= dead_letters
            if live and not core.max_priority:
                body_bytes = (
                    max(segment.size - segment.publishes * RECORD_OVERHEAD, 0) * live // segment.publishes
                )
                core.restore_run(segment.first, segment.last, live, body_bytes)
                messages += live
        return messages

    def _bury_transients(self, owner: Owner, name: str, size: int) -> None:
        """Messages that do not outlive a restart may have been moved to a segment: they are dead now."""
        data = self._disk.read(name)[:size]
        for at, _ in scan(data[segments.HEAD_BYTES :]).batches:
            for seq in records.transient_seqs(data, segments.HEAD_BYTES + at):
                owner.log.dead.add(seq, seq)

    def _restore_segment(self, owner: Owner, segment: segments.Segment, *, only_dying: bool) -> int:
        """A queue with priorities must know the priority of each message, and a letter is sent again at
        once: read the whole segment. What lies behind the end the checkpoint knows is in the journal too.
        """
        log = owner.log
        name = log.segments.name(segment.number)
        data = self._disk.read(name)
        messages, at = 0, segments.HEAD_BYTES
        while at < segment.size:
            head = records.read_head(data, at)
            if head is None or not records.is_whole(data, at):
                owner.damage = f"{name} is damaged at byte {at}"
                break
            restored, _ = records.restore(
                owner.core, data, at, log.dead, log.horizon, True, 0, log.dying_found, only_dying
            )
            messages += restored
            at += head[0]
        return messages

    # --- first pass ---

    def _learn(self, file: JournalFile, later: list[JournalFile]) -> None:
        data = self._disk.read(file.name)
        for at, head in self._batches(file, data, later):
            _, queue_id, epoch, first, count, publishes, time = head
            if queue_id == 0:
                continue  # a note of the journal
            owner = self._owners.get(queue_id)
            if owner is None:
                continue  # deleted since
            log = owner.log
            log.places.note(first, file.name, at)
            owner.seen.add(first, first + count - 1)
            if first + count - 1 <= log.end:
                continue  # the checkpoint has it
            if first > log.end + 1:
                text = f"records {log.end + 1} to {first - 1} are missing from the journal before {file.name}"
                self.faults.append(Fault(file.name, at, queue_id, text))
                owner.damage = owner.damage or text
            log.end = Seq(first + count - 1)
            log.epoch = max(log.epoch, epoch)
            log.last_wall = max(log.last_wall, time)
            if publishes < count:
                self._apply(log, data, at)
            if publishes:
                log.letters.update(records.letters(data, at) or ())

    def _apply(self, log: DurableLog, data: bytes, at: int) -> None:
        for kind, flags, seq, payload in records.other_records(data, at):
            log.dead.add(seq, seq)
            if kind == records.REMOVE and flags == PURGE:
                (upto,) = _U64.unpack_from(payload, 8)
                log.bury_purged(upto, [held for (held,) in _U64.iter_unpack(payload[16:])])
            elif kind == records.REMOVE:
                for first, last, _ in _SPAN.iter_unpack(payload[8:]):
                    log.dead.add(first, last)
            elif kind == records.HORIZON:
                log.horizon = max(log.horizon, _U64.unpack(payload)[0])
            elif kind == records.DYING:
                log.note_dying(dying.decode(payload))
            elif kind != records.EPOCH:
                raise UnknownKind(kind, log.queue_id)

    def _batches(
        self, file: JournalFile, data: bytes, later: list[JournalFile]
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Every whole batch of a file; damage is noted, the torn end is cut."""
        at = journal.HEAD_BYTES
        while at < file.end:
            head = records.read_head(data, at)
            if head is not None and records.is_whole(data, at):
                yield at, head
                at += head[0]
                continue
            if not self._was_flushed(file, at, later):
                self._torn_at = (file.serial, at)
                # Space the file was given in advance is zero: no record begins so, and none was lost there.
                self.torn_bytes = len(data[at : file.end].rstrip(b"\0"))
                return
            following = next_batch(data, at + 1)
            after = file.end if following is None else following
            named = (head[1], head[3], head[4]) if head is not None else records.read_tail(data, after)
            self._note_damage(named, file, at)
            at = after

    def _was_flushed(self, file: JournalFile, at: int, later: list[JournalFile]) -> bool:
        """Does anything that can be read behind this byte say that it had been flushed?"""
        start = at + 1
        for place in (file, *later):
            data = self._disk.read(place.name)
            following = next_batch(data, start)
            while following is not None:
                head = records.read_head(data, following)
                assert head is not None
                if head[1] == 0:
                    for _, _, _, payload in records.other_records(data, following):
                        if journal.read_flushed_note(payload) > (file.serial, at):
                            return True
                following = next_batch(data, following + head[0])
            start = 0
        return False

    def _note_damage(self, named: tuple[int, ...] | None, file: JournalFile, at: int) -> None:
        """Name the queue by head or tail (queue id, first seq, records); if neither can be read, the hole in
        its seqs will.
        """
        text = f"{file.name} is damaged at byte {at}"
        if named is not None:
            text += f": records {named[1]} to {named[1] + named[2] - 1} cannot be read"
        self.faults.append(Fault(file.name, at, named[0] if named is not None else 0, text))
        owner = self._owners.get(named[0]) if named is not None else None
        if owner is not None:
            owner.damage = owner.damage or text

    # --- second pass ---

    def _restore(self, file: JournalFile) -> tuple[int, int]:
        data = self._disk.read(file.name)
        end = self._torn_at[1] if self._torn_at is not None and self._torn_at[0] == file.serial else file.end
        messages = dropped = 0
        at: int | None = journal.HEAD_BYTES
        while at is not None and at < end:
            head = records.read_head(data, at)
            if head is None or not records.is_whole(data, at):
                at = next_batch(data, at + 1)
                continue
            owner = self._owners.get(head[1])
            if owner is not None and head[5]:
                log = owner.log
                restored, transient = records.restore(
                    owner.core, data, at, log.dead, log.horizon, True, log.segments.end, log.dying_found
                )
                messages += restored
                dropped += transient
            at += head[0]
        return messages, dropped


class UnknownKind(LogRefused):
    """A record of a kind this version does not know: refused, never skipped."""

    def __init__(self, kind: int, queue_id: int) -> None:
        super().__init__(
            f"a record of unknown kind {kind} in the log of queue {queue_id}: a newer version wrote it"
        )
