"""A client of a simulated node: one connection with one channel, speaking AMQP frames.

It only writes, reads and numbers; what the answers mean for messages is the world's business.
"""

import struct
from collections.abc import Iterator

from mirrormq.wire import methods
from mirrormq.wire.methods import Method
from mirrormq.wire.spec import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    PROTOCOL_HEADER,
)

CHANNEL = 1
_PROPERTIES = {"capabilities": {"consumer_cancel_notify": True, "basic.nack": True}}
FRAME_MAX = 8192
_HEAD = struct.Struct(">BHI")

Content = tuple[bytes, bytes]
"""Raw properties and body."""
Arrival = tuple[Method, Content | None]


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return _HEAD.pack(kind, channel, len(payload)) + payload + bytes((FRAME_END,))


def log_in(mode: str) -> bytes:
    """Everything up to an open channel, in one piece: a client need not wait for the answers."""
    wanted: list[tuple[int, Method]] = [
        (0, methods.ConnectionStartOk(_PROPERTIES, "PLAIN", b"\x00guest\x00guest", "en_US")),
        (0, methods.ConnectionTuneOk(2047, FRAME_MAX, 0)),
        (0, methods.ConnectionOpen("/")),
        (CHANNEL, methods.ChannelOpen()),
    ]
    if mode == "confirm":
        wanted.append((CHANNEL, methods.ConfirmSelect()))
    elif mode == "tx":
        wanted.append((CHANNEL, methods.TxSelect()))
    frames = (frame(FRAME_METHOD, channel, methods.encode(method)) for channel, method in wanted)
    return PROTOCOL_HEADER + b"".join(frames)


def method_frame(method: Method) -> bytes:
    """A method on the session's channel."""
    return frame(FRAME_METHOD, CHANNEL, methods.encode(method))


def publish_frames(
    exchange: str, key: str, properties: bytes, body: bytes, *, mandatory: bool = False
) -> bytes:
    """All frames of one publish."""
    head = struct.pack(">HHQ", CLASS_BASIC, 0, len(body)) + properties
    step = FRAME_MAX - 8
    parts = [method_frame(methods.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory))]
    parts.append(frame(FRAME_HEADER, CHANNEL, head))
    parts += [frame(FRAME_BODY, CHANNEL, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join(parts)


class Reader:
    """Puts the node's output together: methods, each with its content if it has one."""

    def __init__(self) -> None:
        self._raw = b""
        self._method: Method | None = None
        self._properties = b""
        self._body = b""
        self._left = 0

    def feed(self, data: bytes) -> Iterator[Arrival]:
        """What is complete with these bytes."""
        raw = self._raw + data
        at = 0
        while len(raw) - at >= _HEAD.size:
            kind, _, size = _HEAD.unpack_from(raw, at)
            end = at + _HEAD.size + size + 1
            if end > len(raw):
                break
            assert raw[end - 1] == FRAME_END, raw[at:end]
            arrived = self._on_frame(kind, raw[at + _HEAD.size : end - 1])
            at = end
            if arrived is not None:
                yield arrived
        self._raw = raw[at:]

    def _on_frame(self, kind: int, payload: bytes) -> Arrival | None:
        if kind == FRAME_METHOD:
            method = methods.decode(payload)
            if not isinstance(method, methods.BasicDeliver | methods.BasicGetOk | methods.BasicReturn):
                return method, None
            self._method = method
            return None
        if kind == FRAME_HEADER:
            self._left = int.from_bytes(payload[4:12], "big")
            self._properties, self._body = payload[12:], b""
        elif kind == FRAME_BODY:
            self._body += payload
            self._left -= len(payload)
        if self._method is not None and self._left == 0:
            method, self._method = self._method, None
            return method, (self._properties, self._body)
        return None
