"""Requests about queues, exchanges and bindings, with the checks a client's request over AMQP gets.

A user needs the same permissions as over AMQP; the node's own key (no actor) needs none.
"""

from typing import Any, Protocol

import msgspec

from mirrormq.base.errors import access_refused, precondition_failed
from mirrormq.base.types import Now
from mirrormq.broker import arguments, exchange
from mirrormq.broker.queueport import Later, QueuePort
from mirrormq.broker.vhost import VHost
from mirrormq.kernel.message import Message
from mirrormq.meta import commands, records, system
from mirrormq.meta.access import Access, Right
from mirrormq.meta.state import MetaState
from mirrormq.node import requests
from mirrormq.node.admin_access import expect, need_short, need_vhost
from mirrormq.node.report import default_binding
from mirrormq.node.steps import Await, Operation, Propose, Refusal, Steps

RESERVED = "amq."
ALIVENESS_QUEUE = "aliveness-test"


class Host(Protocol):
    """The node, as these requests use it."""

    now: Now
    node_name: str
    access: Access
    vhosts: dict[str, VHost]

    @property
    def state(self) -> MetaState:
        """The metadata."""
        ...

    def place(self, queue: records.Queue) -> str:
        """The node where a queue that is about to be declared is to have its master."""
        ...


# --- queues ---


def declare_queue(host: Host, request: requests.DeclareQueue) -> Steps:
    """Declare a queue; one that exists is compared."""
    vhost = need_vhost(host.state, request.vhost)
    name = need_short("the name", request.name)
    if not name or name.startswith(RESERVED):
        raise access_refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    check(host, request, "configure", name)
    table = arguments.with_default_type(
        request.arguments,
        vhost.default_queue_type or None,
        durable=request.durable,
        exclusive=False,
        auto_delete=request.auto_delete,
    )
    existing = host.state.queues.get((request.vhost, name))
    if existing is not None:
        arguments.assert_queue_equivalent(
            existing, table, durable=request.durable, auto_delete=request.auto_delete, owner=None
        )
        return {"created": False}
    where = arguments.resource("queue", name, request.vhost)
    dead_letters = arguments.exchange_argument("x-dead-letter-exchange", where, table)
    if dead_letters is not None:
        check(host, request, "read", name)
        check(host, request, "write", dead_letters)
    arguments.check_queue_arguments(
        request.vhost,
        name,
        table,
        durable=request.durable,
        exclusive=False,
        auto_delete=request.auto_delete,
    )
    record = records.Queue(
        request.vhost,
        name,
        durable=request.durable,
        auto_delete=request.auto_delete,
        arguments=table,
    )
    record = msgspec.structs.replace(record, node=host.place(record))
    outcome = yield Propose(commands.DeclareQueue(record), wait=request.durable)
    expect(outcome, "exists")
    return {"created": outcome.ok}


def delete_queue(host: Host, request: requests.DeleteQueue) -> Steps:
    """Delete a queue."""
    queue = need_queue(host, request.vhost, request.name)
    check(host, request, "configure", request.name)
    count = yield Await(queue.delete(if_unused=request.if_unused, if_empty=request.if_empty))
    return {"messages": count}


def purge_queue(host: Host, request: requests.PurgeQueue) -> Steps:
    """Remove all ready messages."""
    queue = need_queue(host, request.vhost, request.name)
    check(host, request, "read", request.name)
    _need_ordinary(request.vhost, request.name)
    if queue.record.exclusive and request.actor is not None:
        raise arguments.locked(queue.record)
    count = queue.purge()
    return {"messages": (yield Await(count)) if isinstance(count, Later) else count}


def check_aliveness(host: Host, request: requests.CheckAliveness) -> Steps:
    """Publish to a queue of the vhost and take the message out again."""
    yield from declare_queue(
        host, requests.DeclareQueue(actor=request.actor, vhost=request.vhost, name=ALIVENESS_QUEUE)
    )
    queue = need_queue(host, request.vhost, ALIVENESS_QUEUE)
    published = queue.core.published
    body = b"test_message"
    queue.core.push(Message(b"", ALIVENESS_QUEUE.encode(), b"\0\0", body))
    _admit(queue)
    queue.purge()
    if queue.core.published <= published:
        raise Refusal("internal_error", f"{queue.text} did not take a message")
    return {"status": "ok"}


def need_queue(host: Host, vhost: str, name: str) -> QueuePort:
    """The live queue, or a refusal."""
    need_vhost(host.state, vhost)
    home = host.vhosts.get(vhost)
    found = None if home is None else home.queues.get(name)
    if found is None:
        raise Refusal("no_such_queue", f"no {arguments.resource('queue', name, vhost)}")
    return found


def _admit(queue: QueuePort) -> None:
    """What was published earlier in this pass counts too."""
    if queue.core.pending:
        queue.turn()


# --- exchanges ---


def declare_exchange(host: Host, request: requests.DeclareExchange) -> Steps:
    """Declare an exchange; one that exists is compared."""
    need_vhost(host.state, request.vhost)
    name = need_short("the name", request.name)
    exchange.check_type(request.type)
    _need_name(name)
    check(host, request, "configure", name)
    existing = host.state.exchanges.get((request.vhost, name))
    if existing is not None:
        arguments.assert_exchange_equivalent(
            existing,
            request.type,
            request.arguments,
            durable=request.durable,
            auto_delete=request.auto_delete,
            internal=request.internal,
        )
        return {"created": False}
    if name.startswith(RESERVED):
        raise access_refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
    where = arguments.resource("exchange", name, request.vhost)
    alternate = arguments.exchange_argument("alternate-exchange", where, request.arguments)
    if alternate is not None:
        check(host, request, "read", name)
        check(host, request, "write", alternate)
    exchange.check_declare(request.vhost, name, request.type, request.arguments)
    record = records.Exchange(
        request.vhost,
        name,
        type=request.type,
        durable=request.durable,
        auto_delete=request.auto_delete,
        internal=request.internal,
        arguments=request.arguments,
    )
    outcome = yield Propose(commands.DeclareExchange(record), wait=request.durable)
    expect(outcome, "exists")
    return {"created": outcome.ok}


def delete_exchange(host: Host, request: requests.DeleteExchange) -> Steps:
    """Delete an exchange."""
    _need_name(request.name)
    record = need_exchange(host, request.vhost, request.name)
    where = arguments.resource("exchange", request.name, request.vhost)
    if request.name.startswith(RESERVED):
        raise access_refused(f"deletion of system {where} not allowed")
    check(host, request, "configure", request.name)
    outcome = yield Propose(
        commands.DeleteExchange(request.vhost, request.name, request.if_unused), wait=record.durable
    )
    if outcome.error == "in_use":
        raise precondition_failed(f"{where} in use")
    expect(outcome, "missing")
    return {}


def need_exchange(host: Host, vhost: str, name: str) -> records.Exchange:
    """The exchange, or a refusal."""
    need_vhost(host.state, vhost)
    found = host.state.exchanges.get((vhost, name))
    if found is None:
        raise Refusal("not_found", f"no {arguments.resource('exchange', name, vhost)}")
    return found


def _need_name(name: str) -> None:
    if not name:
        raise access_refused("operation not permitted on the default exchange")


# --- bindings ---


def bind(host: Host, request: requests.Bind) -> Steps:
    """Bind; a binding that exists is no error."""
    need_short("the routing key", request.routing_key)
    _need_name(request.source)
    source = need_exchange(host, request.vhost, request.source)
    lasting = _need_destination(host, request) and source.durable
    _check_binding_rights(host, request, source, request.routing_key)
    exchange.check_binding(source.type, request.routing_key, request.arguments)
    binding = records.Binding(
        request.vhost,
        request.source,
        request.destination,
        request.destination_type,
        request.routing_key,
        request.arguments,
    )
    created = binding.identity not in host.state.bindings
    outcome = yield Propose(commands.Bind(binding), wait=lasting)
    expect(outcome)
    return {"key": binding.key, "created": created}


def unbind(host: Host, request: requests.Unbind) -> Steps:
    """Remove the binding with a properties key."""
    source = need_exchange(host, request.vhost, request.source)
    lasting = _need_destination(host, request) and source.durable
    binding = find_binding(host.state, request)
    if binding is None:
        raise Refusal("not_found", "no such binding")
    _need_name(request.source)
    _check_binding_rights(host, request, source, binding.routing_key)
    outcome = yield Propose(commands.Unbind(binding), wait=lasting)
    expect(outcome, "missing")
    return {}


def find_binding(state: MetaState, request: requests.Unbind) -> records.Binding | None:
    """The binding with a properties key."""
    found = state.bindings_to(request.vhost, request.destination_type, request.destination)
    for binding in found:
        if binding.source == request.source and binding.key == request.key:
            return binding
    queue = state.queues.get((request.vhost, request.destination))
    if queue is not None and request.destination_type == "queue" and not request.source:
        implied = default_binding(queue)
        return implied if implied.key == request.key else None
    return None


def _need_destination(host: Host, request: requests.Bind | requests.Unbind) -> bool:
    """Refuse an unknown destination; whether it outlives a restart."""
    key = (request.vhost, request.destination)
    if request.destination_type == "queue":
        queue = host.state.queues.get(key)
        if queue is not None:
            return queue.outlives_restart
    else:
        _need_name(request.destination)
        found = host.state.exchanges.get(key)
        if found is not None:
            return found.durable
    where = arguments.resource(request.destination_type, request.destination, request.vhost)
    raise Refusal("not_found", f"no {where}")


def _check_binding_rights(
    host: Host, request: requests.Bind | requests.Unbind, source: records.Exchange, routing_key: str
) -> None:
    check(host, request, "write", request.destination)
    check(host, request, "read", request.source)
    user = request.actor
    if user is None or source.type != "topic":
        return
    if not host.access.may_topic(user, request.vhost, "read", source.name, routing_key):
        raise access_refused(f"access to topic '{routing_key}' refused for user '{user}'")


# --- shared ---


def check(host: Host, request: Any, right: Right, name: str) -> None:
    """Refuse unless the user of this request has a right."""
    if right != "read":
        _need_ordinary(request.vhost, name)
    user: str | None = request.actor
    if user is not None and not host.access.may(user, request.vhost, right, name):
        raise access_refused(f"access to '{name}' in vhost '{request.vhost}' refused for user '{user}'")


def _need_ordinary(vhost: str, name: str) -> None:
    """The cluster's own queues are nobody's to change, the node's key included."""
    if system.is_system(vhost, name):
        raise access_refused(f"{arguments.resource('queue', name, vhost)} belongs to the cluster")


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.DeclareQueue: declare_queue,
    requests.DeleteQueue: delete_queue,
    requests.PurgeQueue: purge_queue,
    requests.CheckAliveness: check_aliveness,
    requests.DeclareExchange: declare_exchange,
    requests.DeleteExchange: delete_exchange,
    requests.Bind: bind,
    requests.Unbind: unbind,
}
