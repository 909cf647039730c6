"""An image of the data folder is whole, belongs to one moment, and its files stay until they are released."""

import pytest

from mirrormq.base import limits
from mirrormq.cluster.raft.recovery import SNAPSHOT
from mirrormq.log import checkpoint, journal, segments
from mirrormq.log.inspect import Inspection
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.nodekit import NodeKit


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    monkeypatch.setattr(limits, "journal_file_bytes", 4000)
    monkeypatch.setattr(limits, "recycle_slice_bytes", 1000)


def publishing(kit, count, start=0):
    client = kit.client()
    client.declare("q", durable=True)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    for number in range(start, start + count):
        client.publish("q", b"%06d" % number * 20, properties=PERSISTENT)
    client.take()
    return client


def held(kit):
    """Hold the files and return the image."""
    found = []
    kit.node.hold_files(kit.now, lambda image, error: found.append((image, error)))
    kit.run()
    ((image, error),) = found
    assert error is None
    return image


def copied(kit, image):
    """The disk that a copy of the image makes."""
    disk = kit.disk
    files = {name: disk.read(name) for name in disk.list(segments.PREFIX)}
    if disk.list(checkpoint.NAME):
        files[checkpoint.NAME] = disk.read(checkpoint.NAME)
    for serial in image.serials:
        name = journal.file_name(serial)
        files[name] = disk.read(name)[: image.last_size if serial == image.serials[-1] else None]
    return MemoryDisk({**files, SNAPSHOT: b"".join(image.meta)})


def bodies(kit):
    reader = kit.client()
    reader.consume("q", no_ack=True)
    return reader.deliveries()


def numbers(found):
    return [int(body[:6]) for body in found]


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_a_copy_of_the_image_has_what_was_published_before_and_nothing_later(fsync):
    kit = NodeKit(MemoryDisk(), fsync=fsync)
    publishing(kit, 150)
    image = held(kit)
    client = publishing(kit, 200, start=150)
    client.declare("later", durable=True)
    disk = copied(kit, image)
    kit.node.release_files(kit.now)
    after = NodeKit(disk)
    assert "later" not in after.node.vhosts["/"].queues
    assert numbers(bodies(after)) == list(range(150))
    names = {queue.record.log_id: name for name, queue in after.node.vhosts["/"].queues.items()}
    assert Inspection(copied(kit, image._replace(meta=iter(()))), names).verify().faults == []


def test_a_queue_deleted_while_the_files_are_held_is_in_the_copy():
    kit = NodeKit(MemoryDisk())
    client = publishing(kit, 150)
    image = held(kit)
    client.ask(methods.QueueDelete(queue="q"), methods.QueueDeleteOk)
    kit.advance(5)
    assert numbers(bodies(NodeKit(copied(kit, image)))) == list(range(150))


def test_nothing_but_the_journal_changes_while_the_files_are_held_and_all_goes_on_afterwards():
    kit = NodeKit(MemoryDisk())
    publishing(kit, 150)
    image = held(kit)
    before = {name: kit.disk.read(name) for name in kit.disk.list("") if not name.startswith("meta/")}
    publishing(kit, 300, start=150)
    kit.advance(5)
    for name, data in before.items():
        assert kit.disk.read(name)[: len(data)] == data
        if not name.startswith(journal.PREFIX):
            assert kit.disk.read(name) == data
    assert len(kit.disk.list(journal.PREFIX)) > limits.journal_files_max + 1
    kit.node.release_files(kit.now)
    kit.advance(1)
    kit.advance(1)
    assert image.serials[0] not in map(journal.serial_of, kit.disk.list(journal.PREFIX))
    assert len(kit.disk.list(journal.PREFIX)) <= limits.journal_files_max + 1
    assert numbers(bodies(NodeKit(kit.disk.copy()))) == list(range(450))


def test_files_are_held_only_when_a_step_under_way_is_over():
    kit = NodeKit(MemoryDisk())
    client = publishing(kit, 1)
    kit.hold_flushes = True
    for number in range(1, 150):
        client.publish("q", b"%06d" % number * 20, properties=PERSISTENT)
    found = []
    kit.node.hold_files(kit.now, lambda image, error: found.append(image))
    kit.run()
    assert not found, "segments and journal are not flushed yet"
    kit.hold_flushes = False
    kit.flush()
    kit.run()
    assert len(found) == 1
    assert numbers(bodies(NodeKit(copied(kit, found[0])))) == list(range(150))
