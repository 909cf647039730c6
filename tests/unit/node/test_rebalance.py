"""Rebalancing on several nodes in one process: the lock, the triggers, moves, what ends them early."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.node import requests
from mirrormq.node.balancing import STRATEGIES
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.mirroredkit import MirroredKit, events
from tests.support.nodekit import Client


def kit(count: int = 6, *, at: str = "a", name: str = "q", **settings: Any) -> MirroredKit:
    made = MirroredKit(**settings)
    made.policy()
    fill(made, count, at=at, name=name)
    return made


def fill(made: MirroredKit, count: int, *, at: str = "a", name: str = "q") -> Client:
    client = made[at].client()
    for number in range(count):
        client.declare(f"{name}{number}", durable=True)
    made.advance(0.3)
    return client


def masters(made: MirroredKit, prefix: str = "q") -> Counter[str]:
    queues = next(iter(made.members.values())).node.meta.queues.values()
    return Counter(queue.node for queue in queues if queue.name.startswith(prefix))


def wait_done(made: MirroredKit, at: str = "a") -> dict[str, Any]:
    for _ in range(100):
        made.advance(0.2)
        found = made.ask(requests.RebalanceStatus(), at)
        if not found["running"] and found["run"] is not None and found["run"]["state"] == "done":
            run: dict[str, Any] = found["run"]
            return run
    raise AssertionError(found)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("at", ["a", "b"])
def test_masters_are_spread_over_the_nodes_whoever_is_asked(at: str, strategy: str) -> None:
    made = kit()
    begun = made.ask(requests.Rebalance(strategy=strategy), at)
    assert (begun["planned"], begun["node"], begun["strategy"]) == (4, at, strategy)
    run = wait_done(made, at)
    assert (run["moved"], run["failed"], run["cancelled"]) == (4, 0, False)
    assert masters(made) == {"a": 2, "b": 2, "c": 2} == run["masters"]
    assert made["c"].node.meta.rebalance is None


def test_what_is_even_needs_no_lock_and_moves_nothing() -> None:
    made = kit(2)
    fill(made, 2, at="b", name="r")
    fill(made, 2, at="c", name="s")
    before = made["a"].node.meta.last_id
    begun = made.ask(requests.Rebalance())
    assert (begun["planned"], begun["state"]) == (0, "done")
    assert made["a"].node.meta.last_id == before


def test_a_plan_is_shown_and_nothing_moves() -> None:
    made = kit(3)
    moves = made.ask(requests.Rebalance(plan=True))["moves"]
    assert [(move["name"], move["from"], move["to"], move["by"]) for move in moves] == [
        ("q0", "a", "b", "transfer"),
        ("q1", "a", "c", "transfer"),
    ]
    made.advance(1)
    assert masters(made) == {"a": 3}


def test_named_moves_are_carried_out_under_the_lock() -> None:
    made = kit(3)
    begun = made.ask(requests.Rebalance(moves=(("/", "q0", "c"), ("/", "q1", "c"), ("/", "q2", "a"))), "b")
    assert (begun["planned"], begun["trigger"]) == (2, "appoint")
    assert wait_done(made, "b")["moved"] == 2
    assert masters(made) == {"a": 1, "c": 2}


def test_named_moves_that_cannot_be_are_refused_before_anything_moves() -> None:
    made = kit(2)
    kind, text = made.refusal(requests.Rebalance(moves=(("/", "q0", "b"), ("/", "q9", "b"))))
    assert (kind, text) == ("no_such_queue", "no queue 'q9' in vhost '/' can be moved now")
    kind, text = made.refusal(requests.Rebalance(moves=(("/", "q0", "x"),)))
    assert (kind, text.partition(";")[2]) == ("cannot_move", " could: a, b, c")
    assert masters(made) == {"a": 2}


def test_queues_are_chosen_by_type_vhost_and_name() -> None:
    made = kit(4)
    fill(made, 4, name="r")
    assert made.ask(requests.Rebalance(kind="quorum"))["planned"] == 0
    assert made.ask(requests.Rebalance(vhost_pattern="^v"))["planned"] == 0
    assert made.ask(requests.Rebalance(queue_pattern="^r"))["planned"] == 2
    wait_done(made)
    assert (masters(made), masters(made, "r")) == ({"a": 4}, {"a": 2, "b": 1, "c": 1})


def test_what_makes_no_sense_is_refused_with_a_sentence() -> None:
    made = kit(1)
    assert made.refusal(requests.Rebalance(strategy="best"))[0] == "bad_request"
    assert made.refusal(requests.Rebalance(queue_pattern="("))[0] == "bad_request"
    assert made.refusal(requests.CancelRebalance())[0] == "not_rebalancing"


@pytest.mark.parametrize("mode", ["off", "appoint"])
def test_where_masters_move_only_by_name_a_rebalancing_needs_force(mode: str) -> None:
    made = kit(3, rebalance=mode)
    kind, text = made.refusal(requests.Rebalance())
    assert (kind, text) == ("rebalance_off", f"cluster_rebalance = {mode}: name the moves, or give --force")
    assert made.ask(requests.Rebalance(moves=(("/", "q0", "b"),)))["planned"] == 1
    wait_done(made)
    made.ask(requests.Rebalance(force=True))
    wait_done(made)
    assert masters(made) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.slow
def test_a_thousand_queues_even_out() -> None:
    made = kit(1000)
    assert made.ask(requests.Rebalance(), "c")["planned"] == 666
    run = wait_done(made, "c")
    assert (run["moved"], run["failed"]) == (666, 0)
    assert sorted(masters(made).values()) == [333, 333, 334]


# --- the lock ---


def test_a_second_rebalancing_is_refused_and_names_who_runs_the_first() -> None:
    made = held()
    for at in ("a", "b", "c"):
        kind, text = made.refusal(requests.Rebalance(), at)
        assert kind == "rebalance_in_progress"
        assert text.startswith("rebalance in progress: node b has been at it for")
        status = made.ask(requests.RebalanceStatus(), at)
        assert (status["running"], status["node"], status["run"]["planned"]) == (True, "b", 2)


def held() -> MirroredKit:
    """A rebalancing by b of queues without mirrors that cannot go on: links carry no copies."""
    made = kit(0)
    client = fill(made, 3, name="plain")
    made.confirm(client, 3, "plain0")
    for member in made.members.values():
        copies = member.node.copies
        assert copies is not None
        copies.send = lambda peer, parts: False  # type: ignore[method-assign]
    made.ask(requests.Rebalance(), "b")
    return made


def test_a_rebalancing_is_cancelled_from_any_node_and_undoes_half_a_move() -> None:
    made = held()
    made.advance(1)
    assert any(view.learners for view in made["a"].node.meta.views.values() if view.name.startswith("plain"))
    assert made.ask(requests.CancelRebalance(), "c") == {"node": "b"}
    run = wait_done(made, "b")
    assert (run["cancelled"], run["moved"]) == (True, 0)
    made.advance(2)
    assert masters(made, "plain") == {"a": 3}
    views = [view for view in made["a"].node.meta.views.values() if view.name.startswith("plain")]
    assert all(len(view.members) == 1 and not view.learners for view in views)


def test_the_lock_goes_with_the_node_that_holds_it_and_so_do_its_moves() -> None:
    made = held()
    assert made["a"].node.meta.rebalance is not None
    made.kill("b")
    made.advance(10)
    assert made["a"].node.meta.rebalance is None
    policy = made["a"].node.copies.policy  # type: ignore[union-attr]
    assert not policy.is_moving
    assert masters(made, "plain") == {"a": 3}


# --- triggers ---


@pytest.mark.slow
def test_the_leader_looks_by_the_clock_and_leaves_alone_what_is_even() -> None:
    made = kit(6, rebalance="timer", rebalance_interval_ms=5_000)
    made.advance(12)
    assert masters(made) == {"a": 2, "b": 2, "c": 2}
    before = made["a"].node.meta.last_id
    made.advance(12)
    assert made["a"].node.meta.last_id == before


@pytest.mark.slow
def test_a_start_spreads_masters_once_when_all_nodes_are_there() -> None:
    made = MirroredKit(rebalance="run")
    made.policy()
    made.advance(3)
    fill(made, 6)
    made.advance(10)
    assert masters(made) == {"a": 6}, "only at the start"
    made.kill("c")
    made.advance(2)
    made.start("c", *made.names)
    made.advance(20)
    assert masters(made) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.slow
def test_a_start_does_not_wait_for_ever_for_nodes_that_are_missing() -> None:
    made = kit(6)
    made.kill("c")
    made.advance(10)
    balancer = made["a"].node.copies.balancer  # type: ignore[union-attr]
    assert not balancer.are_all_there()
    made.advance(limits.balance_start_us / 1_000_000)
    assert balancer.are_all_there()


# --- what is told ---


def test_events_tell_of_the_beginning_and_the_end() -> None:
    made = kit(3)
    heard = made.listen("rebalance.*")
    made.ask(requests.Rebalance())
    wait_done(made)
    made.advance(1)
    told = events(heard)
    assert [(key, facts["planned"], facts["moved"]) for key, facts in told] == [
        ("rebalance.started", 2, 0),
        ("rebalance.finished", 2, 2),
    ]
    assert made.lines("a", "rebalancing") == ["rebalancing started", "rebalancing finished"]


# --- queues without mirrors ---


def test_a_queue_without_a_mirror_moves_by_a_copy_that_stays_the_only_one() -> None:
    made = kit(0)
    client = made.declare("plain")
    made.confirm(client, 50, "plain")
    moved = made.begin(requests.MoveMaster(vhost="/", name="plain", node="b"))
    made.advance(3)
    assert moved[0].value == {"master": "b", "from": "a"}
    made.advance(2)
    view = made.view("plain")
    assert ([entry.node for entry in view.members], view.learners) == (["b"], ())
    assert client.ask(methods.QueueDeclare(queue="plain", passive=True), methods.QueueDeclareOk)
    made.confirm(client, 5, "plain")
    assert made["b"].node.switch.masters[view.id].core.ready == 55


def test_queues_that_are_not_durable_keep_what_they_hold_when_they_move() -> None:
    made = kit(0)
    client = made["a"].client()
    client.declare("plain")
    made.confirm(client, 20, "plain")
    made.begin(requests.MoveMaster(vhost="/", name="plain", node="c"))
    made.advance(5)
    record = made["b"].node.meta.queues["/", "plain"]
    assert (record.node, record.durable) == ("c", False)
    assert made["c"].node.switch.masters[record.id].core.ready == 20


def test_exclusive_queues_stay_with_their_clients() -> None:
    made = kit(0)
    client = made["a"].client()
    for number in range(4):
        client.declare(f"mine{number}", exclusive=True)
    made.advance(0.3)
    assert made.ask(requests.Rebalance())["planned"] == 0
    answer = made.begin(requests.MoveMaster(vhost="/", name="mine0", node="b"))[0]
    assert answer.problem is not None
    assert "exclusive" in answer.problem.text


# --- every trigger with every strategy, under load ---


class Load:
    """A publisher on b and a consumer on c, who must get every message once and in order."""

    def __init__(self, made: MirroredKit, queues: list[str]) -> None:
        self.made = made
        self.queues = queues
        self.publisher = made["b"].client()
        self.publisher.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        self.consumer = made["c"].client()
        for queue in queues:
            self.consumer.consume(queue, queue)
        self.sent = self.confirmed = 0
        self.got: dict[str, list[bytes]] = {queue: [] for queue in queues}

    def round(self, seconds: float = 0.1) -> None:
        """One more message to every queue, and an acknowledgement of each that has come."""
        self.sent += 1
        for queue in self.queues:
            self.publisher.publish(queue, b"%d" % self.sent, properties=PERSISTENT)
        self.made.advance(seconds)
        tag = ""
        for item in self.publisher.take():
            assert isinstance(item, methods.BasicAck), item
            self.confirmed = max(self.confirmed, item.delivery_tag)
        for item in self.consumer.take():
            if isinstance(item, methods.BasicDeliver):
                tag, number = item.consumer_tag, item.delivery_tag
            else:
                self.got[tag].append(item[1])
                self.consumer.send(methods.BasicAck(delivery_tag=number))

    def check(self) -> None:
        """Nothing was lost, nothing came twice."""
        for _ in range(3):
            self.round(0.5)
        last = self.sent
        self.made.advance(1)
        self.round(1)
        assert self.confirmed >= last * len(self.queues)
        for queue, bodies in self.got.items():
            assert bodies[:last] == [b"%d" % (number + 1) for number in range(last)], queue


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("trigger", ["timer", "run", "on-demand", "appoint"])
def test_every_trigger_moves_masters_by_every_strategy_and_clients_notice_nothing(
    trigger: str, strategy: str
) -> None:
    made = MirroredKit(rebalance=trigger, rebalance_interval_ms=8_000, rebalance_strategy=strategy)
    made.policy()
    made.advance(3)
    fill(made, 6)
    load = Load(made, [f"q{number}" for number in range(6)])
    for _ in range(5):
        load.round()
    if trigger == "run":
        # Begun again as after a start: this node has not done it yet.
        balancer = made["a"].node.copies.balancer  # type: ignore[union-attr]
        balancer._is_started = False
    elif trigger == "on-demand":
        made["b"].node.admin(made.now, requests.Rebalance(), lambda _: None)
    elif trigger == "appoint":
        plan = made.ask(requests.Rebalance(plan=True), "b")["moves"]
        moves = tuple((move["vhost"], move["name"], move["to"]) for move in plan)
        made["b"].node.admin(made.now, requests.Rebalance(moves=moves), lambda _: None)
    for _ in range(100):
        load.round()
        if len(masters(made)) == 3 and made["a"].node.meta.rebalance is None:
            break
    assert set(masters(made)) == {"a", "b", "c"}
    load.check()
