"""A flipped bit in any file of a real node: it is noticed and named with its cure, and costs no more than the
queue it belongs to.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from mirrormq.kernel import records
from mirrormq.log import checkpoint, journal, segments
from mirrormq.wire import methods
from tests.integration.process import QUIET, Process, failing, running, sentence
from tests.integration.test_disk_full import CHANNEL, Publisher, depth, drain, opened

QUEUES = ("first", "second")
BACKUP = "restore the data folder from a backup"
LARGE = "n" * 100_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


class Image(NamedTuple):
    """A data folder with every kind of file, and what its queues hold."""

    data: Path
    count: int
    """Messages of each queue, numbered from 0."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    data = folder / "data"
    with running(folder, "--no-admin", *QUIET) as node:
        publishers = [Publisher(node.port, name) for name in QUEUES]
        client = opened(node.port)
        for number in range(50):
            # Large definitions, so that a snapshot of them is written.
            declare = methods.QueueDeclare(queue=f"q{number}", durable=True, arguments={"x-note": LARGE})
            client.call(CHANNEL, declare, methods.QueueDeclareOk)
        client.close_cleanly()
        while not ((data / checkpoint.NAME).exists() and (data / "meta/snapshot").exists()):
            for publisher in publishers:
                publisher.burst(16)
            for publisher in publishers:
                publisher.until_confirmed()
        for publisher in publishers:
            publisher.client.close()
        node.popen.kill()
        node.wait()
    return Image(data, publishers[0].sent)


class Copy:
    """A copy of the image in which one bit is flipped; log files that stay as they are, are shared."""

    def __init__(self, image: Image, folder: Path, name: str, at: int, flip: int = 0x10) -> None:
        self.folder = folder
        self.data = folder / "data"
        shutil.copytree(image.data, self.data, copy_function=_shared)
        path = self.data / name
        content = bytearray(path.read_bytes())
        content[at] ^= flip
        path.unlink()
        path.write_bytes(content)

    def refusal(self) -> str:
        """The sentence with which a node refuses to start."""
        options = ("--no-admin", "--listen", "127.0.0.1:0", "--data", str(self.data))
        return sentence(failing(*options))


def _shared(source: str, target: str) -> None:
    """Nothing is ever written into an old journal file or segment: a second name of it will do."""
    if "/journal/" in source or "/segments/" in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def batches(path: Path, start: int) -> list[tuple[int, int, int]]:
    """(offset, bytes, queue id) of the batches of a file."""
    data = path.read_bytes()
    found, at = [], start
    while (head := records.read_head(data, at)) is not None:
        found.append((at, head[0], head[1]))
        at += head[0]
    return found


def damaged_queue(node: Process, image: Image) -> str:
    """Drain both queues: one is refused by name, the other is whole; returns the refused one."""
    refused = []
    for name in QUEUES:
        client = opened(node.port)
        client.send_method(CHANNEL, methods.BasicConsume(queue=name, consumer_tag="c", no_ack=True))
        bodies = 0
        while bodies < image.count:
            method = client.next_frame().method
            if isinstance(method, methods.BasicDeliver):
                (number,) = struct.unpack_from("<Q", client.expect_content(CHANNEL).body)
                assert number == bodies, "nothing is skipped"
                bodies += 1
            elif isinstance(method, methods.ChannelClose | methods.BasicCancel):
                break
        if bodies < image.count:
            refused.append(name)
        client.close()
    assert len(refused) == 1, refused
    return refused[0]


def check_contained(copy: Copy, image: Image, named: str) -> None:
    """One queue is refused, told in the log with file and cure, and can be deleted; the other is whole."""
    with running(copy.folder, "--no-admin", *QUIET) as node:
        lost = damaged_queue(node, image)
        lines = [line for line in node.log.splitlines() if "is damaged and no longer served" in line]
        assert len(lines) == 1, node.log
        assert f"queue '{lost}' in vhost '/'" in lines[0]
        assert named in lines[0]
        assert BACKUP in lines[0]
        client = opened(node.port)
        client.call(CHANNEL, methods.QueueDelete(queue=lost), methods.QueueDeleteOk)
        client.close_cleanly()
        again = Publisher(node.port, lost)
        again.burst()
        again.until_confirmed()
        assert drain(node.port, again.sent, lost) == list(range(again.sent))
        again.client.close()


def check_whole(copy: Copy, image: Image, said: str) -> None:
    """Nothing is lost, and the log tells what was found."""
    with running(copy.folder, "--no-admin", *QUIET) as node:
        assert said in node.log
        for name in QUEUES:
            assert depth(node.port, name) == image.count
            assert drain(node.port, image.count, name) == list(range(image.count))


IN_BATCH: dict[str, Callable[[int], int]] = {
    "head": lambda size: 20,
    "record": lambda size: records.HEAD_BYTES + 2,
    "body": lambda size: size // 2,
}


@pytest.mark.parametrize("part", IN_BATCH)
def test_a_flipped_bit_in_the_journal_costs_one_queue(image: Image, tmp_path: Path, part: str) -> None:
    path = sorted((image.data / "journal").iterdir())[1]
    found = [batch for batch in batches(path, journal.HEAD_BYTES) if batch[2]]
    at, size, _ = found[len(found) // 2]
    name = f"journal/{path.name}"
    check_contained(
        Copy(image, tmp_path, name, at + IN_BATCH[part](size)), image, f"{name} is damaged at byte {at}"
    )


def test_a_flipped_bit_in_the_head_of_a_journal_file_costs_nothing(image: Image, tmp_path: Path) -> None:
    name = f"journal/{sorted((image.data / 'journal').iterdir())[1].name}"
    check_whole(Copy(image, tmp_path, name, 9), image, f"the head of {name} is damaged")


def segment_of(image: Image) -> tuple[str, Path]:
    """A segment the checkpoint lists."""
    found = checkpoint.decode((image.data / checkpoint.NAME).read_bytes())
    part = next(part for part in found.parts.values() if part.segments)
    name = f"{segments.PREFIX}{part.queue_id:020d}/{part.segments[0][0]:08d}"
    return name, image.data / name


@pytest.mark.parametrize("part", IN_BATCH)
def test_a_flipped_bit_in_a_segment_costs_its_queue(image: Image, tmp_path: Path, part: str) -> None:
    name, path = segment_of(image)
    found = batches(path, segments.HEAD_BYTES)
    at, size, _ = found[len(found) // 2]
    check_contained(Copy(image, tmp_path, name, at + IN_BATCH[part](size)), image, name)


def test_a_flipped_bit_in_the_head_of_a_segment_costs_nothing(image: Image, tmp_path: Path) -> None:
    name, _ = segment_of(image)
    check_whole(Copy(image, tmp_path, name, 9), image, f"the head of {name} is damaged")


def test_a_flipped_bit_in_a_queues_part_of_the_checkpoint_costs_that_queue(
    image: Image, tmp_path: Path
) -> None:
    content = (image.data / checkpoint.NAME).read_bytes()
    found = checkpoint.decode(content)
    part = next(part for part in found.parts.values() if part.segments)
    at = content.index(struct.pack("<Q", part.queue_id)) + 16 + 12
    check_contained(Copy(image, tmp_path, checkpoint.NAME, at), image, checkpoint.NAME)


REFUSED = {
    "the head of the checkpoint": (checkpoint.NAME, 9, f"{checkpoint.NAME} is damaged"),
    "a length in the checkpoint": (checkpoint.NAME, 24 + 9, f"{checkpoint.NAME} is"),
    "the snapshot of the definitions": ("meta/snapshot", 2000, "meta/snapshot is damaged"),
    "the head of that": ("meta/snapshot", 13, "meta/snapshot is damaged"),
    "VERSION": ("VERSION", 0, "VERSION does not hold the number of a format"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_flipped_bit_in_what_all_queues_need_refuses_the_start(
    image: Image, tmp_path: Path, what: str
) -> None:
    name, at, said = REFUSED[what]
    refusal = Copy(image, tmp_path, name, at).refusal()
    assert said in refusal
    assert BACKUP in refusal or name == "VERSION"


def test_a_flipped_bit_in_the_log_of_definitions_refuses_the_start(image: Image, tmp_path: Path) -> None:
    name = min(path.name for path in (image.data / "meta").glob("log-*"))
    refusal = Copy(image, tmp_path, f"meta/{name}", 60).refusal()
    assert f"meta/{name} is damaged" in refusal
    assert BACKUP in refusal


def test_a_format_that_never_was_is_damage(image: Image, tmp_path: Path) -> None:
    assert "VERSION does not hold" in Copy(image, tmp_path, "VERSION", 0, flip=0x01).refusal()
