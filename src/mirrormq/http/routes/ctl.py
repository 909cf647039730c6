"""What `mirrormqctl` calls: every administrative command by its own name, POST ctl/<command> with its
arguments.

Unlike the resources it answers with the kinds of refusal as the node tells them apart, so that the command
line can give each its own text and exit code. Lists have rabbitmqctl's columns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec
from aiohttp import web

from mirrormq.base import limits
from mirrormq.http import answers
from mirrormq.http.answers import Fault, Row
from mirrormq.http.api import Call, Handler
from mirrormq.http.auth import ask
from mirrormq.http.describe import described
from mirrormq.http.far import FarQueues, inquire, merged
from mirrormq.http.ports import PROCESS_COMMANDS, RUNNING
from mirrormq.http.routes import diagnostics
from mirrormq.http.routes.definitions import exported
from mirrormq.http.routes.nodes import About
from mirrormq.meta import system
from mirrormq.node import report, requests
from mirrormq.node.steps import Refusal

STATUS = {
    "not_authorised": 401,
    "not_found": 404,
    "unknown_command": 404,
    "internal_error": 500,
    answers.APP_STOPPED: 503,
}

_OWN = ("aliveness_test", "inquire")
"""Requests that are no commands."""

REQUESTS = {name: kind for name, kind in requests.named_requests().items() if name not in _OWN}


class Commands:
    """The commands."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._single: dict[str, Callable[[Call, Row], Any]] = {
            "ping": lambda call, _: {"node": call.process.name},
            "status": lambda call, _: about.status(call.process),
            "cluster_status": lambda call, _: about.cluster_status(call.node),
            "environment": lambda _call, _: about.settings(),
            "check_critical": lambda call, _: about.critical(call.node),
            "list_node_auth_attempt_stats": _login_attempts,
            "reset_node_auth_attempt_metrics": _forget_attempts,
            "track_auth_attempt_sources": _track_sources,
        }
        self._lists: dict[str, Callable[[Call, Row], Iterator[Row]]] = {
            "list_feature_flags": lambda call, _: iter(about.feature_flags_of(call.node)),
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
            "list_exchanges": lambda call, given: report.exchanges(
                call.node, call.state.exchanges_in(_vhost(call, given))
            ),
            "list_bindings": _bindings,
        }
        self._wide: dict[str, Callable[[Call, Row], Awaitable[Iterable[Row]]]] = {
            "list_queues": _queues,
            "list_connections": _connections,
            "list_channels": _channels,
            "list_consumers": _consumers,
        }
        """Lists that take other nodes."""
        self._machine = diagnostics.commands(about)

    @described(answer=Any, needs="administrator")
    async def run(self, call: Call) -> web.StreamResponse:
        """POST ctl/command."""
        call.need_administrator()
        name = call.part("command")
        is_file = name == "import_definitions"
        given = await call.body(limits.http_body_bytes_max if is_file else limits.http_json_bytes_max)
        if name == "export_definitions":
            vhost = _vhost(call, given) if "vhost" in given else None
            return await answers.pieces_response(call.request, exported(call.state, vhost))
        if name in ("backup", "backup_progress"):
            return answers.response(await _backed_up(call, name, given))
        if name in PROCESS_COMMANDS or (name == "stop" and call.process.state != RUNNING):
            return answers.response(await _of_process(call, name, given))
        if name in self._machine:
            try:
                return answers.response(await self._machine[name](call, given))
            except Refusal as refusal:
                raise _fault(*refusal.problem) from refusal
        if name in self._single:
            return answers.response(self._single[name](call, given))
        if name in self._lists:
            return await call.rows(self._lists[name](call, given))
        if name in self._wide:
            return await call.rows(await self._wide[name](call, given))
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


def routes(about: About) -> list[tuple[str, str, Handler]]:
    """The one resource."""
    return [("POST", "ctl/{command}", Commands(about).run)]


async def _backed_up(call: Call, name: str, given: Row) -> Row:
    try:
        if name == "backup_progress":
            return await call.process.backups.progress()
        return await call.process.backups.start(str(given.get("target", "")))
    except Refusal as refusal:
        raise _fault(*refusal.problem) from refusal


async def _of_process(call: Call, name: str, given: Row) -> Row:
    try:
        return await call.process.command(name, given)
    except Refusal as refusal:
        raise _fault(*refusal.problem) from refusal


def _login_attempts(call: Call, given: Row) -> list[Row]:
    """At most `limits.auth_sources_max` rows."""
    attempts = call.node.logins.attempts
    return attempts.by_source() if given.get("by_source") is True else attempts.by_protocol()


def _forget_attempts(call: Call, _given: Row) -> Row:
    call.node.logins.attempts.forget()
    return {}


def _track_sources(call: Call, given: Row) -> Row:
    call.node.logins.attempts.track_sources(given.get("wanted") is True)
    return {}


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


async def _queues(call: Call, given: Row) -> Iterable[Row]:
    chosen = list if given.get("system") else system.ordinary
    records = await answers.collected(chosen(call.state.queues_in(_vhost(call, given))))
    if given.get("local"):
        records = [record for record in records if record.node in ("", call.node.node_name)]
    far = FarQueues(call)
    await far.fetch(records)
    return map(far.row, records)


async def _connections(call: Call, _given: Row) -> Iterable[Row]:
    replies = await inquire(call, "connections")
    # rabbitmqctl prints the protocol as an Erlang tuple.
    found = merged(call, report.connections(call.node), replies)
    return ({**row, "protocol": "{0,9,1}"} for row in found)


async def _channels(call: Call, _given: Row) -> Iterable[Row]:
    replies = await inquire(call, "channels")
    return merged(call, report.channels(call.node), replies)


async def _consumers(call: Call, given: Row) -> Iterable[Row]:
    vhost = _vhost(call, given)
    replies = await inquire(call, "consumers", vhost=vhost)
    return merged(call, report.consumers(call.node, vhost), replies)


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
