"""Promises about rates: the same fields with the same meaning in the management API of both brokers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.interop.conftest import Clients
from tests.interop.waiting import pump

pytestmark = pytest.mark.slow

QUERY = "?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5&data_rates_age=60&data_rates_incr=5"
FULL = {"rate", "samples", "avg", "avg_rate"}
QUEUE = ("publish", "deliver", "deliver_no_ack", "deliver_get", "get", "get_no_ack", "redeliver", "ack")
CHANNEL = (*QUEUE, "confirm", "return_unroutable", "drop_unroutable")
LENGTHS = ("messages_details", "messages_ready_details", "messages_unacknowledged_details")
STATISTICS_S = 40.0
"""Both brokers look at counters every five seconds, RabbitMQ with some more behind it."""


def checked(details: dict[str, Any]) -> dict[str, Any]:
    """The form of one counter's past."""
    assert set(details) == FULL
    assert len(details["samples"]) == 13
    stamps = [sample["timestamp"] for sample in details["samples"]]
    assert stamps == sorted(stamps, reverse=True)
    assert all(stamp % 5_000 == 0 for stamp in stamps)
    return details


def test_rates_have_rabbitmqs_fields_and_numbers(broker: Broker, clients: Clients) -> None:
    channel = clients.channel()
    channel.queue_declare("rated")
    for _ in range(20):
        channel.basic_publish("", "rated", b"12345")
    channel.basic_publish("", "nowhere", b"x")
    for _ in range(2):
        channel.basic_get("rated", auto_ack=True)
    tag = channel.basic_get("rated")[0].delivery_tag
    channel.basic_ack(tag)
    channel.basic_get("rated")
    admin = broker.admin

    def seen() -> Any:
        row = admin.request("GET", "queues", broker.vhost, "rated", query=QUERY)
        samples = row.get("message_stats", {}).get("ack_details", {}).get("samples", [])
        depths = row.get("messages_unacknowledged_details", {}).get("samples", [])
        is_there = samples and depths and samples[0]["sample"] == 1 and depths[0]["sample"] == 1
        return row if is_there else None

    queue = pump(channel.connection, seen, "the queue's statistics", STATISTICS_S)
    stats = queue["message_stats"]
    for name in QUEUE:
        checked(stats[f"{name}_details"])
    assert {name: stats[name] for name in QUEUE} == {
        "publish": 20,
        "deliver": 0,
        "deliver_no_ack": 0,
        "deliver_get": 4,
        "get": 2,
        "get_no_ack": 2,
        "redeliver": 0,
        "ack": 1,
    }
    for name in LENGTHS:
        checked(queue[name])
    details = stats["publish_details"]
    assert details["avg_rate"] == pytest.approx(20 / 60)
    assert details["avg"] == pytest.approx(sum(one["sample"] for one in details["samples"]) / 13)

    exchange = admin.request("GET", "exchanges", broker.vhost, "amq.default", query=QUERY)
    # RabbitMQ's default exchange also counts as put into a queue what no queue took.
    routed = 21 if broker.is_rabbitmq else 20
    assert exchange["message_stats"]["publish_in"] == 21
    assert exchange["message_stats"]["publish_out"] == routed
    checked(exchange["message_stats"]["publish_in_details"])
    vhost = admin.request("GET", "vhosts", broker.vhost, query=QUERY)
    for name in CHANNEL:
        checked(vhost["message_stats"][f"{name}_details"])
    assert (vhost["message_stats"]["confirm"], vhost["message_stats"]["drop_unroutable"]) == (21, 1)
    own = [row for row in admin.request("GET", "channels", query=QUERY) if row["vhost"] == broker.vhost]
    assert [row["message_stats"]["publish"] for row in own] == [21]
    overview = admin.request("GET", "overview", query=QUERY)
    for name in CHANNEL:
        checked(overview["message_stats"][f"{name}_details"])
    checked(overview["queue_totals"]["messages_details"])
