"""Messages by hand: what is published reaches queues as over AMQP, what is got is given back, taken or
rejected.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mirrormq.base import limits
from mirrormq.node import requests as ask
from tests.support.adminkit import AdminKit, Api, serving
from tests.unit.http.test_api import add_user

PUBLISH = "exchanges/%2F/amq.default/publish"


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    kit.client().declare("q", durable=True)
    async with serving(kit) as found:
        yield found


def message(
    key: str = "q", payload: str = "hi", encoding: str = "string", **properties: Any
) -> dict[str, Any]:
    return {
        "routing_key": key,
        "payload": payload,
        "payload_encoding": encoding,
        "properties": properties,
    }


async def got(
    api: Api, count: int = 5, ackmode: str = "ack_requeue_true", **more: Any
) -> list[dict[str, Any]]:
    body = {"count": count, "ackmode": ackmode, "encoding": "auto", **more}
    status, found = await api.call("POST", "queues/%2F/q/get", body)
    assert status == 200, found
    return list(found)


async def test_what_is_published_is_routed_or_not(api: Api) -> None:
    assert await api.call("POST", PUBLISH, message()) == (200, {"routed": True})
    assert await api.call("POST", PUBLISH, message("none")) == (200, {"routed": False})


async def test_a_message_is_shown_as_it_was_published(api: Api) -> None:
    await api.call("POST", PUBLISH, message(delivery_mode=2, headers={"a": 1}, message_id="m", priority=3))
    data = base64.b64encode(b"\xff\x00").decode()
    await api.call("POST", PUBLISH, message(payload=data, encoding="base64"))
    first, second = await got(api)
    assert first == {
        "payload_bytes": 2,
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "message_count": 1,
        "properties": {"delivery_mode": 2, "headers": {"a": 1}, "message_id": "m", "priority": 3},
        "payload": "hi",
        "payload_encoding": "string",
    }
    assert (second["payload"], second["payload_encoding"], second["properties"]) == (data, "base64", {})


@pytest.mark.parametrize("encoding", ["string", "base64"])
async def test_a_large_message_arrives_as_it_was_published(api: Api, kit: AdminKit, encoding: str) -> None:
    text = 'Größe "1" \\ 😀\n' * 60_000
    payload = text if encoding == "string" else base64.b64encode(text.encode()).decode()
    answer = await api.call("POST", PUBLISH, message(payload=payload, encoding=encoding))
    assert answer == (200, {"routed": True})
    (row,) = await got(api, 1, "ack_requeue_false")
    assert (row["payload"], row["payload_bytes"]) == (text, len(text.encode()))


async def test_many_messages_are_got_by_one_request_in_their_order(api: Api, kit: AdminKit) -> None:
    client = kit.client()
    for number in range(1_200):
        client.publish("q", b"%d" % number)
    rows = await got(api, 5_000)
    assert [row["payload"] for row in rows] == [str(number) for number in range(1_200)]
    assert len(await got(api, 5_000)) == 1_200


async def test_a_body_may_be_large_only_where_that_is_of_use(api: Api) -> None:
    large = "x" * (limits.http_json_bytes_max + 1)
    for verb, path, body in (
        ("PUT", "queues/%2F/further", {"durable": True, "arguments": {"x": large}}),
        ("PUT", "users/u", {"password": large, "tags": ""}),
        ("POST", "queues/%2F/q/get", {"count": 1, "ackmode": large}),
        ("POST", "ctl/list_queues", {"names": [large]}),
    ):
        status, found = await api.call(verb, path, body)
        assert (status, found["error"]) == (413, "payload_too_large"), path
    status, _ = await api.call("POST", "definitions", {"x": large, "queues": []})
    assert status == 204
    status, found = await api.call("POST", PUBLISH, message(key=large))
    assert (status, found["error"]) == (400, "bad_request")


async def test_what_is_given_back_is_there_again_and_marked(api: Api) -> None:
    await api.call("POST", PUBLISH, message())
    for mode in ("ack_requeue_true", "reject_requeue_true"):
        assert len(await got(api, ackmode=mode)) == 1
    (again,) = await got(api)
    assert again["redelivered"] is True
    assert len(await got(api, ackmode="ack_requeue_false")) == 1
    assert await got(api) == []


async def test_what_is_rejected_becomes_a_dead_letter(api: Api, kit: AdminKit) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    kit.client().declare("dying", arguments=arguments)
    await api.call("POST", PUBLISH, message("dying"))
    body = {"count": 1, "ackmode": "reject_requeue_false", "encoding": "auto"}
    await api.call("POST", "queues/%2F/dying/get", body)
    (letter,) = await got(api)
    assert letter["properties"]["headers"]["x-death"][0]["reason"] == "rejected"


async def test_payloads_are_cut_and_encoded_as_asked(api: Api) -> None:
    await api.call("POST", PUBLISH, message(payload="äöü"))
    (cut,) = await got(api, truncate=3)
    assert (cut["payload"], cut["payload_bytes"], cut["payload_encoding"]) == ("ä", 6, "string")
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "base64"}
    _, (shown,) = await api.call("POST", "queues/%2F/q/get", body)
    assert base64.b64decode(shown["payload"]).decode() == "äöü"


async def test_the_tail_is_looked_at_without_a_trace(api: Api) -> None:
    for number in range(3):
        await api.call("POST", PUBLISH, message(payload=str(number)))
    rows = await got(api, count=2, **{"from": "tail"})
    assert [row["payload"] for row in rows] == ["1", "2"]
    assert [row["redelivered"] for row in await got(api)] == [False, False, False]
    body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto", "from": "tail"}
    status, found = await api.call("POST", "queues/%2F/q/get", body)
    assert (status, "only looks" in found["reason"]) == (400, True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"payload_encoding": None}, "[{key_missing,payload_encoding}]"),
        ({"payload_encoding": "hex"}, ["unsupported_encoding", "hex"]),
        ({"payload_encoding": "base64", "payload": "%%"}, ["not_base64", "%%"]),
        ({"payload": 1}, "payload must be a text"),
        ({"routing_key": 1}, "routing_key must be a text"),
        ({"properties": 1}, "properties must be an object"),
        ({"properties": {"nonsense": 1}}, "unknown property nonsense"),
        ({"properties": {"delivery_mode": "x"}}, ["not_int", "delivery_mode"]),
        ({"properties": {"priority": 256}}, "property priority is out of range"),
        ({"properties": {"type": 1}}, "property type must be a text"),
        ({"properties": {"type": "x" * 300}}, None),
        ({"routing_key": "x" * 300}, None),
    ],
)
async def test_a_bad_message_is_refused_with_a_reason(api: Api, change: dict[str, Any], reason: Any) -> None:
    body = {name: value for name, value in {**message(), **change}.items() if value is not None}
    status, found = await api.call("POST", PUBLISH, body)
    assert (status, found["error"]) == (400, "bad_request")
    assert reason is None or found["reason"] == reason


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"count": 1, "encoding": "auto"},
        {"count": "a", "ackmode": "ack_requeue_true", "encoding": "auto"},
        {"count": -1, "ackmode": "ack_requeue_true", "encoding": "auto"},
        {"count": 1, "ackmode": "nonsense", "encoding": "auto"},
        {"count": 1, "ackmode": "ack_requeue_true", "encoding": "nonsense"},
        {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": "x"},
        {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto", "from": "middle"},
    ],
)
async def test_a_bad_get_is_refused(api: Api, body: dict[str, Any]) -> None:
    status, found = await api.call("POST", "queues/%2F/q/get", body)
    assert (status, found["error"]) == (400, "bad_request")


async def test_unknown_exchanges_and_queues_are_named(api: Api) -> None:
    status, found = await api.call("POST", "exchanges/%2F/none/publish", message())
    assert (status, found["reason"]) == (400, "404 NOT_FOUND - no exchange 'none' in vhost '/'")
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    status, found = await api.call("POST", "queues/%2F/none/get", body)
    assert (status, found["reason"]) == (404, "NOT_FOUND - no queue 'none' in vhost '/'")


async def test_permissions_count_as_over_amqp(api: Api, kit: AdminKit) -> None:
    add_user(kit, "reader", "management")
    kit.ask(ask.SetPermissions(vhost="/", user="reader", configure="", write="", read=".*"))
    status, found = await api.call("POST", PUBLISH, message(), user="reader")
    assert (status, found) == (401, {"error": "not_authorised", "reason": "Access refused."})
    kit.ask(ask.SetPermissions(vhost="/", user="reader", configure="", write=".*", read=""))
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for more in ({}, {"from": "tail"}):
        status, _ = await api.call("POST", "queues/%2F/q/get", {**body, **more}, user="reader")
        assert status == 401
    assert (await api.call("POST", PUBLISH, message(), user="reader"))[0] == 200


async def test_no_connection_is_left_behind(api: Api, kit: AdminKit) -> None:
    before = len(kit.node.connections)
    calls = [api.call("POST", PUBLISH, message(payload=str(number))) for number in range(20)]
    assert all(answer == (200, {"routed": True}) for answer in await asyncio.gather(*calls))
    await api.call("POST", "exchanges/%2F/amq.topic/publish", message("x" * 300))
    rows = await got(api, count=100)
    assert sorted(int(row["payload"]) for row in rows) == list(range(20))
    assert len(kit.node.connections) == before


async def test_the_nodes_key_publishes_nothing(api: Api) -> None:
    from tests.support.adminkit import KEY

    headers = {"Authorization": f"MirrorMQ-Key {KEY}"}
    status, found = await api.call("POST", PUBLISH, message(), user=None, headers=headers)
    assert (status, "by a user" in found["reason"]) == (400, True)
