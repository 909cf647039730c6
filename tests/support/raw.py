"""A blocking AMQP client that sends exactly what it is told, right or wrong, to any broker.

Nothing happens behind a test's back: no heartbeats, no automatic close-ok, no retries. Every wait has the
socket's timeout, which raises `TimeoutError`; the end of the stream raises `Closed`.
"""

import socket
import struct
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from mirrormq.wire import methods
from mirrormq.wire.methods import Method
from mirrormq.wire.properties import Properties, decode_properties, encode_properties
from mirrormq.wire.spec import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    PROTOCOL_HEADER,
)
from mirrormq.wire.table import encode_table

M = TypeVar("M", bound=Method)

TIMEOUT_S = 10.0
RECV_BYTES = 65536

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class Closed(Exception):
    """The broker ended the stream. `rest` is what had arrived of an unfinished frame."""

    def __init__(self, rest: bytes = b"") -> None:
        super().__init__(f"closed by the broker after {len(rest)} bytes of an unfinished frame")
        self.rest = rest


class Unexpected(AssertionError):
    """Another frame arrived than the one asked for; `frame` is it."""

    def __init__(self, wanted: str, frame: "Frame") -> None:
        super().__init__(f"wanted {wanted}, got {frame}")
        self.frame = frame


class Frame(NamedTuple):
    """One frame from the broker; `method` decodes it where it is one."""

    type: int
    channel: int
    payload: bytes

    @property
    def method(self) -> Method:
        assert self.type == FRAME_METHOD, self.type
        return methods.decode(self.payload)

    def __repr__(self) -> str:
        if self.type == FRAME_METHOD:
            return f"Frame({self.channel}, {self.method})"
        return f"Frame(type {self.type}, {self.channel}, {self.payload[:64]!r})"


class Content(NamedTuple):
    """The header and body frames behind basic.deliver, get-ok or return, put together."""

    raw_properties: bytes
    body: bytes
    frames: int

    @property
    def properties(self) -> Properties:
        return decode_properties(self.raw_properties)


def encode_frame(frame_type: int, channel: int, payload: bytes) -> bytes:
    """Build one frame."""
    return struct.pack(">BHI", frame_type, channel, len(payload)) + payload + bytes((FRAME_END,))


class RawClient:
    """One socket to a broker; use `connect`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.frame_max = 131072
        self.server_properties: dict[str, Any] = {}
        self._buffer = bytearray()

    # --- sending ---

    def send(self, data: bytes) -> None:
        """Send any bytes."""
        self.sock.sendall(data)

    def send_frame(self, frame_type: int, channel: int, payload: bytes) -> None:
        """Send one well-formed frame with any payload."""
        self.send(encode_frame(frame_type, channel, payload))

    def send_method(self, channel: int, method: Method) -> None:
        """Send one method."""
        self.send_frame(FRAME_METHOD, channel, methods.encode(method))

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
        self.send_frame(FRAME_HEARTBEAT, 0, b"")

    def send_content(
        self,
        channel: int,
        properties: bytes | Properties = b"\x00\x00",
        body: bytes = b"",
        frame_max: int | None = None,
    ) -> None:
        """Send a content header and the body frames; raw properties are sent as they are."""
        raw = properties if isinstance(properties, bytes) else encode_properties(properties)
        head = struct.pack(">HHQ", CLASS_BASIC, 0, len(body)) + raw
        size = (frame_max or self.frame_max) - FRAME_OVERHEAD
        parts = [encode_frame(FRAME_HEADER, channel, head)]
        parts += [encode_frame(FRAME_BODY, channel, body[at : at + size]) for at in range(0, len(body), size)]
        self.send(b"".join(parts))

    def publish(
        self,
        channel: int,
        method: methods.BasicPublish,
        body: bytes = b"",
        properties: bytes | Properties = b"\x00\x00",
    ) -> None:
        """Send basic.publish and its content."""
        self.send_method(channel, method)
        self.send_content(channel, properties, body)

    # --- receiving ---

    def read_frame(self) -> Frame:
        """Return the next frame, heartbeats included."""
        frame_type, channel, size = struct.unpack(">BHI", self._peek(7))
        whole = self._peek(7 + size + 1)
        assert whole[-1] == FRAME_END, f"frame of {size} bytes ends with {whole[-1]:#x}"
        del self._buffer[: len(whole)]
        return Frame(frame_type, channel, whole[7:-1])

    def next_frame(self) -> Frame:
        """Return the next frame that is not a heartbeat."""
        frame = self.read_frame()
        while frame.type == FRAME_HEARTBEAT:
            frame = self.read_frame()
        return frame

    def expect(self, channel: int, kind: type[M]) -> M:
        """Return the next method, which must be a `kind` on `channel`; heartbeats are skipped."""
        frame = self.next_frame()
        if frame.type == FRAME_METHOD and frame.channel == channel:
            method = frame.method
            if isinstance(method, kind):
                return method
        raise Unexpected(f"{kind.name} on channel {channel}", frame)

    def expect_content(self, channel: int) -> Content:
        """Return the content whose method was just read."""
        head = self.next_frame()
        if head.type != FRAME_HEADER or head.channel != channel:
            raise Unexpected(f"a content header on channel {channel}", head)
        _, _, size = struct.unpack_from(">HHQ", head.payload)
        body, frames = b"", 0
        while len(body) < size:
            part = self.next_frame()
            if part.type != FRAME_BODY or part.channel != channel:
                raise Unexpected(f"a body frame on channel {channel}", part)
            body += part.payload
            frames += 1
        assert len(body) == size, (len(body), size)
        return Content(head.payload[12:], body, frames)

    def call(self, channel: int, method: Method, kind: type[M]) -> M:
        """Send a method and return its answer."""
        self.send_method(channel, method)
        return self.expect(channel, kind)

    def read_until_closed(self) -> list[Frame]:
        """Return every frame up to the end of the stream; one that stays open is a `TimeoutError`."""
        frames = []
        try:
            while True:
                frames.append(self.read_frame())
        except Closed:
            return frames

    def is_closed(self) -> bool:
        """Wait for the end of the stream; False if another frame arrives first."""
        try:
            self.next_frame()
        except Closed:
            return True
        return False

    # --- dialogues ---

    def handshake(
        self,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        *,
        client_properties: dict[str, Any] | None = None,
        frame_max: int | None = None,
        channel_max: int | None = None,
        heartbeat: int = 0,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
    ) -> methods.ConnectionTune:
        """Log in and open a vhost; return what the broker proposed. None takes the broker's proposal."""
        self.send(PROTOCOL_HEADER)
        self.server_properties = self.expect(0, methods.ConnectionStart).server_properties
        properties = {"product": "raw", "capabilities": CAPABILITIES}
        start_ok = methods.ConnectionStartOk(
            client_properties=properties if client_properties is None else client_properties,
            mechanism=mechanism,
            response=sasl_response(mechanism, user, password) if response is None else response,
        )
        tune = self.call(0, start_ok, methods.ConnectionTune)
        self.frame_max = (tune.frame_max if frame_max is None else frame_max) or 131072
        tune_ok = methods.ConnectionTuneOk(
            channel_max=tune.channel_max if channel_max is None else channel_max,
            frame_max=tune.frame_max if frame_max is None else frame_max,
            heartbeat=heartbeat,
        )
        self.send_method(0, tune_ok)
        self.call(0, methods.ConnectionOpen(virtual_host=vhost), methods.ConnectionOpenOk)
        return tune

    def open_channel(self, number: int) -> int:
        """Open a channel and return its number."""
        self.call(number, methods.ChannelOpen(), methods.ChannelOpenOk)
        return number

    def close(self) -> None:
        """Drop the socket without a word."""
        self.sock.close()

    def close_cleanly(self) -> None:
        """Say connection.close, wait for close-ok and drop the socket; what arrives in between is skipped."""
        self.send_method(0, methods.ConnectionClose(reply_code=200, reply_text="bye"))
        frame = self.next_frame()
        while frame.type != FRAME_METHOD or not isinstance(frame.method, methods.ConnectionCloseOk):
            frame = self.next_frame()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _peek(self, size: int) -> bytes:
        """Return the next `size` bytes, which stay in the buffer."""
        while len(self._buffer) < size:
            try:
                data = self.sock.recv(RECV_BYTES)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Closed(bytes(self._buffer))
            self._buffer += data
        return bytes(self._buffer[:size])


def connect(host: str, port: int, timeout: float = TIMEOUT_S) -> RawClient:
    """Connect without sending anything; `timeout` bounds every later read and write."""
    sock = socket.create_connection((host, port), timeout=timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return RawClient(sock)


def sasl_response(mechanism: str, user: str, password: str) -> bytes:
    """Build the response of PLAIN, AMQPLAIN or EXTERNAL."""
    if mechanism == "PLAIN":
        return b"\x00" + user.encode() + b"\x00" + password.encode()
    if mechanism == "AMQPLAIN":
        return encode_table({"LOGIN": user, "PASSWORD": password})[4:]
    return b""
