"""What a node's membership is told at its start, and what it asks of the node and of the machine."""

from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

from mirrormq.base.rng import Rng
from mirrormq.base.types import Now
from mirrormq.broker.host import BrokerSettings
from mirrormq.cluster.etcd.agreement import EtcdOptions
from mirrormq.cluster.etcd.api import Request
from mirrormq.log.journal import Journal
from mirrormq.meta.state import MetaState

if TYPE_CHECKING:
    from mirrormq.broker.connection import Connection


class Contact(NamedTuple):
    """A node of the cluster that was named by the operator."""

    name: str
    address: str


class ClusterOptions(Struct, frozen=True):
    """How a node finds its cluster."""

    nodes: tuple[Contact, ...] = ()
    """The nodes that form a cluster together, this one included; none: this node forms its own."""
    join: Contact | None = None
    """Who is asked to let this node in."""
    known: tuple[str, ...] = ()
    """Where other nodes were when this one last ran."""
    address: str = ""
    """host:port at which other nodes reach this one."""
    death_certificate: bool = True
    is_forced: bool = False
    """Go on without the other members, whatever they have; an operator's decision."""
    etcd: EtcdOptions | None = None
    """The nodes agree by etcd; None: by the embedded Raft."""


class Started(NamedTuple):
    """What the data folder held. `fresh`: nothing at all."""

    fresh: bool
    snapshot_index: int
    entries: int
    torn_bytes: int


class MembershipEffects(Protocol):
    """What may be asked to be done."""

    def replace(self, file: str, data: bytes | bytearray, token: int) -> None:
        """Replace a file durably."""
        ...

    def append(self, file: str, data: bytes) -> None:
        """Append to a file."""
        ...

    def flush(self, file: str, token: int) -> None:
        """Make a file durable."""
        ...

    def read(self, file: str, offset: int, length: int, token: int) -> None:
        """Read a part of a file."""
        ...

    def remove(self, file: str) -> None:
        """Remove a file."""
        ...

    def send(self, peer: str, lane: int, payload: bytes) -> None:
        """Send a frame."""
        ...

    def cut(self, peer: str, reason: str) -> None:
        """Close a link."""
        ...

    def introduce(self, identity: bytes, start: int, cluster: bytes) -> None:
        """Show other nodes who this is, from now on."""
        ...

    def dial(self, address: str) -> None:
        """Keep a link to whoever is at this address."""
        ...

    def undial(self, address: str) -> None:
        """Dial this address no more."""
        ...

    def doors(self, *, is_open: bool) -> None:
        """Let clients in, or no more."""
        ...

    def ask_etcd(self, request: Request) -> None:
        """Ask etcd for something."""
        ...

    def stop(self, reason: str) -> None:
        """End the process."""
        ...


class Inside(Protocol):
    """The node, as its membership sees it."""

    now: Now
    rng: Rng
    node_name: str
    cluster_name: str
    settings: BrokerSettings
    journal: Journal
    connections: "dict[int, Connection]"

    @property
    def state(self) -> MetaState:
        """The metadata."""
        ...

    def enter(self) -> None:
        """The metadata is complete: make the objects it describes."""
        ...

    def send_away(self, reason: str) -> None:
        """Close the connections of all clients."""
        ...

    def note(self, level: str, text: str, **fields: object) -> None:
        """Tell the operator."""
        ...
