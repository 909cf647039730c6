"""Byte layout of the metadata files: how they are written and what counts as damage
(docs/format/metadata.md).

A log file is a header and entries. A crash may tear what was not flushed, so the first entry that does not
check ends the log, *unless* the file proves that it had been flushed: every entry carries the index up to
which the log was durable when it was written, and a whole entry further on that covers the broken one means
damage, not a crash.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.kernel.crc32c import crc32c
from mirrormq.meta.codec import Unreadable, decode_command, decode_records
from mirrormq.meta.commands import Command
from mirrormq.meta.records import Record

FORMAT = 1
"""Version of both kinds of file."""

_LOG_MAGIC = b"MMQMLOG\x00"
_SNAPSHOT_MAGIC = b"MMQMSNP\x00"
_ENTRY_MAGIC = b"\xf5MQe"

_LOG_HEADER = struct.Struct(">8sIQQI")
_ENTRY_HEADER = struct.Struct(">4sIIQQQ")
_ENTRY_CHECKED = struct.Struct(">IQQQ")
_SNAPSHOT_HEADER = struct.Struct(">8sIQQQQI")
_CHUNK_HEADER = struct.Struct(">II")

_BACKUP = "restore the data folder from a backup, or start with an empty one and import exported definitions"


class MetaDamaged(Exception):
    """Metadata that had been durable cannot be read back. Its text names the file, the cause and the cure."""

    def __init__(self, file: str, cause: str) -> None:
        """Make one sentence of it."""
        super().__init__(f"{file} is damaged: {cause}; {_BACKUP}")


class MetaTooNew(Exception):
    """Metadata written by a later version. Its text names the file, the cause and the cure."""

    def __init__(self, file: str, cause: str) -> None:
        """Make one sentence of it."""
        super().__init__(f"{file} was written by a newer MirrorMQ: {cause}; start the version that wrote it")


class Entry(Struct, frozen=True):
    """One command of the log. `flushed` is the index that was durable when the entry was written."""

    term: int
    index: int
    flushed: int
    command: Command


class LogFile(NamedTuple):
    """What a log file holds: whole entries, and the length of the part they end at."""

    first: int
    entries: list[Entry]
    whole_bytes: int
    torn_bytes: int


class Snapshot(Struct, frozen=True):
    """A whole state and the last entry that made it."""

    index: int
    term: int
    last_id: int
    records: list[Record]


def log_header(first: int, previous_term: int) -> bytes:
    """Begin a log file whose first entry will have index `first`."""
    head = _LOG_HEADER.pack(_LOG_MAGIC, FORMAT, first, previous_term, 0)[:-4]
    return head + crc32c(head).to_bytes(4, "big")


def pack_entry(term: int, index: int, flushed: int, command: bytes) -> bytes:
    """Write one entry."""
    assert len(command) <= limits.meta_entry_bytes_max, len(command)
    checked = _ENTRY_CHECKED.pack(len(command), term, index, flushed)
    crc = crc32c(command, crc32c(checked))
    return b"".join((_ENTRY_MAGIC, crc.to_bytes(4, "big"), checked, command))


def read_log(file: str, data: bytes, first: int) -> LogFile:
    """Read a log file that should begin with index `first`, up to the first entry that a crash tore.

    Damage and later formats raise.
    """
    if not _has_log_header(file, data, first):
        _refuse_damage(file, data, 0, first)
        return LogFile(first, [], 0, len(data))
    entries: list[Entry] = []
    at = _LOG_HEADER.size
    while at < len(data):
        end = _entry_end(data, at)
        if end is None:
            _refuse_damage(file, data, at, first + len(entries))
            break
        entry = _decode_entry(file, data, at, end)
        if entry.index != first + len(entries):
            raise MetaDamaged(file, f"entry {entry.index} stands where {first + len(entries)} should")
        entries.append(entry)
        at = end
    return LogFile(first, entries, at, len(data) - at)


def snapshot_header(index: int, term: int, last_id: int, count: int) -> bytes:
    """Begin a snapshot of `count` records."""
    head = _SNAPSHOT_HEADER.pack(_SNAPSHOT_MAGIC, FORMAT, index, term, last_id, count, 0)[:-4]
    return head + crc32c(head).to_bytes(4, "big")


def pack_chunk(records: bytes) -> bytes:
    """Write some records of a snapshot."""
    return _CHUNK_HEADER.pack(len(records), crc32c(records)) + records


def read_snapshot(file: str, data: bytes) -> Snapshot:
    """Read a snapshot. It is replaced as a whole, so anything that does not check is damage."""
    if len(data) < _SNAPSHOT_HEADER.size:
        raise MetaDamaged(file, "it is shorter than its header")
    magic, version, index, term, last_id, count, crc = _SNAPSHOT_HEADER.unpack_from(data)
    _check_version(file, (magic, _SNAPSHOT_MAGIC), version)
    if crc != crc32c(data[: _SNAPSHOT_HEADER.size - 4]):
        raise MetaDamaged(file, "the checksum of its header does not match")
    records: list[Record] = []
    for chunk in _chunks(file, data):
        try:
            records += decode_records(chunk)
        except Unreadable as error:
            raise MetaTooNew(file, f"a record is unknown here ({error})") from error
    if len(records) != count:
        raise MetaDamaged(file, f"it holds {len(records)} of {count} records")
    return Snapshot(index, term, last_id, records)


def _chunks(file: str, data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    at = _SNAPSHOT_HEADER.size
    while at < len(data):
        start = at + _CHUNK_HEADER.size
        if start > len(data):
            raise MetaDamaged(file, "its end is missing")
        length, crc = _CHUNK_HEADER.unpack_from(data, at)
        at = start + length
        chunk = view[start:at]
        if len(chunk) != length:
            raise MetaDamaged(file, "its end is missing")
        if crc32c(chunk) != crc:
            raise MetaDamaged(file, f"the checksum of the records at byte {start} does not match")
        yield chunk


def _has_log_header(file: str, data: bytes, first: int) -> bool:
    """Whether the header is whole. It is written with the first entries, so a crash may tear it, too."""
    if len(data) < _LOG_HEADER.size:
        return False
    magic, version, named, _, crc = _LOG_HEADER.unpack_from(data)
    if crc != crc32c(data[: _LOG_HEADER.size - 4]):
        # A later format may have another header, but it will keep these 12 bytes.
        if magic == _LOG_MAGIC and version > FORMAT:
            _check_version(file, (magic, _LOG_MAGIC), version)
        return False
    _check_version(file, (magic, _LOG_MAGIC), version)
    if named != first:
        raise MetaDamaged(file, f"it begins with entry {named} instead of {first}")
    return True


def _check_version(file: str, magics: tuple[bytes, bytes], version: int) -> None:
    found, wanted = magics
    if found != wanted:
        raise MetaDamaged(file, "it does not begin like a file of its kind")
    if version > FORMAT:
        raise MetaTooNew(file, f"its format is {version}, this version reads up to {FORMAT}")
    if version < 1:
        raise MetaDamaged(file, f"its format is {version}")


def _entry_end(data: bytes, at: int) -> int | None:
    """Where the entry at `at` ends, or None if there is no whole entry."""
    start = at + _ENTRY_HEADER.size
    if start > len(data):
        return None
    magic, crc, length, _, _, _ = _ENTRY_HEADER.unpack_from(data, at)
    end = start + int(length)
    if magic != _ENTRY_MAGIC or length > limits.meta_entry_bytes_max or end > len(data):
        return None
    return end if crc32c(memoryview(data)[at + 8 : end]) == crc else None


def _decode_entry(file: str, data: bytes, at: int, end: int) -> Entry:
    _, _, _, term, index, flushed = _ENTRY_HEADER.unpack_from(data, at)
    try:
        command = decode_command(memoryview(data)[at + _ENTRY_HEADER.size : end])
    except Unreadable as error:
        raise MetaTooNew(file, f"command {index} is unknown here ({error})") from error
    return Entry(term, index, flushed, command)


def _refuse_damage(file: str, data: bytes, at: int, index: int) -> None:
    """Raise if a whole entry behind `at` says that entry `index`, which is broken, had been flushed."""
    while (at := data.find(_ENTRY_MAGIC, at + 1)) >= 0:
        if _entry_end(data, at) is None:
            continue
        flushed = _ENTRY_HEADER.unpack_from(data, at)[5]
        if flushed >= index:
            raise MetaDamaged(
                file, f"the checksum of entry {index} does not match, and later entries rely on it"
            )
