"""Metrics: RabbitMQ's names, so that its dashboards work; Prometheus' own parser reads every answer."""

from __future__ import annotations

import asyncio
import json
import platform
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from mirrormq import __version__
from mirrormq.http import answers
from mirrormq.http.routes.metrics import Metrics
from mirrormq.wire import methods
from tests.support.adminkit import FACTS, KEY, AdminKit, Api, KitProcess, serving
from tests.support.turns import watched

STOCK = (
    "rabbitmq_build_info",
    "rabbitmq_channel_consumers",
    "rabbitmq_channel_get_ack_total",
    "rabbitmq_channel_get_empty_total",
    "rabbitmq_channel_get_total",
    "rabbitmq_channel_messages_acked_total",
    "rabbitmq_channel_messages_confirmed_total",
    "rabbitmq_channel_messages_delivered_ack_total",
    "rabbitmq_channel_messages_delivered_total",
    "rabbitmq_channel_messages_published_total",
    "rabbitmq_channel_messages_redelivered_total",
    "rabbitmq_channel_messages_unconfirmed",
    "rabbitmq_channel_messages_unroutable_dropped_total",
    "rabbitmq_channel_messages_unroutable_returned_total",
    "rabbitmq_channels",
    "rabbitmq_channels_closed_total",
    "rabbitmq_channels_opened_total",
    "rabbitmq_connections",
    "rabbitmq_connections_closed_total",
    "rabbitmq_connections_opened_total",
    "rabbitmq_consumers",
    "rabbitmq_disk_space_available_bytes",
    "rabbitmq_global_consumers",
    "rabbitmq_global_messages_acknowledged_total",
    "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_delivered_consume_auto_ack_total",
    "rabbitmq_global_messages_delivered_consume_manual_ack_total",
    "rabbitmq_global_messages_delivered_get_auto_ack_total",
    "rabbitmq_global_messages_delivered_get_manual_ack_total",
    "rabbitmq_global_messages_get_empty_total",
    "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_redelivered_total",
    "rabbitmq_global_messages_routed_total",
    "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_global_messages_unroutable_returned_total",
    "rabbitmq_global_publishers",
    "rabbitmq_identity_info",
    "rabbitmq_process_max_fds",
    "rabbitmq_process_max_tcp_sockets",
    "rabbitmq_process_open_fds",
    "rabbitmq_process_open_tcp_sockets",
    "rabbitmq_process_resident_memory_bytes",
    "rabbitmq_queue_messages_published_total",
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_queues",
    "rabbitmq_queues_created_total",
    "rabbitmq_queues_declared_total",
    "rabbitmq_queues_deleted_total",
    "rabbitmq_resident_memory_limit_bytes",
)
"""What RabbitMQ's own dashboard `RabbitMQ-Overview` asks for."""

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


async def fetched(api: Api, path: str) -> str:
    headers = {"Authorization": f"MirrorMQ-Key {KEY}"}
    async with api._session.get(f"{api.url}{path}", headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.text()


async def samples(api: Api, path: str = "/metrics") -> Samples:
    """Read by Prometheus' parser; no sample twice, every family with a type and a text."""
    text = await fetched(api, path)
    assert not text or text.endswith("\n")
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type in ("gauge", "counter", "histogram"), family
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    heads = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(heads) == len(set(heads)), "a family in two parts"
    return found


def busy(kit: AdminKit) -> Any:
    client = kit.client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    client.declare("q", durable=True)
    for _ in range(3):
        client.publish("q", b"12345")
    client.publish("nowhere")
    client.take()
    client.consume("q")
    client.send(methods.BasicAck(delivery_tag=1))
    kit.run()
    return client


async def test_every_metric_of_rabbitmqs_overview_dashboard_is_there(api: Api, kit: AdminKit) -> None:
    busy(kit)
    names = {name for name, _ in await samples(api)}
    assert not set(STOCK) - names
    per_object = {name for name, _ in await samples(api, "/metrics/per-object")}
    assert not set(STOCK) - per_object


async def test_the_numbers_are_what_clients_did(api: Api, kit: AdminKit) -> None:
    client = busy(kit)
    found = await samples(api)
    wanted = {
        "rabbitmq_channel_messages_published_total": 4,
        "rabbitmq_channel_messages_confirmed_total": 4,
        "rabbitmq_channel_messages_delivered_ack_total": 3,
        "rabbitmq_channel_messages_acked_total": 1,
        "rabbitmq_channel_messages_unroutable_dropped_total": 1,
        "rabbitmq_queue_messages_published_total": 3,
        "rabbitmq_queue_messages": 2,
        "rabbitmq_queue_messages_unacked": 2,
        "rabbitmq_queue_messages_bytes": 10,
        "rabbitmq_channel_consumers": 1,
        "rabbitmq_connections_opened_total": 1,
        "rabbitmq_queues_created_total": 1,
    }
    assert {name: found[name, ()] for name in wanted} == wanted
    amqp = (("protocol", "amqp091"),)
    assert found["rabbitmq_global_messages_received_total", amqp] == 4
    assert found["rabbitmq_global_messages_routed_total", amqp] == 3
    assert found["mirrormq_journal_flush_seconds_count", ()] > 0
    assert found["mirrormq_journal_flush_seconds_bucket", (("le", "+Inf"),)] > 0
    client.close_socket()
    after = await samples(api)
    assert after["rabbitmq_channel_messages_published_total", ()] == 4, "counters do not go back"
    assert after["rabbitmq_connections_closed_total", ()] == 1


async def test_identity_and_build_have_rabbitmqs_labels(api: Api, kit: AdminKit) -> None:
    found = await samples(api)
    labels = {name: dict(pairs) for name, pairs in found}
    assert labels["rabbitmq_identity_info"]["rabbitmq_node"] == kit.node.node_name
    assert set(labels["rabbitmq_identity_info"]) == {
        "rabbitmq_node",
        "rabbitmq_cluster",
        "rabbitmq_cluster_permanent_id",
    }
    assert labels["rabbitmq_build_info"] == {
        "rabbitmq_version": "3.10.8",
        "prometheus_plugin_version": "3.10.8",
        "prometheus_client_version": __version__,
        "erlang_version": f"Python {platform.python_version()}",
        "mirrormq_version": __version__,
    }


async def test_per_object_has_each_queue_channel_connection_and_exchange(api: Api, kit: AdminKit) -> None:
    busy(kit)
    found = await samples(api, "/metrics/per-object")
    queue = (("queue", "q"), ("vhost", "/"))
    assert found["rabbitmq_queue_messages_unacked", queue] == 2
    assert found["rabbitmq_queue_messages_acked_total", queue] == 1
    channel = (("channel", "<mirrormq@test.1.1.1>"), ("vhost", "/"))
    assert found["rabbitmq_channel_messages_published_total", channel] == 4
    connection = (("connection", "<mirrormq@test.1.1.0>"), ("vhost", "/"))
    assert found["rabbitmq_connection_incoming_bytes_total", connection] > 0
    assert found["mirrormq_exchange_messages_published_total", (("exchange", ""), ("vhost", "/"))] == 4
    assert ("rabbitmq_queue_messages_ready", ()) not in found


async def test_detailed_has_the_families_and_vhosts_that_are_asked_for(api: Api, kit: AdminKit) -> None:
    busy(kit)
    await api.put("vhosts/other")
    found = await samples(api, "/metrics/detailed?family=queue_coarse_metrics&family=vhost_status")
    assert {name for name, _ in found} == {
        "rabbitmq_detailed_queue_messages_ready",
        "rabbitmq_detailed_queue_messages_unacked",
        "rabbitmq_detailed_queue_messages",
        "rabbitmq_cluster_vhost_status",
    }
    path = "/metrics/detailed?family=queue_consumer_count&family=exchange_names&vhost=other"
    found = await samples(api, path)
    assert found
    assert all(dict(labels)["vhost"] == "other" for _, labels in found)
    assert not await samples(api, "/metrics/detailed")


async def test_an_unknown_family_is_refused_by_name(api: Api) -> None:
    headers = {"Authorization": f"MirrorMQ-Key {KEY}"}
    async with api._session.get(f"{api.url}/metrics/detailed?family=fish", headers=headers) as response:
        assert response.status == 400
        assert "fish" in (await response.json())["reason"]


@pytest.mark.slow
async def test_ten_thousand_queues_are_written_in_slices(kit: AdminKit) -> None:
    client = kit.client()
    for number in range(10_000):
        client.send(methods.QueueDeclare(queue=f"q{number}", nowait=True))
    kit.run()
    answers.WHOLE.set(True)  # there is nobody to send a part to
    with watched() as turns:
        answer = await Metrics(KitProcess(kit), lambda: FACTS).of_objects(None)  # type: ignore[arg-type]
    assert isinstance(answer, web.Response)
    assert isinstance(answer.body, bytes)
    assert answer.body.count(b'queue="q9999"') == 16
    # The bound of a slice is 2 ms; on a machine that does other things a cache miss costs more.
    assert turns.longest < 0.01


def test_the_grafana_dashboard_asks_only_for_metrics_that_exist(kit: AdminKit) -> None:
    folder = Path(__file__).parents[3] / "packaging" / "grafana"
    boards = sorted(folder.glob("*.json"))
    assert boards
    existing = asyncio.run(_names(kit))
    for board in boards:
        queries = list(_queries(json.loads(board.read_text())))
        assert len(queries) > 10, board
        for query in queries:
            bare = re.sub(r"\{[^}]*\}|\b(?:by|on|without|group_left) ?\([^)]*\)", "", query)
            names = set(re.findall(r"\b(?:rabbitmq|mirrormq)_\w+", bare))
            assert names, query
            assert not names - existing, (board.name, query)


async def _names(kit: AdminKit) -> set[str]:
    async with serving(kit) as api:
        busy(kit)
        (log, *_) = kit.node.logs.values()
        log.cursors.open_cursor("reader", None, kit.now)
        whole, objects = await samples(api), await samples(api, "/metrics/per-object")
    return {name for name, _ in (*whole, *objects)}


def _queries(value: Any) -> Any:
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "expr":
                yield item
            else:
                yield from _queries(item)
    elif isinstance(value, list):
        for item in value:
            yield from _queries(item)


async def test_every_metric_stands_in_the_table_of_the_documentation(api: Api, kit: AdminKit) -> None:
    busy(kit)
    text = await fetched(api, "/metrics") + await fetched(api, "/metrics/per-object")
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(\w+)` \| (gauge|counter|histogram) \|", page, re.MULTILINE))
    exposed = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert exposed.items() <= documented.items(), exposed.items() - documented.items()
    assert not set(documented) - set(exposed)
