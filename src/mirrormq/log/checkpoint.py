"""The checkpoint: what recovery must know that is no longer in the journal.

One file for all queues, replaced as a whole, so a crash leaves the old or the new one. It names the first
journal file still needed and, for each queue, its end, horizon, dead seqs, segments and cursors. Each queue's
part has its own checksum: damage to one queue's part is that queue's damage alone.

The part of a damaged queue is written again as it was, unreadable or not, and names the journal file it
begins with (`since`); those files are `kept` although the others no longer need them.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from mirrormq.kernel.crc32c import crc32c
from mirrormq.log.cursors import Cursor
from mirrormq.log.disk import LogRefused
from mirrormq.log.dying import Death
from mirrormq.log.index import Entry
from mirrormq.log.origins import Saved as SavedOrigins
from mirrormq.log.segments import Mark, Segment
from mirrormq.log.sinkstate import Saved

NAME = "log/checkpoint"
MAGIC = b"MQC1"
VERSION = 3
BACKUP = "restore the data folder from a backup"
_HEAD = struct.Struct("<4sIQI")
_PART = struct.Struct("<QII")
_NONE: Mapping[int, int] = MappingProxyType({})


class QueuePart(msgspec.Struct, frozen=True, array_like=True):
    """What the checkpoint says of one queue."""

    queue_id: int
    epoch: int
    end: int
    horizon: int
    last_wall: int
    segments_end: int
    dead: list[tuple[int, int]]
    segments: list[tuple[int, ...]]
    last_number: int = 0
    letters: list[tuple[int, int]] = []
    dying: list[Death] = []
    low: int = 0
    published: int = 0
    written: int = 0
    epochs: list[tuple[int, int]] = []
    cursors: list[Cursor] = []
    marks: list[tuple[int, int, int, int, int, int]] = []
    """Per mark: number of the segment, offset, seq, time, publishes and bytes before it."""
    since: int = 0
    """Of a damaged queue: the first journal file it needs; 0 = the first that all need."""
    counts: list[tuple[int, int]] = []
    """(seq, times) of messages that came back to a queue that counts."""
    refused: list[tuple[int, list[tuple[int, int]]]] = []
    """(row, spans) of forwarded publishes that are not there although the row covers them."""
    unused: int = 0
    """Means nothing any more, and keeps the place of what follows."""
    cuts: list[tuple[int, int, int]] = []
    """(serial, offset, seq) of truncations: what lies before that place and above that seq was given up."""
    begins: tuple[int, int] = (0, 0)
    """What the journal has of this queue before this place (serial, offset) is not part of its log."""
    base: int = 0
    """Not 0: the copy of a mirrored queue that follows the log behind this seq and may lack live records up
    to it. With an end of 0 nothing of it counts, whatever the journal holds.
    """
    sink: Saved | None = None
    """Of a staging queue: its transactions."""
    origins: SavedOrigins | None = None
    """Of a queue of a mirror: what its messages are copies of."""


class RawPart(NamedTuple):
    """A part that cannot be read."""

    queue_id: int
    payload: bytes
    crc: int
    since: int


Part = QueuePart | RawPart


class _Node(msgspec.Struct, frozen=True, array_like=True):
    """What the checkpoint says of no queue: the part of queue 0."""

    kept: list[tuple[int, int]] = []


class Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    first_serial: int
    parts: dict[int, QueuePart]
    damaged: dict[int, RawPart]
    """Queues whose part could not be read."""
    kept: list[tuple[int, int]]
    """(serial, end) of journal files before the first, which damaged queues need."""

    @property
    def oldest_serial(self) -> int:
        """The first journal file that is needed by anybody."""
        return min([self.first_serial, *(serial for serial, _ in self.kept)])


class CheckpointDamaged(LogRefused):
    """The checkpoint as a whole cannot be read."""


class CheckpointTooNew(LogRefused):
    """The checkpoint was written by a newer version."""


def encode(first_serial: int, parts: Sequence[Part], kept: Mapping[int, int] = _NONE) -> bytes:
    """The file's content; `kept`: where the journal files that damaged queues need end, by serial."""
    return assemble(first_serial, len(parts), [encode_part(part) for part in parts], kept)


def assemble(first_serial: int, count: int, parts: Iterable[bytes], kept: Mapping[int, int]) -> bytes:
    """The file's content, with `count` parts that are encoded already, in as many pieces as there are."""
    head = _HEAD.pack(MAGIC, VERSION, first_serial, count + bool(kept))
    out = [head, struct.pack("<I", crc32c(head))]
    if kept:
        out.append(_framed(0, msgspec.msgpack.encode(_Node(sorted(kept.items())))))
    return b"".join([*out, *parts])


def encode_part(part: Part) -> bytes:
    """What the file has of one queue; of a part that cannot be read, what was there."""
    if isinstance(part, RawPart):
        return _PART.pack(part.queue_id, len(part.payload), part.crc) + part.payload
    return _framed(part.queue_id, msgspec.msgpack.encode(part))


def _framed(queue_id: int, payload: bytes) -> bytes:
    return _PART.pack(queue_id, len(payload), crc32c(payload)) + payload


def decode(data: bytes) -> Checkpoint:
    """Read a checkpoint; a queue whose part is damaged is named, not dropped."""
    if len(data) < _HEAD.size + 4:
        raise CheckpointDamaged(f"{NAME} is cut short: {BACKUP}")
    magic, version, first_serial, count = _HEAD.unpack_from(data)
    if magic != MAGIC or struct.unpack_from("<I", data, _HEAD.size)[0] != crc32c(data[: _HEAD.size]):
        raise CheckpointDamaged(f"{NAME} is damaged at its head: {BACKUP}")
    if version > VERSION:
        raise CheckpointTooNew(
            f"{NAME} was written by a newer version (format {version}, this one reads {VERSION}): "
            "start the version that wrote it"
        )
    parts: dict[int, QueuePart] = {}
    damaged: dict[int, RawPart] = {}
    node = _Node()
    at = _HEAD.size + 4
    for _ in range(count):
        if at + _PART.size > len(data):
            raise CheckpointDamaged(f"{NAME} is cut short: {BACKUP}")
        queue_id, size, crc = _PART.unpack_from(data, at)
        payload = data[at + _PART.size : at + _PART.size + size]
        at += _PART.size + size
        if len(payload) != size or crc32c(payload) != crc:
            damaged[queue_id] = RawPart(queue_id, payload, crc, 0)
            continue
        content = _content(payload)
        if isinstance(content, _Node):
            node = content
            if queue_id:
                raise CheckpointDamaged(f"{NAME} is damaged: {BACKUP}")
        elif content.queue_id == queue_id:
            parts[queue_id] = content
        else:
            damaged[content.queue_id] = RawPart(content.queue_id, payload, crc, 0)
    if at != len(data):
        # A damaged length shifts all parts behind it, and queues would seem never to have had any.
        raise CheckpointDamaged(f"{NAME} is damaged between its parts: {BACKUP}")
    found = Checkpoint(first_serial, parts, damaged, node.kept)
    for queue_id, raw in damaged.items():
        damaged[queue_id] = raw._replace(since=found.oldest_serial)
    return found


def _content(payload: bytes) -> QueuePart | _Node:
    try:
        return msgspec.msgpack.decode(payload, type=QueuePart)
    except msgspec.ValidationError:
        return msgspec.msgpack.decode(payload, type=_Node)


def segments_of(part: QueuePart) -> list[Segment]:
    """The segments a part lists."""
    return [Segment(*fields) for fields in part.segments]


def marks_of(part: QueuePart) -> list[Mark]:
    """What a part remembers of the inside of segments."""
    return [Mark(number, offset, Entry(*entry)) for number, offset, *entry in part.marks]
