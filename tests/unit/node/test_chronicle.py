"""What happens to mirrored queues is told once: to operators in lines, to clients by events, and counted."""

from __future__ import annotations

from mirrormq.base import limits
from mirrormq.meta import commands as c
from mirrormq.meta.records import Queue
from mirrormq.node import requests as ask
from tests.support.mirroredkit import MirroredKit, events
from tests.support.nodekit import NodeKit


def test_the_death_of_a_master_is_told_by_the_new_one_with_the_reason_and_what_comes_again() -> None:
    kit = MirroredKit()
    kit.policy()
    kit.confirm(kit.declare("q", "b"), 5)
    listener = kit.listen("queue.master_changed", "c")
    assert kit.view().master == "b"
    kit.kill("b")
    kit.advance(3)
    new = kit.view().master
    ((key, headers),) = events(listener)
    assert key == "queue.master_changed"
    assert (headers["from"], headers["to"], headers["reason"], headers["lossy"]) == (
        "b",
        new,
        "failure",
        False,
    )
    assert (headers["name"], headers["vhost"], headers["node"]) == ("q", "/", new)
    assert (headers["epoch"] > 1, headers["messages"], headers["requeued"]) == (True, 5, 0)
    (line,) = kit.lines(new, "has its master here")
    assert "node b is dead; 5 messages, 0 of which may be delivered again" in line
    assert kit.master().node.copies.chronicle.counters.promotions["failure"] == 1
    others = [name for name in kit.members if name != new]
    assert not [line for name in others for line in kit.lines(name, "has its master here")]


def test_an_event_is_built_only_if_something_is_bound() -> None:
    kit = MirroredKit()
    kit.policy()
    kit.declare("q")
    chronicles = [member.node.copies.chronicle for member in kit.members.values()]
    assert [one.exchange.published for one in chronicles] == [0, 0, 0]
    kit.listen("policy.*")
    kit.policy(ha_min_in_sync=2)
    assert sorted(one.exchange.published for one in chronicles) == [0, 0, 1]


def test_a_new_mirror_is_told_when_it_comes_when_it_is_in_sync_and_when_it_goes() -> None:
    kit = MirroredKit()
    kit.policy(ha_mode="exactly", ha_params=2)
    kit.confirm(kit.declare("q", "a"), 10)
    listener = kit.listen("queue.#", "a")
    (first,) = (entry.node for entry in kit.view().members[1:])
    (second,) = {"b", "c"} - {first}
    kit.policy()
    kit.advance(2)
    assert [entry.node for entry in kit.view().members] == ["a", first, second]
    found = events(listener)
    assert [key for key, _ in found] == [
        "queue.mirror_added",
        "queue.sync_started",
        "queue.mirror_synchronised",
        "queue.synchronised",
    ]
    assert {headers["mirror"] for _, headers in found} == {second}
    assert found[-1][1]["bytes"] > 0
    (line,) = kit.lines("a", f"is in sync on node {second}")
    assert " bytes in " in line
    kit.policy(ha_mode="exactly", ha_params=1)
    kit.advance(2)
    gone = events(listener)
    assert {key for key, _ in gone} == {"queue.mirror_removed"}
    assert all(headers["reason"] == "its policy does not want one there" for _, headers in gone)
    assert len(kit.lines("a", "has no mirror any more on node")) == 2


def test_a_mirror_whose_node_dies_is_said_to_be_out_of_reach() -> None:
    kit = MirroredKit()
    kit.policy()
    kit.confirm(kit.declare("q", "a"), 1)
    kit.kill("c")
    kit.advance(5)
    (line,) = kit.lines("a", "has no mirror any more on node c")
    assert "dead or cannot be reached" in line


def test_a_queue_that_waits_for_a_node_says_for_which_and_what_to_do() -> None:
    kit = MirroredKit()
    kit.policy(ha_mode="exactly", ha_params=2, ha_sync_mode="manual")
    kit.confirm(kit.declare("q", "a"), 1)
    (mirror,) = (entry.node for entry in kit.view().members[1:])
    kit.kill(mirror)
    kit.advance(5)
    assert [entry.node for entry in kit.view().members] == ["a"]
    kit.kill("a")
    kit.advance(8)
    # One node of three is no majority: it notices nothing more until another is back.
    kit.start(mirror, "a", "b", "c")
    kit.advance(10)
    told = [line for name in kit.members for line in kit.lines(name, "queue 'q' in vhost '/' has no master")]
    assert len(told) == 1
    assert "served again when node a is back" in told[0]
    assert "force_promote q" in told[0]


def test_a_lossy_promotion_is_a_warning_that_says_where_the_rest_may_be() -> None:
    kit = MirroredKit("a", "b", "c", "d", "e")
    kit.policy(ha_mode="nodes", ha_params=["a"])
    client = kit.declare("q", "a")
    for _ in range(3):
        kit.confirm(client, 1)
    slow = {"ha_sync_max_throughput": 1, "ha_promote_on_failure": "always"}
    kit.policy(ha_mode="nodes", ha_params=["a", "b"], **slow)
    kit.advance(1)
    assert [entry.node for entry in kit.view().learners] == ["b"]
    listener = kit.listen("queue.master_changed", "c")
    kit.kill("a")
    kit.advance(4)
    assert kit.view().master == "b"
    (line,) = kit.lines("b", "MESSAGES MAY BE LOST")
    assert "only a can tell" in line
    ((_, headers),) = events(listener)
    assert headers["lossy"] is True
    counters = kit["b"].node.copies.chronicle.counters
    assert (counters.lossy, kit.view().losses) == (1, 1)


def test_nodes_policies_queues_and_alarms_have_rabbitmqs_routing_keys() -> None:
    kit = MirroredKit()
    listener = kit.listen("#", "a")
    events(listener)
    client = kit["b"].client()
    client.declare("plain")
    kit.policy()
    kit.apply(c.ClearPolicy("/", "ha"))
    kit.apply(c.DeleteQueue("/", "plain"))
    found = dict(events(listener))
    assert {"queue.created", "policy.set", "policy.cleared", "queue.deleted"} <= set(found)
    assert (found["queue.created"]["name"], found["queue.created"]["node"]) == ("plain", "b")
    assert found["policy.set"]["definition"] == {"ha-mode": "all"}
    kit["a"].node.alarms.add("memory")
    kit.advance(0.2)
    kit["a"].node.alarms.discard("memory")
    kit.advance(0.2)
    alarms = events(listener)
    assert [(key, headers["name"], headers["node"]) for key, headers in alarms] == [
        ("alarm.set", "memory", "a"),
        ("alarm.cleared", "memory", "a"),
    ]
    kit.kill("c")
    kit.advance(4)
    assert ("node.down", "c") in [(key, headers.get("name")) for key, headers in events(listener)]
    kit.start("c", "a", "b", "c")
    kit.advance(4)
    assert ("node.up", "c") in [(key, headers.get("name")) for key, headers in events(listener)]


def test_clients_cannot_publish_to_the_event_exchange() -> None:
    kit = NodeKit()
    client = kit.client()
    client.publish("policy.set", exchange="amq.rabbitmq.event")
    (error,) = client.take()
    assert error.reply_text.startswith("ACCESS_REFUSED - cannot publish to internal exchange")


def test_what_concerns_very_many_queues_is_told_in_a_few_lines() -> None:
    kit = MirroredKit()
    kit.policy()
    count = limits.mirror_notes_max + 5
    for number in range(count):
        kit["b"].node.propose(
            c.DeclareQueue(Queue("/", f"q{number}", durable=True, node="b")), lambda _: None, False
        )
    kit.advance(1)
    assert {kit.view(f"q{number}").master for number in range(count)} == {"b"}
    kit.kill("b")
    kit.advance(4)
    new = kit.view("q0").master
    assert len(kit.lines(new, "has its master here")) == limits.mirror_notes_max
    assert kit.lines(new, "5 more queues have their master here now")


def test_a_sync_that_an_operator_asks_for_is_told_when_it_begins() -> None:
    kit = MirroredKit()
    kit.policy(ha_mode="nodes", ha_params=["a", "b"])
    client = kit.declare("q", "a")
    for _ in range(3):
        kit.confirm(client, 1)
    kit.policy(ha_sync_mode="manual", ha_sync_max_throughput=1)
    kit.advance(1)
    assert [entry.node for entry in kit.view().learners] == ["c"]
    listener = kit.listen("queue.#", "b")
    assert kit.ask(ask.SyncQueue(vhost="/", name="q"), "b")["unsynchronised"] == ["c"]
    kit.advance(1)
    ((key, headers),) = events(listener)
    assert (key, headers["mirror"], headers["node"]) == ("queue.sync_started", "c", "a")
    assert kit.lines("a", "is being synchronised to node c")
