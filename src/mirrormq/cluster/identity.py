"""Who a data folder is, and whether it is as new as the cluster remembers it.

Guarantee: a folder that was emptied, or put back to what it was before a start the cluster has recorded, is
refused by everybody who knows of that start, however often it is started.

A folder has a random identity and a random token per start. The token of a start is flushed before the first
link opens; the cluster records the token of each member's last accepted start. A folder presents the tokens
it knows, this start's last; it is accepted if the recorded one is among them. A folder put back to before the
recorded start cannot know that token. Recorded ones are kept for a while, because a peer may be behind and
remember an older one than the cluster does.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from mirrormq.base import limits
from mirrormq.base.rng import Rng
from mirrormq.kernel.crc32c import crc32c

FILE = "identity"
FORMAT = 1
_MAGIC = b"MMQIDNT\x00"
_BYTES = 16

_Token = Annotated[bytes, Meta(min_length=_BYTES, max_length=_BYTES)]


class IdentityDamaged(Exception):
    """The identity file cannot be read. Its text names the file, the cause and the cure."""

    def __init__(self, cause: str) -> None:
        """Make one sentence of it."""
        super().__init__(f"{FILE} {cause}; forget this node in the cluster, then join with an empty folder")


class Identity(Struct, frozen=True, array_like=True):
    """The content of the identity file."""

    identity: _Token
    start: Annotated[int, Meta(ge=0)] = 0
    recorded: tuple[_Token, ...] = ()
    """Tokens of starts the cluster has recorded, oldest first."""
    unanswered: tuple[_Token, ...] = ()
    """Tokens of starts since then, this one last; the cluster may have recorded any of them."""
    cluster: Annotated[bytes, Meta(max_length=16)] = b""
    """The cluster this folder belongs to; empty while it belongs to none."""
    is_founding: bool = False
    """It is to form that cluster, and may have died before any of it was on disk."""

    @property
    def tokens(self) -> tuple[bytes, ...]:
        """What is presented to peers."""
        return self.recorded + self.unanswered


def new_identity(rng: Rng) -> Identity:
    """The identity of an empty folder."""
    return Identity(rng.token(_BYTES))


def belong(identity: Identity, cluster: bytes, *, is_founding: bool = False) -> Identity:
    """What must be flushed before a folder takes part in a cluster."""
    return replace(identity, cluster=cluster, is_founding=is_founding)


def forced(identity: Identity, rng: Rng) -> Identity:
    """The identity of a folder that goes on without its cluster: nobody of the old one may know it."""
    return Identity(rng.token(_BYTES), identity.start)


def begin_start(identity: Identity, rng: Rng) -> Identity:
    """What must be flushed before the first link of a start opens."""
    unanswered = (*identity.unanswered, rng.token(_BYTES))[-limits.identity_tokens_max :]
    return replace(identity, start=identity.start + 1, unanswered=unanswered)


def on_recorded(identity: Identity, token: bytes) -> Identity:
    """The cluster has recorded the start with this token."""
    if token not in identity.unanswered:
        return identity
    upto = identity.unanswered.index(token) + 1
    recorded = (*identity.recorded, *identity.unanswered[:upto])[-limits.identity_tokens_max :]
    return replace(identity, recorded=recorded, unanswered=identity.unanswered[upto:], is_founding=False)


def is_accepted(known: tuple[bytes, bytes], identity: bytes, tokens: tuple[bytes, ...]) -> bool:
    """Is a folder the one that is known as (identity, recorded token), and no older than that?

    Empty: nothing is known yet, as of a node that was just added.
    """
    known_identity, recorded = known
    return known_identity in (b"", identity) and (not recorded or recorded in tokens)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Identity)


def encode_identity(identity: Identity) -> bytes:
    """The identity file."""
    head = _MAGIC + FORMAT.to_bytes(4, "big") + _encoder.encode(identity)
    return head + crc32c(head).to_bytes(4, "big")


def decode_identity(data: bytes) -> Identity:
    """Read the identity file; raises `IdentityDamaged`."""
    head = len(_MAGIC) + 4
    if len(data) < head + 4 or data[: len(_MAGIC)] != _MAGIC:
        raise IdentityDamaged("is not an identity file")
    if int.from_bytes(data[len(_MAGIC) : head], "big") != FORMAT:
        raise IdentityDamaged("was written by a newer MirrorMQ")
    if int.from_bytes(data[-4:], "big") != crc32c(data[:-4]):
        raise IdentityDamaged("is damaged: its checksum does not match")
    try:
        return _decoder.decode(data[head:-4])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise IdentityDamaged(f"is damaged: {error}") from error
