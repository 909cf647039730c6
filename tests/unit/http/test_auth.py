"""The node's key: good for whoever is on the node's own machine, worthless from anywhere else."""

from __future__ import annotations

from typing import Any, cast

import pytest
from aiohttp import web
from multidict import CIMultiDict

from mirrormq.http.answers import Fault
from mirrormq.http.auth import KEY_HOLDER, Gate
from tests.support.adminkit import KEY, AdminKit, KitProcess


class FakeTransport:
    """A connection between two addresses."""

    def __init__(self, peer: str, here: str) -> None:
        self._ends = {"peername": (peer, 40_000), "sockname": (here, 15_672)}

    def get_extra_info(self, name: str) -> Any:
        return self._ends[name]


class FakeRequest:
    """As much of a request as logging in looks at."""

    def __init__(self, authorization: str, transport: FakeTransport | None) -> None:
        self.headers = CIMultiDict({"Authorization": authorization})
        self.transport = transport


def request(transport: FakeTransport | None, key: str = KEY) -> web.Request:
    return cast(web.Request, FakeRequest(f"MirrorMQ-Key {key}", transport))


@pytest.fixture
def gate() -> Gate:
    return Gate(KitProcess(AdminKit()), KEY)


@pytest.mark.parametrize(
    ("peer", "here"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
        ("10.0.0.5", "10.0.0.5"),
    ],
)
async def test_the_key_works_on_the_nodes_own_machine(gate: Gate, peer: str, here: str) -> None:
    assert await gate.identify(request(FakeTransport(peer, here))) is KEY_HOLDER


@pytest.mark.parametrize("told", [["192.0.2.7"], ["127.0.0.1", "192.0.2.7"], ["127.0.0.1, 192.0.2.7"], ["?"]])
async def test_the_key_is_refused_to_who_comes_through_a_proxy_from_elsewhere(
    gate: Gate, told: list[str]
) -> None:
    asked = request(FakeTransport("127.0.0.1", "127.0.0.1"))
    cast(FakeRequest, asked).headers.extend([("X-Forwarded-For", text) for text in told])
    with pytest.raises(Fault, match="401"):
        await gate.identify(asked)


@pytest.mark.parametrize("transport", [FakeTransport("10.0.0.9", "10.0.0.5"), None])
async def test_the_key_is_refused_from_elsewhere(gate: Gate, transport: FakeTransport | None) -> None:
    with pytest.raises(Fault, match="401"):
        await gate.identify(request(transport))


async def test_a_node_without_a_key_accepts_no_key() -> None:
    gate = Gate(KitProcess(AdminKit()), "")
    with pytest.raises(Fault, match="401"):
        await gate.identify(request(FakeTransport("127.0.0.1", "127.0.0.1"), ""))


async def test_a_key_that_is_no_text_is_a_wrong_key(gate: Gate) -> None:
    with pytest.raises(Fault, match="401"):
        await gate.identify(request(FakeTransport("127.0.0.1", "127.0.0.1"), "\udcff\u00e4"))
