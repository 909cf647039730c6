"""A flipped byte in one copy of a mirrored queue: it is fetched from another one, and the queue goes on."""

from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.meta.records import View
from mirrormq.node.requests import RepairQueue
from tests.support.scenariokit import Consumer, Site

FIRST, COUNT = 1_000_000, 30
HURT = FIRST + 15
ALL = list(range(FIRST, FIRST + COUNT))


def hurt(site: Site, name: str, number: int, disk: Any = None) -> None:
    """Flip a byte of the message with this number in every file that has it."""
    disk = site[name].disk if disk is None else disk
    mark = b"%d" % number
    files = [file for folder in ("journal/", "segments/") for file in disk.list(folder)]
    found = [(file, disk.read(file).find(mark)) for file in files]
    assert any(at >= 0 for _, at in found), (files, mark)
    for file, at in found:
        if at >= 0:
            disk.damage(file, at)


def filled(*nodes: str) -> Site:
    site = Site()
    site.policy(ha_mode="nodes", ha_params=list(nodes))
    site.declare(at=nodes[0])
    site.wait_copies(*nodes)
    for number in ALL:
        site.fill(1, at=nodes[0], first=number)
    site.advance(1)
    return site


def numbers(site: Site, at: str = "") -> list[int]:
    return [number for number, _ in site.drain(at)]


def lines(site: Site, name: str, event: str) -> list[str]:
    return [note.text for note in site[name].notes if dict(note.fields).get("event") == event]


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was published leaves memory at once."""
    monkeypatch.setattr(limits, "queue_memory_bytes", 1)
    monkeypatch.setattr(limits, "recent_bytes_max", 1)
    monkeypatch.setattr(limits, "window_entries", 1)


@pytest.mark.usefixtures("forgetful")
def test_a_master_that_cannot_read_a_message_hands_over_and_every_message_is_delivered() -> None:
    site = filled("a", "b")
    hurt(site, "a", HURT)
    assert sorted(set(numbers(site, "c"))) == ALL
    assert site.master() == "b"
    site.wait_copies("a", "b")
    assert lines(site, "a", "mirror.damaged")
    view = site.view()
    assert view is not None
    assert view.losses == 0


def test_a_master_found_damaged_after_a_restart_of_all_gives_way_to_a_whole_copy() -> None:
    site = filled("a", "b")
    for name in site.names:
        site.kill(name)
    hurt(site, "a", HURT, site.disks["a"])
    for name in site.names:
        site.start(name, *site.names)
    site.settle(seconds=40)
    site.wait(lambda: site.master() == "b", "b has the queue")
    site.wait_copies("a", "b")
    site.wait(lambda: site.depth() == COUNT, "everything is ready")
    assert [number for number, _ in Consumer(site, site["c"].client()).wait_taken(COUNT)] == ALL


def test_a_mirror_found_damaged_after_a_restart_is_made_anew() -> None:
    site = filled("a", "b")
    site.kill("b")
    site.advance(3)
    hurt(site, "b", HURT, site.disks["b"])
    site.restart("b")
    site.wait_copies("a", "b")
    site.kill("a")
    site.wait(lambda: site.master() == "b", "b has taken over")
    assert sorted(set(numbers(site, "c"))) == ALL


@pytest.mark.usefixtures("forgetful")
def test_a_damaged_queue_that_nobody_else_has_is_refused_until_somebody_who_has_it_is_back() -> None:
    site = filled("a", "b")
    site.kill("b")
    site.advance(0.5)
    site.wait(lambda: site.in_sync() == {"a"}, "a is alone")
    hurt(site, "a", HURT)
    consumer = site["c"].client()
    consumer.consume("q", no_ack=False)
    site.advance(5)
    queue = site["a"].node.vhosts["/"].queues["q"]
    assert queue.damage is not None
    assert lines(site, "a", "queue.damaged")


@pytest.mark.parametrize("node", ["", "a", "b"])
def test_an_operator_can_have_a_copy_fetched_anew(node: str) -> None:
    site = filled("a", "b")
    before = [site[name].node.copies.copy_log(view_of(site).log_id).round for name in ("a", "b")]
    answer = asked(site, RepairQueue(vhost="/", name="q", node=node))
    assert answer == {"node": node or "a"}
    site.advance(2)
    site.wait_copies("a", "b")
    after = [site[name].node.copies.copy_log(view_of(site).log_id).round for name in ("a", "b")]
    assert [one > other for one, other in zip(after, before, strict=True)] == [node != "b", node == "b"]
    site.wait(lambda: site.depth() == COUNT, "everything is ready")


def test_a_copy_that_nobody_else_has_is_not_given_up() -> None:
    site = filled("a", "b")
    site.kill("b")
    site.wait(lambda: site.in_sync() == {"a"}, "a is alone")
    problem = asked(site, RepairQueue(vhost="/", name="q"))
    assert "no other node with a copy in sync is there" in str(problem)
    assert site.depth() == COUNT


def view_of(site: Site) -> View:
    found = site.view()
    assert found is not None
    return found


def asked(site: Site, request: RepairQueue) -> Any:
    """What node c answers."""
    answers: list[Any] = []
    site["c"].node.admin(site.now, request, answers.append)
    site.wait(lambda: bool(answers), "it is answered")
    return answers[0].problem or answers[0].value
