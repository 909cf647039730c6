"""Messages: bytes in, the same bytes out, and malformed properties refused."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.kernel.crc32c import crc32c
from mirrormq.kernel.message import Message


@given(st.binary(max_size=255), st.binary(max_size=255), st.binary(max_size=2000))
def test_a_message_returns_the_bytes_it_was_made_of(exchange, key, body):
    message = Message(exchange, key, b"\x00\x00", body)
    assert (message.exchange, message.routing_key, message.properties, message.body) == (
        exchange,
        key,
        b"\x00\x00",
        body,
    )
    assert message.body_size == len(body)


def test_delivery_mode_priority_and_expiration_are_read_from_raw_properties():
    message = Message(b"", b"q", b"\x19\x00\x02\x07\x0312x", b"")
    assert (message.persistent, message.priority, message.ttl_us) == (True, 7, -1)
    assert Message(b"", b"q", b"\x01\x00\x0312\x33", b"").ttl_us == 123_000


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"\x00",
        b"\x00\x01",
        b"\x00\x00x",
        b"\x80\x00",
        b"\x80\x00\x05abc",
        b"\x20\x00\x00\x00\x00\x05\x01",
        b"\x20\x00\x00\x00\x00\x03\x01aZ",
        b"\x20\x00\x00\x00\x00\x08\x01aS\x00\x00\x00\x09x",
        b"\x10\x00",
        b"\x00\x40\x00\x00",
    ],
)
def test_malformed_properties_are_refused(properties):
    with pytest.raises(ValueError, match="malformed"):
        Message(b"", b"q", properties, b"")


def test_names_longer_than_a_short_string_are_refused():
    with pytest.raises(ValueError, match="255"):
        Message(b"x" * 256, b"", b"\x00\x00", b"")


def test_messages_are_invisible_to_the_garbage_collector():
    assert not gc.is_tracked(Message(b"", b"", b"\x00\x00", b""))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_crc32c_is_the_same_in_hardware_and_software_and_in_pieces(data, cut):
    assert crc32c(data) == crc32c(data, software=True)
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


@given(st.integers(0, 10_000), st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_crc32c_of_long_buffers_is_the_same_in_strands_as_byte_by_byte(size, seed, random):
    data = random.randbytes(size)
    assert crc32c(data, seed) == crc32c(data, seed, software=True)


def test_crc32c_gives_the_published_check_value():
    assert crc32c(b"123456789") == 0xE3069283
