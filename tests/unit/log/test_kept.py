"""Files of a damaged queue stay as they are while the node goes on: whoever repairs it finds them all."""

import pytest

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log import checkpoint, journal, segments
from mirrormq.log.inspect import batches
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.nodekit import NodeKit

QUEUES = ("a", "b", "c")
ROUNDS = 40


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    monkeypatch.setattr(limits, "journal_file_bytes", 4000)
    monkeypatch.setattr(limits, "recycle_slice_bytes", 4000)
    monkeypatch.setattr(limits, "segment_bytes_min", 2000)


def body(queue, number):
    return b"%s-%d " % (queue.encode(), number) * 20


def filled():
    """A node whose three queues lie in segments and in the journal."""
    kit = NodeKit(MemoryDisk())
    client = kit.client()
    for queue in QUEUES:
        client.declare(queue, durable=True)
    for number in range(ROUNDS):
        for queue in QUEUES:
            client.publish(queue, body(queue, number), properties=PERSISTENT)
    kit.advance(1)
    return kit


def queue_of(kit, name):
    return kit.node.vhosts["/"].queues[name]


def log_id(kit, name):
    return queue_of(kit, name).record.log_id


def batch_of(disk, name, queue_id, *, last=False):
    """Where a batch with a publish of a queue lies in a journal file."""
    found = [
        at for at, head in batches(disk.read(name), journal.HEAD_BYTES) if head[1] == queue_id and head[5]
    ]
    return found[-1 if last else 0]


def busy(kit, rounds=150):
    """Let messages flow through b and c, so that the journal goes on by many files."""
    client = kit.client()
    for number in range(rounds):
        for queue in ("b", "c"):
            client.publish(queue, b"%d " % number * 50, properties=PERSISTENT)
    kit.advance(1)
    kit.advance(1)


def served(kit, name):
    client = kit.client()
    client.consume(name, no_ack=True)
    return client.deliveries()


def own_files(disk, queue_id):
    """Segments of a queue and journal files with records of it, and what is in them."""
    files = disk.list(f"{segments.PREFIX}{queue_id:020d}/")
    for name in disk.list(journal.PREFIX):
        if any(head[1] == queue_id for _, head in batches(disk.read(name), journal.HEAD_BYTES)):
            files.append(name)
    return {name: disk.read(name) for name in files}


def damaged_start():
    """A node that found queue a damaged in the journal; the healthy disk; and the byte that flipped."""
    kit = filled()
    healthy = kit.disk.copy()
    queue_id = log_id(kit, "a")
    name = healthy.list(journal.PREFIX)[1]
    at = batch_of(healthy, name, queue_id) + 80
    disk = healthy.copy()
    disk.damage(name, at)
    again = NodeKit(disk)
    assert queue_of(again, "a").damage is not None
    return again, healthy, (name, at)


def test_files_of_a_damaged_queue_stay_while_the_journal_goes_on():
    kit, healthy, (name, at) = damaged_start()
    queue_id = log_id(kit, "a")
    files = own_files(healthy, queue_id)
    busy(kit)
    assert kit.node.recycler.first_serial > journal.serial_of(name)
    for file, data in files.items():
        now = kit.disk.read(file)
        expected = bytearray(data)
        if file == name:
            expected[at] ^= 0xFF
        assert now[: len(expected)] == bytes(expected), file
    kept = checkpoint.decode(kit.disk.read(checkpoint.NAME)).kept
    assert name in {journal.file_name(serial) for serial, _ in kept}
    others = [file for file in healthy.list(journal.PREFIX) if file not in files]
    assert not set(others[:-1]) & set(kit.disk.list(journal.PREFIX))


def test_a_damaged_queue_stays_damaged_and_the_others_whole_over_many_restarts():
    kit, _, _ = damaged_start()
    for _ in range(3):
        busy(kit, 60)
        kit = NodeKit(kit.disk.restart())
        damage = queue_of(kit, "a").damage
        assert damage is not None
        assert queue_of(kit, "b").damage is queue_of(kit, "c").damage is None
    wanted = [body("b", number) for number in range(ROUNDS)]
    assert served(kit, "b")[:ROUNDS] == wanted


def test_a_queue_whose_file_is_repaired_comes_back_whole_and_its_kept_files_go():
    kit, _, (name, at) = damaged_start()
    busy(kit)
    disk = kit.disk.restart()
    disk.damage(name, at)  # the same bits again: as it was
    repaired = NodeKit(disk)
    assert queue_of(repaired, "a").damage is None
    client = repaired.client()
    client.publish("a", b"after", properties=PERSISTENT)
    busy(repaired)
    for _ in range(10):
        repaired.advance(1)
    assert repaired.node.recycler.kept == {}
    assert name not in repaired.disk.list(journal.PREFIX)
    wanted = [body("a", number) for number in range(ROUNDS)] + [b"after"]
    last = NodeKit(repaired.disk.restart())
    assert served(last, "a") == wanted
    assert served(repaired, "a") == wanted


def test_kept_files_go_with_their_queue():
    kit, _, (name, _) = damaged_start()
    busy(kit)
    kit.client().send(methods.QueueDelete(queue="a"))
    busy(kit)
    assert kit.node.recycler.kept == {}
    assert name not in kit.disk.list(journal.PREFIX)
    assert checkpoint.decode(kit.disk.read(checkpoint.NAME)).kept == []


def test_an_unreadable_part_of_the_checkpoint_is_written_again_and_its_segments_stay():
    kit = filled()
    queue_id = log_id(kit, "a")
    disk = kit.disk.copy()
    data = disk.read(checkpoint.NAME)
    at = data.index(queue_id.to_bytes(8, "little")) + 40
    disk.damage(checkpoint.NAME, at)
    own = disk.list(f"{segments.PREFIX}{queue_id:020d}/")
    assert own
    node = NodeKit(disk)
    for _ in range(2):
        assert "its part of log/checkpoint is damaged" in queue_of(node, "a").damage
        busy(node)
        assert set(own) <= set(node.disk.list(segments.PREFIX))
        node = NodeKit(node.disk.restart())
    found = checkpoint.decode(node.disk.read(checkpoint.NAME))
    assert found.damaged[queue_id].payload[: 40 - 16] == data[at - 24 : at]


def test_damage_met_while_a_journal_file_is_emptied_fails_its_queue_and_no_other():
    kit = filled()
    queue_id = log_id(kit, "a")
    name = kit.disk.list(journal.PREFIX)[0]
    at = batch_of(kit.disk, name, queue_id, last=True)
    kit.disk.damage(name, at + records.HEAD_BYTES + 60)
    busy(kit)
    assert name in queue_of(kit, "a").damage
    assert any("queue 'a'" in note.text for note in kit.notes if note.level == "error")
    assert queue_of(kit, "b").damage is queue_of(kit, "c").damage is None
    assert kit.node.recycler.first_serial > journal.serial_of(name)
    assert name in kit.disk.list(journal.PREFIX)
    again = NodeKit(kit.disk.restart())
    assert queue_of(again, "a").damage is not None
    assert served(again, "c")[:ROUNDS] == [body("c", number) for number in range(ROUNDS)]


def test_a_batch_without_head_and_tail_is_missed_by_its_queue_while_its_file_is_emptied():
    kit = filled()
    queue_id = log_id(kit, "a")
    name = kit.disk.list(journal.PREFIX)[0]
    at = batch_of(kit.disk, name, queue_id, last=True)
    size = records.read_head(kit.disk.read(name), at)[0]
    kit.disk.damage(name, at + 3)
    kit.disk.damage(name, at + size - 10)
    busy(kit)
    assert queue_of(kit, "a").damage is not None
    assert queue_of(kit, "b").damage is queue_of(kit, "c").damage is None


def test_damage_to_what_nobody_needs_any_more_harms_nobody():
    kit = filled()
    served(kit, "a")
    kit.advance(1)
    name = kit.disk.list(journal.PREFIX)[0]
    kit.disk.damage(name, batch_of(kit.disk, name, log_id(kit, "a")) + 80)
    busy(kit)
    assert all(queue_of(kit, queue).damage is None for queue in QUEUES)
    assert name not in kit.disk.list(journal.PREFIX)
