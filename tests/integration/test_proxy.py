"""The PROXY protocol end to end: rules about addresses use the client's own address, never the proxy's."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mirrormq.wire import methods
from tests.integration.process import Process, running
from tests.support.raw import Closed, RawClient

PROXIED = ["--set", "proxy_protocol=true", "--set", "proxy_protocol_sources=127.0.0.0/8"]
V2_HEAD = b"\r\n\r\n\x00\r\nQUIT\n"


def v1(host: str) -> bytes:
    family = "TCP6" if ":" in host else "TCP4"
    target = "::1" if ":" in host else "127.0.0.1"
    return f"PROXY {family} {host} {target} 4711 5672\r\n".encode()


def v2(host: str) -> bytes:
    family, kind = (0x21, socket.AF_INET6) if ":" in host else (0x11, socket.AF_INET)
    target = "::1" if ":" in host else "127.0.0.1"
    body = socket.inet_pton(kind, host) + socket.inet_pton(kind, target) + b"\x12\x67\x16\x28"
    return V2_HEAD + bytes([0x21, family]) + len(body).to_bytes(2, "big") + body


def through_proxy(node: Process, header: bytes) -> RawClient:
    sock = socket.create_connection(("127.0.0.1", node.port), timeout=10)
    sock.sendall(header)
    return RawClient(sock)


@pytest.mark.parametrize("make", [v1, v2])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_guest_may_log_in_from_a_local_address_behind_the_proxy(
    tmp_path: Path, make: object, host: str
) -> None:
    assert callable(make)
    with running(tmp_path, *PROXIED) as node, through_proxy(node, make(host)) as client:
        client.handshake()
        client.open_channel(1)


@pytest.mark.parametrize("make", [v1, v2])
@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::7"])
def test_guest_may_not_log_in_from_elsewhere_although_the_proxy_is_local(
    tmp_path: Path, make: object, host: str
) -> None:
    assert callable(make)
    with running(tmp_path, *PROXIED) as node, through_proxy(node, make(host)) as client:
        client.send(b"AMQP\x00\x00\x09\x01")
        client.expect(0, methods.ConnectionStart)
        start_ok = methods.ConnectionStartOk(
            client_properties={"capabilities": {"authentication_failure_close": True}},
            mechanism="PLAIN",
            response=b"\x00guest\x00guest",
        )
        close = client.call(0, start_ok, methods.ConnectionClose)
        assert close.reply_code == 403


def test_a_local_client_without_a_header_is_refused_where_local_proxies_are_listed(tmp_path: Path) -> None:
    with running(tmp_path, *PROXIED) as node:
        with through_proxy(node, b"") as client, pytest.raises((Closed, ConnectionError)):
            client.handshake()
        assert "does not begin with a PROXY header" in node.log


def test_a_header_from_a_source_that_is_not_listed_is_no_amqp(tmp_path: Path) -> None:
    options = ["--set", "proxy_protocol=true", "--set", "proxy_protocol_sources=192.0.2.0/24"]
    with running(tmp_path, *options) as node:
        with through_proxy(node, v1("192.0.2.9")) as client:
            assert client.sock.recv(8) == b"AMQP\x00\x00\x09\x01", "the answer to a wrong protocol header"
        with through_proxy(node, b"") as client:
            client.handshake()


def test_slow_headers_do_not_hold_up_other_clients(tmp_path: Path) -> None:
    with running(tmp_path, *PROXIED, "--set", "handshake_timeout=500") as node:
        slow = [through_proxy(node, b"PROXY TCP4 127.0.") for _ in range(50)]
        with through_proxy(node, v1("127.0.0.1")) as client:
            client.handshake()
        for stuck in slow:
            with stuck:
                assert stuck.sock.recv(1) == b""
