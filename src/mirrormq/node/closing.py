"""Closing connections of clients for an administrator, whichever node the administrator asked."""

import re
from typing import TYPE_CHECKING, Protocol

from mirrormq.base import limits
from mirrormq.node.report import connection_pid

if TYPE_CHECKING:
    from mirrormq.broker.connection import Connection


class Holder(Protocol):
    """The node the connections are on."""

    node_name: str
    connections: "dict[int, Connection]"


def node_of(name: str) -> str | None:
    """The node in a pid; None for the name of a connection, which does not tell."""
    match = re.fullmatch(r"<(.+)\.1\.\d+\.0>", name)
    return None if match is None else match[1]


def find(host: Holder, name: str) -> "Connection | None":
    """The connection of this node with this pid or this name."""
    match = re.fullmatch(r"<.+\.1\.(\d{1,18})\.0>", name)
    if match is not None:
        is_here = name == connection_pid(host.node_name, int(match[1]))
        return host.connections.get(int(match[1])) if is_here else None
    return next((found for found in host.connections.values() if found.name == name), None)


def close_one(host: Holder, name: str, reason: str) -> int:
    """Close the connection with this pid or name; how many were closed."""
    found = find(host, name)
    if found is None:
        return 0
    found.force_close(short_reason(reason))
    return 1


def close_some(host: Holder, user: str | None, vhost: str | None, reason: str, limit: int) -> int:
    """Close the connections of a user, of a vhost or all, at most `limit` if that is not 0; how many."""
    closed = 0
    for found in list(host.connections.values()):
        if limit and closed == limit:
            break
        if user not in (None, found.user):
            continue
        if vhost is not None and (found.vhost is None or found.vhost.name != vhost):
            continue
        found.force_close(short_reason(reason))
        closed += 1
    return closed


def short_reason(text: str) -> str:
    """What fits behind CONNECTION_FORCED in a short string."""
    return text.encode("utf-8", "replace")[: limits.close_reason_bytes_max].decode("utf-8", "ignore")
