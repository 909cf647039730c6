"""Field tables: every type in both directions, agreement with `pamqp`, bounds, untouched foreign fields."""

import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import decode as pamqp_decode
from pamqp import encode as pamqp_encode

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.wire import table
from mirrormq.wire.table import Timestamp, decode_table, decode_value, encode_table, encode_value
from tests.unit.wire import strategies as my

TYPES = [
    ("b", b"b\xfd", -3),
    ("B", b"B\xfd", 253),
    ("s", b"s\xff\xfd", -3),
    ("u", b"u\xff\xfd", 65533),
    ("I", b"I\xff\xff\xff\xfb", -5),
    ("i", b"i\xff\xff\xff\xfb", 4294967291),
    ("l", b"l\xff\xff\xff\xff\xff\xff\xff\xf9", -7),
    ("L", b"L\xff\xff\xff\xff\xff\xff\xff\xf9", -7),
    ("f", b"f\x3f\xc0\x00\x00", 1.5),
    ("d", b"d\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5),
    ("t true", b"t\x01", True),
    ("t false", b"t\x00", False),
    ("D", b"D\x02\x00\x00\x01\x3a", Decimal("3.14")),
    ("T", b"T\x00\x00\x00\x00\x5e\x0b\xe1\x00", Timestamp(1577836800)),
    ("S", b"S\x00\x00\x00\x02\xc3\xa9", "é"),
    ("S not utf-8", b"S\x00\x00\x00\x01\xe9", b"\xe9"),
    ("x", b"x\x00\x00\x00\x02\xc3\xa9", b"\xc3\xa9"),
    ("A", b"A\x00\x00\x00\x03Vt\x01", [None, True]),
    ("F", b"F\x00\x00\x00\x04\x01at\x01", {"a": True}),
    ("V", b"V", None),
]


def in_table(raw_value: bytes) -> bytes:
    return struct.pack(">I", len(raw_value) + 2) + b"\x01k" + raw_value


def refused(raw: bytes) -> None:
    with pytest.raises(AmqpError) as caught:
        decode_table(raw, 0)
    assert (caught.value.code, caught.value.scope) == (502, "connection")


@pytest.mark.parametrize(("raw", "value"), [t[1:] for t in TYPES], ids=[t[0] for t in TYPES])
def test_every_type_is_read(raw: bytes, value: Any) -> None:
    read = decode_value(raw)
    assert read == value
    assert type(read) is type(value)
    assert decode_table(in_table(raw), 0) == ({"k": value}, len(raw) + 6)


# pamqp does not read bytes that are no UTF-8 the way we do, nor is it asked to.
@pytest.mark.parametrize(("raw", "value"), [t[1:] for t in TYPES], ids=[t[0] for t in TYPES])
def test_every_type_is_read_as_pamqp_reads_it(raw: bytes, value: Any) -> None:
    _, theirs = pamqp_decode.field_table(in_table(raw))
    assert my.from_pamqp(theirs) == decode_table(in_table(raw), 0)[0]


TAGS = [
    (True, b"t"),
    (0, b"I"),
    (2**31 - 1, b"I"),
    (-(2**31), b"I"),
    (2**31, b"l"),
    (-(2**31) - 1, b"l"),
    (2**63 - 1, b"l"),
    (0.1, b"d"),
    (Decimal("0.1"), b"D"),
    (Timestamp(1), b"T"),
    ("s", b"S"),
    (b"s", b"x"),
    ([], b"A"),
    ((), b"A"),
    ({}, b"F"),
    (None, b"V"),
]


@pytest.mark.parametrize(("value", "tag"), TAGS)
def test_each_python_type_has_its_tag(value: Any, tag: bytes) -> None:
    assert encode_value(value)[:1] == tag


@my.thorough
@given(my.tables)
def test_reading_returns_what_was_written(value: dict[str, Any]) -> None:
    raw = encode_table(value)
    assert decode_table(raw, 0) == (value, len(raw))


@my.thorough
@given(my.tables)
def test_pamqp_reads_what_we_write(value: dict[str, Any]) -> None:
    consumed, theirs = pamqp_decode.field_table(encode_table(value))
    assert my.from_pamqp(theirs) == value
    assert consumed == len(encode_table(value))


@my.thorough
@given(my.tables.map(my.with_single_floats))
def test_we_read_what_pamqp_writes(value: dict[str, Any]) -> None:
    raw = pamqp_encode.field_table(my.to_pamqp(value))
    assert decode_table(raw, 0) == (value, len(raw))


@my.thorough
@given(st.integers(0, 2**64 - 1).map(Timestamp))
def test_timestamps_use_all_64_bits(value: Timestamp) -> None:
    assert decode_value(encode_value(value)) == value


@my.thorough
@given(before=st.binary(max_size=9), value=my.tables, after=st.binary(max_size=9))
def test_a_table_is_found_at_its_position(before: bytes, value: dict[str, Any], after: bytes) -> None:
    raw = encode_table(value)
    assert decode_table(before + raw + after, len(before)) == (value, len(before) + len(raw))
    assert decode_table(memoryview(before + raw + after), len(before))[0] == value


def test_of_two_fields_with_one_name_the_first_counts() -> None:
    assert decode_table(b"\x00\x00\x00\x08\x01at\x01\x01at\x00", 0)[0] == {"a": True}


def test_a_name_that_is_not_utf8_is_read_as_latin1() -> None:
    assert decode_table(b"\x00\x00\x00\x04\x01\xe9t\x01", 0)[0] == {"é": True}


# --- wrong bytes ---


@my.thorough
@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_an_amqp_error(raw: bytes) -> None:
    for read in (decode_table, table.split_table, table.decode_fields, decode_value):
        error = my.refusal(read, raw)
        assert error is None or error.code == 502


@my.thorough
@given(st.binary(max_size=200))
def test_any_bytes_with_a_right_length_are_a_table_or_an_amqp_error(raw: bytes) -> None:
    framed = struct.pack(">I", len(raw)) + raw
    for read in (decode_table, table.split_table):
        error = my.refusal(read, framed)
        assert error is None or error.code == 502


@my.thorough
@given(value=my.tables, data=st.data())
def test_a_truncated_table_is_refused(value: dict[str, Any], data: st.DataObject) -> None:
    raw = encode_table(value)
    refused(raw[: data.draw(st.integers(0, len(raw) - 1))])


@pytest.mark.parametrize("tag", sorted(set(range(256)) - set(b"bBsuIilLfdtDTSxAFV")))
def test_an_unknown_type_is_refused(tag: int) -> None:
    refused(in_table(bytes([tag]) + bytes(12)))


@pytest.mark.parametrize(
    "raw",
    [b"f\x7f\xc0\x00\x00", b"f\x7f\x80\x00\x00", b"d\x7f\xf8" + bytes(6), b"d\xff\xf0" + bytes(6)],
    ids=["float nan", "float infinity", "double nan", "double minus infinity"],
)
def test_numbers_that_are_none_are_refused_as_in_rabbitmq(raw: bytes) -> None:
    refused(in_table(raw))


@pytest.mark.parametrize("tag", ["A", "F"])
def test_a_value_cannot_reach_beyond_its_container(tag: str) -> None:
    name = b"\x01n" if tag == "F" else b""
    inner = name + b"S\x00\x00\x00\x02ab"
    raw = tag.encode() + struct.pack(">I", len(inner) - 1) + inner
    refused(in_table(raw))


def nested(depth: int, tag: bytes) -> bytes:
    raw = b"V"
    for _ in range(depth):
        inner = (b"\x01n" if tag == b"F" else b"") + raw
        raw = tag + struct.pack(">I", len(inner)) + inner
    return in_table(raw)


@pytest.mark.parametrize("tag", [b"A", b"F"])
def test_nesting_is_bounded_on_the_way_in(tag: bytes) -> None:
    decode_table(nested(limits.table_depth_max, tag), 0)
    refused(nested(limits.table_depth_max + 1, tag))
    refused(nested(20000, tag))


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"n": v}], ids=["array", "table"])
def test_what_may_be_written_may_be_read_at_any_depth(wrap: Any) -> None:
    value: Any = None
    for _ in range(limits.table_depth_max):
        value = wrap(value)
    assert decode_table(encode_table({"k": value}), 0)[0] == {"k": value}
    with pytest.raises(AmqpError):
        encode_table({"k": wrap(value)})


def test_size_is_bounded_both_ways() -> None:
    with pytest.raises(AmqpError):
        encode_table({"k": bytes(limits.table_bytes_max)})
    refused(struct.pack(">I", limits.table_bytes_max + 1) + bytes(limits.table_bytes_max + 1))


UNSENDABLE = {
    "int too large": 2**63,
    "int too small": -(2**63) - 1,
    "int of 5000 digits": 10**5000,
    "timestamp too small": Timestamp(-1),
    "timestamp too large": Timestamp(2**64),
    "nan": float("nan"),
    "infinity": float("inf"),
    "decimal nan": Decimal("NaN"),
    "decimal negative": Decimal(-1),
    "decimal too large": Decimal(2**32),
    "decimal huge": Decimal("1e999999"),
    "decimal scale": Decimal("1e-256"),
    "decimal digits": Decimal("1." + "1" * 5000),
    "surrogate": "\ud800",
    "object": object(),
    "name too long": {"n" * 256: 1},
    "name surrogate": {"\ud800": 1},
}


@pytest.mark.parametrize("value", UNSENDABLE.values(), ids=UNSENDABLE.keys())
def test_a_value_without_a_field_type_is_an_amqp_error(value: Any) -> None:
    with pytest.raises(AmqpError):
        encode_value(value)


# --- foreign fields ---


@my.thorough
@given(my.tables)
def test_splitting_and_joining_changes_nothing(value: dict[str, Any]) -> None:
    raw = encode_table(value)
    fields = table.split_table(raw)
    assert table.join_table(fields) == raw
    assert {name: decode_value(field) for name, field in fields} == value


def test_fields_keep_widths_order_doubles_and_odd_names() -> None:
    content = b"\x01bL" + bytes(8) + b"\x01\xe9t\x02" + b"\x01as\x00\x01" + b"\x01at\x00"
    raw = struct.pack(">I", len(content)) + content
    fields = table.split_table(raw)
    assert [name for name, _ in fields] == ["b", "\udce9", "a", "a"]
    assert table.join_table(fields) == raw
    assert table.join_table([*fields, ("x-death", encode_value([]))])[
        4:
    ] == content + b"\x07x-deathA" + bytes(4)


def test_splitting_does_not_look_inside_values() -> None:
    raw = in_table(b"F\x00\x00\x00\x01\xff")
    assert table.split_table(raw) == [("k", b"F\x00\x00\x00\x01\xff")]
    refused(raw)
