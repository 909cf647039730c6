"""Reads of an X.509 certificate what an administrator wants to know: whose it is, whose word it is, and until
when. Nothing is verified here; the standard library decodes only certificates that it has verified.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

SEQUENCE, INTEGER, OID, UTC_TIME, GENERAL_TIME, VERSION = 0x30, 0x02, 0x06, 0x17, 0x18, 0xA0
_NAMES = {
    bytes.fromhex(code): name
    for code, name in {
        "550403": "CN",
        "550406": "C",
        "550407": "L",
        "550408": "ST",
        "55040a": "O",
        "55040b": "OU",
        "2a864886f70d010901": "emailAddress",
    }.items()
}


class Unreadable(ValueError):
    """The octets are no certificate."""


@dataclass(frozen=True)
class Certificate:
    """What it says."""

    serial: int
    issuer: str
    subject: str
    not_before: datetime
    not_after: datetime


def read_pem(text: str) -> Certificate:
    """Read one certificate in PEM."""
    try:
        return read_der(ssl.PEM_cert_to_DER_cert(text))
    except (ValueError, IndexError, StopIteration) as error:
        raise Unreadable(f"it is no certificate: {error}") from error


def read_der(data: bytes) -> Certificate:
    """Read one certificate in DER."""
    ((_, outer),) = _items(data)
    (_, signed), *_ = _items(outer)
    fields = list(_items(signed))
    if fields[0][0] == VERSION:
        del fields[0]
    serial, _algorithm, issuer, validity, subject = (value for _, value in fields[:5])
    begins, ends = _items(validity)
    return Certificate(
        int.from_bytes(serial, "big", signed=True),
        _name(issuer),
        _name(subject),
        _time(*begins),
        _time(*ends),
    )


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The (tag, value) pairs that follow each other."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + size > len(data):
            raise Unreadable("it ends too early")
        yield tag, data[at : at + size]
        at += size


def _name(data: bytes) -> str:
    """A distinguished name, the most particular part first, as RabbitMQ writes it."""
    parts = []
    for _, group in _items(data):
        for _, pair in _items(group):
            (_, kind), (_, value) = _items(pair)
            parts.append(f"{_NAMES.get(kind, kind.hex())}={value.decode('utf-8', 'replace')}")
    return ",".join(reversed(parts))


def _time(tag: int, value: bytes) -> datetime:
    form = "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(value.decode("ascii"), form).replace(tzinfo=UTC)
