"""A flipped byte in one copy of a mirrored queue of real processes: fetched from another one, and mended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrormq.kernel import records
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until
from tests.cluster.mirrorrun import set_policy
from tests.cluster.test_salvage import body, publish, row, taken

pytestmark = pytest.mark.slow

COUNT = 400
HURT = 123_400
FIRST = HURT - COUNT // 2


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with kit.cluster(tmp_path_factory.mktemp("mending")) as made:
        set_policy(made[0], "ha", "^m", {"ha-mode": "all"})
        yield made


def flip(node: Node) -> None:
    """Flip a bit of one message in the files of a stopped node."""
    files = [path for folder in ("journal", "segments") for path in (node.folder / folder).rglob("*")]
    found = 0
    for path in (path for path in files if path.is_file()):
        data = bytearray(path.read_bytes())
        at = data.find(body(HURT))
        if at >= 0:
            data[at] ^= 0x10
            path.write_bytes(data)
            found += 1
    assert found, files


def is_whole(node: Node) -> bool:
    """Has every batch in the files of a node that holds the message a checksum that fits?"""
    files = [path for folder in ("journal", "segments") for path in (node.folder / folder).rglob("*")]
    return any(_holds(path) for path in files if path.is_file())


def _holds(path: Path) -> bool:
    data = path.read_bytes()
    at = data.find(body(HURT))
    if at < 0:
        return False
    starts = [one for one in range(max(0, at - 200_000), at) if records.read_head(data, one) is not None]
    return any(records.is_whole(data, one) for one in starts)


def filled(three: Cluster, queue: str) -> None:
    kit.declare(three[0].channel(), queue)
    publish(three[0], queue, range(FIRST, FIRST + COUNT - 2))
    for number in (FIRST + COUNT - 2, FIRST + COUNT - 1):
        # Behind a later flush the damage cannot be taken for the torn end that a crash may leave.
        publish(three[0], queue, range(number, number + 1))
    until(lambda: len(row(three[0], queue).get("in_sync", ())) == 3, "three copies are in sync")


def in_sync(three: Cluster, queue: str) -> bool:
    found: dict[str, Any] = row(three[2], queue)
    return len(found["in_sync"]) == 3 and not found["unsynchronised"]


def test_a_flipped_byte_of_a_mirror_is_found_at_its_start_and_mended_while_the_queue_works(
    three: Cluster,
) -> None:
    filled(three, "mirror")
    mirror = next(node for node in three if node.name != row(three[0], "mirror")["master"])
    mirror.kill()
    flip(mirror)
    assert not is_whole(mirror)
    mirror.start()
    mirror.wait_for("mirror.mended")
    until(lambda: in_sync(three, "mirror"), "its copy is in sync again")
    master = next(node for node in three if node.name == row(three[0], "mirror")["master"])
    master.ctl("move_master", vhost="/", name="mirror", node=mirror.name)
    assert [number for number, _ in taken(mirror, "mirror")] == list(range(FIRST, FIRST + COUNT))


def test_a_flipped_byte_of_the_master_is_found_after_a_restart_of_all_and_mended(three: Cluster) -> None:
    filled(three, "master")
    name = row(three[0], "master")["master"]
    master = next(node for node in three if node.name == name)
    for node in three:
        node.kill()
    flip(master)
    three.start(*three)
    three.wait_whole()
    until(lambda: in_sync(three, "master"), "all copies are in sync", 60)
    assert row(three[0], "master")["losses"] == 0
    until(lambda: (row(three[0], "master").get("messages") or 0) == COUNT, "everything is ready")
    assert [number for number, _ in taken(three[0], "master")] == list(range(FIRST, FIRST + COUNT))
