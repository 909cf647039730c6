"""What requests bring: one struct per kind of body, as the OpenAPI document shows it.

A field that stands in no struct is refused with 400 (`describe`); those that RabbitMQ's own tools send beside
the path (`name`, `vhost`) or that mean nothing here are named so that they are taken. What a value may be is
for the handlers to say, with RabbitMQ's words.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

Flag = bool | Literal["true", "false"]
Tags = str | list[str]
Table = dict[str, Any]


class Body(Struct, forbid_unknown_fields=True, kw_only=True):
    """Any body. RabbitMQ's tools repeat there what the path says."""

    name: str | UnsetType = UNSET
    vhost: str | UnsetType = UNSET
    node: str | UnsetType = UNSET


class Nothing(Body):
    """Of a request that says everything by its path."""


class ClusterName(Body):
    """The name of the cluster."""

    name: str


class VHost(Body):
    """A virtual host."""

    description: str | UnsetType | None = UNSET
    tags: Tags | UnsetType | None = UNSET
    default_queue_type: str | UnsetType | None = UNSET
    mirror_of: str | UnsetType | None = UNSET
    tracing: Flag | UnsetType = UNSET
    metadata: Table | UnsetType = UNSET


class User(Body):
    """A user: with a password, a hash made elsewhere, or neither (no log-in by password).

    `limits` are added to those of an existing user. `permissions`, patterns by virtual host, are for a new
    user only. `administrator` says what `tags` say if these are not there.
    """

    tags: Tags | UnsetType = UNSET
    administrator: Flag | UnsetType = UNSET
    password: str | UnsetType = UNSET
    password_hash: str | UnsetType = UNSET
    hashing_algorithm: str | UnsetType = UNSET
    limits: Table | list[Any] | UnsetType | None = UNSET
    permissions: dict[str, Table] | list[Any] | UnsetType | None = UNSET


class LogIn(Body):
    """Who somebody says to be."""

    username: str
    password: str


class Users(Body):
    """Names of users."""

    users: list[str]


class Permission(Body):
    """Patterns of names a user may configure, write and read."""

    configure: str
    write: str
    read: str
    user: str | UnsetType = UNSET
    username: str | UnsetType = UNSET


class TopicPermission(Body):
    """Patterns of routing keys a user may write and read on an exchange."""

    exchange: str
    write: str
    read: str
    user: str | UnsetType = UNSET
    username: str | UnsetType = UNSET


class Limit(Body):
    """The value of a limit."""

    value: int
    user: str | UnsetType = UNSET


class Queue(Body):
    """A queue to be declared."""

    durable: Flag | UnsetType = UNSET
    auto_delete: Flag | UnsetType = UNSET
    arguments: Table | UnsetType = UNSET
    type: str | UnsetType = UNSET
    queue_type: str | UnsetType = UNSET
    exclusive: Flag | UnsetType = UNSET


class Exchange(Body):
    """An exchange to be declared."""

    type: str | UnsetType = UNSET
    durable: Flag | UnsetType = UNSET
    auto_delete: Flag | UnsetType = UNSET
    internal: Flag | UnsetType = UNSET
    arguments: Table | UnsetType = UNSET


class Binding(Body):
    """A binding to be made."""

    routing_key: str | UnsetType = UNSET
    arguments: Table | UnsetType = UNSET
    source: str | UnsetType = UNSET
    destination: str | UnsetType = UNSET
    destination_type: str | UnsetType = UNSET
    properties_key: str | UnsetType = UNSET


class Message(Body):
    """A message to be published; `payload_encoding`: string or base64."""

    routing_key: str
    payload: str
    payload_encoding: Literal["string", "base64"]
    properties: Table
    exchange: str | UnsetType = UNSET
    delivery_mode: int | str | UnsetType = UNSET
    headers: Table | UnsetType = UNSET
    props: Table | UnsetType = UNSET


class Get(Body):
    """How many messages to get, from where, and what becomes of them."""

    count: int | str
    encoding: Literal["auto", "base64"]
    ackmode: (
        Literal["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]
        | UnsetType
    ) = UNSET
    requeue: Flag | UnsetType = UNSET
    truncate: int | str | UnsetType = UNSET
    source: Literal["head", "tail"] | UnsetType = field(default=UNSET, name="from")
    queue: str | UnsetType = UNSET
    payload_file: str | UnsetType = UNSET


class Action(Body):
    """What to do with a queue: sync or cancel_sync."""

    action: str


class Move(Body):
    """The node that is to be the master."""

    node: str


class Promote(Body):
    """Who is to be the master, whether to try only, whether a loss is accepted."""

    plan: Flag | UnsetType = UNSET
    accept_loss: Flag | UnsetType = UNSET


class Policy(Body):
    """A policy."""

    pattern: str
    definition: Table
    priority: int | str | UnsetType = UNSET
    apply_to: str | UnsetType = field(default=UNSET, name="apply-to")
    type: str | UnsetType = UNSET


class Parameter(Body):
    """The value of a parameter."""

    value: Any
    component: str | UnsetType = UNSET


class Named(Body):
    """What RabbitMQ's pages send beside the path."""
