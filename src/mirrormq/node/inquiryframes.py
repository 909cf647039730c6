"""Frames by which a node asks another for rows of what it holds (docs/protocol/inquiry.md).

Guarantee: what `decode` returns is well formed down to its fields, and every row in it can be decoded by
`row_of`; anything else raises `BadFrame`, which costs the link and nothing more.

The first octet names family and version, the rest is MessagePack. Texts of clients travel as octets, since
they need not be Unicode.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from mirrormq.base import limits
from mirrormq.node.peerframes import BadFrame

FAMILY = 0xF7
"""Inquiries, version 1."""

NUMBER_MAX = (1 << 62) - 1

FIRST = bytes((FAMILY,))
"""How all of them begin."""

CONTROL, BULK = 0, 1
"""Lanes: questions must not wait behind messages, answers must wait like them."""

Row = dict[str, Any]

_Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
_Word = Annotated[str, Meta(max_length=limits.short_string_bytes_max)]
_Octets = Annotated[bytes, Meta(max_length=limits.inquiry_text_bytes_max)]
_Ids = Annotated[tuple[_Number, ...], Meta(max_length=limits.inquiry_ids_max)]


class Ask(Struct, frozen=True, array_like=True, tag="ask"):
    """A question; later versions append fields. What a field narrows depends on the kind."""

    number: _Number
    """Of this question among those of its sender."""
    kind: _Word
    vhost: _Octets | None = None
    """Only what is in this vhost."""
    name: _Octets = b""
    """Only what has this name, or for connections this pid."""
    owner: _Octets = b""
    """Only what belongs to this connection, or to this user."""
    ids: _Ids = ()
    """Only these queues, or what belongs to them."""
    reason: _Octets = b""
    """For what is to be closed."""
    limit: _Number = 0
    """Close at most so many; 0: all."""
    body: Annotated[bytes, Meta(max_length=limits.inquiry_body_bytes_max)] = b""
    """Arguments of what a client of the bulk protocol asks; or which rates are wanted."""


class Rows(Struct, frozen=True, array_like=True, tag="rows"):
    """A part of an answer. The last one may say why there is no more."""

    number: _Number
    is_last: bool
    rows: Annotated[list[Raw], Meta(max_length=limits.inquiry_rows_per_pass)] = []
    problem: _Word = ""


class Stop(Struct, frozen=True, array_like=True, tag="stop"):
    """Nobody waits for the answer any more."""

    number: _Number


Frame = Ask | Rows | Stop


def _plain(value: object) -> object:
    """What MessagePack has no form for: numbers of our own types as numbers, anything else in words."""
    return int(value) if isinstance(value, int) else str(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain, decimal_format="number")
_decoder = msgspec.msgpack.Decoder(Frame)
_row_decoder = msgspec.msgpack.Decoder(dict[str, Any])
_NO_FRAME = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)


def encode(frame: Frame) -> bytes:
    """A frame with its family in front."""
    return FIRST + _encoder.encode(frame)


def decode(payload: bytes | memoryview) -> Frame:
    """Read a frame, which keeps nothing of `payload`; raises `BadFrame`."""
    if len(payload) > limits.inquiry_frame_bytes_max or bytes(payload[:1]) != FIRST:
        raise BadFrame("no frame of this version")
    try:
        frame: Frame = _decoder.decode(bytes(payload[1:]))
        if isinstance(frame, Rows):
            for row in frame.rows:
                _row_decoder.decode(row)
    except _NO_FRAME as error:
        raise BadFrame(f"inquiry: {error}") from None
    return frame


def packed(row: Row) -> Raw:
    """A row as bytes; stray octets in it are shown as escapes, as in JSON."""
    try:
        return Raw(_encoder.encode(row))
    except UnicodeEncodeError:
        return Raw(_encoder.encode(_readable(row)))


def row_of(raw: Raw) -> Row:
    """A row that `decode` has let pass."""
    return _row_decoder.decode(raw)


def octets(text: str) -> bytes:
    """A text for a question. One that is too long, or that no client can have sent, names nothing anyway."""
    try:
        found = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        found = text.encode("utf-8", "replace")
    return found[: limits.inquiry_text_bytes_max]


def text_of(data: bytes) -> str:
    """The text with these octets."""
    return data.decode("utf-8", "surrogateescape")


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_readable(name): _readable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    return value
