"""What can be listed, declared, deleted, closed and purged: paths, arguments and their kinds."""

from __future__ import annotations

from dataclasses import dataclass, field

TEXT, BOOLEAN, NUMBER, JSON, VALUE = "text", "boolean", "number", "JSON", "value"
"""Kinds of arguments. VALUE is JSON if it is that, and a text otherwise."""

DESTINATION = {"queue": "q", "exchange": "e", "q": "q", "e": "e"}
"""How destination types stand in paths."""


@dataclass(frozen=True)
class Listed:
    """Something to list."""

    path: str
    columns: tuple[str, ...] = ()
    """What is shown if nothing is asked for; nothing is everything."""
    whole: tuple[str, ...] = ()
    """Columns that are shown as JSON."""
    scope: bool = False
    """There is a path for one virtual host; otherwise rows are chosen here."""
    vhost: str = "vhost"
    """The column that names the virtual host; empty if it has none."""


@dataclass(frozen=True)
class Declared:
    """Something to declare: its path, what must be said of it, and what may, with defaults."""

    path: tuple[str, ...]
    """Parts; `{name}` is the argument of that name."""
    needs: tuple[str, ...]
    takes: dict[str, object] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    either: tuple[str, ...] = ()
    """One of these must be there, too."""
    verb: str = "PUT"


@dataclass(frozen=True)
class Deleted:
    """Something to delete, close or purge."""

    path: tuple[str, ...]
    needs: tuple[str, ...]
    takes: dict[str, object] = field(default_factory=dict)


LISTS = {
    "connections": Listed("connections", ("name", "user", "channels")),
    "channels": Listed("channels", ("name", "user")),
    "consumers": Listed("consumers", scope=True, vhost="queue.vhost"),
    "exchanges": Listed("exchanges", ("name", "type"), scope=True),
    "queues": Listed("queues", ("name", "messages"), scope=True),
    "bindings": Listed("bindings", ("source", "destination", "routing_key"), scope=True),
    "users": Listed("users", vhost=""),
    "vhosts": Listed("vhosts", ("name", "messages"), vhost=""),
    "permissions": Listed("permissions"),
    "nodes": Listed("nodes", ("name", "type", "mem_used"), vhost=""),
    "parameters": Listed("parameters", whole=("value",)),
    "policies": Listed("policies", whole=("definition",), scope=True),
    "operator_policies": Listed("operator-policies", whole=("definition",), scope=True),
    "vhost_limits": Listed("vhost-limits", whole=("value",)),
}
SHOWS = {
    "overview": Listed(
        "overview",
        ("rabbitmq_version", "cluster_name", "queue_totals.messages", "object_totals.queues"),
        vhost="",
    ),
}

_POLICY: dict[str, object] = {"priority": 0, "apply-to": None}
_POLICY_KINDS = {"definition": JSON, "priority": NUMBER}
_QUEUE_KINDS = {"durable": BOOLEAN, "auto_delete": BOOLEAN, "internal": BOOLEAN, "arguments": JSON}
_BINDING = ("bindings", "{vhost}", "e", "{source}", "{destination_type}", "{destination}")

DECLARES = {
    "exchange": Declared(
        ("exchanges", "{vhost}", "{name}"),
        ("name", "type"),
        {"auto_delete": "false", "durable": "true", "internal": "false", "arguments": None},
        _QUEUE_KINDS,
    ),
    "queue": Declared(
        ("queues", "{vhost}", "{name}"),
        ("name",),
        {"auto_delete": "false", "durable": "true", "arguments": None, "node": None, "queue_type": None},
        _QUEUE_KINDS,
    ),
    "binding": Declared(
        _BINDING,
        ("source", "destination"),
        {"destination_type": "queue", "routing_key": "", "arguments": None},
        {"arguments": JSON},
        verb="POST",
    ),
    "vhost": Declared(("vhosts", "{name}"), ("name",), {"tracing": None}, {"tracing": BOOLEAN}),
    "user": Declared(
        ("users", "{name}"),
        ("name", "tags"),
        {"password": None, "password_hash": None, "hashing_algorithm": None},
        either=("password", "password_hash"),
    ),
    "permission": Declared(
        ("permissions", "{vhost}", "{user}"), ("vhost", "user", "configure", "write", "read")
    ),
    "parameter": Declared(
        ("parameters", "{component}", "{vhost}", "{name}"),
        ("component", "name", "value"),
        {},
        {"value": JSON},
    ),
    "policy": Declared(
        ("policies", "{vhost}", "{name}"), ("name", "pattern", "definition"), _POLICY, _POLICY_KINDS
    ),
    "operator_policy": Declared(
        ("operator-policies", "{vhost}", "{name}"), ("name", "pattern", "definition"), _POLICY, _POLICY_KINDS
    ),
    "vhost_limit": Declared(
        ("vhost-limits", "{vhost}", "{name}"), ("vhost", "name", "value"), {}, {"value": VALUE}
    ),
}
DELETES = {
    "exchange": Deleted(("exchanges", "{vhost}", "{name}"), ("name",)),
    "queue": Deleted(("queues", "{vhost}", "{name}"), ("name",)),
    "binding": Deleted(
        (*_BINDING, "{properties_key}"),
        ("source", "destination_type", "destination"),
        {"properties_key": "~"},
    ),
    "vhost": Deleted(("vhosts", "{name}"), ("name",)),
    "user": Deleted(("users", "{name}"), ("name",)),
    "permission": Deleted(("permissions", "{vhost}", "{user}"), ("vhost", "user")),
    "parameter": Deleted(("parameters", "{component}", "{vhost}", "{name}"), ("component", "name")),
    "policy": Deleted(("policies", "{vhost}", "{name}"), ("name",)),
    "operator_policy": Deleted(("operator-policies", "{vhost}", "{name}"), ("name",)),
    "vhost_limit": Deleted(("vhost-limits", "{vhost}", "{name}"), ("vhost", "name")),
}
CLOSES = {"connection": Deleted(("connections", "{name}"), ("name",))}
PURGES = {"queue": Deleted(("queues", "{vhost}", "{name}", "contents"), ("name",))}
PUBLISH = Declared(
    ("exchanges", "{vhost}", "{exchange}", "publish"),
    ("routing_key",),
    {"payload": None, "properties": "{}", "exchange": "amq.default", "payload_encoding": "string"},
    {"properties": JSON},
)
GET = Declared(
    ("queues", "{vhost}", "{queue}", "get"),
    ("queue",),
    {"count": "1", "ackmode": "ack_requeue_true", "payload_file": None, "encoding": "auto"},
    {"count": NUMBER},
)
