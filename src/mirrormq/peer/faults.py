"""Why a link is refused or given up: one code on the wire, one sentence for people."""

from enum import IntEnum

from mirrormq.base import limits


class Code(IntEnum):
    """Reasons as they travel; the numbers are part of the protocol."""

    SECRET = 1
    VERSION = 2
    SELF = 3
    NAME = 4
    COPIED = 5
    CLUSTER = 6
    DUPLICATE = 7
    STALE = 8
    VERDICT = 9
    MALFORMED = 10
    TIME = 11
    BROKEN = 12
    LOST = 13


SENTENCES: dict[int, str] = {
    Code.SECRET: "the secrets differ",
    Code.VERSION: "there is no protocol version that both nodes speak",
    Code.SELF: "a node dialled itself",
    Code.NAME: "both nodes have the same name",
    Code.COPIED: "both nodes have the same identity: one data folder is a copy of the other",
    Code.CLUSTER: "the nodes belong to different clusters",
    Code.DUPLICATE: "the nodes are linked already",
    Code.STALE: "a later start of the same node is linked already",
    Code.VERDICT: "the node is not wanted here",
    Code.MALFORMED: "this is no handshake between MirrorMQ nodes",
    Code.TIME: f"the handshake was not finished within {limits.peer_handshake_us // 1_000_000} seconds",
    Code.BROKEN: "a frame is damaged or against the protocol",
    Code.LOST: "the connection ended before the handshake was finished",
}


class PeerFault(Exception):
    """The other end, or what it sent, cannot be accepted. Only ever its mistake, never ours."""

    def __init__(self, code: Code, text: str = "") -> None:
        self.code = code
        self.text = text or SENTENCES[code]
        super().__init__(self.text)


class RefusedByPeer(PeerFault):
    """The other end sent a refusal; nothing needs to be answered."""


def spoken(code: int, raw: bytes) -> str:
    """The sentence of a refusal that arrived. Only a verdict brings its own words: the rest are ours.

    Whoever sends it may not have proved anything yet, and the words end up in a log.
    """
    text = readable(raw)
    if code == Code.VERDICT and text:
        return text
    return SENTENCES.get(code, f"the other node gave reason {code}, which this version does not know")


def readable(raw: bytes) -> str:
    """Take text from the other end: cut to its bound, nothing in it but printable characters."""
    text = raw[: limits.peer_reason_bytes_max].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "?" for char in text)
