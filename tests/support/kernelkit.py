"""Frames and kernel objects for tests that need no broker."""

import struct
from collections.abc import Iterable

from mirrormq.kernel.cores import ChannelCore, ConsumerCore, QueueCore, Worklist
from mirrormq.kernel.frames import FrameReader, Route, RouteMemo
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.message import Message
from mirrormq.kernel.outbuffer import Dirty, OutBuffer

NO_PROPERTIES = b"\x00\x00"
PERSISTENT = b"\x10\x00\x02"


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame with its end octet."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def publish_method(key: bytes, exchange: bytes = b"", bits: int = 0, channel: int = 1) -> bytes:
    """A basic.publish method frame."""
    names = bytes([len(exchange)]) + exchange + bytes([len(key)]) + key
    return frame(1, channel, struct.pack(">HHH", 60, 40, 0) + names + bytes([bits]))


def header(size: int, properties: bytes = NO_PROPERTIES, channel: int = 1) -> bytes:
    """A content header frame."""
    return frame(2, channel, struct.pack(">HHQ", 60, 0, size) + properties)


def publish(
    key: bytes,
    body: bytes,
    properties: bytes = NO_PROPERTIES,
    *,
    channel: int = 1,
    bits: int = 0,
    part: int = 131064,
) -> bytes:
    """All frames of one publish, the body in parts of at most `part` bytes."""
    bodies = b"".join(frame(3, channel, body[i : i + part]) for i in range(0, len(body), part))
    return publish_method(key, bits=bits, channel=channel) + header(len(body), properties, channel) + bodies


def settle_method(method_id: int, tag: int, bits: int, channel: int = 1) -> bytes:
    """basic.ack (80), nack (120) or reject (90)."""
    return frame(1, channel, struct.pack(">HHQB", 60, method_id, tag, bits))


class Kit:
    """One connection with channel 1, and any number of queues named by routing key."""

    def __init__(self, max_priority: int = 0) -> None:
        self.dirty, self.work, self.grave = Dirty(), Worklist(), Graveyard()
        self.out = OutBuffer(self.dirty, 1)
        self.channel = ChannelCore(1, 77, self.out)
        self.max_priority = max_priority
        self.queues: dict[bytes, QueueCore] = {}
        self.reader = FrameReader(131072)
        self.reader.memo = RouteMemo(lambda exchange, key: Route(exchange, key, [self.queue(key)], True))
        self.reader.add_channel(self.channel)
        self.seq = 1

    def queue(self, name: bytes = b"q") -> QueueCore:
        """The queue of this name, made when first asked for."""
        if name not in self.queues:
            self.queues[name] = QueueCore(self.work, self.grave, name, self.max_priority)
        return self.queues[name]

    def feed(self, data: bytes, step: int = 1 << 20) -> list[tuple]:
        """Feed in pieces; return the events."""
        events = []
        for i in range(0, len(data), step):
            self.reader.feed(data[i : i + step])
            while (event := self.reader.next()) is not None:
                events.append(event)
                if event[0] == 5:
                    break
            self.reader.keep()
        return events

    def admit(self, queue: QueueCore, now: int = 0) -> None:
        """Everything waiting becomes ready."""
        count = queue.pending
        queue.admit(count, self.seq, now)
        self.seq += count

    def fill(self, bodies: Iterable[bytes], properties: bytes = NO_PROPERTIES, now: int = 0) -> QueueCore:
        """Messages with these bodies, ready in queue q."""
        queue = self.queue()
        for body in bodies:
            queue.push(Message(b"", b"q", properties, body))
        self.admit(queue, now)
        return queue

    def consumer(self, *, no_ack: bool = False, prefetch: int = 0, tag: bytes = b"c") -> ConsumerCore:
        """A consumer on channel 1."""
        return ConsumerCore(self.channel, tag, no_ack, prefetch)

    def delivered(self) -> list[tuple[int, bool, bytes]]:
        """(delivery tag, redelivered, body) of every basic.deliver and get-ok written so far."""
        return read_deliveries(bytes(self.out.take()))


def read_frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """(type, channel, payload) of each frame."""
    frames, at = [], 0
    while at < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        assert data[at + 7 + size] == 0xCE
        frames.append((kind, channel, data[at + 7 : at + 7 + size]))
        at += size + 8
    return frames


def read_deliveries(data: bytes) -> list[tuple[int, bool, bytes]]:
    """Decode deliver and get-ok contents."""
    found: list[tuple[int, bool, bytes]] = []
    left = 0
    for kind, _, payload in read_frames(data):
        if kind == 1:
            method = payload[2:4]
            at = 5 + payload[4] if method == b"\x00\x3c" else 4
            tag, again = struct.unpack_from(">QB", payload, at)
        elif kind == 2:
            (left,) = struct.unpack_from(">Q", payload, 4)
            body = b""
        else:
            body += payload
            left -= len(payload)
        if kind != 1 and left == 0:
            found.append((tag, bool(again), body))
    return found
