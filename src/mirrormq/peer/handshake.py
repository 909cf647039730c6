"""Two nodes prove to each other that they know the cluster's secret, and agree on a protocol version.

Guarantee: an end is done only if the other one knows the secret and has received, unchanged and in this very
connection, everything this end has said and heard: both version ranges, both nonces, both cards (name,
identity, start counter, cluster) and the roles. A proof that was recorded, reflected or changed on its way
fails. The secret never travels, and who does not know it learns nothing but the version range of the node.

    dialler                                   acceptor
      HELLO   versions, nonce         ------>
                                      <------  HELLO    versions, nonce
      PROOF   card, mac               ------>
                                      <------  WELCOME  is linked already, card, mac
      READY   mac                     ------>
      done                                     done

The dialler proves first: anybody can dial, but to be dialled one must stand at a configured address, so it is
the harder way to get a proof that could be tried against guessed secrets. Both ends judge the other's card
before either is done, which is why there is a READY: an end that is done can count on the other's consent.

What it does not do: without TLS whoever sits on the wire can still read, cut and inject after the handshake.
"""

import hashlib
import hmac
import struct
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from mirrormq.base import limits
from mirrormq.base.rng import Rng
from mirrormq.peer.card import Card, decode_card, encode_card
from mirrormq.peer.faults import Code, PeerFault, RefusedByPeer, spoken

MAGIC = b"MMQP"
VERSIONS = (1, 1)
"""Lowest and highest protocol version spoken here."""

NONCE_BYTES = 32
MAC_BYTES = 32

_HELLO = struct.Struct("<4sBBH")
_HEAD = struct.Struct("<BH")
_CARD_LENGTH = struct.Struct("<H")


class Message(Enum):
    """Messages of the handshake."""

    HELLO = 0
    PROOF = 1
    WELCOME = 2
    READY = 3
    REFUSED = 4


class Step(Enum):
    """How far one end is."""

    GREETING = "waits for HELLO"
    PROVING = "waits for PROOF or WELCOME"
    AGREEING = "waits for READY"
    DONE = "done"


DIALLER, ACCEPTOR = True, False

MOVES: dict[tuple[bool, Step, Message], Step] = {
    (DIALLER, Step.GREETING, Message.HELLO): Step.PROVING,
    (DIALLER, Step.PROVING, Message.WELCOME): Step.DONE,
    (ACCEPTOR, Step.GREETING, Message.HELLO): Step.PROVING,
    (ACCEPTOR, Step.PROVING, Message.PROOF): Step.AGREEING,
    (ACCEPTOR, Step.AGREEING, Message.READY): Step.DONE,
}
"""What may come when; a refusal may come any time after HELLO."""


class SharedSecret:
    """The cluster's secret. It can prove things; it cannot be shown."""

    __slots__ = ("_key",)

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"mirrormq peer link", hashlib.sha256)

    def mac(self, message: bytes) -> bytes:
        """Prove knowledge of the secret over a message."""
        return hmac.digest(self._key, message, hashlib.sha256)

    def __repr__(self) -> str:
        return "SharedSecret([hidden])"


class Judge(Protocol):
    """Decides about a peer that has proved the secret."""

    def on_proof(self, link: int, peer: Card) -> bool:
        """As acceptor: whether a link to this node is open already. Raises PeerFault to refuse it."""
        ...

    def on_welcome(self, link: int, peer: Card, *, is_held: bool) -> None:
        """As dialler: raises PeerFault to refuse. `is_held`: the peer has another open link to this node."""
        ...


class Handshake:
    """One end of one handshake. `output` is what is to be sent."""

    def __init__(
        self,
        link: int,
        me: Card,
        *,
        is_dialler: bool,
        secret: SharedSecret,
        judge: Judge,
        rng: Rng,
        versions: tuple[int, int] = VERSIONS,
    ) -> None:
        self.link = link
        self.me = me
        self.is_dialler = is_dialler
        self.secret = secret
        self.judge = judge
        self.step = Step.GREETING
        self.peer: Card | None = None
        self.version = 0
        self.output = bytearray()
        self._versions = versions
        nonce = rng.token(NONCE_BYTES)
        self._hello = _HELLO.pack(MAGIC, *versions, len(nonce)) + nonce
        self._said = hashlib.sha256()
        self._in = bytearray()
        self._on: dict[Message, Callable[[bytes], None]] = {
            Message.HELLO: self._on_hello,
            Message.PROOF: self._on_proof,
            Message.WELCOME: self._on_welcome,
            Message.READY: self._on_ready,
        }
        if is_dialler:
            self.output += self._hello

    @property
    def is_done(self) -> bool:
        """Whether both ends have proved themselves, as far as this end can know."""
        return self.step is Step.DONE

    def receive(self, data: memoryview) -> int:
        """Take bytes; returns how many were used: what follows the handshake belongs to the frames.

        Raises PeerFault if the link is to be refused; the answer to the other end is then in `output`.
        """
        at = 0
        try:
            while at < len(data) and self.step is not Step.DONE:
                wanted = self._wanted()
                part = data[at : at + wanted - len(self._in)]
                self._in += part
                at += len(part)
                if len(self._in) == wanted == self._wanted():
                    message, self._in = bytes(self._in), bytearray()
                    self._take(message)
        except RefusedByPeer:
            raise
        except PeerFault as fault:
            self.refuse(fault.code, fault.text)
            raise
        return at

    def refuse(self, code: Code, text: str) -> None:
        """Tell the other end why there will be no link. A stranger that greets wrongly hears nothing."""
        if self.step is Step.GREETING:
            return
        words = text.encode()[: limits.peer_reason_bytes_max] if code is Code.VERDICT else b""
        self._send(Message.REFUSED, bytes((code,)) + words)

    # Messages in.

    def _wanted(self) -> int:
        """Length of the message that is arriving, or of its head as long as that is not whole."""
        head = _HELLO if self.step is Step.GREETING else _HEAD
        if len(self._in) < head.size:
            return head.size
        if self.step is Step.GREETING:
            magic, _, _, length = _HELLO.unpack_from(self._in)
            if magic != MAGIC or length < NONCE_BYTES:
                raise PeerFault(Code.MALFORMED)
        else:
            _, length = _HEAD.unpack_from(self._in)
        if length > limits.peer_handshake_bytes_max:
            raise PeerFault(Code.MALFORMED)
        return head.size + int(length)

    def _take(self, raw: bytes) -> None:
        if self.step is Step.GREETING:
            kind, body = Message.HELLO, raw
        else:
            number, body = raw[0], raw[_HEAD.size :]
            if number == Message.REFUSED.value:
                code = body[0] if body else 0
                known = Code(code) if code in Code._value2member_map_ else Code.VERDICT
                raise RefusedByPeer(known, f"refused by the other node: {spoken(code, body[1:])}")
            if number not in Message._value2member_map_:
                raise PeerFault(Code.MALFORMED)
            kind = Message(number)
        after = MOVES.get((self.is_dialler, self.step, kind))
        if after is None:
            raise PeerFault(Code.MALFORMED)
        self._on[kind](body)
        self.step = after

    def _on_hello(self, raw: bytes) -> None:
        _, low, high, _ = _HELLO.unpack_from(raw)
        if not self.is_dialler:
            self.output += self._hello
        first, second = (self._hello, raw) if self.is_dialler else (raw, self._hello)
        self._said.update(first)
        self._said.update(second)
        # From here on the other end is worth an answer: it greeted as a node does.
        self.step = Step.PROVING
        least, most = self._versions
        self.version = min(high, most)
        if not low <= high or self.version < max(low, least):
            mine, theirs = f"{least} to {most}", f"{low} to {high}"
            raise PeerFault(
                Code.VERSION, f"there is no common protocol version: {mine} here, {theirs} at the other node"
            )
        if self.is_dialler:
            card = self._say_card(b"")
            self._send(Message.PROOF, card + self._mac(b"dialler"))

    def _on_proof(self, body: bytes) -> None:
        self.peer = self._hear_card(body, 0, b"dialler")
        is_held = self.judge.on_proof(self.link, self.peer)
        card = self._say_card(bytes((is_held,)))
        self._send(Message.WELCOME, card + self._mac(b"acceptor"))

    def _on_welcome(self, body: bytes) -> None:
        self.peer = self._hear_card(body, 1, b"acceptor")
        self.judge.on_welcome(self.link, self.peer, is_held=bool(body[0]))
        self._send(Message.READY, self._mac(b"ready"))

    def _on_ready(self, body: bytes) -> None:
        if not hmac.compare_digest(body, self._mac(b"ready")):
            raise PeerFault(Code.SECRET)

    # Proofs.

    def _say_card(self, before: bytes) -> bytes:
        raw = encode_card(self.me)
        said = before + _CARD_LENGTH.pack(len(raw)) + raw
        self._said.update(said)
        return said

    def _hear_card(self, body: bytes, skip: int, role: bytes) -> Card:
        """Check the proof first: what a card without one contains is nobody's business to parse."""
        said, mac = body[:-MAC_BYTES], body[-MAC_BYTES:]
        self._said.update(said)
        if not hmac.compare_digest(mac, self._mac(role)):
            raise PeerFault(Code.SECRET)
        start = skip + _CARD_LENGTH.size
        if len(said) < start or _CARD_LENGTH.unpack_from(said, skip)[0] != len(said) - start:
            raise PeerFault(Code.MALFORMED)
        return decode_card(said[start:])

    def _mac(self, role: bytes) -> bytes:
        return self.secret.mac(role + bytes((self.version,)) + self._said.digest())

    def _send(self, kind: Message, body: bytes) -> None:
        assert len(body) <= limits.peer_handshake_bytes_max, (kind, len(body))
        self.output += _HEAD.pack(kind.value, len(body)) + body
