"""Connections, channels and consumers: what lives only while clients are there, on any node."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from aiohttp import web

from mirrormq.http import answers, rates, shapes
from mirrormq.http.answers import Row, not_authorised, not_found
from mirrormq.http.api import Call
from mirrormq.http.describe import described
from mirrormq.http.far import Far, found_far, inquire, merged
from mirrormq.node import report, report_rates, requests

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.connection import Connection

DEFAULT_REASON = "Closed via management plugin"
FOREIGN = "User not authorised to access object"


@described(answer=shapes.Connection, is_list=True)
async def list_connections(call: Call) -> web.StreamResponse:
    """GET connections, and of one vhost."""
    vhost = _vhost(call)
    far = await found_far(await inquire(call, "connections", vhost=vhost, body=_look_body(call)))
    found: list[Connection | Far] = [*call.node.connections.values(), *far]
    seen = await answers.kept(found, lambda item: _may_see(call, item))
    return await call.listing(seen, lambda item: _connection_row(call, item), name=_name, order=_name)


@described(answer=shapes.Connection)
async def get_connection(call: Call) -> web.Response:
    """GET connections/name."""
    return answers.response(_connection_row(call, await _connection(call)))


@described(statuses=(204,))
async def delete_connection(call: Call) -> web.Response:
    """DELETE connections/name: close it, with the reason of X-Reason."""
    found = await _connection(call)
    _need_closer(call, found.user)
    reason = call.request.headers.get("X-Reason", DEFAULT_REASON)
    pid = str(_connection_row(call, found, is_internal=True)["pid"])
    await call.ask(requests.CloseConnection(actor=call.who.name, connection=pid, reason=reason))
    return answers.no_content()


@described(answer=shapes.Connection, is_list=True)
async def list_user_connections(call: Call) -> web.StreamResponse:
    """GET connections/username/name."""
    name = call.part("user")
    far = await found_far(await inquire(call, "connections"))
    found: list[Connection | Far] = [*call.node.connections.values(), *far]
    seen = await answers.kept(found, lambda item: item.user == name and _may_see(call, item))
    return await call.listing(seen, lambda item: _connection_row(call, item), name=_name, order=_name)


@described(statuses=(204,))
async def delete_user_connections(call: Call) -> web.Response:
    """DELETE connections/username/name: close all of them, with the reason of X-Reason."""
    name = call.part("user")
    _need_closer(call, name)
    if name in call.state.users:
        reason = call.request.headers.get("X-Reason", DEFAULT_REASON)
        await call.ask(requests.CloseConnections(actor=call.who.name, user=name, reason=reason))
    return answers.no_content()


@described(answer=list[shapes.Channel])
async def connection_channels(call: Call) -> web.StreamResponse:
    """GET connections/name/channels."""
    found = await _connection(call)
    if isinstance(found, Far):
        replies = await inquire(call, "channels", owner=found.name, body=_look_body(call))
        return await call.rows(merged(call, (), replies))
    members = list(found.channels.values())
    return await call.rows(_own_channel(call, member) for member in members)


@described(answer=shapes.Channel, is_list=True)
async def list_channels(call: Call) -> web.StreamResponse:
    """GET channels, and of one vhost."""
    vhost = _vhost(call)
    far = await found_far(await inquire(call, "channels", vhost=vhost, body=_look_body(call)))
    owners = await answers.kept(list(call.node.connections.values()), lambda item: _may_see(call, item))
    own = await answers.collected(list(owner.channels.values()) for owner in owners)
    others = await answers.kept(far, lambda item: _may_see(call, item))
    found: Iterable[Channel | Far] = chain(chain.from_iterable(own), others)
    return await call.listing(found, lambda item: _channel_row(call, item), name=_name)


@described(answer=shapes.Channel)
async def get_channel(call: Call) -> web.Response:
    """GET channels/name."""
    name = _spaced(call.part("channel"))
    for owner in call.node.connections.values():
        for member in owner.channels.values():
            if member.name == name:
                _need_own(call, owner)
                row = _channel_row(call, member)
                row["consumer_details"] = [
                    report.consumer(call.node, found) for found in member.consumers.values()
                ]
                return answers.response(row)
    for item in await found_far(await inquire(call, "channels", name=name, body=_look_body(call))):
        _need_own(call, item)
        row = _channel_row(call, item)
        consumers = merged(call, (), await inquire(call, "consumers", vhost=item.vhost))
        row["consumer_details"] = [found for found in consumers if found["channel_details"]["name"] == name]
        return answers.response(row)
    raise not_found()


@described(answer=shapes.Consumer, is_list=True)
async def list_consumers(call: Call) -> web.StreamResponse:
    """GET consumers, and of one vhost: all for those who watch the node, their own for others."""
    wanted = call.request.match_info.get("vhost")
    if wanted is not None and wanted not in call.state.vhosts:
        raise not_found()
    replies = await inquire(call, "consumers", vhost=wanted)
    found = merged(call, report.consumers(call.node, wanted), replies)
    rows = await answers.kept(found, lambda row: _is_own(call, row["channel_details"]["user"]))
    return await call.listing(rows, _consumer_row, name=lambda row: str(row["consumer_tag"]))


def _spaced(name: str) -> str:
    """A name as it is shown: it has spaces, which some clients write as in a query, and never a plus."""
    return name.replace("+", " ") if " " not in name else name


def _vhost(call: Call) -> str | None:
    """The vhost of the path, if there is one."""
    return call.need_vhost() if "vhost" in call.request.match_info else None


async def _connection(call: Call) -> Connection | Far:
    """The connection of the path."""
    name = _spaced(call.part("connection"))
    for found in call.node.connections.values():
        if found.name == name:
            _need_own(call, found)
            return found
    for item in await found_far(await inquire(call, "connections", name=name, body=_look_body(call))):
        _need_own(call, item)
        return item
    raise not_found()


def _is_own(call: Call, user: str | None) -> bool:
    """Does somebody see what belongs to a user? Watchers see all, others their own."""
    return call.who.is_monitor or user == call.who.name


def _need_own(call: Call, found: Connection | Far) -> None:
    if not _is_own(call, found.user):
        raise not_authorised(FOREIGN)


def _need_closer(call: Call, user: str | None) -> None:
    """Who only watches closes nothing of others."""
    if not call.who.is_administrator and user != call.who.name:
        raise not_authorised(FOREIGN)


def _may_see(call: Call, found: Connection | Far) -> bool:
    """Is a connection in a list? A path with a vhost shows only that one's."""
    wanted = call.request.match_info.get("vhost")
    if wanted is not None and wanted != _vhost_of(found):
        return False
    return _is_own(call, found.user)


def _vhost_of(found: Connection | Far) -> str | None:
    vhost = found.vhost
    return vhost if vhost is None or isinstance(vhost, str) else vhost.name


def _name(item: Connection | Channel | Far) -> str:
    return item.name


def _look_body(call: Call) -> bytes:
    """Which rates other nodes are asked for."""
    look = rates.look_of(call)
    return b"" if look is None else report_rates.packed(look)


def _own_connection(call: Call, item: Connection) -> Row:
    row, look = report.connection(call.node, item), rates.look_of(call)
    if look is not None:
        look = look.bounded(len(call.node.connections))
        report_rates.update(row, report_rates.of_connection(call.node, item, look))
    return row


def _own_channel(call: Call, item: Channel) -> Row:
    row, look = report.channel(call.node, item), rates.look_of(call)
    if look is not None:
        look = look.bounded(len(call.node.channels))
        report_rates.update(row, report_rates.of_channel(call.node, item, look))
    return row


def _connection_row(call: Call, item: Connection | Far, *, is_internal: bool = False) -> Row:
    row = item.row() if isinstance(item, Far) else _own_connection(call, item)
    if not is_internal:
        del row["pid"]
    return row


def _channel_row(call: Call, item: Channel | Far) -> Row:
    row = item.row() if isinstance(item, Far) else _own_channel(call, item)
    del row["pid"], row["connection"]
    return row


def _consumer_row(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("queue_name", "channel_pid")}


ROUTES = (
    ("GET", "connections", list_connections),
    ("GET", "connections/username/{user}", list_user_connections),
    ("DELETE", "connections/username/{user}", delete_user_connections),
    ("GET", "connections/{connection}", get_connection),
    ("DELETE", "connections/{connection}", delete_connection),
    ("GET", "connections/{connection}/channels", connection_channels),
    ("GET", "vhosts/{vhost}/connections", list_connections),
    ("GET", "channels", list_channels),
    ("GET", "channels/{channel}", get_channel),
    ("GET", "vhosts/{vhost}/channels", list_channels),
    ("GET", "consumers", list_consumers),
    ("GET", "consumers/{vhost}", list_consumers),
)
