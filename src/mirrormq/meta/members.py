"""Rules for the nodes of the cluster: what their coming and going means for what they hold.

A queue that does not outlive a restart goes when its node is restarted or declared dead; a durable one waits
for its node, and goes only when that is forgotten. What becomes of mirrored queues stands in `views`. A node
is known by its start: what was decided about one start says nothing about the next, and starts only grow.
"""

import msgspec

from mirrormq.meta import balance, commands, views
from mirrormq.meta.records import Level, Node, Queue, Record
from mirrormq.meta.tables import Refused, Tables
from mirrormq.meta.topology import auto_delete, drop_bindings, drop_queue


def node_restarted(tables: Tables, command: commands.NodeRestarted) -> Record:
    """Drop what does not outlive a restart. A durable auto-delete exchange stays, even without bindings."""
    name = command.node
    before = tables.nodes.get(name)
    role = before.role if before is not None else "voter"
    address = command.address or (before.address if before is not None else "")
    is_drained = before is not None and before.is_drained
    node = Node(name, address, role, command.start, is_live=True, level=command.level, is_drained=is_drained)
    balance.release_of(tables, name, before_start=command.start)
    if not command.alone:
        if before is not None and command.start < before.start:
            raise Refused("guard", f"node '{name}' has been started again", before)
        nodes = {**tables.nodes, name: node}
        _drop_queues(tables, [*_volatile(tables, name), *views.on_restarted(tables, nodes, name, node.start)])
        if before is not None and before.start == command.start:
            # Told twice, and called dead in between: it is back as it was.
            views.on_returned(tables, nodes, name)
        tables.put(node)
        return node
    views.on_alone(tables, name, command.start)
    for other in list(tables.nodes.values()):
        if other.name != name:
            tables.drop(other)
            balance.release_of(tables, other.name)
    tables.put(node)
    for queue in list(tables.queues.values()):
        if not queue.outlives_restart:
            drop_queue(tables, queue)
        elif queue.node != name:
            tables.put(msgspec.structs.replace(queue, node=name))
    for exchange in list(tables.exchanges.values()):
        if not exchange.durable:
            for binding in list(tables.bindings_from(exchange.vhost, exchange.name)):
                tables.drop(binding)
            drop_bindings(tables, tables.bindings_to(exchange.vhost, "exchange", exchange.name))
            tables.drop(exchange)
    return node


def put_node(tables: Tables, command: commands.PutNode) -> Record:
    """Let a node in, or change its address or role. What is known of its starts stays."""
    wanted = command.node
    known = tables.nodes.get(wanted.name)
    if known is not None:
        wanted = msgspec.structs.replace(
            known, address=wanted.address, role=wanted.role, level=max(known.level, wanted.level)
        )
    tables.put(wanted)
    return wanted


def forget_node(tables: Tables, command: commands.ForgetNode) -> Record:
    """Drop a node with the queues whose only copy it had."""
    name = command.name
    node = _node(tables, name)
    nodes = {other: record for other, record in tables.nodes.items() if other != name}
    alone = [queue for queue in tables.queues_on(name) if queue.identity not in tables.views]
    _drop_queues(tables, [*alone, *views.on_forgotten(tables, nodes, name)])
    balance.release_of(tables, name)
    for session in [one for one in tables.sessions.values() if one.node == name]:
        tables.drop(session)
    tables.drop(node)
    return node


def node_dead(tables: Tables, command: commands.NodeDead) -> Record:
    """Drop what lived in the memory of a node that is gone, and find others for what it was the master of."""
    node = _node(tables, command.node)
    if node.start != command.start:
        raise Refused("guard", f"node '{node.name}' has been started again", node)
    if not node.is_live:
        return node
    if node.returns != command.returns:
        raise Refused("guard", f"node '{node.name}' has come back since", node)
    balance.release_of(tables, node.name)
    node = msgspec.structs.replace(node, is_live=False)
    nodes = views.staying({**tables.nodes, node.name: node}, command.departed)
    lost = views.on_dead(tables, nodes, node.name, command.ha_defaults)
    _drop_queues(tables, [*_volatile(tables, node.name), *lost])
    tables.put(node)
    return node


def node_returned(tables: Tables, command: commands.NodeReturned) -> Record:
    """Count a node as live again."""
    node = _node(tables, command.node)
    if node.start != command.start:
        raise Refused("guard", f"node '{node.name}' has been started again", node)
    node = msgspec.structs.replace(node, is_live=True, returns=node.returns + 1)
    views.on_returned(tables, {**tables.nodes, node.name: node}, node.name)
    tables.put(node)
    return node


def set_level(tables: Tables, command: commands.SetLevel) -> Record:
    """Raise the feature level."""
    if command.level < tables.level:
        raise Refused("in_use", f"the feature level is {tables.level} and cannot be lowered")
    behind = sorted(node.name for node in tables.nodes.values() if node.level < command.level)
    if behind:
        raise Refused("limit", f"feature level {command.level} is not known to {', '.join(behind)}")
    level = Level(command.level)
    tables.put(level)
    return level


def _volatile(tables: Tables, name: str) -> list[Queue]:
    """Queues that only the memory of a node held."""
    return [
        queue
        for queue in tables.queues_on(name)
        if not queue.outlives_restart and queue.identity not in tables.views
    ]


def _drop_queues(tables: Tables, queues: list[Queue]) -> None:
    emptied: dict[tuple[str, str], None] = {}
    for queue in queues:
        emptied |= drop_queue(tables, queue)
    auto_delete(tables, emptied)


def _node(tables: Tables, name: str) -> Node:
    node = tables.nodes.get(name)
    if node is None:
        raise Refused("missing", f"no node '{name}'")
    return node
