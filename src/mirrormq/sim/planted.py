"""Bugs planted on purpose: a simulator that does not find them is broken.

Each is a subclass of the shipped node that gets one thing wrong; the shipped code has no switches.
"""

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.kernel.crc32c import crc32c
from mirrormq.log import checkpoint, journal
from mirrormq.log.disk import Disk
from mirrormq.log.durable import DurableLog
from mirrormq.log.recycler import Recycler
from mirrormq.log.scan import MAGIC
from mirrormq.meta.commands import Command
from mirrormq.node.memberport import Started
from mirrormq.node.node import Node

TAIL_BYTES = 24
"""Bytes behind the records of a batch."""


class ConfirmsBeforeFlush(Node):
    """Takes what was appended for durable."""

    def end_pass(self, now: Now) -> None:
        """Work on as if every flush had been reported."""
        self.turn_queues()
        for log in self.logs.values():
            log.durable = log.end
        super().end_pass(now)


class SkipsChecksums(Node):
    """Believes every batch whose head can be read."""

    def start(self, now: Now, disk: Disk, fresh: list[Command] | Callable[[], list[Command]]) -> Started:
        """Start without checking what is read."""
        return super().start(now, _CredulousDisk(disk), fresh)


class _CredulousDisk:
    """A disk whose batches all have the checksum that fits their records."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.list = disk.list
        self.size = disk.size

    def read(self, name: str) -> bytes:
        """The content of a file, believed."""
        data = bytearray(self._disk.read(name))
        at = data.find(MAGIC)
        while at >= 0 and name.startswith(journal.PREFIX):
            head = records.read_head(data, at)
            if head is not None and at + head[0] <= len(data):
                end = at + head[0] - TAIL_BYTES
                data[at + 12 : at + 16] = _crc(data[at + records.HEAD_BYTES : end])
                data[at + 4 : at + 8] = _crc(data[at + 8 : at + records.HEAD_BYTES])
                data[end + TAIL_BYTES - 4 : end + TAIL_BYTES] = _crc(data[end : end + TAIL_BYTES - 4])
            at = data.find(MAGIC, at + 1)
        return bytes(data)

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """Part of it."""
        return self.read(name)[offset : offset + length]


def _crc(data: bytearray) -> bytes:
    return struct.pack("<I", crc32c(data))


class ForgetsSettledRange(Node):
    """Leaves a range of settled messages out of the checkpoint."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.recycler.__class__ = _ForgetfulRecycler


class _ForgetfulRecycler(Recycler):
    def _part_of(self, log: DurableLog) -> checkpoint.QueuePart:
        part = super()._part_of(log)
        return msgspec.structs.replace(part, dead=part.dead[:-1])


class RecyclesTooEarly(Node):
    """Gives a journal file up before the segments that replace it are flushed."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.recycler.__class__ = _HastyRecycler


class _HastyRecycler(Recycler):
    def _flush_segments(self) -> None:
        self._outbox.remove(journal.file_name(self.first_serial))
        super()._flush_segments()


PLANTED: dict[str, type[Node]] = {
    "confirm-before-flush": ConfirmsBeforeFlush,
    "checksum-skipped": SkipsChecksums,
    "settled-range-lost": ForgetsSettledRange,
    "journal-recycled-early": RecyclesTooEarly,
}
