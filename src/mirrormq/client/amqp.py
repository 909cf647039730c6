"""A small blocking AMQP 0-9-1 client for our own tools: one connection, one channel, all confirms.

What was asked for comes back as one of five events: `Confirmed`, `Refused` (basic.nack), `Returned`,
`Delivered`, `Cancelled`. Nothing is hidden: a lost connection is `Gone`, and what was not confirmed by then
is unknown. Programs of users have better clients.
"""

from __future__ import annotations

import select
import socket
import ssl
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
    FRAME_METHOD,
    FRAME_OVERHEAD,
    PROTOCOL_HEADER,
)

CHANNEL = 1
BODY_SIZE_AT, PROPERTIES_AT = 4, 12
"""Where they are in the header of a content."""
RECV_BYTES = 65_536
FRAME_MAX = 131_072
CAPABILITIES = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
}

M = TypeVar("M", bound=Method)


class Gone(ConnectionError):
    """The connection is over."""


class Confirmed(NamedTuple):
    """The broker has taken responsibility for publishes."""

    tag: int
    multiple: bool


class Refused(NamedTuple):
    """The broker has not: their outcome is unknown, or a limit forbade them."""

    tag: int
    multiple: bool


class Returned(NamedTuple):
    """No queue takes a mandatory message; its confirm follows."""

    text: str
    exchange: str
    routing_key: str


class Delivered(NamedTuple):
    """A message for a consumer."""

    tag: int
    redelivered: bool
    body: bytes
    routing_key: str = ""
    properties: bytes = b""

    @property
    def headers(self) -> dict[str, Any]:
        """The headers of the message."""
        return decode_properties(self.properties).headers or {}


class Cancelled(NamedTuple):
    """A consumer was cancelled by the broker."""

    tag: str


Event = Confirmed | Refused | Returned | Delivered | Cancelled


class AmqpClient:
    """One connection with one channel in confirm mode."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        tls: ssl.SSLContext | None = None,
        timeout: float,
    ):
        """Log in; every wait ends after `timeout` seconds with `TimeoutError`."""
        self._buffer = bytearray()
        self._tag = 0
        self._events: list[Event] = []
        self._frame_max = FRAME_MAX
        self._socket = socket.create_connection((host, port), timeout)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            self._log_in(user, password, vhost)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _log_in(self, user: str, password: str, vhost: str) -> None:
        self._socket.sendall(PROTOCOL_HEADER)
        self._expect(0, methods.ConnectionStart)
        start_ok = methods.ConnectionStartOk(
            client_properties={"product": "mirrormq", "capabilities": CAPABILITIES},
            mechanism="PLAIN",
            response=f"\0{user}\0{password}".encode(),
        )
        tune = self._call(0, start_ok, methods.ConnectionTune)
        self._frame_max = tune.frame_max or FRAME_MAX
        self._send(0, methods.ConnectionTuneOk(tune.channel_max, tune.frame_max, 0))
        self._call(0, methods.ConnectionOpen(virtual_host=vhost), methods.ConnectionOpenOk)
        self._call(CHANNEL, methods.ChannelOpen(), methods.ChannelOpenOk)
        self._call(CHANNEL, methods.ConfirmSelect(), methods.ConfirmSelectOk)

    # --- asking ---

    def declare(self, queue: str) -> None:
        """Declare a durable queue."""
        self._call(CHANNEL, methods.QueueDeclare(queue=queue, durable=True), methods.QueueDeclareOk)

    def publish(self, queue: str, body: bytes) -> int:
        """Publish a persistent message; the number by which it will be confirmed."""
        return self._publish(methods.BasicPublish(routing_key=queue), PERSISTENT, body)

    def publish_raw(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> int:
        """The same with any exchange and raw properties, and mandatory: returned if no queue takes it."""
        method = methods.BasicPublish(exchange=exchange, routing_key=routing_key, mandatory=True)
        return self._publish(method, properties, body)

    def _publish(self, method: Method, properties: bytes, body: bytes) -> int:
        head = struct.pack(">HHQ", CLASS_BASIC, 0, len(body)) + properties
        size = self._frame_max - FRAME_OVERHEAD
        parts = [
            _frame(FRAME_METHOD, CHANNEL, methods.encode(method)),
            _frame(FRAME_HEADER, CHANNEL, head),
            *(_frame(FRAME_BODY, CHANNEL, body[at : at + size]) for at in range(0, len(body), size)),
        ]
        self._write(b"".join(parts))
        self._tag += 1
        return self._tag

    def consume(self, queue: str, prefetch: int) -> None:
        """Take messages from a queue, so many unacknowledged at most."""
        self._call(CHANNEL, methods.BasicQos(0, prefetch, False), methods.BasicQosOk)
        self._call(CHANNEL, methods.BasicConsume(queue=queue), methods.BasicConsumeOk)

    def subscribe(self, exchange: str, routing_key: str) -> None:
        """Take what an exchange routes by a key, into a queue that lasts as long as the connection."""
        declare = methods.QueueDeclare(exclusive=True, auto_delete=True)
        queue = self._call(CHANNEL, declare, methods.QueueDeclareOk).queue
        bind = methods.QueueBind(queue=queue, exchange=exchange, routing_key=routing_key)
        self._call(CHANNEL, bind, methods.QueueBindOk)
        self._call(CHANNEL, methods.BasicConsume(queue=queue, no_ack=True), methods.BasicConsumeOk)

    def ack(self, tag: int) -> None:
        """Acknowledge everything up to a delivery."""
        self._send(CHANNEL, methods.BasicAck(tag, True))

    def close(self) -> None:
        """Say goodbye."""
        self._call(0, methods.ConnectionClose(reply_code=200, reply_text="bye"), methods.ConnectionCloseOk)
        self._socket.close()

    def drop(self) -> None:
        """End the connection without a word."""
        self._socket.close()

    # --- hearing ---

    def has_more(self, seconds: float) -> bool:
        """Wait so long at most for something to begin to arrive."""
        is_here = bool(self._events or self._buffer)
        return is_here or bool(select.select([self._socket], [], [], seconds)[0])

    def next_event(self) -> Event:
        """Wait for the next event."""
        while not self._events:
            self._take(*self._read())
        return self._events.pop(0)

    def _take(self, channel: int, method: Method) -> None:
        if isinstance(method, methods.BasicAck):
            self._events.append(Confirmed(method.delivery_tag, method.multiple))
        elif isinstance(method, methods.BasicNack):
            self._events.append(Refused(method.delivery_tag, method.multiple))
        elif isinstance(method, methods.BasicReturn):
            self._read_content()
            self._events.append(Returned(method.reply_text, method.exchange, method.routing_key))
        elif isinstance(method, methods.BasicDeliver):
            properties, body = self._read_content()
            delivered = Delivered(
                method.delivery_tag, method.redelivered, body, method.routing_key, properties
            )
            self._events.append(delivered)
        elif isinstance(method, methods.BasicCancel):
            self._events.append(Cancelled(method.consumer_tag))
        elif isinstance(method, methods.ConnectionClose | methods.ChannelClose):
            raise Gone(f"{method.reply_code} {method.reply_text}")
        elif not isinstance(method, methods.ConnectionBlocked | methods.ConnectionUnblocked):
            raise Gone(f"unexpected {method.name} on channel {channel}")

    def _call(self, channel: int, method: Method, kind: type[M]) -> M:
        self._send(channel, method)
        return self._expect(channel, kind)

    def _expect(self, channel: int, kind: type[M]) -> M:
        while True:
            where, method = self._read()
            if where == channel and isinstance(method, kind):
                return method
            self._take(where, method)

    def _read(self) -> tuple[int, Method]:
        while True:
            kind, channel, payload = self._read_frame()
            if kind == FRAME_METHOD:
                return channel, methods.decode(payload)

    def _read_content(self) -> tuple[bytes, bytes]:
        kind, _, head = self._read_frame()
        while kind != FRAME_HEADER:
            kind, _, head = self._read_frame()
        (size,) = struct.unpack_from(">Q", head, BODY_SIZE_AT)
        parts = bytearray()
        while len(parts) < size:
            kind, _, payload = self._read_frame()
            parts += payload if kind == FRAME_BODY else b""
        return head[PROPERTIES_AT:], bytes(parts)

    def _read_frame(self) -> tuple[int, int, bytes]:
        while len(self._buffer) < FRAME_OVERHEAD:
            self._receive()
        kind, channel, size = struct.unpack_from(">BHI", self._buffer)
        while len(self._buffer) < size + FRAME_OVERHEAD:
            self._receive()
        payload = bytes(self._buffer[FRAME_OVERHEAD - 1 : FRAME_OVERHEAD - 1 + size])
        del self._buffer[: size + FRAME_OVERHEAD]
        return kind, channel, payload

    def _receive(self) -> None:
        try:
            data = self._socket.recv(RECV_BYTES)
        except TimeoutError:
            raise
        except OSError as error:
            raise Gone(str(error)) from None
        if not data:
            raise Gone("the broker closed the connection")
        self._buffer += data

    def _send(self, channel: int, method: Method) -> None:
        self._write(_frame(FRAME_METHOD, channel, methods.encode(method)))

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise
        except OSError as error:
            raise Gone(str(error)) from None


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((FRAME_END,))


PERSISTENT = encode_properties(Properties(delivery_mode=2))
