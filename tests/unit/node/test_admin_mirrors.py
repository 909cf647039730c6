"""Requests about mirrored queues: any node can be asked, the master acts, the answer says what came of it."""

from __future__ import annotations

from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.meta import commands as c
from mirrormq.meta.records import Queue
from mirrormq.node import requests as ask
from mirrormq.wire import methods
from tests.support.mirroredkit import MirroredKit

SYNC = ask.SyncQueue(vhost="/", name="q")
STATUS = ask.SyncStatus(vhost="/", name="q")
FORCE = ask.ForcePromote(vhost="/", name="q")
PLAN = ask.ForcePromote(vhost="/", name="q", plan=True)


def move(node: str) -> ask.MoveMaster:
    return ask.MoveMaster(vhost="/", name="q", node=node)


def mirrored(*nodes: str, behind: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> MirroredKit:
    """A cluster with the queue `q` in sync on some nodes, the first its master; some others lag for ever."""
    kit = MirroredKit(*names)
    kit.policy(ha_mode="nodes", ha_params=list(nodes))
    client = kit.declare("q", nodes[0])
    for _ in range(3):
        kit.confirm(client, 1)
    if behind:
        kit.policy(ha_mode="nodes", ha_params=[*nodes, *behind], ha_sync_max_throughput=1)
        kit.advance(1)
    if behind or len(nodes) > 1:
        assert [entry.node for entry in kit.view().members] == list(nodes)
        assert [entry.node for entry in kit.view().learners] == list(behind)
    return kit


@pytest.mark.parametrize("at", ["a", "b"])
def test_a_wish_to_synchronise_reaches_the_master_whichever_node_is_asked(at: str) -> None:
    kit = mirrored("a", "b", behind=("c",))
    copy = kit["a"].node.copies.mirrors.copies[kit.view().id]
    assert copy.master.is_sync_wanted is False
    assert kit.ask(SYNC, at) == {"master": "a", "unsynchronised": ["c"]}
    assert copy.master.is_sync_wanted is True
    kit.ask(ask.CancelSyncQueue(vhost="/", name="q"), at)
    assert copy.master.is_sync_wanted is False


def test_what_is_in_sync_already_is_no_error() -> None:
    kit = mirrored("a", "b")
    assert kit.ask(SYNC, "c")["unsynchronised"] == []


@pytest.mark.parametrize("at", ["a", "b"])
def test_the_status_of_a_sync_comes_from_the_master(at: str) -> None:
    kit = mirrored("a", "b", behind=("c",))
    found = kit.ask(STATUS, at)
    assert (found["master"], found["in_sync"], found["unsynchronised"]) == ("a", ["a", "b"], ["c"])
    assert found["state"] == "syncing"
    assert 0 < found["sync_progress"] < 100
    rows = {row["node"]: row for row in found["mirrors"]}
    assert (rows["b"]["state"], rows["b"]["lag"]) == ("in-sync", 0)
    assert (rows["c"]["state"], rows["c"]["bytes_sent"] > 0) == ("catching-up", True)
    assert rows["c"]["lag"] > 0


def test_queues_that_are_not_there_or_not_mirrored_are_refused_by_name() -> None:
    kit = MirroredKit()
    kit.apply(c.DeclareQueue(Queue("/", "plain", node="a")))
    assert kit.refusal(SYNC)[0] == "no_such_queue"
    kind, text = kit.refusal(ask.SyncQueue(vhost="/", name="plain"))
    assert (kind, text) == (
        "not_mirrored",
        "queue 'plain' in vhost '/' is not mirrored; a policy with ha-mode makes it so",
    )
    assert kit.refusal(ask.SyncQueue(vhost="v", name="q"))[0] == "no_such_vhost"


@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_moving_a_master_keeps_every_message_and_is_answered_when_it_is_done(at: str) -> None:
    kit = mirrored("a", "b")
    answers = kit.begin(move("b"), at)
    kit.advance(2)
    assert [answer.value for answer in answers] == [{"master": "b", "from": "a"}]
    assert kit.view().master == "b"
    client = kit["c"].client()
    declared = client.ask(methods.QueueDeclare(queue="q", passive=True), methods.QueueDeclareOk)
    assert declared.message_count == 3


def test_a_master_may_move_to_a_node_that_must_be_synchronised_first() -> None:
    kit = mirrored("a", "b")
    answers = kit.begin(move("c"), "b")
    kit.advance(3)
    assert [answer.value for answer in answers] == [{"master": "c", "from": "a"}]
    assert kit.view().master != "a"


def test_a_move_that_takes_longer_than_other_answers_is_waited_for() -> None:
    kit = mirrored("a", "b", behind=("c",))
    answers = kit.begin(move("c"), "b")
    kit.advance(limits.inquiry_silence_us / 1_000_000 + 1)
    assert answers == []
    assert not kit["a"].node.inquiries.needs_pass, "waiting costs nothing"
    kit.kill("a")
    kit.advance(1)
    (answer,) = answers
    assert answer.problem is not None
    assert "node a went down while it answered; whether it was done is not known" in answer.problem.text


def test_moving_to_where_it_is_changes_nothing_and_to_a_stranger_is_refused() -> None:
    kit = mirrored("a", "b")
    assert kit.ask(move("a"), "b") == {"master": "a", "from": "a"}
    assert kit.refusal(move("x"), "b")[0] == "not_a_cluster_node"
    assert kit.view().epoch == 1


def test_a_queue_with_a_master_is_not_promoted_by_force() -> None:
    kit = mirrored("a", "b")
    kind, text = kit.refusal(FORCE, "c")
    assert (kind, "move_master" in text) == ("has_master", True)


def without_master() -> MirroredKit:
    """The only copy in sync is gone; b and d have a part."""
    kit = mirrored("a", behind=("b", "d"), names=("a", "b", "c", "d", "e"))
    kit.kill("a")
    kit.advance(4)
    return kit


def test_a_promotion_with_a_loss_says_what_before_it_is_done() -> None:
    kit = without_master()
    kind, text = kit.refusal(SYNC, "c")
    assert kind == "no_master"
    assert "start node a, or see force_promote" in text
    plan = kit.ask(PLAN, "c")
    assert plan["lossy"] is True
    assert (plan["passed_over"], plan["waits_for"]) == (["a"], ["a"])
    assert {row["node"]: row["end"] > 0 for row in plan["copies"]} == {"b": True, "d": True}
    assert kit.refusal(FORCE, "c")[0] == "would_lose"
    assert kit.view().master == "a"
    done = kit.ask(ask.ForcePromote(vhost="/", name="q", node="d", accept_loss=True), "c")
    assert (done["node"], done["epoch"]) == ("d", kit.view().epoch)
    assert (kit.view().master, kit.view().losses) == ("d", 1)
    assert kit["d"].node.copies.chronicle.counters.lossy == 1


def test_of_several_copies_that_lack_something_the_best_is_promoted() -> None:
    kit = without_master()
    rows = {row["node"]: row["end"] for row in kit.ask(PLAN, "c")["copies"]}
    best = max(rows, key=lambda node: rows[node])
    assert kit.ask(PLAN, "c")["node"] == best
    kit.ask(ask.ForcePromote(vhost="/", name="q", accept_loss=True), "c")
    assert kit.view().master == best


def test_with_no_copy_at_all_there_is_nothing_to_promote_and_the_node_to_start_is_named() -> None:
    kit = mirrored("a", behind=("b",), names=("a", "b", "c", "d", "e"))
    kit.kill("a")
    kit.kill("b")
    kit.advance(10)
    assert kit.refusal(FORCE, "c") == (
        "cannot_promote",
        "queue 'q' in vhost '/': no node that is there has a copy of it; start node a",
    )
    named: Any = ask.ForcePromote(vhost="/", name="q", node="c")
    assert kit.refusal(named, "d")[1].startswith("node c cannot be its master")
