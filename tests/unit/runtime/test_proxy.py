"""The PROXY protocol: bounded, exact, and never a byte too many."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.runtime.proxy import V2, Origin, Parsed, ProxyError, parse, wanted

LOCAL_COMMAND = V2 + b"\x20\x00\x00\x00"


def v2(family: int, body: bytes, command: int = 0x21) -> bytes:
    return V2 + bytes([command, family]) + len(body).to_bytes(2, "big") + body


def feed(stream: bytes) -> tuple[Parsed, int]:
    """Read as the acceptor does: only as much as surely belongs to the header."""
    data, at = b"", 0
    while True:
        step = wanted(data)
        assert step > 0
        data, at = data + stream[at : at + step], at + step
        found = parse(data)
        if found is not None:
            return found, len(data)


def test_a_line_of_version_1_names_both_ends() -> None:
    found = parse(b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 5672\r\nAMQP")
    assert found == Parsed(42, Origin("192.0.2.1", 1000, "192.0.2.2", 5672))
    found = parse(b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n")
    assert found is not None
    assert found.origin == Origin("2001:db8::1", 1, "::1", 2)


@pytest.mark.parametrize(
    "header", [b"PROXY UNKNOWN\r\n", b"PROXY UNKNOWN ff::1 ff::2 1 2\r\n", LOCAL_COMMAND]
)
def test_a_proxy_may_speak_for_itself(header: bytes) -> None:
    assert parse(header) == Parsed(len(header), None)


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x09\x01",
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1000\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 70000\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 -1 5\r\n",
        b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"PROXY " + b"x" * 200,
        V2 + b"\x31\x11\x00\x00",
        V2 + b"\x22\x11\x00\x00",
        v2(0x11, b"short"),
        V2 + b"\x21\x11\xff\xff",
    ],
)
def test_anything_else_is_refused_at_once(header: bytes) -> None:
    with pytest.raises(ProxyError):
        parse(header)


def test_a_unix_socket_behind_a_proxy_has_no_address() -> None:
    header = v2(0x31, b"\x00" * 216)
    assert parse(header) == Parsed(len(header), None)


def test_the_largest_header_is_bounded() -> None:
    room = limits.proxy_header_bytes_max - 16
    address = bytes(8) + bytes(4)
    assert parse(v2(0x11, address + bytes(room - 12))) is not None
    with pytest.raises(ProxyError, match="4097 bytes"):
        parse(v2(0x11, address + bytes(room - 11))[:16])


addresses = st.ip_addresses(v=4)
ports = st.integers(0, 65535)


@given(addresses, addresses, ports, ports, st.binary(max_size=40), st.booleans(), st.binary(max_size=60))
def test_reading_a_header_never_takes_a_byte_behind_it(
    source: ipaddress.IPv4Address,
    target: ipaddress.IPv4Address,
    source_port: int,
    target_port: int,
    rest: bytes,
    binary: bool,
    extension: bytes,
) -> None:
    if binary:
        body = source.packed + target.packed + source_port.to_bytes(2, "big") + target_port.to_bytes(2, "big")
        header = v2(0x11, body + extension)
    else:
        header = f"PROXY TCP4 {source} {target} {source_port} {target_port}\r\n".encode()
    found, read = feed(header + rest)
    assert read == found.size == len(header)
    assert found.origin == Origin(str(source), source_port, str(target), target_port)


@given(st.binary(max_size=300))
def test_no_input_does_anything_but_parse_or_be_refused(data: bytes) -> None:
    try:
        found = parse(data) if data else None
    except ProxyError:
        return
    assert found is None or 0 < found.size <= len(data)
