"""The exchange class: declare, delete, and bindings, for exchanges and (with channel_queue) for queues.

A binding is a right to write to its destination and to read from its source, so both are checked.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrormq.base.errors import access_refused, not_found, precondition_failed
from mirrormq.broker import arguments, exchange
from mirrormq.meta import records
from mirrormq.meta.commands import Bind, DeclareExchange, DeleteExchange, Unbind
from mirrormq.meta.state import Outcome
from mirrormq.wire import methods
from mirrormq.wire.methods import Method

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel

RESERVED_PREFIX = "amq."


class Ends(NamedTuple):
    """What a bind or unbind is about."""

    source: str
    kind: records.DestinationType
    destination: str
    routing_key: str
    arguments: Mapping[str, Any]

    def binding(self, vhost: str) -> records.Binding:
        """The record of it."""
        return records.Binding(
            vhost=vhost,
            source=self.source,
            destination=self.destination,
            destination_type=self.kind,
            routing_key=self.routing_key,
            arguments=dict(self.arguments),
        )


# --- declare and delete -------------------------------------------------------------------------


def on_declare(channel: "Channel", method: methods.ExchangeDeclare) -> None:
    """Create an exchange, or check that the existing one is what the client thinks it is."""
    name = without_line_ends(method.exchange)
    if method.passive:
        _check_not_default(name)
        channel.exchange(name)
        _answer(channel, method)
        return
    exchange.check_type(method.type)
    _check_not_default(name)
    channel.check("configure", "exchange", name)
    existing = channel.host.state.exchanges.get((channel.vhost.name, name))
    if existing is not None:
        _compare(existing, method)
        _answer(channel, method)
        return
    if name.startswith(RESERVED_PREFIX):
        raise access_refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
    where = channel.text("exchange", name)
    alternate = arguments.exchange_argument("alternate-exchange", where, method.arguments)
    if alternate is not None:
        channel.check("read", "exchange", name)
        channel.check("write", "exchange", alternate)
    exchange.check_declare(channel.vhost.name, name, method.type, method.arguments)
    record = records.Exchange(
        vhost=channel.vhost.name,
        name=name,
        type=method.type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=method.arguments,
    )
    channel.propose(
        method,
        DeclareExchange(record),
        lambda outcome: _declared(channel, method, outcome),
        wait=method.durable,
    )


def on_delete(channel: "Channel", method: methods.ExchangeDelete) -> None:
    """Delete an exchange; one that does not exist counts as deleted."""
    name = without_line_ends(method.exchange)
    _check_not_default(name)
    if name.startswith(RESERVED_PREFIX):
        raise access_refused(f"deletion of system {channel.text('exchange', name)} not allowed")
    channel.check("configure", "exchange", name)
    existing = channel.host.state.exchanges.get((channel.vhost.name, name))
    if existing is None:
        _answer(channel, method)
        return
    channel.propose(
        method,
        DeleteExchange(channel.vhost.name, name, method.if_unused),
        lambda outcome: _deleted(channel, method, name, outcome),
        wait=existing.durable,
    )


def _declared(channel: "Channel", method: methods.ExchangeDeclare, outcome: Outcome) -> None:
    if outcome.error == "exists":
        # Somebody was faster while the command was under way. The outcome need not hold the record: a node
        # that was behind may have heard of its refusal by a snapshot.
        on_declare(channel, method)
        return
    if not outcome.ok:
        raise precondition_failed(outcome.detail)
    _answer(channel, method)


def _deleted(channel: "Channel", method: methods.ExchangeDelete, name: str, outcome: Outcome) -> None:
    if outcome.error == "in_use":
        raise precondition_failed(f"{channel.text('exchange', name)} in use")
    _answer(channel, method)


def _compare(existing: records.Exchange, method: methods.ExchangeDeclare) -> None:
    arguments.assert_exchange_equivalent(
        existing,
        method.type,
        method.arguments,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
    )


def _check_not_default(name: str) -> None:
    if not name:
        raise access_refused("operation not permitted on the default exchange")


def _answer(channel: "Channel", method: methods.ExchangeDeclare | methods.ExchangeDelete) -> None:
    if method.nowait:
        return
    if isinstance(method, methods.ExchangeDeclare):
        channel.send(methods.ExchangeDeclareOk())
    else:
        channel.send(methods.ExchangeDeleteOk())


# --- bindings -----------------------------------------------------------------------------------


def on_bind(channel: "Channel", method: methods.ExchangeBind) -> None:
    """Bind an exchange to an exchange."""
    bind(channel, method, _ends(method), None if method.nowait else methods.ExchangeBindOk())


def on_unbind(channel: "Channel", method: methods.ExchangeUnbind) -> None:
    """Remove a binding between exchanges."""
    unbind(channel, method, _ends(method), None if method.nowait else methods.ExchangeUnbindOk())


def bind(channel: "Channel", method: Method, ends: Ends, answer: Method | None) -> None:
    """Add a binding; one that exists already is no mistake."""
    _check_rights(channel, ends)
    state = channel.host.state
    vhost = channel.vhost.name
    source = state.exchanges.get((vhost, ends.source))
    if source is None:
        raise not_found(f"no {channel.text('exchange', ends.source)}")
    destination = _destination(channel, ends)
    if destination is None:
        raise not_found(f"no {channel.text(ends.kind, ends.destination)}")
    exchange.check_binding(source.type, ends.routing_key, ends.arguments)
    _check_owner(channel, destination)

    def done(outcome: Outcome) -> None:
        if not outcome.ok:
            raise not_found(outcome.detail)
        if answer is not None:
            channel.send(answer)

    channel.propose(
        method, Bind(ends.binding(vhost)), done, wait=source.durable and _outlives_restart(destination)
    )


def unbind(channel: "Channel", method: Method, ends: Ends, answer: Method | None) -> None:
    """Remove a binding; one that does not exist, or whose ends do not, counts as removed."""
    _check_rights(channel, ends)
    state = channel.host.state
    vhost = channel.vhost.name
    source = state.exchanges.get((vhost, ends.source))
    destination = _destination(channel, ends)
    binding = ends.binding(vhost)
    if source is None or destination is None or binding.identity not in state.bindings:
        if answer is not None:
            channel.send(answer)
        return
    _check_owner(channel, destination)

    def done(_: Outcome) -> None:
        if answer is not None:
            channel.send(answer)

    channel.propose(method, Unbind(binding), done, wait=source.durable and _outlives_restart(destination))


def _ends(method: methods.ExchangeBind | methods.ExchangeUnbind) -> Ends:
    return Ends(
        source=without_line_ends(method.source),
        kind="exchange",
        destination=without_line_ends(method.destination),
        routing_key=method.routing_key,
        arguments=method.arguments,
    )


def _check_rights(channel: "Channel", ends: Ends) -> None:
    channel.check("write", ends.kind, ends.destination)
    if ends.kind == "exchange":
        _check_not_default(ends.destination)
    _check_not_default(ends.source)
    channel.check("read", "exchange", ends.source)
    source = channel.host.state.exchanges.get((channel.vhost.name, ends.source))
    if source is not None:
        channel.check_topic("read", source, ends.routing_key)


def _destination(channel: "Channel", ends: Ends) -> records.Queue | records.Exchange | None:
    key = (channel.vhost.name, ends.destination)
    state = channel.host.state
    return state.queues.get(key) if ends.kind == "queue" else state.exchanges.get(key)


def _check_owner(channel: "Channel", destination: records.Queue | records.Exchange) -> None:
    if not isinstance(destination, records.Queue) or destination.owner is None:
        return
    # Connections have numbers of their own on every node.
    if destination.owner != channel.connection.conn_id or not channel.host.is_master(destination):
        raise arguments.locked(destination)


def _outlives_restart(record: records.Queue | records.Exchange) -> bool:
    return record.outlives_restart if isinstance(record, records.Queue) else record.durable


def without_line_ends(name: str) -> str:
    """RabbitMQ removes line ends from names, because people paste them."""
    return name.replace("\n", "").replace("\r", "")


HANDLERS: dict[type[Method], Callable[["Channel", Any], None]] = {
    methods.ExchangeDeclare: on_declare,
    methods.ExchangeDelete: on_delete,
    methods.ExchangeBind: on_bind,
    methods.ExchangeUnbind: on_unbind,
}
