"""The cluster's own queues: there by themselves, out of everybody's way, readable and nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.broker.queue import Queue
from mirrormq.log.latency import upper_edge
from mirrormq.meta import commands as c
from mirrormq.meta import definitions, policy, system
from mirrormq.meta.records import Policy, VHost
from mirrormq.node import metrics, report, requests
from mirrormq.node.eventqueue import EventQueue
from mirrormq.node.steps import Answer
from mirrormq.wire import methods
from mirrormq.wire.properties import decode_properties
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.mirroredkit import MirroredKit
from tests.support.nodekit import Client, NodeKit


def _kit(**settings: Any) -> NodeKit:
    kit = NodeKit(**({"events": True, "samples": True} | settings))
    kit.advance(1)
    return kit


def _read(client: Client, queue: str) -> list[tuple[Any, bytes]]:
    """Take everything out of a queue: (properties, body)."""
    client.take()
    client.consume(queue, tag="reader", no_ack=True)
    client.send(methods.BasicCancel(consumer_tag="reader"))
    items = [item for item in client.take() if isinstance(item, tuple)]
    return [(decode_properties(properties), body) for properties, body in items]


def _events(client: Client) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in _read(client, system.EVENTS)]


def _samples(client: Client) -> list[dict[str, Any]]:
    return [msgspec.msgpack.decode(body) for _, body in _read(client, system.SAMPLES)]


def _ask(kit: NodeKit, request: requests.Request) -> Answer:
    answers: list[Answer] = []
    kit.node.admin(kit.now, request, answers.append)
    kit.run()
    return answers[0]


# --- being there -------------------------------------------------------------------------------------------


def test_a_node_has_its_own_queues_by_itself_and_only_if_they_are_wanted() -> None:
    assert {name for _, name in _kit().node.meta.queues} == {system.EVENTS, system.SAMPLES}
    assert {name for _, name in _kit(samples=False).node.meta.queues} == {system.EVENTS}
    assert not _kit(samples=False, events=False).node.meta.queues


def test_they_are_durable_bounded_and_mirrored_everywhere_whatever_policies_say() -> None:
    kit = _kit()
    kit.node.propose(c.SetPolicy(Policy("/", "all", ".*", {"max-length": 1})), lambda _: None, False)
    kit.run()
    for name in system.NAMES:
        record = kit.node.meta.queues["/", name]
        assert record.durable
        assert policy.effective(kit.node.meta, record) == (None, None, system.DEFINITION)
        settings = kit.node.vhosts["/"].queues[name].settings
        assert (settings.max_length, settings.max_bytes) == (None, limits.system_queue_bytes)


def test_they_come_back_with_a_vhost_that_is_made_anew() -> None:
    kit = _kit()
    kit.node.propose(c.DeleteVHost("/"), lambda _: None, False)
    kit.run()
    assert not kit.node.meta.queues
    kit.node.propose(c.PutVHost(VHost("/")), lambda _: None, False)
    kit.run()
    kit.advance(1)
    assert len(kit.node.meta.queues) == 2


# --- being out of the way ----------------------------------------------------------------------------------


def test_counts_listings_limits_and_definition_files_leave_them_out() -> None:
    kit = _kit()
    kit.advance(1)
    assert report.totals(kit.node)["queues"] == 0
    assert not list(report.depths(kit.node))
    assert not list(report.bindings_of(kit.node, "/"))
    assert definitions.export(kit.node.meta)["queues"] == []
    kit.node.propose(c.SetVHostLimits("/", {"max-queues": 1}), lambda _: None, False)
    kit.run()
    kit.client().declare("mine")


def test_a_definition_file_cannot_bring_them() -> None:
    entry = {"name": system.EVENTS, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    assert definitions.import_({"queues": [entry]}) == []


@pytest.mark.parametrize(
    "method",
    [
        methods.QueueDeclare(queue=system.EVENTS, durable=True),
        methods.QueueDelete(queue=system.EVENTS),
        methods.QueuePurge(queue=system.SAMPLES),
        methods.QueueBind(queue=system.EVENTS, exchange="amq.topic", routing_key="#"),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_client_may_not_change_them(method: methods.Method) -> None:
    client = _kit().client()
    client.send(method)
    (closed,) = client.take()
    assert isinstance(closed, methods.ChannelClose)
    assert closed.reply_code == 403


def test_a_client_may_not_publish_to_them() -> None:
    client = _kit().client()
    client.publish(system.SAMPLES)
    (closed,) = client.take()
    assert isinstance(closed, methods.ChannelClose)
    assert closed.reply_code == 403


def test_a_dead_letter_does_not_reach_them_either() -> None:
    kit = _kit(samples=False)
    client = kit.client()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": system.EVENTS, "x-message-ttl": 0}
    client.declare("q", arguments=arguments)
    _events(client)
    client.publish("q")
    assert _events(client) == []


@pytest.mark.parametrize(
    "request_of",
    [requests.DeleteQueue, requests.PurgeQueue, requests.DeclareQueue],
    ids=lambda kind: kind.__name__,
)
def test_an_administrator_may_not_change_them(request_of: Any) -> None:
    answer = _ask(_kit(), request_of(vhost="/", name=system.EVENTS))
    assert answer.problem is not None
    assert AmqpError(403, "x").name.lower() in answer.problem.kind.replace("-", "_").lower()


def test_a_client_may_read_them_with_the_permission_to() -> None:
    client = _kit().client()
    assert client.declare(system.EVENTS, passive=True).queue == system.EVENTS
    client.consume(system.EVENTS)
    assert client.deliveries()


# --- events ------------------------------------------------------------------------------------------------


def test_an_event_says_what_happened_when_and_who_tells() -> None:
    kit = _kit(samples=False)
    client = kit.client()
    _events(client)
    client.declare("q", durable=True)
    ((properties, body),) = _read(client, system.EVENTS)
    told = json.loads(body)
    assert (told["v"], told["event"], told["name"], told["vhost"]) == (1, "queue.created", "q", "/")
    assert (told["at"], told["told_by"]) == (kit.now.wall, "mirrormq@test")
    assert (properties.type, properties.content_type) == ("queue.created", "application/json")
    assert properties.message_id is not None


def test_what_a_connection_has_for_itself_is_no_event() -> None:
    client = _kit(samples=False).client()
    _events(client)
    client.declare("mine", exclusive=True)
    client.ask(methods.QueueBind(queue="mine", exchange="amq.topic", routing_key="#"), methods.QueueBindOk)
    client.ask(methods.QueueDelete(queue="mine"), methods.QueueDeleteOk)
    assert _events(client) == []


def test_a_fail_over_is_told_once_by_the_new_master_and_the_death_by_the_leader() -> None:
    kit = MirroredKit(events=True)
    kit.policy()
    kit.advance(2)
    kit.confirm(kit.declare("q", "b"), 5)
    kit.kill("b")
    kit.advance(4)
    at = kit.view().master
    reader = kit[at].client()
    kit.advance(0.3)
    told = _read_far(kit, reader, system.EVENTS)
    changed = [one for one in told if one["event"] == "queue.master_changed"]
    assert [(one["name"], one["from"], one["to"], one["reason"]) for one in changed] == [
        ("q", "b", at, "failure")
    ]
    assert [one["told_by"] for one in changed] == [at]
    downs = [one for one in told if one["event"] == "node.down"]
    assert [one["name"] for one in downs] == ["b"]
    leaders = [name for name, member in kit.members.items() if member.node.membership.raft.is_leader]
    assert [one["told_by"] for one in downs] == leaders


def _read_far(kit: MirroredKit, client: Client, queue: str) -> list[dict[str, Any]]:
    client.consume(queue, no_ack=True)
    kit.advance(1)
    return [json.loads(body) for body in client.deliveries()]


def test_events_wait_while_their_queue_is_not_there_and_come_in_order() -> None:
    kit = NodeKit(events=True)
    client = kit.client()
    for name in ("one", "two", "three"):
        client.declare(name, durable=True)
    assert ("/", system.EVENTS) not in kit.node.meta.queues
    kit.advance(1)
    told = _events(client)
    assert [one["name"] for one in told if one["event"] == "queue.created"] == ["one", "two", "three"]


def test_events_beyond_the_bound_are_counted_and_the_number_is_told() -> None:
    kit = _kit(samples=False)
    client = kit.client()
    _events(client)
    events = EventQueue(kit.node, most=10)
    for number in range(17):
        events.add("test.event", {"number": number})
    events.step()
    kit.run()
    told = _events(client)
    assert [one["number"] for one in told if one["event"] == "test.event"] == list(range(10))
    assert [one["count"] for one in told if one["event"] == "events.dropped"] == [7]


# --- samples -----------------------------------------------------------------------------------------------


def _rows(sample: dict[str, Any]) -> list[dict[str, Any]]:
    columns = sample["queues"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_a_sample_counts_what_happened_since_the_last_one() -> None:
    kit = _kit(events=False)
    client = kit.client()
    client.declare("q", durable=True)
    kit.advance(1)
    _samples(client)
    for body in (b"1", b"2", b"3"):
        client.feed(publish(b"q", body, PERSISTENT))
    client.ask(methods.BasicGet(queue="q", no_ack=True), methods.BasicGetOk)
    kit.advance(1)
    (sample,) = _samples(client)
    (row,) = _rows(sample)
    assert (row["queue"], row["publishes"], row["deliveries"], row["ready"]) == ("q", 3, 1, 2)
    assert 3 <= row["durable"] <= row["end"]
    assert sum(row["confirm"][1::2]) == 3
    assert (sample["v"], sample["node"]) == (1, "mirrormq@test")
    assert sample["at"] - sample["since"] == 1_000_000
    assert sample["of_node"]["queues"] == 1
    client.feed(publish(b"q", b"4", PERSISTENT))
    kit.advance(1)
    ((row,),) = map(_rows, _samples(client))
    assert (row["publishes"], row["deliveries"], row["ready"]) == (1, 0, 3)


def test_an_idle_node_says_so_now_and_then_and_tells_of_no_queue() -> None:
    kit = _kit(events=False)
    client = kit.client()
    client.declare("q")
    kit.advance(1)
    kit.advance(1)
    _samples(client)
    for _ in range(30):
        kit.advance(1)
    found = _samples(client)
    assert len(found) == 3
    assert not any(sample["queues"] for sample in found)


def test_many_changed_queues_come_in_several_messages_each_queue_once() -> None:
    kit = _kit(events=False)
    client = kit.client()
    count = limits.samples_rows_max * 2
    for number in range(count):
        client.send(methods.QueueDeclare(queue=f"q{number}", nowait=True))
    client.feed(b"".join(publish(b"q%d" % number, b"x") for number in range(count)))
    _samples(client)
    kit.advance(1)
    found = _samples(client)
    assert [sample["part"] for sample in found] == [1, 2, 3]
    assert [sample["of_node"] is not None for sample in found] == [False, False, True]
    assert sorted(row["queue"] for sample in found for row in _rows(sample)) == sorted(
        f"q{number}" for number in range(count)
    )


def test_the_time_to_a_confirm_is_that_of_the_flush() -> None:
    kit = _kit(events=False)
    client = kit.client()
    client.declare("q", durable=True)
    kit.advance(1)
    _samples(client)
    kit.hold_flushes = True
    client.feed(publish(b"q", b"1", PERSISTENT))
    micros = 3_000
    kit.now = kit.now._replace(mono=kit.now.mono + micros, wall=kit.now.wall + micros)
    kit.hold_flushes = False
    kit.run()
    kit.advance(1)
    ((row,),) = map(_rows, _samples(client))
    (bucket, batches) = row["confirm"]
    assert batches == 1
    assert micros < upper_edge(bucket) <= micros * 1.25
    assert row["replication"] == []


def test_replication_is_measured_where_there_are_mirrors() -> None:
    kit = MirroredKit(samples=True)
    kit.policy()
    kit.advance(2)
    kit.confirm(kit.declare("q", "b"), 5)
    kit.advance(2)
    client = kit["b"].client()
    client.consume(system.SAMPLES, no_ack=True)
    kit.advance(1)
    found = [msgspec.msgpack.decode(body) for body in client.deliveries()]
    rows = [row for sample in found for row in _rows(sample) if row["queue"] == "q"]
    assert {sample["node"] for sample in found} == {"a", "b", "c"}
    assert sum(row["publishes"] for row in rows) == 5
    assert sum(sum(row["confirm"][1::2]) for row in rows) > 0
    assert sum(sum(row["replication"][1::2]) for row in rows) > 0
    assert {row["in_sync"] for row in rows} == {3}


# --- trouble -----------------------------------------------------------------------------------------------


def test_nothing_is_published_while_a_resource_runs_short_and_events_come_later() -> None:
    kit = NodeKit(events=True, samples=True, disk_free_limit=1000)
    kit.advance(1)
    client = kit.client()
    kit.node.gauges(kit.now, 0, 10)
    kit.run()
    _events(client)
    _samples(client)
    client.declare("q", durable=True)
    kit.advance(1)
    assert (_events(client), _samples(client)) == ([], [])
    kit.node.gauges(kit.now, 0, 10_000)
    kit.advance(1)
    told = [one["event"] for one in _events(client)]
    assert [name for name in told if name.startswith(("alarm", "queue"))] == [
        "alarm.set",
        "queue.created",
        "alarm.cleared",
    ]


def test_one_that_is_damaged_begins_anew() -> None:
    kit = _kit()
    before = kit.node.meta.queues["/", system.SAMPLES].id
    queue = kit.node.vhosts["/"].queues[system.SAMPLES]
    assert isinstance(queue, Queue)
    queue.fail("a bit was flipped")
    kit.advance(1)
    kit.advance(1)
    assert kit.node.meta.queues["/", system.SAMPLES].id > before
    client = kit.client()
    kit.advance(1)
    assert _samples(client)


# --- what monitoring sees ----------------------------------------------------------------------------------


def test_metrics_leave_them_out_and_tell_how_far_readers_are_behind() -> None:
    kit = _kit()
    client = kit.client()
    client.declare("q", durable=True)
    queue = kit.node.vhosts["/"].queues["q"]
    assert isinstance(queue, Queue)
    assert queue.log.kept is not None
    queue.log.kept.cursors.open_cursor("reader", 1, kit.now)
    client.feed(b"".join(publish(b"q", b"x", PERSISTENT) for _ in range(4)))
    kit.advance(1)
    (fact,) = metrics.facts(kit.node)
    assert (fact.name, fact.ready) == ("q", 4)
    ((name, lag),) = fact.cursors
    assert name == "reader"
    assert lag == int(queue.log.durable)
    totals = metrics.Totals()
    totals.add(fact)
    assert (totals.cursors, totals.cursor_lag) == (1, lag)
    client.feed(publish(b"q", b"x", PERSISTENT))
    kit.advance(1)
    rows = [row for sample in _samples(client) for row in _rows(sample) if row["queue"] == "q"]
    assert rows[-1]["cursors"] == [["reader", int(queue.log.durable)]]
