"""Log-in and log-out of the web UI."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from mirrormq.base import limits
from mirrormq.http import answers, bodies, shapes
from mirrormq.http.answers import bad_request
from mirrormq.http.api import Call, Handler
from mirrormq.http.auth import Gate, bearer_of
from mirrormq.http.describe import described
from mirrormq.http.sessions import Sessions


class LogIns:
    """The session of whoever asks, and RabbitMQ's log-in."""

    def __init__(self, sessions: Sessions, gate: Gate) -> None:
        self._sessions = sessions
        self._gate = gate

    @described(body=bodies.LogIn, answer=str, is_form=True, is_open=True, is_audited=False)
    async def login(self, call: Call) -> web.Response:
        """POST login: whether a name and password, sent as a form, are right.

        RabbitMQ gives a cookie with the password in it; there is none here.
        """
        fields = dict(parse_qsl((await call.request.read()).decode("utf-8", "replace")))
        name, password = fields.get("username", ""), fields.get("password", "")
        await self._gate.by_password(call.request, name, password)
        return answers.response("ok")

    @described(answer=dict[str, Any], statuses=(200, 201), is_audited=False)
    async def post(self, call: Call) -> web.Response:
        """POST mirrormq/session, with a name and password: a token for the requests that follow."""
        if call.who.name is None or bearer_of(call.request):
            raise bad_request("log in with a user name and password")
        token = self._sessions.open(call.state, call.who.name)
        row = {
            "token": token,
            "name": call.who.name,
            "tags": list(call.who.tags),
            "idle_seconds": limits.http_session_idle_s,
            "seconds": limits.http_session_s,
        }
        return answers.response(row, 201)

    @described(answer=shapes.WhoAmI)
    async def get(self, call: Call) -> web.Response:
        """GET mirrormq/session: who it is of."""
        return answers.response({"name": call.who.name, "tags": list(call.who.tags)})

    @described(statuses=(204,), is_audited=False)
    async def delete(self, call: Call) -> web.Response:
        """DELETE mirrormq/session: log out."""
        self._sessions.close(bearer_of(call.request))
        return answers.no_content()


def routes(sessions: Sessions, gate: Gate) -> list[tuple[str, str, Handler]]:
    """Log-in and log-out."""
    found = LogIns(sessions, gate)
    return [
        ("POST", "login", found.login),
        ("POST", "mirrormq/session", found.post),
        ("GET", "mirrormq/session", found.get),
        ("DELETE", "mirrormq/session", found.delete),
    ]
