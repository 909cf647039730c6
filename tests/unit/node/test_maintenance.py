"""A node in maintenance gives everything away and serves nobody, until it is brought back."""

from __future__ import annotations

from typing import Any

import pytest

from mirrormq.meta import commands as c
from mirrormq.meta.records import Policy
from mirrormq.node import report_cluster, requests
from mirrormq.wire import methods
from tests.support.mirroredkit import MirroredKit, events
from tests.unit.node.test_rebalance import fill, kit, masters


def drain(made: MirroredKit, at: str = "a", seconds: float = 5) -> dict[str, Any]:
    made.ask(requests.Drain(), at)
    made.advance(seconds)
    found: dict[str, Any] = made.ask(requests.MaintenanceStatus(), at)
    return found


def test_a_drained_node_is_the_master_of_nothing_and_loses_nothing() -> None:
    made = kit(4)
    client = fill(made, 3, name="plain")
    made.confirm(client, 10, "q0")
    made.confirm(client, 10, "plain0")
    found = drain(made)
    assert (found["is_drained"], found["masters"], found["stuck"]) == (True, 0, 0)
    assert set(masters(made)) == set(masters(made, "plain")) == {"b", "c"}
    assert sorted((masters(made) + masters(made, "plain")).values()) == [3, 4]
    for name in ("q0", "plain0"):
        record = made["b"].node.meta.queues["/", name]
        assert made[record.node].node.switch.masters[record.id].core.ready == 10


@pytest.mark.slow
def test_hundreds_of_queues_with_and_without_mirrors_are_given_away() -> None:
    made = kit(150)
    fill(made, 30, name="plain")
    assert drain(made, seconds=20)["masters"] == 0
    assert sorted((masters(made) + masters(made, "plain")).values()) == [90, 90]


def test_mirrored_queues_keep_all_their_copies_in_sync() -> None:
    made = kit(3)
    drain(made)
    for number in range(3):
        assert {entry.node for entry in made.view(f"q{number}").members} == {"a", "b", "c"}


def test_clients_are_sent_away_with_the_reason_and_no_more_are_let_in() -> None:
    made = kit(1)
    client = made["a"].client()
    assert made["a"].is_open
    drain(made)
    (closed,) = [item for item in client.take() if isinstance(item, methods.ConnectionClose)]
    assert closed.reply_code == 320
    assert "node a is in maintenance" in closed.reply_text
    assert not made["a"].is_open
    made.ask(requests.Revive())
    assert made["a"].is_open


def test_no_master_is_placed_on_a_drained_node_nor_moved_there() -> None:
    made = kit(0, queue_master_locator="min-masters")
    drain(made, "c")
    fill(made, 6)
    assert masters(made) == {"a": 3, "b": 3}
    answer = made.begin(requests.MoveMaster(vhost="/", name="q0", node="c"))[0]
    assert answer.problem is not None
    assert "node 'c' is in maintenance; `revive` it first" in answer.problem.text
    assert made.ask(requests.Rebalance())["planned"] == 0


def test_new_copies_of_exactly_so_many_go_elsewhere() -> None:
    made = kit(0)
    made.apply(c.SetPolicy(Policy("/", "ha", "^q", {"ha-mode": "exactly", "ha-params": 2}, "queues")))
    drain(made, "c")
    fill(made, 4)
    for number in range(4):
        assert {entry.node for entry in made.view(f"q{number}").members} == {"a", "b"}


def test_maintenance_outlives_a_restart_and_ends_with_revive() -> None:
    made = kit(2)
    drain(made)
    made.kill("a")
    made.advance(3)
    made.start("a", *made.names)
    made.advance(5)
    assert made["a"].node.membership.phase == "ready"
    assert not made["a"].is_open
    assert made.ask(requests.MaintenanceStatus())["is_drained"]
    made.ask(requests.Revive())
    assert made["a"].is_open
    fill(made, 1, name="r")
    assert masters(made, "r") == {"a": 1}


def test_a_queue_that_comes_to_a_drained_node_is_given_away_again() -> None:
    made = kit(0)
    made.apply(c.SetPolicy(Policy("/", "ha", "^q", {"ha-mode": "nodes", "ha-params": ["a", "b"]}, "queues")))
    fill(made, 2, at="b")
    made.advance(1)
    drain(made)
    made.kill("b")
    made.advance(8)
    assert masters(made) == {"a": 2}, "a has the only copies"
    found = made.ask(requests.MaintenanceStatus())
    assert (found["masters"], found["stuck"]) == (2 + _system(made), 2)
    made.start("b", *made.names)
    made.advance(15)
    assert masters(made) == {"b": 2}


def _system(made: MirroredKit) -> int:
    return sum(queue.node == "a" for queue in made["a"].node.meta.queues.values() if queue.name[0] != "q")


def test_what_nobody_can_take_stays_and_is_named() -> None:
    made = MirroredKit("a")
    fill(made, 2)
    found = drain(made)
    assert (found["masters"], found["stuck"]) == (2, 2)
    assert found["problems"][0]["reason"] == "no other node could take it"


def test_a_mirror_that_is_not_in_sync_is_synchronised_first() -> None:
    made = kit(0)
    made.apply(c.SetPolicy(Policy("/", "ha", "^q", {"ha-mode": "exactly", "ha-params": 1}, "queues")))
    client = fill(made, 1)
    made.confirm(client, 20, "q0")
    manual = {"ha-mode": "nodes", "ha-params": ["a", "b"], "ha-sync-mode": "manual"}
    made.apply(c.SetPolicy(Policy("/", "ha", "^q", manual, "queues")))
    made.advance(1)
    assert [entry.node for entry in made.view("q0").learners] == ["b"]
    drain(made)
    record = made["b"].node.meta.queues["/", "q0"]
    assert record.node == "b"
    assert made["b"].node.switch.masters[record.id].core.ready == 20


def test_every_node_shows_who_is_in_maintenance() -> None:
    made = kit(1)
    drain(made)
    for member in made.members.values():
        status = report_cluster.cluster_status(report_cluster.view_of(member.node, ()))
        assert status["maintenance_status"] == {
            "a": "marked for maintenance",
            "b": "not under maintenance",
            "c": "not under maintenance",
        }
        assert not status["listeners"]["a"]


def test_events_and_the_log_tell_of_maintenance() -> None:
    made = kit(1)
    heard = made.listen("node.*", at="b")
    drain(made)
    made.ask(requests.Revive())
    made.advance(1)
    told = [(key, facts["name"]) for key, facts in events(heard)]
    assert told == [("node.drained", "a"), ("node.revived", "a")]
    assert made.lines("a", "maintenance begins")
    assert made.lines("a", "maintenance is over")


@pytest.mark.parametrize("request_made", [requests.Drain(), requests.Revive()])
def test_asking_twice_changes_nothing(request_made: requests.Request) -> None:
    made = kit(1)
    made.ask(request_made)
    made.advance(3)
    before = made["a"].node.meta.nodes["a"]
    assert made.ask(request_made)["was_drained"] == before.is_drained
    assert made["a"].node.meta.nodes["a"] == before
