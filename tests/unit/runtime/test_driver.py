"""Driver and listener with a small fake node over real sockets of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from mirrormq.base import limits
from mirrormq.node import effects as fx
from mirrormq.runtime.acceptor import ProxyAcceptor
from mirrormq.runtime.driver import Driver
from mirrormq.runtime.listener import Door, plain_host
from mirrormq.runtime.settings import Settings
from tests.unit.runtime.fakes import EchoNode, memory_log

LOCAL = ipaddress.ip_network("127.0.0.0/8")


class Disk:
    """Takes orders and reports flushes when told."""

    def __init__(self) -> None:
        self.orders: list[fx.Append | fx.Flush | fx.Replace | fx.Remove] = []

    def order(self, effect: fx.Append | fx.Flush | fx.Replace | fx.Remove) -> None:
        self.orders.append(effect)


class Stage:
    """A driver, a fake node behind it and a door in front."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.node = EchoNode()
        self.log, self.lines = memory_log()
        self.driver = Driver(self.node, loop, self.log)
        self.disk = Disk()
        self.driver.disk = self.disk
        self.node.heard = self._heard
        self._waiting: list[tuple[tuple[Any, ...], asyncio.Future[None]]] = []
        self.servers: list[asyncio.Server | ProxyAcceptor] = []
        self.writers: list[asyncio.StreamWriter] = []

    def _heard(self, what: tuple[Any, ...]) -> None:
        for wanted, future in self._waiting:
            if what[: len(wanted)] == wanted and not future.done():
                future.set_result(None)

    async def hear(self, *wanted: Any) -> None:
        """Wait until the node gets this input, unless it had it already."""
        if any(what[: len(wanted)] == wanted for what in self.node.inputs):
            return
        future = self.loop.create_future()
        self._waiting.append((wanted, future))
        await asyncio.wait_for(future, 10)

    async def open(self, settings: Settings | None = None, files_max: int = 10_000) -> Callable[[], Any]:
        settings = settings or Settings()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        door = Door(self.driver, settings, files_max)
        if settings.proxy_protocol:
            acceptor = ProxyAcceptor(door, listening, None)
            acceptor.start()
            self.servers.append(acceptor)
        else:
            self.servers.append(await door.serve(listening, None))
        port = listening.getsockname()[1]

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            self.writers.append(writer)
            return reader, writer

        return connect

    async def close(self) -> None:
        for server in self.servers:
            server.close()
        self.driver.close()
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage(asyncio.get_running_loop())
    yield made
    await made.close()


async def expect_end(reader: asyncio.StreamReader) -> None:
    """The other side is gone, with or without a reset, and has sent nothing."""
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


async def test_what_a_client_sends_reaches_the_node_and_its_answer_the_client(stage: Stage) -> None:
    connect = await stage.open()
    reader, writer = await connect()
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    peer = stage.node.peers[1]
    assert (peer.host, peer.local_host, peer.tls, peer.cert_name) == ("127.0.0.1", "127.0.0.1", False, None)
    assert peer.port == writer.get_extra_info("sockname")[1]
    writer.close()
    await stage.hear("closed", 1)
    assert not stage.driver.clients


async def test_inputs_of_one_pass_share_one_end(stage: Stage) -> None:
    connect = await stage.open()
    clients = [await connect() for _ in range(5)]
    await stage.hear("open", 5)
    before = stage.node.passes
    for _, writer in clients:
        writer.write(b"x")
    for reader, _ in clients:
        await reader.readexactly(1)
    assert stage.node.passes - before <= 5


async def test_the_node_gets_further_passes_while_it_has_work_left(stage: Stage) -> None:
    connect = await stage.open()
    reader, writer = await connect()
    stage.node.left_over = 10
    writer.write(b"x")
    await reader.readexactly(1)
    while stage.node.left_over:
        writer.write(b"y")
        await reader.readexactly(1)
    assert stage.node.passes >= 10


async def test_a_paused_client_is_not_read_until_it_is_resumed(stage: Stage) -> None:
    connect = await stage.open()
    reader, writer = await connect()
    writer.write(b"pause")
    await reader.readexactly(5)
    writer.write(b"more")
    other_reader, other = await connect()
    other.write(b"other")
    await other_reader.readexactly(5)
    assert ("bytes", 1, b"more") not in stage.node.inputs
    stage.node.effects.resume(1)
    other.write(b"x")
    assert await reader.readexactly(4) == b"more"


async def test_a_closed_client_gets_the_last_bytes_although_it_still_sends(stage: Stage) -> None:
    connect = await stage.open()
    reader, writer = await connect()
    writer.write(b"close" + b"z" * 3)
    await stage.hear("bytes", 1)
    writer.write(b"unread" * 1000)
    assert await reader.read() == b"closezzz"
    writer.close()
    await stage.hear("closed", 1)
    assert [what for what in stage.node.inputs if what[0] == "bytes"] == [("bytes", 1, b"closezzz")]


async def test_a_client_that_never_hangs_up_is_cut_off_after_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "close_linger_ms_max", 20)
    connect = await stage.open()
    _, writer = await connect()
    writer.write(b"close")
    await stage.hear("closed", 1)


async def test_a_mistake_while_serving_one_client_closes_only_that_one(stage: Stage) -> None:
    connect = await stage.open()
    reader, writer = await connect()
    bad_reader, bad = await connect()
    bad.write(b"boom")
    await expect_end(bad_reader)
    writer.write(b"fine")
    assert await reader.readexactly(4) == b"fine"
    assert any("internal error" in line and "RuntimeError: boom" in line for line in stage.lines)


async def test_a_slow_reader_pauses_its_own_output_only(stage: Stage) -> None:
    connect = await stage.open()
    reader, writer = await connect()
    writer.write(b"x")
    await reader.readexactly(1)
    amount = limits.client_output_bytes_high * 20
    stage.node.say(1, b"y" * amount)
    other_reader, other = await connect()
    other.write(b"go")
    await other_reader.readexactly(2)
    await stage.hear("paused", 1)
    assert ("writable", 1) not in stage.node.inputs
    assert len(await reader.readexactly(amount)) == amount
    await stage.hear("writable", 1)


async def test_disk_effects_keep_their_order_and_are_reported(stage: Stage) -> None:
    connect = await stage.open()
    reader, writer = await connect()
    writer.write(b"flush")
    second_reader, second = await connect()
    second.write(b"x")
    await second_reader.readexactly(1)
    assert stage.disk.orders == [fx.Append("log", b"flush"), fx.Flush("log", 1)]
    stage.driver.disk_done([1])
    assert await reader.readexactly(7) == b"flushed"


async def test_a_part_of_a_file_that_was_read_comes_back_to_the_node(stage: Stage) -> None:
    stage.node.effects.read("log", 5, 10, 7)
    stage.driver.gauges(1, 2)
    assert stage.disk.orders == [fx.Read("log", 5, 10, 7)]
    stage.driver.disk_read(7, b"data", None)
    stage.driver.disk_read(8, None, "Input/output error")
    assert stage.node.inputs[-2:] == [("read", 7, b"data", None), ("read", 8, None, "Input/output error")]


async def turned() -> None:
    """Wait until everything that was due has run."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn


async def test_a_read_that_leaves_nothing_to_a_pass_has_none_but_its_effects_are_carried_out(
    stage: Stage,
) -> None:
    stage.driver.gauges(1, 2)
    await turned()
    before = stage.node.passes
    stage.node.reads_quietly = True
    stage.node.effects.read("log", 5, 10, 7)
    stage.driver.disk_read(6, b"data", None)
    await turned()
    assert stage.disk.orders == [fx.Read("log", 5, 10, 7)]
    assert stage.node.passes == before
    stage.node.reads_quietly = False
    stage.driver.disk_read(7, b"data", None)
    await turned()
    assert stage.node.passes == before + 1


async def test_passwords_are_hashed_off_the_loop(stage: Stage) -> None:
    stage.node.effects.work(7, "argon2_hash", ("secret", 8, 1, 1))
    stage.driver.gauges(1, 2)
    await stage.hear("work", 7)
    encoded = next(what[2] for what in stage.node.inputs if what[0] == "work")
    assert encoded.startswith("$argon2id$v=19$m=8,t=1,p=1$")
    for token, password, fits in ((8, b"secret", True), (9, b"wrong", False)):
        stage.node.effects.work(token, "argon2_verify", (encoded, password))
        stage.driver.gauges(1, 2)
        await stage.hear("work", token, fits)
    stage.node.effects.work(10, "argon2_verify", ("no hash at all", b"x"))
    stage.driver.gauges(1, 2)
    await stage.hear("work", 10, False)


async def test_the_node_is_woken_at_its_own_time_and_ticks_in_between(stage: Stage) -> None:
    stage.driver.start()
    await stage.hear("tick")
    stage.node.timer = stage.driver.now().mono + 1000
    stage.driver.gauges(1, 2)
    await stage.hear("timer")


async def test_an_administrators_request_is_answered(stage: Stage) -> None:
    assert await stage.driver.ask("anything") == "anything"  # type: ignore[arg-type,comparison-overlap]


async def test_draining_tells_every_client_and_waits_for_the_last(stage: Stage) -> None:
    connect = await stage.open()
    clients = [await connect() for _ in range(3)]
    await stage.hear("open", 3)
    draining = asyncio.create_task(stage.driver.drain("bye"))
    for reader, writer in clients:
        assert await reader.read() == b"bye"
        assert not draining.done()
        writer.close()
    await asyncio.wait_for(draining, 10)


async def test_notes_and_wishes_to_stop_reach_the_outside(stage: Stage) -> None:
    stage.node.effects.note("warning", "something", password="hunter2", queue="q")
    stage.node.effects.stop("enough")
    stage.driver.gauges(1, 2)
    assert "[warning] something password=[hidden] queue=q" in stage.lines[0]
    assert stage.driver.asked_to_stop.result() == "enough"
    stage.driver.fail("disk is broken")
    stage.driver.fail("again")
    assert stage.driver.failed.result() == "disk is broken"


async def test_new_connections_are_refused_when_files_run_out(stage: Stage) -> None:
    connect = await stage.open(files_max=0)
    for _ in range(3):
        reader, _writer = await connect()
        await expect_end(reader)
    assert not stage.node.inputs
    refused = [line for line in stage.lines if "new connections are refused" in line]
    assert len(refused) == 1, "one line per second, not one per connection"


async def test_connection_max_is_kept(stage: Stage) -> None:
    connect = await stage.open(Settings(connection_max=1))
    reader, writer = await connect()
    writer.write(b"first")
    await reader.readexactly(5)
    second, _ = await connect()
    await expect_end(second)
    assert "connection_max of 1" in stage.lines[0]


PROXIED = Settings(proxy_protocol=True, proxy_sources=(LOCAL,))
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 5672\r\n"
V2 = (
    b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0f"
    + bytes([192, 0, 2, 7, 198, 51, 100, 1])
    + (4711).to_bytes(2, "big")
    + (5672).to_bytes(2, "big")
    + b"\x03\x00\x00"
)


@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_a_proxied_client_is_known_by_its_own_address(stage: Stage, header: bytes, step: int) -> None:
    connect = await stage.open(PROXIED)
    reader, writer = await connect()
    sent = header + b"hello"
    for at in range(0, len(sent), step):
        writer.write(sent[at : at + step])
        await writer.drain()
    assert await reader.readexactly(5) == b"hello"
    peer = stage.node.peers[1]
    assert (peer.host, peer.port, peer.local_host, peer.local_port) == (
        "192.0.2.7",
        4711,
        "198.51.100.1",
        5672,
    )


async def test_a_listed_source_without_a_header_is_refused(stage: Stage) -> None:
    connect = await stage.open(PROXIED)
    reader, writer = await connect()
    writer.write(b"AMQP\x00\x00\x09\x01 and more")
    await expect_end(reader)
    assert not stage.node.inputs
    assert "does not begin with a PROXY header" in stage.lines[0]


async def test_a_header_that_does_not_come_in_time_is_not_waited_for(stage: Stage) -> None:
    connect = await stage.open(Settings(proxy_protocol=True, proxy_sources=(LOCAL,), handshake_timeout_ms=50))
    reader, writer = await connect()
    writer.write(b"PROXY TCP4 ")
    assert await reader.read() == b""
    assert "did not come in time" in stage.lines[0]


async def test_a_source_that_is_not_listed_speaks_for_itself(stage: Stage) -> None:
    elsewhere = (ipaddress.ip_network("192.0.2.0/24"),)
    connect = await stage.open(Settings(proxy_protocol=True, proxy_sources=elsewhere))
    reader, writer = await connect()
    writer.write(V1)
    assert await reader.readexactly(len(V1)) == V1, "a header of a stranger is ordinary input"
    assert stage.node.peers[1].host == "127.0.0.1"


def test_an_ipv4_address_through_an_ipv6_socket_is_shown_as_ipv4() -> None:
    assert plain_host("::ffff:127.0.0.1") == "127.0.0.1"
    assert plain_host("::1") == "::1"
    assert plain_host("fe80::1%eth0") == "fe80::1"


async def test_a_driver_that_was_left_carries_nothing_out(stage: Stage) -> None:
    """The files of a stopped application are closed; sockets and timers of its clients may come later."""
    stage.driver.leave()
    passes = stage.node.passes
    stage.node.effects.append("meta/log", b"late")
    stage.driver.gauges(1, 2)
    await asyncio.wait_for(asyncio.shield(stage.loop.run_in_executor(None, lambda: None)), 10)
    assert stage.disk.orders == []
    assert stage.node.passes == passes


async def test_a_pass_that_fails_ends_the_node_and_carries_nothing_more_out(stage: Stage) -> None:
    def broken(_now: object) -> None:
        raise ZeroDivisionError("half-way")

    stage.node.end_pass = broken  # type: ignore[method-assign, assignment]
    stage.driver.gauges(1, 2)
    assert await asyncio.wait_for(stage.driver.failed, 10) == "internal error in a pass"
    assert any("half-way" in line for line in stage.lines)
    stage.node.effects.append("journal/1", b"x")
    stage.driver.gauges(1, 2)
    assert stage.disk.orders == []
