"""Leaves the cluster with a node whose application is stopped: a link, a wish, and the leader's answer.

Guarantee: when `leave` returns, the cluster has forgotten this folder, or this folder was alone and nobody
knows it. Otherwise it raises, and nothing has changed that asking again would not set right.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path

from mirrormq.base import limits
from mirrormq.base.types import NodeName, Now
from mirrormq.cluster import identity as idn
from mirrormq.cluster.raft.configs import Configurations
from mirrormq.cluster.raft.layout import RaftDamaged, RaftTooNew
from mirrormq.cluster.raft.recovery import read_all
from mirrormq.node import memberframes as mf
from mirrormq.node.peerframes import BadFrame
from mirrormq.peer.card import Card, PeerInfo
from mirrormq.peer.framing import Lane, Payload
from mirrormq.peer.handshake import SharedSecret
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.links import PeerLinks
from mirrormq.runtime.logs import Log
from mirrormq.runtime.offline import FolderDisk
from mirrormq.runtime.settings import LinkSettings
from mirrormq.runtime.tls import make_link_contexts
from mirrormq.runtime.values import address

UNREACHED = "no other node of the cluster can be reached"
LEADERLESS = (
    "the other nodes cannot agree on it, as too few of them run or this one's vote is missing:"
    " start_app, then leave_cluster"
)


class Farewell:
    """Owns the links over which the wish is told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.problem = UNREACHED
        self.linked: set[NodeName] = set()
        self._number = 0

    def ask(self, links: PeerLinks) -> None:
        """Tell everybody in reach; those who do not lead pass it on."""
        for peer in sorted(self.linked):
            self._number += 1
            wish = mf.Forget(self.name, self.name)
            links.send(peer, Lane.CONTROL, mf.encode(mf.Ask(self._number, True, False, wish)))

    # Told by the links.

    def link_verdict(self, peer: Card, other: Card | None) -> str | None:  # noqa: ARG002
        """Anybody who knows the secret will do."""
        return None

    def link_opened(self, now: Now, peer: PeerInfo) -> None:  # noqa: ARG002
        """Somebody can be asked."""
        self.linked.add(peer.name)
        self.problem = LEADERLESS

    def peer_frame(self, now: Now, peer: PeerInfo, lane: Lane, payload: Payload) -> None:  # noqa: ARG002
        """Of all that nodes tell each other only the answer matters."""
        if not payload or payload[0] != mf.MEMBERSHIP:
            return
        with contextlib.suppress(BadFrame):
            frame = mf.decode(memoryview(payload))
            if isinstance(frame, mf.Answer):
                self.problem = frame.problem or self.problem
                if frame.is_final and not self.answered.done():
                    self.answered.set_result(frame.problem)

    def link_writable(self, now: Now, peer: PeerInfo) -> None:
        """Nothing large is sent."""

    def link_suspected(self, now: Now, peer: PeerInfo, *, is_suspected: bool) -> None:
        """It is asked again in any case."""

    def link_down(self, now: Now, peer: PeerInfo, *, eof: bool, reason: str) -> None:  # noqa: ARG002
        """It cannot be asked any more."""
        self.linked.discard(peer.name)


async def leave(
    folder: Path, name: str, *, secret: bytes, settings: LinkSettings, log: Log, known: Iterable[str]
) -> None:
    """Leave the cluster of this folder, if it has one; `known` are addresses of nodes. Raises StartError."""
    me = _member(folder, name)
    if me is None:
        return
    farewell = Farewell(name)
    card = Card(NodeName(name), me.identity, me.start, me.cluster or bytes(16))
    links = PeerLinks(card, SharedSecret(secret), farewell, log, contexts=make_link_contexts(settings.tls))
    try:
        for place in known:
            links.dial(address(place))
        rounds = limits.ask_us_max // limits.ask_again_us
        for _ in range(rounds):
            await asyncio.wait({farewell.answered}, timeout=limits.ask_again_us / 1_000_000)
            if farewell.answered.done():
                break
            farewell.ask(links)
        problem = farewell.answered.result() if farewell.answered.done() else farewell.problem
    finally:
        await links.close("the node leaves")
    if problem:
        raise StartError(problem)


def _member(folder: Path, name: str) -> idn.Identity | None:
    """Who this folder is in a cluster with others; None if there are no others."""
    disk = FolderDisk(folder)
    if idn.FILE not in disk.list(idn.FILE):
        return None
    try:
        me = idn.decode_identity(disk.read(idn.FILE))
        found = read_all(disk)
        configurations = Configurations()
        configurations.load(found.snapshot, found.entries)
    except (idn.IdentityDamaged, RaftDamaged, RaftTooNew) as error:
        raise StartError(str(error)) from None
    others = [member for member in configurations.latest.names if member != name]
    return me if others else None
