"""The admin API of a real process: beside AMQP in one loop, and off without a trace if not wanted."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pika
import pytest

from mirrormq.client.admin import AdminClient, Refused, Unreachable
from mirrormq.testing import Broker, running


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running(admin=True) as found:
        yield found


@pytest.fixture
def api(broker: Broker) -> Iterator[AdminClient]:
    assert broker.admin_url is not None
    with AdminClient(broker.admin_url, user="guest", password="guest") as client:
        yield client


def test_what_clients_do_over_amqp_is_seen_over_http(broker: Broker, api: AdminClient) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.queue_declare("seen", arguments={"x-max-length": 5})
    channel.queue_bind("seen", "amq.topic", "a.b", {"k": 1})
    for _ in range(3):
        channel.basic_publish("", "seen", b"12345")
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("seen", lambda *_: None, consumer_tag="me")
    connection.process_data_events(0.1)
    queue = api.get("queues", "/", "seen")
    assert (queue["messages"], queue["messages_unacknowledged"], queue["consumers"]) == (3, 1, 1)
    assert queue["arguments"] == {"x-max-length": 5}
    assert queue["consumer_details"][0]["consumer_tag"] == "me"
    assert [row["source"] for row in api.get("queues", "/", "seen", "bindings")] == ["", "amq.topic"]
    (row,) = api.get("connections")
    assert (row["user"], row["state"], row["client_properties"]["product"]) == (
        "guest",
        "running",
        "Pika Python Client Library",
    )
    api.request("DELETE", "connections", row["name"])
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
        connection.process_data_events(5)


def test_what_is_declared_over_http_works_over_amqp(broker: Broker, api: AdminClient) -> None:
    api.request("PUT", "vhosts", "made")
    api.request("PUT", "queues", "made", "q", body={"durable": True})
    api.request("POST", "bindings", "made", "e", "amq.fanout", "q", "q", body={})
    connection = pika.BlockingConnection(pika.URLParameters(broker.url.replace("%2F", "made")))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.fanout", "", b"x", mandatory=True)
    assert channel.basic_get("q", auto_ack=True)[2] == b"x"
    connection.close()
    api.request("DELETE", "vhosts", "made")


def test_a_connection_serves_many_requests_and_survives_mistakes(broker: Broker) -> None:
    assert broker.admin_url is not None
    connection = http.client.HTTPConnection(broker.admin_url.removeprefix("http://"), timeout=10)
    sockets = set()
    headers = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
    answers: list[tuple[int, Any]] = []
    for verb, path in (
        ("GET", "/api/nope"),
        ("PUT", "/api/whoami"),
        ("GET", "/nope"),
        ("GET", "/api/whoami"),
    ):
        connection.request(verb, path, headers=headers)
        response = connection.getresponse()
        data = response.read()
        sockets.add(connection.sock)
        answers.append((response.status, json.loads(data) if data else None))
    connection.close()
    assert len(sockets) == 1
    assert [status for status, _ in answers] == [404, 405, 404, 200]
    assert answers[-1][1] == {"name": "guest", "tags": ["administrator"]}


def test_health_and_aliveness_answer_load_balancers(api: AdminClient, broker: Broker) -> None:
    assert api.get("aliveness-test", "/") == {"status": "ok"}
    assert api.get("health", "checks", "local-alarms") == {"status": "ok"}
    assert api.get("health", "checks", "port-listener", str(broker.port))["status"] == "ok"


def test_the_client_tells_refusals_from_silence(api: AdminClient) -> None:
    with pytest.raises(Refused) as caught:
        api.get("queues", "/", "nope")
    assert (caught.value.status, caught.value.reason) == (404, "Not Found")
    with pytest.raises(Unreachable):
        AdminClient("http://127.0.0.1:1", timeout=5).get("whoami")
    with pytest.raises(ValueError, match="no address"):
        AdminClient("ftp://x")


def test_names_of_every_kind_survive_the_way_through_paths(api: AdminClient) -> None:
    for name in ("a/b", "ä ö", "100%", "a?b#c", "a;b&c=d", "+", ".", "~"):
        api.request("PUT", "queues", "/", name, body={})
        assert api.get("queues", "/", name)["name"] == name
        api.request("DELETE", "queues", "/", name)
        with pytest.raises(Refused, match="404"):
            api.get("queues", "/", name)
    assert quote("a/b", safe="") == "a%2Fb"


def test_a_node_without_admin_api_imports_nothing_of_it() -> None:
    code = (
        "import sys, mirrormq.runtime.main, mirrormq.runtime.server, mirrormq.http\n"
        "loaded = [name for name in ('aiohttp', 'typer', 'rich', 'click', 'argon2') if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
