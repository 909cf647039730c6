"""A flipped bit in any kind of file is noticed and named, and costs no more than the queue it belongs to."""

import contextlib

import pytest

from mirrormq.base import limits
from mirrormq.cluster.raft.layout import RaftDamaged, RaftTooNew
from mirrormq.log import checkpoint, journal, segments
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.nodekit import NodeKit

QUEUES = ("a", "b", "c")
ROUNDS = 30


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    monkeypatch.setattr(limits, "journal_file_bytes", 4000)
    monkeypatch.setattr(limits, "recycle_slice_bytes", 4000)


@pytest.fixture(scope="module")
def image():
    """A disk with every kind of file: three queues with the same messages, in segments and in the journal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "journal_file_bytes", 4000)
        patch.setattr(limits, "recycle_slice_bytes", 4000)
        kit = NodeKit(MemoryDisk())
        client = kit.client()
        for queue in QUEUES:
            client.declare(queue, durable=True)
        client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        for number in range(ROUNDS):
            for queue in QUEUES:
                client.publish(queue, b"%s-%d " % (queue.encode(), number) * 20, properties=PERSISTENT)
        kit.advance(1)
        return kit.disk.copy()


def served(disk):
    """(queues with all their messages, queues refused with a reason); anything else is a silent loss."""
    kit = NodeKit(disk)
    whole, refused = set(), {}
    for name in QUEUES:
        queue = kit.node.vhosts["/"].queues[name]
        reader = kit.client()
        if queue.damage is None:
            reader.consume(name, no_ack=True)
            found = reader.deliveries()
            sent = [b"%s-%d " % (name.encode(), number) * 20 for number in range(ROUNDS)]
            assert found == sent[: len(found)], f"{name}: something was skipped"
            if queue.damage is None:
                assert len(found) == ROUNDS, name
                whole.add(name)
                continue
        refused[name] = queue.damage
        assert any(name in note.text for note in kit.notes if note.level == "error"), kit.notes
    return whole, refused


def test_the_image_has_every_kind_of_file_and_is_whole(image):
    kinds = {name.split("/")[0] for name in image.list("")}
    assert {"journal", "log", "segments", "meta"} <= kinds
    assert served(image.copy()) == (set(QUEUES), {})


def positions(image, prefix, skip_last=0):
    """Spread over the files with this prefix, some bytes left out at the end of the newest."""
    names = image.list(prefix)
    for name in names:
        size = len(image.read(name)) - (skip_last if name == names[-1] else 0)
        for at in range(0, max(size, 0), max(size // 12, 1)):
            yield name, at


def check_contained(image, name, at):
    disk = image.copy()
    disk.damage(name, at, 0x10)
    whole, refused = served(disk)
    assert len(whole) >= len(QUEUES) - 1, (name, at, refused)
    return refused


def test_a_flipped_bit_in_a_segment_costs_at_most_its_queue_which_names_the_segment(image):
    # The first segment has one batch: when that is unreadable, the search goes on in the next file.
    for name, at in positions(image, segments.PREFIX):
        for damage in check_contained(image, name, at).values():
            assert name in damage, (at, damage)


def test_a_flipped_bit_in_the_journal_costs_at_most_one_queue(image):
    # The newest file's last batches look like a torn end until a note says that they were flushed.
    for name, at in positions(image, journal.PREFIX, skip_last=1500):
        check_contained(image, name, at)


def test_a_flipped_bit_in_the_checkpoint_is_named_or_refuses_the_start(image):
    for at in range(len(image.read(checkpoint.NAME))):
        disk = image.copy()
        disk.damage(checkpoint.NAME, at, 0x10)
        with contextlib.suppress(checkpoint.CheckpointDamaged, checkpoint.CheckpointTooNew):
            served(disk)


def test_a_flipped_bit_in_the_definitions_refuses_the_start_or_changes_nothing(image):
    found = [*positions(image, "meta/log-", skip_last=400), *positions(image, "meta/vote")]
    for name, at in found:
        disk = image.copy()
        disk.damage(name, at, 0x10)
        with pytest.raises((RaftDamaged, RaftTooNew), match=name):
            NodeKit(disk)
