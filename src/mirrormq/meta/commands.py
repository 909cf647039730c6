"""Every change of the metadata, one struct per command; what is written to the log and later replicated.

A command carries all it needs: applying the same commands in the same order gives the same state on every
node. Names of commands and fields are part of the file format (docs/format/metadata.md).
"""

from typing import Any, Literal

import msgspec

from mirrormq.meta.records import (
    Binding,
    Exchange,
    Member,
    Node,
    Permission,
    Policy,
    Queue,
    TopicPermission,
    User,
    VHost,
)

HaDefaults = Literal["safe", "rabbitmq"]
"""What holds where a policy is silent. It is a setting of each node, so a command that asks carries it."""


class _Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do"):
    """Frozen; a field this version does not know is refused, never dropped."""


class PutVHost(_Command, frozen=True, tag="put-vhost"):
    """Create a vhost with its `amq.*` exchanges, or replace its description, tags and default queue type.

    Only a new one can be a mirror, and stays one until it is promoted.
    """

    vhost: VHost


class PromoteMirror(_Command, frozen=True, tag="promote-mirror"):
    """A vhost that mirrors another cluster becomes an ordinary one."""

    name: str


class DeleteVHost(_Command, frozen=True, tag="delete-vhost"):
    """Remove a vhost and everything in it."""

    name: str


class PutUser(_Command, frozen=True, tag="put-user"):
    """Create or replace a user; `limits` are kept if `user.limits` is empty and the user exists.

    With `only_new` an existing user is an error instead.
    """

    user: User
    only_new: bool = False


class DeleteUser(_Command, frozen=True, tag="delete-user"):
    """Remove a user with all permissions."""

    name: str


class SetPermission(_Command, frozen=True, tag="set-permission"):
    """Give a user rights in a vhost, in place of earlier ones."""

    permission: Permission


class ClearPermission(_Command, frozen=True, tag="clear-permission"):
    """Take a user's rights in a vhost."""

    user: str
    vhost: str


class SetTopicPermission(_Command, frozen=True, tag="set-topic-permission"):
    """Restrict a user's routing keys on one topic exchange."""

    permission: TopicPermission


class ClearTopicPermission(_Command, frozen=True, tag="clear-topic-permission"):
    """Lift the restriction for one exchange, or for all of the vhost if `exchange` is None."""

    user: str
    vhost: str
    exchange: str | None = None


class DeclareExchange(_Command, frozen=True, tag="declare-exchange"):
    """Create an exchange. An existing one is the error `exists`; comparing the two is the broker's work.

    With `or_keep` (imports) an existing one is left as it is and no error.
    """

    exchange: Exchange
    or_keep: bool = False


class DeleteExchange(_Command, frozen=True, tag="delete-exchange"):
    """Remove an exchange and the bindings at both of its ends."""

    vhost: str
    name: str
    if_unused: bool = False


class DeclareQueue(_Command, frozen=True, tag="declare-queue"):
    """Create a queue. An existing one is the error `exists`; comparing the two is the broker's work.

    With `or_keep` (imports) an existing one is left as it is and no error. With `members` it is born
    mirrored, in sync on those that are still live in the start named; `queue.node` has to be one of them.
    """

    queue: Queue
    or_keep: bool = False
    members: tuple[Member, ...] = ()


class DeleteQueue(_Command, frozen=True, tag="delete-queue"):
    """Remove a queue and its bindings; with an `id`, only that declaration of the name."""

    vhost: str
    name: str
    id: int | None = None


class Bind(_Command, frozen=True, tag="bind"):
    """Add a binding; one that exists is left alone and no error. With `or_skip` a missing end is none."""

    binding: Binding
    or_skip: bool = False


class Unbind(_Command, frozen=True, tag="unbind"):
    """Remove a binding, and its source if that was an auto-delete exchange's last one."""

    binding: Binding


class SetPolicy(_Command, frozen=True, tag="set-policy"):
    """Create or replace a policy or an operator policy."""

    policy: Policy


class ClearPolicy(_Command, frozen=True, tag="clear-policy"):
    """Remove a policy or an operator policy."""

    vhost: str
    name: str
    operator: bool = False


class SetParameter(_Command, frozen=True, tag="set-parameter"):
    """Create or replace a runtime parameter."""

    vhost: str
    component: str
    name: str
    value: Any


class ClearParameter(_Command, frozen=True, tag="clear-parameter"):
    """Remove a runtime parameter."""

    vhost: str
    component: str
    name: str


class SetGlobalParameter(_Command, frozen=True, tag="set-global-parameter"):
    """Create or replace a runtime parameter of the whole cluster."""

    name: str
    value: Any


class ClearGlobalParameter(_Command, frozen=True, tag="clear-global-parameter"):
    """Remove a runtime parameter of the whole cluster."""

    name: str


class SetVHostLimits(_Command, frozen=True, tag="set-vhost-limits"):
    """Set some limits of a vhost; those not named stay as they are unless `replace` is set."""

    vhost: str
    limits: dict[str, int]
    replace: bool = False


class ClearVHostLimits(_Command, frozen=True, tag="clear-vhost-limits"):
    """Remove the named limits of a vhost, or all if `names` is None."""

    vhost: str
    names: tuple[str, ...] | None = None


class SetUserLimits(_Command, frozen=True, tag="set-user-limits"):
    """Set some limits of a user; those not named stay as they are."""

    user: str
    limits: dict[str, int]


class ClearUserLimits(_Command, frozen=True, tag="clear-user-limits"):
    """Remove the named limits of a user, or all if `names` is None."""

    user: str
    names: tuple[str, ...] | None = None


class ConnectionGone(_Command, frozen=True, tag="connection-gone"):
    """A connection is closed: its exclusive queues go. An empty `node` means any node's."""

    owner: int
    node: str = ""


class NodeRestarted(_Command, frozen=True, tag="node-restarted"):
    """A node came back: its non-durable and exclusive queues, and non-durable exchanges, are gone.

    `alone`: there is no other node, so this holds for queues of every node name (a container that starts
    again under a new host name must not meet the locked queues of its former self), and what is left of them
    is this node's. `start`, `address` and `level` are those of this start.
    """

    node: str
    alone: bool = True
    start: int = 0
    address: str = ""
    level: int = 1


class PutNode(_Command, frozen=True, tag="put-node"):
    """A node may join, or has another role from now on."""

    node: Node


class ForgetNode(_Command, frozen=True, tag="forget-node"):
    """A node is no member any more; queues that only it had are gone."""

    name: str


class NodeDead(_Command, frozen=True, tag="node-dead"):
    """This start of a node is certain not to act any more; what lived in its memory only is gone.

    Mirrored queues it was the master of go to their oldest in-sync member that is live and was not restarted.
    `returns` is how often it had come back when it was seen to be dead. Refused if that has changed: the word
    of a leader may be on its way for longer than it leads, and the node may have another one's lease by then.
    `departed` are nodes on their way out of the cluster: no queue goes to one of them.
    """

    node: str
    start: int
    ha_defaults: HaDefaults = "safe"
    returns: int = 0
    departed: tuple[str, ...] = ()


class NodeReturned(_Command, frozen=True, tag="node-returned"):
    """A start without a lease, maybe declared dead, is heard again, and has been told."""

    node: str
    start: int


class SetLevel(_Command, frozen=True, tag="set-level"):
    """Raise the feature level, which no node can go below from then on."""

    level: int


class SetDrained(_Command, frozen=True, tag="set-drained"):
    """A node goes into maintenance, or comes back from it."""

    node: str
    is_drained: bool


class BeginRebalance(_Command, frozen=True, tag="begin-rebalance"):
    """This start of a node moves masters from now on; refused while another one does."""

    node: str
    start: int
    trigger: str
    strategy: str
    since: int


class EndRebalance(_Command, frozen=True, tag="end-rebalance"):
    """The rebalancing with this number is over; one that is not under way is no error."""

    number: int


class CancelRebalance(_Command, frozen=True, tag="cancel-rebalance"):
    """The rebalancing under way is to end early."""


ViewChange = Literal[
    "begin", "add_learner", "remove_learner", "admit", "demote", "remove", "transfer", "surrender", "renew",
    "stop", "waive", "unwaive",
]  # fmt: skip


class ChangeView(_Command, frozen=True, tag="change-view"):
    """What the master of a mirrored queue changes in its view, if the view is still that of `epoch`.

    | change | does | `node` is |
    |---|---|---|
    | begin | mirrors a queue that never was (epoch 1), on its master only | the master |
    | add_learner | adds an unsynchronised copy | live in `start`, and not in the view |
    | remove_learner | takes one away | a learner |
    | admit | makes a learner, or a restarted member, a member; it is the youngest | live in `start` |
    | demote | makes a member a learner | a member, but not the master |
    | remove | takes a member away | a member, but not the master |
    | transfer | makes a member the master, and the old master the youngest member | live, not restarted |
    | surrender | the same, but the old master cannot read its copy and becomes a learner | a live member |
    | renew | begins a new epoch with the same members | |
    | stop | the master goes down and no member can take over: a lossy promotion if allowed, else it waits | |
    | waive | lets the master act without a lease while all members grant that; not if a loss is allowed | |
    | unwaive | takes that back | |
    """

    vhost: str
    name: str
    id: int
    epoch: int
    change: ViewChange
    node: str = ""
    start: int = 0
    ha_defaults: HaDefaults = "safe"


class ChangeViews(_Command, frozen=True, tag="change-views"):
    """Changes of many views, each on its own: one that comes too late is passed over, the others happen."""

    changes: tuple[ChangeView, ...]


class PromoteRestarted(_Command, frozen=True, tag="promote-restarted"):
    """Queues have waited long enough for the members that were not restarted.

    Those that `node` was the master of and that have none now go to the oldest live member, restarted or not;
    if there is none and the policy allows a loss, to the oldest live learner. `start` is the node's last.
    """

    node: str
    start: int
    ha_defaults: HaDefaults = "safe"
    departed: tuple[str, ...] = ()


class ForcePromote(_Command, frozen=True, tag="force-promote"):
    """An operator gives a queue without a master to a node, or to the best, at the price of what it lacks.

    A node that is not in sync gets it only if no live one is. `force`: also a queue whose master may go on
    without a lease where nobody sees it.
    """

    vhost: str
    name: str
    id: int | None = None
    node: str = ""
    force: bool | msgspec.UnsetType = msgspec.UNSET


class NoteLoss(_Command, frozen=True, tag="note-loss"):
    """The master of a queue that took over with a loss tells what it had then: what is durable of its own
    epoch stands behind it, so that it stays. `epoch` is that of the view it knows; the rest is as in
    `Parting`.
    """

    vhost: str
    name: str
    id: int
    epoch: int
    end: int
    epochs: tuple[tuple[int, int], ...] = ()
    missing: tuple[tuple[int, int], ...] = ()


class NoteSalvaged(_Command, frozen=True, tag="note-salvaged"):
    """A node has moved what only its copy had of a queue, `messages` of them, and given up `dropped`: the
    copy may be made one of the present history. `parting` is that of the loss; what lay between `reach`,
    which has to be the parting's, and `upto` was dealt with.
    """

    vhost: str
    name: str
    id: int
    parting: int
    node: str
    reach: int
    upto: int
    messages: int = 0
    dropped: int = 0


class NoteMerge(_Command, frozen=True, tag="note-merge"):
    """A node begins to bring a branch of a queue back, or is through with that (`is_over`)."""

    vhost: str
    name: str
    id: int
    node: str
    sources: tuple[int, ...]
    is_over: bool = False


class Guard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on one record: there or not and, for queues and exchanges, which declaration of a name.

    `key` is the record's identity as a list; a single name for vhosts, users and global parameters.
    """

    kind: Literal["vhost", "user", "permission", "exchange", "queue", "parameter", "global-parameter"]
    key: tuple[str, ...]
    present: bool = True
    id: int | None = None


class Transaction(_Command, frozen=True, tag="transaction"):
    """All commands or none: nothing is applied unless every guard holds and every command succeeds."""

    guards: tuple[Guard, ...]
    commands: tuple["Command", ...]


Command = (
    PutVHost
    | PromoteMirror
    | DeleteVHost
    | PutUser
    | DeleteUser
    | SetPermission
    | ClearPermission
    | SetTopicPermission
    | ClearTopicPermission
    | DeclareExchange
    | DeleteExchange
    | DeclareQueue
    | DeleteQueue
    | Bind
    | Unbind
    | SetPolicy
    | ClearPolicy
    | SetParameter
    | ClearParameter
    | SetGlobalParameter
    | ClearGlobalParameter
    | SetVHostLimits
    | ClearVHostLimits
    | SetUserLimits
    | ClearUserLimits
    | ConnectionGone
    | NodeRestarted
    | PutNode
    | ForgetNode
    | NodeDead
    | NodeReturned
    | SetLevel
    | SetDrained
    | BeginRebalance
    | EndRebalance
    | CancelRebalance
    | ChangeView
    | ChangeViews
    | PromoteRestarted
    | ForcePromote
    | NoteLoss
    | NoteSalvaged
    | NoteMerge
    | Transaction
)


def tag_of(command: Command) -> str:
    """The name of a command in files."""
    return str(command.__struct_config__.tag)
