"""Messages by hand: publish to an exchange, get from a queue. For looking and trying, not for moving data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from aiohttp import web

from mirrormq.base import limits
from mirrormq.http import answers, bodies, shapes
from mirrormq.http.answers import Fault, Row, bad_request
from mirrormq.http.api import Call, missing_keys
from mirrormq.http.describe import described
from mirrormq.http.inside import Content, Session
from mirrormq.http.payloads import encoded_properties, shown_in_pieces, taken_payload, taken_properties
from mirrormq.http.routes.watch import browsed
from mirrormq.node import requests
from mirrormq.wire import methods

Got = tuple[methods.BasicGetOk, Content]


class _Mode(NamedTuple):
    no_ack: bool
    requeue: bool


ACK_MODES = {
    "ack_requeue_true": _Mode(no_ack=False, requeue=True),
    "reject_requeue_true": _Mode(no_ack=False, requeue=True),
    "ack_requeue_false": _Mode(no_ack=True, requeue=False),
    "reject_requeue_false": _Mode(no_ack=False, requeue=False),
}
"""What becomes of what was got: given back, taken, or rejected (which dead-letters it)."""

HEAD, TAIL = "head", "tail"


@described(body=bodies.Message, answer=shapes.Routed, is_audited=False)
async def publish(call: Call) -> web.Response:
    """POST exchanges/vhost/name/publish: whether some queue took it."""
    vhost = call.need_vhost()
    await call.message_body()
    given = await call.need_keys("properties", "routing_key", "payload", "payload_encoding")
    properties, routing_key, payload, encoding = given
    if not isinstance(routing_key, str):
        raise bad_request("routing_key must be a text")
    if len(routing_key.encode("utf-8", "surrogatepass")) > limits.short_string_bytes_max:
        raise bad_request(f"routing_key is longer than {limits.short_string_bytes_max} bytes")
    body = await taken_payload(payload, encoding)
    raw = encoded_properties(taken_properties(properties))
    name = call.exchange_part("exchange")
    if (vhost, name) not in call.state.exchanges:
        raise bad_request(f"404 NOT_FOUND - no exchange '{name}' in vhost '{vhost}'")
    async with Session(call, vhost) as session:
        is_routed = await session.publish(name, routing_key, raw, body)
    return answers.response({"routed": is_routed})


@described(body=bodies.Get, answer=list[shapes.Message])
async def get(call: Call) -> web.StreamResponse:
    """POST queues/vhost/name/get: messages of the head, or with `from: tail` a look at the newest ones."""
    vhost = call.need_vhost()
    body = await call.body()
    name = call.part("queue")
    count = _count(body)
    encoding = body.get("encoding")
    limit = _truncate(body)
    where = body.get("from", HEAD)
    if where == TAIL:
        return await _newest(call, vhost, count, limit)
    if where != HEAD:
        raise bad_request("from must be head or tail")
    mode = _mode(body)
    if (vhost, name) not in call.state.queues:
        raise Fault(404, "not_found", f"NOT_FOUND - no queue '{name}' in vhost '{vhost}'")
    got: list[Got] = []
    size = since = 0
    async with Session(call, vhost) as session:
        while len(got) < count and size < limits.http_got_bytes_max:
            # The node answers at once: without a turn for others nothing else would run until all is got.
            if len(got) % limits.http_got_per_turn == 0 or size - since >= limits.http_held_bytes_max:
                since = size
                await answers.next_turn()
            found = await session.get(name, no_ack=mode.no_ack)
            if found is None:
                break
            got.append(found)
            size += len(found[1].body)
        if got and not mode.no_ack:
            session.nack(got[-1][0].delivery_tag, requeue=mode.requeue)
        # Whoever asks next must find given back what was given back.
        await session.settled()
    got.reverse()
    # Each is let go of when it is shown: ten thousand at once take milliseconds to die.
    pieces = answers.array_of(_shown(got.pop(), str(encoding), limit) for _ in range(len(got)))
    return await answers.pieces_response(call.request, pieces, every=1)


def _shown(got: Got, encoding: str, limit: int | None) -> Iterator[bytes]:
    """A message that was got, as JSON in pieces."""
    method, content = got
    head = {
        "payload_bytes": len(content.body),
        "redelivered": method.redelivered,
        "exchange": method.exchange,
        "routing_key": method.routing_key,
        "message_count": method.message_count,
    }
    return shown_in_pieces(head, content.properties, content.body, encoding=encoding, limit=limit)


async def _newest(call: Call, vhost: str, count: int, limit: int | None) -> web.StreamResponse:
    body = await call.body()
    ackmode = body.get("ackmode", "ack_requeue_true")
    if ackmode not in ACK_MODES or not ACK_MODES[ackmode].requeue:
        raise bad_request("from tail only looks: its ackmode is ack_requeue_true or reject_requeue_true")
    if count == 0:
        return answers.response([])
    most = limits.browse_body_bytes_max
    found = await call.ask(
        requests.BrowseQueue(
            actor=call.who.name,
            vhost=vhost,
            name=call.part("queue"),
            count=min(count, limits.browse_messages_max),
            body=most if limit is None else min(limit, most),
        )
    )
    encoding = str(body.get("encoding", "auto"))
    pieces = answers.array_of(browsed(row, encoding) for row in found["messages"])
    return await answers.pieces_response(call.request, pieces, every=1)


def _mode(body: Row) -> _Mode:
    given = body.get("ackmode")
    if given is None and isinstance(body.get("requeue"), bool):
        # How clients of older versions say it.
        given = "ack_requeue_true" if body["requeue"] else "ack_requeue_false"
    if given is None:
        raise missing_keys(["ackmode"])
    if given not in ACK_MODES:
        raise bad_request(f"unknown ackmode {given}; there are {', '.join(ACK_MODES)}")
    return ACK_MODES[given]


def _count(body: Row) -> int:
    missing = [name for name in ("count", "encoding") if name not in body]
    if missing:
        raise missing_keys(missing)
    if body["encoding"] not in ("auto", "base64"):
        raise bad_request("Unsupported encoding. Please use auto or base64.")
    count = _integer(body["count"])
    if count < 0:
        raise bad_request("count must not be negative")
    return min(count, limits.http_got_messages_max)


def _truncate(body: Row) -> int | None:
    given = body.get("truncate")
    if given is None:
        return None
    found = _integer(given)
    if found < 0:
        raise bad_request("truncate must not be negative")
    return found


def _integer(value: Any) -> int:
    found = answers.whole_number(value.strip() if isinstance(value, str) else value)
    if found is None:
        raise bad_request(["not_integer", value])
    return found


ROUTES = (
    ("POST", "exchanges/{vhost}/{exchange}/publish", publish),
    ("POST", "queues/{vhost}/{queue}/get", get),
)
