"""Start-up: read snapshot and log into a state, and decide what of the files may stay.

Every entry that had been flushed is applied. The torn end of the newest log file is cut; anything else that
does not check stops the start with a sentence (`MetaDamaged`, `MetaTooNew`), because a node that begins with
half of its definitions would delete the rest by acting on them.
"""

from typing import NamedTuple

from mirrormq.log.disk import Disk
from mirrormq.meta.layout import LogFile, MetaDamaged, log_header, read_log, read_snapshot
from mirrormq.meta.state import MetaState

FOLDER = "meta/"
SNAPSHOT = FOLDER + "snapshot"
_LOG_PREFIX = FOLDER + "log-"


class LogState(NamedTuple):
    """The log file to append to. An empty `name` means that the next append begins a new file."""

    name: str
    appended: int
    """Index of the last entry in it, or of the last one before it."""
    size: int


class Recovery(NamedTuple):
    """What was found, and what is to be done about it."""

    term: int
    last_index: int
    flushed: int
    """Entries up to here are known to have been durable; the rest may have been read from a cache."""
    log: LogState
    older: tuple[str, ...]
    """Log files before `log` that are needed until the next snapshot."""
    older_bytes: int
    redundant: tuple[str, ...]
    """Log files the snapshot has made unnecessary."""
    kept: bytes | None
    """What must replace the newest log file, whose end is torn."""
    snapshot_index: int
    snapshot_bytes: int
    entries: int
    torn_bytes: int


def log_name(first: int) -> str:
    """Name of the log file whose first entry has index `first`; names sort like indexes."""
    return f"{_LOG_PREFIX}{first:016x}"


def read_all(disk: Disk, state: MetaState) -> Recovery:
    """Fill the empty `state` from the files; raises `MetaDamaged` or `MetaTooNew`."""
    names = disk.list(FOLDER)
    term, snapshot_index, snapshot_bytes = 1, 0, 0
    if SNAPSHOT in names:
        data = disk.read(SNAPSHOT)
        snapshot = read_snapshot(SNAPSHOT, data)
        state.load(snapshot.last_id, snapshot.records)
        term, snapshot_index, snapshot_bytes = snapshot.term, snapshot.index, len(data)
    logs = sorted((_first_of(name), name) for name in names if name.startswith(_LOG_PREFIX))
    redundant: list[str] = []
    while len(logs) > 1 and logs[1][0] <= snapshot_index + 1:
        redundant.append(logs.pop(0)[1])
    return _read_logs(
        disk,
        state,
        logs,
        Recovery(
            term=term,
            last_index=snapshot_index,
            flushed=0,
            log=LogState("", snapshot_index, 0),
            older=(),
            older_bytes=0,
            redundant=tuple(redundant),
            kept=None,
            snapshot_index=snapshot_index,
            snapshot_bytes=snapshot_bytes,
            entries=0,
            torn_bytes=0,
        ),
    )


def _read_logs(disk: Disk, state: MetaState, logs: list[tuple[int, str]], found: Recovery) -> Recovery:
    for first, name in logs:
        is_newest = name == logs[-1][1]
        if first > found.last_index + 1:
            raise MetaDamaged(name, f"entries {found.last_index + 1} to {first - 1} before it are missing")
        data = disk.read(name)
        log = read_log(name, data, first)
        if log.torn_bytes and not is_newest:
            raise MetaDamaged(name, "its end is missing, but a later file follows")
        found = _apply(state, log, found)
        if not is_newest:
            found = found._replace(
                older=(*found.older, name),
                older_bytes=found.older_bytes + log.whole_bytes,
                # A file is begun only when the one before it is flushed to its end.
                flushed=max(found.flushed, first + len(log.entries) - 1),
            )
            continue
        appended = first + len(log.entries) - 1
        if appended < found.last_index:
            # The snapshot was durable before the entries it covers. Appending behind the gap would hide it.
            return found._replace(
                redundant=(*found.redundant, *found.older, name),
                older=(),
                older_bytes=0,
                torn_bytes=log.torn_bytes,
            )
        # A file of which not even the header is whole begins anew under its name.
        kept = data[: log.whole_bytes] or log_header(first, found.term)
        is_whole = bool(log.whole_bytes) and not log.torn_bytes
        found = found._replace(
            log=LogState(name, appended, len(kept)),
            kept=None if is_whole else kept,
            torn_bytes=log.torn_bytes,
        )
    return found


def _apply(state: MetaState, log: LogFile, found: Recovery) -> Recovery:
    term, last_index, flushed = found.term, found.last_index, found.flushed
    applied = 0
    for entry in log.entries:
        flushed = max(flushed, entry.flushed)
        if entry.index > last_index:
            # A refused command is no error: a group logs commands before anyone applies them.
            state.execute(entry.command)
            last_index, term = entry.index, entry.term
            applied += 1
    return found._replace(term=term, last_index=last_index, flushed=flushed, entries=found.entries + applied)


def _first_of(name: str) -> int:
    digits = name.removeprefix(_LOG_PREFIX)
    try:
        return int(digits, 16)
    except ValueError:
        raise MetaDamaged(name, "its name does not say which entry it begins with") from None
