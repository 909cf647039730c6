"""Log-ins of the web UI end when they should and are never more than they may be."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mirrormq.base import limits
from mirrormq.http.sessions import Sessions
from mirrormq.node import requests as ask
from tests.support.adminkit import AdminKit, Api, serving


class Clock:
    """Time as a test sets it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


def test_a_token_names_its_user_until_log_out(kit: AdminKit, clock: Clock) -> None:
    sessions, state = Sessions(clock), kit.node.state
    token = sessions.open(state, "guest")
    assert len(token) >= 32
    assert sessions.user_of(state, token) == "guest"
    assert sessions.user_of(state, token + "x") is None
    sessions.close(token)
    assert sessions.user_of(state, token) is None


def test_a_token_ends_after_a_time_without_use_and_after_a_time_at_all(kit: AdminKit, clock: Clock) -> None:
    sessions, state = Sessions(clock), kit.node.state
    token = sessions.open(state, "guest")
    clock.now += limits.http_session_idle_s - 1
    assert sessions.user_of(state, token) == "guest"
    clock.now += limits.http_session_idle_s + 1
    assert sessions.user_of(state, token) is None
    token = sessions.open(state, "guest")
    for _ in range(limits.http_session_s // 1_000):
        clock.now += 1_000
        assert sessions.user_of(state, token) == "guest"
    clock.now += 1_000
    assert sessions.user_of(state, token) is None


def test_a_look_at_a_token_is_no_use_of_it(kit: AdminKit, clock: Clock) -> None:
    sessions, state = Sessions(clock), kit.node.state
    token = sessions.open(state, "guest")
    for _ in range(2):
        clock.now += limits.http_session_idle_s / 2
        assert sessions.user_of(state, token, is_use=False) == "guest"
        assert sessions.stands(state, token)
    clock.now += 1
    assert sessions.user_of(state, token, is_use=False) is None
    assert sessions.user_of(state, token) is None
    sessions.open(state, "guest")
    # It opens nothing any more, but what was opened with it may stay until all of its time is over.
    assert sessions.stands(state, token)
    clock.now += limits.http_session_s
    assert not sessions.stands(state, token)


def test_a_token_ends_with_the_password_and_with_the_user(kit: AdminKit, clock: Clock) -> None:
    sessions, state = Sessions(clock), kit.node.state
    for change in (ask.ChangePassword(name="ann", password="new"), ask.DeleteUser(name="ann")):
        kit.ask(ask.AddUser(name="ann", password="old", tags=("management",), replace=True))
        token = sessions.open(state, "ann")
        kit.ask(change)
        assert not sessions.stands(state, token)
        assert sessions.user_of(state, token) is None


def test_one_user_cannot_push_out_another(kit: AdminKit, clock: Clock) -> None:
    sessions, state = Sessions(clock), kit.node.state
    kit.ask(ask.AddUser(name="ann", password="a", tags=("management",)))
    token = sessions.open(state, "ann")
    first = sessions.open(state, "guest")
    for _ in range(limits.http_sessions_of_user_max):
        sessions.open(state, "guest")
    assert sessions.user_of(state, token) == "ann"
    assert sessions.user_of(state, first) is None
    assert len(sessions) == limits.http_sessions_of_user_max + 1


def test_there_are_never_more_than_the_limit(
    kit: AdminKit, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "http_sessions_max", 3)
    sessions, state = Sessions(clock), kit.node.state
    tokens = [sessions.open(state, "guest") for _ in range(3)]
    assert sessions.user_of(state, tokens[0]) == "guest"  # used last, so it stays
    sessions.open(state, "guest")
    assert len(sessions) == 3
    assert sessions.user_of(state, tokens[1]) is None
    assert sessions.user_of(state, tokens[0]) == "guest"


async def test_the_api_gives_takes_and_ends_tokens(api: Api) -> None:
    status, found = await api.call("POST", "mirrormq/session")
    assert status == 201
    assert (found["name"], found["tags"]) == ("guest", ["administrator"])
    bearer = {"Authorization": f"Bearer {found['token']}"}
    assert await api.call("GET", "whoami", user=None, headers=bearer) == (
        200,
        {"name": "guest", "tags": ["administrator"]},
    )
    # A token cannot be made of a token: it would outlive the first one.
    status, _ = await api.call("POST", "mirrormq/session", user=None, headers=bearer)
    assert status == 400
    status, _ = await api.call("DELETE", "mirrormq/session", user=None, headers=bearer)
    assert status == 204
    status, found = await api.call("GET", "whoami", user=None, headers=bearer)
    assert (status, found["reason"]) == (401, "The session has ended; log in again")


async def test_a_token_has_the_tags_of_now(kit: AdminKit, api: Api) -> None:
    kit.ask(ask.AddUser(name="ann", password="a", tags=("administrator",)))
    _, found = await api.call("POST", "mirrormq/session", user="ann", password="a")
    bearer = {"Authorization": f"Bearer {found['token']}"}
    kit.ask(ask.SetUserTags(name="ann", tags=("management",)))
    assert (await api.call("GET", "users", user=None, headers=bearer))[0] == 401
    assert (await api.call("GET", "whoami", user=None, headers=bearer))[1]["tags"] == ["management"]
    kit.ask(ask.SetUserTags(name="ann", tags=()))
    assert (await api.call("GET", "whoami", user=None, headers=bearer))[0] == 401
