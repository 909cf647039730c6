"""What `fsync` promises: `always` waits for the flush, `interval` flushes in time, `never` when a checkpoint
needs it, so that a queue is there again after any crash, if not all of it.
"""

import random
from itertools import count

import pytest

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.log.journal import Journal
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import NodeKit


def publishing(**settings):
    kit = NodeKit(MemoryDisk(), **settings)
    client = kit.client()
    client.declare("q", durable=True)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    kit.hold_flushes = True
    kit.disk.log.clear()
    client.publish("q", b"x", properties=PERSISTENT)
    return kit, client


def journal_flushes(kit):
    return [kind for kind, file in kit.disk.log if kind == "flush" and file.startswith("journal/")]


def test_always_confirms_after_the_flush():
    kit, client = publishing()
    assert client.take() == []
    assert len(journal_flushes(kit)) == 1


def test_interval_confirms_at_once_and_flushes_when_the_interval_is_over():
    kit, client = publishing(fsync="interval", fsync_interval_ms=500)
    assert client.take() == [methods.BasicAck(1, False)]
    assert not journal_flushes(kit)
    assert kit.node.next_timer() == kit.now.mono + 500_000
    kit.advance(0.4)
    assert not journal_flushes(kit)
    kit.advance(0.1)
    assert len(journal_flushes(kit)) == 1
    kit.hold_flushes = False
    kit.flush()
    kit.advance(5)
    assert len(journal_flushes(kit)) == 1, "nothing new, no flush"


def test_never_confirms_at_once_and_does_not_flush_queue_data():
    kit, client = publishing(fsync="never")
    assert client.take() == [methods.BasicAck(1, False)]
    kit.advance(10)
    assert not journal_flushes(kit)
    assert kit.node.next_timer() is None


SMALL = {
    "queue_memory_bytes": 2_000,
    "window_entries": 8,
    "read_back_bytes": 1_500,
    "place_bytes_min": 300,
    "journal_file_bytes": 4_000,
    "journal_files_max": 2,
    "recycle_slice_bytes": 1_000,
    "segment_bytes_min": 1_500,
    "segment_bytes_max": 6_000,
}
MESSAGES = 200


class CrashingDisk(MemoryDisk):
    """Keeps what a crash would leave before every so many effects, and on either side of each checkpoint."""

    def __init__(self, crash, every):
        super().__init__()
        self.crash_now, self.every = crash, every
        self.found = []
        self.asked = 0
        self.last = ""

    def _issue(self, file, op):
        self.asked += 1
        if self.asked % self.every == 0 or "replace" in (op.kind, self.last):
            self.found.append(self.crash_now(self))
        self.last = op.kind
        super()._issue(file, op)


def work(kit):
    """Publishes, of which the oldest are taken out: what is there is a run of numbers at any time."""
    client = kit.client()
    client.declare("q", durable=True)
    for number in range(MESSAGES):
        client.feed(publish(b"q", b"%04d" % number + b"x" * 60, PERSISTENT))
        kit.run()
        if number % 3 == 0:
            client.send(methods.BasicGet(queue="q", no_ack=True))
            client.take()


def served(disk, mode):
    """The numbers that a client gets out of the queue on the next start; None if there is none yet."""
    kit = NodeKit(disk, fsync=mode)
    queue = kit.node.vhosts["/"].queues.get("q")
    if queue is None:
        return None
    assert queue.damage is None
    client = kit.client()
    client.ask(methods.BasicConsume(queue="q", no_ack=True), methods.BasicConsumeOk)
    kit.run()
    return [int(body[:4]) for body in client.deliveries()]


@pytest.fixture
def small(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(limits, name, value)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["always", "interval", "never"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_queue_is_served_from_some_earlier_moment_on_whenever_the_power_fails(small, mode, seed):
    rng = random.Random(seed)

    def power_fails(disk):
        most = rng.choice((0, 1, 1_000_000))
        return disk.crash(lambda top: min(most, rng.randint(0, top)), lose_pages=rng.random() < 0.3)

    kit = NodeKit(CrashingDisk(power_fails, every=7), fsync=mode)
    work(kit)
    assert kit.node.recycler.recycled_files > 3
    for disk in kit.disk.found:
        numbers = served(disk, mode)
        if numbers:
            assert numbers == list(range(numbers[0], numbers[-1] + 1))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["always", "interval", "never"])
def test_a_queue_has_everything_whenever_its_process_is_killed(small, mode):
    kit = NodeKit(CrashingDisk(MemoryDisk.restart, every=9), fsync=mode)
    work(kit)
    last = -1
    for disk in [*kit.disk.found, kit.disk.restart()]:
        numbers = served(disk, mode)
        if numbers:
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            assert numbers[-1] >= last
            last = numbers[-1]
    assert last == MESSAGES - 1


def test_never_flushes_the_journal_about_once_per_file_that_is_emptied(small):
    kit = NodeKit(MemoryDisk(), fsync="never")
    work(kit)
    recycled = kit.node.recycler.recycled_files
    assert recycled > 3
    assert recycled <= kit.node.journal.flush_count <= 2 * recycled + 1


class Log:
    """A queue's log, as far as the journal asks."""

    def mark(self):
        return None

    def on_durable(self, mark):
        pass


def test_a_checkpoint_waits_for_what_the_pass_has_not_handed_over_whatever_counts_as_durable():
    """It would else be written first, and a process killed in between would miss what it names."""
    now, disk, tokens, told = Now(1, 1), MemoryDisk(), count(1), []
    made = Journal(disk, lambda: next(tokens), fsync="never")
    made.start(1, [], 0)
    made.commit(now)
    made.add(Log(), b"batch", flush=True, now=now)
    made.on_disk(lambda: told.append(disk.durable_size(made.current)))
    assert not told
    made.commit(now)
    assert made.flushed(disk.finish_next(), now)
    assert told == [made.size]
    made.on_disk(lambda: told.append(-1))
    assert told[-1] == -1, "nothing new, no flush"
