"""A checkpoint is made over many passes, and what happens meanwhile costs nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.log import checkpoint
from mirrormq.log.draft import Senders
from mirrormq.log.durable import DurableLog
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.nodekit import NodeKit

QUEUES = 6


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "checkpoint_logs": 1,
        "journal_file_bytes": 6_000,
        "recycle_slice_bytes": 4_000,
        "segment_bytes_min": 4_000,
        "segment_bytes_max": 16_000,
        "place_bytes_min": 1_000,
    }.items():
        monkeypatch.setattr(limits, name, value)


class CrashingDisk(MemoryDisk):
    """Keeps what a power failure after an effect would leave, from `watch` on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_watching = False
        self.images: list[tuple[MemoryDisk, int]] = []
        self.sure = 0
        self._rng = random.Random(7)

    def _issue(self, file: str, op: Any) -> None:
        super()._issue(file, op)
        self._keep()

    def _finish(self, file: str, token: int) -> None:
        super()._finish(file, token)
        self._keep()

    def _keep(self) -> None:
        if self.is_watching:
            picks = (lambda most: self._rng.randint(0, most), lambda _: 0)
            self.images += [(self.crash(pick), self.sure) for pick in picks]


def furnished(disk: MemoryDisk) -> tuple[NodeKit, Any]:
    kit = NodeKit(disk)
    client = kit.client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    for number in range(QUEUES):
        client.declare(f"q{number}", durable=True)
    return kit, client


def stepped(kit: NodeKit, between: Callable[[int], None]) -> int:
    """Run until a walk over the logs is over, with something happening before each of its passes."""
    passes = 0
    while kit.node.recycler._walk.is_under_way:
        between(passes)
        passes += 1
        kit.node.end_pass(kit.now)
        kit._drain()
    return passes


def fill_until_a_checkpoint_begins(kit: NodeKit, client: Any) -> int:
    """Publish and let passes go by one at a time, so that the walk is not run to its end."""
    sent = 0
    kit.run = lambda: (kit.node.end_pass(kit.now), kit._drain())  # type: ignore[method-assign,assignment]
    while not kit.node.recycler._walk.is_under_way:
        client.publish(f"q{sent % QUEUES}", b"%06d" % sent * 40, properties=PERSISTENT)
        sent += 1
        assert sent < 2_000
    return sent


def test_no_pass_makes_more_parts_than_it_may() -> None:
    kit, client = furnished(MemoryDisk())
    fill_until_a_checkpoint_begins(kit, client)
    told: list[int] = []
    tell = kit.node.recycler._part_of

    def part_of(log: DurableLog) -> checkpoint.QueuePart:
        told.append(log.queue_id)
        return tell(log)

    kit.node.recycler._part_of = part_of  # type: ignore[method-assign]
    counts: list[int] = []
    stepped(kit, lambda _: counts.append(len(told)))
    steps = [after - before for before, after in pairwise(counts)]
    assert max(steps) == limits.checkpoint_logs
    assert len(told) == len(set(told)) >= QUEUES


def test_a_long_part_ends_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "checkpoint_logs", 3)
    monkeypatch.setattr(limits, "checkpoint_slice_bytes", 1)
    kit, client = furnished(MemoryDisk())
    fill_until_a_checkpoint_begins(kit, client)
    assert stepped(kit, lambda _: None) >= QUEUES


@pytest.mark.slow
def test_a_crash_at_any_moment_of_a_checkpoint_in_slices_costs_no_confirmed_message() -> None:
    disk = CrashingDisk()
    kit, client = furnished(disk)
    sent = fill_until_a_checkpoint_begins(kit, client)
    removed = kit.node.recycler.recycled_files
    disk.is_watching = True
    disk.sure = len(confirmed(client))

    def more(_: int) -> None:
        nonlocal sent
        client.publish(f"q{sent % QUEUES}", b"%06d" % sent * 40, properties=PERSISTENT)
        sent += 1
        disk.sure = len(confirmed(client))

    for number in range(60):
        more(number)
        stepped(kit, more)
    assert kit.node.recycler.recycled_files > removed
    assert len(disk.images) > 60
    for image, sure in random.Random(3).sample(disk.images, 60):
        again = NodeKit(image)
        queues = again.node.vhosts["/"].queues
        assert not any(queue.damage for queue in queues.values())
        reader = again.client()
        found: set[bytes] = set()
        for number in range(QUEUES):
            reader.consume(f"q{number}", f"c{number}", no_ack=True)
            found.update(reader.deliveries())
        assert {b"%06d" % number * 40 for number in range(sure)} <= found


def confirmed(client: Any) -> range:
    """The publishes confirmed so far, in order."""
    client.sure = getattr(client, "sure", 0)
    for method in client.take():
        if isinstance(method, methods.BasicAck):
            client.sure = max(client.sure, method.delivery_tag)
    return range(client.sure)


def test_queues_declared_and_deleted_between_the_parts_are_as_they_are_after_a_restart() -> None:
    kit, client = furnished(MemoryDisk())
    fill_until_a_checkpoint_begins(kit, client)

    def change(number: int) -> None:
        if number == 1:
            client.send(methods.QueueDeclare(queue="late", durable=True))
            client.publish("late", b"late", properties=PERSISTENT)
        if number == 2:
            client.send(methods.QueueDelete(queue="q5"))
            client.send(methods.QueueDelete(queue="q0"))

    assert stepped(kit, change) > 2
    for _ in range(10):
        kit.run()
    assert checkpoint.NAME in kit.disk.list("log/")
    again = NodeKit(kit.disk.crash(lambda most: most))
    queues = again.node.vhosts["/"].queues
    assert set(queues) == {"late", *(f"q{number}" for number in range(1, 5))}
    assert not any(queue.damage for queue in queues.values())
    assert queues["late"].core.ready == 1


def test_who_has_come_since_is_found_and_looked_for_once_in_a_pass() -> None:
    there, looks, number = {1, 2}, [], 0

    def look() -> set[int]:
        looks.append(number)
        return set(there)

    senders = Senders(look, lambda: number)
    assert 1 in senders
    assert 3 not in senders
    assert 4 not in senders
    assert looks == [0]
    number = 1
    there.add(3)
    assert 2 in senders
    assert looks == [0]
    assert 3 in senders
    assert 4 not in senders
    assert looks == [0, 1]
