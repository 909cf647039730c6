"""Log batches written in plain Python, and read back in plain Python: what the compiled scanner is held
against."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from mirrormq.kernel.crc32c import crc32c

PUBLISH, REMOVE, EPOCH, HORIZON = 1, 3, 8, 5
TEXTS = {
    15: "content_type", 14: "content_encoding", 10: "correlation_id", 9: "reply_to", 8: "expiration",
    7: "message_id", 5: "type", 4: "user_id", 3: "app_id", 2: "cluster_id",
}  # fmt: skip
NAMES = {1: "ack", 2: "auto", 3: "rejected", 4: "expired", 5: "maxlen", 6: "delivery_limit"}
FIXED = {
    "t": ">?", "b": ">b", "B": ">B", "s": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q",
    "f": ">f", "d": ">d", "T": ">Q", "D": ">BI", "V": ">",
}  # fmt: skip


class Record(NamedTuple):
    """One record: its seq, kind, flags and payload."""

    seq: int
    kind: int
    flags: int
    payload: bytes


def publish(
    seq: int,
    body: bytes = b"",
    *,
    exchange: bytes = b"",
    key: bytes = b"orders",
    properties: bytes = b"\0\0",
    received: int = 1_700_000_000_000_000,
    deliveries: int = 0,
    flags: int = 1,
) -> Record:
    """A PUBLISH record."""
    route = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    head = struct.pack("<QQQQIIHBB", received, 0, 7, seq, deliveries, len(properties), len(route), 0, 0)
    return Record(seq, PUBLISH, flags, head + route + properties + body)


def remove(seq: int, *spans: tuple[int, int, int], at: int = 1_700_000_001_000_000) -> Record:
    """A REMOVE record."""
    return Record(
        seq, REMOVE, 0, struct.pack("<Q", at) + b"".join(struct.pack("<QQQ", *span) for span in spans)
    )


def purge(seq: int, upto: int, *kept: int, at: int = 1_700_000_002_000_000) -> Record:
    """A purge."""
    return Record(seq, REMOVE, 1, struct.pack(f"<QQ{len(kept)}Q", at, upto, *kept))


def restarted(seq: int, *spans: tuple[int, int]) -> Record:
    """An EPOCH record of a node that lost its transient messages."""
    gone = b"".join(struct.pack("<QQ", *span) for span in spans)
    return Record(
        seq, EPOCH, 1, struct.pack("<H", 1) + b"n" + struct.pack("<I", len(spans)) + gone + b"\0" * 4
    )


def batch(records: Sequence[Record], *, queue_id: int = 7, epoch: int = 1) -> bytes:
    """A batch of records."""
    first = records[0].seq
    body = b"".join(
        struct.pack("<IIBBH", len(r.payload), r.seq - first, r.kind, r.flags, 0) + r.payload for r in records
    )
    publishes = sum(record.kind == PUBLISH for record in records)
    head = struct.pack(
        "<IIQQQIIQ", len(body), crc32c(body), queue_id, epoch, first, len(records), publishes, 1
    )
    tail = struct.pack("<QQI", queue_id, first, len(records))
    return b"MQB1" + struct.pack("<I", crc32c(head)) + head + body + tail + struct.pack("<I", crc32c(tail))


def properties(values: dict[int, bytes]) -> bytes:
    """Raw properties from encoded fields by flag bit."""
    flags = sum(1 << bit for bit in values)
    return struct.pack(">H", flags) + b"".join(values[bit] for bit in sorted(values, reverse=True))


def short(text: bytes) -> bytes:
    """A short string."""
    return bytes([len(text)]) + text


def table(fields: Sequence[tuple[bytes, tuple[str, Any]]]) -> bytes:
    """A field table with its length word; values are (type tag, value)."""
    content = b"".join(short(name) + _value(*value) for name, value in fields)
    return struct.pack(">I", len(content)) + content


def _value(tag: str, value: Any) -> bytes:
    if tag in "Sx":
        content = value
    elif tag == "A":
        content = b"".join(_value(*item) for item in value)
    elif tag == "F":
        return b"F" + table(value)
    elif tag == "V":
        return b"V"
    else:
        parts = value if tag == "D" else (value,)
        return tag.encode() + struct.pack(FIXED[tag], *parts)
    return tag.encode() + struct.pack(">I", len(content)) + content


# --- reading back ---


def readable(raw: bytes) -> str:
    """UTF-8, or Latin-1 if it is not."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def as_json(tag: str, value: Any) -> str:
    """A header's value as the connector writes it."""
    if tag == "S":
        return json.dumps(readable(value), ensure_ascii=False)
    if tag == "x":
        return json.dumps(base64.b64encode(value).decode())
    if tag == "A":
        return "[" + ",".join(as_json(*item) for item in value) + "]"
    if tag == "F":
        return "{" + ",".join(f"{as_json('S', name)}:{as_json(*item)}" for name, item in value) + "}"
    if tag == "D":
        scale, digits = value
        text = str(digits).rjust(scale + 1, "0")
        return text if scale == 0 else f"{text[:-scale]}.{text[-scale:]}"
    if tag == "V" or (isinstance(value, float) and not math.isfinite(value)):
        return "null"
    if tag == "f":
        (value,) = struct.unpack(">f", struct.pack(">f", value))
    return json.dumps(value)


def headers(fields: Sequence[tuple[bytes, tuple[str, Any]]]) -> list[tuple[str, str]]:
    """Headers as the column has them; of two with one name the first counts."""
    found: dict[str, str] = {}
    for name, value in fields:
        found.setdefault(readable(name), as_json(*value))
    return list(found.items())


def moment(micros: int) -> datetime:
    """A time as Arrow gives it."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def signed(crc: int) -> int:
    """A checksum as a signed number."""
    return crc - (1 << 32) if crc >= 1 << 31 else crc


def states(records: Sequence[Record]) -> dict[int, str]:
    """The state of every message after all records."""
    found: dict[int, str] = {}
    for record in records:
        if record.kind == PUBLISH:
            found[record.seq] = "live"
        elif record.kind == EPOCH and record.flags & 1:
            (count,) = struct.unpack_from("<I", record.payload, 3)
            for first, last in struct.iter_unpack("<QQ", record.payload[7 : 7 + 16 * count]):
                found |= {seq: "lost" for seq in found if first <= seq <= last}
        elif record.kind == REMOVE and record.flags:
            _, upto, *kept = struct.unpack(f"<{len(record.payload) // 8}Q", record.payload)
            for seq, state in found.items():
                if seq <= upto and seq not in kept and state == "live":
                    found[seq] = "purge"
        elif record.kind == REMOVE:
            for first, last, reason in struct.iter_unpack("<QQQ", record.payload[8:]):
                found |= {seq: NAMES.get(reason, "other") for seq in range(first, last + 1) if seq in found}
    return found
