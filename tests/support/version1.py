"""Metadata files as versions wrote them that knew no groups (docs/format/metadata.md, version 1)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mirrormq.kernel.crc32c import crc32c
from mirrormq.meta.codec import encode_command, encode_records
from mirrormq.meta.commands import Command
from mirrormq.meta.records import Record


def log_file(first: int, commands: Sequence[Command]) -> bytes:
    """A log of term 1, each entry flushed before the next was written."""
    return log_header(first) + b"".join(entry(first + at, one) for at, one in enumerate(commands))


def log_header(first: int) -> bytes:
    head = struct.pack(">8sIQQ", b"MMQMLOG\x00", 1, first, 1)
    return head + crc32c(head).to_bytes(4, "big")


def entry(index: int, command: Command) -> bytes:
    data = encode_command(command)
    checked = struct.pack(">IQQQ", len(data), 1, index, index - 1)
    return b"\xf5MQe" + crc32c(checked + data).to_bytes(4, "big") + checked + data


def snapshot(upto: tuple[int, int], last_id: int, *chunks: Sequence[Record]) -> bytes:
    """A snapshot that ends at (index, term)."""
    count = sum(len(chunk) for chunk in chunks)
    head = struct.pack(">8sIQQQQ", b"MMQMSNP\x00", 1, *upto, last_id, count)
    return head + crc32c(head).to_bytes(4, "big") + b"".join(_chunk(chunk) for chunk in chunks)


def _chunk(records: Sequence[Record]) -> bytes:
    data = encode_records(records)
    return struct.pack(">II", len(data), crc32c(data)) + data
