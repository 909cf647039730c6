"""Administrators' requests about what lives on some node while clients are there: lists of it, and closing
connections. Any node can be asked; it asks the others.
"""

from collections.abc import Iterable
from typing import Protocol

from mirrormq.broker.queueport import Later
from mirrormq.node import admin_access, closing, requests
from mirrormq.node.inquiry import Ask, Inquiries, Replies
from mirrormq.node.inquiry_rows import CLOSED
from mirrormq.node.inquiryframes import NUMBER_MAX, octets, row_of
from mirrormq.node.report import Source
from mirrormq.node.steps import Await, Operation, Refusal, Steps


class LiveHost(Source, Protocol):
    """The node, as these requests see it."""

    inquiries: Inquiries


def inquire(host: LiveHost, request: requests.Inquire) -> Steps:
    """Ask other nodes for rows."""
    question = Ask(
        0,
        request.kind,
        None if request.vhost is None else octets(request.vhost),
        octets(request.name),
        octets(request.owner),
        request.ids,
        body=request.body,
    )
    nodes = host.inquiries.others() if request.nodes is None else request.nodes
    return (yield Await(_asked(host, question, nodes)))


def close_connection(host: LiveHost, request: requests.CloseConnection) -> Steps:
    """Close one connection with CONNECTION_FORCED: a pid says on which node it is, a name does not."""
    name = request.connection
    if closing.close_one(host, name, request.reason):
        return {"closed": 1}
    others = host.inquiries.others()
    home = closing.node_of(name)
    nodes = others if home is None else [node for node in others if node == home]
    question = Ask(0, "close_connection", name=octets(name), reason=_reason(request.reason))
    replies = yield Await(_asked(host, question, nodes))
    if not _closed(replies):
        text = f"no connection '{name}'; list_connections shows pids and names"
        raise Refusal("no_such_connection", text + _unheard(replies))
    return {"closed": 1}


def close_connections(host: LiveHost, request: requests.CloseConnections) -> Steps:
    """Close connections with CONNECTION_FORCED, those of this node first if there is a limit."""
    if request.vhost is not None:
        admin_access.need_vhost(host.state, request.vhost)
    if request.user is not None:
        admin_access.need_user(host.state, request.user)
    limit = min(max(0, request.limit), NUMBER_MAX)
    closed = closing.close_some(host, request.user, request.vhost, request.reason, limit)
    others = host.inquiries.others()
    missing: dict[str, str] = {}
    # With a limit one after the other: how many the next may close depends on the one before.
    for nodes in [[node] for node in others] if limit else [others]:
        if limit and closed >= limit:
            break
        question = Ask(
            0,
            "close_connections",
            None if request.vhost is None else octets(request.vhost),
            owner=octets(request.user or ""),
            reason=_reason(request.reason),
            limit=limit and limit - closed,
        )
        replies = yield Await(_asked(host, question, nodes))
        closed += _closed(replies)
        missing.update(replies.missing)
    return {"closed": closed, "missing": missing} if missing else {"closed": closed}


def _asked(host: LiveHost, question: Ask, nodes: Iterable[str]) -> Later[Replies]:
    later: Later[Replies] = Later()
    host.inquiries.ask(question, nodes, later.answer)
    return later


def _closed(replies: Replies) -> int:
    return sum(row_of(raw).get(CLOSED, 0) for rows in replies.rows.values() for raw in rows)


def _reason(text: str) -> bytes:
    return closing.short_reason(text).encode()


def _unheard(replies: Replies) -> str:
    return "".join(f"; node {node} {why}" for node, why in sorted(replies.missing.items()))


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.Inquire: inquire,
    requests.CloseConnection: close_connection,
    requests.CloseConnections: close_connections,
}
