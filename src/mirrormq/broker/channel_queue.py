"""The queue class: declare, delete, purge, and bindings of queues.

The order of the checks is RabbitMQ's, because of two mistakes in one method the client is told about the
first. A change of the metadata is answered when it is applied and, for what outlives a restart, flushed.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from mirrormq.base.errors import access_refused, precondition_failed
from mirrormq.broker import arguments, replyto
from mirrormq.broker.channel_exchange import RESERVED_PREFIX, Ends, bind, unbind, without_line_ends
from mirrormq.broker.queueport import Counts, QueuePort
from mirrormq.meta import records, system
from mirrormq.meta.commands import DeclareQueue
from mirrormq.meta.state import Outcome
from mirrormq.wire import methods
from mirrormq.wire.methods import Method

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel


def on_declare(channel: "Channel", method: methods.QueueDeclare) -> None:
    """Create a queue, or check that the existing one is what the client thinks it is."""
    channel.host.census.churn["queue_declared"] += 1
    name = without_line_ends(method.queue)
    if name.startswith(replyto.QUEUE):
        replyto.declare(channel, method, name)
    elif method.passive:
        _answer_declare(channel, method, channel.queue(name), is_use=False)
    else:
        _declare(channel, method, name)


def on_delete(channel: "Channel", method: methods.QueueDelete) -> None:
    """Delete a queue; one that does not exist counts as deleted."""
    name = without_line_ends(channel.queue_name(method.queue))
    channel.check("configure", "queue", name)
    if name not in channel.vhost.queues:
        _answer_delete(channel, method, 0)
        return
    queue = channel.queue(name, may_be_damaged=True)
    later = queue.delete(if_unused=method.if_unused, if_empty=method.if_empty)
    channel.wait_for(method, later, lambda count: _answer_delete(channel, method, count))


def on_purge(channel: "Channel", method: methods.QueuePurge) -> None:
    """Remove all messages nobody holds."""
    name = channel.queue_name(method.queue)
    channel.check("read", "queue", name)
    if system.is_system(channel.vhost.name, name):
        raise access_refused(f"{channel.text('queue', name)} belongs to the cluster and cannot be purged")
    channel.wait(method, channel.queue(name).purge(), lambda count: _answer_purge(channel, method, count))


def _answer_purge(channel: "Channel", method: methods.QueuePurge, count: int) -> None:
    if not method.nowait:
        channel.send(methods.QueuePurgeOk(count))


def on_bind(channel: "Channel", method: methods.QueueBind) -> None:
    """Bind a queue to an exchange."""
    answer = None if method.nowait else methods.QueueBindOk()
    bind(channel, method, _ends(channel, method), answer)


def on_unbind(channel: "Channel", method: methods.QueueUnbind) -> None:
    """Remove a binding of a queue."""
    unbind(channel, method, _ends(channel, method), methods.QueueUnbindOk())


def _ends(channel: "Channel", method: methods.QueueBind | methods.QueueUnbind) -> Ends:
    """With neither queue nor key, both are the name of the queue declared last."""
    queue = channel.queue_name(method.queue)
    key = method.routing_key
    if not method.queue and not key:
        key = queue
    return Ends(
        source=without_line_ends(method.exchange),
        kind="queue",
        destination=without_line_ends(queue),
        routing_key=key,
        arguments=method.arguments,
    )


# --- declare ------------------------------------------------------------------------------------


def _declare(channel: "Channel", method: methods.QueueDeclare, name: str) -> None:
    vhost = channel.vhost.name
    state = channel.host.state
    durable = method.durable and not method.exclusive
    owner = channel.connection.conn_id if method.exclusive else None
    table = arguments.with_default_type(
        method.arguments,
        state.vhosts[vhost].default_queue_type or None,
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
    )
    if not name:
        arguments.check_server_named(table)
        name = channel.generate("amq.gen")
    elif name.startswith(RESERVED_PREFIX):
        raise access_refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    channel.check("configure", "queue", name)
    existing = channel.vhost.queues.get(name)
    if existing is not None:
        if not existing.is_local:
            existing.may_use(
                channel.connection.conn_id
            )  # connections have numbers of their own on every node
        arguments.assert_queue_equivalent(
            existing.record, table, durable=durable, auto_delete=method.auto_delete, owner=owner
        )
        _answer_declare(channel, method, channel.host.partition.port(existing), is_use=True)
        return
    _check_new(channel, method, name, table)
    record = records.Queue(
        vhost=vhost,
        name=name,
        durable=durable,
        auto_delete=method.auto_delete,
        exclusive=method.exclusive,
        owner=owner,
        arguments=table,
    )
    record = msgspec.structs.replace(record, node=channel.host.place(record))
    if owner is not None:
        channel.connection.owns_queues = True
    channel.propose(
        method,
        DeclareQueue(record),
        lambda outcome: _declared(channel, method, name, outcome),
        wait=record.outlives_restart,
    )


def _check_new(channel: "Channel", method: methods.QueueDeclare, name: str, table: dict[str, Any]) -> None:
    vhost = channel.vhost.name
    limit = channel.host.state.vhost_limit(vhost, "max-queues")
    if limit is not None and system.count_in(channel.host.state, vhost) >= limit:
        raise precondition_failed(
            f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached"
        )
    dead_letters = arguments.exchange_argument("x-dead-letter-exchange", channel.text("queue", name), table)
    if dead_letters is not None:
        # Who declares the queue makes it read itself and write there; later no user is at hand to ask.
        channel.check("read", "queue", name)
        channel.check("write", "exchange", dead_letters)
    arguments.check_queue_arguments(
        vhost,
        name,
        table,
        durable=method.durable and not method.exclusive,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
    )


def _declared(channel: "Channel", method: methods.QueueDeclare, name: str, outcome: Outcome) -> None:
    if outcome.error == "exists":
        _declare(channel, method, name)  # somebody was faster while the command was under way
        return
    if outcome.error == "guard":
        _declare(channel, method, name)  # a node it was to be on died meanwhile: it is placed anew
        return
    if not outcome.ok:
        raise precondition_failed(outcome.detail)
    channel.last_queue = name
    if not method.nowait:
        channel.send(methods.QueueDeclareOk(name, 0, 0))


def _answer_declare(
    channel: "Channel", method: methods.QueueDeclare, queue: QueuePort, *, is_use: bool
) -> None:
    def answer(counts: Counts) -> None:
        channel.last_queue = queue.name
        if not method.nowait:
            channel.send(methods.QueueDeclareOk(queue.name, counts.messages, counts.consumers))

    channel.wait(method, queue.counts(is_use=is_use), answer)


def _answer_delete(channel: "Channel", method: methods.QueueDelete, count: int) -> None:
    if not method.nowait:
        channel.send(methods.QueueDeleteOk(count))


HANDLERS: dict[type[Method], Callable[["Channel", Any], None]] = {
    methods.QueueDeclare: on_declare,
    methods.QueueDelete: on_delete,
    methods.QueuePurge: on_purge,
    methods.QueueBind: on_bind,
    methods.QueueUnbind: on_unbind,
}
