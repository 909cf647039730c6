"""The fuzz targets: what is fed to each kernel class, and how its answer is judged.

A case is a function of one random number generator and raises AssertionError for a wrong answer. Memory
errors, leaks and hangs are the harness's business (run.py); the same cases run without a sanitizer in the
ordinary tests.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from mirrormq.base.errors import AmqpError
from mirrormq.kernel.cores import ChannelCore, ConsumerCore, QueueCore, Worklist
from mirrormq.kernel.frames import EV_ERROR, EV_HELD, FrameReader, Route, RouteMemo
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.message import Message
from mirrormq.kernel.outbuffer import Dirty, OutBuffer
from mirrormq.kernel.topic import TopicMatcher
from mirrormq.wire.properties import decode_properties
from tests.fuzz import grammar
from tests.fuzz.forwardmodel import forward_case
from tests.fuzz.queuemodel import queue_case
from tests.fuzz.rowsmodel import rows_case

FRAME_MAX = 4096
MAX_MESSAGE = 10_000
CHANNELS = (1, 2, 3)


class World:
    """One connection with three channels and a queue per routing key, as the flags of a case say."""

    def __init__(self, flags: random.Random) -> None:
        self.work, self.grave, self.dirty = Worklist(), Graveyard(), Dirty()
        self.out = OutBuffer(self.dirty, 1)
        self.reader = FrameReader(FRAME_MAX, MAX_MESSAGE)
        self.channels = [ChannelCore(number, 100 + number, self.out) for number in CHANNELS]
        for channel in self.channels:
            channel.confirm = flags.random() < 0.5
            channel.tx = flags.random() < 0.2
            channel.closing = flags.random() < 0.1
            self.reader.add_channel(channel)
        self.queues: dict[bytes, QueueCore] = {}
        self.reader.memo = RouteMemo(self.resolve) if flags.random() < 0.95 else None
        self.reader.hold_publish = flags.random() < 0.1

    def resolve(self, exchange: bytes, key: bytes) -> Route:
        targets = [self.queue(key), self.queue(b"all")]
        return Route(exchange, key, targets, plain=len(key) % 3 != 1)

    def queue(self, name: bytes) -> QueueCore:
        if name not in self.queues:
            self.queues[name] = QueueCore(self.work, self.grave, name, len(name) % 4)
        return self.queues[name]

    def feed(self, parts: list[bytes]) -> list[Any]:
        """All events; ends at the first error, as a connection does."""
        events: list[Any] = []
        for part in parts:
            self.reader.feed(grammar.exactly(part))
            try:
                while (event := self.reader.next()) is not None:
                    if event[0] == EV_HELD:
                        self.reader.hold_publish = False
                        continue
                    events.append(plain(event))
                    if event[0] == EV_ERROR:
                        return events
            finally:
                self.reader.keep()
        return events

    def drain(self) -> list[Any]:
        """Admit and deliver everything; what the consumers and the log would see."""
        seen: list[Any] = []
        for name, queue in sorted(self.queues.items()):
            queue.admit(queue.pending, 1, 1_000)
            consumer = ConsumerCore(self.channels[0], b"tag", True, 0)
            queue.set_consumers([[consumer]])
            self.out.high = 0xFFFFFFFF
            self.channels[0].closing = False
            queue.deliver(1_000, 0)
            seen.append((name, queue.ready, queue.published, queue.take_settled(), bytes(self.out.take())))
        return seen

    def close(self) -> None:
        for channel in self.channels:
            channel.take_barrier()
            channel.release()
        self.reader.take_fed()
        self.reader.take_confirming()
        for queue in self.queues.values():
            queue.destroy()
        self.work.take()
        while self.grave.free(100):
            pass


def plain(event: tuple[Any, ...]) -> tuple[Any, ...]:
    """An event with its message by value, so that two runs can be compared."""
    return tuple(
        (part.exchange, part.routing_key, part.properties, part.body) if isinstance(part, Message) else part
        for part in event
    )


def reader_case(rng: random.Random) -> None:
    """The same bytes give the same events and queues however the network cuts them."""
    check_stream(rng, grammar.stream(rng, FRAME_MAX - 8))


def check_stream(rng: random.Random, data: bytes) -> None:
    seed = rng.random()
    whole, cut = World(random.Random(seed)), World(random.Random(seed))
    events, again = whole.feed([data]), cut.feed(grammar.pieces(rng, data))
    assert events == again
    numbers = [[channel.publish_no for channel in world.channels] for world in (whole, cut)]
    assert numbers[0] == numbers[1]
    assert whole.drain() == cut.drain()
    if not events or events[-1][0] != EV_ERROR:
        assert whole.reader.buffered == cut.reader.buffered
    whole.close()
    cut.close()


def message_case(rng: random.Random) -> None:
    """A message keeps its parts; what the kernel takes as well formed, the wire package can decode."""
    raw = grammar.properties(rng)
    if rng.random() < 0.5:
        raw = grammar.mutate(rng, raw)
    exchange, key = rng.choice(grammar.NAMES), rng.randbytes(rng.choice((0, 1, 254, 255, 256)))
    body = rng.randbytes(rng.choice(grammar.EDGES))
    try:
        message = Message(exchange, key, raw, body)
    except ValueError:
        return
    assert (message.exchange, message.routing_key, message.properties, message.body) == (
        exchange,
        key,
        raw,
        body,
    )
    assert message.body_size == len(body)
    try:
        decoded = decode_properties(raw)
    except AmqpError:
        return
    assert message.priority == (decoded.priority or 0)
    assert message.persistent == (decoded.delivery_mode == 2)


def outbuffer_case(rng: random.Random) -> None:
    """Frames come out as they were written, cut for the frame-max of the moment, never larger."""
    frame_max = rng.choice((0, 64, 4096, 4097, 131072))
    out = OutBuffer(Dirty(), 7, frame_max or 131072)
    out.frame_max = frame_max
    wanted: list[tuple[int, int, bytes]] = []
    data = b""
    for _ in range(rng.randrange(1, 20)):
        channel = rng.choice((0, 1, 65535))
        act = rng.randrange(4)
        if act == 0:
            out.write_heartbeat()
            wanted.append((8, 0, b""))
        elif act == 1:
            payload = rng.randbytes(rng.choice((0, 4, 300, 70_000)))
            out.write_method(channel, payload)
            wanted.append((1, channel, payload))
        elif act == 2:
            wanted += write_content(rng, out, channel)
        else:
            data += bytes(out.take())
            assert out.size == 0
    data += bytes(out.take())
    assert out.total == len(data)
    assert read_frames(data) == wanted


def write_content(rng: random.Random, out: OutBuffer, channel: int) -> list[tuple[int, int, bytes]]:
    body = rng.randbytes(rng.choice((*grammar.EDGES, 20_000, 131_065)))
    raw, method = b"\x10\x00\x02", rng.randbytes(rng.randrange(4, 40))
    out.write_content(channel, method, Message(b"e", b"k", raw, body))
    most = out.frame_max - 8 if out.frame_max else 1 << 32
    parts = [body[at : at + most] for at in range(0, len(body), most)]
    head = struct.pack(">HHQ", 60, 0, len(body)) + raw
    return [(1, channel, method), (2, channel, head), *((3, channel, part) for part in parts)]


def read_frames(data: bytes) -> list[tuple[int, int, bytes]]:
    frames, at = [], 0
    while at < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        assert data[at + 7 + size] == 0xCE
        frames.append((kind, channel, data[at + 7 : at + 7 + size]))
        at += size + 8
    return frames


def topic_case(rng: random.Random) -> None:
    """The trie finds what a plain comparison of words finds, through adds and removes."""
    words = (b"a", b"b", b"*", b"#", b"", b"ab")
    matcher = TopicMatcher()
    held: list[tuple[bytes, int]] = []
    for _ in range(rng.randrange(1, 40)):
        if held and rng.random() < 0.3:
            pattern, value = held.pop(rng.randrange(len(held)))
            matcher.remove(pattern, value)
        elif rng.random() < 0.6:
            pattern, value = b".".join(rng.choices(words, k=rng.randrange(6))), rng.randrange(3)
            matcher.add(pattern, value)
            held.append((pattern, value))
        else:
            key = b".".join(rng.choices((b"a", b"b", b"", b"ab", b"*"), k=rng.randrange(6)))
            wanted = sorted(
                value for pattern, value in set(held) if topic_matches(split(pattern), split(key))
            )
            assert sorted(matcher.match(key)) == wanted, (key, held)
    for pattern, value in held:
        matcher.remove(pattern, value)
    assert (len(matcher), matcher.node_count) == (0, 1)


def split(text: bytes) -> list[bytes]:
    return text.split(b".") if text else []


def topic_matches(pattern: list[bytes], key: list[bytes]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == b"#":
        return any(topic_matches(pattern[1:], key[skip:]) for skip in range(len(key) + 1))
    return bool(key) and pattern[0] in (b"*", key[0]) and topic_matches(pattern[1:], key[1:])


TARGETS: dict[str, Callable[[random.Random], None]] = {
    "reader": reader_case,
    "message": message_case,
    "queue": queue_case,
    "outbuffer": outbuffer_case,
    "topic": topic_case,
    "forward": forward_case,
    "rows": rows_case,
}
