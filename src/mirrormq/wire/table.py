"""AMQP field tables: every type RabbitMQ knows, in both directions, bounded in depth and size.

Decoding: b B s u I i l L -> int, f d -> float, t -> bool, D -> Decimal, T -> Timestamp, S -> str (bytes if it
is not UTF-8), x -> bytes, A -> list, F -> dict, V -> None. Anything else raises `AmqpError` 502, as do
truncated input, NaN and infinities (RabbitMQ cannot represent them either, and drops the connection without a
word). Of two fields with one name the first counts, as in RabbitMQ.

Encoding: bool t, int I or l, float d, Decimal D, Timestamp T, str S, bytes x, list A, dict F, None V. Widths
are not remembered: whoever must keep foreign fields byte for byte uses `split_table` and `join_table`.
"""

import math
import struct
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError, syntax_error

Table = dict[str, Any]

_FIXED = {
    ord("b"): struct.Struct(">b"),
    ord("B"): struct.Struct(">B"),
    ord("s"): struct.Struct(">h"),
    ord("u"): struct.Struct(">H"),
    ord("I"): struct.Struct(">i"),
    ord("i"): struct.Struct(">I"),
    ord("l"): struct.Struct(">q"),
    ord("L"): struct.Struct(">q"),
    ord("f"): struct.Struct(">f"),
    ord("d"): struct.Struct(">d"),
    ord("T"): struct.Struct(">Q"),
    ord("t"): struct.Struct(">?"),
    ord("D"): struct.Struct(">BI"),
    ord("V"): struct.Struct(">"),
}
_SIZED = frozenset(b"SxAF")
_U32 = struct.Struct(">I")


class Timestamp(int):
    """Seconds since 1970, kept apart from plain integers so that it goes out as a timestamp again."""

    __slots__ = ()


def decode_table(buf: bytes | memoryview, pos: int = 0) -> tuple[Table, int]:
    """Read a table with its length word at `pos`; return it and the position after it."""
    data = buf if isinstance(buf, bytes) else bytes(buf)
    start, end = _extent(data, pos, len(data))
    return _read_fields(data, start, end, 0), end


def decode_fields(raw: bytes) -> Table:
    """Read a table that has no length word (AMQPLAIN sends one)."""
    return _read_fields(raw, 0, len(raw), 0)


def decode_value(raw: bytes) -> Any:
    """Read one value with its type tag, as `split_table` returns it."""
    value, pos = _read_value(raw, 0, len(raw), 0)
    if pos != len(raw):
        raise _malformed("bytes after the value")
    return value


def encode_table(table: Mapping[str, Any]) -> bytes:
    """Write a table with its length word."""
    return _sized(b"", _write_fields(table, 0))


def encode_value(value: Any) -> bytes:
    """Write one value with its type tag."""
    return _write_value(value, 0)


def split_table(raw: bytes) -> list[tuple[str, bytes]]:
    """Cut an encoded table (with length word) into names and untouched values, type tag first.

    Names that are not UTF-8 come with surrogates for the odd bytes; `join_table` restores those.
    """
    start, end = _extent(raw, 0, len(raw))
    if end != len(raw):
        raise _malformed("bytes after the table")
    fields = []
    while start < end:
        name, start = _read_name(raw, start, end)
        stop = _value_end(raw, start, end)
        fields.append((name.decode("utf-8", "surrogateescape"), raw[start:stop]))
        start = stop
    return fields


def join_table(fields: Iterable[tuple[str, bytes]]) -> bytes:
    """Write an encoded table from what `split_table` returned or `encode_value` made."""
    return _sized(b"", b"".join(_write_name(name) + value for name, value in fields))


def readable(raw: bytes) -> str:
    """Read text that ought to be UTF-8 but need not be: otherwise it is taken for Latin-1."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _malformed(why: str) -> AmqpError:
    return syntax_error(f"malformed field table: {why}")


def _extent(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """Return where the content behind the length word at `pos` starts and ends."""
    start = pos + 4
    if start > end:
        raise _malformed("truncated")
    stop = start + int.from_bytes(data[pos:start], "big")
    if stop > end:
        raise _malformed("truncated")
    if stop - start > limits.table_bytes_max:
        raise _malformed(f"more than {limits.table_bytes_max} bytes")
    return start, stop


def _read_name(data: bytes, pos: int, end: int) -> tuple[bytes, int]:
    stop = pos + 1 + data[pos]
    if stop >= end:
        raise _malformed("truncated")
    return data[pos + 1 : stop], stop


def _value_end(data: bytes, pos: int, end: int) -> int:
    """Return the end of the value whose type tag is at `pos`, without looking inside."""
    tag = data[pos]
    fixed = _FIXED.get(tag)
    if fixed is not None:
        stop = pos + 1 + fixed.size
        if stop > end:
            raise _malformed("truncated")
        return stop
    if tag not in _SIZED:
        raise _malformed(f"unknown type {tag}")
    return _extent(data, pos + 1, end)[1]


def _read_fields(data: bytes, pos: int, end: int, depth: int) -> Table:
    table: Table = {}
    while pos < end:
        name, pos = _read_name(data, pos, end)
        value, pos = _read_value(data, pos, end, depth)
        table.setdefault(readable(name), value)
    return table


def _read_value(data: bytes, pos: int, end: int, depth: int) -> tuple[Any, int]:
    if pos >= end:
        raise _malformed("truncated")
    tag = data[pos]
    stop = _value_end(data, pos, end)
    if tag in _SIZED:
        return _read_sized(data, tag, (pos + 5, stop), depth), stop
    parts = _FIXED[tag].unpack_from(data, pos + 1)
    if tag == 0x44:  # D
        # Built from digits: arithmetic would round to the context's precision.
        return Decimal((0, tuple(map(int, str(parts[1]))), -parts[0])), stop
    if tag == 0x56:  # V
        return None, stop
    if tag == 0x54:  # T
        return Timestamp(parts[0]), stop
    value = parts[0]
    if isinstance(value, float) and not math.isfinite(value):
        raise _malformed("not a finite number")
    return value, stop


def _read_sized(data: bytes, tag: int, extent: tuple[int, int], depth: int) -> Any:
    """Read the content of a string, array or table."""
    start, stop = extent
    if tag == 0x78:  # x
        return data[start:stop]
    if tag == 0x53:  # S
        raw = data[start:stop]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw
    if depth >= limits.table_depth_max:
        raise _malformed(f"nested more than {limits.table_depth_max} deep")
    if tag == 0x46:  # F
        return _read_fields(data, start, stop, depth + 1)
    values = []
    while start < stop:
        value, start = _read_value(data, start, stop, depth + 1)
        values.append(value)
    return values


def _sized(tag: bytes, content: bytes) -> bytes:
    if len(content) > limits.table_bytes_max:
        raise syntax_error(f"field table of more than {limits.table_bytes_max} bytes")
    return tag + _U32.pack(len(content)) + content


def _write_name(name: str) -> bytes:
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise syntax_error("field name is not valid Unicode") from None
    if len(raw) > limits.short_string_bytes_max:
        raise syntax_error(f"field name of {len(raw)} bytes, more than {limits.short_string_bytes_max}")
    return bytes((len(raw),)) + raw


def _write_fields(table: Mapping[str, Any], depth: int) -> bytes:
    if depth > limits.table_depth_max:
        raise syntax_error(f"field table nested more than {limits.table_depth_max} deep")
    return b"".join(_write_name(name) + _write_value(value, depth) for name, value in table.items())


def _write_value(value: Any, depth: int) -> bytes:
    if isinstance(value, str):
        try:
            return _sized(b"S", value.encode())
        except UnicodeEncodeError:
            raise syntax_error("field value is not valid Unicode") from None
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return _write_int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise syntax_error("field value is not a finite number")
        return struct.pack(">cd", b"d", value)
    if isinstance(value, Decimal):
        return _write_decimal(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _sized(b"x", bytes(value))
    if isinstance(value, Mapping):
        return _sized(b"F", _write_fields(value, depth + 1))
    if isinstance(value, list | tuple):
        if depth >= limits.table_depth_max:
            raise syntax_error(f"field table nested more than {limits.table_depth_max} deep")
        return _sized(b"A", b"".join(_write_value(item, depth + 1) for item in value))
    raise syntax_error(f"a {type(value).__name__} cannot be a field value")


def _write_int(value: int) -> bytes:
    if isinstance(value, Timestamp):
        if 0 <= value < 1 << 64:
            return struct.pack(">cQ", b"T", value)
    elif -(1 << 31) <= value < 1 << 31:
        return struct.pack(">ci", b"I", value)
    elif -(1 << 63) <= value < 1 << 63:
        return struct.pack(">cq", b"l", value)
    raise syntax_error("integer does not fit 64 bits")


def _write_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise syntax_error("field value is not a finite number")
    # Bounded before use: 10 ** 1,000,000 would take a while only to be refused.
    if (sign and any(digits)) or len(digits) > 10 or not -255 <= exponent <= 10:
        raise syntax_error("decimal does not fit its field")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    if unscaled >= 1 << 32:
        raise syntax_error("decimal does not fit its field")
    return struct.pack(">cBI", b"D", max(-exponent, 0), unscaled)
