"""Reports: RabbitMQ's names, real numbers, one row at a time."""

from __future__ import annotations

from types import GeneratorType
from typing import Any

import pytest

from mirrormq.node import report
from mirrormq.node import requests as ask
from mirrormq.wire import methods
from tests.support.adminkit import AdminKit


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


def queue_row(kit: AdminKit, name: str) -> dict[str, Any]:
    return report.queue(kit.node, kit.node.state.queues["/", name])


def test_a_queues_row_counts_ready_and_unacknowledged_messages(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    for _ in range(3):
        client.publish("q", b"12345")
    client.send(methods.BasicQos(prefetch_count=1))
    client.take()
    client.consume("q")
    row = queue_row(kit, "q")
    assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (3, 2, 1)
    assert (row["message_bytes"], row["message_bytes_ready"], row["message_bytes_unacknowledged"]) == (
        15,
        10,
        5,
    )
    assert row["consumers"] == 1
    assert row["state"] == "running"
    assert row["message_stats"]["publish"] == 3
    assert row["message_stats"]["deliver_get"] == 1


def test_a_queues_row_shows_its_owner_and_its_policies(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q", exclusive=True)
    kit.ask(ask.SetPolicy(vhost="/", name="p", pattern="q", definition={"max-length": 9}))
    kit.ask(ask.SetPolicy(vhost="/", name="o", pattern="q", definition={"max-length": 5}, operator=True))
    row = queue_row(kit, "q")
    assert row["owner_pid"] == report.connection_pid(kit.node.node_name, client.conn)
    assert (row["policy"], row["operator_policy"]) == ("p", "o")
    assert row["effective_policy_definition"] == {"max-length": 5}


def test_a_single_active_consumer_is_named_and_the_others_wait(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q", arguments={"x-single-active-consumer": True})
    client.consume("q", "first")
    client.consume("q", "second")
    assert queue_row(kit, "q")["single_active_consumer_tag"] == "first"
    rows = {row["consumer_tag"]: row["activity_status"] for row in report.consumers(kit.node)}
    assert rows == {"first": "up", "second": "waiting"}


def test_every_queue_is_bound_to_the_default_exchange_by_its_name(kit: AdminKit) -> None:
    kit.ask(ask.DeclareQueue(vhost="/", name="q"))
    kit.ask(
        ask.Bind(vhost="/", source="amq.topic", destination="q", destination_type="queue", routing_key="k")
    )
    rows = list(report.bindings(report.bindings_of(kit.node, "/")))
    assert [(row["source"], row["routing_key"], row["properties_key"]) for row in rows] == [
        ("", "q", "q"),
        ("amq.topic", "k", "k"),
    ]


def test_rows_of_clients_show_who_they_are(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    client.send(methods.ConfirmSelect())
    client.take()
    client.consume("q", "tag")
    (connection,) = report.connections(kit.node)
    assert (connection["user"], connection["vhost"], connection["channels"]) == ("guest", "/", 1)
    assert (connection["peer_host"], connection["protocol"]) == ("127.0.0.1", "AMQP 0-9-1")
    (channel,) = report.channels(kit.node)
    assert channel["name"] == f"{connection['name']} (1)"
    assert (channel["confirm"], channel["transactional"], channel["consumer_count"]) == (True, False, 1)
    (consumer,) = report.consumers(kit.node, "/")
    assert consumer["channel_details"]["connection_name"] == connection["name"]
    assert list(report.consumers(kit.node, "other")) == []


def test_totals_count_every_kind_of_object(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    client.consume("q")
    totals = report.totals(kit.node)
    assert (totals["connections"], totals["channels"], totals["consumers"], totals["queues"]) == (1, 1, 1, 1)


def test_lists_are_built_row_by_row_and_outlive_changes_meanwhile(kit: AdminKit) -> None:
    for name in ("a", "b", "c"):
        kit.ask(ask.DeclareQueue(vhost="/", name=name))
    rows = report.queues(kit.node, kit.node.state.queues_in("/"))
    assert isinstance(rows, GeneratorType)
    assert next(rows)["name"] == "a"
    kit.ask(ask.DeleteQueue(vhost="/", name="b"))
    kit.ask(ask.DeclareQueue(vhost="/", name="d"))
    rest = list(rows)
    assert [row["name"] for row in rest] == ["b", "c"]
    assert [row["state"] for row in rest] == ["down", "running"]


def test_users_are_shown_with_hashes_that_rabbitmq_would_import(kit: AdminKit) -> None:
    kit.ask(ask.AddUser(name="u", password="secret"))
    row = report.user(kit.node.state.users["u"])
    kit.ask(
        ask.AddUser(
            name="copy", password_hash=row["password_hash"], hashing_algorithm=row["hashing_algorithm"]
        )
    )
    kit.ask(ask.AuthenticateUser(name="copy", password="secret"))
