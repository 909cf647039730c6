"""Basic properties: agreement with `pamqp`, and changes that leave the other properties' bytes alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from mirrormq.base.errors import AmqpError
from mirrormq.wire import properties as props
from mirrormq.wire.properties import Properties, decode_properties, encode_properties
from mirrormq.wire.spec import PROPERTY_FIELDS
from mirrormq.wire.table import encode_table
from tests.unit.wire import strategies as my

PAMQP_NAMES = {"type": "message_type"}

any_properties = st.builds(
    Properties, **{name: st.none() | my.FIELDS[kind] for name, kind in PROPERTY_FIELDS}
)


def unchecked() -> Any:
    base = commands.Basic.Properties
    return type("Properties", (base,), {"validate": lambda self: None})()


def error_of(raw: bytes) -> AmqpError:
    with pytest.raises(AmqpError) as caught:
        decode_properties(raw)
    return caught.value


@my.thorough
@given(any_properties)
def test_reading_returns_what_was_written(properties: Properties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@my.thorough
@given(any_properties)
def test_pamqp_reads_what_we_write(properties: Properties) -> None:
    raw = encode_properties(properties)
    theirs = unchecked()
    theirs.unmarshal(int.from_bytes(raw[:2], "big"), raw[2:])
    for name, _ in PROPERTY_FIELDS:
        read = my.from_pamqp(getattr(theirs, PAMQP_NAMES.get(name, name)))
        ours = getattr(properties, name)
        # pamqp starts out with an empty cluster id instead of none.
        assert read == ours or (name == "cluster_id" and not read and not ours), name


@my.thorough
@given(any_properties)
def test_we_read_what_pamqp_writes(properties: Properties) -> None:
    theirs = unchecked()
    for name, kind in PROPERTY_FIELDS:
        # pamqp takes an empty string for an absent one.
        value = getattr(properties, name) or (
            0 if kind == "octet" and getattr(properties, name) == 0 else None
        )
        value = my.with_single_floats(value)
        setattr(properties, name, value)
        setattr(theirs, PAMQP_NAMES.get(name, name), my.to_pamqp(value))
    assert decode_properties(theirs.marshal()) == properties


@my.thorough
@given(st.binary(max_size=200))
def test_any_bytes_are_properties_or_an_amqp_error(raw: bytes) -> None:
    error = my.refusal(decode_properties, raw)
    assert error is None or error.code == 502


@my.thorough
@given(flags=st.integers(0, 0xFFFF), rest=st.binary(max_size=200))
def test_any_flags_are_properties_or_an_amqp_error(flags: int, rest: bytes) -> None:
    error = my.refusal(decode_properties, flags.to_bytes(2, "big") + rest)
    assert error is None or error.code == 502


@my.thorough
@given(properties=any_properties, data=st.data())
def test_truncated_properties_are_refused(properties: Properties, data: st.DataObject) -> None:
    raw = encode_properties(properties)
    error_of(raw[: data.draw(st.integers(0, len(raw) - 1))])


@my.thorough
@given(any_properties)
def test_bytes_after_the_properties_are_refused(properties: Properties) -> None:
    error_of(encode_properties(properties) + b"\x00")


def test_no_properties_are_two_bytes() -> None:
    assert encode_properties(Properties()) == b"\x00\x00"
    assert decode_properties(b"\x00\x00") == Properties()


def test_an_empty_string_is_not_an_absent_one() -> None:
    assert decode_properties(encode_properties(Properties(reply_to=""))).reply_to == ""


def test_text_that_is_not_utf8_can_be_read() -> None:
    assert decode_properties(b"\x80\x00\x01\xe9").content_type == "é"


def test_the_unused_flag_is_ignored_as_in_rabbitmq() -> None:
    assert decode_properties(b"\x00\x02") == Properties()


def test_empty_continuation_words_are_skipped() -> None:
    assert decode_properties(b"\x80\x01\x00\x01\x00\x00\x01x") == Properties(content_type="x")


@pytest.mark.parametrize(
    "raw", [b"\x00\x01", b"\x00\x01\x00", b"\x00\x01\x80\x00\x01x", b"\x00\x01\x80\x01\x00\x00"]
)
def test_properties_nobody_has_defined_are_refused(raw: bytes) -> None:
    error_of(raw)


# --- changing single properties ---


@my.thorough
@given(any_properties)
def test_splitting_and_joining_changes_nothing(properties: Properties) -> None:
    raw = encode_properties(properties)
    assert props.join_properties(props.split_properties(raw)) == raw


def test_replacing_headers_leaves_the_other_bytes_alone() -> None:
    # The content type is not UTF-8: decoding and encoding it again would change it.
    raw = b"\xa0\x00\x01\xe9" + encode_table({"a": 1})
    table = encode_table({"b": 2})
    assert props.raw_headers(raw) == encode_table({"a": 1})
    assert props.replace_headers(raw, table) == b"\xa0\x00\x01\xe9" + table
    assert props.replace_headers(raw, None) == b"\x80\x00\x01\xe9"


@my.thorough
@given(properties=any_properties, table=my.tables)
def test_headers_can_be_replaced_and_expiration_dropped(
    properties: Properties, table: dict[str, Any]
) -> None:
    raw = encode_properties(properties)
    changed = props.replace_headers(raw, encode_table(table), drop=("expiration",))
    properties.headers = table
    properties.expiration = None
    assert decode_properties(changed) == properties


def test_headers_can_be_added() -> None:
    assert props.raw_headers(b"\x00\x00") is None
    assert decode_properties(props.replace_headers(b"\x00\x00", encode_table({"a": 1}))) == Properties(
        headers={"a": 1}
    )
