"""A real process as monitoring sees it: events over AMQP, metrics without a log-in, rates that move."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mirrormq.client.admin import AdminClient
from mirrormq.testing import Broker, running
from tests.integration import process
from tests.interop.brokers import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running(admin=True) as found:
        yield found


@pytest.fixture
def api(broker: Broker) -> Iterator[AdminClient]:
    assert broker.admin_url is not None
    with AdminClient(broker.admin_url, user="guest", password="guest") as client:
        yield client


class Listener:
    """A client that hears every event."""

    def __init__(self, url: str) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._queue = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.queue_bind(self._queue, "amq.rabbitmq.event", "#")
        self._seen: list[tuple[str, dict[str, Any]]] = []

    def until(self, key: str, **wanted: Any) -> dict[str, Any]:
        """The first event with this key and these headers, however many come before it."""
        for seen, headers in self._seen:
            if seen == key and wanted.items() <= headers.items():
                return headers
        for method, properties, _ in self._channel.consume(self._queue, auto_ack=True, inactivity_timeout=10):
            assert method is not None, f"no {key} {wanted} among {[name for name, _ in self._seen]}"
            headers = dict(properties.headers or {})
            self._seen.append((method.routing_key, headers))
            if method.routing_key == key and wanted.items() <= headers.items():
                return headers
        raise AssertionError(key)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def listener(broker: Broker) -> Iterator[Listener]:
    found = Listener(broker.url)
    yield found
    found.close()


def test_what_clients_do_is_told_under_rabbitmqs_names(broker: Broker, listener: Listener) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    success = listener.until("user.authentication.success", name="guest")
    assert (success["auth_mechanism"], success["ssl"], success["protocol"]) == ("PLAIN", False, "AMQP 0-9-1")
    opened = listener.until("connection.created", user="guest", vhost="/")
    assert opened["peer_host"] == "127.0.0.1"
    name = opened["name"]
    channel = connection.channel()
    assert listener.until("channel.created", connection_name=name)["number"] == 1
    channel.queue_declare("told", auto_delete=False)
    assert listener.until("queue.created", name="told")["exclusive"] is False
    channel.exchange_declare("told-x", "topic")
    listener.until("exchange.created", name="told-x", type="topic")
    channel.queue_bind("told", "told-x", "k")
    listener.until("binding.created", source_name="told-x", destination_name="told", routing_key="k")
    channel.basic_consume("told", lambda *_: None, consumer_tag="me")
    created = listener.until("consumer.created", consumer_tag="me")
    assert (created["queue"], created["ack_required"]) == ("told", True)
    channel.basic_cancel("me")
    listener.until("consumer.deleted", consumer_tag="me")
    channel.queue_unbind("told", "told-x", "k")
    listener.until("binding.deleted", source_name="told-x")
    channel.queue_delete("told")
    listener.until("queue.deleted", name="told")
    channel.exchange_delete("told-x")
    listener.until("exchange.deleted", name="told-x")
    channel.close()
    listener.until("channel.closed", connection_name=name)
    connection.close()
    closed = listener.until("connection.closed", name=name)
    assert closed["node"] == opened["node"]
    assert closed["timestamp_in_ms"] >= opened["timestamp_in_ms"]


def test_what_administrators_do_is_told_under_rabbitmqs_names(api: AdminClient, listener: Listener) -> None:
    api.request("PUT", "vhosts", "told-v")
    listener.until("vhost.created", name="told-v")
    api.request("PUT", "users", "told-u", body={"password": "first", "tags": ""})
    listener.until("user.created", name="told-u")
    api.request("PUT", "users", "told-u", body={"password": "second", "tags": "monitoring"})
    changed = listener.until("user.password.changed", name="told-u")
    assert not {"password", "password_hash"} & set(changed)
    listener.until("user.tags.set", name="told-u", tags=["monitoring"])
    rights = {"configure": "", "write": "", "read": ".*"}
    api.request("PUT", "permissions", "told-v", "told-u", body=rights)
    listener.until("permission.created", user="told-u", vhost="told-v", read=".*")
    topic = {"exchange": "amq.topic", "write": "a", "read": "b"}
    api.request("PUT", "topic-permissions", "told-v", "told-u", body=topic)
    listener.until("topic.permission.created", user="told-u", exchange="amq.topic")
    api.request("PUT", "policies", "told-v", "p", body={"pattern": "x", "definition": {"max-length": 5}})
    listener.until("policy.set", name="p", vhost="told-v")
    api.request("DELETE", "policies", "told-v", "p")
    listener.until("policy.cleared", name="p")
    api.request("DELETE", "permissions", "told-v", "told-u")
    listener.until("permission.deleted", user="told-u")
    api.request("DELETE", "users", "told-u")
    listener.until("user.deleted", name="told-u")
    api.request("DELETE", "vhosts", "told-v")
    listener.until("vhost.deleted", name="told-v")


def test_a_refused_log_in_is_told_and_counted(broker: Broker, listener: Listener) -> None:
    with pytest.raises(pika.exceptions.AMQPError):
        pika.BlockingConnection(pika.URLParameters(broker.url.replace("guest:guest", "guest:wrong")))
    failure = listener.until("user.authentication.failure", name="guest")
    assert "error" in failure
    assert "wrong" not in str(failure)


def test_rates_move_while_messages_do(broker: Broker, api: AdminClient) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("moving")
    until = time.monotonic() + 30
    rate = 0.0
    while not rate and time.monotonic() < until:
        for _ in range(50):
            channel.basic_publish("", "moving", b"x")
        connection.process_data_events(0.2)
        found = api.request("GET", "queues", "/", "moving")
        rate = found["message_stats"]["publish_details"]["rate"]
    assert rate > 0
    assert api.request("GET", "overview")["message_stats"]["publish_details"]["rate"] > 0
    channel.queue_delete("moving")
    connection.close()


def test_prometheus_has_a_port_of_its_own_without_a_log_in(tmp_path: Path) -> None:
    port = free_port()
    with process.running(tmp_path, "--set", f"prometheus.tcp.port={port}") as node:
        node.connect()
        for path in ("metrics", "metrics/per-object", "metrics/detailed?family=connection_coarse_metrics"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
            assert families, path
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/overview", timeout=10)
