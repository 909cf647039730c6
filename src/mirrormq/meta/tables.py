"""The records of the metadata with the indexes that keep every command linear in what it touches.

All changes go through `put` and `drop`, which keep the indexes and a list of changes; `undo` takes that list
back, so a command either happens as a whole or leaves nothing behind. Rules live in `topology` and
`accounts`, not here.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from mirrormq.meta.records import (
    Binding,
    BindingId,
    DestinationType,
    Exchange,
    GlobalParameter,
    Parameter,
    Permission,
    Policy,
    Queue,
    Record,
    Session,
    TopicPermission,
    User,
    VHost,
    VHostLimits,
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
        self.queues: dict[tuple[str, str], Queue] = {}
        self.bindings: dict[BindingId, Binding] = {}
        self.policies: dict[tuple[str, str, bool], Policy] = {}
        self.parameters: dict[tuple[str, str, str], Parameter] = {}
        self.global_parameters: dict[str, GlobalParameter] = {}
        self.sessions: dict[str, Session] = {}
        self.last_id = 0
        self.changes: list[Change] = []
        self._ranked: dict[tuple[str, bool], tuple[Policy, ...]] = {}
        self._tables: dict[type, dict[Any, Any]] = {
            VHost: self.vhosts,
            VHostLimits: self.vhost_limits,
            User: self.users,
            Permission: self.permissions,
            TopicPermission: self.topic_permissions,
            Exchange: self.exchanges,
            Queue: self.queues,
            Binding: self.bindings,
            Policy: self.policies,
            Parameter: self.parameters,
            GlobalParameter: self.global_parameters,
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
        if before is not None:
            self._unindex(before, identity)
        table[identity] = record
        self._index(record, identity)
        self.changes.append(Change("put", record, before))

    def drop(self, record: Record) -> None:
        """Remove a record that is in its table."""
        identity = record.identity
        del self._tables[type(record)][identity]
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
        """Hold exactly these records; returns what that changed, in an order that watchers can follow."""
        assert not self.changes, self.changes
        wanted = {(type(record), record.identity): record for record in records}
        # Those that refer to others go first and come last.
        for record in reversed(list(self.records())):
            if (type(record), record.identity) not in wanted:
                self.drop(record)
        for record in wanted.values():
            self.put(record)
        self.last_id = last_id
        return self.take_changes()

    def next_id(self) -> int:
        """A number no queue or exchange has had before."""
        self.last_id += 1
        return self.last_id

    # --- asking ---

    def records(self) -> Iterator[Record]:
        """Every record; those that others refer to come first."""
        for table in self._tables.values():
            yield from table.values()

    def exchanges_in(self, vhost: str) -> Collection[Exchange]:
        """Exchanges of a vhost in order of declaration."""
        return self._find("exchanges_in", vhost)

    def queues_in(self, vhost: str) -> Collection[Queue]:
        """Queues of a vhost in order of declaration."""
        return self._find("queues_in", vhost)

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

    def queues_owned_by(self, owner: int) -> Collection[Queue]:
        """Exclusive queues of a connection."""
        return self._find("queues_owned_by", owner)

    def _find(self, index: str, key: object) -> Collection[Any]:
        found = self._indexes[index].get(key)
        return () if found is None else found.values()

    def _index(self, record: Record, identity: object) -> None:
        if isinstance(record, Policy):
            self._ranked.pop((record.vhost, record.operator), None)
        for name, key_of in _INDEXES[type(record)]:
            self._indexes[name].setdefault(key_of(record), {})[identity] = record

    def _unindex(self, record: Record, identity: object) -> None:
        if isinstance(record, Policy):
            self._ranked.pop((record.vhost, record.operator), None)
        for name, key_of in _INDEXES[type(record)]:
            index = self._indexes[name]
            key = key_of(record)
            members = index[key]
            del members[identity]
            if not members:
                del index[key]


_INDEXES: dict[type, tuple[tuple[str, Callable[[Any], object]], ...]] = {
    VHost: (),
    VHostLimits: (),
    User: (),
    Permission: (("permissions_of", lambda p: p.user), ("permissions_in", lambda p: p.vhost)),
    TopicPermission: (
        ("topic_permissions_of", lambda p: p.user),
        ("topic_permissions_in", lambda p: p.vhost),
    ),
    Exchange: (("exchanges_in", lambda x: x.vhost),),
    Queue: (("queues_in", lambda q: q.vhost), ("queues_owned_by", lambda q: q.owner)),
    Binding: (
        ("bindings_in", lambda b: b.vhost),
        ("bindings_from", lambda b: (b.vhost, b.source)),
        ("bindings_to", lambda b: (b.vhost, b.destination_type, b.destination)),
    ),
    Policy: (("policies_in", lambda p: p.vhost),),
    Parameter: (("parameters_in", lambda p: p.vhost),),
    GlobalParameter: (),
    Session: (),
}
