"""The method codec agrees with `pamqp`, round trips, and answers every wrong payload with an AMQP error."""

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirrormq.base.errors import AmqpError
from mirrormq.wire import methods
from mirrormq.wire.methods import METHOD_TYPES, Method, decode, encode
from mirrormq.wire.spec import METHODS, METHODS_BY_NAME
from tests.unit.wire import strategies as my

IDS = sorted(METHODS)
SHARED = sorted(my.PAMQP)


def named(ids: tuple[int, int]) -> str:
    return METHODS[ids].name


def test_every_method_pamqp_knows_is_known_and_only_access_is_not_known_to_pamqp() -> None:
    assert set(SHARED) <= set(IDS)
    assert {named(ids) for ids in set(IDS) - set(SHARED)} == {"access.request", "access.request-ok"}


@pytest.mark.parametrize("ids", SHARED, ids=named)
def test_fields_and_their_types_are_those_of_pamqp(ids: tuple[int, int]) -> None:
    theirs = my.PAMQP[ids]
    names = [my.PAMQP_NAMES.get(name, name) for name, _ in METHODS[ids].fields]
    assert names == theirs.attributes()
    assert [kind for _, kind in METHODS[ids].fields] == [theirs.amqp_type(name) for name in names]
    assert METHODS[ids].sync == theirs.synchronous


@pytest.mark.parametrize("ids", SHARED, ids=named)
@my.per_method
@given(data=st.data())
def test_pamqp_reads_what_we_write(ids: tuple[int, int], data: st.DataObject) -> None:
    method = data.draw(my.methods_of(METHOD_TYPES[ids]))
    payload = encode(method)
    assert struct.unpack_from(">HH", payload) == ids
    theirs = my.pamqp_method(ids)
    theirs.unmarshal(payload[4:])
    for name, kind in METHODS[ids].fields:
        read = my.from_pamqp(getattr(theirs, my.PAMQP_NAMES.get(name, name)))
        if kind == "longstr" and isinstance(read, str):
            read = read.encode()
        assert read == getattr(method, name), name


@pytest.mark.parametrize("ids", SHARED, ids=named)
@my.per_method
@given(data=st.data())
def test_we_read_what_pamqp_writes(ids: tuple[int, int], data: st.DataObject) -> None:
    theirs = my.pamqp_method(ids)
    expected: dict[str, Any] = {}
    for name, kind in METHODS[ids].fields:
        # pamqp writes floats in 32 bits and takes text, not bytes, for a long string.
        value = data.draw(my.text if kind == "longstr" else my.FIELDS[kind])
        value = my.with_single_floats(value)
        expected[name] = value.encode() if kind == "longstr" else value
        setattr(theirs, my.PAMQP_NAMES.get(name, name), my.to_pamqp(value))
    assert decode(struct.pack(">HH", *ids) + theirs.marshal()) == METHOD_TYPES[ids](**expected)


@my.thorough
@given(my.any_method)
def test_decoding_returns_what_was_encoded(method: Method) -> None:
    assert decode(encode(method)) == method


@my.thorough
@given(my.any_method)
def test_a_memoryview_is_read_like_bytes(method: Method) -> None:
    assert decode(memoryview(encode(method))) == method


@pytest.mark.parametrize("tag", [0, 2**63 - 1, 2**63, 2**64 - 1])
def test_delivery_tags_use_all_64_bits(tag: int) -> None:
    assert decode(encode(methods.BasicAck(delivery_tag=tag))) == methods.BasicAck(delivery_tag=tag)


def test_bits_are_packed_from_the_lowest_one_up() -> None:
    payload = encode(methods.QueueDeclare(queue="q", durable=True, auto_delete=True, nowait=True))
    assert payload == bytes.fromhex("0032000a 0000 0171 1a 00000000")


def test_unused_bits_are_ignored_as_in_rabbitmq() -> None:
    assert decode(bytes.fromhex("0014 0014 ff")) == methods.ChannelFlow(active=True)


@pytest.mark.parametrize("ids", IDS, ids=named)
def test_a_method_without_arguments_given_can_be_sent(ids: tuple[int, int]) -> None:
    method = METHOD_TYPES[ids]()
    assert decode(encode(method)) == method
    assert method.name == METHODS[ids].name
    assert METHODS_BY_NAME[method.name] is method.spec
    assert (method.class_id_of, method.method_id_of) == ids


def test_methods_with_content_are_publish_return_deliver_and_get_ok() -> None:
    with_content = {spec.name for spec in METHODS.values() if spec.has_content}
    assert with_content == {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}


# --- wrong payloads ---


def error_of(payload: bytes) -> AmqpError:
    with pytest.raises(AmqpError) as caught:
        decode(payload)
    return caught.value


@my.thorough
@given(st.binary(max_size=300))
@example(b"")
@example(b"\x00\x0a\x00")
def test_any_bytes_are_a_method_or_an_amqp_error(payload: bytes) -> None:
    error = my.refusal(decode, payload)
    if error is not None:
        assert error.scope == "connection"
        assert len(error.reply_text.encode()) <= 255


@my.thorough
@given(ids=st.sampled_from(IDS), arguments=st.binary(max_size=200))
def test_any_arguments_of_a_known_method_are_read_or_refused(ids: tuple[int, int], arguments: bytes) -> None:
    error = my.refusal(decode, struct.pack(">HH", *ids) + arguments)
    if error is not None:
        assert error.code in {501, 502}
        assert (error.class_id, error.method_id) == ids


@my.thorough
@given(method=my.any_method, data=st.data())
def test_a_damaged_byte_never_escapes_as_another_exception(method: Method, data: st.DataObject) -> None:
    payload = bytearray(encode(method))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    my.refusal(decode, bytes(payload))


@my.thorough
@given(method=my.any_method, data=st.data())
def test_arguments_cut_short_are_a_frame_error(method: Method, data: st.DataObject) -> None:
    payload = encode(method)
    if len(payload) > 4:
        assert error_of(payload[: data.draw(st.integers(4, len(payload) - 1))]).code == 501


@my.thorough
@given(my.any_method)
def test_bytes_after_the_arguments_are_a_frame_error(method: Method) -> None:
    assert error_of(encode(method) + b"\x00").code == 501


# Recorded from RabbitMQ 3.10.8's own decoder.
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("000001", "FRAME_ERROR - cannot decode <<0,0,1>>"),
        ("000001ff0000000000", "FRAME_ERROR - Malformed UTF-8 in shortstr"),
        ("00000141000000000007", "FRAME_ERROR - cannot decode <<0,0,1,65,0,0,0,0,0,7>>"),
        # The shape is looked at before the text: left-over bytes win over bad UTF-8.
        ("000001ff000000000007", "FRAME_ERROR - cannot decode <<0,0,1,255,0,0,0,0,0,7>>"),
    ],
)
def test_malformed_arguments_have_rabbitmqs_text(arguments: str, text: str) -> None:
    error = error_of(b"\x00\x32\x00\x0a" + bytes.fromhex(arguments))
    assert error.reply_text == text
    assert (error.class_id, error.method_id) == (50, 10)


def test_a_long_undecodable_payload_is_cut_as_rabbitmq_cuts_it() -> None:
    text = error_of(b"\x00\x32\x00\x0a" + bytes(1000)).reply_text
    assert text == ("FRAME_ERROR - cannot decode <<" + "0," * 200)[:252] + "..."


def test_an_unknown_method_is_a_command_invalid() -> None:
    error = error_of(b"\x00\x32\x00\x63")
    assert (error.code, error.scope, error.class_id, error.method_id) == (503, "connection", 50, 99)


def test_a_table_that_lies_about_its_content_is_a_syntax_error() -> None:
    error = error_of(bytes.fromhex("0032000a 0000 0171 00 00000003 014142"))
    assert (error.code, error.class_id, error.method_id) == (502, 50, 10)


# --- values that do not fit ---


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueDeclare(queue="x" * 256),
        methods.QueueDeclare(queue="é" * 128),
        methods.QueueDeclare(queue="\ud800"),
        methods.BasicQos(prefetch_count=65536),
        methods.BasicAck(delivery_tag=-1),
        methods.QueueDeclare(arguments={"x": object()}),
    ],
    ids=["256 bytes", "256 bytes in 128 characters", "lone surrogate", "17 bits", "negative", "object"],
)
def test_a_value_that_does_not_fit_its_field_is_not_sent(method: Method) -> None:
    with pytest.raises(AmqpError):
        encode(method)
