"""Rules for vhosts, exchanges, queues and bindings: what a command changes, and when it is refused.

A binding exists only while both its ends do. An auto-delete exchange goes with its last binding as a source,
which may take further exchanges with it; one that never had a binding stays.
"""

from collections.abc import Iterable

import msgspec

from mirrormq.meta import commands, system, views
from mirrormq.meta.records import Binding, Exchange, Queue, Record, VHost
from mirrormq.meta.tables import Refused, Tables

PREDECLARED: tuple[tuple[str, str, bool], ...] = (
    ("", "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
    ("amq.topic", "topic", False),
)
"""Name, type and `internal` of the exchanges every vhost is born with."""

EVENT_EXCHANGE, EVENT_VHOST = "amq.rabbitmq.event", "/"
"""Where the nodes tell what happens, and the vhost that is born with it."""

PREDECLARED_NAMES = frozenset(name for name, _, _ in PREDECLARED) | {EVENT_EXCHANGE}


def put_vhost(tables: Tables, command: commands.PutVHost) -> Record:
    """Create a vhost with its exchanges, or change the description of one."""
    vhost = command.vhost
    existing = tables.vhosts.get(vhost.name)
    is_new = existing is None
    if existing is not None:
        via = vhost.via if vhost.mirror_of == existing.mirror_of else existing.via
        vhost = msgspec.structs.replace(vhost, mirror_of=existing.mirror_of, via=via)
    tables.put(vhost)
    if is_new:
        own = ((EVENT_EXCHANGE, "topic", True),) if vhost.name == EVENT_VHOST else ()
        for name, kind, internal in (*PREDECLARED, *own):
            tables.put(
                Exchange(vhost=vhost.name, name=name, type=kind, internal=internal, id=tables.next_id())
            )
    return vhost


def promote_mirror(tables: Tables, command: commands.PromoteMirror) -> Record:
    """Make an ordinary vhost of a mirror."""
    vhost = msgspec.structs.replace(_vhost(tables, command.name), mirror_of="", via=())
    tables.put(vhost)
    return vhost


def delete_vhost(tables: Tables, command: commands.DeleteVHost) -> Record:
    """Remove a vhost and everything in it, contents first so that a watcher never sees an orphan."""
    name = command.name
    vhost = _vhost(tables, name)
    contents: tuple[Iterable[Record], ...] = (
        tables.bindings_in(name),
        tables.queues_in(name),
        [view for queue in tables.queues_in(name) if (view := tables.views.get(queue.identity))],
        tables.exchanges_in(name),
        tables.policies_in(name),
        tables.parameters_in(name),
        tables.permissions_in(name),
        tables.topic_permissions_in(name),
    )
    for records in contents:
        for record in list(records):
            tables.drop(record)
    if name in tables.vhost_limits:
        tables.drop(tables.vhost_limits[name])
    tables.drop(vhost)
    return vhost


def declare_exchange(tables: Tables, command: commands.DeclareExchange) -> Record:
    """Create an exchange."""
    wanted = command.exchange
    _vhost(tables, wanted.vhost)
    existing = tables.exchanges.get(wanted.identity)
    if existing is not None and command.or_keep:
        return existing
    if existing is not None:
        raise Refused("exists", f"exchange '{wanted.name}' in vhost '{wanted.vhost}' exists", existing)
    exchange = msgspec.structs.replace(wanted, id=tables.next_id())
    tables.put(exchange)
    return exchange


def delete_exchange(tables: Tables, command: commands.DeleteExchange) -> Record:
    """Remove an exchange and the bindings at both of its ends."""
    exchange = tables.exchanges.get((command.vhost, command.name))
    if exchange is None:
        raise Refused("missing", f"no exchange '{command.name}' in vhost '{command.vhost}'")
    if command.name in PREDECLARED_NAMES:
        raise Refused("reserved", f"exchange '{command.name}' is part of every vhost", exchange)
    if command.if_unused and tables.bindings_from(command.vhost, command.name):
        raise Refused("in_use", f"exchange '{command.name}' in vhost '{command.vhost}' in use", exchange)
    for binding in list(tables.bindings_from(command.vhost, command.name)):
        tables.drop(binding)
    emptied = drop_bindings(tables, tables.bindings_to(command.vhost, "exchange", command.name))
    tables.drop(exchange)
    auto_delete(tables, emptied)
    return exchange


def declare_queue(tables: Tables, command: commands.DeclareQueue) -> Record:
    """Create a queue, unless the vhost has as many as its limit allows."""
    wanted = command.queue
    _vhost(tables, wanted.vhost)
    existing = tables.queues.get(wanted.identity)
    if existing is not None and command.or_keep:
        return existing
    if existing is not None:
        raise Refused("exists", f"queue '{wanted.name}' in vhost '{wanted.vhost}' exists", existing)
    limit = vhost_limit(tables, wanted.vhost, "max-queues")
    is_counted = not system.is_system(wanted.vhost, wanted.name)
    if limit is not None and is_counted and system.count_in(tables, wanted.vhost) >= limit:
        raise Refused(
            "limit",
            f"cannot declare queue '{wanted.name}': "
            f"queue limit in vhost '{wanted.vhost}' ({limit}) is reached",
        )
    queue = msgspec.structs.replace(wanted, id=tables.next_id())
    if command.members:
        views.begin_mirrored(tables, queue, command.members)
    tables.put(queue)
    return queue


def delete_queue(tables: Tables, command: commands.DeleteQueue) -> Record:
    """Remove a queue and its bindings."""
    queue = tables.queues.get((command.vhost, command.name))
    if queue is None or command.id not in (None, queue.id):
        raise Refused("missing", f"no queue '{command.name}' in vhost '{command.vhost}'")
    auto_delete(tables, drop_queue(tables, queue))
    return queue


def bind(tables: Tables, command: commands.Bind) -> Record | None:
    """Add a binding between two ends that exist."""
    wanted = command.binding
    try:
        _check_ends(tables, wanted)
    except Refused:
        if command.or_skip:
            return None
        raise
    existing = tables.bindings.get(wanted.identity)
    if existing is not None:
        return existing
    tables.put(wanted)
    return wanted


def unbind(tables: Tables, command: commands.Unbind) -> Record:
    """Remove a binding."""
    wanted = command.binding
    _check_ends(tables, wanted)
    existing = tables.bindings.get(wanted.identity)
    if existing is None:
        raise Refused(
            "missing", f"no binding '{wanted.routing_key}' from '{wanted.source}' to '{wanted.destination}'"
        )
    tables.drop(existing)
    auto_delete(tables, {(existing.vhost, existing.source): None})
    return existing


def connection_gone(tables: Tables, command: commands.ConnectionGone) -> None:
    """Drop the exclusive queues of a connection."""
    emptied: dict[tuple[str, str], None] = {}
    for queue in list(tables.queues_owned_by(command.owner)):
        if queue.exclusive and (not command.node or queue.node == command.node):
            emptied |= drop_queue(tables, queue)
    auto_delete(tables, emptied)


def vhost_limit(tables: Tables, vhost: str, name: str) -> int | None:
    """A limit of a vhost, or None for no limit."""
    record = tables.vhost_limits.get(vhost)
    limit = -1 if record is None else record.limits.get(name, -1)
    return None if limit < 0 else limit


def _vhost(tables: Tables, name: str) -> VHost:
    vhost = tables.vhosts.get(name)
    if vhost is None:
        raise Refused("no_vhost", f"no vhost '{name}'")
    return vhost


def _check_ends(tables: Tables, binding: Binding) -> None:
    if (binding.vhost, binding.source) not in tables.exchanges:
        raise Refused("no_source", f"no exchange '{binding.source}' in vhost '{binding.vhost}'")
    ends = tables.queues if binding.destination_type == "queue" else tables.exchanges
    if (binding.vhost, binding.destination) not in ends:
        raise Refused(
            "no_destination",
            f"no {binding.destination_type} '{binding.destination}' in vhost '{binding.vhost}'",
        )


def drop_queue(tables: Tables, queue: Queue) -> dict[tuple[str, str], None]:
    """Drop a queue with its bindings and its view; returns the exchanges that lost one."""
    emptied = drop_bindings(tables, tables.bindings_to(queue.vhost, "queue", queue.name))
    tables.drop(queue)
    view = tables.views.get(queue.identity)
    if view is not None:
        tables.drop(view)
    return emptied


def drop_bindings(tables: Tables, bindings: Iterable[Binding]) -> dict[tuple[str, str], None]:
    """Drop bindings and return their sources, each once and in order (a dict, because sets have none)."""
    sources: dict[tuple[str, str], None] = {}
    for binding in list(bindings):
        tables.drop(binding)
        sources[(binding.vhost, binding.source)] = None
    return sources


def auto_delete(tables: Tables, sources: dict[tuple[str, str], None]) -> None:
    """Delete auto-delete exchanges that just lost their last binding, and then what that empties in turn.

    A loop, not a recursion: a long chain of exchanges must not meet Python's stack limit.
    """
    waiting = list(sources)
    while waiting:
        identity = waiting.pop()
        exchange = tables.exchanges.get(identity)
        if exchange is None or not exchange.auto_delete or tables.bindings_from(*identity):
            continue
        emptied = drop_bindings(tables, tables.bindings_to(exchange.vhost, "exchange", exchange.name))
        tables.drop(exchange)
        waiting.extend(emptied)
