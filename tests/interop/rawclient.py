"""An AMQP client of single frames, for what real clients never send and to see frames exactly as written.

Encoded and decoded with `pamqp`, an implementation independent of ours. Nothing happens behind a test's
back: no heartbeats, no automatic close, no reconnect.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pamqp import body, commands, frame, header, heartbeat

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
DEADLINE_S = 10.0
CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


class Closed(Exception):
    """The broker closed the socket."""


@dataclass
class Content:
    """A method with its content: deliver, get-ok or return."""

    method: Any
    properties: commands.Basic.Properties
    body: bytes
    frames: int = 0


@dataclass
class RawClient:
    """One socket to a broker, with the frames received so far."""

    sock: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    seen: list[Any] = field(default_factory=list)

    @classmethod
    def connect(cls, host: str, port: int, context: ssl.SSLContext | None = None) -> RawClient:
        sock = socket.create_connection((host, port), timeout=DEADLINE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname="localhost")
        return cls(sock)

    def close(self) -> None:
        self.sock.close()

    # Sending

    def send_bytes(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send(self, channel: int, value: Any) -> None:
        self.send_bytes(frame.marshal(value, channel))

    def send_method(self, channel: int, payload: bytes) -> None:
        """A method frame from its raw payload: class id, method id, arguments."""
        self.send_bytes(raw_frame(1, channel, payload))

    def send_heartbeat(self) -> None:
        self.send_bytes(raw_frame(8, 0, b""))

    def publish(
        self,
        channel: int,
        routing_key: str,
        data: bytes = b"",
        *,
        exchange: str = "",
        mandatory: bool = False,
        properties: commands.Basic.Properties | None = None,
        chunk: int = 131064,
    ) -> None:
        self.send_bytes(
            frame.marshal(
                commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory),
                channel,
            )
            + frame.marshal(
                header.ContentHeader(0, len(data), properties or commands.Basic.Properties()), channel
            )
            + b"".join(
                frame.marshal(body.ContentBody(data[at : at + chunk]), channel)
                for at in range(0, len(data), chunk)
            )
        )

    # Receiving

    def receive(self, seconds: float = DEADLINE_S) -> tuple[int, Any]:
        """The next frame as (channel, value); Closed at the end of the stream, TimeoutError when late."""
        deadline = time.monotonic() + seconds
        while True:
            if self.buffer:
                taken, channel, value = self._unmarshal()
                if value is not None:
                    del self.buffer[:taken]
                    return channel, value
            self._fill(deadline)

    def _unmarshal(self) -> tuple[int, int, Any]:
        if self.buffer[:4] == b"AMQP" or len(self.buffer) < 7:
            return frame.unmarshal(bytes(self.buffer)) if len(self.buffer) >= 8 else (0, 0, None)
        size = struct.unpack_from(">I", self.buffer, 3)[0] + 8
        if len(self.buffer) < size:
            return 0, 0, None
        return frame.unmarshal(bytes(self.buffer[:size]))

    def _fill(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no frame came in time")
        self.sock.settimeout(left)
        try:
            data = self.sock.recv(262144)
        except ConnectionResetError as reset:
            raise Closed("reset") from reset
        if not data:
            raise Closed("end of stream")
        self.buffer += data

    def expect(self, kind: Any, channel: int | None = None, seconds: float = DEADLINE_S) -> Any:
        """The next frame, heartbeats aside, which must be a `kind`."""
        while True:
            number, value = self.receive(seconds)
            if isinstance(value, heartbeat.Heartbeat) and kind is not heartbeat.Heartbeat:
                continue
            assert isinstance(value, kind), f"wanted {kind.__name__}, got {describe(value)}"
            assert channel is None or number == channel
            return value

    def expect_content(self, kind: Any, channel: int | None = None, seconds: float = DEADLINE_S) -> Content:
        """A method of `kind` with its header and all of its body frames."""
        method = self.expect(kind, channel, seconds)
        head = self.expect(header.ContentHeader, channel, seconds)
        data, frames = b"", 0
        while len(data) < head.body_size:
            data += self.expect(body.ContentBody, channel, seconds).value
            frames += 1
        return Content(method, head.properties, data, frames)

    def call(self, channel: int, request: Any, answer: Any) -> Any:
        self.send(channel, request)
        return self.expect(answer, channel)

    def wait_closed(self, seconds: float = DEADLINE_S) -> None:
        """Read until the broker ends the connection."""
        with contextlib.suppress(Closed):
            while True:
                self.receive(seconds)

    # Conversations

    def start(self) -> commands.Connection.Start:
        self.send_bytes(PROTOCOL_HEADER)
        return self.expect(commands.Connection.Start, 0)

    def start_ok(
        self,
        response: str,
        mechanism: str = "PLAIN",
        client_properties: dict[str, Any] | None = None,
    ) -> None:
        self.send(
            0,
            commands.Connection.StartOk(
                client_properties={"capabilities": CAPABILITIES}
                if client_properties is None
                else client_properties,
                mechanism=mechanism,
                response=response,
                locale="en_US",
            ),
        )

    def tune_ok(self, channel_max: int = 0, frame_max: int = 0, beat: int = 0) -> None:
        self.send(0, commands.Connection.TuneOk(channel_max, frame_max, beat))

    def log_in(
        self, user: str, password: str, client_properties: dict[str, Any] | None = None
    ) -> commands.Connection.Tune:
        self.start()
        self.start_ok(f"\0{user}\0{password}", client_properties=client_properties)
        return self.expect(commands.Connection.Tune, 0)

    def open(
        self,
        broker: Any,
        *,
        channel_max: int = 2047,
        frame_max: int = 131072,
        beat: int = 0,
        client_properties: dict[str, Any] | None = None,
    ) -> RawClient:
        """The whole handshake, into the broker's vhost."""
        self.log_in(broker.user, broker.password, client_properties)
        self.tune_ok(channel_max, frame_max, beat)
        self.call(0, commands.Connection.Open(virtual_host=broker.vhost), commands.Connection.OpenOk)
        return self

    def channel(self, number: int = 1, *, confirm: bool = False) -> int:
        self.call(number, commands.Channel.Open(), commands.Channel.OpenOk)
        if confirm:
            self.call(number, commands.Confirm.Select(), commands.Confirm.SelectOk)
        return number


def raw_frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def describe(value: Any) -> str:
    reply = getattr(value, "reply_text", None)
    return f"{getattr(value, 'name', type(value).__name__)}" + (
        f" {value.reply_code} {reply}" if reply else ""
    )


@contextlib.contextmanager
def raw(host: str, port: int, context: ssl.SSLContext | None = None) -> Iterator[RawClient]:
    client = RawClient.connect(host, port, context)
    try:
        yield client
    finally:
        client.close()
