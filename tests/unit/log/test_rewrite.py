"""Segments that are mostly dead are rewritten: one old message does not hold what flowed past it."""

import random

import pytest

from mirrormq.base import limits
from mirrormq.log import segments
from mirrormq.log.inspect import Inspection
from mirrormq.log.recycler import Recycler
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.nodekit import NodeKit

EVERY = 50
"""One message in so many stays unacknowledged."""


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    for name, value in {
        "journal_file_bytes": 10_000,
        "recycle_slice_bytes": 4_000,
        "segment_bytes_min": 4_000,
        "segment_bytes_max": 16_000,
        "segment_rewrite_bytes_max": 64_000,
        "segment_dead_bytes_max": 1_000_000,
        "place_bytes_min": 1_000,
        "index_mark_bytes": 2_000,
    }.items():
        monkeypatch.setattr(limits, name, value)


def body(number):
    return b"%06d" % number * 15


class Flow:
    """A queue through which messages flow while some stay."""

    def __init__(self, disk):
        self.kit = NodeKit(disk)
        self.client = self.kit.client()
        self.client.declare("q", durable=True)
        self.client.consume("q")
        self.sent = 0
        self.stuck = []

    @property
    def log(self):
        [log] = self.kit.node.logs.values()
        return log

    def publish(self, count):
        for _ in range(count):
            self.sent += 1
            self.client.publish("q", body(self.sent), properties=PERSISTENT)

    def ack(self, first, last):
        for tag in range(first, last + 1):
            if tag % EVERY:
                self.client.send(methods.BasicAck(tag))
            else:
                self.stuck.append(body(tag))

    def segment_bytes(self):
        return sum(len(self.kit.disk.read(name)) for name in self.kit.disk.list(segments.PREFIX))

    def tick(self, times=1):
        for _ in range(times):
            self.kit.advance(1)


def served(disk):
    kit = NodeKit(disk)
    client = kit.client()
    client.consume("q", no_ack=True)
    queue = kit.node.vhosts["/"].queues["q"]
    assert queue.damage is None
    return client.deliveries()


def mostly_dead(disk=None):
    """A flow whose segments hold little that is live, and that is about to be ticked."""
    flow = Flow(disk if disk is not None else MemoryDisk())
    flow.publish(600)
    flow.publish(1)
    flow.ack(1, 600)
    return flow


def test_a_message_stuck_in_every_segment_does_not_hold_what_flowed_past_it():
    flow = Flow(MemoryDisk())
    most = 0
    for start in range(0, 4_000, 400):
        flow.publish(400)
        flow.ack(start + 1, start + 400)
        flow.tick(3)
        most = max(most, flow.segment_bytes())
    live = len(flow.stuck) * 250
    written = flow.sent * 190
    assert flow.kit.node.recycler.rewritten_bytes > 0
    assert flow.segment_bytes() < 6 * live < written // 4
    assert most < written // 4
    flow.kit.node.end_pass(flow.kit.now)
    assert served(flow.kit.disk.copy()) == flow.stuck


def test_neighbours_become_one_file_with_the_same_records():
    flow = mostly_dead()
    before = {segment.number for segment in flow.log.segments.all}
    assert len(before) > 4
    flow.tick(10)
    after = flow.log.segments.all
    assert len(after) < len(before) // 2
    assert [segment.first for segment in after] == sorted(segment.first for segment in after)
    [queue_id] = flow.kit.node.logs
    report = Inspection(flow.kit.disk.copy(), {queue_id: "q"}).verify()
    assert (report.faults, report.orphans) == ([], 0)
    assert served(flow.kit.disk.copy())[:-1] == flow.stuck


def test_what_is_spilled_is_read_back_from_the_rewritten_file(monkeypatch):
    monkeypatch.setattr(limits, "queue_memory_bytes", 500)
    monkeypatch.setattr(limits, "window_entries", 4)
    monkeypatch.setattr(limits, "read_back_bytes", 2_000)
    flow = mostly_dead()
    flow.client.close_socket()
    flow.tick(10)
    assert flow.kit.node.recycler.rewritten_bytes > 0
    client = flow.kit.client()
    client.consume("q", no_ack=True)
    assert client.deliveries()[:-1] == flow.stuck


def test_segments_above_a_cursor_are_left_alone():
    flow = Flow(MemoryDisk())
    flow.publish(10)
    cursor = flow.log.cursors.open_cursor("reader", None, flow.kit.now)
    flow.publish(600)
    flow.ack(1, 600)
    flow.tick(5)
    held = [segment for segment in flow.log.segments.all if segment.last >= cursor.seq]
    assert flow.kit.node.recycler.rewritten_bytes == 0
    assert sum(segment.size for segment in held) > 50_000
    flow.log.cursors.drop("reader", flow.kit.now)
    flow.tick(10)
    assert flow.kit.node.recycler.rewritten_bytes > 50_000


def test_few_live_messages_that_are_large_are_not_rewritten_again_and_again():
    flow = Flow(MemoryDisk())
    for number in range(1, 401):
        large = number % 10 == 0
        flow.client.publish("q", body(number) * (60 if large else 1), properties=PERSISTENT)
    for tag in range(1, 401):
        if tag % 10:
            flow.client.send(methods.BasicAck(tag))
    flow.tick(60)
    issued = len(flow.kit.disk.log)
    flow.tick(10)
    assert len(flow.kit.disk.log) == issued


class CrashingDisk(MemoryDisk):
    """Keeps what a power failure after each effect would leave, from `watch` on."""

    def __init__(self):
        super().__init__()
        self.is_watching = False
        self.images = []
        self._rng = random.Random(5)

    def _issue(self, file, op):
        super()._issue(file, op)
        if self.is_watching:
            self._keep()

    def _finish(self, file, token):
        super()._finish(file, token)
        if self.is_watching:
            self._keep()

    def _keep(self):
        for _ in range(3):
            self.images.append(self.crash(lambda most: self._rng.randint(0, most)))
        self.images.append(self.crash(lambda _: 0))
        self.images.append(self.crash(lambda most: most))


def lost_after_some_crash(make_recycler):
    """Is there a moment of a rewriting at which a power failure costs a message?"""
    flow = mostly_dead(CrashingDisk())
    flow.kit.node.recycler.__class__ = make_recycler
    flow.kit.disk.is_watching = True
    flow.tick(6)
    assert flow.kit.node.recycler.rewritten_bytes > 0
    assert len(flow.kit.disk.images) > 50
    for image in flow.kit.disk.images:
        kit = NodeKit(image)
        queue = kit.node.vhosts["/"].queues["q"]
        if queue.damage is not None:
            return True
        client = kit.client()
        client.consume("q", no_ack=True)
        if queue.damage is not None or not set(flow.stuck) <= set(client.deliveries()):
            return True
    return False


def test_a_crash_at_any_moment_of_a_rewriting_costs_nothing():
    assert not lost_after_some_crash(Recycler)


class RemovesBeforeTheCheckpoint(Recycler):
    """Planted: old segments go before the checkpoint that lists the new one is durable."""

    def _swap(self):
        gone = super()._swap()
        for name in gone:
            self._outbox.remove(name)
        return gone


class SkipsTheFlush(Recycler):
    """Planted: a checkpoint lists a new segment that is not flushed."""

    def _on_rewritten(self):
        self._flush_journal()


@pytest.mark.parametrize("planted", [RemovesBeforeTheCheckpoint, SkipsTheFlush])
def test_a_planted_bug_of_rewriting_is_caught(planted):
    assert lost_after_some_crash(planted)


def test_damage_met_while_rewriting_is_told_and_leaves_every_file():
    flow = mostly_dead()
    first = flow.log.segments.all[0]
    name = flow.log.segments.name(first.number)
    flow.kit.disk.damage(name, first.size // 2)
    files = flow.log.segments.files()
    flow.tick(5)
    queue = flow.kit.node.vhosts["/"].queues["q"]
    assert queue.damage is not None
    assert name in queue.damage
    assert any("damaged" in note.text for note in flow.kit.notes if note.level == "error")
    assert set(files) <= set(flow.kit.disk.list(segments.PREFIX))
