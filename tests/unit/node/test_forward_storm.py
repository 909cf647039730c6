"""Random clients on three nodes while links break, fill up and delay, and the master crashes.

What must hold however it goes: a confirmed message is there until a consumer has acknowledged it; none is in
the queue twice; a message that is delivered a second time says so; a consumer gets the messages of one
publisher in their order; at the end nothing is left over on either side of a link.
"""

import random
from typing import Any

import pytest

from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import PERSISTENT, publish, settle_method
from tests.support.nodekit import Client

NODES = ("home", "master", "other")


class Publisher:
    """Publishes numbered messages and keeps the confirms."""

    def __init__(self, storm: "Storm", name: str, node: str) -> None:
        self.storm = storm
        self.name = name
        self.client = storm.kit[node].client()
        self.node = node
        self.client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        self.sent = 0

    def act(self) -> None:
        count = self.storm.rng.randrange(1, 8)
        size = self.storm.rng.choice((0, 0, 0, 3000, 40_000))
        bodies = []
        for _ in range(count):
            self.sent += 1
            bodies.append(b"%s.%d." % (self.name.encode(), self.sent) + b"x" * size)
        self.client.feed(b"".join(publish(b"q", body, PERSISTENT) for body in bodies))

    def look(self) -> None:
        for item in self.client.take():
            if isinstance(item, methods.BasicAck):
                first = 1 if item.multiple else item.delivery_tag
                for number in range(first, item.delivery_tag + 1):
                    if (self.name, number) not in self.storm.refused:
                        self.storm.confirmed.add((self.name, number))
            elif isinstance(item, methods.BasicNack):
                self.storm.refused.add((self.name, item.delivery_tag))


class Taker:
    """Consumes; acknowledges, rejects, goes and comes back."""

    def __init__(self, storm: "Storm", node: str) -> None:
        self.storm = storm
        self.node = node
        self.client: Client | None = None
        self.held: dict[int, tuple[str, int]] = {}
        self.latest: dict[str, int] = {}
        self._tag = 0

    def act(self) -> None:
        rng = self.storm.rng
        if self.client is None:
            if self.node in self.storm.kit.members:
                self.come()
        elif rng.random() < 0.05:
            self.go()
        elif rng.random() < 0.1:
            self.client.send(methods.BasicGet(queue="q"))
            self.look()
        elif self.held:
            self._settle()

    def come(self) -> None:
        rng = self.storm.rng
        self.held.clear()
        self.latest.clear()
        self.client = self.storm.kit[self.node].client()
        self.client.send(methods.BasicQos(prefetch_count=rng.choice((0, 1, 5)), global_=rng.random() < 0.3))
        for tag in ("a", "b")[: rng.randrange(1, 3)]:
            self.client.send(methods.BasicConsume(queue="q", consumer_tag=tag))
        self.look()

    def go(self) -> None:
        self.look()
        if self.client is not None:
            self.client.close_socket()
            self.client = None

    def _settle(self) -> None:
        assert self.client is not None
        tag = self.storm.rng.choice(list(self.held))
        body = self.held.pop(tag)
        if self.storm.rng.random() < 0.75:
            self.storm.acked.add(body)
            self.client.feed(settle_method(80, tag, 0))
        else:
            self.client.feed(settle_method(120, tag, 2))
        self.look()

    def look(self) -> None:
        if self.client is None:
            return
        head: Any = None
        for item in self.client.take():
            if isinstance(item, methods.BasicDeliver | methods.BasicGetOk):
                head = item
            elif isinstance(item, tuple):
                self._delivered(head, item[1])
            elif isinstance(item, methods.ChannelClose | methods.BasicCancel):
                self.client.close_socket()  # the master is away: come again later
                self.client = None
                return

    def _delivered(self, head: Any, body: bytes) -> None:
        name, number, _ = body.split(b".", 2)
        identity = (name.decode(), int(number))
        self.held[head.delivery_tag] = identity
        if not head.redelivered:
            assert identity not in self.storm.fresh, f"{identity} delivered twice without a mark"
            self.storm.fresh.add(identity)
            if isinstance(head, methods.BasicDeliver):
                assert identity[1] > self.latest.get(identity[0], 0), f"{identity} out of order"
                self.latest[identity[0]] = identity[1]


class Storm:
    """One run of a seed."""

    def __init__(self, seed: int, *, crashes: bool) -> None:
        self.rng = random.Random(seed)
        self.crashes = crashes
        disks = {name: MemoryDisk() for name in NODES} if crashes else {}
        self.kit = ClusterKit(*NODES, disks=disks)
        self.kit.full_at = 200_000
        self.kit["master"].client().declare("q", durable=True)
        self.confirmed: set[tuple[str, int]] = set()
        self.refused: set[tuple[str, int]] = set()
        self.acked: set[tuple[str, int]] = set()
        self.fresh: set[tuple[str, int]] = set()
        self.publishers = [Publisher(self, f"p{at}", node) for at, node in enumerate(("home", "other"))]
        self.takers = [Taker(self, node) for node in ("home", "home", "other", "master")]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._step()
            for party in (*self.publishers, *self.takers):
                party.look()
        self.calm()

    def _step(self) -> None:
        rng, kit = self.rng, self.kit
        chance = rng.random()
        if chance < 0.35:
            rng.choice(self.publishers).act()
        elif chance < 0.8:
            rng.choice(self.takers).act()
        elif chance < 0.86:
            kit.hold(*rng.sample(NODES, 2))
        elif chance < 0.9:
            kit.release()
        elif chance < 0.92:
            self._cut(rng.choice(("home", "other")))
        elif chance < 0.96:
            kit.advance(rng.choice((0.1, 1.0, 2.5)))
        elif chance < 0.97 and self.crashes:
            self._crash()
        elif self.crashes:
            kit["master"].hold_flushes = rng.random() < 0.5
            kit.run()

    def _cut(self, node: str) -> None:
        self.kit.cut(node, "master")
        self.kit.advance(self.rng.choice((0, 1, 6)))
        for party in (*self.publishers, *self.takers):
            party.look()
        self.kit.heal(node, "master")

    def _crash(self) -> None:
        for taker in self.takers:
            if taker.node == "master" and taker.client is not None:
                taker.look()
                taker.client = None
        self.kit.kill("master", power=self.rng.random() < 0.5)
        self.kit.advance(self.rng.choice((0, 1)))
        self.kit.restart("master")

    def calm(self) -> None:
        """All is well again: what is left is counted."""
        kit = self.kit
        kit.release()
        kit["master"].hold_flushes = False
        kit["master"].flush()
        kit.run()
        for taker in self.takers:
            taker.go()
        for _ in range(3):
            kit.advance(1)
        for publisher in self.publishers:
            publisher.look()
        sent = {(one.name, number) for one in self.publishers for number in range(1, one.sent + 1)}
        assert self.confirmed | self.refused == sent
        assert not kit.cuts, kit.cuts
        left = self._left()
        assert len(set(left)) == len(left), "a message is in the queue twice"
        gone = self.confirmed - self.acked - set(left)
        assert not gone, f"confirmed and gone: {sorted(gone)}"
        for publisher in self.publishers:
            numbers = [number for name, number in left if name == publisher.name]
            assert numbers == sorted(numbers)
        self._look_for_leaks()

    def _left(self) -> list[tuple[str, int]]:
        client = self.kit["master"].client()
        client.consume("q", "rest", no_ack=True)
        identities = [body.split(b".", 2) for body in client.deliveries()]
        return [(name.decode(), int(number)) for name, number, _ in identities]

    def _look_for_leaks(self) -> None:
        for name in NODES:
            for link in self.kit.node(name).switch.links.values():
                assert (link.owed_bytes, link.inlets, link.outlets, link.suspended) == (0, {}, {}, {})
                assert not link.holding
        queue: Any = self.kit.node("master").vhosts["/"].queues["q"]
        assert (queue.core.ready, queue.core.unacked) == (0, 0)


@pytest.mark.parametrize("seed", range(25))
def test_a_storm_of_broken_links_loses_doubles_and_reorders_nothing(seed: int):
    storm = Storm(seed, crashes=False)
    storm.run(250)
    assert len(storm.confirmed) > 100


@pytest.mark.parametrize("seed", range(25))
def test_a_storm_with_crashes_of_the_master_loses_and_doubles_nothing(seed: int):
    storm = Storm(seed, crashes=True)
    storm.run(250)
    assert len(storm.confirmed) > 100
