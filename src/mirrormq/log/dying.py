"""The DYING record: entries that are on their way to the dead-letter exchange (docs/format/batch.md).

Guarantees
- A death is decided once: why, when, under which number and for which durable queues stands in the log
  before a letter leaves, so what is sent again after a crash is the same letter for the same queues.
- Numbers of one source queue are dense and letters reach each target in their order. The highest number a
  target has in its log therefore tells which letters it has.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

_HEAD = struct.Struct("<QQIHH")
_ROW = struct.Struct("<QII")
_U64 = struct.Struct("<Q")

KEEPS_KEYS = 0xFFFF
"""Length of the routing key if letters keep the keys of their messages."""


class Death(NamedTuple):
    """One entry that is dying."""

    seq: int
    number: int
    reason: int
    time: int
    """When it died (wall µs)."""
    exchange: bytes
    key: bytes | None
    targets: tuple[int, ...]
    """Ids of the durable queues the letter is for."""


def encode(deaths: Sequence[Death]) -> bytes:
    """The payload for deaths with consecutive numbers, of one time, exchange and key."""
    first = deaths[0]
    exchange = first.exchange
    key_size = KEEPS_KEYS if first.key is None else len(first.key)
    out = [_HEAD.pack(first.time, first.number, len(deaths), len(exchange), key_size), exchange]
    out.append(first.key or b"")
    for death in deaths:
        out.append(_ROW.pack(death.seq, death.reason, len(death.targets)))
        out.extend(map(_U64.pack, death.targets))
    return b"".join(out)


def decode(payload: bytes) -> list[Death]:
    """What a payload says."""
    time, number, count, exchange_size, key_size = _HEAD.unpack_from(payload)
    at = _HEAD.size + exchange_size
    exchange = payload[_HEAD.size : at]
    key = None
    if key_size != KEEPS_KEYS:
        key = payload[at : at + key_size]
        at += key_size
    deaths = []
    for nth in range(count):
        seq, reason, targets_count = _ROW.unpack_from(payload, at)
        at += _ROW.size
        targets = struct.unpack_from(f"<{targets_count}Q", payload, at)
        at += 8 * targets_count
        deaths.append(Death(seq, number + nth, reason, time, exchange, key, targets))
    return deaths
