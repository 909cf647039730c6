"""Rules for maintenance and rebalancing: which nodes should be masters of nothing, and who moves masters.

Guarantees
- At most one rebalancing is under way in a cluster. Its record is the lock; it names the start of the node
  that carries it out, and goes when that start ends, however it ends.
- A node stays in maintenance over restarts, until it is brought back or forgotten.
"""

import msgspec

from mirrormq.meta import commands
from mirrormq.meta.records import Rebalance, Record
from mirrormq.meta.tables import Refused, Tables


def set_drained(tables: Tables, command: commands.SetDrained) -> Record:
    """Put a node into maintenance, or bring it back."""
    node = tables.nodes.get(command.node)
    if node is None:
        raise Refused("missing", f"no node '{command.node}'")
    node = msgspec.structs.replace(node, is_drained=command.is_drained)
    tables.put(node)
    return node


def begin_rebalance(tables: Tables, command: commands.BeginRebalance) -> Record:
    """Take the lock."""
    held = tables.rebalance
    if held is not None:
        raise Refused("in_use", f"node '{held.node}' is rebalancing", held)
    node = tables.nodes.get(command.node)
    if node is None or not node.is_live or node.start != command.start:
        raise Refused("guard", f"node '{command.node}' has been started again")
    taken = Rebalance(
        command.node, command.start, tables.next_id(), command.trigger, command.strategy, command.since
    )
    tables.put(taken)
    return taken


def end_rebalance(tables: Tables, command: commands.EndRebalance) -> Record | None:
    """Give the lock back, unless it went with its node and is another one's by now."""
    held = tables.rebalance
    if held is not None and held.number == command.number:
        tables.drop(held)
        return held
    return None


def cancel_rebalance(tables: Tables, _command: commands.CancelRebalance) -> Record:
    """Have the one under way end; its node gives the lock back."""
    held = tables.rebalance
    if held is None:
        raise Refused("missing", "no rebalancing is under way")
    held = msgspec.structs.replace(held, is_cancelled=True)
    tables.put(held)
    return held


def release_of(tables: Tables, node: str, before_start: int | None = None) -> None:
    """A node has ended, or all its starts before this one: nobody carries out what it had begun."""
    held = tables.rebalance
    if held is not None and held.node == node and (before_start is None or held.start < before_start):
        tables.drop(held)
