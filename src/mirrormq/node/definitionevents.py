"""Which events a change of a definition is, by RabbitMQ's names, without `user_who_performed_action`.

Guarantee: what is told follows from the change alone. No event holds a password or its hash.
"""

from collections.abc import Callable
from typing import Any

from mirrormq.meta import records
from mirrormq.meta.tables import Change

Event = tuple[str, dict[str, Any]]


def events_of(change: Change) -> list[Event]:
    """What happened; nothing if nobody is told of such a change."""
    describe = _DEFINITIONS.get(type(change.record))
    return [] if describe is None else describe(change)


def is_told(record: records.Record) -> bool:
    """Are changes of such a record told of?"""
    return type(record) in _DEFINITIONS


def _born(change: Change, kind: str, headers: dict[str, Any]) -> list[Event]:
    """Something that is created and deleted; a change of it is no event."""
    if change.kind == "delete":
        return [(f"{kind}.deleted", headers)]
    return [(f"{kind}.created", headers)] if change.before is None else []


def _set(change: Change, kind: str, headers: dict[str, Any]) -> list[Event]:
    """Something that is set, as often as one likes, and cleared."""
    return [(f"{kind}.set" if change.kind == "put" else f"{kind}.cleared", headers)]


def _queue(change: Change) -> list[Event]:
    record: Any = change.record
    headers = {"name": record.name, "vhost": record.vhost, "durable": record.durable}
    headers |= {"auto_delete": record.auto_delete, "exclusive": record.exclusive, "master": record.node}
    return _born(change, "queue", headers)


def _exchange(change: Change) -> list[Event]:
    record: Any = change.record
    headers = {"name": record.name, "vhost": record.vhost, "type": record.type, "durable": record.durable}
    headers |= {"auto_delete": record.auto_delete, "internal": record.internal}
    return _born(change, "exchange", headers)


def _binding(change: Change) -> list[Event]:
    record: Any = change.record
    headers = {"source_name": record.source, "vhost": record.vhost, "routing_key": record.routing_key}
    headers |= {"destination_name": record.destination, "destination_kind": record.destination_type}
    return [("binding.created" if change.kind == "put" else "binding.deleted", headers)]


def _policy(change: Change) -> list[Event]:
    record: Any = change.record
    headers = {"name": record.name, "vhost": record.vhost, "pattern": record.pattern}
    headers |= {"priority": record.priority, "apply-to": record.apply_to, "operator": record.operator}
    return _set(change, "policy", {**headers, "definition": record.definition})


def _parameter(change: Change) -> list[Event]:
    record: Any = change.record
    headers = {"component": record.component, "name": record.name, "vhost": record.vhost}
    return _set(change, "parameter", headers)


def _vhost(change: Change) -> list[Event]:
    record: Any = change.record
    return _born(change, "vhost", {"name": record.name})


def _vhost_limits(change: Change) -> list[Event]:
    record: Any = change.record
    return _set(change, "vhost.limits", {"name": "limits", "vhost": record.vhost, "limits": record.limits})


def _user(change: Change) -> list[Event]:
    record: Any = change.record
    before: Any = change.before
    found = _born(change, "user", {"name": record.name})
    if found or before is None:
        return found
    if record.password_hash != before.password_hash:
        key = "user.password.changed" if record.password_hash else "user.password.cleared"
        found.append((key, {"name": record.name}))
    if record.tags != before.tags:
        found.append(("user.tags.set", {"name": record.name, "tags": list(record.tags)}))
    if record.limits != before.limits:
        key = "user.limits.set" if record.limits else "user.limits.cleared"
        found.append((key, {"name": record.name, "limits": record.limits}))
    return found


def _permission(change: Change) -> list[Event]:
    record: Any = change.record
    headers = {"user": record.user, "vhost": record.vhost}
    headers |= {"configure": record.configure, "write": record.write, "read": record.read}
    return [("permission.created" if change.kind == "put" else "permission.deleted", headers)]


def _topic_permission(change: Change) -> list[Event]:
    record: Any = change.record
    headers = {"user": record.user, "vhost": record.vhost, "exchange": record.exchange}
    headers |= {"write": record.write, "read": record.read}
    key = "topic.permission.created" if change.kind == "put" else "topic.permission.deleted"
    return [(key, headers)]


_DEFINITIONS: dict[type, Callable[[Change], list[Event]]] = {
    records.Queue: _queue,
    records.Exchange: _exchange,
    records.Binding: _binding,
    records.Policy: _policy,
    records.Parameter: _parameter,
    records.VHost: _vhost,
    records.VHostLimits: _vhost_limits,
    records.User: _user,
    records.Permission: _permission,
    records.TopicPermission: _topic_permission,
}
