"""Who may do what: every resource that changes something, with every tag, as RabbitMQ allows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mirrormq.http.describe import description_of
from mirrormq.http.ports import WebSettings
from mirrormq.http.server import Api as Server
from mirrormq.node import requests as ask
from tests.support.adminkit import FACTS, KEY, AdminKit, Api, KitProcess, serving
from tests.unit.http.test_api import add_user

TAGS = ("management", "policymaker", "monitoring", "administrator")
POLICY = {"pattern": "^x", "definition": {"max-length": 1}}
RIGHTS = {"configure": "", "write": "", "read": ""}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
MESSAGE = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
NODE = "mirrormq@test"

CHANGES: list[tuple[str, str, Any, tuple[int, int, int, int]]] = [
    # verb, path, body, status for management, policymaker, monitoring, administrator (all may use vhost /)
    ("PUT", "cluster-name", {"name": "c"}, (401, 401, 401, 204)),
    ("PUT", "vhosts/new", {}, (401, 401, 401, 201)),
    ("DELETE", "vhosts/new", None, (401, 401, 401, 204)),
    ("POST", f"vhosts/%2F/start/{NODE}", {}, (401, 401, 401, 204)),
    ("PUT", "users/new", {"tags": "", "password": "p"}, (401, 401, 401, 201)),
    ("PUT", "permissions/%2F/new", RIGHTS, (401, 401, 401, 201)),
    ("DELETE", "permissions/%2F/new", None, (401, 401, 401, 204)),
    ("PUT", "topic-permissions/%2F/new", {"exchange": "e", "write": "", "read": ""}, (401, 401, 401, 201)),
    ("DELETE", "topic-permissions/%2F/new", None, (401, 401, 401, 204)),
    ("PUT", "user-limits/new/max-connections", {"value": 5}, (401, 401, 401, 204)),
    ("DELETE", "user-limits/new/max-connections", None, (401, 401, 401, 204)),
    ("POST", "users/bulk-delete", {"users": ["new"]}, (401, 401, 401, 204)),
    ("PUT", "vhost-limits/%2F/max-queues", {"value": 50}, (401, 401, 401, 204)),
    ("DELETE", "vhost-limits/%2F/max-queues", None, (401, 401, 401, 204)),
    ("PUT", "policies/%2F/p", POLICY, (401, 201, 401, 204)),
    ("DELETE", "policies/%2F/p", None, (401, 204, 401, 404)),
    ("PUT", "operator-policies/%2F/p", POLICY, (401, 401, 401, 201)),
    ("DELETE", "operator-policies/%2F/p", None, (401, 401, 401, 204)),
    ("PUT", "global-parameters/g", {"value": 1}, (401, 201, 401, 204)),
    ("DELETE", "global-parameters/g", None, (401, 204, 401, 404)),
    ("POST", "definitions", {}, (401, 401, 401, 204)),
    ("POST", "definitions/%2F", {}, (401, 401, 401, 204)),
    ("POST", "queues/%2F/q/actions", {"action": "sync"}, (401, 401, 401, 204)),
    ("POST", "mirrormq/queues/%2F/q/move", {"node": NODE}, (401, 401, 401, 200)),
    ("POST", "mirrormq/queues/%2F/q/promote", {}, (401, 401, 401, 400)),
    ("DELETE", "mirrormq/cursors/%2F/q/c", None, (401, 401, 401, 404)),
    ("DELETE", f"auth/attempts/{NODE}", None, (401, 401, 204, 204)),
    ("DELETE", "reset", None, (401, 401, 401, 204)),
    ("PUT", "feature-flags/quorum_queue/enable", {}, (401, 401, 401, 204)),
    ("PUT", "queues/%2F/made", {}, (201, 204, 204, 204)),
    ("PUT", "exchanges/%2F/made", {"type": "topic"}, (201, 204, 204, 204)),
    ("POST", "bindings/%2F/e/made/q/made", {"routing_key": "k"}, (201, 201, 201, 201)),
    ("POST", "exchanges/%2F/amq.default/publish", MESSAGE, (200, 200, 200, 200)),
    ("POST", "queues/%2F/q/get", GET, (200, 200, 200, 200)),
    ("DELETE", "queues/%2F/q/contents", None, (204, 204, 204, 204)),
    ("POST", "ctl/add_vhost", {"name": "x"}, (401, 401, 401, 200)),
]

LOOKS: list[tuple[str, tuple[int, int, int, int]]] = [
    ("mirrormq/cluster", (401, 401, 200, 200)),
    ("mirrormq/timeline", (401, 401, 404, 404)),
    ("mirrormq/events", (401, 401, 404, 404)),
    ("mirrormq/pipelines", (401, 401, 200, 200)),
    ("mirrormq/queues/%2F/q/view", (200, 200, 200, 200)),
    ("mirrormq/cursors", (200, 200, 200, 200)),
    ("mirrormq/sync", (200, 200, 200, 200)),
    (f"auth/attempts/{NODE}", (401, 401, 200, 200)),
    (f"nodes/{NODE}/memory", (401, 401, 200, 200)),
    (f"nodes/{NODE}/memory/relative", (401, 401, 200, 200)),
    ("connections/username/guest", (200, 200, 200, 200)),
    ("all-configuration", (401, 401, 401, 200)),
    ("health/checks/certificate-expiration/1/days", (200, 200, 200, 200)),
    (f"healthchecks/node/{NODE}", (200, 200, 200, 200)),
]


@pytest.fixture
def kit() -> AdminKit:
    made = AdminKit()
    made.client().declare("q", durable=True)
    for tag in (*TAGS, ""):
        add_user(made, tag or "untagged", tag, "/")
    return made


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


async def test_changes_are_made_by_those_whom_rabbitmq_lets_make_them(api: Api) -> None:
    for verb, path, body, expected in CHANGES:
        statuses = [(await api.call(verb, path, body, user=tag))[0] for tag in TAGS]
        assert tuple(statuses) == expected, (verb, path)
        status, found = await api.call(verb, path, body, user="untagged")
        assert (status, found["reason"]) == (401, "Not management user"), (verb, path)


async def test_what_rabbitmq_has_no_path_for_is_seen_by_those_who_may(api: Api) -> None:
    for path, expected in LOOKS:
        statuses = [(await api.call("GET", path, user=tag))[0] for tag in TAGS]
        assert tuple(statuses) == expected, path


async def test_no_resource_serves_anybody_who_has_not_logged_in(api: Api, kit: AdminKit) -> None:
    server = Server(KitProcess(kit), KEY, lambda: FACTS, WebSettings())
    for route in server.routes():
        if description_of(route.handler).is_open:
            continue
        path = route.path.replace("{", "").replace("}", "")
        for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Cookie": "auth=Z3Vlc3Q6Z3Vlc3Q="}):
            async with api._session.request(route.verb, f"{api.url}{path}", headers=headers) as response:
                assert response.status == 401, (route, headers)


async def test_a_vhost_without_permissions_is_closed_to_all_but_administrators(
    api: Api, kit: AdminKit
) -> None:
    kit.ask(ask.AddVHost(name="closed"))
    kit.ask(ask.DeclareQueue(vhost="closed", name="q", durable=True))
    for verb, path, body in (
        ("GET", "queues/closed", None),
        ("GET", "queues/closed/q", None),
        ("PUT", "queues/closed/new", {}),
        ("DELETE", "queues/closed/q", None),
        ("POST", "queues/closed/q/get", GET),
        ("POST", "exchanges/closed/amq.default/publish", MESSAGE),
        ("GET", "mirrormq/queues/closed/q/view", None),
        ("GET", "mirrormq/queues/closed/q/messages", None),
        ("GET", "mirrormq/cursors/closed", None),
    ):
        for tag in TAGS[:3]:
            assert (await api.call(verb, path, body, user=tag))[0] == 401, (verb, path, tag)
    assert (await api.call("GET", "queues/closed/q", user="administrator"))[0] == 200


async def test_many_clients_change_things_at_the_same_time(api: Api, kit: AdminKit) -> None:
    names = [f"c{number}" for number in range(40)]
    made = await asyncio.gather(*(api.put(f"queues/%2F/{name}", {"durable": True}) for name in names))
    assert {status for status, _ in made} == {201}
    again = await asyncio.gather(*(api.put("queues/%2F/same", {}) for _ in range(20)))
    assert sorted(status for status, _ in again) == [201] + [204] * 19
    lists = await asyncio.gather(
        *(api.get("queues?page=1&page_size=10&sort=name") for _ in range(10)),
        *(api.call("DELETE", f"queues/%2F/{name}") for name in names),
    )
    assert all(isinstance(found, tuple) or found["item_count"] <= 10 for found in lists)
    left = {row["name"] for row in await api.get("queues")}
    assert left == {"q", "same"}
    deleted = await asyncio.gather(*(api.call("DELETE", "queues/%2F/same") for _ in range(10)))
    assert sorted(status for status, _ in deleted) == [204] + [404] * 9
    assert "same" not in {record.name for record in kit.node.state.queues.values()}
