"""Hostile clients against a running broker: whatever they send, others never notice.

Every test keeps a bystander: a connection that publishes with confirms and consumes. It must work before,
during and after the attack, and the broker must be the same process at the end.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import commands, frame, header
from pamqp.exceptions import PAMQPException

from mirrormq.wire import bulk
from tests.interop.brokers import Broker
from tests.interop.rawclient import PROTOCOL_HEADER, Closed, RawClient, raw_frame
from tests.interop.waiting import until

SEED = int(os.environ.get("FUZZ_SEED", "20250101"))


class Bystander:
    """An honest client whose messages must keep flowing."""

    def __init__(self, broker: Broker) -> None:
        self.client = RawClient.connect(broker.host, broker.port).open(broker)
        self.client.channel(1, confirm=True)
        declared = self.client.call(1, commands.Queue.Declare(exclusive=True), commands.Queue.DeclareOk)
        self.queue = declared.queue
        self.client.call(1, commands.Basic.Consume(queue=self.queue, no_ack=True), commands.Basic.ConsumeOk)
        self.sent = 0

    def works(self) -> None:
        """One message out, confirmed, and back."""
        self.sent += 1
        body = b"%d" % self.sent
        self.client.publish(1, self.queue, body)
        kinds = set()
        while len(kinds) < 2:
            _, value = self.client.receive()
            if isinstance(value, commands.Basic.Ack):
                kinds.add("confirm")
            elif isinstance(value, commands.Basic.Deliver):
                assert isinstance(self.client.receive()[1], header.ContentHeader)
                assert self.client.receive()[1].value == body
                kinds.add("delivery")


@pytest.fixture
def bystander(victim: Broker) -> Iterator[Bystander]:
    made = Bystander(victim)
    made.works()
    yield made
    made.works()
    made.client.close()


def connect(victim: Broker, opened: bool = True) -> RawClient:
    client = RawClient.connect(victim.host, victim.port)
    if opened:
        client.open(victim)
        client.channel(1, confirm=True)
    return client


def begun_publish(size: int) -> bytes:
    return frame.marshal(commands.Basic.Publish(exchange="", routing_key="nowhere"), 1) + frame.marshal(
        header.ContentHeader(0, size, commands.Basic.Properties()), 1
    )


def method(class_id: int, method_id: int, rest: bytes = b"", channel: int = 1) -> bytes:
    return raw_frame(1, channel, struct.pack(">HH", class_id, method_id) + rest)


def nested_table(depth: int) -> bytes:
    """Each level claims far more than follows, so that only a limit on depth ends the walk."""
    inner = b"\x01aF\x00\x00\x07\xd0" * depth
    return struct.pack(">I", len(inner)) + inner


# What a logged-in client may send wrongly. Each ends in an error of the channel or connection, or in nothing
# because more bytes are still expected; never in harm to others.
MALFORMED: dict[str, bytes] = {
    "a wrong frame end": b"\x01\x00\x01\x00\x00\x00\x04\x00\x0a\x00\x0a\xcd",
    "an unknown frame type": raw_frame(9, 1, b"abc"),
    "a frame longer than frame-max": struct.pack(">BHI", 1, 1, 200_000) + bytes(200_001),
    "a frame that claims 4 GiB": struct.pack(">BHI", 3, 1, 0xFFFFFFFF),
    "an empty method frame": raw_frame(1, 1, b""),
    "a method frame of three bytes": raw_frame(1, 1, b"\x00\x0a\x00"),
    "an unknown class": method(999, 10),
    "an unknown method": method(50, 999),
    "a method cut short": method(50, 10, b"\x00\x00\x05ab"),
    "a method with a string past its end": method(50, 10, b"\x00\x00\xffq"),
    "a method with bytes left over": method(60, 10, bytes(7) + b"extra" * 10),
    "a table longer than its method": method(50, 10, b"\x00\x00\x01q\x00\x00\x00\xff\xff"),
    "a table with an unknown type": method(50, 10, b"\x00\x00\x01q\x00\x00\x00\x00\x03\x01a?"),
    "a table nested two hundred deep": method(50, 10, b"\x00\x00\x01q\x00" + nested_table(200)),
    "a header without a publish": raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 0, 0)),
    "a body without a header": raw_frame(3, 1, b"body"),
    "a method in the middle of content": begun_publish(10) + method(60, 10, bytes(7)),
    "a second header in the middle of content": begun_publish(10)
    + raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0)),
    "more body than announced": begun_publish(3) + raw_frame(3, 1, b"abcdef"),
    "a header of another class": method(60, 40, b"\0\0\0\0\0")
    + raw_frame(2, 1, struct.pack(">HHQH", 50, 0, 0, 0)),
    "a header cut short": method(60, 40, b"\0\0\0\0\0") + raw_frame(2, 1, b"\x00\x3c\x00\x00"),
    "a header with properties cut short": method(60, 40, b"\0\0\0\0\0")
    + raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 0, 0xFFFC) + b"\x05ab"),
    "a header with endless continuation flags": method(60, 40, b"\0\0\0\0\0")
    + raw_frame(2, 1, struct.pack(">HHQ", 60, 0, 0) + b"\x00\x01" * 1000),
    "a body of an announced exabyte": begun_publish(2**60) + raw_frame(3, 1, b"x" * 1000),
    "a negative body size": begun_publish(2**64 - 1),
    "a heartbeat with a body": raw_frame(8, 0, b"boo"),
    "a heartbeat on a channel": raw_frame(8, 1, b""),
    "a method on an unopened channel": method(60, 10, bytes(7), channel=77),
    "content on channel zero": method(60, 40, b"\0\0\0\0\0", channel=0),
    "a connection method on a channel": method(10, 31, b"\0" * 8),
    "open of an open channel": method(20, 10, b"\x00"),
    "a start-ok after the handshake": method(10, 11, bytes(9), channel=0),
    "a server's own method": method(60, 60, b"\x01c" + bytes(9) + b"\0\0"),
    "an ack of nothing": method(60, 80, bytes(8) + b"\x00"),
    "a publish with a key past its end": method(60, 40, b"\0\0\0\xff\0"),
    "a publish without arguments": method(60, 40),
    "another protocol header": PROTOCOL_HEADER,
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("what", list(MALFORMED))
def test_a_malformed_stream_hurts_only_its_sender(victim: Broker, bystander: Bystander, what: str) -> None:
    client = connect(victim)
    client.send_bytes(MALFORMED[what])
    bystander.works()
    with contextlib.suppress(TimeoutError, Closed):  # the exact answers are the misuse table's business
        client.receive(0.2)
    bystander.works()
    client.close()


@pytest.mark.parametrize(
    "step", ["nothing", "half a header", "header only", "half a start-ok", "start-ok only"]
)
def test_an_unfinished_handshake_is_ended_by_the_timeout(
    victim: Broker, bystander: Bystander, step: str
) -> None:
    client = connect(victim, opened=False)
    if step == "half a header":
        client.send_bytes(PROTOCOL_HEADER[:5])
    elif step != "nothing":
        client.start()
    if step == "half a start-ok":
        client.send_bytes(struct.pack(">BHI", 1, 0, 500) + b"\x00\x0a")
    elif step == "start-ok only":
        client.start_ok("\0guest\0guest")
        client.expect(commands.Connection.Tune, 0)
    bystander.works()
    with pytest.raises(Closed):
        client.receive(10)
    client.close()


def test_a_slow_loris_never_gets_past_the_handshake_timeout(victim: Broker, bystander: Bystander) -> None:
    """Many clients that send one byte now and then: each byte must not buy more time."""
    crowd = [connect(victim, opened=False) for _ in range(40)]
    data = PROTOCOL_HEADER + struct.pack(">BHI", 1, 0, 4000) + bytes(100)
    started = time.monotonic()
    alive = dict(enumerate(crowd))
    sent = 0

    def all_gone() -> bool:
        nonlocal sent
        if sent < len(data):
            _drip(alive, data[sent : sent + 1])
            sent += 1
        for number in [number for number, client in alive.items() if _ended(client.sock)]:
            del alive[number]
        return not alive

    until(all_gone, "the broker has closed them all", 12)
    assert time.monotonic() - started >= 1.0
    bystander.works()
    for client in crowd:
        client.close()


def _drip(alive: dict[int, RawClient], byte: bytes) -> None:
    for client in alive.values():
        try:
            client.send_bytes(byte)
        except OSError:
            continue


def _ended(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(65536) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        sock.settimeout(10)


def test_truncated_content_is_never_delivered(victim: Broker, bystander: Bystander) -> None:
    """A publisher that dies in the middle of a body: the message does not exist."""
    whole = frame.marshal(commands.Basic.Publish(exchange="", routing_key=bystander.queue), 1)
    whole += frame.marshal(header.ContentHeader(0, 300_000, commands.Basic.Properties()), 1)
    whole += raw_frame(3, 1, b"x" * 131_064) + raw_frame(3, 1, b"y" * 131_064)
    for length in (20, len(whole) // 2, len(whole) - 1, len(whole)):
        client = connect(victim)
        client.send_bytes(whole[:length])
        client.close()
        bystander.works()


def test_random_bytes_after_the_handshake_hurt_only_their_sender(
    victim: Broker, bystander: Bystander
) -> None:
    rng = random.Random(SEED)
    for _ in range(25):
        client = connect(victim)
        push(client, rng.randbytes(rng.randrange(1, 5000)))
        bystander.works()


def test_mutated_calls_of_the_bulk_protocol_hurt_only_their_sender(
    victim: Broker, bystander: Bystander
) -> None:
    rng = random.Random(SEED)
    login = {"op": "login", "user": "guest", "password": "guest", "vhost": "/"}
    calls = [
        login,
        {"op": "queues", "pattern": ".*"},
        {"op": "read", "queue": "q", "id": "", "start": 1, "end": 2},
    ]
    plain = bulk.HEADER + b"".join(bulk.encode(bulk.CALL, at, call) for at, call in enumerate(calls))
    for _ in range(40):
        data = bytearray(plain)
        for _ in range(rng.randrange(6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data += rng.randbytes(rng.randrange(100))
        with socket.create_connection((victim.host, victim.port), 10) as client, contextlib.suppress(OSError):
            client.sendall(data)
            client.settimeout(0.05)
            client.recv(65536)
        bystander.works()


def test_mutated_conversations_hurt_only_their_sender(victim: Broker, bystander: Bystander) -> None:
    """An honest stream with a few bytes changed: the frames stay plausible and the fields do not."""
    rng = random.Random(SEED + 1)
    honest = b"".join(
        [
            method(50, 10, b"\x00\x00\x08attacked\x08" + struct.pack(">I", 0)),
            method(60, 40, b"\0\0\0\x08attacked\0"),
            raw_frame(2, 1, struct.pack(">HHQH", 60, 0, 5, 0x9000) + b"\x04text" + b"\x02"),
            raw_frame(3, 1, b"hello"),
            method(60, 70, b"\0\0\x08attacked\0"),
            method(60, 80, struct.pack(">Q", 1) + b"\x00"),
            method(50, 40, b"\0\0\x08attacked\0"),
        ]
    )
    for _ in range(60):
        mutant = bytearray(honest)
        for _ in range(rng.randrange(1, 6)):
            mutant[rng.randrange(len(mutant))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        client = connect(victim)
        push(client, bytes(mutant))
        bystander.works()


def push(client: RawClient, data: bytes) -> None:
    """Send, let the broker answer or not, and go."""
    with contextlib.suppress(OSError, Closed, ValueError, PAMQPException):
        client.send_bytes(data)
        client.receive(0.02)
    client.close()


def test_a_client_that_never_reads_does_not_stop_the_others(victim: Broker, bystander: Bystander) -> None:
    """It consumes a queue and its socket fills up; the broker must hold back only that one."""
    deaf = connect(victim)
    deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.call(
        1, commands.Queue.Declare(queue="deaf", exclusive=False, auto_delete=True), commands.Queue.DeclareOk
    )
    deaf.call(1, commands.Basic.Consume(queue="deaf", no_ack=True), commands.Basic.ConsumeOk)
    feeder = connect(victim)
    for _ in range(64):
        feeder.publish(1, "deaf", bytes(100_000))
    for _ in range(20):
        bystander.works()
    feeder.close()
    deaf.close()


def test_opening_and_dropping_connections_quickly_leaves_nothing_behind(
    victim: Broker, bystander: Bystander
) -> None:
    for number in range(100):
        client = RawClient.connect(victim.host, victim.port)
        if number % 2:
            client.send_bytes(PROTOCOL_HEADER)
        linger = struct.pack("ii", 1, 0)
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()
    bystander.works()

    def only_the_bystander() -> Any:
        return len(victim.admin.get("connections")) <= 1

    until(only_the_bystander, "the admin API lists no dead connections", 20)


def test_the_broker_is_still_the_same_process(victim: Broker, bystander: Bystander) -> None:
    os.kill(victim.pid, 0)
