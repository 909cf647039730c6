"""Changes records in the files of a stopped node as no disk would: with checksums that fit (docs/format); and
as a disk does, without.

A batch is taken apart, changed and put back; what lies behind it in the file moves, and the file keeps its
length. So only the last file of the journal may be changed in length: the head of the next one names its end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from mirrormq.kernel import records
from mirrormq.kernel.crc32c import crc32c
from mirrormq.log.scan import Head, next_batch, scan

_RECORD = struct.Struct("<IIBBH")
_HEAD = struct.Struct("<4sIIIQQQIIQ")
_TAIL = struct.Struct("<QQI")
_PUBLISH = struct.Struct("<32xIIHBB")
_SPAN = struct.Struct("<QQQ")
_U64 = struct.Struct("<Q")
_TIME_BYTES = 8


class Record(NamedTuple):
    """One record of a batch."""

    seq: int
    kind: int
    flags: int
    payload: bytes

    @property
    def body(self) -> bytes:
        return self.payload[self._body_at :]

    def with_body(self, body: bytes) -> Record:
        return self._replace(payload=self.payload[: self._body_at] + body)

    def as_nothing(self) -> Record:
        """A record that says nothing: nothing was delivered up to 0."""
        return self._replace(kind=records.HORIZON, flags=0, payload=_U64.pack(0))

    @property
    def _body_at(self) -> int:
        assert self.kind == records.PUBLISH, self
        _, properties, route, _, _ = _PUBLISH.unpack_from(self.payload)
        return _PUBLISH.size + route + properties


Batch = dict[int, Record]
Change = Callable[[Batch], bool]
"""Changes a batch; False if it holds nothing that is meant."""


def drop(folder: Path, log_id: int, seq: int) -> None:
    """The copy never got this message."""

    def change(batch: Batch) -> bool:
        if seq in batch:
            batch[seq] = batch[seq].as_nothing()
        return seq in batch

    _rewrite(folder, log_id, change)


def alter(folder: Path, log_id: int, seq: int) -> None:
    """The copy has another last byte of the body."""

    def change(batch: Batch) -> bool:
        if seq in batch:
            body = batch[seq].body
            batch[seq] = batch[seq].with_body(body[:-1] + bytes([body[-1] ^ 1]))
        return seq in batch

    _rewrite(folder, log_id, change)


def swap(folder: Path, log_id: int, one: int, other: int) -> None:
    """The copy has two bodies in each other's place."""
    found: dict[int, bytes] = {}

    def look(batch: Batch) -> bool:
        found.update({seq: batch[seq].body for seq in (one, other) if seq in batch})
        return False

    def change(batch: Batch) -> bool:
        meant = [seq for seq in (one, other) if seq in batch]
        for seq in meant:
            batch[seq] = batch[seq].with_body(found[other if seq == one else one])
        return bool(meant)

    _rewrite(folder, log_id, look, is_look=True)
    _rewrite(folder, log_id, change)


def bring_back(folder: Path, log_id: int, seq: int) -> None:
    """The copy never heard that this message was removed."""

    def change(batch: Batch) -> bool:
        meant = [record.seq for record in batch.values() if _removes(record, seq)]
        for one in meant:
            batch[one] = batch[one].as_nothing()
        return bool(meant)

    _rewrite(folder, log_id, change)


def rot(folder: Path, log_id: int, seq: int) -> None:
    """A byte of the batch that holds this record changes by itself, below a node that may run."""
    for path in sorted((folder / "journal").iterdir()):
        data = path.read_bytes()
        start = next_batch(data, 0) or 0
        for at, head in scan(data[start:]).batches:
            if head[1] == log_id and head[3] <= seq < head[3] + head[4]:
                place = start + at + head[0] - _TAIL.size - 5  # the last byte of its records
                with path.open("r+b") as file:
                    file.seek(place)
                    file.write(bytes([data[place] ^ 1]))
                return
    raise AssertionError("it is in no file")


def _removes(record: Record, seq: int) -> bool:
    if record.kind != records.REMOVE or record.flags:
        return False
    return any(first <= seq <= last for first, last, _ in _SPAN.iter_unpack(record.payload[_TIME_BYTES:]))


# --- files -------------------------------------------------------------------------------------------------


def _rewrite(folder: Path, log_id: int, change: Change, *, is_look: bool = False) -> None:
    count = 0
    for path in [*sorted((folder / "journal").iterdir()), *_segments(folder, log_id)]:
        data = path.read_bytes()
        made = _rewritten(data, log_id, change)
        if made is not None:
            count += 1
            path.write_bytes(made.ljust(len(data), b"\0")[: len(data)])
    assert count or is_look, "nothing of it is in the files"


def _segments(folder: Path, log_id: int) -> list[Path]:
    place = folder / "segments" / f"{log_id:020d}"
    return sorted(place.iterdir()) if place.is_dir() else []


def _rewritten(data: bytes, log_id: int, change: Change) -> bytes | None:
    """A file with the changed batches; None if none was meant."""
    start = next_batch(data, 0)
    if start is None:
        return None
    out, at, is_changed = [data[:start]], start, False
    for place, head in scan(data[start:]).batches:
        begin = start + place
        out.append(data[at:begin])
        at = begin + head[0]
        batch = {record.seq: record for record in _taken_apart(data, begin, head)}
        if head[1] == log_id and change(batch):
            is_changed = True
            out.append(_put_together(head, list(batch.values())))
        else:
            out.append(data[begin:at])
    return b"".join([*out, data[at:]]) if is_changed else None


def _taken_apart(data: bytes, at: int, head: Head) -> Iterator[Record]:
    at += records.HEAD_BYTES
    for _ in range(head[4]):
        size, offset, kind, flags, _ = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        yield Record(head[3] + offset, kind, flags, data[at : at + size])
        at += size


def _put_together(head: Head, batch: list[Record]) -> bytes:
    _, queue_id, epoch, first, count, _, time = head
    packed = b"".join(
        _RECORD.pack(len(one.payload), one.seq - first, one.kind, one.flags, 0) + one.payload for one in batch
    )
    publishes = sum(one.kind == records.PUBLISH for one in batch)
    made = _HEAD.pack(b"MQB1", 0, len(packed), crc32c(packed), queue_id, epoch, first, count, publishes, time)
    sealed = made[:4] + struct.pack("<I", crc32c(made[8:])) + made[8:]
    tail = _TAIL.pack(queue_id, first, count)
    whole = sealed + packed + tail + struct.pack("<I", crc32c(tail))
    assert records.is_whole(whole, 0)
    return whole
