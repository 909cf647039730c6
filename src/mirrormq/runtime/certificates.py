"""When the certificates of the listeners run out.

Guarantee: a file that cannot be read, or is none, has no date and does no harm.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mirrormq.runtime.settings import Settings
from mirrormq.runtime.values import Address

SEQUENCE, UTC_TIME, GENERALIZED_TIME, VERSION = 0x30, 0x17, 0x18, 0xA0
_END = "-----END CERTIFICATE-----"


def certificates(settings: Settings, listeners: Sequence[tuple[str, Address]]) -> Iterator[dict[str, Any]]:
    """The certificate of every listener with TLS, and when it runs out (s since 1970)."""
    files = {"amqp/ssl": settings.tls.certfile, "https": settings.admin_tls.certfile}
    for protocol, address in listeners:
        file = files.get(protocol)
        expires_on = expiry(file) if file else None
        if expires_on is not None:
            yield {
                "protocol": protocol,
                "interface": address.host or "[::]",
                "port": address.port,
                "certfile_expires_on": expires_on,
            }


def expiry(file: str) -> int | None:
    """When the first certificate of a PEM file runs out."""
    try:
        text = Path(file).read_text("ascii", "replace")
        first = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(_END) + len(_END)]
        return _not_after(ssl.PEM_cert_to_DER_cert(first))
    except (OSError, ValueError, IndexError):
        return None


def _not_after(der: bytes) -> int:
    """The end of the validity, behind version, serial number, algorithm and issuer."""
    fields = list(_parts(_parts_of(_parts_of(der)[0][1])[0][1]))
    if fields[0][0] == VERSION:
        del fields[0]
    kind, value = _parts_of(fields[3][1])[1]
    text = value.decode("ascii")
    if kind == UTC_TIME:
        # Two digits of a year: those from 50 on are of the last century (RFC 5280).
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif kind != GENERALIZED_TIME:
        raise ValueError(kind)
    when = datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC)
    return int(when.timestamp())


def _parts_of(data: bytes) -> list[tuple[int, bytes]]:
    return list(_parts(data))


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element in a row."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        yield tag, data[at : at + size]
        at += size
