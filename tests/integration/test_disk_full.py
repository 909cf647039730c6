"""A disk that is really full, fails or was written by a later version: nothing confirmed is lost, and a full
disk can be drained without help.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrormq.kernel.crc32c import crc32c
from mirrormq.wire import methods
from mirrormq.wire.properties import Properties, encode_properties
from tests.integration.faultydisk import FaultyDisk
from tests.integration.process import Process, failing, running, sentence
from tests.integration.smalldisk import MIB, SmallDisk, small_disk
from tests.support.raw import Closed, RawClient, connect

CHANNEL = 1
QUEUE = "full"
BODY_BYTES = 64 * 1024
BURST = 8
RESERVE_USED = "the disk is full: its reserve is in use"
PERSISTENT = encode_properties(Properties(delivery_mode=2))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.fixture
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, getattr(request, "param", 320) * MIB) as made:
        yield made


class Publisher:
    """Publishes numbered persistent messages with confirms."""

    def __init__(self, port: int, queue: str = QUEUE, first: int = 0, size: int = BODY_BYTES) -> None:
        self.client = opened(port)
        self.queue = queue
        self.size = size
        self.client.call(CHANNEL, methods.QueueDeclare(queue=queue, durable=True), methods.QueueDeclareOk)
        self.client.call(CHANNEL, methods.ConfirmSelect(), methods.ConfirmSelectOk)
        self.first = first
        self.sent = 0
        self.confirmed = 0

    def burst(self, count: int = BURST) -> None:
        for _ in range(count):
            body = body_of(self.first + self.sent, self.size)
            self.sent += 1
            self.client.publish(CHANNEL, methods.BasicPublish(routing_key=self.queue), body, PERSISTENT)

    def answer(self) -> methods.Method:
        """The next method; confirms are counted."""
        method = self.client.next_frame().method
        if isinstance(method, methods.BasicAck):
            assert method.multiple or method.delivery_tag == self.confirmed + 1
            self.confirmed = method.delivery_tag
        return method

    def until_blocked(self) -> None:
        """Publish until the node says that it takes no more; `confirmed` are in the queue."""
        while True:
            self.burst()
            while self.confirmed < self.sent:
                if isinstance(self.answer(), methods.ConnectionBlocked):
                    return

    def until_unblocked(self) -> None:
        """Wait until the node goes on, and all that was sent is confirmed."""
        while not isinstance(self.answer(), methods.ConnectionUnblocked):
            pass
        self.until_confirmed()

    def until_confirmed(self) -> None:
        """Wait until all that was sent is confirmed."""
        while self.confirmed < self.sent:
            self.answer()


def opened(port: int) -> RawClient:
    client = connect("127.0.0.1", port)
    client.handshake()
    client.open_channel(CHANNEL)
    return client


def body_of(number: int, size: int = BODY_BYTES) -> bytes:
    return struct.pack("<Q", number).ljust(size, b".")


def drain(port: int, count: int, queue: str = QUEUE) -> list[int]:
    """Consume and acknowledge this many messages, check that they are whole, and return their numbers."""
    client = opened(port)
    client.call(CHANNEL, methods.BasicQos(0, 100, False), methods.BasicQosOk)
    client.call(CHANNEL, methods.BasicConsume(queue=queue, consumer_tag="c"), methods.BasicConsumeOk)
    numbers = []
    for _ in range(count):
        tag = client.expect(CHANNEL, methods.BasicDeliver).delivery_tag
        body = client.expect_content(CHANNEL).body
        (number,) = struct.unpack_from("<Q", body)
        assert body == body_of(number, len(body))
        numbers.append(number)
        client.send_method(CHANNEL, methods.BasicAck(tag, False))
    client.close_cleanly()
    return numbers


def depth(port: int, queue: str = QUEUE) -> int:
    client = opened(port)
    declare = methods.QueueDeclare(queue=queue, durable=True)
    count = client.call(CHANNEL, declare, methods.QueueDeclareOk).message_count
    client.close_cleanly()
    return count


JOURNAL_ONLY = 224
"""A disk on which publishers are held before a journal file is emptied: nothing moves by itself any more."""


@pytest.mark.parametrize("disk", [JOURNAL_ONLY, 320], ids=["in the journal", "in segments"], indirect=True)
def test_publishers_are_held_before_the_disk_is_full_and_go_on_when_it_was_drained(disk: SmallDisk) -> None:
    with disk.node() as node:
        publisher = Publisher(node.port)
        publisher.until_blocked()
        assert disk.free > 8 * MIB, "held before it is full"
        assert (disk.inside / "reserve").stat().st_size == 64 * MIB, "the reserve was not needed"
        queued = publisher.confirmed
        assert queued > 1000
        assert drain(node.port, queued) == list(range(queued))
        publisher.until_unblocked()
        late = list(range(queued, publisher.sent))
        assert drain(node.port, len(late)) == late
        publisher.client.close_cleanly()
        assert node.stop() == 0


@pytest.mark.parametrize("disk", [JOURNAL_ONLY], indirect=True)
def test_a_disk_filled_from_outside_is_drained_to_empty_without_help(disk: SmallDisk) -> None:
    with disk.node() as node:
        publisher = Publisher(node.port)
        publisher.until_blocked()
        disk.fill()
        assert disk.free == 0
        queued = publisher.confirmed
        assert drain(node.port, queued) == list(range(queued))
        assert depth(node.port) == 0
        Publisher(node.port, "definitions go on").client.close_cleanly()
        # What the queue held is free again: enough for the reserve and for publishers, ballast or not.
        publisher.until_unblocked()
        assert (disk.inside / "reserve").stat().st_size == 64 * MIB
        assert RESERVE_USED in node.log
        assert "disk alarm cleared" in node.log
        disk.relieve()
        publisher.burst()
        publisher.until_confirmed()
        late = list(range(queued, publisher.sent))
        assert drain(node.port, len(late)) == late
        publisher.client.close_cleanly()
        assert node.stop() == 0


def test_a_disk_filled_while_publishers_are_at_work_costs_nothing_confirmed(disk: SmallDisk) -> None:
    """The disk is full from one moment to the next, far from the alarm: the reserve is used at once."""
    with disk.node("--set", "disk_free_limit=0") as node:
        publisher = Publisher(node.port)
        for _ in range(20):
            publisher.burst()
        disk.fill()
        publisher.until_blocked()
        assert RESERVE_USED in node.log
        queued = publisher.confirmed
        publisher.client.close()
        node.popen.kill()
        node.wait()
    with disk.node("--set", "disk_free_limit=0") as node:
        found = depth(node.port)
        assert found >= queued
        assert drain(node.port, found) == list(range(found)), "everything confirmed is there after kill -9"
        disk.relieve()
        again = Publisher(node.port, first=found)
        again.burst()
        if isinstance(again.answer(), methods.ConnectionBlocked):
            again.until_unblocked()
        again.until_confirmed()
        assert drain(node.port, again.sent) == list(range(found, found + again.sent))
        again.client.close()


@pytest.mark.parametrize("disk", [JOURNAL_ONLY], indirect=True)
def test_kill_9_on_a_full_disk_loses_nothing_and_the_next_node_can_be_drained(disk: SmallDisk) -> None:
    with disk.node() as node:
        publisher = Publisher(node.port)
        publisher.until_blocked()
        disk.fill()
        queued = publisher.confirmed
        taken = drain(node.port, queued // 4)
        assert taken == list(range(len(taken)))
        publisher.client.close()
        node.popen.kill()
        node.wait()
    with disk.node() as node:
        left = depth(node.port)
        assert left >= queued - len(taken)
        assert RESERVE_USED in node.log
        numbers = drain(node.port, left)
        assert numbers == list(range(numbers[0], numbers[0] + left))
        assert numbers[0] <= len(taken), "nothing but what was acknowledged is gone"
        assert numbers[-1] >= queued - 1
        disk.relieve()
        again = Publisher(node.port, first=numbers[-1] + 1)
        again.burst()
        again.until_confirmed()
        assert drain(node.port, again.sent) == list(range(again.first, again.first + again.sent))
        again.client.close()


def use_up(disk: SmallDisk) -> None:
    """The node has given up its reserve, and another program has taken that too."""
    os.truncate(disk.inside / "reserve", 0)
    disk.fill()
    assert disk.free == 0


@pytest.mark.parametrize("disk", [JOURNAL_ONLY], indirect=True)
def test_a_node_starts_on_a_full_disk_whose_reserve_is_used_up_and_goes_on_when_there_is_space(
    disk: SmallDisk,
) -> None:
    with disk.node() as node:
        publisher = Publisher(node.port)
        publisher.until_blocked()
        disk.fill()
        queued = publisher.confirmed
        taken = drain(node.port, queued // 4)
        publisher.client.close()
        node.popen.kill()
        node.wait()
    use_up(disk)
    with disk.node() as node:
        left = depth(node.port)
        assert left >= queued - len(taken)
        assert RESERVE_USED in node.log
        waiting = Publisher(node.port, QUEUE, first=publisher.sent)
        waiting.burst()
        assert isinstance(waiting.answer(), methods.ConnectionBlocked)
        assert node.popen.poll() is None
        disk.relieve()
        waiting.until_unblocked()
        numbers = drain(node.port, left + waiting.sent)
        found = numbers[:left]
        assert found == list(range(found[0], found[0] + left)), "nothing in between is gone"
        assert found[0] <= len(taken)
        assert found[-1] >= queued - 1
        assert numbers[left:] == list(range(publisher.sent, publisher.sent + waiting.sent))
        assert (disk.inside / "node.json").exists()
        assert "disk alarm cleared" in node.log
        waiting.client.close()
        assert node.stop() == 0


@pytest.mark.parametrize("disk", [JOURNAL_ONLY], indirect=True)
def test_a_node_that_waits_for_space_can_be_stopped_and_loses_nothing_confirmed(disk: SmallDisk) -> None:
    with disk.node() as node:
        publisher = Publisher(node.port)
        publisher.until_blocked()
        queued = publisher.confirmed
        publisher.client.close()
        node.popen.kill()
        node.wait()
    use_up(disk)
    with disk.node() as node:
        assert depth(node.port) >= queued
        node.signal(signal.SIGTERM)
        assert node.wait() in (0, 1)
    disk.relieve()
    with disk.node() as node:
        left = depth(node.port)
        assert drain(node.port, left) == list(range(left))
        assert left >= queued


def test_a_reserve_that_cannot_be_made_again_holds_publishers_and_does_not_end_the_node(
    tmp_path: Path,
) -> None:
    faults = FaultyDisk(tmp_path / "faults")
    with running(tmp_path, "--no-admin") as node:
        filled(node, 1).client.close()
        assert node.stop() == 0
    (tmp_path / "data/reserve").unlink()
    faults.fail("reserve")
    with running(tmp_path, "--no-admin", environment=faults.environment) as node:
        assert drain(node.port, BURST) == list(range(BURST)), "consumers are served"
        publisher = Publisher(node.port)
        publisher.burst()
        assert isinstance(publisher.answer(), methods.ConnectionBlocked)
        assert RESERVE_USED in node.log
        faults.mend("reserve")
        publisher.until_unblocked()
        assert (tmp_path / "data/reserve").stat().st_size == 64 * MIB
        publisher.client.close()


def test_a_journal_the_system_cannot_read_is_refused_with_one_sentence(tmp_path: Path) -> None:
    faults = FaultyDisk(tmp_path / "faults")
    with running(tmp_path, "--no-admin") as node:
        filled(node, 1).client.close()
        node.popen.kill()
        node.wait()
    faults.fail("pread")
    options = ("--no-admin", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    said = sentence(failing(*options, environment=faults.environment))
    assert "journal/0000000000000001 cannot be read: Input/output error" in said


def test_a_full_disk_without_a_reserve_ends_the_node_with_the_reason(disk: SmallDisk) -> None:
    options = ("--set", "disk_reserve=0", "--set", "disk_free_limit=0")
    with disk.node(*options) as node:
        publisher = Publisher(node.port)
        with pytest.raises((Closed, ConnectionError)):
            publisher.until_blocked()
        assert node.wait() == 1
        assert "failed: No space left on device" in node.log
        publisher.client.close()
    larger = disk.folder / "larger"
    shutil.copytree(disk.inside, larger / "data")
    with running(larger, "--no-admin") as node:
        found = depth(node.port)
        assert found >= publisher.confirmed
        assert drain(node.port, found) == list(range(found))


def limited() -> None:
    """In the child: no file may grow beyond this, as on a disk that refuses writes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, 4 * MIB))


def test_a_write_the_system_refuses_ends_the_node_and_nothing_confirmed_is_lost(tmp_path: Path) -> None:
    with running(tmp_path, "--no-admin", "--set", "disk_reserve=0", before=limited) as node:
        publisher = Publisher(node.port)
        with pytest.raises((Closed, ConnectionError)):
            publisher.until_blocked()
        assert node.wait() == 1
        assert "failed: File too large" in node.log
        publisher.client.close()
    with running(tmp_path, "--no-admin") as node:
        found = depth(node.port)
        assert found >= publisher.confirmed > 0
        assert drain(node.port, found) == list(range(found))


def test_a_file_system_that_gives_no_reserve_is_told_and_served(tmp_path: Path) -> None:
    with running(tmp_path, "--no-admin", before=limited) as node:
        publisher = Publisher(node.port)
        publisher.burst()
        publisher.until_confirmed()
        assert "no space is kept back for a full disk: File too large" in node.log
        publisher.client.close()


def filled(node: Process, bursts: int, queue: str = QUEUE, size: int = BODY_BYTES) -> Publisher:
    """A publisher all of whose messages are confirmed."""
    publisher = Publisher(node.port, queue, size=size)
    for _ in range(bursts):
        publisher.burst()
    publisher.until_confirmed()
    return publisher


def get_until_refused(client: RawClient) -> tuple[methods.ChannelClose, int]:
    """Take messages one by one; the refusal, and how many there were."""
    count = 0
    while True:
        client.send_method(CHANNEL, methods.BasicGet(queue=QUEUE, no_ack=True))
        method = client.next_frame().method
        if isinstance(method, methods.ChannelClose):
            return method, count
        if isinstance(method, methods.BasicGetOk):
            client.expect_content(CHANNEL)
            count += 1


def test_a_read_that_fails_damages_its_queue_and_no_other(tmp_path: Path) -> None:
    faults = FaultyDisk(tmp_path / "faults")
    with running(tmp_path, "--no-admin", environment=faults.environment) as node:
        large = filled(node, 800, size=4096)
        small = filled(node, 1, "small", 100)
        faults.fail("pread")
        client = opened(node.port)
        refusal, got = get_until_refused(client)
        assert refusal.reply_code == 404
        assert f"queue '{QUEUE}' in vhost '/' is damaged" in refusal.reply_text
        assert "cannot be read: Input/output error" in refusal.reply_text
        assert refusal.reply_text.split(" - ", 1)[1][:60] in node.log
        assert 0 < got < large.sent, "what lay in memory is served, nothing behind the hole"
        assert drain(node.port, small.sent, "small") == list(range(small.sent))
        assert node.popen.poll() is None
        for used in (client, small.client, large.client):
            used.close()


def test_a_flush_that_fails_ends_the_node_with_the_reason_and_confirms_nothing_more(tmp_path: Path) -> None:
    faults = FaultyDisk(tmp_path / "faults")
    with running(tmp_path, "--no-admin", environment=faults.environment) as node:
        publisher = filled(node, 1)
        faults.fail("fdatasync")
        publisher.burst()
        with pytest.raises((Closed, ConnectionError)):
            publisher.until_confirmed()
        assert publisher.confirmed == BURST
        publisher.client.close()
        assert node.wait() == 1
        assert "failed: Input/output error" in node.log
    with running(tmp_path, "--no-admin") as node:
        found = depth(node.port)
        assert drain(node.port, found)[:BURST] == list(range(BURST))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with every kind of file."""
    folder = tmp_path_factory.mktemp("every kind")
    with running(folder, "--no-admin") as node:
        publisher = Publisher(node.port)
        while not (folder / "data/log/checkpoint").exists():
            publisher.burst(32)
            publisher.until_confirmed()
        publisher.client.close()
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
    return folder / "data"


def first_file(data: Path, pattern: str) -> Path:
    return min(data.glob(pattern))


def raise_version(path: Path, head_bytes: int) -> None:
    """Make the file one of format 99, its head whole."""
    with path.open("r+b") as file:
        head = bytearray(file.read(head_bytes))
        struct.pack_into("<I", head, 4, 99)
        file.seek(0)
        file.write(head + struct.pack("<I", crc32c(bytes(head))))


def raise_meta_version(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack(">I", 99))


NEWER: dict[str, Callable[[Path], object]] = {
    "VERSION": lambda data: (data / "VERSION").write_text("99\n"),
    "journal": lambda data: raise_version(first_file(data, "journal/*"), 32),
    "segment": lambda data: raise_version(first_file(data, "segments/*/*"), 24),
    "checkpoint": lambda data: raise_version(data / "log/checkpoint", 20),
    "definitions": lambda data: raise_meta_version(first_file(data, "meta/*")),
}


@pytest.mark.parametrize("kind", NEWER)
def test_data_of_a_newer_format_is_refused_with_one_sentence_and_left_alone(
    data: Path, tmp_path: Path, kind: str
) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    NEWER[kind](copy)
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*/*") if path.is_file()}
    said = sentence(failing("--no-admin", "--listen", "127.0.0.1:0", "--data", str(copy)))
    assert "newer" in said
    assert "format 99" in said or "format is 99" in said
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*/*") if path.is_file()} == before


def test_the_folder_used_for_that_has_every_kind_of_file(data: Path) -> None:
    kinds = {name.split("/")[0] for name in map(str, (p.relative_to(data) for p in data.rglob("*/*")))}
    assert {"journal", "segments", "log", "meta"} <= kinds
    assert os.listdir(data / "meta")
