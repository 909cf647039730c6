"""Where new queues get their masters: the strategies themselves, who decides, and all the ways to declare."""

import copy
from collections import Counter
from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.meta import commands as c
from mirrormq.meta.records import Policy
from mirrormq.node import requests
from mirrormq.node.placement import Candidate, choose, strategy_of
from mirrormq.node.steps import Answer
from mirrormq.wire import methods
from tests.support.clusterkit import ClusterKit
from tests.support.nodekit import SeededRng

PERIOD_S = limits.news_period_us / 1_000_000
THREE = [Candidate("a", 5, 1, 30), Candidate("b", 2, 9, 10), Candidate("c", 9, 4, 10)]


# --- strategies ---


@pytest.mark.parametrize(
    ("strategy", "node"), [("min-masters", "b"), ("least-connections", "a"), ("least-messages", "b")]
)
def test_the_least_loaded_node_is_chosen_whoevers_turn_it_is(strategy: str, node: str) -> None:
    assert {choose(strategy, THREE, turn, SeededRng()) for turn in range(6)} == {node}


def test_equals_are_chosen_by_turns() -> None:
    equals = [Candidate(node, 1, 1, 1) for node in "abc"]
    for strategy in ("min-masters", "least-connections", "least-messages", "round-robin"):
        assert [choose(strategy, equals, turn, SeededRng()) for turn in range(4)] == ["a", "b", "c", "a"]


def test_random_is_drawn_from_the_randomness_handed_in() -> None:
    drawn = [choose("random", THREE, 0, SeededRng(seed)) for seed in range(60)]
    assert drawn == [choose("random", THREE, 0, SeededRng(seed)) for seed in range(60)]
    assert set(drawn) == {"a", "b", "c"}


def test_of_no_candidates_none_is_chosen() -> None:
    assert choose("min-masters", [], 0, SeededRng()) is None


@pytest.mark.parametrize(
    ("arguments", "definition", "default", "strategy"),
    [
        ({}, {}, "client-local", "client-local"),
        ({}, {}, "random", "random"),
        ({}, {"queue-master-locator": "min-masters"}, "random", "min-masters"),
        (
            {"x-queue-master-locator": "round-robin"},
            {"queue-master-locator": "min-masters"},
            "",
            "round-robin",
        ),
        ({"x-queue-master-locator": b"round-robin"}, {}, "", "round-robin"),
        ({"x-queue-leader-locator": "balanced"}, {}, "", "min-masters"),
        ({}, {"queue-leader-locator": "least-leaders"}, "", "min-masters"),
        ({"x-queue-master-locator": "anywhere"}, {"queue-master-locator": "random"}, "", "random"),
        ({"x-queue-master-locator": 1}, {}, "least-messages", "least-messages"),
        ({"x-queue-master-locator": ["random"]}, {}, "nonsense", "client-local"),
    ],
)
def test_the_argument_wins_over_the_policy_and_the_policy_over_the_setting(
    arguments: dict[str, Any], definition: dict[str, Any], default: str, strategy: str
) -> None:
    assert strategy_of(arguments, definition, default) == strategy


# --- on a cluster ---


def master(cluster: ClusterKit, name: str) -> str:
    return cluster.node(cluster.names[0]).state.queues["/", name].node


def masters(cluster: ClusterKit) -> Counter[str]:
    return Counter(queue.node for queue in cluster.node(cluster.names[0]).state.queues.values())


def set_policy(cluster: ClusterKit, definition: dict[str, Any], pattern: str = ".*") -> None:
    policy = Policy("/", "p", pattern, definition)
    cluster.node(cluster.names[0]).propose(c.SetPolicy(policy), lambda outcome: None, False)
    cluster.run()


def locate(strategy: str) -> dict[str, Any]:
    return {"x-queue-master-locator": strategy}


def ask(cluster: ClusterKit, node: str, request: requests.Request) -> Answer:
    answers: list[Answer] = []
    cluster.node(node).admin(cluster.now, request, answers.append)
    cluster.run()
    (answer,) = answers
    assert answer.problem is None, answer.problem
    return answer


def test_a_queue_is_mastered_where_its_client_is_unless_told_otherwise() -> None:
    cluster = ClusterKit("a", "b", "c")
    cluster["b"].client().declare("q")
    assert master(cluster, "q") == "b"


def test_min_masters_levels_the_nodes() -> None:
    cluster = ClusterKit("a", "b", "c")
    client = cluster["a"].client()
    for number in range(4):
        client.declare(f"local{number}")
    for number in range(8):
        client.declare(f"spread{number}", arguments=locate("min-masters"))
    assert masters(cluster) == {"a": 4, "b": 4, "c": 4}


def test_round_robin_goes_round_and_begins_at_a_different_node_everywhere() -> None:
    cluster = ClusterKit("a", "b", "c")
    first = {}
    for name in cluster.names:
        cluster[name].client().declare(f"of-{name}", arguments=locate("round-robin"))
        first[name] = master(cluster, f"of-{name}")
    assert sorted(first.values()) == ["a", "b", "c"]
    client = cluster["a"].client()
    for number in range(6):
        client.declare(f"q{number}", arguments=locate("round-robin"))
    assert masters(cluster) == {"a": 3, "b": 3, "c": 3}


def test_least_connections_and_least_messages_follow_the_reports() -> None:
    cluster = ClusterKit("a", "b", "c")
    client = cluster["a"].client()
    cluster["b"].client()
    client.declare("full", arguments=locate("min-masters"))
    for name in ("x", "y"):
        client.declare(name, arguments=locate("min-masters"))
    for queue in ("full", "x"):
        client.publish(queue)
    cluster.advance(PERIOD_S)
    client.declare("by-connections", arguments=locate("least-connections"))
    assert master(cluster, "by-connections") == "c"
    client.declare("by-messages", arguments=locate("least-messages"))
    assert master(cluster, "by-messages") == master(cluster, "y")


def test_an_exclusive_queue_stays_with_its_client() -> None:
    cluster = ClusterKit("a", "b", "c", queue_master_locator="round-robin")
    set_policy(cluster, {"queue-master-locator": "round-robin"})
    client = cluster["b"].client()
    for _ in range(3):
        client.declare("", exclusive=True, arguments=locate("round-robin"))
    assert masters(cluster) == {"b": 3}


def test_a_queue_named_by_the_server_is_placed_like_any_other() -> None:
    cluster = ClusterKit("a", "b", "c")
    client = cluster["a"].client()
    for _ in range(3):
        client.declare("", arguments=locate("round-robin"))
    assert masters(cluster) == {"a": 1, "b": 1, "c": 1}


def test_only_live_nodes_are_chosen() -> None:
    cluster = ClusterKit("a", "b", "c", queue_master_locator="round-robin")
    cluster.kill("b")
    client = cluster["a"].client()
    for number in range(4):
        client.declare(f"q{number}")
    assert masters(cluster) == {"a": 2, "c": 2}


def test_a_node_that_is_linked_but_was_not_heard_yet_is_not_chosen() -> None:
    cluster = ClusterKit("a", "b", queue_master_locator="round-robin")
    cluster.cut("a", "b")
    cluster.hold("b", "a")
    cluster.heal("a", "b")
    client = cluster["a"].client()
    for number in range(2):
        client.declare(f"q{number}")
    assert masters(cluster) == {"a": 2}


def test_a_node_that_takes_no_queues_is_not_chosen() -> None:
    cluster = ClusterKit("a", "b", "c", queue_master_locator="min-masters")
    cluster.node("c").news.set_takes_queues(False)
    cluster.advance(PERIOD_S)
    client = cluster["a"].client()
    for number in range(4):
        client.declare(f"q{number}")
    assert masters(cluster) == {"a": 2, "b": 2}


def test_a_policy_with_ha_mode_nodes_keeps_masters_on_its_nodes() -> None:
    cluster = ClusterKit("a", "b", "c")
    definition = {"ha-mode": "nodes", "ha-params": ["b", "c"], "queue-master-locator": "min-masters"}
    set_policy(cluster, definition, "^spread")
    client = cluster["a"].client()
    for number in range(4):
        client.declare(f"spread{number}")
    assert masters(cluster) == {"b": 2, "c": 2}
    set_policy(cluster, {"ha-mode": "nodes", "ha-params": ["c"]}, "^here")
    client.declare("here1")
    assert master(cluster, "here1") == "c"
    cluster.kill("c")
    client.declare("here2")
    assert master(cluster, "here2") == "a"


def test_a_policy_decides_for_queues_declared_after_it() -> None:
    cluster = ClusterKit("a", "b")
    client = cluster["a"].client()
    client.declare("before")
    set_policy(cluster, {"queue-master-locator": "min-masters"})
    client.declare("after")
    assert (master(cluster, "before"), master(cluster, "after")) == ("a", "b")


def test_a_queue_placed_elsewhere_is_used_like_one_that_is_here() -> None:
    cluster = ClusterKit("a", "b", queue_master_locator="round-robin")
    client = cluster["a"].client()
    for number in range(2):
        client.declare(f"q{number}", durable=True)
        client.publish(f"q{number}", b"m")
        assert client.declare(f"q{number}", durable=True).message_count == 1
        client.ask(methods.BasicGet(queue=f"q{number}"), methods.BasicGetOk)
        client.inbox.clear()
    assert masters(cluster) == {"a": 1, "b": 1}


def test_a_queue_declared_by_an_administrator_is_placed_in_the_same_way() -> None:
    cluster = ClusterKit("a", "b", queue_master_locator="min-masters")
    for number in range(4):
        ask(cluster, "a", requests.DeclareQueue(vhost="/", name=f"q{number}", durable=True))
    assert masters(cluster) == {"a": 2, "b": 2}


def test_imported_queues_are_placed_by_the_policies_of_their_file_and_stay_where_they_are() -> None:
    cluster = ClusterKit("a", "b", "c")
    cluster["b"].client().declare("q0", durable=True)
    queues = [{"name": f"q{n}", "vhost": "/", "durable": True, "arguments": {}} for n in range(9)]
    policy = {
        "vhost": "/",
        "name": "spread",
        "pattern": "^q",
        "definition": {"queue-master-locator": "min-masters"},
    }
    definitions = {"queues": queues, "policies": [policy]}
    again = copy.deepcopy(definitions)
    ask(cluster, "a", requests.ImportDefinitions(definitions=definitions))
    assert masters(cluster) == {"a": 3, "b": 3, "c": 3}
    assert master(cluster, "q0") == "b"
    ask(cluster, "c", requests.ImportDefinitions(definitions=again))
    assert masters(cluster) == {"a": 3, "b": 3, "c": 3}
