"""Two couriers over real sockets of this machine: what one node sends the other gets, or both know of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest_asyncio

from mirrormq.base.types import Now
from mirrormq.node import effects as fx
from mirrormq.runtime.courier import Courier
from mirrormq.runtime.settings import LinkSettings
from tests.unit.runtime.fakes import memory_log

CONTROL, BULK = 0, 1
SECRET = b"a secret of sixteen or more"


class Inputs:
    """What a driver would hand to its node."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self.frames: list[bytes] = []
        self._changed = asyncio.Event()

    def link_change(self, peer: str, cluster: bytes, *, is_up: bool, eof: bool = False) -> None:
        self._tell("up" if is_up else "down", peer)

    def peer_frame(self, peer: str, payload: memoryview) -> None:
        self.frames.append(bytes(payload))
        self._tell("frame", peer)

    def link_suspected(self, peer: str, *, is_silent: bool) -> None:
        self._tell("silent" if is_silent else "heard", peer)

    def link_full(self, peer: str) -> None:
        self._tell("full", peer)

    def link_writable(self, peer: str) -> None:
        self._tell("writable", peer)

    def _tell(self, *what: str) -> None:
        self.told.append(what)
        self._changed.set()

    async def hear(self, *what: str, times: int = 1) -> None:
        async with asyncio.timeout(20):
            while self.told.count(what) < times:
                self._changed.clear()
                await self._changed.wait()


class End:
    """One node's side."""

    def __init__(self, name: str) -> None:
        self.inputs = Inputs()
        self.name = name
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        self.address = f"127.0.0.1:{listening.getsockname()[1]}"
        self.courier = Courier(self.inputs, name, None, SECRET, LinkSettings())
        self.courier.listening = listening
        self.courier.log, self.lines = memory_log()

    def introduce(self, identity: bytes) -> None:
        self.courier.introduce(fx.Introduce(identity * 16, 1, bytes(16)))

    def send(self, peer: End, lane: int, payload: bytes) -> None:
        self.courier.send(fx.Send(peer.name, lane, payload))


@pytest_asyncio.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    a, b = End("a@host"), End("b@host")
    a.introduce(b"a")
    b.introduce(b"b")
    a.courier.dial(fx.Dial(b.address))
    await a.inputs.hear("up", "b@host")
    await b.inputs.hear("up", "a@host")
    yield a, b
    await asyncio.gather(a.courier.close("the test is over"), b.courier.close("the test is over"))


async def test_bulk_frames_arrive_whole_and_in_order_though_the_link_was_full(ends: tuple[End, End]) -> None:
    a, b = ends
    sent = [bytes((number,)) * 200_000 for number in range(120)]
    for payload in sent:
        a.send(b, BULK, payload)
    await a.inputs.hear("full", "b@host")
    await b.inputs.hear("frame", "a@host", times=120)
    assert b.inputs.frames == sent
    await a.inputs.hear("writable", "b@host")
    assert a.inputs.told.count(("full", "b@host")) == 1


async def test_control_frames_overtake_bulk(ends: tuple[End, End]) -> None:
    a, b = ends
    for number in range(60):
        a.send(b, BULK, bytes((number,)) * 200_000)
    a.send(b, CONTROL, b"heartbeat")
    await b.inputs.hear("frame", "a@host", times=61)
    assert b.inputs.frames.index(b"heartbeat") < 30


async def test_a_frame_for_a_node_without_a_link_goes_nowhere(ends: tuple[End, End]) -> None:
    a, _ = ends
    a.courier.send(fx.Send("nobody@host", BULK, b"x"))
    a.courier.send(fx.Send("nobody@host", CONTROL, b"x"))
    assert not [told for told in a.inputs.told if told[1] == "nobody@host"]


async def test_a_link_that_is_cut_is_told_to_both_ends_and_comes_back(ends: tuple[End, End]) -> None:
    a, b = ends
    a.courier.cut(fx.Cut("b@host", "it sent a bad frame"))
    await a.inputs.hear("down", "b@host")
    await b.inputs.hear("down", "a@host")
    await a.inputs.hear("up", "b@host", times=2)
    a.send(b, BULK, b"again")
    await b.inputs.hear("frame", "a@host")


async def test_a_peer_that_falls_silent_is_told_to_the_node_and_that_it_is_heard_again(
    ends: tuple[End, End],
) -> None:
    a, _ = ends
    peer = a.courier.facts()[0].peer
    for is_suspected in (True, False):
        a.courier.link_suspected(Now(1, 1), peer, is_suspected=is_suspected)
    assert a.inputs.told[-2:] == [("silent", "b@host"), ("heard", "b@host")]
    assert "nothing is heard of a node" in a.lines[-2]
    assert "a node is heard again" in a.lines[-1]


async def test_addresses_are_remembered_as_a_whole(ends: tuple[End, End]) -> None:
    a, _ = ends
    kept: list[list[str]] = []
    told = asyncio.Event()

    def keep(addresses: list[str]) -> None:
        kept.append(addresses)
        told.set()

    a.courier.on_dialled = keep
    for port in (1, 2, 3):
        a.courier.dial(fx.Dial(f"127.0.0.1:{port}"))
    a.courier.undial(fx.Undial("127.0.0.1:2"))
    await asyncio.wait_for(told.wait(), 10)
    assert len(kept) == 1
    assert set(kept[0]) >= {"127.0.0.1:1", "127.0.0.1:3"}
    assert "127.0.0.1:2" not in kept[0]


async def test_nothing_is_opened_after_the_end(ends: tuple[End, End]) -> None:
    late = End("late@host")
    await late.courier.close("the node stops")
    # The disk may report the start of this node only now.
    late.introduce(b"l")
    late.courier.dial(fx.Dial(ends[0].address))
    late.courier.undial(fx.Undial(ends[0].address))
    assert late.courier.facts() == []
    assert late.courier.listening is not None
    with late.courier.listening as listening:
        assert not asyncio.get_running_loop().remove_reader(listening.fileno()), "nobody accepts"
