"""Looking at the logs of a data folder that no node uses: what is there, and is all of it there?

Guarantees: nothing is written. What a queue's log says is learnt by the same code that recovers it
(`recovery.Recovery.learn`), so that a report and a start never disagree; `verify` reads every byte besides,
so that damage is found which a start would meet only when somebody consumes.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mirrormq.kernel import records
from mirrormq.kernel.cores import QueueCore, Worklist
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log import checkpoint, journal, segments
from mirrormq.log.disk import Disk, LogRefused
from mirrormq.log.durable import DurableLog
from mirrormq.log.journal import Journal
from mirrormq.log.recovery import Fault, Owner, Recovery
from mirrormq.log.scan import Head, scan
from mirrormq.log.segments import Segments

KINDS = {
    records.PUBLISH: "PUBLISH",
    records.PUBNOTE: "PUBNOTE",
    records.REMOVE: "REMOVE",
    records.REQUEUE: "REQUEUE",
    records.HORIZON: "HORIZON",
    records.DYING: "DYING",
    records.POLICY: "POLICY",
    records.EPOCH: "EPOCH",
    records.DELETE: "DELETE",
    records.HADCONSUMER: "HADCONSUMER",
    records.PRODGONE: "PRODGONE",
    records.CURSOR: "CURSOR",
    records.STAGE: "STAGE",
    records.COMMIT_SET: "COMMIT_SET",
    records.BASE: "BASE",
    records.MARK: "MARK",
    records.TRUNCATE: "TRUNCATE",
    records.PROMISE: "PROMISE",
}

_RECORD = struct.Struct("<IIBB2x")

REFUSALS = (LogRefused,)
"""Why a node would not start at all."""


class Record(NamedTuple):
    """One record and the batch it lies in."""

    file: str
    offset: int
    """Where its batch begins."""
    queue_id: int
    epoch: int
    time: int
    seq: int
    kind: str
    flags: int
    size: int


@dataclass(slots=True)
class Share:
    """What one journal file holds of one queue."""

    batches: int = 0
    records: int = 0
    size: int = 0


@dataclass(slots=True)
class Queue:
    """What the log of one queue says."""

    log: DurableLog
    damage: str | None
    journal: dict[str, Share] = field(default_factory=dict)

    @property
    def live(self) -> int:
        """Publishes that were not removed; transient ones among them go at the next start."""
        return self.log.dead.missing_count(1, self.log.end) if self.log.end else 0


@dataclass(slots=True)
class Report:
    """What `verify` found."""

    faults: list[Fault] = field(default_factory=list)
    journal_files: int = 0
    segments: int = 0
    orphans: int = 0
    """Files that nothing needs: the next start removes them."""
    queues: int = 0
    batches: int = 0
    records: int = 0
    size: int = 0
    live: int = 0
    cursors: int = 0
    torn_bytes: int = 0


class Inspection:
    """The logs of the queues with these ids, as the files of a disk tell them."""

    def __init__(self, disk: Disk, queue_ids: Mapping[int, str]) -> None:
        """`queue_ids`: the durable queues that the definitions know, and how to call them."""
        self._disk = disk
        nothing = _NoOutbox()
        writer = Journal(nothing, lambda: 0)
        self._owners = {
            queue_id: Owner(
                text,
                QueueCore(Worklist(), Graveyard(), None, 0),
                DurableLog(writer, Segments(nothing, queue_id)),
            )
            for queue_id, text in queue_ids.items()
        }
        self._recovery = Recovery(disk, self._owners)
        self._files: list[str] = []

    def learn(self) -> dict[int, Queue]:
        """Every queue by its id. Raises one of `REFUSALS` where a node would not start."""
        self._files = [file.name for file in self._recovery.learn()]
        found = {key: Queue(owner.log, owner.damage) for key, owner in self._owners.items()}
        for name in self._files:
            for _, head in batches(self._disk.read(name), journal.HEAD_BYTES):
                queue = found.get(head[1])
                if queue is not None:
                    share = queue.journal.setdefault(name, Share())
                    share.batches += 1
                    share.records += head[4]
                    share.size += head[0]
        return found

    def records(self, queue_id: int | None = None) -> Iterator[Record]:
        """Records in the order of their files, segments first; those of one queue, or all. After `learn`."""
        for key, owner in self._owners.items():
            if queue_id in (None, key):
                for name in owner.log.segments.files():
                    yield from self._records_of(name, segments.HEAD_BYTES, queue_id)
        for name in self._files:
            yield from self._records_of(name, journal.HEAD_BYTES, queue_id)

    def _records_of(self, name: str, start: int, queue_id: int | None) -> Iterator[Record]:
        if not self._disk.list(name):
            return
        data = self._disk.read(name)
        for at, head in batches(data, start):
            if queue_id in (None, head[1]):
                for seq, kind, flags, size in records_in(data, at, head):
                    shown = KINDS.get(kind, str(kind))
                    yield Record(name, at, head[1], head[2], head[6], seq, shown, flags, size)

    # --- verify ---

    def verify(self) -> Report:
        """Read and check every file of the log."""
        report = Report(queues=len(self._owners))
        try:
            files = self._recovery.learn()
        except REFUSALS as refusal:
            # Without it nothing can be said about what should be there; the files' own checksums still can.
            report.faults.append(Fault(_file_in(str(refusal)), None, 0, str(refusal)))
            self._check_checksums(report)
            return report
        report.faults += self._recovery.faults
        report.torn_bytes = self._recovery.torn_bytes
        report.orphans = len(self._recovery.orphans)
        for owner in self._owners.values():
            if owner.damage is not None and not any(owner.damage == fault.text for fault in report.faults):
                report.faults.append(Fault(checkpoint.NAME, None, owner.log.queue_id, owner.damage))
            report.live += owner.log.dead.missing_count(1, owner.log.end) if owner.log.end else 0
            report.cursors += len(owner.log.cursors)
            self._check_held(owner, self._check_segments(owner, report), report)
        for file in files:
            data = self._disk.read(file.name)[: file.end]
            report.journal_files += 1
            report.size += len(data)
            self._check_head(file.name, data, report)
            for _, head in batches(data, journal.HEAD_BYTES):
                _count(report, head)
        return report

    def _check_held(self, owner: Owner, present: RangeSet, report: Report) -> None:
        """Every record from the lowest cursor on must be in a segment or in the journal."""
        log = owner.log
        for first, last in self._recovery.seen(log.queue_id):
            present.add(first, last)
        low = max(log.cursors.low, log.low)
        if low <= log.end and not present.covers(low, log.end):
            lost = present.first_missing(low)
            text = f"record {lost}, which a cursor holds, is neither in a segment nor in the journal"
            report.faults.append(Fault(journal.PREFIX, None, log.queue_id, text))
        if log.cursors.low < log.low:
            text = f"a cursor stands at {log.cursors.low}, but records are kept from {log.low} on"
            report.faults.append(Fault(checkpoint.NAME, None, log.queue_id, text))

    def _check_segments(self, owner: Owner, report: Report) -> RangeSet:
        """Check the segments of a queue; returns the seqs they hold."""
        log = owner.log
        everything = RangeSet()
        for segment in log.segments.all:
            name = log.segments.name(segment.number)
            if not self._disk.list(name):
                if segment.live(log.dead):
                    text = f"{name} with {segment.live(log.dead)} messages is missing"
                    report.faults.append(Fault(name, None, log.queue_id, text))
                continue
            data = self._disk.read(name)
            report.segments += 1
            report.size += len(data)
            present = self._check_segment(name, data, (log.queue_id, segment.size), report)
            for first, last in present.spans_list():
                everything.add(first, last)
            for first, last in log.dead.spans_list():
                if last >= segment.first and first <= segment.last:
                    present.add(first, last)
            lost = present.missing_count(segment.first, segment.last)
            if lost:
                first = present.first_missing(segment.first)
                text = f"{name} lacks {lost} live records, the first is {first}"
                report.faults.append(Fault(name, None, log.queue_id, text))
        return everything

    def _check_segment(self, name: str, data: bytes, wanted: tuple[int, int], report: Report) -> RangeSet:
        """Check one file of (queue id, bytes the checkpoint knows); returns the seqs it holds."""
        queue_id, size = wanted
        present = RangeSet()
        if segments.read_file_head(data) != segments.identify(name):
            report.faults.append(Fault(name, 0, queue_id, f"the head of {name} is damaged"))
        # Behind the size that the checkpoint knows lies what an unfinished step has left, maybe in pieces.
        data = data[:size]
        expected, last = segments.HEAD_BYTES, 0
        # What lies behind was on its way when the machine stopped; the journal still has it.
        for at, head in batches(data, segments.HEAD_BYTES):
            if at > expected:
                self._damaged(name, expected, queue_id, report)
            end = records.last_seq(data, at)
            if head[1] != queue_id or head[3] <= last:
                text = f"a batch of queue {head[1]} from seq {head[3]} on stands behind seq {last}"
                report.faults.append(Fault(name, at, queue_id, text))
            expected, last = at + head[0], end
            _count(report, head)
            if end - head[3] + 1 == head[4]:
                present.add(head[3], end)
            else:
                for seq, *_ in records_in(data, at, head):
                    present.add(seq, seq)
        if expected < len(data) or len(data) < size:
            self._damaged(name, expected, queue_id, report)
        return present

    def _check_head(self, name: str, data: bytes, report: Report) -> None:
        head = journal.read_file_head(data)
        if head is None or head.serial != journal.serial_of(name):
            report.faults.append(Fault(name, 0, 0, f"the head of {name} is damaged"))

    def _check_checksums(self, report: Report) -> None:
        for prefix, start in (
            (segments.PREFIX, segments.HEAD_BYTES),
            (journal.PREFIX, journal.HEAD_BYTES),
        ):
            for name in self._disk.list(prefix):
                data = self._disk.read(name)
                report.size += len(data)
                expected = start
                for at, head in batches(data, start):
                    if at > expected:
                        self._damaged(name, expected, 0, report)
                    expected = at + head[0]
                    _count(report, head)

    def _damaged(self, name: str, at: int, queue_id: int, report: Report) -> None:
        report.faults.append(Fault(name, at, queue_id, f"{name} is damaged at byte {at}"))


def batches(data: bytes, start: int) -> list[tuple[int, Head]]:
    """Every whole batch of a file behind its head, with its offset."""
    return [(start + at, head) for at, head in scan(data[start:]).batches]


def records_in(data: bytes, at: int, head: Head) -> Iterator[tuple[int, int, int, int]]:
    """(seq, kind, flags, payload bytes) of the records of a whole batch."""
    at += records.HEAD_BYTES
    for _ in range(head[4]):
        size, distance, kind, flags = _RECORD.unpack_from(data, at)
        yield head[3] + distance, kind, flags, size
        at += _RECORD.size + size


def _count(report: Report, head: Head) -> None:
    report.batches += 1
    report.records += head[4]


def _file_in(text: str) -> str:
    """The file a refusal names first."""
    word = text.split(" ", 1)[0]
    return word if "/" in word else journal.PREFIX


class _NoOutbox:
    """Inspecting writes nothing."""

    def append(self, *_: Any) -> None:
        """Not here."""
        raise AssertionError("an inspection writes nothing")

    flush = replace = read = remove = append
