"""What `mirrormqctl` calls: every administrative command by its own name, POST ctl/<command> with its
arguments.

Unlike the resources it answers with the kinds of refusal as the node tells them apart, so that the command
line can give each its own text and exit code. Lists have rabbitmqctl's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from aiohttp import web

from mirrormq.http import answers
from mirrormq.http.answers import Fault, Row
from mirrormq.http.api import Call, Handler
from mirrormq.http.auth import ask
from mirrormq.http.ports import Backups
from mirrormq.http.routes.definitions import exported
from mirrormq.http.routes.nodes import About
from mirrormq.node import report, requests
from mirrormq.node.steps import Refusal

STATUS = {"not_authorised": 401, "not_found": 404, "unknown_command": 404, "internal_error": 500}

REQUESTS = {name: kind for name, kind in requests.named_requests().items() if name != "aliveness_test"}


class Commands:
    """The commands that only read."""

    def __init__(self, about: About, backups: Backups | None) -> None:
        self._about = about
        self._backups = backups
        self._single: dict[str, Callable[[Call, Row], Any]] = {
            "ping": lambda call, _: {"node": call.node.node_name},
            "status": lambda call, _: about.status(call.node),
            "environment": lambda _call, _: about.settings(),
        }
        self._lists: dict[str, Callable[[Call, Row], Iterator[Row]]] = {
            "list_vhosts": lambda call, _: report.vhosts(call.node),
            "list_users": _users,
            "list_permissions": lambda call, given: report.permissions(
                call.state.permissions_in(_vhost(call, given))
            ),
            "list_user_permissions": lambda call, given: report.permissions(
                call.state.permissions_of(_user(call, given))
            ),
            "list_topic_permissions": lambda call, given: report.topic_permissions(
                call.state.topic_permissions_in(_vhost(call, given))
            ),
            "list_user_topic_permissions": lambda call, given: report.topic_permissions(
                call.state.topic_permissions_of(_user(call, given))
            ),
            "list_vhost_limits": _vhost_limits,
            "list_user_limits": _user_limits,
            "list_policies": lambda call, given: report.policies(
                call.state.policies_in(_vhost(call, given)), operator=bool(given.get("operator"))
            ),
            "list_parameters": _parameters,
            "list_global_parameters": lambda call, _: report.global_parameters(call.node),
            "list_queues": lambda call, given: report.queues(
                call.node, call.state.queues_in(_vhost(call, given))
            ),
            "list_exchanges": lambda call, given: report.exchanges(
                call.node, call.state.exchanges_in(_vhost(call, given))
            ),
            "list_bindings": _bindings,
            "list_connections": _connections,
            "list_channels": lambda call, _: report.channels(call.node),
            "list_consumers": lambda call, given: report.consumers(call.node, _vhost(call, given)),
        }

    async def run(self, call: Call) -> web.StreamResponse:
        """POST ctl/command."""
        call.need_administrator()
        name = call.part("command")
        given = await call.body()
        if name == "export_definitions":
            vhost = _vhost(call, given) if "vhost" in given else None
            return await answers.pieces_response(call.request, exported(call.state, vhost))
        if name in ("backup", "backup_progress") and self._backups is not None:
            return answers.response(await _backed_up(self._backups, name, given))
        if name in self._single:
            return answers.response(self._single[name](call, given))
        if name in self._lists:
            return await call.rows(self._lists[name](call, given))
        kind = REQUESTS.get(name)
        if kind is None:
            raise _fault("unknown_command", f"this node does not know the command {name}")
        try:
            wanted = msgspec.convert(given, kind)
        except msgspec.ValidationError as error:
            raise _fault("bad_request", str(error)) from error
        answer = await ask(call.driver, wanted)
        if answer.problem is not None:
            raise _fault(answer.problem.kind, answer.problem.text)
        return answers.response(answer.value)


def routes(about: About, backups: Backups | None) -> list[tuple[str, str, Handler]]:
    """The one resource."""
    return [("POST", "ctl/{command}", Commands(about, backups).run)]


async def _backed_up(backups: Backups, name: str, given: Row) -> Row:
    try:
        if name == "backup_progress":
            return await backups.progress()
        return await backups.start(str(given.get("target", "")))
    except Refusal as refusal:
        raise _fault(*refusal.problem) from refusal


def _users(call: Call, _given: Row) -> Iterator[Row]:
    for row in report.users(call.node):
        yield {"user": row["name"], "tags": row["tags"]}


def _vhost_limits(call: Call, given: Row) -> Iterator[Row]:
    wanted = _vhost(call, given) if "vhost" in given else None
    for record in list(call.state.vhost_limits.values()):
        if wanted in (None, record.vhost):
            yield {"vhost": record.vhost, "limits": record.limits}


def _user_limits(call: Call, given: Row) -> Iterator[Row]:
    wanted = _user(call, given) if "user" in given else None
    for record in list(call.state.users.values()):
        if record.limits and wanted in (None, record.name):
            yield {"user": record.name, "limits": record.limits}


def _connections(call: Call, _given: Row) -> Iterator[Row]:
    for row in report.connections(call.node):
        # rabbitmqctl prints the protocol as an Erlang tuple.
        yield {**row, "protocol": "{0,9,1}"}


def _parameters(call: Call, given: Row) -> Iterator[Row]:
    wanted = _vhost(call, given)
    return (row for row in list(report.parameters(call.node)) if row["vhost"] == wanted)


def _bindings(call: Call, given: Row) -> Iterator[Row]:
    for record in report.bindings_of(call.node, _vhost(call, given)):
        yield {
            "source_name": record.source,
            "source_kind": "exchange",
            "destination_name": record.destination,
            "destination_kind": record.destination_type,
            "routing_key": record.routing_key,
            "arguments": record.arguments,
            "vhost": record.vhost,
        }


def _vhost(call: Call, given: Row) -> str:
    name = str(given.get("vhost", "/"))
    if name not in call.state.vhosts:
        raise _fault("no_such_vhost", f"Virtual host '{name}' does not exist")
    return name


def _user(call: Call, given: Row) -> str:
    name = str(given.get("user", ""))
    if name not in call.state.users:
        raise _fault("no_such_user", f'User "{name}" does not exist')
    return name


def _fault(kind: str, text: str) -> Fault:
    return Fault(STATUS.get(kind, 400), kind, text)
