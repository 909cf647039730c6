"""What policies say about mirroring: on which nodes a queue should be, how to get there, when to risk a loss.

Guarantees
- A step towards the wanted nodes never leaves fewer in-sync copies than there were, unless the policy itself
  wants fewer: a copy that is not wanted goes when enough wanted ones are in sync, not before.
- The master moves only to a member that is live and in sync.
- A lossy promotion is allowed only by `ha-promote-on-failure: always` after a failure, and by
  `ha-promote-on-shutdown: always` after an orderly stop, unless the policy itself says
  `ha-promote-on-failure: when-synced`.

Everything here is a pure function. Durations in policies are milliseconds, as in RabbitMQ's.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from mirrormq.base import limits
from mirrormq.meta import policy, policy_keys
from mirrormq.meta.commands import HaDefaults, ViewChange
from mirrormq.meta.records import Node, Queue, Table, View
from mirrormq.meta.tables import Tables

Mode = Literal["none", "all", "exactly", "nodes"]
SyncMode = Literal["automatic", "manual"]
Promote = Literal["when-synced", "always"]
Salvage = Literal["queue", "requeue", "drop"]


class Mirroring(NamedTuple):
    """The settings of one queue; `copies` belongs to the mode `exactly`, `nodes` to the mode `nodes`."""

    mode: Mode
    copies: int = 1
    nodes: tuple[str, ...] = ()
    sync_mode: SyncMode = "automatic"
    sync_batch_size: int = limits.ha_sync_batch_size
    sync_bytes_per_second: int = 0
    on_shutdown: Promote = "when-synced"
    on_failure: Promote = "when-synced"
    is_failure_set: bool = False
    replace_delay_ms: int = limits.ha_replace_delay_ms
    mirror_timeout_ms: int = limits.ha_mirror_timeout_ms
    min_in_sync: int = 1
    salvage: Salvage = "queue"
    is_async: bool = False
    """Publishes are confirmed by the master's own flush: a member may lack some of what was confirmed."""


class Step(NamedTuple):
    """The next change of a view; `start` is that of the node, where one is added."""

    change: ViewChange
    node: str
    start: int = 0


def mirroring_of(tables: Tables, queue: Queue, defaults: HaDefaults) -> Mirroring:
    """The settings of a queue by its arguments and its policies."""
    return settings(queue, policy.effective(tables, queue).definition, defaults)


def async_of(tables: Tables, queue: Queue) -> Mirroring | None:
    """The settings of a queue that is replicated asynchronously; None of any other.

    There may be thousands of queues, and of most vhosts no policy says so.
    """
    for one in tables.ranked_policies(queue.vhost, operator=False):
        if "ha-replication" in one.definition:
            found = mirroring_of(tables, queue, "safe")
            return found if found.is_async else None
    return None


def settings(queue: Queue, definition: Table, defaults: HaDefaults) -> Mirroring:
    """The settings of a queue by its arguments and the definition that applies to it."""
    is_quorum = queue.arguments.get("x-queue-type") == "quorum"
    mode: Mode = definition.get("ha-mode", "none")
    if queue.exclusive:
        mode = "none"
    params = definition.get("ha-params")
    found = Mirroring(
        mode,
        copies=params if isinstance(params, int) else 1,
        nodes=tuple(params) if isinstance(params, list) else (),
        sync_mode=definition.get("ha-sync-mode", "manual" if defaults == "rabbitmq" else "automatic"),
        sync_batch_size=definition.get("ha-sync-batch-size", limits.ha_sync_batch_size),
        sync_bytes_per_second=policy_keys.size_of(definition.get("ha-sync-max-throughput", 0)) or 0,
        on_shutdown=definition.get("ha-promote-on-shutdown", "when-synced"),
        on_failure=definition.get(
            "ha-promote-on-failure", "always" if defaults == "rabbitmq" else "when-synced"
        ),
        is_failure_set="ha-promote-on-failure" in definition,
        replace_delay_ms=definition.get("ha-replace-delay", limits.ha_replace_delay_ms),
        mirror_timeout_ms=definition.get("ha-mirror-timeout", limits.ha_mirror_timeout_ms),
        min_in_sync=definition.get("ha-min-in-sync", 1),
        salvage=definition.get("ha-salvage", "queue"),
        is_async=definition.get("ha-replication", "sync") == "async",
    )
    return _as_quorum(found, queue) if is_quorum else found


def _as_quorum(found: Mirroring, queue: Queue) -> Mirroring:
    """A quorum queue is mirrored on exactly so many nodes and never loses anything, whatever the defaults."""
    count = queue.arguments.get("x-quorum-initial-group-size")
    return found._replace(
        mode="exactly",
        copies=count if isinstance(count, int) else limits.quorum_group_size,
        sync_mode="automatic",
        on_shutdown="when-synced",
        on_failure="when-synced",
        is_failure_set=True,
        is_async=False,
    )


def may_lag(found: Mirroring) -> bool:
    """May a member take over although it may lack the last of what its master confirmed by itself?

    Who asks for asynchronous replication accepts that, unless the same policy says `when-synced`.
    """
    return not (found.is_failure_set and found.on_failure == "when-synced")


def may_waive(found: Mirroring) -> bool:
    """May the master act without a lease? Not if another node could take over with a loss meanwhile."""
    losses = [may_lose(found, is_stopped=is_stopped) for is_stopped in (False, True)]
    return not found.is_async and not any(losses)


def may_lose(found: Mirroring, *, is_stopped: bool) -> bool:
    """May a copy that is not in sync take over, because no other can?"""
    if not is_stopped:
        return found.on_failure == "always"
    return found.on_shutdown == "always" and not (found.is_failure_set and found.on_failure == "when-synced")


# --- which nodes -------------------------------------------------------------------------------------------


def hosts(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """The nodes that may have copies: a witness has none."""
    return {name: node for name, node in nodes.items() if node.role != "witness"}


def target(found: Mirroring, nodes: Mapping[str, Node]) -> int:
    """How many copies the policy wants in this cluster, dead nodes included."""
    able = hosts(nodes)
    if found.mode == "all":
        return max(1, len(able))
    if found.mode == "exactly":
        return max(1, min(found.copies, len(able)))
    return max(1, len([name for name in dict.fromkeys(found.nodes) if name in able]))


def wanted_at_birth(
    found: Mirroring, master: str, nodes: Mapping[str, Node], loads: Mapping[str, int], turn: int
) -> tuple[str, ...]:
    """The live nodes a new queue is to be in sync on, its master first."""
    return _wanted(found, (master,), nodes, _Spread({}, loads, turn))


def wanted(
    found: Mirroring,
    view: View,
    nodes: Mapping[str, Node],
    held: Mapping[str, int],
    loads: Mapping[str, int],
) -> tuple[str, ...]:
    """The nodes a mirrored queue should have, those that it has before others.

    `held` are nodes that went away less than `ha-replace-delay` ago, and when: `exactly` keeps their places
    free, and gives them a place before others if they are back, the last one first: the place is free since
    then, and what that node has of the queue is still there.
    `loads` are numbers of queues, or anything else of which less is better.
    """
    return _wanted(found, _ranked(view, nodes), nodes, _Spread(held, loads, view.id))


class _Spread(NamedTuple):
    held: Mapping[str, int]
    loads: Mapping[str, int]
    turn: int


def _wanted(
    found: Mirroring, current: tuple[str, ...], nodes: Mapping[str, Node], spread: _Spread
) -> tuple[str, ...]:
    able = hosts(nodes)
    live = [name for name, node in able.items() if node.is_live]
    if found.mode == "all":
        return tuple(dict.fromkeys(name for name in (*current, *live) if name in able))
    if found.mode == "nodes":
        listed = [name for name in dict.fromkeys(found.nodes) if name in live or name in current]
        # None of them is there: the queue stays where it is.
        return tuple(sorted(listed, key=_order(current))) or current[:1]
    if found.mode == "none":
        return current[:1]
    kept = [name for name in current if name in live or name in spread.held][: found.copies]
    away = [name for name in spread.held if name not in kept and name not in live]
    free = max(0, found.copies - len(kept) - len(away))
    # Who is in maintenance keeps what it has, and gets nothing new: it is about to stop.
    others = [name for name in live if name not in kept and not nodes[name].is_drained]
    return (*kept, *_least_loaded(others, spread)[:free])


def _least_loaded(names: Sequence[str], spread: _Spread) -> list[str]:
    """Equals take turns, or the first by name would get every queue."""
    names = sorted(names)
    at = spread.turn % len(names) if names else 0
    held = spread.held
    rank = {name: (name not in held, -held.get(name, 0), spread.loads.get(name, 0)) for name in names}
    return sorted((*names[at:], *names[:at]), key=rank.__getitem__)


def _ranked(view: View, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    """Nodes of a view, those first that should stay if not all can."""
    mirrors = [entry.node for entry in view.members[1:]]
    names = [view.master, *mirrors, *(entry.node for entry in view.learners)]
    return tuple(sorted(names, key=lambda name: name != view.master and not is_live(nodes, name)))


def _order(current: tuple[str, ...]) -> "_Order":
    return _Order({name: at for at, name in enumerate(current)})


class _Order:
    """Sorts names that are there before the others, which stay in their order."""

    def __init__(self, places: dict[str, int]) -> None:
        self._places = places

    def __call__(self, name: str) -> int:
        """The place of a name."""
        return self._places.get(name, len(self._places))


def is_live(nodes: Mapping[str, Node], name: str) -> bool:
    """Is a node there?"""
    node = nodes.get(name)
    return node is not None and node.is_live


# --- how to get there --------------------------------------------------------------------------------------


def next_step(
    view: View, wanted_nodes: Sequence[str], target_count: int, nodes: Mapping[str, Node]
) -> Step | None:
    """The next change of a view towards the wanted nodes; None if it is there, or has to wait.

    Copies are added first, but not where there is one with messages that only it has (`View.partings`): it
    waits until they are salvaged. The master leaves a node that is not wanted as soon as a wanted one is in
    sync.
    """
    there = {entry.node for entry in view.members} | {entry.node for entry in view.learners}
    for name in wanted_nodes:
        if name not in there and is_live(nodes, name) and view.parting_of(name) is None:
            return Step("add_learner", name, nodes[name].start)
    ready = [
        entry.node
        for entry in view.members
        if entry.node in wanted_nodes and not entry.is_restarted and is_live(nodes, entry.node)
    ]
    if view.master not in wanted_nodes and ready:
        return Step("transfer", min(ready, key=lambda name: nodes[name].is_drained))
    for learner in view.learners:
        if learner.node not in wanted_nodes:
            return Step("remove_learner", learner.node)
    if len(ready) >= min(target_count, len(view.members)):
        for member in reversed(view.members[1:]):
            if member.node not in wanted_nodes:
                return Step("remove", member.node)
    return None


def move_step(view: View, to: str, nodes: Mapping[str, Node]) -> Step | None:
    """The next change on the way to another master; None if it is there, or has to wait for a sync.

    While a queue moves, `to` counts as wanted in `next_step`, or its copy would be taken away again.
    """
    if view.master == to or not is_live(nodes, to) or view.parting_of(to) is not None:
        return None
    member = view.member(to)
    if member is not None:
        return None if member.is_restarted else Step("transfer", to)
    return None if view.learner(to) is not None else Step("add_learner", to, nodes[to].start)
