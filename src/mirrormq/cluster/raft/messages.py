"""What nodes say to each other: a version byte and a msgpack array per message (docs/protocol/raft.md).

Guarantee: `decode(encode(m)) == m`; whatever else arrives raises `BadMessage` and nothing else. Lengths are
bounded by `limits.raft_frame_bytes_max`, which the link enforces before it reads a frame.

A link has two lanes, each in order but not against each other: a frame that fits a chunk goes by control, a
larger one by bulk (`is_bulk`). Only entries and parts of a snapshot are ever that large.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from mirrormq.base import limits

VERSION = 1

_Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Short = Annotated[bytes, Meta(max_length=16)]
_Name = Annotated[str, Meta(max_length=limits.short_string_bytes_max)]


class BadMessage(Exception):
    """Bytes that are no message of this version."""


class Hello(Struct, array_like=True, frozen=True, tag=1):
    """The first message on a link: which data folder speaks, and the starts it can prove, newest last."""

    identity: _Short
    start: _Number
    tokens: Annotated[tuple[_Short, ...], Meta(min_length=1, max_length=4 * limits.identity_tokens_max)]


class Append(Struct, array_like=True, frozen=True, tag=2):
    """Entries (term, data) behind (prev_index, prev_term), and how far the log is committed."""

    term: _Number
    prev_index: _Number
    prev_term: _Number
    commit: _Number
    entries: tuple[tuple[_Number, bytes], ...] = ()


class AppendAnswer(Struct, array_like=True, frozen=True, tag=3):
    """`is_ok`: the log is the sender's up to `index` and flushed. Otherwise `index` was the prev_index that
    does not match, and the logs may agree at `hint`.
    """

    term: _Number
    is_ok: bool
    index: _Number
    hint: _Number = 0


class Heartbeat(Struct, array_like=True, frozen=True, tag=4):
    """I lead. Grants a lease: `left` microseconds from `echo`, a time the receiver itself has sent."""

    term: _Number
    round: _Number
    commit: _Number
    echo: _Number = 0
    left: _Number = 0


class HeartbeatAnswer(Struct, array_like=True, frozen=True, tag=5):
    """Heard round `round`, and answered when the sender's own clock showed `sent`."""

    term: _Number
    round: _Number
    sent: _Number


class VoteRequest(Struct, array_like=True, frozen=True, tag=6):
    """Would you (`is_pre`), will you vote for me in `term`? `is_transfer`: the leader asked me to."""

    term: _Number
    last_index: _Number
    last_term: _Number
    is_pre: bool
    is_transfer: bool = False


class VoteAnswer(Struct, array_like=True, frozen=True, tag=7):
    """The vote, and which lease of which leader the voter still vouches for, and for how long.

    `any_left`: for how long it may vouch for one it has forgotten, because it was started a moment ago.
    """

    term: _Number
    is_granted: bool
    is_pre: bool
    leader: _Name = ""
    leader_term: _Number = 0
    left: _Number = 0
    any_left: _Number = 0


class SnapshotPart(Struct, array_like=True, frozen=True, tag=8):
    """Bytes of the snapshot file that is named by index, term, size and checksum."""

    term: _Number
    index: _Number
    last_term: _Number
    size: _Number
    crc: _Number
    offset: _Number
    data: bytes = b""


class SnapshotAnswer(Struct, array_like=True, frozen=True, tag=9):
    """The next byte wanted of that snapshot. That it is in use is said by an `AppendAnswer`."""

    term: _Number
    index: _Number
    crc: _Number
    offset: _Number


class TimeoutNow(Struct, array_like=True, frozen=True, tag=10):
    """Stand for election at once: the leader hands over."""

    term: _Number


class Removed(Struct, array_like=True, frozen=True, tag=11):
    """I lead, and the configuration that is committed at `index` does not name the receiver; `is_folder`: it
    names another data folder, or one that has had a later start.
    """

    term: _Number
    index: _Number
    is_folder: bool = False


class ReadRequest(Struct, array_like=True, frozen=True, tag=12):
    """Up to where must I have applied, to know everything that was acknowledged before you got this?"""

    term: _Number
    number: _Number


class ReadAnswer(Struct, array_like=True, frozen=True, tag=13):
    """Up to `index`, for all requests up to `number`; not `is_ok`: ask again."""

    term: _Number
    number: _Number
    index: _Number
    is_ok: bool = True


Message = (
    Hello
    | Append
    | AppendAnswer
    | Heartbeat
    | HeartbeatAnswer
    | VoteRequest
    | VoteAnswer
    | SnapshotPart
    | SnapshotAnswer
    | TimeoutNow
    | Removed
    | ReadRequest
    | ReadAnswer
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_HEAD = bytes((VERSION,))
_PREFIX_BYTES = 1
"""A link puts one octet before a frame, to tell it from those of others."""


def encode(message: Message) -> bytes:
    """Make a frame of it."""
    return _HEAD + _encoder.encode(message)


def is_bulk(frame: bytes) -> bool:
    """Does this frame travel on the bulk lane of a link, which is not ordered against the control lane?"""
    return len(frame) + _PREFIX_BYTES > limits.peer_chunk_bytes


def decode(frame: bytes) -> Message:
    """Read a frame; raises `BadMessage`."""
    if len(frame) > limits.raft_frame_bytes_max:
        raise BadMessage(f"{len(frame)} bytes")
    if frame[:1] != _HEAD:
        raise BadMessage(f"version {frame[:1].hex() or 'missing'}")
    try:
        return _decoder.decode(memoryview(frame)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from error
