"""Real links on loopback in the loop of a test: nodes that remember what they were told."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import uvloop

from mirrormq.base.types import NodeName, Now
from mirrormq.peer.card import Card, PeerInfo
from mirrormq.peer.framing import Lane, Payload
from mirrormq.peer.handshake import SharedSecret
from mirrormq.runtime.links import PeerLinks
from mirrormq.runtime.logs import Log, Target
from mirrormq.runtime.tls import LinkContexts
from mirrormq.runtime.values import Address
from tests.support.peerkit import SECRET, card

SECONDS = 30
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(loop: str, work: Coroutine[Any, Any, None]) -> None:
    """Run a test in a loop of this kind."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(work, 2 * SECONDS))


class Lines(Target):
    """Keeps log lines in memory."""

    def __init__(self, heard: Callable[[], None]) -> None:
        super().__init__("debug", "plaintext")
        self.written: list[str] = []
        self.heard = heard

    def write(self, line: bytes) -> None:
        self.written.append(line.decode())
        self.heard()


class LinkedNode:
    """An owner of links that wants everybody, unless told otherwise, and keeps what it hears."""

    def __init__(self, me: Card, secret: SharedSecret = SECRET, contexts: LinkContexts | None = None) -> None:
        self.lines = Lines(self._heard)
        self.links = PeerLinks(me, secret, self, Log([self.lines]), contexts=contexts)
        self.told: list[tuple[Any, ...]] = []
        self.frames: list[tuple[str, Lane, Payload]] = []
        self.bulk_bytes = 0
        self.verdict: Callable[[Card, Card | None], str | None] = lambda _peer, _other: None
        self.on_frame: Callable[[PeerInfo, Lane, Payload], None] = self._keep
        self.on_down: Callable[[PeerInfo], None] = lambda _peer: None
        self._waiting: list[tuple[Callable[[], object], asyncio.Future[None]]] = []

    @property
    def name(self) -> NodeName:
        return self.links.me.name

    def listen(self, host: str = "127.0.0.1") -> Address:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family)
        listening.bind((host, 0))
        self.links.listen(listening)
        return Address(host, listening.getsockname()[1])

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so; looked at whenever this node was told something."""
        if is_so():
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((is_so, future))
        try:
            await asyncio.wait_for(future, SECONDS)
        except TimeoutError:
            raise AssertionError((self.told[-10:], self.lines.written[-10:])) from None

    async def linked(self, name: str) -> PeerInfo:
        await self.until(lambda: self.links.table.open_link(name))
        found = self.links.table.open_link(name)
        assert found is not None
        return found

    def count(self, what: str) -> int:
        return sum(1 for entry in self.told if entry[0] == what)

    # Told by the links.

    def link_verdict(self, peer: Card, other: Card | None) -> str | None:
        return self.verdict(peer, other)

    def link_opened(self, now: Now, peer: PeerInfo) -> None:
        self._tell("opened", peer.name)

    def peer_frame(self, now: Now, peer: PeerInfo, lane: Lane, payload: Payload) -> None:
        self.on_frame(peer, lane, payload)
        if self._waiting:
            self._heard()

    def link_writable(self, now: Now, peer: PeerInfo) -> None:
        self._tell("writable", peer.name)

    def link_suspected(self, now: Now, peer: PeerInfo, *, is_suspected: bool) -> None:
        self._tell("suspected" if is_suspected else "trusted", peer.name)

    def link_down(self, now: Now, peer: PeerInfo, *, eof: bool, reason: str) -> None:
        self.on_down(peer)
        self._tell("down", peer.name, eof, reason)

    def _keep(self, peer: PeerInfo, lane: Lane, payload: Payload) -> None:
        self.frames.append((peer.name, lane, payload))

    def _tell(self, *what: Any) -> None:
        self.told.append(what)
        self._heard()

    def _heard(self) -> None:
        for entry in list(self._waiting):
            is_so, future = entry
            if is_so():
                self._waiting.remove(entry)
                if not future.done():
                    future.set_result(None)


@contextlib.asynccontextmanager
async def nodes(*names: str, **options: Any) -> AsyncIterator[list[LinkedNode]]:
    """Nodes without links yet; all is closed at the end."""
    made = [LinkedNode(card(name), **options) for name in names]
    try:
        yield made
    finally:
        await asyncio.gather(*(node.links.close("the test is over") for node in made))
