"""Queues, exchanges and bindings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Literal
from urllib.parse import quote, unquote

from aiohttp import web

from mirrormq.broker.consumer import Consumer
from mirrormq.http import answers, bodies, shapes
from mirrormq.http.answers import Fault, Row, bad_request, not_found
from mirrormq.http.api import DEFAULT_EXCHANGE, Call
from mirrormq.http.describe import described
from mirrormq.http.far import FarQueues, inquire, merged
from mirrormq.meta import records, system
from mirrormq.node import report, requests

NO_VHOST = Fault(404, "not_found", "vhost_not_found")
INTERNAL_COLUMNS = (
    "pid",
    "owner_pid",
    "exclusive_consumer_pid",
    "slave_pids",
    "synchronised_slave_pids",
    "mirror_pids",
    "synchronised_mirror_pids",
)

# --- queues ---


@described(answer=shapes.Queue, is_list=True, query=("system", "disable_stats", "enable_queue_totals"))
async def list_queues(call: Call) -> web.StreamResponse:
    """GET queues, and of one vhost."""
    vhosts = [call.need_vhost()] if "vhost" in call.request.match_info else call.visible_vhosts()
    chosen = list if call.flag("system") else system.ordinary
    found = chain.from_iterable([chosen(call.state.queues_in(name)) for name in vhosts])
    far = FarQueues(call)
    return await call.listing(
        found,
        lambda record: _queue_row(far, record),
        name=_name,
        order=_identity,
        prepare=far.fetch,
        value_of=far.value_of,
    )


@described(answer=shapes.Queue)
async def get_queue(call: Call) -> web.Response:
    """GET queues/vhost/name."""
    record = _queue(call)
    far = FarQueues(call)
    await far.fetch([record])
    elsewhere = await inquire(call, "consumers", ids=(record.id,))
    row = _queue_row(far, record)
    home = call.node.vhosts.get(record.vhost)
    live = None if home is None else home.queues.get(record.name)
    members = [] if live is None else live.consumers.members
    own = [report.consumer(call.node, member) for member in members if isinstance(member, Consumer)]
    row["consumer_details"] = list(merged(call, own, elsewhere))
    return answers.response(row)


@described(body=bodies.Queue, statuses=(201, 204))
async def put_queue(call: Call) -> web.Response:
    """PUT queues/vhost/name."""
    vhost = call.need_vhost(NO_VHOST)
    value = await call.ask(
        requests.DeclareQueue(
            actor=call.who.name,
            vhost=vhost,
            name=call.part("queue"),
            durable=await call.boolean("durable"),
            auto_delete=await call.boolean("auto_delete"),
            arguments=await call.arguments(),
        )
    )
    return answers.created(value["created"])


@described(statuses=(204,), query=("if-empty", "if-unused"))
async def delete_queue(call: Call) -> web.Response:
    """DELETE queues/vhost/name."""
    record = _queue(call)
    await call.ask(
        requests.DeleteQueue(
            actor=call.who.name,
            vhost=record.vhost,
            name=record.name,
            if_empty=call.flag("if-empty"),
            if_unused=call.flag("if-unused"),
        )
    )
    return answers.no_content()


@described(statuses=(204,))
async def purge_queue(call: Call) -> web.Response:
    """DELETE queues/vhost/name/contents."""
    record = _queue(call)
    await call.ask(requests.PurgeQueue(actor=call.who.name, vhost=record.vhost, name=record.name))
    return answers.no_content()


@described(body=bodies.Action, statuses=(204,), needs="administrator")
async def act_on_queue(call: Call) -> web.Response:
    """POST queues/vhost/name/actions: sync, cancel_sync."""
    call.need_administrator()
    record = _queue(call)
    (action,) = await call.need_keys("action")
    if action in ("sync", "cancel_sync") and record.identity not in call.state.views:
        return answers.no_content()  # as RabbitMQ: a queue without mirrors lacks nothing
    if action == "sync":
        await call.ask(requests.SyncQueue(actor=call.who.name, vhost=record.vhost, name=record.name))
    elif action == "cancel_sync":
        await call.ask(requests.CancelSyncQueue(actor=call.who.name, vhost=record.vhost, name=record.name))
    else:
        raise bad_request(f"unknown action {action}; there are sync and cancel_sync")
    return answers.no_content()


@described(answer=shapes.Binding, is_list=True)
async def queue_bindings(call: Call) -> web.StreamResponse:
    """GET queues/vhost/name/bindings."""
    record = _queue(call)
    found = call.state.bindings_to(record.vhost, "queue", record.name)
    return await _bindings(call, [report.default_binding(record), *found])


def _queue(call: Call) -> records.Queue:
    found = call.state.queues.get((call.need_vhost(), call.part("queue")))
    if found is None:
        raise not_found()
    return found


def _queue_row(far: FarQueues, record: records.Queue) -> Row:
    row = far.row(record)
    for name in INTERNAL_COLUMNS:
        row.pop(name, None)
    row.setdefault("recoverable_slaves", None)
    return row


# --- exchanges ---


@described(answer=shapes.Exchange, is_list=True)
async def list_exchanges(call: Call) -> web.StreamResponse:
    """GET exchanges, and of one vhost."""
    vhosts = [call.need_vhost()] if "vhost" in call.request.match_info else call.visible_vhosts()
    found = chain.from_iterable(list(call.state.exchanges_in(name)) for name in vhosts)
    return await call.listing(
        found, lambda record: report.exchange(call.node, record), name=_name, order=_identity
    )


@described(answer=shapes.Exchange)
async def get_exchange(call: Call) -> web.Response:
    """GET exchanges/vhost/name."""
    return answers.response(report.exchange(call.node, _exchange(call)))


@described(body=bodies.Exchange, statuses=(201, 204))
async def put_exchange(call: Call) -> web.Response:
    """PUT exchanges/vhost/name."""
    vhost = call.need_vhost(NO_VHOST)
    body = await call.body()
    value = await call.ask(
        requests.DeclareExchange(
            actor=call.who.name,
            vhost=vhost,
            name=call.exchange_part("exchange"),
            type=str(body.get("type", "direct")),
            durable=await call.boolean("durable"),
            auto_delete=await call.boolean("auto_delete"),
            internal=await call.boolean("internal"),
            arguments=await call.arguments(),
        )
    )
    return answers.created(value["created"])


@described(statuses=(204,), query=("if-unused",))
async def delete_exchange(call: Call) -> web.Response:
    """DELETE exchanges/vhost/name."""
    record = _exchange(call)
    await call.ask(
        requests.DeleteExchange(
            actor=call.who.name, vhost=record.vhost, name=record.name, if_unused=call.flag("if-unused")
        )
    )
    return answers.no_content()


@described(answer=shapes.Binding, is_list=True)
async def exchange_bindings(call: Call) -> web.StreamResponse:
    """GET exchanges/vhost/name/bindings/source and /destination."""
    record = _exchange(call)
    end = call.part("end")
    if end == "source" and record.name:
        return await _bindings(call, list(call.state.bindings_from(record.vhost, record.name)))
    if end == "source":
        queues = system.ordinary(call.state.queues_in(record.vhost))
        return await _bindings(call, queues)
    if end == "destination":
        return await _bindings(call, list(call.state.bindings_to(record.vhost, "exchange", record.name)))
    raise not_found()


def _exchange(call: Call) -> records.Exchange:
    found = call.state.exchanges.get((call.need_vhost(), call.exchange_part("exchange")))
    if found is None:
        raise not_found()
    return found


# --- bindings ---


@described(answer=shapes.Binding, is_list=True)
async def list_bindings(call: Call) -> web.StreamResponse:
    """GET bindings, and of one vhost."""
    vhosts = [call.need_vhost()] if "vhost" in call.request.match_info else call.visible_vhosts()
    parts: list[Iterable[records.Binding | records.Queue]] = []
    for name in vhosts:
        parts += [system.ordinary(call.state.queues_in(name)), list(call.state.bindings_in(name))]
    return await _bindings(call, chain.from_iterable(parts))


@described(answer=shapes.Binding, is_list=True)
async def list_bindings_between(call: Call) -> web.StreamResponse:
    """GET bindings/vhost/e/source/q/destination, and e for an exchange."""
    return await _bindings(call, _between(call, call.need_vhost()))


@described(answer=shapes.Binding)
async def get_binding(call: Call) -> web.Response:
    """GET bindings/vhost/e/source/q/destination/key."""
    return answers.response(next(report.bindings([_binding(call)])))


@described(body=bodies.Binding, statuses=(201,))
async def post_binding(call: Call) -> web.Response:
    """POST bindings/vhost/e/source/q/destination."""
    vhost = call.need_vhost(NO_VHOST)
    body = await call.body()
    routing_key = body.get("routing_key", "")
    if not isinstance(routing_key, str):
        raise bad_request("routing_key must be a text")
    value = await call.ask(
        requests.Bind(
            actor=call.who.name,
            vhost=vhost,
            source=call.exchange_part("source"),
            destination=_destination(call),
            destination_type=_destination_type(call),
            routing_key=routing_key,
            arguments=await call.arguments(),
        )
    )
    location = f"{quote(call.part('destination'), safe='')}/{quote(value['key'], safe='~%+')}"
    return web.Response(status=201, headers={"Location": location})


@described(statuses=(204,))
async def delete_binding(call: Call) -> web.Response:
    """DELETE bindings/vhost/e/source/q/destination/key."""
    record = _binding(call)
    await call.ask(
        requests.Unbind(
            actor=call.who.name,
            vhost=call.need_vhost(),
            source=call.exchange_part("source"),
            destination=_destination(call),
            destination_type=_destination_type(call),
            key=record.key,
        )
    )
    return answers.no_content()


def _binding(call: Call) -> records.Binding:
    """The binding of the path, by its properties key, or as some clients do by that key unquoted."""
    key = call.part("key")
    found = _between(call, call.need_vhost())
    for record in found:
        if record.key == key:
            return record
    for record in found:
        if unquote(record.key) == key:
            return record
    raise not_found()


def _between(call: Call, vhost: str) -> list[records.Binding]:
    source, destination = call.exchange_part("source"), _destination(call)
    kind = _destination_type(call)
    if not source:
        queue = call.state.queues.get((vhost, destination))
        return [report.default_binding(queue)] if queue is not None and kind == "queue" else []
    found = call.state.bindings_to(vhost, kind, destination)
    return [record for record in found if record.source == source]


def _destination_type(call: Call) -> Literal["queue", "exchange"]:
    letter = call.part("kind")
    if letter not in ("q", "e"):
        raise not_found()
    return "queue" if letter == "q" else "exchange"


def _destination(call: Call) -> str:
    name = call.part("destination")
    return "" if name == DEFAULT_EXCHANGE and _destination_type(call) == "exchange" else name


async def _bindings(call: Call, found: Iterable[records.Binding | records.Queue]) -> web.StreamResponse:
    """A list of bindings; a queue stands for the one it has because it is there, which is made when shown."""
    return await call.listing(found, _binding_row, name=_key)


def _binding_row(record: records.Binding | records.Queue) -> Row:
    shown = report.default_binding(record) if isinstance(record, records.Queue) else record
    return next(report.bindings([shown]))


def _key(record: records.Binding | records.Queue) -> str:
    return record.name if isinstance(record, records.Queue) else record.routing_key


def _name(record: Any) -> str:
    name: str = record.name
    return name


def _identity(record: Any) -> tuple[str, str]:
    return (record.vhost, record.name)


ROUTES = (
    ("GET", "queues", list_queues),
    ("GET", "queues/{vhost}", list_queues),
    ("GET", "queues/{vhost}/{queue}", get_queue),
    ("PUT", "queues/{vhost}/{queue}", put_queue),
    ("DELETE", "queues/{vhost}/{queue}", delete_queue),
    ("DELETE", "queues/{vhost}/{queue}/contents", purge_queue),
    ("POST", "queues/{vhost}/{queue}/actions", act_on_queue),
    ("GET", "queues/{vhost}/{queue}/bindings", queue_bindings),
    ("GET", "exchanges", list_exchanges),
    ("GET", "exchanges/{vhost}", list_exchanges),
    ("GET", "exchanges/{vhost}/{exchange}", get_exchange),
    ("PUT", "exchanges/{vhost}/{exchange}", put_exchange),
    ("DELETE", "exchanges/{vhost}/{exchange}", delete_exchange),
    ("GET", "exchanges/{vhost}/{exchange}/bindings/{end}", exchange_bindings),
    ("GET", "bindings", list_bindings),
    ("GET", "bindings/{vhost}", list_bindings),
    ("GET", "bindings/{vhost}/e/{source}/{kind}/{destination}", list_bindings_between),
    ("POST", "bindings/{vhost}/e/{source}/{kind}/{destination}", post_binding),
    ("GET", "bindings/{vhost}/e/{source}/{kind}/{destination}/{key}", get_binding),
    ("DELETE", "bindings/{vhost}/e/{source}/{kind}/{destination}/{key}", delete_binding),
)
