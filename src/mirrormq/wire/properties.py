"""The basic properties of a message: decoded when somebody asks, otherwise carried as they were sent.

*Raw* properties are the header frame's payload after class, weight and body size: one or more words of flags
(the lowest bit says that another word follows), then the properties whose flags are set. `split_properties`
and `join_properties` change single ones without touching the bytes of the others.
"""

from typing import Any

from msgspec import Struct

from mirrormq.base.errors import AmqpError, syntax_error
from mirrormq.wire.fields import pack_field
from mirrormq.wire.spec import PROPERTY_FIELDS
from mirrormq.wire.table import Table, Timestamp, decode_table, readable

_KINDS = dict(PROPERTY_FIELDS)
_FLAGS = {name: 1 << (15 - at) for at, (name, _) in enumerate(PROPERTY_FIELDS)}
_CONTINUED = 1
_FIXED = {"octet": 1, "timestamp": 8}


class Properties(Struct, gc=False):
    """Decoded properties; None = not set by the publisher."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


assert Properties.__struct_fields__ == tuple(_KINDS)


def decode_properties(raw: bytes) -> Properties:
    """Read raw properties; malformed ones raise `AmqpError`. Text that is not UTF-8 is taken for Latin-1."""
    values: dict[str, Any] = {}
    for name, field in split_properties(raw).items():
        kind = _KINDS[name]
        if kind == "shortstr":
            values[name] = readable(field[1:])
        elif kind == "table":
            values[name] = decode_table(field, 0)[0]
        elif kind == "timestamp":
            values[name] = Timestamp(int.from_bytes(field, "big"))
        else:
            values[name] = field[0]
    return Properties(**values)


def encode_properties(properties: Properties) -> bytes:
    """Write raw properties."""
    fields = {}
    for name, kind in PROPERTY_FIELDS:
        value = getattr(properties, name)
        if value is not None:
            fields[name] = pack_field(name, kind, value)
    return join_properties(fields)


def split_properties(raw: bytes) -> dict[str, bytes]:
    """Cut raw properties into the encoded fields that are set, by name in wire order."""
    pos, flags = _read_flags(raw)
    fields: dict[str, bytes] = {}
    for name, kind in PROPERTY_FIELDS:
        if not flags & _FLAGS[name]:
            continue
        size = _FIXED.get(kind)
        if size is None:
            # Short strings have a length octet, tables a length word.
            width = 1 if kind == "shortstr" else 4
            size = width + int.from_bytes(raw[pos : pos + width], "big")
            if pos + width > len(raw):
                raise _malformed(f"{name} is truncated")
        if pos + size > len(raw):
            raise _malformed(f"{name} is truncated")
        fields[name] = raw[pos : pos + size]
        pos += size
    if pos != len(raw):
        raise _malformed("bytes after the last property")
    return fields


def join_properties(fields: dict[str, bytes]) -> bytes:
    """Write raw properties from encoded fields; the order of `fields` does not matter."""
    assert fields.keys() <= _KINDS.keys(), sorted(fields)
    flags = sum(_FLAGS[name] for name in fields)
    return flags.to_bytes(2, "big") + b"".join(fields[name] for name in _KINDS if name in fields)


def raw_headers(raw: bytes) -> bytes | None:
    """Return the encoded header table (with length word) or None."""
    return split_properties(raw).get("headers")


def replace_headers(raw: bytes, table: bytes | None, *, drop: tuple[str, ...] = ()) -> bytes:
    """Put an encoded table in the place of the headers (None removes them), without `drop`."""
    fields = {name: field for name, field in split_properties(raw).items() if name not in drop}
    fields.pop("headers", None)
    if table is not None:
        fields["headers"] = table
    return join_properties(fields)


def _read_flags(raw: bytes) -> tuple[int, int]:
    """Return where the property list starts, and the first flag word; further words must be empty."""
    pos = 2
    while pos <= len(raw) and raw[pos - 1] & _CONTINUED:
        if pos > 2 and int.from_bytes(raw[pos - 2 : pos], "big") & ~_CONTINUED:
            raise _malformed("unknown property")
        pos += 2
    if pos > len(raw):
        raise _malformed("property flags are truncated")
    if pos > 2 and int.from_bytes(raw[pos - 2 : pos], "big"):
        raise _malformed("unknown property")
    return pos, int.from_bytes(raw[:2], "big")


def _malformed(why: str) -> AmqpError:
    return syntax_error(f"malformed basic properties: {why}")
