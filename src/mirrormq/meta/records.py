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
    mirror_of: str = ""
    """The cluster whose copy it is, read-only for clients; empty if it is an ordinary one."""
    via: tuple[str, ...] = ()
    """Of a mirror: clusters that its messages come through on their way from there, the nearest one first."""

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


class Merge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """A branch of a queue (`autoheal`) whose messages are on their way into it. `sources` are the numbers
    under which its node sends them: as long as they stand here the queue remembers what it has of them.
    `is_over`: all of them have arrived. It stays for a while, since another node that was the queue's master
    meanwhile may still offer what it was sent to the one after it.
    """

    node: str
    sources: tuple[int, ...]
    is_over: bool = False


class Queue(_Record, frozen=True, tag="queue"):
    """A queue. `id` is given by the state machine; `owner` is the connection of an exclusive queue.

    `log_id` names its records on disk. It is drawn at random when the queue is declared: a crash can take
    back a declaration and its `id` with it, while records written for it are already there. `merges` are the
    branches of it that nodes are bringing back after they were cut off, and the last ones that they brought.
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
    merges: tuple[Merge, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def identity(self) -> tuple[str, str]:
        """Key in its table."""
        return (self.vhost, self.name)

    @property
    def outlives_restart(self) -> bool:
        """An exclusive queue is never kept, even if it was declared durable."""
        return self.durable and not self.exclusive


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """An in-sync copy of a mirrored queue: it holds everything that was ever confirmed.

    `start` is the start of the node that the entry speaks of; `FORGOTTEN` if the node has been forgotten.
    `is_restarted`: the node was started again since, so it holds all that was flushed but nothing that was
    only received.
    """

    node: str
    start: int
    is_restarted: bool = False


class Learner(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """A copy that is not in sync. `is_restarted`: its node was started again since it was added."""

    node: str
    start: int
    is_restarted: bool = False


class Parting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """Nodes whose copies were in sync when one that was not took over, until what only they have is salvaged.

    `id` names what they have to the queue that gets it: they all have the same, and what one of them had up
    to the seq `reach` has been salvaged. `epoch` is that of the promotion. The rest is known (`is_known`)
    when the new master has told it: its log ended at `end` when it took over, with `epochs` ((epoch, first
    seq)…, the latest of them), and lacked `missing` ((first seq, last seq)…) of that. `latest`: the promotion
    whose master told it, or is to; `untold`: those before it whose masters never did.
    """

    id: int
    epoch: int
    nodes: tuple[str, ...]
    latest: int
    is_known: bool = False
    end: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    missing: tuple[tuple[int, int], ...] = ()
    untold: tuple[int, ...] = ()
    reach: int = 0


FORGOTTEN = -1
"""The start in the entry of a forgotten node: none that comes later under its name is taken for it."""


class View(_Record, frozen=True, tag="view"):
    """Who has a mirrored queue. A queue that was never mirrored has none, and is in epoch 1.

    `epoch` grows by one with every change. `members` are the in-sync ones: the master first, then in the
    order in which they joined; `learners` are in that order, too. `since` is the epoch in which the master
    took over. `drops_transient`: it took over after a restart, so the EPOCH record with which it begins drops
    transient messages. `last_in_sync` are the members that lossy promotions passed over, `losses` counts
    those promotions. `is_stopped`: the master went down in good order, and no mirror was in sync. `waiver`:
    the node that may act as the master without a lease, while all other members grant it that (`ignore`); who
    becomes the master instead of it first waits until what it has granted itself has run out.
    `partings` are those promotions as long as there are copies to be salvaged; `salvaged` and `dropped` count
    messages that only such copies had and that were moved, or given up because the policy says so.
    """

    vhost: str
    name: str
    id: int
    log_id: int
    epoch: int
    master: str
    members: tuple[Member, ...]
    learners: tuple[Learner, ...] = ()
    since: int = 1
    drops_transient: bool = False
    last_in_sync: tuple[Member, ...] = ()
    losses: int = 0
    is_stopped: bool = False
    partings: tuple[Parting, ...] = ()
    salvaged: int = 0
    dropped: int = 0
    waiver: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def identity(self) -> tuple[str, str]:
        """Key in its table: that of the queue."""
        return (self.vhost, self.name)

    def is_led_by(self, node: str, start: int) -> bool:
        """May this start of a node act as the master in this epoch, as long as it holds a lease?"""
        return self.members[0] == Member(node, start)

    def member(self, node: str) -> Member | None:
        """The entry of an in-sync node."""
        return next((entry for entry in self.members if entry.node == node), None)

    def learner(self, node: str) -> Learner | None:
        """The entry of a node that is not in sync."""
        return next((entry for entry in self.learners if entry.node == node), None)

    def parting_of(self, node: str) -> Parting | None:
        """The loss that passed a node over, if what the node has of the queue is not salvaged yet."""
        return next((one for one in self.partings if node in one.nodes), None)


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


class Node(_Record, frozen=True, tag="node"):
    """A node of the cluster: how the others reach it, and what the cluster knows of it.

    `role` is the one it is meant to have among those who vote on the metadata; it begins as a non-voter.
    `start` counts the starts of its data folder; `is_live`: that start has not been declared dead.
    `level` is the highest feature level its software knows. `returns` counts how often this start has come
    back after a time without a lease: whoever calls it dead must name the last time. `is_drained`: an
    operator has put it into maintenance, so it serves no clients and should be the master of nothing.
    """

    name: str
    address: str = ""
    role: str = "voter"
    start: int = 0
    is_live: bool = False
    level: int = 1
    returns: int = 0
    is_drained: bool = False

    @property
    def identity(self) -> str:
        """Key in its table."""
        return self.name


class Level(_Record, frozen=True, tag="level"):
    """The feature level of the cluster: what all its nodes may use, and new ones must know."""

    level: int

    @property
    def identity(self) -> str:
        """Key in its table, which holds one record."""
        return "level"


class Rebalance(_Record, frozen=True, tag="rebalance"):
    """The rebalancing under way, of which a cluster has at most one: this record is the lock.

    This `start` of `node` carries it out, `since` is when it began (wall µs), `number` no other has had.
    """

    node: str
    start: int
    number: int
    trigger: str
    strategy: str
    since: int
    is_cancelled: bool = False

    @property
    def identity(self) -> str:
        """Key in its table, which holds one record at most."""
        return "rebalance"


class Session(_Record, frozen=True, tag="session"):
    """The last command of a node that was applied: `start` counts the starts of its data folder, `number` the
    commands since then. A command that is proposed again after a fail-over is recognised by it.

    `folder` is the identity of the data folder: a node that comes back under its name with a new one counts
    from the beginning. `since` is the index of the first command of that folder. `refused` are the last
    commands that came to nothing: number, error and detail. A node that learns of its commands by a snapshot
    finds their outcome there.
    """

    node: str
    folder: bytes
    since: int
    start: int
    number: int
    refused: tuple[tuple[int, str, str], ...] = ()

    @property
    def identity(self) -> tuple[str, bytes]:
        """Key in its table."""
        return (self.node, self.folder)


Record = (
    VHost
    | VHostLimits
    | User
    | Permission
    | TopicPermission
    | Exchange
    | View
    | Queue
    | Binding
    | Policy
    | Parameter
    | GlobalParameter
    | Node
    | Level
    | Rebalance
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
