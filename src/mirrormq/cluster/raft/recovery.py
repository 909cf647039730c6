"""Start-up: read term, vote, snapshot and log, and decide what of the files may stay.

Guarantee: every entry that had been flushed is found. The torn end of the newest log file is cut; anything
else that does not check stops the start with a sentence (`RaftDamaged`, `RaftTooNew`).

Log files are read in the order they were written, which is that of their names. An entry whose index is
not above the one before it gives up everything from its index on: that is how a conflict with a leader is
written. A file that a snapshot has made redundant may be missing, come back after a crash, or be torn: its
entries are all in the snapshot. A log that a leader's snapshot contradicts is given up as a whole: the vote
file says from which file on the log counts, before the first of the others is removed.
"""

from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from mirrormq.cluster.raft.entries import Entry
from mirrormq.cluster.raft.layout import (
    LogFile,
    RaftDamaged,
    SnapshotFile,
    VoteFile,
    log_header,
    read_log,
    read_snapshot,
    read_vote,
)
from mirrormq.kernel.crc32c import crc32c
from mirrormq.log.disk import Disk

FOLDER = "meta/"
SNAPSHOT = FOLDER + "snapshot"
VOTE = FOLDER + "vote"
_LOG_PREFIX = FOLDER + "log-"


class FileState(Struct):
    """A log file: `last` is the highest index ever written into it."""

    name: str
    number: int
    format: int
    last: int
    size: int


class SnapshotMark(Struct, frozen=True):
    """Names a snapshot file: two with the same mark have the same bytes."""

    index: int = 0
    term: int = 0
    size: int = 0
    crc: int = 0
    format: int = 0


class Recovery(NamedTuple):
    """What was found, and what is to be done about it."""

    term: int
    vote: str
    has_vote_file: bool
    log_from: int
    mark: SnapshotMark
    snapshot: SnapshotFile | None
    entries: list[Entry]
    """Behind the snapshot, without gaps."""
    files: list[FileState]
    """In the order they were written; the last one may be appended to."""
    last_number: int
    """Of all log files, redundant ones included: no name is used twice."""
    redundant: tuple[str, ...]
    """Files whose entries are all in the snapshot."""
    void: tuple[str, ...]
    """Files that do not count."""
    kept: bytes | None
    """What must replace the newest log file, whose end is torn."""
    torn_bytes: int


def log_name(number: int) -> str:
    """Name of a log file. Numbers only grow; the first file's is the index of its first entry."""
    return f"{_LOG_PREFIX}{number:016x}"


def read_all(disk: Disk) -> Recovery:
    """Read the folder; raises `RaftDamaged` or `RaftTooNew`."""
    names = disk.list(FOLDER)
    term, vote, log_from = read_vote(VOTE, disk.read(VOTE)) if VOTE in names else VoteFile()
    snapshot, mark = None, SnapshotMark()
    if SNAPSHOT in names:
        data = disk.read(SNAPSHOT)
        snapshot = read_snapshot(SNAPSHOT, data)
        mark = SnapshotMark(snapshot.index, snapshot.term, len(data), crc32c(data), snapshot.format)
    logs: list[tuple[FileState, LogFile, bytes]] = []
    numbered = sorted((_number_of(name), name) for name in names if name.startswith(_LOG_PREFIX))
    void = [name for number, name in numbered if number < log_from]
    for number, name in numbered[len(void) :]:
        data = disk.read(name)
        log = read_log(name, data)
        last = max((entry.index for entry in log.entries), default=0)
        logs.append((FileState(name, number, log.format, last, len(data)), log, data))
    _check_order(logs, mark)
    entries = _replay(logs, mark)
    torn = logs[-1][1].torn_bytes if logs else 0
    if not entries:
        # Appending behind entries that do not count would give them weight again.
        void += [file.name for file, _, _ in logs]
        logs.clear()
    redundant, kept = _sort_out(logs, entries, mark)
    found_term = max(term, mark.term, entries[-1].term if entries else 0)
    return Recovery(
        term=found_term,
        vote=vote if found_term == term else "",
        has_vote_file=VOTE in names,
        log_from=log_from,
        mark=mark,
        snapshot=snapshot,
        entries=entries,
        files=[file for file, _, _ in logs],
        last_number=max(numbered[-1][0] if numbered else 0, log_from),
        redundant=tuple(redundant),
        void=tuple(void),
        kept=kept,
        torn_bytes=torn,
    )


def _check_order(logs: list[tuple[FileState, LogFile, bytes]], mark: SnapshotMark) -> None:
    """A file is begun when the one before it is flushed to its end, or when a snapshot replaces that one."""
    for (file, log, _), (_, following, _) in pairwise(logs):
        if not log.torn_bytes:
            continue
        is_replaced = following.first <= mark.index + 1
        if not following.format:
            at_mark = next((one.term for one in reversed(log.entries) if one.index == mark.index), None)
            is_replaced = file.last <= mark.index or at_mark != mark.term
        if not is_replaced:
            raise RaftDamaged(file.name, "its end is missing, but a later file follows")


def _replay(logs: list[tuple[FileState, LogFile, bytes]], mark: SnapshotMark) -> list[Entry]:
    """The log as it was left, from behind the snapshot on."""
    found: list[Entry] = []
    """Consecutive; may begin before the snapshot's end."""
    for file, log, _ in logs:
        if not log.format:
            continue
        before = next((entry.term for entry in reversed(found) if entry.index == log.first - 1), None)
        if before is not None and before != log.previous_term and log.first > mark.index + 1:
            raise RaftDamaged(file.name, f"entry {log.first - 1} before it has term {before}")
        if log.first == mark.index + 1 and log.previous_term == mark.term:
            # Begun behind this very snapshot: whatever an older file says about later entries is void.
            found.clear()
        for entry in log.entries:
            if found and entry.index > found[-1].index + 1:
                if entry.index > mark.index + 1:
                    raise RaftDamaged(file.name, f"entries before {entry.index} are missing")
                found.clear()
            if not found and entry.index > mark.index + 1:
                raise RaftDamaged(file.name, f"entries {mark.index + 1} to {entry.index - 1} are missing")
            if found:
                del found[max(entry.index - found[0].index, 0) :]
            found.append(entry)
    at_mark = next((entry.term for entry in found if entry.index == mark.index), mark.term)
    if at_mark != mark.term:
        # The snapshot came from a leader and contradicts the log, which was about to be removed.
        return []
    return [entry for entry in found if entry.index > mark.index]


def _sort_out(
    logs: list[tuple[FileState, LogFile, bytes]], entries: list[Entry], mark: SnapshotMark
) -> tuple[list[str], bytes | None]:
    """Take redundant files off `logs`; tell their names and what the newest one must be cut to."""
    redundant: list[str] = []
    if not logs:
        return redundant, None
    while len(logs) > 1 and logs[0][0].last <= mark.index:
        redundant.append(logs.pop(0)[0].name)
    newest, log, data = logs[-1]
    if not log.entries and (not log.format or log.first != entries[-1].index + 1):
        # Begun to replace entries that are back because nothing of it was flushed.
        header = log_header(entries[-1].index + 1, entries[-1].term)
        newest.format, newest.size, newest.last = 2, len(header), entries[-1].index
        return redundant, header
    newest.size = log.whole_bytes
    return redundant, data[: log.whole_bytes] if log.torn_bytes else None


def _number_of(name: str) -> int:
    digits = name.removeprefix(_LOG_PREFIX)
    try:
        return int(digits, 16)
    except ValueError:
        raise RaftDamaged(name, "its name is not that of a log file") from None
