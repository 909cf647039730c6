"""Carries frames between the node and the links to other nodes, and tells the node what becomes of the links.

Guarantee: frames of one lane arrive in the order in which the node sent them, or the link is down and the
node knows. A link whose bulk lane is full is held: the node is told once, and what it had wanted to send in
the same pass waits here, bounded by what one pass can want.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from mirrormq.base.types import NodeName, Now
from mirrormq.node import effects as fx
from mirrormq.peer.card import Card, PeerInfo
from mirrormq.peer.framing import Lane, Payload
from mirrormq.peer.handshake import SharedSecret
from mirrormq.runtime.links import PeerFacts, PeerLinks
from mirrormq.runtime.logs import Log
from mirrormq.runtime.settings import LinkSettings
from mirrormq.runtime.tls import make_link_contexts, reload_link_files
from mirrormq.runtime.values import Address, address

LANES = (Lane.CONTROL, Lane.BULK)
"""As the node numbers them."""


class LinkInputs(Protocol):
    """The driver, as links use it."""

    def link_change(self, peer: str, cluster: bytes, *, is_up: bool, eof: bool = False) -> None:
        """A link came up or went down."""
        ...

    def peer_frame(self, peer: str, payload: memoryview) -> None:
        """A frame arrived."""
        ...

    def link_suspected(self, peer: str, *, is_silent: bool) -> None:
        """Nothing has come over a link for long, or something has again."""
        ...

    def link_full(self, peer: str) -> None:
        """A link takes no more for now."""
        ...

    def link_writable(self, peer: str) -> None:
        """A link takes more again."""
        ...


class Courier:
    """All links of a node, as its driver uses them; nothing is open before the node introduces itself."""

    def __init__(
        self, inputs: LinkInputs, name: str, advertise: Address | None, secret: bytes, settings: LinkSettings
    ) -> None:
        self._inputs = inputs
        self._name = NodeName(name)
        self._advertise = str(advertise) if advertise is not None else ""
        self._secret = SharedSecret(secret)
        self._settings = settings
        self._contexts = make_link_contexts(settings.tls)
        self._loop = asyncio.get_running_loop()
        self._links: PeerLinks | None = None
        self._is_closed = False
        """From then on nothing is opened: what the disk still reports may make the node want it."""
        self._waiting: dict[str, deque[bytes]] = {}
        """Bulk frames for links that are full."""
        self._dialled: set[str] = set()
        self._is_telling = False
        self.on_dialled: Callable[[list[str]], None] = _ignore
        """Called with all addresses that are dialled when they change."""
        self.listening: socket.socket | None = None
        """Where other nodes reach this one."""
        self.log: Log | None = None

    # What the node wants.

    def introduce(self, effect: fx.Introduce) -> None:
        """Open the doors to other nodes, or show them another card from now on."""
        if self._is_closed:
            return
        card = Card(self._name, effect.identity, effect.start, effect.cluster, self._advertise)
        if self._links is not None:
            self._links.me = card
            return
        assert self.log is not None
        self._links = PeerLinks(card, self._secret, self, self.log, contexts=self._contexts)
        if self.listening is not None:
            self._links.listen(self.listening)

    def dial(self, effect: fx.Dial) -> None:
        """Keep a link to an address."""
        if self._is_closed:
            return
        assert self._links is not None
        self._links.dial(address(effect.address))
        self._dialled.add(effect.address)
        self._tell_dialled()

    def undial(self, effect: fx.Undial) -> None:
        """Dial an address no more."""
        if self._is_closed:
            return
        assert self._links is not None
        self._links.undial(address(effect.address))
        self._dialled.discard(effect.address)
        self._tell_dialled()

    def send(self, effect: fx.Send) -> None:
        """Send a frame."""
        links, peer = self._links, NodeName(effect.peer)
        if links is None:
            return
        lane = LANES[effect.lane]
        waiting = self._waiting.get(peer)
        if waiting is not None and lane is Lane.BULK:
            waiting.append(effect.payload)
        elif not links.send(peer, lane, effect.payload):
            if links.table.open_link(peer) is None:
                return  # the node hears of that
            if lane is Lane.BULK:
                self._hold(peer, effect.payload)
            else:
                self._drop(peer, "it does not take control frames any more")
        elif lane is Lane.BULK and links.is_full(peer):
            self._hold(peer)

    def cut(self, effect: fx.Cut) -> None:
        """Close a link, after what is under way: the node is in the middle of something."""
        self._drop(effect.peer, effect.reason)

    def facts(self) -> list[PeerFacts]:
        """Describe the open links."""
        return self._links.facts() if self._links is not None else []

    def reload(self) -> None:
        """Read the certificates again."""
        if self._contexts is not None:
            reload_link_files(self._contexts, self._settings.tls)

    async def close(self, reason: str) -> None:
        """End all links."""
        self._is_closed = True
        if self._links is not None:
            await self._links.close(reason)

    def _tell_dialled(self) -> None:
        """Once for all that change together: half a list on disk would lose the other half in a crash."""
        if not self._is_telling:
            self._is_telling = True
            self._loop.call_soon(self._dialled_changed)

    def _dialled_changed(self) -> None:
        self._is_telling = False
        self.on_dialled(sorted(self._dialled))

    def _hold(self, peer: str, *payloads: bytes) -> None:
        self._waiting[peer] = deque(payloads)
        # Not from within an effect: what the node does about it comes after what it wanted before.
        self._loop.call_soon(self._tell_full, peer)

    def _tell_full(self, peer: str) -> None:
        if peer in self._waiting:
            self._inputs.link_full(peer)

    def _drop(self, peer: str, reason: str) -> None:
        if self._links is not None:
            self._loop.call_soon(self._links.drop, NodeName(peer), reason)

    # What happens on the links.

    def link_verdict(self, peer: Card, other: Card | None) -> str | None:
        """Two nodes with one name cannot both be linked."""
        if other is not None and other.identity != peer.identity:
            return f"another node is named {peer.name}, too, and is linked"
        return None

    def link_opened(self, now: Now, peer: PeerInfo) -> None:  # noqa: ARG002
        """A link is open."""
        self._waiting.pop(peer.name, None)
        self._inputs.link_change(peer.name, peer.card.cluster, is_up=True)

    def peer_frame(self, now: Now, peer: PeerInfo, lane: Lane, payload: Payload) -> None:  # noqa: ARG002
        """A payload arrived."""
        self._inputs.peer_frame(peer.name, memoryview(payload))

    def link_writable(self, now: Now, peer: PeerInfo) -> None:  # noqa: ARG002
        """Send what had to wait; then the node may send more."""
        waiting = self._waiting.get(peer.name)
        if waiting is None:
            return
        assert self._links is not None
        while waiting:
            if not self._links.send(peer.name, Lane.BULK, waiting[0]):
                return
            waiting.popleft()
        if not self._links.is_full(peer.name):
            del self._waiting[peer.name]
            self._inputs.link_writable(peer.name)

    def link_suspected(self, now: Now, peer: PeerInfo, *, is_suspected: bool) -> None:
        """A peer has gone silent, or was heard again."""
        assert self.log is not None
        text = "nothing is heard of a node" if is_suspected else "a node is heard again"
        self.log.note(
            "warning" if is_suspected else "info",
            text,
            {"event": "node.suspected", "peer": peer.name},
            now.wall,
        )
        self._inputs.link_suspected(peer.name, is_silent=is_suspected)

    def link_down(self, now: Now, peer: PeerInfo, *, eof: bool, reason: str) -> None:  # noqa: ARG002
        """A link is over."""
        self._waiting.pop(peer.name, None)
        self._inputs.link_change(peer.name, peer.card.cluster, is_up=False, eof=eof)


def _ignore(_: list[str]) -> None:
    """Nobody keeps them."""
