"""The snapshot of a node that was never part of a group, as it is read (docs/format/metadata.md, version 1),
and the sentences for definitions that cannot be.
"""

import struct
from collections.abc import Iterator

from msgspec import Struct

from mirrormq.kernel.crc32c import crc32c
from mirrormq.meta.codec import Unreadable, decode_records
from mirrormq.meta.records import Record

FORMAT = 1
"""Version of these files."""

SNAPSHOT_MAGIC = b"MMQMSNP\x00"

SNAPSHOT_HEADER = struct.Struct(">8sIQQQQI")
CHUNK_HEADER = struct.Struct(">II")

_CURE = (
    "restore the data folder from a backup, or start with an empty one and join the cluster anew"
    " or import exported definitions"
)


class MetaDamaged(Exception):
    """Metadata that had been durable cannot be read back. Its text names the file, the cause and the cure."""

    def __init__(self, file: str, cause: str) -> None:
        """Make one sentence of it."""
        super().__init__(f"{file} is damaged: {cause}; {_CURE}")


class MetaTooNew(Exception):
    """Metadata written by a later version. Its text names the file, the cause and the cure."""

    def __init__(self, file: str, cause: str) -> None:
        """Make one sentence of it."""
        super().__init__(f"{file} was written by a newer MirrorMQ: {cause}; start the version that wrote it")


class Snapshot(Struct, frozen=True):
    """A whole state and the last entry that made it."""

    index: int
    term: int
    last_id: int
    records: list[Record]


def read_snapshot(file: str, data: bytes) -> Snapshot:
    """Read a snapshot. It is replaced as a whole, so anything that does not check is damage."""
    if len(data) < SNAPSHOT_HEADER.size:
        raise MetaDamaged(file, "it is shorter than its header")
    magic, version, index, term, last_id, count, crc = SNAPSHOT_HEADER.unpack_from(data)
    check_version(file, (magic, SNAPSHOT_MAGIC), version)
    if crc != crc32c(data[: SNAPSHOT_HEADER.size - 4]):
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
    at = SNAPSHOT_HEADER.size
    while at < len(data):
        start = at + CHUNK_HEADER.size
        if start > len(data):
            raise MetaDamaged(file, "its end is missing")
        length, crc = CHUNK_HEADER.unpack_from(data, at)
        at = start + length
        chunk = view[start:at]
        if len(chunk) != length:
            raise MetaDamaged(file, "its end is missing")
        if crc32c(chunk) != crc:
            raise MetaDamaged(file, f"the checksum of the records at byte {start} does not match")
        yield chunk


def check_version(file: str, magics: tuple[bytes, bytes], version: int) -> None:
    """Raise unless this is a file of the kind and version that is read here."""
    found, wanted = magics
    if found != wanted:
        raise MetaDamaged(file, "it does not begin like a file of its kind")
    if version > FORMAT:
        raise MetaTooNew(file, f"its format is {version}, this version reads up to {FORMAT}")
    if version < 1:
        raise MetaDamaged(file, f"its format is {version}")
