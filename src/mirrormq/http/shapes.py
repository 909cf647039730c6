"""What requests are answered with, as the OpenAPI document shows it.

A row may have more fields than its struct names, as RabbitMQ's rows do from version to version, and it has
fewer where `columns` asks for some: no field is promised to be there in every answer.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

Maybe = UnsetType
Table = dict[str, Any]


class Row(Struct, kw_only=True):
    """Any row."""


class Error(Struct, kw_only=True):
    """Why a request was refused: `error` is a kind, `reason` is for people."""

    error: str
    reason: Any


class WhoAmI(Row):
    """Who has logged in."""

    name: str | Maybe | None = UNSET
    tags: list[str] | Maybe = UNSET


class Named(Row):
    """A name."""

    name: str | Maybe = UNSET


class Overview(Row):
    """The cluster in short."""

    management_version: str | Maybe = UNSET
    rabbitmq_version: str | Maybe = UNSET
    mirrormq_version: str | Maybe = UNSET
    cluster_name: str | Maybe = UNSET
    node: str | Maybe = UNSET
    rates_mode: str | Maybe = UNSET
    queue_totals: Table | Maybe = UNSET
    object_totals: dict[str, int] | Maybe = UNSET
    message_stats: Table | Maybe = UNSET
    listeners: list[Table] | Maybe = UNSET
    contexts: list[Table] | Maybe = UNSET
    exchange_types: list[Table] | Maybe = UNSET


class Node(Row):
    """A node of the cluster."""

    name: str | Maybe = UNSET
    running: bool | Maybe = UNSET
    type: str | Maybe = UNSET
    partitions: list[str] | Maybe = UNSET
    mem_used: int | Maybe = UNSET
    mem_limit: int | Maybe = UNSET
    disk_free: int | Maybe = UNSET
    disk_free_limit: int | Maybe = UNSET
    uptime: int | Maybe = UNSET


class VHost(Row):
    """A virtual host."""

    name: str | Maybe = UNSET
    description: str | Maybe = UNSET
    tags: list[str] | Maybe = UNSET
    default_queue_type: str | Maybe = UNSET
    tracing: bool | Maybe = UNSET
    mirror_of: str | Maybe = UNSET
    cluster_state: dict[str, str] | Maybe = UNSET
    messages: int | Maybe = UNSET


class User(Row):
    """A user; never a password."""

    name: str | Maybe = UNSET
    password_hash: str | Maybe = UNSET
    hashing_algorithm: str | Maybe = UNSET
    tags: list[str] | Maybe = UNSET
    limits: Table | Maybe = UNSET


class Permission(Row):
    """What a user may do in a virtual host."""

    user: str | Maybe = UNSET
    vhost: str | Maybe = UNSET
    configure: str | Maybe = UNSET
    write: str | Maybe = UNSET
    read: str | Maybe = UNSET


class TopicPermission(Row):
    """What a user may write to and read from an exchange."""

    user: str | Maybe = UNSET
    vhost: str | Maybe = UNSET
    exchange: str | Maybe = UNSET
    write: str | Maybe = UNSET
    read: str | Maybe = UNSET


class Limits(Row):
    """Limits of a virtual host or a user."""

    vhost: str | Maybe = UNSET
    user: str | Maybe = UNSET
    value: Table | Maybe = UNSET


class Policy(Row):
    """A policy."""

    vhost: str | Maybe = UNSET
    name: str | Maybe = UNSET
    pattern: str | Maybe = UNSET
    apply_to: str | Maybe = field(default=UNSET, name="apply-to")
    definition: Table | Maybe = UNSET
    priority: int | Maybe = UNSET


class Parameter(Row):
    """A runtime parameter."""

    vhost: str | Maybe = UNSET
    component: str | Maybe = UNSET
    name: str | Maybe = UNSET
    value: Any | Maybe = UNSET


class Queue(Row):
    """A queue; a mirrored one has more (docs/mirroring.md)."""

    name: str | Maybe = UNSET
    vhost: str | Maybe = UNSET
    durable: bool | Maybe = UNSET
    auto_delete: bool | Maybe = UNSET
    exclusive: bool | Maybe = UNSET
    arguments: Table | Maybe = UNSET
    node: str | Maybe = UNSET
    type: str | Maybe = UNSET
    state: str | Maybe = UNSET
    policy: str | Maybe | None = UNSET
    operator_policy: str | Maybe | None = UNSET
    effective_policy_definition: Table | Maybe = UNSET
    consumers: int | Maybe = UNSET
    messages: int | Maybe = UNSET
    messages_ready: int | Maybe = UNSET
    messages_unacknowledged: int | Maybe = UNSET
    message_bytes: int | Maybe = UNSET
    memory: int | Maybe = UNSET
    message_stats: Table | Maybe = UNSET
    consumer_details: list[Table] | Maybe = UNSET


class Exchange(Row):
    """An exchange."""

    name: str | Maybe = UNSET
    vhost: str | Maybe = UNSET
    type: str | Maybe = UNSET
    durable: bool | Maybe = UNSET
    auto_delete: bool | Maybe = UNSET
    internal: bool | Maybe = UNSET
    arguments: Table | Maybe = UNSET
    policy: str | Maybe = UNSET
    message_stats: Table | Maybe = UNSET


class Binding(Row):
    """A binding."""

    source: str | Maybe = UNSET
    vhost: str | Maybe = UNSET
    destination: str | Maybe = UNSET
    destination_type: Literal["queue", "exchange"] | Maybe = UNSET
    routing_key: str | Maybe = UNSET
    arguments: Table | Maybe = UNSET
    properties_key: str | Maybe = UNSET


class Connection(Row):
    """A connection of a client."""

    name: str | Maybe = UNSET
    user_provided_name: str | Maybe | None = UNSET
    node: str | Maybe = UNSET
    user: str | Maybe | None = UNSET
    vhost: str | Maybe | None = UNSET
    state: str | Maybe = UNSET
    protocol: str | Maybe | None = UNSET
    ssl: bool | Maybe = UNSET
    peer_host: str | Maybe = UNSET
    peer_port: int | Maybe = UNSET
    channels: int | Maybe = UNSET
    client_properties: Table | Maybe = UNSET
    connected_at: int | Maybe = UNSET
    recv_oct: int | Maybe = UNSET
    send_oct: int | Maybe = UNSET


class Channel(Row):
    """A channel."""

    name: str | Maybe = UNSET
    number: int | Maybe = UNSET
    node: str | Maybe = UNSET
    user: str | Maybe | None = UNSET
    vhost: str | Maybe = UNSET
    state: str | Maybe = UNSET
    confirm: bool | Maybe = UNSET
    transactional: bool | Maybe = UNSET
    consumer_count: int | Maybe = UNSET
    prefetch_count: int | Maybe = UNSET
    messages_unacknowledged: int | Maybe = UNSET
    connection_details: Table | Maybe = UNSET


class Consumer(Row):
    """A consumer."""

    consumer_tag: str | Maybe = UNSET
    queue: Table | Maybe = UNSET
    channel_details: Table | Maybe = UNSET
    ack_required: bool | Maybe = UNSET
    exclusive: bool | Maybe = UNSET
    prefetch_count: int | Maybe = UNSET
    active: bool | Maybe = UNSET
    arguments: Table | Maybe = UNSET


class Message(Row):
    """A message that was got or looked at."""

    payload_bytes: int | Maybe = UNSET
    redelivered: bool | Maybe = UNSET
    exchange: str | Maybe = UNSET
    routing_key: str | Maybe = UNSET
    message_count: int | Maybe = UNSET
    properties: Table | Maybe = UNSET
    payload: str | Maybe = UNSET
    payload_encoding: Literal["string", "base64"] | Maybe = UNSET
    seq: int | Maybe = UNSET
    received_at: int | Maybe = UNSET


class Messages(Row):
    """The newest messages of a queue."""

    messages: list[Message] | Maybe = UNSET
    before: int | Maybe | None = UNSET


class Routed(Row):
    """Whether a queue took what was published."""

    routed: bool


class Health(Row):
    """What came of a check."""

    status: Literal["ok", "failed"]
    reason: str | Maybe = UNSET


class Member(Row):
    """A node with a copy of a queue."""

    node: str | Maybe = UNSET
    role: Literal["master", "mirror"] | Maybe = UNSET
    state: str | Maybe = UNSET
    in_sync: bool | Maybe = UNSET
    running: bool | Maybe = UNSET
    source: str | Maybe | None = UNSET
    received: int | Maybe | None = UNSET
    flushed: int | Maybe | None = UNSET
    lag: int | Maybe | None = UNSET
    progress: float | Maybe | None = UNSET
    bytes_sent: int | Maybe = UNSET


class View(Row):
    """Who has a copy of a queue, who sends to whom, how far each is."""

    vhost: str | Maybe = UNSET
    name: str | Maybe = UNSET
    mirrored: bool | Maybe = UNSET
    state: str | Maybe = UNSET
    master: str | Maybe | None = UNSET
    epoch: int | Maybe = UNSET
    ring: list[str] | Maybe = UNSET
    members: list[Member] | Maybe = UNSET
    marks: dict[str, int] | Maybe | None = UNSET
    sync: Table | Maybe | None = UNSET
    waits_for: list[str] | Maybe = UNSET
    problem: str | Maybe | None = UNSET


class Sync(Row):
    """How far the mirrors of a queue are."""

    vhost: str | Maybe = UNSET
    name: str | Maybe = UNSET
    master: str | Maybe | None = UNSET
    epoch: int | Maybe | None = UNSET
    state: str | Maybe | None = UNSET
    in_sync: list[str] | Maybe | None = UNSET
    unsynchronised: list[str] | Maybe | None = UNSET
    sync_progress: float | Maybe | None = UNSET
    mirrors: list[Table] | Maybe | None = UNSET
    messages: int | Maybe | None = UNSET


class Event(Row):
    """Something that happened; more fields say to whom."""

    seq: int | Maybe = UNSET
    v: int | Maybe = UNSET
    event: str | Maybe = UNSET
    at: int | Maybe = UNSET
    told_by: str | Maybe = UNSET
    name: str | Maybe | None = UNSET
    vhost: str | Maybe | None = UNSET


class Events(Row):
    """What happened, the newest last."""

    events: list[Event] | Maybe = UNSET
    before: int | Maybe | None = UNSET


class Cursor(Row):
    """A reader's place in a queue."""

    vhost: str | Maybe = UNSET
    queue: str | Maybe = UNSET
    name: str | Maybe = UNSET
    seq: int | Maybe = UNSET
    mode: Literal["cursor", "consume"] | Maybe = UNSET
    lag: int | Maybe = UNSET
    held_bytes: int | Maybe = UNSET
    reader: str | Maybe | None = UNSET
    lost: str | Maybe | None = UNSET


class Pipelines(Row):
    """Who reads and writes in bulk."""

    readers: list[Table] | Maybe = UNSET
    cursors: list[Cursor] | Maybe = UNSET
    sinks: list[Table] | Maybe = UNSET
    mirrors: list[Table] | Maybe = UNSET


class Attempts(Row):
    """Log-ins by protocol, maybe by where they came from."""

    protocol: str | Maybe = UNSET
    remote_address: str | Maybe = UNSET
    username: str | Maybe = UNSET
    auth_attempts: int | Maybe = UNSET
    auth_attempts_succeeded: int | Maybe = UNSET
    auth_attempts_failed: int | Maybe = UNSET
