"""Streams of live data: built once for all, only while somebody looks, and never more than a viewer takes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest
import pytest_asyncio

from mirrormq.base import limits
from mirrormq.node import requests as ask
from tests.support.adminkit import AdminKit, Api, serving

WAIT_S = 10.0
GUEST = {"Authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"}
ROUNDS = 40
"""Requests that take several times as long as a snapshot stays."""


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> AdminKit:
    monkeypatch.setattr(limits, "http_stream_ms", 20)
    monkeypatch.setattr(limits, "http_stream_share", 0)
    return AdminKit()


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


class Stream:
    """One viewer."""

    def __init__(self, api: Api, topics: list[str], headers: dict[str, str] | None = None) -> None:
        query = [("topics", topic) for topic in topics]
        self._request = api._session.get(
            f"{api.url}/api/mirrormq/stream", params=query, headers=headers or GUEST
        )

    async def __aenter__(self) -> Self:
        self.answer = await self._request.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.answer.close()

    async def event(self) -> tuple[str, Any]:
        """The next event; comments are left out. ("", None): the stream has ended."""
        kind = ""
        while line := await asyncio.wait_for(self.answer.content.readline(), WAIT_S):
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                return kind, json.loads(value)
        return "", None

    async def until(self, kind: str, wanted: Any) -> Any:
        """Events until one of a kind fits."""
        while True:
            found, value = await self.event()
            assert found, "the stream has ended"
            if found == kind and wanted(value):
                return value


def declare(kit: AdminKit, name: str) -> None:
    kit.ask(ask.DeclareQueue(actor="guest", vhost="/", name=name, durable=True))


async def test_every_topic_is_sent_and_sent_again_when_it_changes(kit: AdminKit, api: Api) -> None:
    async with Stream(api, ["overview", "queues?page=1&page_size=10"]) as stream:
        assert stream.answer.status == 200
        assert stream.answer.content_type == "text/event-stream"
        await stream.until("t0", lambda row: row["object_totals"]["queues"] == 0)
        declare(kit, "new")
        newest: dict[str, Any] = {}
        while not newest.get("t1", {}).get("items") or "t0" not in newest:
            kind, value = await stream.event()
            newest[kind] = value
        assert newest["t1"]["items"][0]["name"] == "new"
        assert newest["t0"]["object_totals"]["queues"] == 1


async def test_viewers_who_see_the_same_share_one_snapshot(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrormq.http import stream as module

    taken: list[int] = []
    take = module.Feed.take

    def counted(feed: module.Feed, body: bytes, *, is_error: bool) -> None:
        taken.append(len(feed.viewers))
        take(feed, body, is_error=is_error)

    monkeypatch.setattr(module.Feed, "take", counted)
    async with Stream(api, ["queues?page=1"]) as one, Stream(api, ["queues?page=1"]) as other:
        assert (await one.event())[0] == "t0"
        assert (await other.event())[0] == "t0"
        before = len(taken)
        while len(taken) < before + 3:
            await api.call("GET", "whoami")
    assert max(taken) == 2, "both look at one feed"


async def test_nothing_is_built_when_nobody_looks(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrormq.http import stream as module

    built = 0
    take = module.Feed.take

    def counted(feed: module.Feed, body: bytes, *, is_error: bool) -> None:
        nonlocal built
        built += 1
        take(feed, body, is_error=is_error)

    monkeypatch.setattr(module.Feed, "take", counted)
    async with Stream(api, ["overview"]) as stream:
        await stream.event()
    # The node sees a closed connection a moment later; then it builds no more.
    before = -1
    while before != built:
        before = built
        for _ in range(ROUNDS):
            await api.call("GET", "whoami")
    assert built > 0


@pytest.mark.parametrize(
    ("topics", "reason"),
    [
        ([], "name 1 to"),
        (["overview"] * 7, "name 1 to"),
        (["queues"], "page by page"),
        (["queues/%2F"], "page by page"),
        (["vhosts/%2F/connections"], "page by page"),
        (["definitions"], "cannot be followed"),
        (["mirrormq/stream?topics=overview"], "cannot be followed"),
        (["ctl/status"], "cannot be followed"),
        (["x" * 3000], "at most"),
        (["queues/../users?page=1"], "cannot be followed"),
    ],
)
async def test_what_cannot_be_followed_is_refused_with_the_reason(
    api: Api, topics: list[str], reason: str
) -> None:
    async with Stream(api, topics) as stream:
        assert stream.answer.status == 400
        assert reason in (await stream.answer.json())["reason"]


async def test_a_resource_that_is_not_there_is_an_error_until_it_is(kit: AdminKit, api: Api) -> None:
    async with Stream(api, ["queues/%2F/later", "overview"]) as stream:
        fault = await stream.until("e0", lambda _: True)
        assert fault["status"] == 404
        declare(kit, "later")
        assert (await stream.until("t0", lambda _: True))["name"] == "later"


async def test_a_stream_shows_what_its_user_may_see_and_no_more(kit: AdminKit, api: Api) -> None:
    kit.ask(ask.AddVHost(name="secret"))
    kit.ask(ask.DeclareQueue(actor=None, vhost="secret", name="hidden", durable=True))
    kit.ask(ask.AddUser(name="ann", password="a", tags=("management",)))
    kit.ask(ask.SetPermissions(vhost="/", user="ann", configure=".*", write=".*", read=".*"))
    _, found = await api.call("POST", "mirrormq/session", user="ann", password="a")
    headers = {"Authorization": f"Bearer {found['token']}"}
    async with (
        Stream(api, ["queues?page=1"]) as admin,
        Stream(api, ["queues?page=1", "nodes"], headers) as ann,
    ):
        await admin.until("t0", lambda page: page["items"][0]["name"] == "hidden")
        await ann.until("t0", lambda page: page["items"] == [])
        fault = await ann.until("e1", lambda _: True)
        assert fault["status"] == 401


async def bearer_of(api: Api, user: str) -> dict[str, str]:
    _, found = await api.call("POST", "mirrormq/session", user=user)
    return {"Authorization": f"Bearer {found['token']}"}


async def test_a_stream_goes_on_while_its_session_idles_but_keeps_it_from_nothing(
    kit: AdminKit, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = await bearer_of(api, "guest")
    async with Stream(api, ["queues?page=1"], headers) as stream:
        await stream.event()
        monkeypatch.setattr(limits, "http_session_idle_s", 0)
        declare(kit, "shown")
        await stream.until("t0", lambda page: page["items"])
        assert (await api.call("GET", "whoami", user=None, headers=headers))[0] == 401
        async with Stream(api, ["overview"], headers) as other:
            assert other.answer.status == 401
        declare(kit, "also-shown")
        await stream.until("t0", lambda page: len(page["items"]) == 2)
        monkeypatch.setattr(limits, "http_session_s", 0)
        declare(kit, "not-shown")
        assert await stream.event() == ("", None)


@pytest.mark.parametrize(
    "change", [ask.ChangePassword(name="ann", password="new"), ask.ClearPassword(name="ann")]
)
async def test_a_stream_ends_with_the_password_it_was_opened_with(
    kit: AdminKit, api: Api, change: Any
) -> None:
    kit.ask(ask.AddUser(name="ann", password="ann", tags=("administrator",)))
    basic = {"Authorization": f"Basic {base64.b64encode(b'ann:ann').decode()}"}
    async with Stream(api, ["queues?page=1"], basic) as stream:
        await stream.event()
        kit.ask(change)
        declare(kit, "woken")
        assert await stream.event() == ("", None)


@pytest.mark.parametrize("end", ["log out", "delete", "tags"])
async def test_a_stream_ends_with_its_session(kit: AdminKit, api: Api, end: str) -> None:
    kit.ask(ask.AddUser(name="ann", password="a", tags=("administrator",)))
    _, found = await api.call("POST", "mirrormq/session", user="ann", password="a")
    headers = {"Authorization": f"Bearer {found['token']}"}
    async with Stream(api, ["queues?page=1"], headers) as stream:
        await stream.event()
        if end == "log out":
            await api.call("DELETE", "mirrormq/session", user=None, headers=headers)
        elif end == "delete":
            kit.ask(ask.DeleteUser(name="ann"))
        else:
            kit.ask(ask.SetUserTags(name="ann", tags=("monitoring",)))
        declare(kit, "woken")  # it looks when there is something to send
        assert await stream.event() == ("", None)


async def test_one_stream_too_many_gets_503(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "http_viewers_max", 1)
    async with Stream(api, ["overview"]) as one:
        await one.event()
        async with Stream(api, ["overview"]) as other:
            assert other.answer.status == 503


async def test_one_user_leaves_streams_to_others(
    kit: AdminKit, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "http_viewers_of_user_max", 2)
    kit.ask(ask.AddUser(name="ann", password="ann", tags=("monitoring",)))
    async with Stream(api, ["overview"]) as one, Stream(api, ["overview"]) as other:
        await one.event()
        await other.event()
        async with Stream(api, ["overview"], await bearer_of(api, "guest")) as third:
            assert third.answer.status == 503
            assert "of one user" in (await third.answer.json())["reason"]
        async with Stream(api, ["overview"], await bearer_of(api, "ann")) as hers:
            assert (await hers.event())[0] == "t0"
