"""A policy that concerns very many queues is followed a few per pass, and answered when all have followed."""

from __future__ import annotations

import pytest

from mirrormq.base import limits
from mirrormq.node import requests as ask
from mirrormq.node.steps import Answer
from tests.support.adminkit import AdminKit

MANY = 50


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> AdminKit:
    monkeypatch.setattr(limits, "policy_slice_objects", 8)
    made = AdminKit()
    for number in range(MANY):
        made.ask(ask.DeclareQueue(vhost="/", name=f"q{number}", durable=True))
    return made


def policy(length: int) -> ask.SetPolicy:
    return ask.SetPolicy(vhost="/", name="p", pattern="^q", definition={"max-length": length})


def bounds(kit: AdminKit) -> set[int | None]:
    return {queue.settings.max_length for queue in kit.node.vhosts["/"].queues.values()}


def passes(kit: AdminKit, answers: list[Answer]) -> list[int]:
    """How many queues changed their settings in each pass until the answer came."""
    changed: list[int] = []
    before = [queue.settings for queue in kit.node.vhosts["/"].queues.values()]
    while not answers:
        kit.node.end_pass(kit.now)
        kit._drain()
        now = [queue.settings for queue in kit.node.vhosts["/"].queues.values()]
        changed.append(sum(new != old for new, old in zip(now, before, strict=True)))
        before = now
    return changed


def test_no_pass_changes_more_queues_than_a_slice_and_the_answer_comes_after_the_last(kit: AdminKit) -> None:
    answers: list[Answer] = []
    kit.node.admin(kit.now, policy(5), answers.append)
    changed = passes(kit, answers)
    assert sum(changed) == MANY
    assert max(changed) <= limits.policy_slice_objects
    assert bounds(kit) == {5}


def test_what_is_set_while_queues_follow_reaches_all_of_them(kit: AdminKit) -> None:
    first: list[Answer] = []
    second: list[Answer] = []
    kit.node.admin(kit.now, policy(5), first.append)
    while bounds(kit) == {None}:
        kit.node.end_pass(kit.now)
        kit._drain()
    assert bounds(kit) == {None, 5}
    kit.node.admin(kit.now, policy(6), second.append)
    passes(kit, second)
    assert first
    assert bounds(kit) == {6}
    assert not kit.node.following.needs_pass


def test_a_queue_declared_meanwhile_begins_with_what_applies(kit: AdminKit) -> None:
    kit.node.admin(kit.now, policy(5), lambda _: None)
    while bounds(kit) == {None}:
        kit.node.end_pass(kit.now)
        kit._drain()
    kit.ask(ask.DeclareQueue(vhost="/", name="q-late", durable=True))
    assert kit.node.vhosts["/"].queues["q-late"].settings.max_length == 5


def test_whoever_waits_is_answered_although_the_vhost_goes_meanwhile(kit: AdminKit) -> None:
    answers: list[Answer] = []
    kit.node.admin(kit.now, policy(5), answers.append)
    while bounds(kit) == {None}:
        kit.node.end_pass(kit.now)
        kit._drain()
    kit.ask(ask.DeleteVHost(name="/"))
    kit.ask(ask.AddVHost(name="/"))
    kit.run()
    assert len(answers) == 1
    assert not kit.node.following.needs_pass


def test_an_exchange_follows_a_policy_about_its_alternate(kit: AdminKit) -> None:
    definition = {"alternate-exchange": "amq.fanout"}
    wanted = ask.SetPolicy(vhost="/", name="a", pattern="^amq.direct$", definition=definition)
    kit.ask(wanted)
    place = kit.node.vhosts["/"].router.place("amq.direct")
    assert place is not None
    assert place.alternate == "amq.fanout"
    kit.ask(ask.ClearPolicy(vhost="/", name="a"))
    assert place.alternate is None
