"""Links between nodes over real sockets: authenticated, reconnecting, fair to control frames under load."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest

from mirrormq.base import limits
from mirrormq.base.types import NodeName
from mirrormq.peer.framing import Lane
from mirrormq.peer.handshake import SharedSecret
from mirrormq.runtime.linkends import Target
from mirrormq.runtime.settings import LinkTlsSettings
from mirrormq.runtime.tls import make_link_contexts, reload_link_files
from mirrormq.runtime.values import Address
from tests.interop.certificates import Authority
from tests.support.faultproxy import FaultProxy, fault_proxy
from tests.support.linkkit import LOOPS, LinkedNode, nodes, run
from tests.support.peerkit import card

A, B = NodeName("a@h"), NodeName("b@h")

pytestmark = pytest.mark.parametrize("loop", LOOPS)


def through(proxy: FaultProxy) -> Address:
    return Address(*proxy.address)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_two_nodes_find_each_other_and_exchange_payloads(loop: str, host: str) -> None:
    async def work() -> None:
        async with nodes(A, B) as (a, b):
            where = b.listen("127.0.0.1" if host == "localhost" else host)
            a.links.dial(Address(host, where.port))
            await a.linked(B)
            peer = await b.linked(A)
            assert peer.card == a.links.me
            assert a.links.send(B, Lane.CONTROL, b"hello ", b"b")
            assert b.links.send(A, Lane.BULK, b"x" * 500_000, memoryview(b"end"))
            await b.until(lambda: b.frames)
            await a.until(lambda: a.frames)
            assert b.frames == [(A, Lane.CONTROL, b"hello b")]
            assert a.frames == [(B, Lane.BULK, b"x" * 500_000 + b"end")]

    run(loop, work())


def test_nodes_that_dial_each_other_and_themselves_have_one_link(loop: str) -> None:
    async def work() -> None:
        async with nodes("a@h", "b@h", "c@h") as made:
            places = [node.listen() for node in made]
            for node in made:
                for place in places:
                    node.links.dial(place)
            for node in made:
                await node.until(lambda node=node: len(node.links.table.open_links()) == 2)
            for node in made:
                for other in made:
                    if node is not other:
                        assert node.links.send(other.name, Lane.CONTROL, node.name.encode())
            for node in made:
                await node.until(lambda node=node: len(node.frames) == 2)
            assert all(node.count("down") == 0 for node in made)
            assert all(node.count("opened") == 2 for node in made)

    run(loop, work())


def test_another_secret_is_refused_with_one_sentence_and_never_logged(loop: str) -> None:
    async def work() -> None:
        async with nodes(A) as (a,), nodes(B, secret=SharedSecret(b"quite another secret")) as (b,):
            a.links.dial(b.listen())
            await a.until(lambda: any("the secrets differ" in line for line in a.lines.written))
            await b.until(lambda: any("the secrets differ" in line for line in b.lines.written))
            # Further attempts with the same outcome are not told again.
            said = [line for line in a.lines.written if "secrets differ" in line]
            assert len(said) == 1
            assert "[warning] no link: refused by the other node: the secrets differ address=" in said[0]
            everything = "".join(a.lines.written + b.lines.written)
            assert "another secret" not in everything
            assert "secret of the cluster" not in everything
            assert a.told == b.told == []

    run(loop, work())


def test_the_layer_above_may_refuse_a_peer(loop: str) -> None:
    async def work() -> None:
        async with nodes(A, B) as (a, b):
            b.verdict = lambda peer, _other: f"forget {peer.name} first"
            a.links.dial(b.listen())
            await a.until(lambda: any("forget a@h first" in line for line in a.lines.written))
            b.verdict = lambda _peer, _other: None
            await a.linked(B)

    run(loop, work())


def test_a_link_that_was_reset_comes_back_by_itself(loop: str) -> None:
    async def work() -> None:
        async with nodes(A, B) as (a, b):
            with fault_proxy(b.listen()) as proxy:
                a.links.dial(through(proxy))
                for times in (1, 2, 3):
                    await a.until(lambda times=times: a.count("opened") == times)
                    await b.until(lambda times=times: b.count("opened") == times)
                    if times < 3:
                        proxy.reset()
                        await a.until(lambda times=times: a.count("down") == times)
                assert [entry[2] for entry in a.told if entry[0] == "down"] == [True, True]

    run(loop, work())


@pytest.mark.slow
def test_a_cut_link_is_suspected_and_trusted_again_when_the_cut_heals(loop: str) -> None:
    async def work() -> None:
        async with nodes(A, B) as (a, b):
            with fault_proxy(b.listen()) as proxy:
                a.links.dial(through(proxy))
                await a.linked(B)
                await b.linked(A)
                proxy.cut("back")
                assert a.links.send(B, Lane.CONTROL, b"one way")
                await b.until(lambda: b.frames)
                began = time.monotonic()
                await a.until(lambda: a.count("suspected"))
                assert time.monotonic() - began < 3 * limits.peer_suspect_us / 1_000_000
                # The other direction works: b hears a.
                assert b.count("suspected") == 0
                assert a.links.facts()[0].is_suspected
                proxy.heal()
                await a.until(lambda: a.count("trusted"))
                assert a.count("down") == b.count("down") == 0

    run(loop, work())


@pytest.mark.slow
def test_a_path_that_lost_its_connections_is_dialled_anew(loop: str) -> None:
    async def work() -> None:
        async with nodes(A, B) as (a, b):
            with fault_proxy(b.listen()) as proxy:
                a.links.dial(through(proxy))
                await a.linked(B)
                await b.linked(A)
                proxy.cut(lose=True)
                proxy.heal()
                await a.until(lambda: a.count("opened") == 2)
                await b.until(lambda: b.count("opened") == 2)
                down = next(entry for entry in a.told if entry[0] == "down")
                assert down[2:] == (False, "nothing was heard for 10 seconds")
                assert a.links.send(B, Lane.CONTROL, b"again")
                await b.until(lambda: b.frames)

    run(loop, work())


def test_an_end_is_told_before_the_socket_is_closed(loop: str) -> None:
    """Whoever holds a lease over the link can give it up before the other end sees anything."""

    async def work() -> None:
        async with nodes(A, B) as (a, b):
            a.links.dial(b.listen())
            peer = await a.linked(B)
            await b.linked(A)
            connection = a.links.connections[peer.link]
            seen: list[bool] = []
            a.on_down = lambda _peer: seen.append(connection.is_closing)
            a.links.drop(B, "for the test")
            assert seen == [False]
            await b.until(lambda: b.count("down"))
            assert b.told[-1] == ("down", A, True, "the other node said: for the test")
            await a.until(lambda: a.count("opened") == 2)

    run(loop, work())


@pytest.mark.slow
def test_a_started_again_node_replaces_the_link_of_its_earlier_start(loop: str) -> None:
    async def work() -> None:
        async with nodes(B) as (b,):
            with fault_proxy(b.listen()) as proxy:
                first = LinkedNode(card(A, counter=1))
                first.links.dial(through(proxy))
                await b.linked(A)
                # The machine of the first start is gone without a word.
                proxy.cut(lose=True)
                proxy.heal()
                second = LinkedNode(card(A, counter=2))
                second.links.dial(through(proxy))
                await second.linked(B)
                await b.until(lambda: b.count("opened") == 2)
                down = ("down", A, False, "another connection took its place")
                assert [entry[0] for entry in b.told] == ["opened", "down", "opened"]
                assert b.told[1] == down
                await asyncio.gather(first.links.close("over"), second.links.close("over"))

    run(loop, work())


async def begun(target: Target, turns: int) -> None:
    """An attempt was begun so many turns of the loop ago."""
    assert target._timer is not None
    target._timer.cancel()
    target._begin()
    for _ in range(turns):
        turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


@pytest.mark.parametrize("turns", range(8))
def test_links_end_whatever_a_dialled_connection_has_come_to(loop: str, turns: int) -> None:
    """Cancelled between its connect and its first step, uvloop makes it and never says that it is over."""

    async def work() -> None:
        async with nodes("a@h", "b@h") as (a, b):
            a.links.dial(b.listen())
            (target,) = a.links._targets._targets.values()
            await begun(target, turns)
            async with asyncio.timeout(10):
                await a.links.close("over")
            assert not a.links.connections

    run(loop, work())


@pytest.mark.parametrize("turns", range(1, 8))
def test_an_address_is_dialled_again_however_far_an_attempt_came(loop: str, turns: int) -> None:
    async def work() -> None:
        async with nodes(A, B) as (a, b):
            a.links.dial(b.listen())
            (target,) = a.links._targets._targets.values()
            await begun(target, turns)
            if target._attempt is not None:
                target._attempt.cancel()  # as when it takes too long
            await a.linked(B)

    run(loop, work())


def test_a_held_peer_sends_no_more_than_the_window_until_it_is_let_go(loop: str) -> None:
    async def work() -> None:
        async with nodes(A, B) as (a, b):
            a.links.dial(b.listen())
            await a.linked(B)
            await b.linked(A)
            b.links.hold(A)
            sent = 0
            while a.links.send(B, Lane.BULK, bytes(100_000)):
                sent += 1
            assert a.links.is_full(B)
            assert a.links.send(B, Lane.CONTROL, b"overtakes")
            await b.until(lambda: (A, Lane.CONTROL, b"overtakes") in b.frames)
            assert sum(len(payload) for _, lane, payload in b.frames) <= limits.peer_window_bytes + 9
            b.links.unhold(A)
            await b.until(lambda: len(b.frames) == sent + 1)
            await a.until(lambda: a.count("writable"))
            assert not a.links.is_full(B)

    run(loop, work())


def test_a_mistake_of_the_owner_ends_one_link_and_is_told(loop: str) -> None:
    async def work() -> None:
        async with nodes("a@h", "b@h", "c@h") as (a, b, c):
            where = b.listen()
            a.links.dial(where)
            c.links.dial(where)
            await a.linked(B)
            await c.linked(B)

            def fail(*_what: object) -> None:
                raise RuntimeError("boom")

            b.on_frame = fail
            assert a.links.send(B, Lane.CONTROL, b"x")
            await a.until(lambda: a.count("down"))
            assert b.told[-1] == ("down", A, False, "internal error")
            assert any("RuntimeError: boom" in line for line in b.lines.written)
            assert c.count("down") == 0

    run(loop, work())


def test_strangers_are_bounded_and_do_not_keep_nodes_out(loop: str) -> None:
    async def work() -> None:
        async with nodes(A, B) as (a, b):
            where = b.listen()
            own = asyncio.get_running_loop()
            strangers = []
            for _ in range(limits.peer_strangers_max + 20):
                stranger = socket.socket()
                stranger.setblocking(False)
                await own.sock_connect(stranger, tuple(where))
                strangers.append(stranger)
            a.links.dial(where)
            await a.linked(B)
            assert len(b.links.strangers) <= limits.peer_strangers_max
            # The first ones had to go for the last ones.
            with contextlib.suppress(ConnectionResetError):
                assert await own.sock_recv(strangers[0], 1) == b""
            for stranger in strangers:
                stranger.close()

    run(loop, work())


def test_who_speaks_another_protocol_is_hung_up_on(loop: str) -> None:
    async def work() -> None:
        async with nodes(B) as (b,):
            where = b.listen()
            reader, writer = await asyncio.open_connection(*where)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.read() == b""
            writer.close()
            await b.until(
                lambda: any("no handshake between MirrorMQ nodes" in line for line in b.lines.written)
            )

    run(loop, work())


def tls(authority: Authority, name: str) -> LinkTlsSettings:
    pair = authority.issue(name, server=True, client=True)
    return LinkTlsSettings(
        certfile=str(pair.certificate), keyfile=str(pair.key), cacertfile=str(authority.certificate)
    )


def test_with_tls_both_ends_need_a_certificate_of_the_authority(loop: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ours = make_link_contexts(tls(Authority(tmp_path), "localhost"))
    theirs = make_link_contexts(tls(Authority(tmp_path / "other"), "localhost"))
    assert ours is not None

    async def work() -> None:
        async with nodes(A, B, contexts=ours) as (a, b), nodes("c@h", contexts=theirs) as (c,):
            where = b.listen()
            a.links.dial(where)
            c.links.dial(where)
            await a.linked(B)
            assert a.links.send(B, Lane.BULK, b"y" * 3_000_000)
            await b.until(lambda: b.frames)
            assert len(b.frames[0][2]) == 3_000_000
            await c.until(lambda: any("cannot be reached" in line for line in c.lines.written))
            # A node without TLS gets nowhere either.
            async with nodes("d@h") as (d,):
                d.links.dial(where)
                await d.until(lambda: any("no link" in line for line in d.lines.written))
                assert d.told == []
            assert c.told == []
            secured = b.links.connections[(await b.linked(A)).link].transport.get_extra_info("ssl_object")
            assert secured.version() == "TLSv1.3"
            assert secured.getpeercert()["subject"]
            # An end is an end with TLS, too.
            a.links.connections[(await a.linked(B)).link].transport.abort()
            await b.until(lambda: b.count("down"))
            assert b.told[-1][2] is True

    run(loop, work())


def test_certificates_of_links_can_be_read_again(loop: str, tmp_path: Path) -> None:
    settings = tls(Authority(tmp_path), "localhost")
    contexts = make_link_contexts(settings)
    assert contexts is not None
    reload_link_files(contexts, settings)
    assert contexts.accepting.verify_mode is contexts.dialling.verify_mode is ssl.CERT_REQUIRED
    assert make_link_contexts(LinkTlsSettings()) is None


@pytest.mark.slow
def test_control_frames_and_bulk_all_arrive_in_order_beside_each_other(loop: str) -> None:
    """100,000 control frames answered one by one while 200 MiB of bulk flow, all of them whole."""
    total, piece, rounds = 200 * 1024 * 1024, 1_000_000, 100_000

    async def work() -> None:
        async with nodes(A, B) as (a, b):
            a.links.dial(b.listen())
            await a.linked(B)
            await b.linked(A)
            wanted, answers = iter(range(rounds)), iter(range(rounds))
            bulk = {"sent": 0, "received": 0, "next": 0, "answered": 0}

            def answer(peer: object, lane: Lane, payload: bytes | bytearray) -> None:
                if lane is Lane.CONTROL:
                    assert int.from_bytes(payload, "big") == next(wanted)
                    assert b.links.send(A, Lane.CONTROL, payload)
                else:
                    assert int.from_bytes(payload[:8], "big") == bulk["next"]
                    bulk["next"] += 1
                    bulk["received"] += len(payload)

            def count(peer: object, lane: Lane, payload: bytes | bytearray) -> None:
                assert int.from_bytes(payload, "big") == next(answers)
                bulk["answered"] += 1
                feed()

            numbers = iter(range(rounds))
            chunk = bytes(piece - 8)

            def feed() -> None:
                number = next(numbers, None)
                if number is not None:
                    assert a.links.send(B, Lane.CONTROL, number.to_bytes(8, "big"))
                while bulk["sent"] * piece < total and not a.links.is_full(B):
                    assert a.links.send(B, Lane.BULK, bulk["sent"].to_bytes(8, "big"), chunk)
                    bulk["sent"] += 1

            b.on_frame, a.on_frame = answer, count
            for _ in range(100):
                feed()
            await a.until(lambda: bulk["answered"] == rounds)
            await b.until(lambda: bulk["received"] >= total)
            assert bulk["received"] == bulk["sent"] * piece

    run(loop, work())
