"""Looking into a data folder without a node: what `mirrormq ctl inspect_log` and `verify_log` print.

The folder's lock is held meanwhile, so no node can start on it, and one that runs is told of by name.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from mirrormq.base.errors import FolderUnusable
from mirrormq.cluster.folder import Definitions, read_definitions
from mirrormq.cluster.raft.recovery import FOLDER
from mirrormq.log import checkpoint
from mirrormq.log.disk import LogRefused
from mirrormq.log.inspect import REFUSALS, Inspection, Queue
from mirrormq.log.recovery import Fault
from mirrormq.meta import system
from mirrormq.meta.layout import MetaDamaged, MetaTooNew
from mirrormq.meta.records import Queue as QueueRecord
from mirrormq.node.branches import listed
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.files import names_below, read_part
from mirrormq.runtime.folder import OWN_FILES, locked, put_force_boot

T = TypeVar("T")
DATA = 65
NO_INPUT = 66
UNAVAILABLE = 69

ENOUGH_TO_LEAVE = 2
BRANCH = " (branch)"
"""Behind the name of a queue: what a node that was cut off has taken for it (docs/partitions.md)."""

Row = dict[str, Any]
Wanted = tuple[str, str] | None
"""Vhost and name of a queue; None: all."""


class FolderDisk:
    """The files of a folder that nobody changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = sorted(name for name in names_below(folder) if name not in OWN_FILES)

    def list(self, prefix: str) -> list[str]:
        """Names of the files that begin with `prefix`, sorted."""
        at = bisect_left(self._names, prefix)
        found = []
        while at < len(self._names) and self._names[at].startswith(prefix):
            found.append(self._names[at])
            at += 1
        return found

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return self._try(name, lambda path: path.stat().st_size)

    def read(self, name: str) -> bytes:
        """The whole content of a file."""
        return self._try(name, Path.read_bytes)

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """Part of a file's content."""
        return self._try(name, lambda path: read_part(path, offset, length))

    def _try(self, name: str, attempt: Callable[[Path], T]) -> T:
        try:
            return attempt(self._folder / name)
        except OSError as error:
            raise FolderUnusable(DATA, f"{name} cannot be read: {error.strerror}") from error


def inspect(data: str, node: str | None, queue: Wanted) -> list[Row]:
    """What the log of every durable queue says, or of one."""
    with opened(data, node) as disk:
        # All queues must be known, or the files of the others would count as left over.
        known, wanted = logged(disk, None), logged(disk, queue)
        found = _learnt(Inspection(disk, {key: _text(record) for key, record in known.items()}))
        return [_row(record, found[key]) for key, record in wanted.items()]


def records(data: str, node: str | None, queue: Wanted) -> Iterator[Row]:
    """The records of every durable queue, or of one."""
    with opened(data, node) as disk:
        known, wanted = logged(disk, None), logged(disk, queue)
        inspection = Inspection(disk, {key: _text(record) for key, record in known.items()})
        _learnt(inspection)
        each = [None] if queue is None else list(wanted)
        for found in chain.from_iterable(map(inspection.records, each)):
            yield {
                "file": found.file,
                "offset": found.offset,
                "queue": found.queue_id,
                "epoch": found.epoch,
                "time": _shown_time(found.time),
                "seq": found.seq,
                "kind": found.kind,
                "flags": found.flags,
                "size": found.size,
            }


def definitions(data: str, node: str | None) -> Row:
    """Term, vote, members and the log of the definitions."""
    with opened(data, node) as disk:
        try:
            found = read_definitions(disk)
        except (MetaDamaged, MetaTooNew) as refusal:
            raise FolderUnusable(DATA, str(refusal)) from None
        return {**found.facts(), "log": list(found.entries())}


def verify(data: str, node: str | None) -> Row:
    """Read and check metadata, checkpoint, segments and journal."""
    with opened(data, node) as disk:
        faults: list[Fault] = []
        facts: Row = {}
        try:
            found = read_definitions(disk)
            facts = found.facts()
            names = {key: _text(record) for key, record in (_durable(found) | _branches(disk)).items()}
        except (MetaDamaged, MetaTooNew, LogRefused) as refusal:
            faults.append(Fault(str(refusal).partition(" ")[0], None, 0, str(refusal)))
            names = {key: f"queue {key}" for key in _ids_in_checkpoint(disk)}
        report = Inspection(disk, names).verify()
        return {
            "folder": str(_found_folder(data, node)),
            "faults": [_shown(fault, names) for fault in (*faults, *report.faults)],
            "queues": report.queues,
            "live": report.live,
            "journal_files": report.journal_files,
            "segments": report.segments,
            "batches": report.batches,
            "records": report.records,
            "bytes": report.size + sum(len(disk.read(name)) for name in disk.list(FOLDER)),
            "torn_bytes": report.torn_bytes,
            "orphans": report.orphans,
            "definitions": facts,
        }


def only_here(folder: Path, name: str) -> dict[str, int]:
    """Messages by queue of which no other node of the cluster had a copy in sync when this one stopped.

    For the process that holds the folder's lock itself.
    """
    disk = FolderDisk(folder)
    try:
        found = read_definitions(disk)
    except (MetaDamaged, MetaTooNew) as refusal:
        raise FolderUnusable(DATA, str(refusal)) from None
    if len(found.configuration.members) < ENOUGH_TO_LEAVE:
        return {}
    known = logged(disk, None)
    learnt = _learnt(Inspection(disk, {key: _text(record) for key, record in known.items()}))
    lone = {key: record for key, record in known.items() if _is_lone(found, record, name)}
    return {_text(record): learnt[key].live for key, record in lone.items() if learnt[key].live}


def _is_lone(found: Definitions, record: QueueRecord, name: str) -> bool:
    if record.name.endswith(BRANCH) and record.identity not in found.state.queues:
        return True
    view = found.state.views.get(record.identity)
    if view is None:
        return record.node == name and system.is_ordinary(record)
    in_sync = {member.node for member in view.members if not member.is_restarted}
    return name in {member.node for member in view.members} and in_sync <= {name}


def force_boot(data: str, node: str | None) -> None:
    """Let the next start of the node not wait for others."""
    path = _found_folder(data, node)
    try:
        with locked(path):
            put_force_boot(path)
    except StartError as error:
        raise FolderUnusable(UNAVAILABLE, str(error)) from None
    except OSError as error:
        raise FolderUnusable(UNAVAILABLE, f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def opened(data: str, node: str | None) -> Iterator[FolderDisk]:
    """The files of the folder, locked."""
    path = _found_folder(data, node)
    try:
        with locked(path):
            yield FolderDisk(path)
    except StartError as error:
        raise FolderUnusable(UNAVAILABLE, str(error)) from None


def logged(disk: FolderDisk, queue: Wanted) -> dict[int, QueueRecord]:
    """The durable queues by the ids of their logs, and their branches, which are queues beside them."""
    found = durable_queues(disk, queue)
    try:
        branches = _branches(disk)
    except LogRefused as refusal:
        raise FolderUnusable(DATA, str(refusal)) from None
    trunks = {(record.vhost, record.name + BRANCH) for record in found.values()}
    return found | {
        key: record for key, record in branches.items() if queue is None or record.identity in trunks
    }


def _branches(disk: FolderDisk) -> dict[int, QueueRecord]:
    return {
        entry.sources[0]: QueueRecord(entry.vhost, entry.name + BRANCH, entry.id, log_id=entry.sources[0])
        for entry in listed(disk)
    }


def durable_queues(disk: FolderDisk, queue: Wanted) -> dict[int, QueueRecord]:
    """The durable queues of the definitions by id; the one wanted must be among them."""
    try:
        found = _definitions(disk)
    except (MetaDamaged, MetaTooNew) as refusal:
        raise FolderUnusable(DATA, str(refusal)) from None
    if queue is None:
        return found
    vhost, name = queue
    picked = {key: record for key, record in found.items() if (record.vhost, record.name) == (vhost, name)}
    if not picked:
        raise FolderUnusable(DATA, f"there is no durable queue '{name}' in vhost '{vhost}'")
    return picked


def _definitions(disk: FolderDisk) -> dict[int, QueueRecord]:
    return _durable(read_definitions(disk))


def _durable(found: Definitions) -> dict[int, QueueRecord]:
    return {record.log_id: record for record in found.state.queues.values() if record.outlives_restart}


def _ids_in_checkpoint(disk: FolderDisk) -> list[int]:
    if not disk.list(checkpoint.NAME):
        return []
    try:
        return list(checkpoint.decode(disk.read(checkpoint.NAME)).parts)
    except (checkpoint.CheckpointDamaged, checkpoint.CheckpointTooNew):
        return []


def _found_folder(data: str, node: str | None) -> Path:
    """The folder itself, or the only node's folder below it."""
    root = Path(data)
    if (root / "VERSION").is_file():
        return root
    below = sorted(path.parent for path in root.glob("*/VERSION"))
    fitting = [path for path in below if node is None or node in (path.name, path.name.partition("@")[0])]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(path.name for path in fitting)
        raise FolderUnusable(NO_INPUT, f"{root} holds several nodes: {names}; choose one with -n NODE")
    raise FolderUnusable(NO_INPUT, f"{root} is no MirrorMQ data folder; give it with --data DIR")


def _learnt(inspection: Inspection) -> dict[int, Queue]:
    try:
        return inspection.learn()
    except REFUSALS as refusal:
        raise FolderUnusable(DATA, str(refusal)) from None


def _text(record: QueueRecord) -> str:
    return f"queue '{record.name}' in vhost '{record.vhost}'"


def _row(record: QueueRecord, found: Queue) -> Row:
    log = found.log
    return {
        "vhost": record.vhost,
        "name": record.name,
        "id": record.log_id,
        "last_seq": log.end,
        "horizon": log.horizon,
        "epoch": log.epoch,
        "dead": log.end - found.live,
        "live": found.live,
        "journal": [
            {"file": name, "batches": share.batches, "records": share.records, "bytes": share.size}
            for name, share in found.journal.items()
        ],
        "segments": [
            {
                "file": log.segments.name(segment.number),
                "first": segment.first,
                "last": segment.last,
                "publishes": segment.publishes,
                "live": segment.live(log.dead),
                "bytes": segment.size,
            }
            for segment in log.segments.all
        ],
        "low": log.low,
        "cursors": [
            {
                "name": cursor.name,
                "seq": cursor.seq,
                "epoch": cursor.epoch,
                "moved_at": _shown_time(cursor.moved_at),
                "held_bytes": log.cursors.held_bytes(cursor),
                "lost": cursor.lost or None,
            }
            for cursor in log.cursors.cursors()
        ],
        "places": [{"seq": place.seq, "file": place.file, "offset": place.offset} for place in log.places],
        "damage": found.damage,
    }


def _shown(fault: Fault, names: dict[int, str]) -> Row:
    owner = names.get(fault.queue_id, f"queue {fault.queue_id}") if fault.queue_id else None
    return {"file": fault.file, "offset": fault.offset, "queue": owner, "text": fault.text}


def _shown_time(micros: int) -> str | None:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat() if micros else None
