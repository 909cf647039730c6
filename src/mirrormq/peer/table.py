"""Which of several connections between two nodes becomes their link: one, and the same for both.

Guarantee: at most one link per peer is open at this node. Two nodes that dial each other at the same time end
up with one link, and none of the two is opened only to be closed again: the link that one end has open wins;
if none has, the one dialled by the node with the smaller name.

How two ends that only see their own half agree: an acceptor refuses nothing for being a duplicate. With
WELCOME it tells whether it holds an open link already, and the dialler, which hears that and knows its own
links, decides. Only READY makes an acceptor replace an open link: a dialler that holds it too never sends
one, so whoever sends READY has lost the old link, and it is only here that it still looks alive.
"""

from collections.abc import Callable

from mirrormq.peer.card import FRESH, Card, PeerInfo
from mirrormq.peer.faults import Code, PeerFault

Verdict = Callable[[Card, Card | None], str | None]
"""Asks the layer above about a peer, given who is linked under its name: None, or why it is not wanted."""


class LinkTable:
    """The links of this node by the name of the peer."""

    def __init__(self, me: Card, verdict: Verdict) -> None:
        self.me = me
        self.verdict = verdict
        self._open: dict[str, PeerInfo] = {}
        self._agreeing: dict[int, str] = {}
        """Accepted connections whose READY has not come, and from whom."""

    def open_link(self, name: str) -> PeerInfo | None:
        """The open link to this peer."""
        return self._open.get(name)

    def open_links(self) -> list[PeerInfo]:
        """All open links, by name."""
        return [self._open[name] for name in sorted(self._open)]

    def on_proof(self, link: int, peer: Card) -> bool:
        """Accept a peer that dialled; returns whether another link to it is open here."""
        self._judge(peer)
        self._agreeing[link] = peer.name
        return peer.name in self._open

    def on_welcome(self, link: int, peer: Card, *, is_held: bool) -> None:
        """Decide about a peer this node dialled. Raises PeerFault if this is not the link to keep."""
        assert link not in self._agreeing, link
        self._judge(peer)
        opened = self._open.get(peer.name)
        if opened is not None and opened.card.counter == peer.counter:
            raise PeerFault(Code.DUPLICATE)
        if peer.name in self._agreeing.values() and (is_held or self.me.name > peer.name):
            # The peer's own connection has been accepted here. Either the peer holds it open and its READY is
            # on the way, or both are at the same step and the smaller name's connection stays.
            raise PeerFault(Code.DUPLICATE)

    def rivals(self, peer: PeerInfo) -> list[int]:
        """Connections that have to go, and their owners to be told, before this link counts as open."""
        old = self._open.get(peer.name)
        found = [old.link] if old is not None else []
        if peer.is_dialled:
            found += [link for link, name in self._agreeing.items() if name == peer.name]
        return found

    def opened(self, peer: PeerInfo) -> None:
        """Take in an open link whose rivals are gone."""
        assert peer.name not in self._open, peer
        self._agreeing.pop(peer.link, None)
        self._open[peer.name] = peer

    def gone(self, link: int) -> None:
        """A connection is over, whatever it was."""
        self._agreeing.pop(link, None)
        for name, peer in self._open.items():
            if peer.link == link:
                del self._open[name]
                break

    def _judge(self, peer: Card) -> None:
        me = self.me
        if peer.name == me.name:
            if peer.identity == me.identity:
                raise PeerFault(Code.SELF)
            raise PeerFault(Code.NAME, f"another node is named {me.name}, too")
        if peer.identity == me.identity:
            raise PeerFault(
                Code.COPIED, f"node {peer.name} has the identity of {me.name}: one data folder is a copy"
            )
        if FRESH not in {peer.cluster, me.cluster} and peer.cluster != me.cluster:
            raise PeerFault(Code.CLUSTER, f"node {peer.name} belongs to another cluster")
        opened = self._open.get(peer.name)
        other = opened.card if opened is not None else None
        if other is not None and other.identity == peer.identity and peer.counter < other.counter:
            raise PeerFault(Code.STALE, f"a later start of node {peer.name} is linked already")
        refused = self.verdict(peer, other)
        if refused is not None:
            raise PeerFault(Code.VERDICT, refused)
