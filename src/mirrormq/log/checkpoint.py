"""The checkpoint: what recovery must know that is no longer in the journal.

One file for all queues, replaced as a whole, so a crash leaves the old or the new one. It names the first
journal file still needed and, for each queue, its end, horizon, dead seqs and segments. Each queue's part has
its own checksum: damage to one queue's part is that queue's damage alone.
"""

import struct
from typing import NamedTuple

import msgspec

from mirrormq.kernel.crc32c import crc32c
from mirrormq.log.disk import LogRefused
from mirrormq.log.dying import Death
from mirrormq.log.segments import Segment

NAME = "log/checkpoint"
MAGIC = b"MQC1"
VERSION = 1
BACKUP = "restore the data folder from a backup"
_HEAD = struct.Struct("<4sIQI")
_PART = struct.Struct("<QII")


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


class Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    first_serial: int
    parts: dict[int, QueuePart]
    damaged: set[int]
    """Queues whose part could not be read."""


class CheckpointDamaged(LogRefused):
    """The checkpoint as a whole cannot be read."""


class CheckpointTooNew(LogRefused):
    """The checkpoint was written by a newer version."""


def encode(first_serial: int, parts: list[QueuePart]) -> bytes:
    """The file's content."""
    head = _HEAD.pack(MAGIC, VERSION, first_serial, len(parts))
    out = [head, struct.pack("<I", crc32c(head))]
    for part in parts:
        payload = msgspec.msgpack.encode(part)
        out.append(_PART.pack(part.queue_id, len(payload), crc32c(payload)))
        out.append(payload)
    return b"".join(out)


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
    damaged: set[int] = set()
    at = _HEAD.size + 4
    for _ in range(count):
        if at + _PART.size > len(data):
            raise CheckpointDamaged(f"{NAME} is cut short: {BACKUP}")
        queue_id, size, crc = _PART.unpack_from(data, at)
        payload = data[at + _PART.size : at + _PART.size + size]
        at += _PART.size + size
        if len(payload) != size or crc32c(payload) != crc:
            damaged.add(queue_id)
            continue
        part = msgspec.msgpack.decode(payload, type=QueuePart)
        if part.queue_id == queue_id:
            parts[queue_id] = part
        else:
            damaged.add(part.queue_id)
    if at != len(data):
        # A damaged length shifts all parts behind it, and queues would seem never to have had any.
        raise CheckpointDamaged(f"{NAME} is damaged between its parts: {BACKUP}")
    return Checkpoint(first_serial, parts, damaged)


def segments_of(part: QueuePart) -> list[Segment]:
    """The segments a part lists."""
    return [Segment(*fields) for fields in part.segments]
