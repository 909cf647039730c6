"""An inspection says what a start would find, and finds damage that a start would only meet later."""

import pytest

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log import checkpoint, journal, segments
from mirrormq.log.inspect import Inspection
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.nodekit import NodeKit

QUEUES = ("a", "b", "c")
ROUNDS = 30


@pytest.fixture(scope="module")
def kit():
    """A node with three queues in segments and journal; some messages of `b` are gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "journal_file_bytes", 4000)
        patch.setattr(limits, "recycle_slice_bytes", 4000)
        made = NodeKit(MemoryDisk())
        client = made.client()
        for queue in QUEUES:
            client.declare(queue, durable=True)
        client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        for number in range(ROUNDS):
            for queue in QUEUES:
                client.publish(queue, b"%s-%d " % (queue.encode(), number) * 20, properties=PERSISTENT)
            if number % 3 == 0:
                client.send(methods.BasicGet(queue="b", no_ack=True))
        made.advance(1)
        return made


@pytest.fixture(scope="module")
def image(kit):
    return kit.disk.copy()


@pytest.fixture(scope="module")
def names(kit):
    queues = kit.node.vhosts["/"].queues
    return {queues[name].record.log_id: name for name in QUEUES}


def verified(disk, names):
    return Inspection(disk, names).verify()


def test_a_queue_is_shown_as_its_node_has_it(kit, image, names):
    found = Inspection(image, names).learn()
    for queue_id, name in names.items():
        log = kit.node.logs[queue_id]
        queue = found[queue_id]
        assert queue.damage is None
        assert (queue.log.end, queue.log.horizon) == (log.end, log.horizon)
        assert queue.log.dead.spans_list() == log.dead.spans_list()
        assert queue.live == kit.node.vhosts["/"].queues[name].core.ready
        assert queue.log.segments.all == log.segments.all
        assert set(queue.journal) <= set(image.list(journal.PREFIX))
        in_journal = sum(share.records for share in queue.journal.values())
        assert in_journal <= queue.log.end


def test_every_live_record_is_listed_with_its_kind_and_place(kit, image, names):
    inspection = Inspection(image, names)
    inspection.learn()
    for queue_id in names:
        listed = list(inspection.records(queue_id))
        log = kit.node.logs[queue_id]
        published = {record.seq for record in listed if record.kind == "PUBLISH"}
        live = {seq for seq in range(1, log.end + 1) if seq not in log.dead}
        assert live <= published
        assert {record.queue_id for record in listed} == {queue_id}
        for record in listed[:50]:
            head = records.read_head(image.read(record.file), record.offset)
            assert head is not None
            assert (head[1], head[2], head[6]) == (record.queue_id, record.epoch, record.time)
    kinds = {record.kind for record in inspection.records()}
    assert {"PUBLISH", "REMOVE"} <= kinds


def test_a_whole_folder_has_no_faults(kit, image, names):
    report = verified(image, names)
    assert report.faults == []
    assert report.queues == len(QUEUES)
    assert report.segments == sum(len(kit.node.logs[key].segments.all) for key in names) > 0
    assert report.journal_files == len(image.list(journal.PREFIX))
    assert report.live == sum(kit.node.vhosts["/"].queues[name].core.ready for name in QUEUES)


def test_an_empty_folder_has_nothing_and_no_faults(names):
    report = verified(MemoryDisk(), names)
    assert (report.faults, report.live, report.size) == ([], 0, 0)


def test_a_flipped_bit_in_a_segment_is_named_with_file_offset_and_queue(kit, image, names):
    for name in image.list(segments.PREFIX):
        identity = segments.identify(name)
        assert identity is not None
        if not kit.node.logs[identity[0]].segments.lists(identity[1]):
            continue
        size = len(image.read(name))
        for at in range(0, size, max(size // 20, 1)):
            disk = image.copy()
            disk.damage(name, at, 0x10)
            faults = verified(disk, names).faults
            assert [fault for fault in faults if fault.file == name and fault.queue_id == identity[0]], at
            assert all((fault.offset or 0) <= at for fault in faults)


def test_a_flipped_bit_in_the_journal_is_named_with_its_file(image, names):
    found = image.list(journal.PREFIX)
    for name, following in zip(found, [*found[1:], None], strict=True):
        # The newest file's last batches look like a torn end until a note says that they were flushed.
        size = len(image.read(name)) - 1500
        if following is not None:
            head = journal.read_file_head(image.read(following))
            assert head is not None
            size = head.previous_end
        for at in range(0, size, max(size // 20, 1)):
            disk = image.copy()
            disk.damage(name, at, 0x10)
            assert [fault for fault in verified(disk, names).faults if fault.file == name], (name, at)


def test_a_flipped_bit_anywhere_in_the_checkpoint_is_found(image, names):
    for at in range(len(image.read(checkpoint.NAME))):
        disk = image.copy()
        disk.damage(checkpoint.NAME, at, 0x10)
        assert verified(disk, names).faults, at


def test_a_missing_segment_with_live_messages_is_a_fault(kit, image, names):
    for queue_id in names:
        log = kit.node.logs[queue_id]
        for segment in log.segments.all:
            if segment.live(log.dead):
                disk = image.copy()
                disk.remove(log.segments.name(segment.number))
                faults = verified(disk, names).faults
                assert [fault.file for fault in faults] == [log.segments.name(segment.number)]


def test_a_missing_journal_file_is_a_fault(image, names):
    for name in image.list(journal.PREFIX)[:-1]:
        disk = image.copy()
        disk.remove(name)
        assert verified(disk, names).faults, name


def test_a_torn_end_is_counted_and_no_fault(image, names):
    name = image.list(journal.PREFIX)[-1]
    disk = image.copy()
    disk.append(name, b"MQB1 half a batch")
    report = verified(disk, names)
    assert report.faults == []
    assert report.torn_bytes == len(b"MQB1 half a batch")


def test_an_inspection_writes_nothing(image, names):
    disk = image.copy()
    before = {name: disk.read(name) for name in disk.list("")}
    inspection = Inspection(disk, names)
    inspection.learn()
    list(inspection.records())
    verified(disk, names)
    assert disk.log == []
    assert {name: disk.read(name) for name in disk.list("")} == before
