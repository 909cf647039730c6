"""Browsers, log-in limits and the audit log: what foreign pages cannot do, and what is told of changes."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from mirrormq.base import limits
from mirrormq.http.ports import WebSettings
from mirrormq.node import requests as ask
from tests.support.adminkit import KEY, AdminKit, Api, serving
from tests.unit.http.test_api import add_user

FOREIGN = "http://evil.example"


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


async def raw(
    api: Api, verb: str, path: str, headers: Mapping[str, str], **more: Any
) -> tuple[int, Mapping[str, str]]:
    """Status and headers of the answer to guest."""
    token = base64.b64encode(b"guest:guest").decode()
    sent = {"Authorization": f"Basic {token}", **headers}
    async with api._session.request(verb, f"{api.url}{path}", headers=sent, **more) as response:
        await response.read()
        return response.status, response.headers


# --- browsers ---


async def test_a_form_of_a_foreign_page_changes_nothing(api: Api, kit: AdminKit) -> None:
    form = aiohttp.FormData({"{}": ""})
    for headers in (
        {"Origin": FOREIGN},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Origin": FOREIGN},
        {"Sec-Fetch-Site": "same-site"},
    ):
        for verb, path in (
            ("POST", "/api/definitions"),
            ("PUT", "/api/vhosts/evil"),
            ("DELETE", "/api/vhosts/%2F"),
        ):
            status, _ = await raw(api, verb, path, headers, data=form() if verb == "POST" else None)
            assert status == 403, (verb, headers)
    assert set(kit.node.state.vhosts) == {"/"}


async def test_the_nodes_own_pages_and_programs_may_change_things(api: Api) -> None:
    own = api.url
    for headers in ({}, {"Origin": own}, {"Origin": own, "Sec-Fetch-Site": "same-origin"}):
        status, _ = await raw(api, "PUT", "/api/vhosts/mine", headers, json={})
        assert status in (201, 204), headers
    proxied = {"Origin": "https://mq.example", "X-Forwarded-Host": "mq.example"}
    assert (await raw(api, "PUT", "/api/vhosts/mine", proxied, json={}))[0] == 204


async def test_reading_tells_foreign_pages_nothing_unless_they_are_named(api: Api, kit: AdminKit) -> None:
    status, headers = await raw(api, "GET", "/api/whoami", {"Origin": FOREIGN})
    assert (status, "Access-Control-Allow-Origin" in headers) == (200, False)
    status, headers = await raw(api, "OPTIONS", "/api/whoami", {"Origin": FOREIGN})
    assert (status, headers["Allow"]) == (200, "GET, HEAD, OPTIONS")
    assert "Access-Control-Allow-Methods" not in headers
    friend = "https://friend.example"
    async with serving(kit, web=WebSettings(origins=(friend,))) as open_api:
        asked = {"Origin": friend, "Access-Control-Request-Headers": "authorization"}
        async with open_api._session.options(f"{open_api.url}/api/vhosts/x", headers=asked) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] == friend
            assert "PUT" in response.headers["Access-Control-Allow-Methods"]
            assert response.headers["Access-Control-Allow-Headers"] == "authorization"
        assert (await raw(open_api, "PUT", "/api/vhosts/x", {"Origin": friend}, json={}))[0] == 201
        assert (await raw(open_api, "PUT", "/api/vhosts/y", {"Origin": FOREIGN}, json={}))[0] == 403


async def test_every_answer_carries_the_headers_that_guard_browsers(api: Api) -> None:
    for path in ("/api/whoami", "/api/queues", "/api/none", "/api/openapi.json", "/metrics", "/"):
        _, headers = await raw(api, "GET", path, {})
        assert headers["X-Content-Type-Options"] == "nosniff", path
        assert headers["X-Frame-Options"] == "DENY"
        assert "default-src" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"


async def test_head_answers_like_get_without_a_body(api: Api) -> None:
    status, headers = await raw(api, "HEAD", "/api/overview", {})
    assert (status, headers["Content-Type"]) == (200, "application/json")


# --- log-ins ---


async def test_too_many_failed_log_ins_are_answered_with_when_to_try_again(api: Api, kit: AdminKit) -> None:
    add_user(kit, "ann", "management")
    add_user(kit, "bob", "management")
    statuses = []
    for number in range(limits.login_failures_per_user_max + 3):
        status, found = await api.call("GET", "whoami", user="ann", password=f"wrong{number}")
        statuses.append(status)
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert "try again in" in found["reason"]
    token = base64.b64encode(b"ann:wrong").decode()
    status, headers = await raw(api, "GET", "/api/whoami", {"Authorization": f"Basic {token}"})
    assert (status, int(headers["Retry-After"]) >= 1) == (429, True)
    assert (await api.call("GET", "whoami", user="bob"))[0] == 200
    kit.advance(2 * limits.login_failures_window_us / 1_000_000)
    assert (await api.call("GET", "whoami", user="ann"))[0] == 200


async def test_where_log_ins_came_from_is_kept_only_while_it_is_wanted(api: Api, kit: AdminKit) -> None:
    by_source = {"by_source": True}
    assert (await api.call("POST", "ctl/list_node_auth_attempt_stats", by_source))[1]
    await api.call("POST", "ctl/track_auth_attempt_sources", {"wanted": False})
    kit.client()
    assert (await api.call("POST", "ctl/list_node_auth_attempt_stats", by_source))[1] == []
    assert (await api.call("POST", "ctl/list_node_auth_attempt_stats", {}))[1]
    await api.call("POST", "ctl/track_auth_attempt_sources", {"wanted": True})
    assert (await api.call("POST", "ctl/list_node_auth_attempt_stats", by_source))[1]


async def test_log_in_attempts_are_counted_and_forgotten(api: Api, kit: AdminKit) -> None:
    await api.call("GET", "whoami", user="nobody")
    kit.client()
    node = kit.node.node_name
    rows = {row["protocol"]: row for row in await api.get(f"auth/attempts/{node}")}
    assert rows["http"]["auth_attempts_failed"] == 1
    assert rows["amqp091"]["auth_attempts_succeeded"] == 1
    sources = await api.get(f"auth/attempts/{node}/source")
    assert {"nobody", "guest"} == {row["username"] for row in sources}
    assert (await api.call("DELETE", f"auth/attempts/{node}"))[0] == 204
    (row,) = await api.get(f"auth/attempts/{node}")
    assert (row["protocol"], row["auth_attempts"]) == ("http", 1)
    assert (await api.call("GET", "auth/attempts/none"))[0] == 404


# --- the audit log ---


def told(kit: AdminKit) -> list[dict[str, Any]]:
    return [dict(note.fields) for note in kit.notes if note.text == "audit"]


async def test_each_administrative_action_is_one_line(api: Api, kit: AdminKit) -> None:
    await api.put("vhosts/shop")
    await api.call("DELETE", "vhosts/none")
    await api.get("vhosts")
    first, second = told(kit)
    assert (first["who"], first["action"], first["on"], first["status"]) == (
        "guest",
        "PUT /api/vhosts/{vhost}",
        "vhost=shop",
        201,
    )
    assert first["from"].startswith("127.0.0.1:")
    assert (second["action"], second["status"], second["reason"]) == (
        "DELETE /api/vhosts/{vhost}",
        404,
        "Not Found",
    )


async def test_commands_of_ctl_are_told_too_but_not_those_that_only_look(api: Api, kit: AdminKit) -> None:
    await api.ctl("list_users")
    await api.ctl("status")
    await api.ctl("add_vhost", name="shop")
    (line,) = told(kit)
    assert (line["who"], line["action"], line["on"], line["status"]) == (
        "(node key)",
        "ctl add_vhost",
        "name=shop",
        200,
    )


async def test_a_refused_log_in_to_a_change_is_told(api: Api, kit: AdminKit) -> None:
    await api.call("PUT", "vhosts/x", {}, user="mallory", password="guess")
    (line,) = told(kit)
    assert (line["who"], line["status"], line["reason"]) == ("?", 401, "Login failed")


async def test_no_password_is_ever_returned_or_logged(api: Api, kit: AdminKit) -> None:
    secret = "correct horse battery"
    body = {"password": secret, "tags": "administrator"}
    await api.put("users/ann", body)
    await api.put("users/ann", {**body, "unknown": secret})
    await api.put("users/ann", {**body, "password": [secret]})
    unhashed = {"tags": "", "password_hash": secret}
    answers = [await api.put(f"users/{name}", unhashed) for name in ("ann", "new")]
    await api.ctl("add_user", name="bob", password=secret)
    await api.ctl("change_password", name="bob", password=secret)
    await api.ctl("change_password", name="nobody", password=secret)
    await api.call("POST", "definitions", {"users": [{"name": "c", "password": secret, "tags": 5}]})
    wrong = {"users": [{"name": "c", "password_hash": secret, "tags": ""}]}
    answers.append(await api.call("POST", "definitions", wrong))
    assert [status for status, _ in answers] == [400] * 3
    shown = [await api.get(path) for path in ("users", "users/ann", "definitions", "whoami")]
    _, listed = await api.ctl("list_users")
    assert secret not in repr(shown) + repr(listed) + repr(answers)
    assert KEY not in repr([(note.text, note.fields) for note in kit.notes])
    assert secret not in repr([(note.text, note.fields) for note in kit.notes])
    assert kit.ask(ask.AuthenticateUser(name="ann", password=secret)) == {}
