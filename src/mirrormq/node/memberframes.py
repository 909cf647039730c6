"""Frames by which nodes find each other and ask for changes of the membership (docs/protocol/membership.md).

Guarantee: what `decode` returns is well formed down to its fields; anything else raises `BadFrame`, which
costs the link and nothing more.

The first octet names family and version, the rest is MessagePack. All travel on the control lane.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from mirrormq.base import limits
from mirrormq.node.peerframes import BadFrame

RAFT = 0xF2
"""Frames of Raft, version 1: the rest is `cluster/raft/messages.py`."""
PROPOSALS = 0xF3
"""Metadata commands on their way to the leader, version 1: the rest is `cluster/metadata.py`."""
MEMBERSHIP = 0xF4
"""The frames of this file, version 1."""

CONTROL = 0
"""The lane of these frames, and of Raft's small ones."""

_Name = Annotated[str, Meta(min_length=1, max_length=limits.short_string_bytes_max)]
_Text = Annotated[str, Meta(max_length=limits.member_text_chars_max)]
_Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Number = Annotated[int, Meta(ge=0, lt=1 << 62)]


class Join(Struct, frozen=True, array_like=True, tag="join"):
    """A fresh node wants to become a member."""

    name: _Name
    identity: _Id
    address: _Text
    level: _Number


class Forget(Struct, frozen=True, array_like=True, tag="forget"):
    """A node shall be no member any more; `by` is who wants it."""

    name: _Name
    by: _Name


class ForceForget(Forget, frozen=True, array_like=True, tag="forget by force"):
    """The same for a node that may be serving queues without a lease: what it did since is lost."""


class SetRole(Struct, frozen=True, array_like=True, tag="role"):
    """A node shall vote, not vote, or be a witness."""

    name: _Name
    role: _Name


Wish = Join | Forget | ForceForget | SetRole


class Ask(Struct, frozen=True, array_like=True, tag="ask"):
    """A wish, until it is answered; `is_repeated`: asked before, maybe of somebody else."""

    number: _Number
    is_repeated: bool
    is_relayed: bool
    wish: Wish


class Answer(Struct, frozen=True, array_like=True, tag="answer"):
    """What became of a wish: without a `problem` it has come true. If it is not final, ask again."""

    number: _Number
    is_final: bool
    problem: _Text
    cluster: Annotated[bytes, Meta(max_length=16)] = b""
    addresses: Annotated[tuple[_Text, ...], Meta(max_length=limits.raft_members_max)] = ()


class Belong(Struct, frozen=True, array_like=True, tag="belong"):
    """The sender belongs to this cluster since after the link was opened."""

    cluster: _Id


Frame = Ask | Answer | Belong

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    """A frame with its family in front."""
    return bytes((MEMBERSHIP,)) + _encoder.encode(frame)


def decode(payload: bytes | memoryview) -> Frame:
    """Read a frame; raises `BadFrame`."""
    try:
        frame: Frame = _decoder.decode(payload[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(str(error)) from error
    return frame
