"""What RabbitMQ has no path for, below mirrormq/: views and rings, synchronising, what happened, cursors,
pipelines. docs/http.md has the shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from aiohttp import web

from mirrormq.base import limits
from mirrormq.http import answers, bodies, shapes
from mirrormq.http.answers import Row, bad_request, not_found
from mirrormq.http.api import Call, Handler
from mirrormq.http.describe import described
from mirrormq.http.far import FarQueues, inquire, merged
from mirrormq.http.payloads import ENCODINGS, shown_in_pieces
from mirrormq.http.routes.nodes import About
from mirrormq.meta import hidden, records
from mirrormq.node import report, requests
from mirrormq.node.admin_views import is_behind
from mirrormq.node.bulk import PROTOCOL

TIMELINE = (
    "queue.master_",
    "queue.mirror_",
    "queue.sync_started",
    "queue.synchronised",
    "node.",
    "cluster.",
    "alarm.",
    "events.dropped",
)
"""How the names of those events begin that tell the story of fail-overs."""

SYNC_COLUMNS = (
    "master",
    "epoch",
    "state",
    "in_sync",
    "unsynchronised",
    "sync_progress",
    "mirrors",
    "messages",
)

# --- views ---


@described(answer=shapes.View)
async def get_view(call: Call) -> web.Response:
    """GET mirrormq/queues/vhost/name/view."""
    record = _queue(call)
    return answers.response(await call.ask(requests.QueueView(vhost=record.vhost, name=record.name)))


@described(answer=shapes.Sync)
async def get_sync(call: Call) -> web.Response:
    """GET mirrormq/queues/vhost/name/sync: how far its mirrors are."""
    record = _queue(call)
    return answers.response(await call.ask(requests.SyncStatus(vhost=record.vhost, name=record.name)))


@described(answer=shapes.Sync, is_list=True)
async def list_sync(call: Call) -> web.StreamResponse:
    """GET mirrormq/sync: all queues with a mirror that is not in sync."""
    vhosts = set(call.state.vhosts) if call.who.is_monitor else set(call.visible_vhosts())
    views = await answers.kept(
        list(call.state.views.values()), lambda view: view.vhost in vhosts and is_behind(call.state, view)
    )
    found = [record for view in views if (record := call.state.queues.get(view.identity)) is not None]
    far = FarQueues(call)

    def row(record: records.Queue) -> Row:
        shown = far.row(record)
        return {"vhost": record.vhost, "name": record.name} | {name: shown.get(name) for name in SYNC_COLUMNS}

    return await call.listing(
        found,
        row,
        name=lambda record: record.name,
        order=lambda record: record.identity,
        prepare=far.fetch,
    )


@described(body=bodies.Move, answer=dict[str, Any], needs="administrator")
async def move(call: Call) -> web.Response:
    """POST mirrormq/queues/vhost/name/move: make another node the master, without a loss."""
    call.need_administrator()
    record = _queue(call)
    (node,) = await call.need_texts("node")
    wanted = requests.MoveMaster(actor=call.who.name, vhost=record.vhost, name=record.name, node=node)
    return answers.response(await call.ask(wanted))


@described(body=bodies.Promote, answer=dict[str, Any], needs="administrator")
async def promote(call: Call) -> web.Response:
    """POST mirrormq/queues/vhost/name/promote: give a queue without a master to a node that is there."""
    call.need_administrator()
    record = _queue(call)
    body = await call.body()
    node = body.get("node", "")
    if not isinstance(node, str):
        raise bad_request("node must be a text")
    wanted = requests.ForcePromote(
        actor=call.who.name,
        vhost=record.vhost,
        name=record.name,
        node=node,
        plan=await call.boolean("plan"),
        accept_loss=await call.boolean("accept_loss"),
    )
    return answers.response(await call.ask(wanted))


# --- messages ---


@described(answer=shapes.Messages, query=("count", "before", "truncate", "encoding"))
async def newest(call: Call) -> web.StreamResponse:
    """GET mirrormq/queues/vhost/name/messages: the newest ones, of which none is taken."""
    record = _queue(call)
    found = await call.ask(
        requests.BrowseQueue(
            actor=call.who.name,
            vhost=record.vhost,
            name=record.name,
            count=call.number("count", 10, limits.browse_messages_max),
            before=call.optional_number("before"),
            body=call.number("truncate", 50_000, limits.browse_body_bytes_max),
        )
    )
    encoding = call.request.query.get("encoding", "auto")
    if encoding not in ENCODINGS:
        raise bad_request(f"unknown encoding {encoding}; there are auto and base64")
    messages = found["messages"]
    rows = answers.array_of(browsed(row, encoding) for row in messages)
    before = answers.encoded(messages[0]["seq"] if messages else None)
    pieces = chain((b'{"messages":',), rows, (b',"before":' + before + b"}",))
    return await answers.pieces_response(call.request, pieces, every=1)


def browsed(row: Row, encoding: str) -> Iterator[bytes]:
    """A message that was looked at, in the form of those that are taken, as JSON in pieces."""
    head = {
        "seq": row["seq"],
        "received_at": row["at"],
        "exchange": row["exchange"].decode("utf-8", "surrogateescape"),
        "routing_key": row["routing_key"].decode("utf-8", "surrogateescape"),
        "redelivered": row["redelivered"],
        "payload_bytes": row["size"],
    }
    return shown_in_pieces(head, row["properties"], row["body"], row["size"], encoding=encoding)


# --- what happened ---


@described(
    answer=shapes.Events, query=("limit", "before", "since", "event", "vhost", "queue"), needs="monitoring"
)
async def list_events(call: Call) -> web.Response:
    """GET mirrormq/events: what happened in the cluster, the newest last."""
    return await _happened(call, tuple(filter(None, call.request.query.get("event", "").split(","))))


@described(answer=shapes.Events, query=("limit", "before", "since", "vhost", "queue"), needs="monitoring")
async def timeline(call: Call) -> web.Response:
    """GET mirrormq/timeline: fail-overs and what led to them."""
    return await _happened(call, TIMELINE)


async def _happened(call: Call, events: tuple[str, ...]) -> web.Response:
    call.need_monitor()
    query = call.request.query
    wanted = requests.ListEvents(
        limit=call.number("limit", 100, limits.browse_messages_max),
        before=call.optional_number("before"),
        since=call.optional_number("since"),
        events=events,
        vhost=query.get("vhost"),
        name=query.get("queue"),
    )
    return answers.response(await call.ask(wanted))


# --- cursors and pipelines ---


@described(answer=shapes.Cursor, is_list=True)
async def list_cursors(call: Call) -> web.StreamResponse:
    """GET mirrormq/cursors, of one vhost, of one queue."""
    return await call.listing(await _cursors(call), dict, name=lambda row: str(row["name"]))


async def _cursors(call: Call) -> list[Row]:
    parts = call.request.match_info
    name = _queue(call).name if "queue" in parts else ""
    vhosts = [call.need_vhost()] if "vhost" in parts else call.visible_vhosts()
    rows: list[Row] = []
    for vhost in vhosts:
        found = await call.ask(requests.ListCursors(vhost=vhost, name=name))
        call.missing.update(found["missing"])
        rows += found["rows"]
    return rows


@described(statuses=(204,), needs="administrator")
async def delete_cursor(call: Call) -> web.Response:
    """DELETE mirrormq/cursors/vhost/queue/name: its reader has to begin anew."""
    call.need_administrator()
    record = _queue(call)
    wanted = requests.DropCursor(
        actor=call.who.name, vhost=record.vhost, name=record.name, cursor=call.part("cursor")
    )
    await call.ask(wanted)
    return answers.no_content()


@described(answer=shapes.Pipelines, needs="monitoring")
async def pipelines(call: Call) -> web.Response:
    """GET mirrormq/pipelines: who reads and writes in bulk, through which cursors and sinks."""
    call.need_monitor()
    replies = await inquire(call, "connections")
    readers: list[Row] = []
    async for batch in answers.slices(merged(call, report.connections(call.node), replies)):
        readers += [_reader(row) for row in batch if row["protocol"] == PROTOCOL]
    queues = list(call.state.queues.values())
    staging = await answers.kept(queues, lambda record: hidden.is_staging(record.name))
    far = FarQueues(call)
    await far.fetch(staging)
    found = {
        "readers": readers,
        "cursors": await _cursors(call),
        "sinks": [_sink(far.row(record)) for record in staging],
        "mirrors": [
            {"vhost": record.name, "mirror_of": record.mirror_of}
            for record in call.state.vhosts.values()
            if record.mirror_of
        ],
    }
    return answers.response(found)


def _reader(row: Row) -> Row:
    columns = ("name", "user_provided_name", "user", "vhost", "node", "connected_at", "recv_oct", "send_oct")
    shown = {name: row[name] for name in columns}
    return shown | {"product": row["client_properties"].get("product"), "state": row["state"]}


def _sink(row: Row) -> Row:
    return {
        "sink": row["name"].removeprefix(hidden.STAGING),
        "vhost": row["vhost"],
        "queue": row["name"],
        "owner": row["arguments"].get("x-mirrormq-sink-owner"),
        "node": row["node"],
        "state": row["state"],
        "messages": row.get("messages"),
    }


def _queue(call: Call) -> records.Queue:
    found = call.state.queues.get((call.need_vhost(), call.part("queue")))
    if found is None:
        raise not_found()
    return found


def routes(about: About) -> list[tuple[str, str, Handler]]:
    """The resources."""

    @described(answer=dict[str, Any], needs="monitoring")
    async def cluster(call: Call) -> web.Response:
        """GET mirrormq/cluster: members, roles, leader, what is tolerated."""
        call.need_monitor()
        return answers.response(about.cluster_status(call.node))

    queue = "mirrormq/queues/{vhost}/{queue}"
    found: list[tuple[str, str, Any]] = [
        ("GET", "mirrormq/cluster", cluster),
        ("GET", f"{queue}/view", get_view),
        ("GET", f"{queue}/sync", get_sync),
        ("GET", f"{queue}/messages", newest),
        ("GET", f"{queue}/cursors", list_cursors),
        ("POST", f"{queue}/move", move),
        ("POST", f"{queue}/promote", promote),
        ("GET", "mirrormq/sync", list_sync),
        ("GET", "mirrormq/events", list_events),
        ("GET", "mirrormq/timeline", timeline),
        ("GET", "mirrormq/cursors", list_cursors),
        ("GET", "mirrormq/cursors/{vhost}", list_cursors),
        ("DELETE", "mirrormq/cursors/{vhost}/{queue}/{cursor}", delete_cursor),
        ("GET", "mirrormq/pipelines", pipelines),
    ]
    return found
