"""The records of the metadata with the indexes that keep every command linear in what it touches.

All changes go through `put` and `drop`, which keep the indexes and a list of changes; `undo` takes that list
back, so a command either happens as a whole or leaves nothing behind. Rules live in `topology` and
`accounts`, not here.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any, Literal, NamedTuple

from mirrormq.base import staggered
from mirrormq.base.staggered import StaggeredDict
from mirrormq.meta.records import (
    Binding,
    BindingId,
    DestinationType,
    Exchange,
    GlobalParameter,
    Level,
    Node,
    Parameter,
    Permission,
    Policy,
    Queue,
    Rebalance,
    Record,
    Session,
    TopicPermission,
    User,
    VHost,
    VHostLimits,
    View,
)


class Change(NamedTuple):
    """One record put or deleted; `before` is the record that a put replaced."""

    kind: Literal["put", "delete"]
    record: Record
    before: Record | None = None


class Refused(Exception):
    """A rule forbids the command. Caught by `MetaState`, which undoes what the command had changed so far."""

    def __init__(self, error: str, detail: str, record: Record | None = None) -> None:
        """`error` is for programs, `detail` for people, `record` what stood in the way."""
        super().__init__(error, detail)
        self.error = error
        self.detail = detail
        self.record = record


class Tables:
    """One dict per kind of record, keyed by `identity`."""

    def __init__(self) -> None:
        """Empty tables."""
        self.vhosts: dict[str, VHost] = {}
        self.vhost_limits: dict[str, VHostLimits] = {}
        self.users: dict[str, User] = {}
        self.permissions: dict[tuple[str, str], Permission] = {}
        self.topic_permissions: dict[tuple[str, str, str], TopicPermission] = {}
        self.exchanges: dict[tuple[str, str], Exchange] = {}
        self.views: dict[tuple[str, str], View] = StaggeredDict(staggered.VIEWS)
        self.queues: dict[tuple[str, str], Queue] = StaggeredDict(staggered.QUEUES)
        self.bindings: dict[BindingId, Binding] = StaggeredDict(staggered.BINDINGS)
        self.policies: dict[tuple[str, str, bool], Policy] = {}
        self.parameters: dict[tuple[str, str, str], Parameter] = {}
        self.global_parameters: dict[str, GlobalParameter] = {}
        self.nodes: dict[str, Node] = {}
        self.levels: dict[str, Level] = {}
        self.rebalances: dict[str, Rebalance] = {}
        self.sessions: dict[tuple[str, bytes], Session] = {}
        self.last_id = 0
        self.changes: list[Change] = []
        self._ranked: dict[tuple[str, bool], tuple[Policy, ...]] = {}
        self._views_of: dict[str, dict[tuple[str, str], None]] = {}
        self._views_unled: dict[tuple[str, str], None] = {}
        self._tables: dict[type, dict[Any, Any]] = {
            VHost: self.vhosts,
            VHostLimits: self.vhost_limits,
            User: self.users,
            Permission: self.permissions,
            TopicPermission: self.topic_permissions,
            Exchange: self.exchanges,
            View: self.views,  # before the queue, so that whoever hears of that finds its view heard of
            Queue: self.queues,
            Binding: self.bindings,
            Policy: self.policies,
            Parameter: self.parameters,
            GlobalParameter: self.global_parameters,
            Node: self.nodes,
            Level: self.levels,
            Rebalance: self.rebalances,
            Session: self.sessions,
        }
        self._indexes: dict[str, dict[Any, dict[Any, Any]]] = {
            name: {} for indexes in _INDEXES.values() for name, _ in indexes
        }

    # --- changing ---

    def put(self, record: Record) -> None:
        """Add or replace a record; the same record again is no change."""
        table = self._tables[type(record)]
        identity = record.identity
        before = table.get(identity)
        if before == record:
            return
        table[identity] = record
        if isinstance(record, View):
            self._index_view(record.identity, before, record)
        elif before is None:
            self._index(record, identity)
        else:
            self._reindex(before, record, identity)
        self.changes.append(Change("put", record, before))

    def drop(self, record: Record) -> None:
        """Remove a record that is in its table."""
        identity = record.identity
        del self._tables[type(record)][identity]
        if isinstance(record, View):
            self._index_view(record.identity, record, None)
        else:
            self._unindex(record, identity)
        self.changes.append(Change("delete", record))

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call and begin a new list."""
        changes, self.changes = self.changes, []
        return changes

    def undo(self) -> None:
        """Take back every change since the last `take_changes`, newest first."""
        for change in reversed(self.take_changes()):
            if change.kind == "delete":
                self.put(change.record)
            elif change.before is None:
                self.drop(change.record)
            else:
                self.put(change.before)
        self.changes.clear()

    def become(self, last_id: int, records: Iterable[Record]) -> list[Change]:
        """Hold exactly these records, in their order; returns what that changed, as watchers can follow it.

        A queue or exchange with another id is not the one of that name that was here: it was deleted and
        declared again meanwhile, and its bindings with it.
        """
        assert not self.changes, self.changes
        wanted = {(type(record), record.identity): record for record in records}
        renewed: set[tuple[str, str, str]] = set()
        declared: list[Queue | Exchange] = [*self.queues.values(), *self.exchanges.values()]
        for record in declared:
            after = wanted.get((type(record), record.identity))
            if isinstance(after, Queue | Exchange) and after.id != record.id:
                renewed.add((record.vhost, "queue" if isinstance(record, Queue) else "exchange", record.name))
        # Those that refer to others go first and come last.
        for old in reversed(list(self.records())):
            if (type(old), old.identity) not in wanted or not renewed.isdisjoint(_objects_of(old)):
                self.drop(old)
        for new in wanted.values():
            self.put(new)
        self.last_id = last_id
        self._reorder(wanted.values())
        return self.take_changes()

    def _reorder(self, records: Iterable[Record]) -> None:
        """Put what is held in the order it has on the nodes that saw it come."""
        for table in (*self._tables.values(), *self._indexes.values(), self._views_of, self._views_unled):
            table.clear()
        for record in records:
            self._tables[type(record)][record.identity] = record
            if isinstance(record, View):
                self._index_view(record.identity, None, record)
            else:
                self._index(record, record.identity)

    def next_id(self) -> int:
        """A number no queue or exchange has had before."""
        self.last_id += 1
        return self.last_id

    # --- asking ---

    def records(self) -> Iterator[Record]:
        """Every record; those that others refer to come first."""
        return chain.from_iterable(table.values() for table in self._tables.values())

    def exchanges_in(self, vhost: str) -> Collection[Exchange]:
        """Exchanges of a vhost in order of declaration."""
        return self._find("exchanges_in", vhost)

    def queues_in(self, vhost: str) -> Collection[Queue]:
        """Queues of a vhost in order of declaration."""
        return self._find("queues_in", vhost)

    def queues_on(self, node: str) -> Collection[Queue]:
        """Queues that have their master on a node."""
        return self._find("queues_on", node)

    def views_led_by(self, node: str) -> list[View]:
        """Views of the mirrored queues that have their master on a node."""
        found = (self.views.get(queue.identity) for queue in self.queues_on(node))
        return [view for view in found if view is not None]

    def views_unled(self) -> list[View]:
        """Views whose master was started again and has not been made the master since."""
        return [self.views[identity] for identity in self._views_unled]

    def views_of(self, node: str) -> list[View]:
        """Views in which a node is the master, a member, a learner or remembered as a former member."""
        return [self.views[identity] for identity in self._views_of.get(node, ())]

    def bindings_in(self, vhost: str) -> Collection[Binding]:
        """Bindings of a vhost in order of creation; those of the default exchange are implied, not stored."""
        return self._find("bindings_in", vhost)

    def bindings_from(self, vhost: str, source: str) -> Collection[Binding]:
        """Bindings whose source is this exchange."""
        return self._find("bindings_from", (vhost, source))

    def bindings_to(self, vhost: str, kind: DestinationType, name: str) -> Collection[Binding]:
        """Bindings that lead to this queue or exchange."""
        return self._find("bindings_to", (vhost, kind, name))

    def policies_in(self, vhost: str) -> Collection[Policy]:
        """Policies and operator policies of a vhost."""
        return self._find("policies_in", vhost)

    def ranked_policies(self, vhost: str, *, operator: bool) -> tuple[Policy, ...]:
        """Policies of a vhost in the order in which they are tried: by priority, then by name."""
        ranked = self._ranked.get((vhost, operator))
        if ranked is None:
            found = [policy for policy in self.policies_in(vhost) if policy.operator == operator]
            ranked = tuple(sorted(found, key=lambda policy: (-policy.priority, policy.name)))
            self._ranked[vhost, operator] = ranked
        return ranked

    def parameters_in(self, vhost: str) -> Collection[Parameter]:
        """Runtime parameters of a vhost."""
        return self._find("parameters_in", vhost)

    def permissions_of(self, user: str) -> Collection[Permission]:
        """Permissions of a user in all vhosts."""
        return self._find("permissions_of", user)

    def permissions_in(self, vhost: str) -> Collection[Permission]:
        """Permissions of all users in a vhost."""
        return self._find("permissions_in", vhost)

    def topic_permissions_of(self, user: str) -> Collection[TopicPermission]:
        """Topic permissions of a user in all vhosts."""
        return self._find("topic_permissions_of", user)

    def topic_permissions_in(self, vhost: str) -> Collection[TopicPermission]:
        """Topic permissions of all users in a vhost."""
        return self._find("topic_permissions_in", vhost)

    def limited_users(self) -> Collection[User]:
        """Users that have limits."""
        return self._find("users_by_limits", True)

    def queues_owned_by(self, owner: int) -> Collection[Queue]:
        """Exclusive queues of a connection."""
        return self._find("queues_owned_by", owner)

    @property
    def level(self) -> int:
        """The feature level of the cluster."""
        found = self.levels.get("level")
        return found.level if found is not None else 1

    @property
    def rebalance(self) -> Rebalance | None:
        """The rebalancing under way."""
        return self.rebalances.get("rebalance")

    def _find(self, index: str, key: object) -> Collection[Any]:
        found = self._indexes[index].get(key)
        return () if found is None else found.values()

    def _index_view(self, identity: tuple[str, str], before: View | None, after: View | None) -> None:
        """Most changes of a view leave the nodes in it as they are, and then there is little to do."""
        if after is not None and after.members[0].is_restarted:
            self._views_unled[identity] = None
        else:
            self._views_unled.pop(identity, None)
        old, new = _nodes_of(before), _nodes_of(after)
        if old == new:
            return
        for node in old:
            if node not in new:
                found = self._views_of[node]
                del found[identity]
                if not found:
                    del self._views_of[node]
        for node in new:
            if node not in old:
                if node not in self._views_of:
                    self._views_of[node] = StaggeredDict(staggered.VIEWS_OF)
                self._views_of[node][identity] = None

    def _index(self, record: Record, identity: object) -> None:
        if isinstance(record, Policy):
            self._ranked.pop((record.vhost, record.operator), None)
        for name, key_of in _INDEXES[type(record)]:
            self._enter(name, key_of(record), identity, record)

    def _reindex(self, before: Record, record: Record, identity: object) -> None:
        """Put a record in the place of another. Where the key is the same, its place in the order is, too."""
        if isinstance(record, Policy):
            self._ranked.pop((record.vhost, record.operator), None)
        for name, key_of in _INDEXES[type(record)]:
            old, new = key_of(before), key_of(record)
            if old != new:
                self._strike(name, old, identity)
            self._enter(name, new, identity, record)

    def _unindex(self, record: Record, identity: object) -> None:
        if isinstance(record, Policy):
            self._ranked.pop((record.vhost, record.operator), None)
        for name, key_of in _INDEXES[type(record)]:
            self._strike(name, key_of(record), identity)

    def _enter(self, name: str, key: object, identity: object, record: Record) -> None:
        # Nobody asks for what has no key, and there is much of it: almost no queue has an owner.
        if key is None:
            return
        index = self._indexes[name]
        members = index.get(key)
        if members is None:
            members = index[key] = StaggeredDict(_PLACES[name]) if name in _PLACES else {}
        members[identity] = record

    def _strike(self, name: str, key: object, identity: object) -> None:
        if key is None:
            return
        index = self._indexes[name]
        members = index[key]
        del members[identity]
        if not members:
            del index[key]


def _objects_of(record: Record) -> tuple[tuple[str, str, str], ...]:
    """The queues and exchanges a record cannot outlive, as (vhost, kind, name)."""
    if isinstance(record, Binding):
        return (
            (record.vhost, record.destination_type, record.destination),
            (record.vhost, "exchange", record.source),
        )
    if isinstance(record, Queue | View):
        return ((record.vhost, "queue", record.name),)
    if isinstance(record, Exchange):
        return ((record.vhost, "exchange", record.name),)
    return ()


def _nodes_of(view: View | None) -> set[str]:
    """Nodes that are named in a view."""
    if view is None:
        return set()
    nodes = {entry.node for entry in view.members}
    if view.learners:
        nodes.update([entry.node for entry in view.learners])
    if view.last_in_sync:
        nodes.update([entry.node for entry in view.last_in_sync])
    return nodes


_PLACES = {
    "queues_in": staggered.QUEUES_IN,
    "queues_on": staggered.QUEUES_ON,
    "bindings_in": staggered.BINDINGS_IN,
    "bindings_from": staggered.BINDINGS_FROM,
}
"""Indexes in which very many records may have one key."""

_INDEXES: dict[type, tuple[tuple[str, Callable[[Any], object]], ...]] = {
    VHost: (),
    VHostLimits: (),
    User: (("users_by_limits", lambda u: bool(u.limits)),),
    Permission: (("permissions_of", lambda p: p.user), ("permissions_in", lambda p: p.vhost)),
    TopicPermission: (
        ("topic_permissions_of", lambda p: p.user),
        ("topic_permissions_in", lambda p: p.vhost),
    ),
    Exchange: (("exchanges_in", lambda x: x.vhost),),
    Queue: (
        ("queues_in", lambda q: q.vhost),
        ("queues_owned_by", lambda q: q.owner),
        ("queues_on", lambda q: q.node),
    ),
    Binding: (
        ("bindings_in", lambda b: b.vhost),
        ("bindings_from", lambda b: (b.vhost, b.source)),
        ("bindings_to", lambda b: (b.vhost, b.destination_type, b.destination)),
    ),
    Policy: (("policies_in", lambda p: p.vhost),),
    Parameter: (("parameters_in", lambda p: p.vhost),),
    GlobalParameter: (),
    Node: (),
    Level: (),
    Rebalance: (),
    Session: (),
}
