"""Users and virtual hosts as they are made, and what users see and end of each other's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mirrormq.node import requests as ask
from tests.support.adminkit import AdminKit, Api, serving
from tests.unit.http.test_api import FOREIGN_OBJECT, NOT_FOUND, add_user


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


# --- users and virtual hosts ---


async def test_a_user_is_made_with_limits_and_permissions(api: Api) -> None:
    await api.put("vhosts/v")
    rights = {"configure": "a", "write": "b", "read": "c"}
    body = {"tags": "", "password": "u", "limits": {"max-connections": 3}, "permissions": {"v": rights}}
    assert (await api.put("users/u", body))[0] == 201
    assert (await api.get("users/u"))["limits"] == {"max-connections": 3}
    assert await api.get("users/u/permissions") == [{"user": "u", "vhost": "v", **rights}]
    # Limits are added to those that are there; permissions count for a new user only. Both as in RabbitMQ.
    body |= {"limits": {"max-channels": 4}, "permissions": {"/": rights}}
    assert (await api.put("users/u", body))[0] == 204
    assert await api.get("user-limits/u") == [
        {"user": "u", "value": {"max-connections": 3, "max-channels": 4}}
    ]
    assert [row["vhost"] for row in await api.get("users/u/permissions")] == ["v"]
    for nothing in ({}, [], None):
        assert (await api.put("users/u", {"tags": "", "limits": nothing, "permissions": nothing}))[0] == 204
    assert len((await api.get("users/u"))["limits"]) == 2


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("limits", {"foo": 3}, 'Unrecognised terms [{<<"foo">>,3}] in user-limits'),
        ("limits", {"max-channels": "5"}, 'max-channels should be a number, actually was <<"5">>'),
        ("limits", 5, "limits must be an object"),
        ("limits", [5], "limits must be an object"),
        ("permissions", "all", "permissions must be an object"),
        ("permissions", {"/": 1}, "permissions of '/' must be an object"),
        ("permissions", {"/": {"configure": "", "write": ""}}, "[{key_missing,read}]"),
        ("permissions", {"/": {"configure": "", "write": None, "read": ""}}, "[{key_missing,write}]"),
        ("permissions", {"/": {"configure": "", "write": "", "read": 1}}, "read must be a text"),
        ("permissions", {"nope": {"configure": "", "write": "", "read": ""}}, ["no_such_vhost", "nope"]),
        ("permissions", {"/": {"configure": "(", "write": "", "read": ""}}, None),
    ],
)
async def test_a_user_with_wrong_limits_or_permissions_is_not_made(
    api: Api, field: str, value: Any, reason: Any
) -> None:
    status, found = await api.put("users/u", {"tags": "", "password": "u", field: value})
    assert (status, found["error"]) == (400, "bad_request")
    assert reason is None or found["reason"] == reason
    assert await api.call("GET", "users/u") == NOT_FOUND


async def test_a_user_may_be_made_an_administrator_in_the_words_of_old_clients(api: Api) -> None:
    for name, given, tags in (("a", True, ["administrator"]), ("b", "false", [])):
        assert (await api.put(f"users/{name}", {"password": "x", "administrator": given}))[0] == 201
        assert (await api.get(f"users/{name}"))["tags"] == tags


async def test_a_vhost_without_a_description_has_an_empty_one(api: Api) -> None:
    nothing = {"description": None, "tags": None, "default_queue_type": None, "tracing": False}
    assert (await api.put("vhosts/v", nothing))[0] == 201
    found = await api.get("vhosts/v")
    assert (found["description"], found["tags"], found["tracing"]) == ("", [], False)
    assert (await api.put("vhosts/v", {"description": "shop"}))[0] == 204
    assert (await api.put("vhosts/v", {"description": None}))[0] == 204
    assert (await api.get("vhosts/v"))["description"] == ""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"description": 5}, "description must be a text"),
        ({"default_queue_type": ["quorum"]}, "default_queue_type must be a text"),
        ({"tracing": "maybe"}, ["not_boolean", "maybe"]),
        ({"tracing": True}, "message tracing does not exist yet"),
    ],
)
async def test_a_vhost_with_what_cannot_be_is_refused(api: Api, body: Any, reason: Any) -> None:
    assert await api.put("vhosts/v", body) == (400, {"error": "bad_request", "reason": reason})
    assert await api.call("GET", "vhosts/v") == NOT_FOUND


# --- what belongs to others ---


async def test_consumers_are_shown_to_their_users_and_to_those_who_watch(api: Api, kit: AdminKit) -> None:
    kit.ask(ask.AddVHost(name="v"))
    kit.ask(ask.SetPermissions(vhost="v", user="guest", configure=".*", write=".*", read=".*"))
    for tag in ("management", "policymaker"):
        add_user(kit, tag, tag, "/")
        mine = kit.client(tag, tag)
        mine.declare(f"of-{tag}")
        mine.consume(f"of-{tag}", f"c-{tag}")
    add_user(kit, "monitoring", "monitoring")  # without a permission anywhere
    for vhost in ("/", "v"):
        other = kit.client(vhost=vhost)
        other.declare("q")
        other.consume("q", f"c-guest-{vhost}")
    everything = {"c-management", "c-policymaker", "c-guest-/", "c-guest-v"}
    for user, wanted in (
        ("management", {"c-management"}),
        ("policymaker", {"c-policymaker"}),
        ("monitoring", everything),
        ("guest", everything),
    ):
        rows = await api.get("consumers", user=user)
        assert {row["consumer_tag"] for row in rows} == wanted, user
        for vhost, path in (("/", "consumers/%2F"), ("v", "consumers/v")):
            rows = await api.get(path, user=user)
            here = {row["consumer_tag"] for row in rows}
            assert here == wanted & ({"c-guest-v"} if vhost == "v" else everything - {"c-guest-v"}), user
            assert {row["queue"]["vhost"] for row in rows} <= {vhost}


async def test_only_administrators_close_connections_of_others(api: Api, kit: AdminKit) -> None:
    for tag in ("management", "policymaker", "monitoring"):
        add_user(kit, tag, tag, "/")
        kit.client(tag, tag)
    client = kit.client()
    rows = await api.get("connections")
    names = {row["user"]: row["name"].replace(" ", "%20").replace(">", "%3E") for row in rows}
    for tag in ("management", "policymaker", "monitoring"):
        for path in (f"connections/{names['guest']}", "connections/username/guest"):
            status, body = await api.call("DELETE", path, user=tag)
            assert (status, body["reason"]) == (401, FOREIGN_OBJECT), (tag, path)
        assert (await api.call("DELETE", f"connections/{names[tag]}", user=tag))[0] == 204, tag
    assert client.take() == []
    assert (await api.call("DELETE", "connections/username/guest"))[0] == 204
    assert client.take()[-1].reply_code == 320
