"""Byte layout of Raft's files: how they are written and what counts as damage (docs/format/metadata.md).

Guarantee: what had been flushed is read back or refused, never skipped. A crash may tear what was not
flushed, so the first entry that does not check ends a log file, *unless* the file proves that it had been
flushed: every entry says how much of its file was durable when it was written, and a whole entry further on
that covers the broken place means damage, not a crash.

Files of format 1 are those of a node that was never part of a group: their entries name the durable *index*
instead, and their snapshot belongs to the state machine from its first byte to its last.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.cluster.raft.entries import Entry
from mirrormq.kernel.crc32c import crc32c
from mirrormq.meta.layout import MetaDamaged, MetaTooNew

FORMAT = 2

_LOG_MAGIC = b"MMQMLOG\x00"
_SNAPSHOT_MAGIC = b"MMQMSNP\x00"
_VOTE_MAGIC = b"MMQMVOT\x00"
_ENTRY_MAGIC = b"\xf5MQe"

_LOG_HEADER = struct.Struct(">8sIQQI")
_ENTRY_HEADER = struct.Struct(">4sIIQQQ")
_ENTRY_CHECKED = struct.Struct(">IQQQ")
_SNAPSHOT_1_HEADER = struct.Struct(">8sIQQQQI")
_SNAPSHOT_HEADER = struct.Struct(">8sIQQII")
_PART_HEADER = struct.Struct(">II")
_VOTE_HEADER = struct.Struct(">8sIQQHI")

RaftDamaged = MetaDamaged
RaftTooNew = MetaTooNew


class LogFile(NamedTuple):
    """What a log file holds: whole entries in the order they were written."""

    format: int
    """0: not even the header is whole."""
    first: int
    previous_term: int
    entries: list[Entry]
    whole_bytes: int
    torn_bytes: int


class SnapshotFile(Struct, frozen=True):
    """A snapshot: the last entry in it, who belonged to the group, and the bytes of the state machine."""

    format: int
    index: int
    term: int
    configuration: bytes
    state: bytes


# --- log ---


def log_header(first: int, previous_term: int) -> bytes:
    """Begin a log file whose first entry will have index `first`."""
    head = _LOG_HEADER.pack(_LOG_MAGIC, FORMAT, first, previous_term, 0)[:-4]
    return head + crc32c(head).to_bytes(4, "big")


def pack_entry(entry: Entry, flushed: int) -> bytes:
    """Write one entry; `flushed` bytes of its file are durable."""
    assert len(entry.data) <= limits.meta_entry_bytes_max, len(entry.data)
    checked = _ENTRY_CHECKED.pack(len(entry.data), entry.term, entry.index, flushed)
    crc = crc32c(entry.data, crc32c(checked))
    return b"".join((_ENTRY_MAGIC, crc.to_bytes(4, "big"), checked, entry.data))


def read_log(file: str, data: bytes) -> LogFile:
    """Read a log file up to the first entry that a crash tore; damage and later formats raise."""
    header = _read_log_header(file, data)
    if header is None:
        _refuse_damage(file, data, 0, (FORMAT, 0))
        return LogFile(0, 0, 0, [], 0, len(data))
    version, first, previous_term = header
    entries: list[Entry] = []
    at = _LOG_HEADER.size
    highest = first - 1
    while at < len(data):
        end = _entry_end(data, at)
        if end is None:
            _refuse_damage(file, data, at, (version, highest + 1))
            break
        _, _, _, term, index, _ = _ENTRY_HEADER.unpack_from(data, at)
        expected = entries[-1].index + 1 if entries else first
        # An entry may stand where an earlier one stood: that one and all behind it were given up.
        if index > expected or (version == 1 and index != expected):
            raise RaftDamaged(file, f"entry {index} stands where {expected} should")
        entries.append(Entry(term, index, data[at + _ENTRY_HEADER.size : end]))
        highest = max(highest, index)
        at = end
    return LogFile(version, first, previous_term, entries, at, len(data) - at)


def _read_log_header(file: str, data: bytes) -> tuple[int, int, int] | None:
    """Format, first index and the term before it; None if a crash tore it: it is written with entries."""
    if len(data) < _LOG_HEADER.size:
        return None
    magic, version, first, previous_term, crc = _LOG_HEADER.unpack_from(data)
    if crc != crc32c(data[: _LOG_HEADER.size - 4]):
        # A later format may have another header, but it will keep these 12 bytes.
        if magic == _LOG_MAGIC and version > FORMAT:
            _check_version(file, magic == _LOG_MAGIC, version)
        return None
    _check_version(file, magic == _LOG_MAGIC, version)
    return version, first, previous_term


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


def _refuse_damage(file: str, data: bytes, at: int, mark: tuple[int, int]) -> None:
    """Raise if a whole entry behind `at` says that the broken place had been flushed.

    `mark` is the format and the index of the broken entry.
    """
    version, index = mark
    broken = at
    while (at := data.find(_ENTRY_MAGIC, at + 1)) >= 0:
        if _entry_end(data, at) is None:
            continue
        flushed = _ENTRY_HEADER.unpack_from(data, at)[5]
        if flushed >= index if version == 1 else flushed > broken:
            raise RaftDamaged(file, f"the entry at byte {broken} does not check, and later ones rely on it")


# --- snapshot ---


def snapshot_chunks(index: int, term: int, configuration: bytes, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Write a snapshot, chunk by chunk as its parts are made; an empty part ends it."""
    head = _SNAPSHOT_HEADER.pack(_SNAPSHOT_MAGIC, FORMAT, index, term, len(configuration), 0)[:-4]
    yield head + crc32c(configuration, crc32c(head)).to_bytes(4, "big") + configuration
    for part in parts:
        if part:
            yield _PART_HEADER.pack(len(part), crc32c(part)) + part
    yield _PART_HEADER.pack(0, crc32c(b""))


def read_snapshot(file: str, data: bytes) -> SnapshotFile:
    """Read a snapshot. It is replaced as a whole, so anything that does not check is damage."""
    if len(data) < _SNAPSHOT_HEADER.size:
        raise RaftDamaged(file, "it is shorter than its header")
    magic, version, index, term, length, crc = _SNAPSHOT_HEADER.unpack_from(data)
    _check_version(file, magic == _SNAPSHOT_MAGIC, version)
    if version == 1:
        if len(data) < _SNAPSHOT_1_HEADER.size:
            raise RaftDamaged(file, "it is shorter than its header")
        if _SNAPSHOT_1_HEADER.unpack_from(data)[6] != crc32c(data[: _SNAPSHOT_1_HEADER.size - 4]):
            raise RaftDamaged(file, "the checksum of its header does not match")
        return SnapshotFile(1, index, term, b"", data)
    at = _SNAPSHOT_HEADER.size
    configuration = data[at : at + length]
    if crc != crc32c(configuration, crc32c(data[: at - 4])):
        raise RaftDamaged(file, "the checksum of its header does not match")
    return SnapshotFile(version, index, term, configuration, _read_parts(file, data, at + length))


def _read_parts(file: str, data: bytes, at: int) -> bytes:
    parts: list[bytes] = []
    while True:
        start = at + _PART_HEADER.size
        if start > len(data):
            raise RaftDamaged(file, "its end is missing")
        length, crc = _PART_HEADER.unpack_from(data, at)
        at = start + length
        part = data[start:at]
        if len(part) != length or crc32c(part) != crc:
            raise RaftDamaged(file, f"the checksum of the part at byte {start} does not match")
        if not part:
            break
        parts.append(part)
    if at != len(data):
        raise RaftDamaged(file, "something stands behind its end")
    return b"".join(parts)


# --- term and vote ---


class VoteFile(NamedTuple):
    """The term, who was voted for in it (empty: nobody), and the first log file that counts, by number."""

    term: int = 0
    vote: str = ""
    log_from: int = 0


def pack_vote(content: VoteFile) -> bytes:
    """Write term and vote."""
    name = content.vote.encode()
    head = _VOTE_HEADER.pack(_VOTE_MAGIC, 1, content.term, content.log_from, len(name), 0)[:-4]
    return head + crc32c(name, crc32c(head)).to_bytes(4, "big") + name


def read_vote(file: str, data: bytes) -> VoteFile:
    """Term and vote. The file is replaced as a whole, so anything that does not check is damage."""
    if len(data) < _VOTE_HEADER.size:
        raise RaftDamaged(file, "it is shorter than its header")
    magic, version, term, log_from, length, crc = _VOTE_HEADER.unpack_from(data)
    _check_version(file, magic == _VOTE_MAGIC, version, 1)
    name = data[_VOTE_HEADER.size :]
    if len(name) != length or crc != crc32c(name, crc32c(data[: _VOTE_HEADER.size - 4])):
        raise RaftDamaged(file, "its checksum does not match")
    return VoteFile(term, name.decode(), log_from)


def _check_version(file: str, is_kind: bool, version: int, newest: int = FORMAT) -> None:
    if not is_kind:
        raise RaftDamaged(file, "it does not begin like a file of its kind")
    if version > newest:
        raise RaftTooNew(file, f"its format is {version}, this version reads up to {newest}")
    if version < 1:
        raise RaftDamaged(file, f"its format is {version}")
