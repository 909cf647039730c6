"""Bugs planted on purpose: a simulator that does not find them is broken.

Each is a subclass of the shipped node that gets one thing wrong; the shipped code has no switches.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.log import checkpoint, journal, recovery
from mirrormq.log.disk import Disk
from mirrormq.log.recycler import Recycler
from mirrormq.meta.commands import Command
from mirrormq.meta.store import Recovered
from mirrormq.node.node import Node


class ConfirmsBeforeFlush(Node):
    """Takes what was appended for durable."""

    def _confirm(self, *args: Any) -> None:
        for log in self.logs.values():
            log.durable = log.end
        super()._confirm(*args)


class SkipsChecksums(Node):
    """Believes every batch whose head can be read."""

    def start(self, now: Now, disk: Disk, fresh: list[Command]) -> Recovered:
        """Start without checking what is read."""
        with _credulous():
            return super().start(now, disk, fresh)


class _CredulousRecords:
    """The record functions of the kernel, but for the checksum of the records."""

    def __getattr__(self, name: str) -> Any:
        return getattr(records, name)

    @staticmethod
    def is_whole(data: bytes, at: int) -> bool:
        """Is the batch as long as its head says?"""
        head = records.read_head(data, at)
        return head is not None and at + head[0] <= len(data)


@contextmanager
def _credulous() -> Iterator[None]:
    module: Any = recovery
    before = module.records
    module.records = _CredulousRecords()
    try:
        yield
    finally:
        module.records = before


class ForgetsSettledRange(Node):
    """Leaves a range of settled messages out of the checkpoint."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.recycler.__class__ = _ForgetfulRecycler


class _ForgetfulRecycler(Recycler):
    def _write_checkpoint(self, parts: list[checkpoint.QueuePart], *rest: Any) -> None:
        super()._write_checkpoint([_without_last_range(part) for part in parts], *rest)


def _without_last_range(part: checkpoint.QueuePart) -> checkpoint.QueuePart:
    fields = {name: getattr(part, name) for name in part.__struct_fields__}
    return checkpoint.QueuePart(**{**fields, "dead": part.dead[:-1]})


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
