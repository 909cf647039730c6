"""Packing and unpacking of a method's arguments by the rows of `spec.py`.

RabbitMQ first matches the shape of all arguments (lengths, no byte left over) and only then looks into
strings and tables. The same order is kept here: it decides which of two mistakes in one frame the client
is told about.
"""

import struct
from collections.abc import Sequence
from typing import Any

from mirrormq.base import limits
from mirrormq.base.errors import frame_error, syntax_error
from mirrormq.wire.table import decode_table, encode_table

_SIZES = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}
_SHOWN_BYTES_MAX = 128
"""Bytes shown of an undecodable payload: more than the 255 characters of a reply text can hold."""

Fields = Sequence[tuple[str, str]]


class ShapeError(Exception):
    """The arguments do not have the method's shape."""


def unpack_fields(fields: Fields, data: bytes, pos: int) -> list[Any]:
    """Read all of `data` from `pos`; raise `ShapeError`, or `AmqpError` for what is inside a field."""
    values = _split_fields(fields, data, pos)
    for at, (_, kind) in enumerate(fields):
        if kind == "shortstr":
            try:
                values[at] = values[at].decode()
            except UnicodeDecodeError:
                raise frame_error("Malformed UTF-8 in shortstr") from None
        elif kind == "table":
            values[at] = decode_table(values[at], 0)[0]
    return values


def _split_fields(fields: Fields, data: bytes, pos: int) -> list[Any]:
    """Cut `data` into the fields' values, strings and tables still as bytes."""
    values: list[Any] = []
    end = len(data)
    bit = 0
    for _, kind in fields:
        if kind == "bit":
            if bit % 8 == 0:
                pos += 1
                if pos > end:
                    raise ShapeError
            values.append(data[pos - 1] >> bit % 8 & 1 == 1)
            bit += 1
            continue
        bit = 0
        size = _SIZES.get(kind)
        if size is None:
            # A table keeps its length word, which `decode_table` wants to see; strings lose theirs.
            width = 1 if kind == "shortstr" else 4
            start = pos if kind == "table" else pos + width
            stop = pos + width + int.from_bytes(data[pos : pos + width], "big")
            values.append(data[start:stop])
        else:
            width, stop = size, pos + size
            values.append(int.from_bytes(data[pos:stop], "big"))
        if pos + width > end or stop > end:
            raise ShapeError
        pos = stop
    if pos != end:
        raise ShapeError
    return values


def pack_fields(fields: Fields, values: Sequence[Any], ids: int) -> bytes:
    """Write the class and method id (as one 32-bit word) and the arguments."""
    out = [ids.to_bytes(4, "big")]
    octet = bit = 0
    for (name, kind), value in zip(fields, values, strict=True):
        if kind == "bit":
            octet |= bool(value) << bit
            bit += 1
            if bit == 8:
                out.append(bytes((octet,)))
                octet = bit = 0
            continue
        if bit:
            out.append(bytes((octet,)))
            octet = bit = 0
        out.append(pack_field(name, kind, value))
    if bit:
        out.append(bytes((octet,)))
    return b"".join(out)


def pack_field(name: str, kind: str, value: Any) -> bytes:
    """Write one field that is not a bit; a value that does not fit raises `AmqpError`."""
    if kind == "shortstr":
        return pack_short_string(name, value)
    if kind == "longstr":
        raw = value.encode() if isinstance(value, str) else bytes(value)
        return struct.pack(">I", len(raw)) + raw
    if kind == "table":
        return encode_table(value)
    try:
        return int(value).to_bytes(_SIZES[kind], "big")
    except OverflowError:
        raise syntax_error(f"{name} {value} does not fit {kind}") from None


def pack_short_string(name: str, value: str) -> bytes:
    """Write a length octet and the string's UTF-8."""
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise syntax_error(f"{name} is not valid Unicode") from None
    if len(raw) > limits.short_string_bytes_max:
        raise syntax_error(f"{name} has {len(raw)} bytes, more than {limits.short_string_bytes_max}")
    return bytes((len(raw),)) + raw


def erlang_binary(data: bytes) -> str:
    """Show bytes the way RabbitMQ's error texts do, cut to what can be seen of them."""
    shown = ",".join(map(str, data[:_SHOWN_BYTES_MAX]))
    return f"<<{shown},...>>" if len(data) > _SHOWN_BYTES_MAX else f"<<{shown}>>"
