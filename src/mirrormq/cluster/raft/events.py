"""What Raft tells the layer above, in order."""

from msgspec import Struct

from mirrormq.cluster.raft.membership import Configuration


class Applied(Struct, frozen=True):
    """The proposal `ref` was applied at `index`; it is durable once `Raft.durable_index` has reached that."""

    ref: object
    index: int
    result: object


class Refused(Struct, frozen=True):
    """Nothing was done for `ref`: ask `leader`, if it is known and somebody else, or later."""

    ref: object
    leader: str
    reason: str


class Lost(Struct, frozen=True):
    """The proposal or change `ref` may or may not take effect: leadership changed before it was applied."""

    ref: object


class ReadReady(Struct, frozen=True):
    """The state now contains everything that had been acknowledged anywhere when `ref` was asked for."""

    ref: object
    index: int


class LeaderChanged(Struct, frozen=True):
    """Who leads in `term`, as far as this node knows (empty: nobody)."""

    term: int
    leader: str


class Restored(Struct, frozen=True):
    """The state was replaced by a leader's snapshot that ends at `index`."""

    index: int


class Configured(Struct, frozen=True):
    """This configuration is committed."""

    configuration: Configuration


class Registered(Struct, frozen=True):
    """The group has recorded this start of this node: `token` may be stored as acknowledged."""

    token: bytes


class Removed(Struct, frozen=True):
    """The group has removed this node, committed at `index`: nobody will talk to this folder again."""

    index: int


class FolderRefused(Struct, frozen=True):
    """The group knows a node of this name with another data folder, or with a later start of this one."""

    leader: str


class Found(Struct, frozen=True):
    """etcd: this is the cluster under the prefix, and everything it has agreed on is applied."""

    cluster: bytes


class Unfit(Struct, frozen=True):
    """etcd: this node cannot go on with what it finds there; the text says why."""

    reason: str


class Note(Struct, frozen=True):
    """A sentence for the operator."""

    text: str


Event = (
    Applied
    | Refused
    | Lost
    | ReadReady
    | LeaderChanged
    | Restored
    | Configured
    | Registered
    | Removed
    | FolderRefused
    | Found
    | Unfit
    | Note
)
