"""Journal files have zeros behind their last batch, because they get their space in advance: that is no
damage.
"""

import random

import pytest

from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.nodekit import NodeKit


def with_zeros(disk, zeros=10_000):
    """The disk after a crash that lost nothing flushed, with the space the journal files had in advance."""
    content = content_of(disk.crash(lambda _: 0))
    room = {name: bytes(zeros if name.startswith("journal/") else 0) for name in content}
    return MemoryDisk({name: data + room[name] for name, data in content.items()})


def content_of(disk):
    return {name: disk.read(name) for name in disk.list("")}


def confirmed(kit, *bodies):
    client = kit.client()
    client.declare("q", durable=True)
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    for body in bodies:
        client.publish("q", body, properties=PERSISTENT)
    assert client.take()[-1] == methods.BasicAck(len(bodies), False)
    return client


def delivered(kit):
    reader = kit.client()
    reader.consume("q")
    return reader.deliveries()


def recovered_note(kit):
    return next(note.fields for note in kit.notes if note.text == "queues recovered")


def test_zeros_behind_the_last_batch_are_the_end_of_the_journal():
    kit = NodeKit(MemoryDisk())
    confirmed(kit, b"one", b"two")
    after = NodeKit(with_zeros(kit.disk))
    assert recovered_note(after)["torn_bytes"] == 0
    assert delivered(after) == [b"one", b"two"]


def test_a_body_that_ends_in_zeros_is_whole():
    kit = NodeKit(MemoryDisk())
    confirmed(kit, b"one", bytes(5000))
    after = NodeKit(with_zeros(kit.disk))
    assert delivered(after) == [b"one", bytes(5000)]


def test_restarts_on_top_of_zeros_lose_nothing():
    disk = MemoryDisk()
    expected = []
    for turn in range(5):
        kit = NodeKit(disk)
        confirmed(kit, b"%d" % turn)
        expected.append(b"%d" % turn)
        disk = with_zeros(kit.disk)
    assert delivered(NodeKit(disk)) == expected


def test_a_torn_batch_before_the_zeros_is_cut():
    kit = NodeKit(MemoryDisk())
    client = confirmed(kit, b"one")
    content = content_of(with_zeros(kit.disk))
    kit.hold_flushes = True
    client.publish("q", b"never confirmed", properties=PERSISTENT)
    name = kit.disk.list("journal/")[-1]
    data = kit.disk.read(name)
    torn = data[: data.index(b"confirmed")]
    after = NodeKit(MemoryDisk({**content, name: torn + bytes(5000)}))
    assert 0 < recovered_note(after)["torn_bytes"] < 5000
    assert delivered(after) == [b"one"]


@pytest.mark.parametrize("body", [b"one", b"two"])
@pytest.mark.parametrize("before", [20, 121 - 3])
def test_zeros_where_a_flush_was_noted_are_damage(body, before):
    kit = NodeKit(MemoryDisk())
    confirmed(kit, b"one", b"two", b"three", b"four")
    content = content_of(with_zeros(kit.disk))
    name = kit.disk.list("journal/")[-1]
    end = content[name].index(body) + len(body)
    first = end - len(body) - before
    content[name] = content[name][:first] + bytes(end - first) + content[name][end:]
    after = NodeKit(MemoryDisk(content))
    assert after.node.vhosts["/"].queues["q"].damage


@pytest.mark.parametrize("size", [0, 1, 27, 4000])
def test_a_journal_file_that_was_only_begun_is_used_again(size):
    kit = NodeKit(MemoryDisk())
    confirmed(kit, b"one")
    disk = with_zeros(kit.disk)
    last = disk.list("journal/")[-1]
    begun = f"journal/{int(last.removeprefix('journal/')) + 1:016d}"
    content = content_of(disk)
    after = NodeKit(MemoryDisk({**content, begun: random.Random(size).randbytes(size // 2) + bytes(size)}))
    confirmed(after, b"two")
    assert delivered(NodeKit(with_zeros(after.disk))) == [b"one", b"two"]
