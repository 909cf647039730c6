"""Hostile clients of the bulk protocol: whatever they send, they get an error or nothing, and others notice
nothing.
"""

import random
from typing import Any

import msgspec
import pytest

from mirrormq.wire import bulk
from tests.support.bulkkit import BulkUser, bodies
from tests.support.nodekit import NodeKit

PERSISTENT = b"\x10\x00\x02"
OPS = (
    "login",
    "queues",
    "read",
    "digest",
    "seek",
    "cursor_open",
    "cursor_advance",
    "cursor_drop",
    "cursor_list",
)
NAMES = ["queue", "queues", "pattern", "vhost", "id", "start", "end", "upto", "end_epoch", "live", "node"]
NAMES += ["relay", "gaps", "max_bytes", "step", "name", "at", "mode", "reader", "query", "to", "epoch", "op"]
NAMES += ["remove", "first", "time", "user", "password", "home", "conn", "from", "bytes"]


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(10)
    if kind < 3:
        return rng.choice((0, 1, 2, 5, 11, -1, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1))
    if kind < 6:
        return rng.choice(
            ("q", "/", "", "c", "earliest", "latest", "consume", "x" * 300, "(a+)+$", "*", "ü\x00")
        )
    if kind == 6:
        return rng.choice((None, True, False, 1.5, float("nan"), b"\xff\x00"))
    if kind == 7 and depth < 3:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 8 and depth < 3:
        return {str(value(rng, depth + 1)): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice(("q", 1))


def frame(rng: random.Random, known: dict[str, Any]) -> bytes:
    """A frame that is a bit wrong, or very."""
    kind = rng.random()
    if kind < 0.1:
        return rng.randbytes(rng.randrange(60))
    fields = {"op": rng.choice(OPS), **{rng.choice(NAMES): value(rng) for _ in range(rng.randrange(6))}}
    if rng.random() < 0.6:
        fields = {**known, **fields}
    body = msgspec.msgpack.encode(fields)
    number = rng.choice((bulk.CALL,) * 9 + tuple(range(12)))
    made = bytearray(bulk.head(number, rng.randrange(4), len(body)) + body)
    if rng.random() < 0.2:
        made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made[: rng.randrange(len(made))] if rng.random() < 0.05 else made)


@pytest.mark.parametrize("seed", range(30))
def test_no_bytes_of_a_client_do_harm(seed: int) -> None:
    rng = random.Random(seed)
    kit = NodeKit()
    client = kit.client()
    client.declare("q", durable=True)
    for number in range(10):
        client.publish("q", b"m%d" % number, properties=PERSISTENT)
    honest = BulkUser.logged_in(kit)
    facts = honest.facts("q")
    known = {"queue": "q", "id": facts["id"], "start": 1, "end": 11, "name": "c", "to": 5}
    for _ in range(4):
        hostile = BulkUser.logged_in(kit) if rng.random() < 0.8 else BulkUser(kit)
        for _ in range(25):
            if hostile.is_closed:
                break
            hostile.feed(frame(rng, known))
        hostile.close_socket()
    later = honest.facts("q")
    request = {"queue": "q", "id": later["id"], "start": later["first"], "end": later["next"], "live": True}
    found = bodies(honest.read(**request))
    # A cursor that consumes may have been opened, by a client that had the right to; nothing else removes.
    taken = 10 - len(found)
    assert found == [b"m%d" % number for number in range(taken, 10)]
    assert kit.node.census.connections == 2


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_whole_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    sent = [(rng.choice((bulk.CALL, bulk.DATA)), rng.randrange(1 << 32), rng.randbytes(rng.randrange(500)))
            for _ in range(20)]  # fmt: skip
    data = b"".join(bulk.head(kind, request, len(body)) + body for kind, request, body in sent)
    buffer = bulk.FrameBuffer()
    found = []
    at = 0
    while at < len(data):
        size = rng.randint(1, 700)
        buffer.feed(data[at : at + size])
        at += size
        while (one := buffer.next()) is not None:
            found.append(tuple(one))
    assert found == sent


@pytest.mark.parametrize("length", [0, 4, bulk.FRAME_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_length_that_cannot_be_is_refused_before_its_bytes_are_awaited(length: int) -> None:
    buffer = bulk.FrameBuffer()
    buffer.feed(length.to_bytes(4, "little") + b"\x01\x00\x00\x00\x00")
    with pytest.raises(bulk.BadFrame):
        buffer.next()
