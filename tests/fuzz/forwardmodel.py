"""Fuzz target: blocks of messages between nodes, whole and damaged, against what was put in."""

from __future__ import annotations

import random

from mirrormq.kernel import forward
from mirrormq.kernel.cores import ChannelCore, ConsumerCore, QueueCore, Worklist
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.message import Message
from mirrormq.kernel.outbuffer import Dirty, OutBuffer
from tests.fuzz.grammar import exactly

PROPERTIES = (b"\0\0", b"\x10\0\x02", b"\x08\0\x05", b"\x20\0\0\0\0\x07\x01aI\0\0\0\x01")


class Ends:
    """A home node's queue, the master's queue, and an inlet, without nodes around them."""

    def __init__(self) -> None:
        work = Worklist()
        self.grave = Graveyard()
        self.home, self.master, self.inlet = (QueueCore(work, self.grave, None, 0) for _ in range(3))
        self.inlet.counted = True
        self.out = OutBuffer(Dirty(), None, compact=True)
        self.far = ChannelCore(0, 1, self.out)
        self.near = ChannelCore(1, 2, OutBuffer(Dirty(), None))

    def close(self) -> None:
        for channel in (self.far, self.near):
            channel.release()
        for queue in (self.home, self.master, self.inlet):
            queue.destroy()
        while self.grave.free(100):
            pass


def forward_case(rng: random.Random) -> None:
    """What goes through arrives as it was; what is damaged is refused whole, nothing is read beyond it."""
    ends = Ends()
    bodies = [rng.randbytes(rng.choice((0, 1, 5, 300))) for _ in range(rng.randrange(1, 20))]
    for number, body in enumerate(bodies):
        key = b"k" * rng.randrange(256)
        ends.home.push(Message(b"e", key, rng.choice(PROPERTIES), body), 7, rng.randrange(2) * (number + 1))
    row, first = 0, 1
    while ends.home.pending:
        block, count, _ = forward.take_waiting(ends.home, rng.choice((1, 500, 1 << 20)))
        damage(ends, rng, block, count, row)
        start = rng.randrange(first, first + 1)
        row, _ = forward.take_publishes(ends.master, exactly(block), 0, start, count, row, 1 << 62, False)
        first += count
        assert row == first - 1
        again, _ = forward.take_publishes(ends.master, exactly(block), 0, start, count, row, 1 << 62, True)
        assert again == row
    assert ends.master.pending == len(bodies)
    deliver(ends, rng, bodies)
    ends.close()


def damage(ends: Ends, rng: random.Random, block: bytes, count: int, row: int) -> None:
    """A damaged block either is refused and changes nothing, or is a block of other messages."""
    broken = bytearray(block)
    for _ in range(rng.randrange(4)):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    cut = exactly(bytes(broken[: rng.randrange(len(broken) + 1)]))
    scratch = QueueCore(Worklist(), ends.grave, None, 0)
    for take in (
        lambda: forward.take_publishes(scratch, cut, 0, row + 1, count, row, 1, False),
        lambda: forward.take_deliveries(scratch, cut, 0, 1, count),
        lambda: forward.read_message(cut, 0),
    ):
        before = (scratch.pending, scratch.ready)
        try:
            take()
        except forward.Malformed:
            assert (scratch.pending, scratch.ready) == before
    scratch.destroy()


def deliver(ends: Ends, rng: random.Random, bodies: list[bytes]) -> None:
    """Master to inlet to client, settled in random spans."""
    ends.master.admit(ends.master.pending, 1, 0)
    consumers = [ConsumerCore(ends.far, bytes((at, 0, 0, 0)), False, 0) for at in (1, 2)]
    ends.master.set_consumers([consumers])
    ends.master.deliver(0, 0)
    forward.take_deliveries(ends.inlet, exactly(bytes(ends.out.take())), 0, 1, len(bodies))
    run = forward.first_run(ends.inlet)
    assert run == (1, 1)
    if rng.random() < 0.3:
        spans = forward.take_ready(ends.inlet, 2)
        assert sum(last - first + 1 for first, last in spans) == len(bodies) // 2
    seen = ends.inlet.ready
    ends.inlet.set_consumers([[ConsumerCore(ends.near, b"t", False, 0)]])
    assert ends.inlet.deliver(0, 0) == seen
    ends.near.nack(rng.randrange(seen + 2), True, rng.random() < 0.5)
    back = sum(last - first + 1 for first, last in forward.take_returned(ends.inlet)[0])
    settled = sum(last - first + 1 for first, last, _ in ends.inlet.take_settled())
    assert back + settled + ends.near.unacked == seen
    for _ in range(5):
        low = rng.randrange(len(bodies) + 3)
        forward.settle_span(ends.far, low, low + rng.randrange(9), rng.randrange(4))
    forward.settle_span(ends.far, 0, (1 << 64) - 1, 1)
    assert ends.far.unacked == 0
