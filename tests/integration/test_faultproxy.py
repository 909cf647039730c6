"""The fault proxy does what later tests rely on: it cuts without closing, delays, narrows and resets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.faultproxy import FaultProxy, fault_proxy


@pytest.fixture
def proxied() -> Iterator[tuple[FaultProxy, socket.socket]]:
    """A proxy in front of a server that echoes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=echo, args=(server,), daemon=True).start()
        with fault_proxy(server.getsockname()) as proxy, connect(proxy) as client:
            yield proxy, client
        server.shutdown(socket.SHUT_RDWR)


def echo(server: socket.socket) -> None:
    def serve(served: socket.socket) -> None:
        with served, contextlib.suppress(OSError):
            while data := served.recv(65536):
                served.sendall(data)

    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(proxy.address, timeout=10)


def ask(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return client.recv(65536)


def hears_nothing(client: socket.socket) -> bool:
    client.settimeout(0.05)
    try:
        return not client.recv(1) and False
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)


def test_a_cut_stops_bytes_and_closes_nothing_and_they_go_on_when_it_heals(
    proxied: tuple[FaultProxy, socket.socket],
) -> None:
    proxy, client = proxied
    assert ask(client, b"1") == b"1"
    proxy.cut()
    client.sendall(b"2")
    with connect(proxy) as late:
        late.sendall(b"3")
        assert hears_nothing(client)
        assert hears_nothing(late)
        proxy.heal()
        assert client.recv(10) == b"2"
        assert late.recv(10) == b"3"


def test_a_cut_of_one_way_lets_the_other_pass(proxied: tuple[FaultProxy, socket.socket]) -> None:
    proxy, client = proxied
    assert ask(client, b"1") == b"1"
    proxy.cut("back")
    client.sendall(b"2")
    assert hears_nothing(client)
    proxy.heal()
    assert client.recv(10) == b"2"


def test_a_lost_connection_stays_open_and_dead_while_new_ones_work(
    proxied: tuple[FaultProxy, socket.socket],
) -> None:
    proxy, client = proxied
    assert ask(client, b"1") == b"1"
    proxy.cut(lose=True)
    proxy.heal()
    client.sendall(b"2")
    with connect(proxy) as late:
        assert ask(late, b"3") == b"3"
    assert hears_nothing(client)


def test_a_delay_comes_in_both_directions_and_keeps_the_order(
    proxied: tuple[FaultProxy, socket.socket],
) -> None:
    proxy, client = proxied
    proxy.delay(0.05)
    began = time.monotonic()
    assert ask(client, b"1") == b"1"
    assert time.monotonic() - began >= 0.1


def test_a_narrow_path_takes_its_time(proxied: tuple[FaultProxy, socket.socket]) -> None:
    proxy, client = proxied
    proxy.throttle(2_000_000)
    began = time.monotonic()
    sending = threading.Thread(target=client.sendall, args=(bytes(300_000),))
    sending.start()
    left = 300_000
    while left:
        left -= len(client.recv(65536))
    sending.join()
    assert time.monotonic() - began >= 0.1


def test_a_reset_reaches_both_sides_and_new_connections_work(
    proxied: tuple[FaultProxy, socket.socket],
) -> None:
    proxy, client = proxied
    assert ask(client, b"1") == b"1"
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with connect(proxy) as late:
        assert ask(late, b"2") == b"2"
