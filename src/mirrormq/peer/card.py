"""Who a node says it is at the beginning of a link, as a value and as bytes."""

import re
import struct
from typing import NamedTuple

from mirrormq.base.types import NodeName
from mirrormq.peer.faults import Code, PeerFault

FRESH = bytes(16)
"""The cluster id of a node that belongs to no cluster yet."""

_FIXED = struct.Struct("<16s16sQ")
_NAME = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9_.:-]+")
TEXT_BYTES_MAX = 255


class Card(NamedTuple):
    """What a node presents to another. Believed only together with a proof of the cluster's secret."""

    name: NodeName
    identity: bytes
    """16 random bytes of the node's data folder."""
    counter: int
    """How often the node has been started on that folder."""
    cluster: bytes = FRESH
    """16 bytes that all nodes of a cluster share."""
    advertise: str = ""
    """host:port at which the node can be dialled."""


class PeerInfo(NamedTuple):
    """The other end of an open link."""

    card: Card
    link: int
    """Number of the link at this node, never used twice while the process lives."""
    version: int
    """The protocol version both ends agreed on."""
    is_dialled: bool
    """Whether this node dialled the other one."""

    @property
    def name(self) -> NodeName:
        """The peer's name."""
        return self.card.name


def encode_card(card: Card) -> bytes:
    """Write a card as the handshake carries it, without its length."""
    assert len(card.identity) == 16, card
    assert len(card.cluster) == 16, card
    return _FIXED.pack(card.identity, card.cluster, card.counter) + _text(card.name) + _text(card.advertise)


def decode_card(data: bytes) -> Card:
    """Read a card; bytes behind the known fields belong to later versions."""
    if len(data) < _FIXED.size:
        raise PeerFault(Code.MALFORMED)
    identity, cluster, counter = _FIXED.unpack_from(data)
    name, at = _read_text(data, _FIXED.size)
    advertise, _ = _read_text(data, at)
    if not _NAME.fullmatch(name) or not advertise.isprintable():
        raise PeerFault(Code.MALFORMED)
    return Card(NodeName(name), identity, counter, cluster, advertise)


def _text(text: str) -> bytes:
    raw = text.encode()
    assert len(raw) <= TEXT_BYTES_MAX, text
    return bytes((len(raw),)) + raw


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    if at >= len(data) or at + 1 + data[at] > len(data):
        raise PeerFault(Code.MALFORMED)
    end = at + 1 + data[at]
    try:
        return data[at + 1 : end].decode(), end
    except UnicodeDecodeError:
        raise PeerFault(Code.MALFORMED) from None
