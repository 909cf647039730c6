"""What the metadata holds: one frozen struct per kind of definition.

A record is never changed, only replaced, so a reference to one is a consistent view of it and a snapshot may
be encoded while commands go on. The `arguments` dicts belong to the record: nobody may change them after
construction. `identity` is the key of the record in its table. Field names are part of the file format
(docs/format/metadata.md).
"""

import base64
import hashlib
from typing import Any, Literal
from urllib.parse import quote_plus

import msgspec

Table = dict[str, Any]
"""A decoded AMQP field table, or a JSON object."""

DestinationType = Literal["queue", "exchange"]
ApplyTo = Literal["all", "queues", "exchanges"]


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Frozen; a field this version does not know is refused, never dropped."""


class VHost(_Record, frozen=True, tag="vhost"):
    """A name space of exchanges and queues."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = ""

    @property
    def identity(self) -> str:
        """Key in its table."""
        return self.name


class VHostLimits(_Record, frozen=True, tag="vhost-limits"):
    """`max-connections` and `max-queues` of a vhost; a negative number means no limit."""

    vhost: str
    limits: dict[str, int] = {}

    @property
    def identity(self) -> str:
        """Key in its table."""
        return self.vhost


class User(_Record, frozen=True, tag="user"):
    """Somebody who may log in. `limits` may hold `max-connections` and `max-channels`; negative: no limit.

    An empty `password_hash` means that no password opens the account (EXTERNAL still does).
    """

    name: str
    password_hash: str = ""
    hashing_algorithm: str = ""
    tags: tuple[str, ...] = ()
    limits: dict[str, int] = {}

    @property
    def identity(self) -> str:
        """Key in its table."""
        return self.name


class Permission(_Record, frozen=True, tag="permission"):
    """Three regular expressions over resource names: what a user may do in a vhost."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str

    @property
    def identity(self) -> tuple[str, str]:
        """Key in its table."""
        return (self.user, self.vhost)


class TopicPermission(_Record, frozen=True, tag="topic-permission"):
    """Regular expressions over routing keys of one topic exchange."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str

    @property
    def identity(self) -> tuple[str, str, str]:
        """Key in its table."""
        return (self.user, self.vhost, self.exchange)


class Exchange(_Record, frozen=True, tag="exchange"):
    """An exchange. `id` is given by the state machine and differs for each declaration of the same name."""

    vhost: str
    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = {}
    id: int = 0

    @property
    def identity(self) -> tuple[str, str]:
        """Key in its table."""
        return (self.vhost, self.name)


class Queue(_Record, frozen=True, tag="queue"):
    """A queue. `id` is given by the state machine; `owner` is the connection of an exclusive queue.

    `log_id` names its records on disk. It is drawn at random when the queue is declared: a crash can take
    back a declaration and its `id` with it, while records written for it are already there.
    """

    vhost: str
    name: str
    id: int = 0
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    owner: int | None = None
    arguments: Table = {}
    node: str = ""
    log_id: int = 0

    @property
    def identity(self) -> tuple[str, str]:
        """Key in its table."""
        return (self.vhost, self.name)

    @property
    def outlives_restart(self) -> bool:
        """An exclusive queue is never kept, even if it was declared durable."""
        return self.durable and not self.exclusive


BindingId = tuple[str, str, str, str, str, bytes]


class Binding(_Record, frozen=True, tag="binding"):
    """A rule from a source exchange to a queue or an exchange. Arguments are part of its identity."""

    vhost: str
    source: str
    destination: str
    destination_type: DestinationType
    routing_key: str
    arguments: Table = {}

    @property
    def identity(self) -> BindingId:
        """Key in its table."""
        marks = canonical(self.arguments) if self.arguments else b""
        return (self.vhost, self.source, self.destination_type, self.destination, self.routing_key, marks)

    @property
    def key(self) -> str:
        """`properties_key` of the management API: the quoted routing key, `~` and a hash of the arguments."""
        if not self.arguments:
            return quote_routing_key(self.routing_key) or "~"
        digest = hashlib.md5(canonical(self.arguments), usedforsecurity=False).digest()
        mark = base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
        return f"{quote_routing_key(self.routing_key)}~{mark}"


class Policy(_Record, frozen=True, tag="policy"):
    """Settings for every queue or exchange whose name matches; `operator` policies bound the others."""

    vhost: str
    name: str
    pattern: str
    definition: Table
    apply_to: ApplyTo = "all"
    priority: int = 0
    operator: bool = False

    @property
    def identity(self) -> tuple[str, str, bool]:
        """Key in its table."""
        return (self.vhost, self.name, self.operator)


class Parameter(_Record, frozen=True, tag="parameter"):
    """A runtime parameter of a component other than policies and limits, which have records of their own."""

    vhost: str
    component: str
    name: str
    value: Any

    @property
    def identity(self) -> tuple[str, str, str]:
        """Key in its table."""
        return (self.vhost, self.component, self.name)


class GlobalParameter(_Record, frozen=True, tag="global-parameter"):
    """A runtime parameter of the whole cluster."""

    name: str
    value: Any

    @property
    def identity(self) -> str:
        """Key in its table."""
        return self.name


class Session(_Record, frozen=True, tag="session"):
    """The last command of a node that was applied: `start` counts the starts of its data folder, `number` the
    commands since then. A command that is proposed again after a fail-over is recognised by it.
    """

    node: str
    start: int
    number: int

    @property
    def identity(self) -> str:
        """Key in its table."""
        return self.node


Record = (
    VHost
    | VHostLimits
    | User
    | Permission
    | TopicPermission
    | Exchange
    | Queue
    | Binding
    | Policy
    | Parameter
    | GlobalParameter
    | Session
)


def canonical(table: Table) -> bytes:
    """Bytes that are equal exactly when two argument tables are: names sorted, types kept apart."""
    return _mark(table).encode("utf-8", "surrogatepass")


def quote_routing_key(key: str) -> str:
    """Escape a routing key as the management API does: `+` for a space, %XX for all but `-_.` and letters."""
    return quote_plus(key, safe="").replace("~", "%7E")


def _mark(value: Any) -> str:
    """A textual form with the type in front, so that 1, True, 1.0 and "1" differ."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name!r}:{_mark(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_mark(item) for item in value) + "]"
    return f"{type(value).__name__}:{value!r}"
