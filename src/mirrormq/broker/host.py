"""What the broker asks of the node it runs in, so that it never imports the node.

The node implements it for real; tests and the simulator use the same node or a fake with these members.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mirrormq.base import limits
from mirrormq.base.rng import Rng
from mirrormq.base.types import Now, Peer
from mirrormq.broker.census import Census
from mirrormq.kernel.cores import ChannelCore, QueueCore, Worklist
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.outbuffer import Dirty
from mirrormq.log.disk import ReadDone
from mirrormq.log.journal import Fsync
from mirrormq.log.queuelog import QueueLog
from mirrormq.meta import records
from mirrormq.meta.access import Access
from mirrormq.meta.commands import Command, HaDefaults
from mirrormq.meta.state import MetaState, Outcome

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.confirm import Position
    from mirrormq.broker.connection import Connection
    from mirrormq.broker.queue import Queue
    from mirrormq.broker.queueport import QueuePort
    from mirrormq.broker.replyto import Listener
    from mirrormq.broker.vhost import VHost


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Configured values that clients can notice."""

    heartbeat: int = 60
    frame_max: int = 131_072
    channel_max: int = 2047
    handshake_timeout_ms: int = 10_000
    consumer_timeout_ms: int = 1_800_000
    max_message_size: int = 134_217_728
    publish_ahead_bytes: int = limits.publish_ahead_bytes
    memory_limit: int = 0
    """Bytes of process memory above which publishers are held; 0 = no limit."""
    disk_free_limit: int = 0
    """Free bytes on the data folder's disk below which publishers are held; 0 = no limit."""
    loopback_users: frozenset[str] = frozenset({"guest"})
    default_vhost: str = "/"
    fsync: Fsync = "always"
    """Confirm persistent publishes only after a flush (`always`), or when the operating system has them."""
    fsync_interval_ms: int = 1000
    """With `interval`: longest time until what was confirmed is flushed."""
    auth_mechanisms: tuple[str, ...] = ()
    """Mechanisms offered to clients; empty = all that fit the connection."""
    argon2_cost: tuple[int, int, int] = (19 * 1024, 2, 1)
    """Memory in KiB, passes and lanes of hashes of new passwords."""
    ha_defaults: HaDefaults = "safe"
    """What applies to mirrored queues where their policies say nothing: `rabbitmq` for RabbitMQ's values."""
    queue_master_locator: str = "client-local"
    """How the master of a new queue is chosen where neither an argument nor a policy says."""
    partition_handling: str = "pause_minority"
    """What becomes of clients while this node is cut off from the majority (node/partition.py)."""
    partition_nodes: tuple[str, ...] = ()
    """With `pause_if_all_down`: the nodes of which one must be in reach."""
    rebalance: str = "on-demand"
    """When masters are spread over the nodes anew: off, timer, appoint, on-demand, or run (at each start)."""
    rebalance_interval_ms: int = 60_000
    """With `timer`: time between two looks."""
    rebalance_strategy: str = "masters"
    """What is evened out, unless who asks for it says."""
    events: bool = False
    """Keep what happens in `mirrormq.events`."""
    samples: bool = False
    """Keep counters of every second in `mirrormq.samples`."""


class ConnectionEffects(Protocol):
    """What a connection may ask to be done to its socket."""

    def pause(self, conn: int) -> None:
        """Stop reading from this socket."""
        ...

    def resume(self, conn: int) -> None:
        """Read from this socket again."""
        ...

    def close(self, conn: int) -> None:
        """Close this socket once everything written has gone out."""
        ...


class Patience(Protocol):
    """How long others are waited for while this node is cut off from them."""

    @property
    def patient_since(self) -> int:
        """Whoever gives up what has waited for too long counts from here on at the earliest."""
        ...

    def port(self, queue: "QueuePort") -> "QueuePort":
        """What serves this node's clients in place of a queue: itself, or a branch of it."""
        ...

    def divert(self, queue: "Queue") -> "Position | None":
        """A queue here takes no publishes: keep those of this node's clients elsewhere, if that is wanted.
        What their confirms wait for then.
        """
        ...

    def is_over(self, queue: "Queue") -> bool:
        """Is as much kept for a queue as may be?"""
        ...

    def positions(self, queue: "Queue") -> "list[Position]":
        """What confirms of a queue wait for besides the queue itself."""
        ...


class Host(Protocol):
    """The node, as the broker sees it."""

    now: Now
    rng: Rng
    settings: BrokerSettings
    cluster_name: str
    node_name: str

    @property
    def pid(self) -> int:
        """A number no other process of the cluster has."""
        ...

    def far_listener(self, pid: int, address: bytes) -> "Listener | None":
        """Who waits for answers on the node with this process; None if it is out of reach."""
        ...

    @property
    def effects(self) -> ConnectionEffects:
        """The outbox, as far as connections use it."""
        ...

    dirty: Dirty
    work: Worklist
    grave: Graveyard
    access: Access
    vhosts: "dict[str, VHost]"
    channels: "dict[int, Channel]"
    connections: "dict[int, Connection]"
    census: Census
    alarms: set[str]
    """Names of the resources that ran short on this node: `memory`, `disk`."""

    @property
    def partition(self) -> Patience:
        """What this node does while it is cut off."""
        ...

    def shortages(self) -> list[str]:
        """Names of the resources that ran short on some node of the cluster: `memory`, `disk`."""
        ...

    def place(self, queue: records.Queue) -> str:
        """The node where a queue that is about to be declared is to have its master."""
        ...

    @property
    def state(self) -> MetaState:
        """The metadata, to be read; changes go through `propose`."""
        ...

    def propose(self, command: Command, done: Callable[[Outcome], None], wait: bool) -> None:
        """Change the metadata; `done` is called when it is applied and, with `wait`, flushed."""
        ...

    def authenticate(
        self, user: str, password: str | None, peer: Peer, done: Callable[[str | None], None]
    ) -> None:
        """Check a log-in (password None: the certificate was verified); `done` gets None or why it was
        refused.
        """
        ...

    def after_durable(self, queues: list[QueueCore], done: Callable[[bool], None]) -> None:
        """Call `done` once everything published to these queues so far is durable; with False if a queue has
        got another master, and nobody will know of all of it.
        """
        ...

    @property
    def meta_index(self) -> int:
        """Index of the last metadata command applied, durable or not."""
        ...

    def after_settled(self, queues: list[QueueCore], done: Callable[[bool], None]) -> None:
        """Call `done` when nothing that has left these queues so far comes back, on whichever node they are;
        with False if a node went out of reach, or lost the queue, before it said so.
        """
        ...

    def open_log(self, record: records.Queue) -> QueueLog:
        """The log of a queue: a durable one for queues that outlive a restart."""
        ...

    def fill(self, queue: "Queue") -> None:
        """A queue was made: read what its log holds, if it was another node's queue until now."""
        ...

    def drop_log(self, record: records.Queue) -> None:
        """The queue is deleted."""
        ...

    def read(self, file: str, offset: int, length: int, done: ReadDone) -> None:
        """Read a part of a file of the data folder; `done` gets the bytes, or None and why not."""
        ...

    def is_master(self, record: records.Queue) -> bool:
        """Is this node the queue's master?"""
        ...

    def holders(self) -> Iterable[ChannelCore]:
        """Everybody on this node or another who may hold messages of queues mastered here."""
        ...

    def refuse_forwarded(self, queue: "Queue", pid: int, number: int) -> None:
        """A queue mastered here refused a publish that came from another node."""
        ...

    def wake_queue(self, queue: "QueuePort", at_mono: int) -> None:
        """Give the queue a turn at this time."""
        ...

    def begin_bulk(self, connection: "Connection", header: bytes) -> None:
        """The client speaks the bulk protocol: it gets another kind of connection in place of this one."""
        ...

    def heard(self, connection: "Connection") -> None:
        """The connection serves frames in this pass: its publishes are confirmed and weighed at the end of
        it.
        """
        ...

    def next_uid(self) -> int:
        """A number no channel of this node had before."""
        ...

    def memory_share(self) -> int:
        """Bytes of ready messages a durable queue may keep in memory now."""
        ...

    def expiry_wall(self) -> int:
        """The wall time by which messages expire: the clock's, unless it has just jumped ahead."""
        ...

    def note(self, level: str, text: str, **fields: object) -> None:
        """Tell the operator."""
        ...
