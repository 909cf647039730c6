"""Frames between the copies of queues, as values and as bytes (docs/protocol/mirror.md).

Guarantee: what `decode` returns is well formed down to its fields; anything else raises `BadFrame`, which
costs the link and nothing more. Batches have checksums of their own and are checked where they are taken.

One frame carries everything a pass has for a peer, of all queues: [0xF6][u32 bytes of the head][head][raw].
The head is MessagePack; the bytes that belong to its flows lie behind it, in their order and unchanged.
"""

import struct
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from mirrormq.base import limits
from mirrormq.mirror.ports import Data

FAMILY = 0xF6
"""Mirroring, version 1."""

_HEAD = struct.Struct("<BI")

_Number = Annotated[int, Meta(ge=0, lt=1 << 62)]
_Epochs = Annotated[tuple[tuple[_Number, _Number], ...], Meta(max_length=limits.mirror_epochs_max)]

COMPLETE = 1
"""Flag of a report: nothing live is missing, and all of it is flushed."""
LEAVE = 2
"""Flag of a report: the copy would have to start anew, which it may not do in this epoch (F9)."""


class BadFrame(Exception):
    """A peer sent what no node of this version sends; its link is closed."""


class Hello(Struct, frozen=True, array_like=True):
    """To a source: push to me what follows the part of my log that is yours, too."""

    queue: _Number
    epoch: _Number
    nonce: _Number
    end: _Number
    epochs: _Epochs
    copied: _Number
    base: _Number
    """Not 0: an unfinished copy as of here, which has come as far as `copied`."""


class Stop(Struct, frozen=True, array_like=True):
    """To a source: push nothing more."""

    queue: _Number
    nonce: _Number


class Again(Struct, frozen=True, array_like=True):
    """From a source: no epoch of this hello is known here; say hello as if the log ended before them."""

    queue: _Number
    epoch: _Number
    nonce: _Number


class Report(Struct, frozen=True, array_like=True):
    """To the master: how far this copy is."""

    queue: _Number
    epoch: _Number
    received: _Number
    flushed: _Number
    flags: _Number


class Mark(Struct, frozen=True, array_like=True):
    """From the master: everything up to here is flushed by all members."""

    queue: _Number
    epoch: _Number
    durable: _Number


class Push(Struct, frozen=True, array_like=True, tag=1):
    """From a source: batches that follow the record `after`. `is_start`: that is the last common one."""

    queue: _Number
    epoch: _Number
    nonce: _Number
    after: _Number
    after_epoch: _Number
    is_start: bool
    size: _Number


class Base(Struct, frozen=True, array_like=True, tag=2):
    """From the master: a full copy begins, or goes on behind `position` with another K0."""

    queue: _Number
    epoch: _Number
    nonce: _Number
    position: _Number
    base_size: _Number
    size: _Number
    """The same: nothing stands behind the base."""


class Part(Struct, frozen=True, array_like=True, tag=3):
    """From the master: live records of a full copy, which has come as far as `position` with them."""

    queue: _Number
    epoch: _Number
    nonce: _Number
    position: _Number
    size: _Number


Flow = Push | Base | Part


class Frame(Struct, frozen=True, array_like=True):
    """All that one pass has for one peer."""

    hellos: tuple[Hello, ...] = ()
    stops: tuple[Stop, ...] = ()
    reports: tuple[Report, ...] = ()
    marks: tuple[Mark, ...] = ()
    flows: tuple[Flow, ...] = ()
    agains: tuple[Again, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode(frame: Frame, raw: Sequence[Data]) -> tuple[Data, ...]:
    """The pieces of a frame; the bytes of its flows are not copied."""
    head = _encoder.encode(frame)
    return (_HEAD.pack(FAMILY, len(head)) + head, *raw)


def decode(data: Data) -> tuple[Frame, int]:
    """A frame, and where the bytes of its flows begin."""
    if len(data) < _HEAD.size:
        raise BadFrame("cut off")
    family, size = _HEAD.unpack_from(data)
    start = _HEAD.size + size
    if family != FAMILY or start > len(data):
        raise BadFrame("no frame of mirrors")
    try:
        frame = _decoder.decode(memoryview(data)[_HEAD.size : start])
    except msgspec.DecodeError as error:
        raise BadFrame(str(error)) from error
    if start + sum(flow.size for flow in frame.flows) != len(data):
        raise BadFrame("other bytes than announced")
    for flow in frame.flows:
        if isinstance(flow, Base) and flow.base_size > flow.size:
            raise BadFrame("a base larger than its flow")
    return frame, start
