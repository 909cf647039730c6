"""Frames of the bulk protocol, as both ends write and read them (docs/protocol/bulk.md).

Guarantee: `FrameBuffer` gives whole frames in order, each once, or raises `BadFrame` for a length or a kind
that cannot be; it never holds more than one frame and what was read at once.

`u32 length of what follows | u8 kind | u32 request | body`, little-endian. A body is a MessagePack map; in
DATA and PART it is raw bytes.
"""

import struct
from typing import Any, NamedTuple

import msgspec

HEADER = b"MMQB\x00\x00\x00\x01"
"""What a client sends first, and how a server answers a version it does not know."""
MAGIC = HEADER[:4]

CALL, ANSWER, ERROR, DATA, END, PING, PONG, CANCEL, PART = range(1, 10)
"""PART is a DATA that goes on in the next PART or DATA: a batch may be larger than a frame."""

DATA_BYTES_MAX = 16 * 1024 * 1024
FRAME_BYTES_MAX = DATA_BYTES_MAX + 64
_HEAD = struct.Struct("<IBI")
HEAD_BYTES = _HEAD.size
_COUNTED = HEAD_BYTES - 4
"""Bytes of the head that the length counts."""

# Codes of errors.
ACCESS = "access"
NOT_FOUND = "not-found"
REFUSED = "refused"
ELSEWHERE = "elsewhere"
DATA_LOSS = "data-loss"
GONE = "gone"
BUSY = "busy"
UNAVAILABLE = "unavailable"
UNKNOWN_OP = "unknown-op"
LIMIT = "limit"
CLOSED = "closed"
"""In an error about no request: the server ends the connection, and why."""

Fields = dict[str, Any]
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, ValueError)


class BadFrame(Exception):
    """Bytes that are no frame."""


class BulkError(Exception):
    """What was asked for is not done: a code for programs, a text for people, and facts for either."""

    def __init__(self, code: str, text: str, **more: Any) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.more = more

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class Frame(NamedTuple):
    """One frame."""

    kind: int
    request: int
    body: bytes


def head(kind: int, request: int, size: int) -> bytes:
    """What stands before a body of this size."""
    return _HEAD.pack(size + _COUNTED, kind, request)


def encode(kind: int, request: int, fields: Fields | None = None) -> bytes:
    """A frame with a map in it, or with nothing."""
    body = b"" if fields is None else _encoder.encode(fields)
    return head(kind, request, len(body)) + body


def read_head(data: bytes | bytearray, at: int = 0, most: int = FRAME_BYTES_MAX) -> tuple[int, int, int]:
    """(kind, request, bytes of the body) of the frame whose head is there."""
    length, kind, request = _HEAD.unpack_from(data, at)
    if not _COUNTED <= length <= most:
        raise BadFrame(f"a frame of {length} bytes; {most} are allowed")
    if not CALL <= kind <= PART:
        raise BadFrame(f"a frame of unknown kind {kind}")
    return kind, request, length - _COUNTED


def decode(body: bytes | bytearray | memoryview) -> Fields:
    """The map in a frame."""
    try:
        return _decoder.decode(body)
    except _UNREADABLE as error:
        raise BadFrame(f"this is no map: {error}") from None


class FrameBuffer:
    """Bytes in, frames out."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        """What the length of a frame may say at most."""
        self._data = bytearray()
        self._at = 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take what was read."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def next(self) -> Frame | None:
        """The next whole frame; None if more has to be read."""
        if len(self._data) - self._at < HEAD_BYTES:
            return None
        kind, request, size = read_head(self._data, self._at, self.frame_bytes_max)
        end = self._at + HEAD_BYTES + size
        if len(self._data) < end:
            return None
        body = bytes(memoryview(self._data)[self._at + HEAD_BYTES : end])
        self._at = end
        return Frame(kind, request, body)

    @property
    def size(self) -> int:
        """Bytes that wait for the rest of their frame, or to be taken."""
        return len(self._data) - self._at


def _plain(value: object) -> object:
    return int(value) if isinstance(value, int) else str(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder(Fields)
