"""One AMQP dialogue, frame by frame, with every freedom a broken client has.

The methods are packed from pamqp's tables, not with MirrorMQ's codec: what a case sends is then the same
for both brokers and shares no mistake with the code under test. Nothing is validated on the way out.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pamqp import commands, frame

METHOD, HEADER, BODY, HEARTBEAT, END = 1, 2, 3, 8, 0xCE
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
REPLY_TIMEOUT_S = 15.0
NUMBERS = {"octet": ">B", "short": ">H", "long": ">I", "longlong": ">Q"}
CAPABILITIES = {
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "basic.nack": True,
    "authentication_failure_close": True,
    "connection.blocked": True,
    "exchange_exchange_bindings": True,
}


def dotted(camel: str) -> str:
    """pamqp's Queue.DeclareOk is queue.declare-ok everywhere else."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", camel).lower()


METHODS: list[Any] = list(commands.INDEX_MAPPING.values())
BY_NAME: dict[str, Any] = {dotted(method.name): method for method in METHODS}


class Literal(bytes):
    """A table value given as type byte and content, for what Python values cannot express."""


class Closed(Exception):
    """The broker ended the TCP connection."""


class Unanswered(Exception):
    """The broker sent nothing for REPLY_TIMEOUT_S."""


class Reply(NamedTuple):
    """A frame from the broker: for methods its dotted name and fields, else only the name of its type."""

    channel: int
    name: str
    fields: dict[str, Any]


def _integer(value: int) -> bytes:
    small = -(2**31) <= value < 2**31
    return b"I" + struct.pack(">i", value) if small else b"l" + struct.pack(">q", value)


def table_value(value: Any) -> bytes:
    match value:
        case Literal():
            return bytes(value)
        case bool():
            return b"t" + bytes([value])
        case int():
            return _integer(value)
        case float():
            return b"d" + struct.pack(">d", value)
        case str():
            return b"S" + struct.pack(">I", len(value.encode())) + value.encode()
        case list():
            packed = b"".join(table_value(item) for item in value)
            return b"A" + struct.pack(">I", len(packed)) + packed
        case dict():
            return b"F" + table(value)
        case None:
            return b"V"
    raise TypeError(f"no table type for {value!r}")


def short_string(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return bytes([len(raw)]) + raw


def table(values: Mapping[str, Any]) -> bytes:
    packed = b"".join(short_string(name) + table_value(value) for name, value in values.items())
    return struct.pack(">I", len(packed)) + packed


def _argument(kind: str, value: Any) -> bytes:
    if kind == "table":
        return bytes(value) if isinstance(value, Literal) else table(value or {})
    if kind == "shortstr":
        return short_string(value or "")
    if kind == "longstr":
        raw = value if isinstance(value, bytes) else (value or "").encode()
        return struct.pack(">I", len(raw)) + raw
    return struct.pack(NUMBERS[kind], value or 0)


def pack(name: str, arguments: Mapping[str, Any]) -> bytes:
    """Payload of a method frame. Arguments not given are zero, empty or false, whatever the defaults."""
    method = BY_NAME[name]
    unknown = set(arguments) - set(method.__slots__)
    if unknown:
        raise TypeError(f"{name} has no argument {sorted(unknown)}")
    payload = struct.pack(">I", method.index)
    bits: list[bool] = []
    for slot in (*method.__slots__, None):
        kind = method.amqp_type(slot) if slot else ""
        if bits and kind != "bit":
            payload += bytes([sum(bit << at for at, bit in enumerate(bits))])
            bits = []
        if slot and kind == "bit":
            bits.append(bool(arguments.get(slot)))
        elif slot:
            payload += _argument(kind, arguments.get(slot))
    return payload


def close_fields(payload: bytes) -> dict[str, Any]:
    """Unpacked by hand: brokers repeat names in the text that are not UTF-8, which pamqp refuses."""
    code, size = struct.unpack_from(">HB", payload, 4)
    class_id, method_id = struct.unpack_from(">HH", payload, 7 + size)
    text = payload[7 : 7 + size].decode(errors="backslashreplace")
    return {"reply_code": code, "reply_text": text, "class_id": class_id, "method_id": method_id}


def content_header(size: int, properties: bytes = b"\x00\x00", class_id: int = 60, weight: int = 0) -> bytes:
    return struct.pack(">HHQ", class_id, weight, size) + properties


@dataclass
class Session:
    """A TCP connection to a broker, and what has been read from it."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    frame_max: int = 131072
    channel_max: int = 2047
    prefix: str = ""
    seen: list[Reply] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._socket = socket.create_connection((self.host, self.port), REPLY_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self._others: list[Session] = []

    def name(self, part: str) -> str:
        """A name of this case only, the same in every run."""
        return f"misuse.{self.prefix}.{part}"

    def other(self, **differences: Any) -> Session:
        """A second, well-behaved connection of the same case with channel 1 open."""
        values = {"user": self.user, "password": self.password, "vhost": self.vhost, **differences}
        second = Session(self.host, self.port, prefix=self.prefix, **values)
        self._others.append(second)
        second.open()
        second.open_channel(1)
        return second

    def close(self) -> None:
        for second in self._others:
            second.close()
        self._socket.close()

    # --- writing
    def raw(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # the verdict is read from what the broker sent before it hung up

    def frame(self, kind: int, channel: int, payload: bytes, end: int = END) -> None:
        self.raw(struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end]))

    def send(self, name: str, channel: int = 1, **arguments: Any) -> None:
        self.frame(METHOD, channel, pack(name, arguments))

    def call(self, name: str, channel: int = 1, **arguments: Any) -> Reply:
        """Send a method and wait for the answer of the same class on the same channel."""
        self.send(name, channel, **arguments)
        wanted = name.split(".", maxsplit=1)[0]
        while True:
            reply = self.read()
            if (reply.channel == channel and reply.name.startswith(wanted)) or reply.name.endswith(".close"):
                return reply

    def publish(
        self, exchange: str, key: str, body: bytes = b"x", properties: bytes = b"\0\0", **bits: bool
    ) -> None:
        self.send("basic.publish", exchange=exchange, routing_key=key, **bits)
        self.frame(HEADER, 1, content_header(len(body), properties))
        if body:
            self.frame(BODY, 1, body)

    # --- reading
    def read(self) -> Reply:
        reply = self._next()
        self.seen.append(reply)
        return reply

    def _next(self) -> Reply:
        head = self._take(7)
        if head[:4] == b"AMQP":
            return Reply(0, "protocol-header", {"bytes": (head + self._take(1)).hex()})
        kind, channel, size = struct.unpack(">BHI", head)
        payload = self._take(size + 1)
        if payload[-1] != END:
            raise AssertionError(f"broker sent a frame that ends with {payload[-1]:#x}")
        if kind != METHOD:
            return Reply(channel, {HEADER: "header", BODY: "body", HEARTBEAT: "heartbeat"}[kind], {})
        if payload[:4] in (b"\x00\x0a\x00\x32", b"\x00\x14\x00\x28"):
            return Reply(
                channel, {10: "connection.close", 20: "channel.close"}[payload[1]], close_fields(payload)
            )
        class_id, method_id = struct.unpack_from(">HH", payload)
        if class_id << 16 | method_id not in commands.INDEX_MAPPING:
            return Reply(channel, f"method {class_id}.{method_id}", {})
        method: Any = frame.unmarshal(head + payload)[2]
        return Reply(channel, dotted(method.name), dict(method))

    def _take(self, count: int) -> bytes:
        while len(self._unread) < count:
            try:
                more = self._socket.recv(65536)
            except TimeoutError as late:
                raise Unanswered from late
            except ConnectionResetError as reset:
                raise Closed from reset
            if not more:
                raise Closed
            self._unread += more
        taken, self._unread = self._unread[:count], self._unread[count:]
        return taken

    # --- the usual beginnings
    def greet(self) -> Reply:
        self.raw(PROTOCOL_HEADER)
        return self.read()

    def start_ok(self, capabilities: Mapping[str, bool] | None = None, **differences: Any) -> None:
        arguments = {
            "client_properties": {"product": "misuse", "capabilities": dict(capabilities or CAPABILITIES)},
            "mechanism": "PLAIN",
            "response": f"\0{self.user}\0{self.password}",
            "locale": "en_US",
        }
        self.send("connection.start-ok", 0, **{**arguments, **differences})

    def tune_ok(self) -> None:
        self.send(
            "connection.tune-ok", 0, channel_max=self.channel_max, frame_max=self.frame_max, heartbeat=0
        )

    def log_in(self) -> Reply:
        self.greet()
        self.start_ok()
        return self.read()

    def open(self) -> Reply:
        self.log_in()
        self.tune_ok()
        return self.call("connection.open", 0, virtual_host=self.vhost)

    def open_channel(self, number: int = 1) -> Reply:
        return self.call("channel.open", number)
