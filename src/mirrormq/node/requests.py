"""What an administrator may ask the node to change: one struct per request, named as rabbitmqctl names the
command.

A request is plain data, so it can come from HTTP, from a test's pipe or from a simulator. `actor` is the
user on whose behalf it is made: requests about queues, exchanges and bindings need that user's permissions,
as if they had come over AMQP; None is the node's own key, which may do everything.
"""

from typing import Annotated, Any, Literal

import msgspec

from mirrormq.base import limits
from mirrormq.base.types import Peer


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """Anything `Node.admin` understands."""

    actor: str | None = None


# --- vhosts ---


class AddVHost(Request, frozen=True, kw_only=True, tag="add_vhost"):
    """Create a vhost, or change what is given of an existing one."""

    name: str
    description: str | None = None
    tags: tuple[str, ...] | None = None
    default_queue_type: str | None = None
    mirror_of: str | None = None
    """The cluster a new vhost is to mirror."""
    via: tuple[str, ...] = ()
    """With `mirror_of`: the clusters between, the nearest one first."""


class PromoteMirror(Request, frozen=True, kw_only=True, tag="promote_mirror"):
    """Make an ordinary vhost of one that mirrors another cluster."""

    name: str


class DeleteVHost(Request, frozen=True, kw_only=True, tag="delete_vhost"):
    """Delete a vhost with everything in it."""

    name: str


# --- users ---


class AddUser(Request, frozen=True, kw_only=True, tag="add_user"):
    """Create a user; with `replace` also give an existing one a new password and tags.

    `password_hash` takes a hash made elsewhere instead of a password; neither means that no password opens
    the account. `limits` are added to those an existing user has; `permissions` ((vhost, configure, write,
    read) each) are for a new one only.
    """

    name: str
    password: str | None = None
    password_hash: str | None = None
    hashing_algorithm: str | None = None
    tags: tuple[str, ...] = ()
    replace: bool = False
    limits: dict[str, Any] = {}
    permissions: tuple[tuple[str, str, str, str], ...] = ()


class DeleteUser(Request, frozen=True, kw_only=True, tag="delete_user"):
    """Remove a user with all permissions."""

    name: str


class DeleteUsers(Request, frozen=True, kw_only=True, tag="delete_users"):
    """Remove several users; all must exist."""

    names: tuple[str, ...]


class ChangePassword(Request, frozen=True, kw_only=True, tag="change_password"):
    """Give a user another password."""

    name: str
    password: str


class ClearPassword(Request, frozen=True, kw_only=True, tag="clear_password"):
    """Let no password open the account."""

    name: str


class SetUserTags(Request, frozen=True, kw_only=True, tag="set_user_tags"):
    """Replace a user's tags."""

    name: str
    tags: tuple[str, ...]


class AuthenticateUser(Request, frozen=True, kw_only=True, tag="authenticate_user"):
    """Check a password. With a peer the rules for log-in from there apply too."""

    name: str
    password: str
    peer: Peer | None = None


# --- permissions ---


class SetPermissions(Request, frozen=True, kw_only=True, tag="set_permissions"):
    """Set what a user may do in a vhost."""

    vhost: str
    user: str
    configure: str
    write: str
    read: str


class ClearPermissions(Request, frozen=True, kw_only=True, tag="clear_permissions"):
    """Revoke a user's permissions in a vhost; none is no error."""

    vhost: str
    user: str


class SetTopicPermissions(Request, frozen=True, kw_only=True, tag="set_topic_permissions"):
    """Restrict a user's routing keys on a topic exchange."""

    vhost: str
    user: str
    exchange: str
    write: str
    read: str


class ClearTopicPermissions(Request, frozen=True, kw_only=True, tag="clear_topic_permissions"):
    """Lift the restriction on one exchange, or on all of the vhost; none is no error."""

    vhost: str
    user: str
    exchange: str | None = None


# --- limits ---


class SetVHostLimits(Request, frozen=True, kw_only=True, tag="set_vhost_limits"):
    """Set limits of a vhost: max-connections, max-queues."""

    vhost: str
    limits: dict[str, Any]


class ClearVHostLimits(Request, frozen=True, kw_only=True, tag="clear_vhost_limits"):
    """Remove one limit of a vhost, or all."""

    vhost: str
    limit: str | None = None


class SetUserLimits(Request, frozen=True, kw_only=True, tag="set_user_limits"):
    """Set limits of a user: max-connections, max-channels."""

    user: str
    limits: dict[str, Any]


class ClearUserLimits(Request, frozen=True, kw_only=True, tag="clear_user_limits"):
    """Remove one limit of a user, or `all`."""

    user: str
    limit: str = "all"


# --- policies and parameters ---


class SetPolicy(Request, frozen=True, kw_only=True, tag="set_policy"):
    """Create or replace a policy or operator policy."""

    vhost: str
    name: str
    pattern: str
    definition: Any
    priority: Any = 0
    apply_to: Any = "all"
    operator: bool = False


class ClearPolicy(Request, frozen=True, kw_only=True, tag="clear_policy"):
    """Remove a policy or operator policy."""

    vhost: str
    name: str
    operator: bool = False


class SetParameter(Request, frozen=True, kw_only=True, tag="set_parameter"):
    """Set a runtime parameter of a component that has parameters."""

    vhost: str
    component: str
    name: str
    value: Any


class ClearParameter(Request, frozen=True, kw_only=True, tag="clear_parameter"):
    """Remove a runtime parameter."""

    vhost: str
    component: str
    name: str


class SetGlobalParameter(Request, frozen=True, kw_only=True, tag="set_global_parameter"):
    """Set a runtime parameter of the whole cluster."""

    name: str
    value: Any


class ClearGlobalParameter(Request, frozen=True, kw_only=True, tag="clear_global_parameter"):
    """Remove a runtime parameter of the whole cluster."""

    name: str


class ImportDefinitions(Request, frozen=True, kw_only=True, tag="import_definitions"):
    """Bring a definition file into force; with `vhost`, one of that vhost's objects.

    The lists in `definitions` are empty afterwards.
    """

    definitions: dict[str, Any]
    vhost: str | None = None


class RemoveDefinitions(Request, frozen=True, kw_only=True, tag="remove_definitions"):
    """Take away what a definition file names (exchanges, queues, bindings, policies) from a mirror."""

    definitions: dict[str, Any]
    vhost: str


# --- queues, exchanges, bindings ---


class DeclareQueue(Request, frozen=True, kw_only=True, tag="declare_queue"):
    """Declare a queue; an equivalent one is left alone."""

    vhost: str
    name: str
    durable: bool = False
    auto_delete: bool = False
    arguments: dict[str, Any] = {}


class DeleteQueue(Request, frozen=True, kw_only=True, tag="delete_queue"):
    """Delete a queue."""

    vhost: str
    name: str
    if_empty: bool = False
    if_unused: bool = False


class PurgeQueue(Request, frozen=True, kw_only=True, tag="purge_queue"):
    """Remove all ready messages of a queue."""

    vhost: str
    name: str


class DeclareExchange(Request, frozen=True, kw_only=True, tag="declare_exchange"):
    """Declare an exchange; an equivalent one is left alone."""

    vhost: str
    name: str
    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}


class DeleteExchange(Request, frozen=True, kw_only=True, tag="delete_exchange"):
    """Delete an exchange."""

    vhost: str
    name: str
    if_unused: bool = False


class Bind(Request, frozen=True, kw_only=True, tag="bind"):
    """Bind a queue or an exchange to an exchange."""

    vhost: str
    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str = ""
    arguments: dict[str, Any] = {}


class Unbind(Request, frozen=True, kw_only=True, tag="unbind"):
    """Remove the binding with this properties key."""

    vhost: str
    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    key: str


class CheckAliveness(Request, frozen=True, kw_only=True, tag="aliveness_test"):
    """Declare a queue, publish to it and take the message out again."""

    vhost: str


# --- mirrored queues ---


class SyncQueue(Request, frozen=True, kw_only=True, tag="sync_queue"):
    """Copy everything in a queue to its mirrors that are not in sync; begun is done."""

    vhost: str
    name: str


class CancelSyncQueue(Request, frozen=True, kw_only=True, tag="cancel_sync_queue"):
    """Stop copying to mirrors that are not in sync."""

    vhost: str
    name: str


class RepairQueue(Request, frozen=True, kw_only=True, tag="repair_queue"):
    """Have the copy of a mirrored queue on a node, or the master's, fetched anew from others."""

    vhost: str
    name: str
    node: str = ""


class SyncStatus(Request, frozen=True, kw_only=True, tag="sync_status"):
    """How far the mirrors of a queue are."""

    vhost: str
    name: str


class MoveMaster(Request, frozen=True, kw_only=True, tag="move_master"):
    """Make another node the master of a queue, without a loss."""

    vhost: str
    name: str
    node: str


class ForcePromote(Request, frozen=True, kw_only=True, tag="force_promote"):
    """Give a queue that has no master to a node that is there, the best if none is named.

    `plan`: only say what that would lose. `accept_loss`: do it although it loses messages.
    """

    vhost: str
    name: str
    node: str = ""
    plan: bool = False
    accept_loss: bool = False


# --- rebalancing and maintenance ---


class Rebalance(Request, frozen=True, kw_only=True, tag="rebalance"):
    """Spread masters over the nodes anew; answered when the moves are planned and under way.

    An empty `strategy` is the configured one. `moves` are those an operator appoints, as (vhost, queue,
    node), in place of a strategy's. `plan`: only say what would move. `force`: although the settings say
    that masters move only when they are named.
    """

    kind: Literal["all", "classic", "quorum"] = "all"
    vhost_pattern: str = ".*"
    queue_pattern: str = ".*"
    strategy: str = ""
    moves: Annotated[tuple[tuple[str, str, str], ...], msgspec.Meta(max_length=10_000)] = ()
    plan: bool = False
    force: bool = False


class RebalanceStatus(Request, frozen=True, kw_only=True, tag="rebalance_status"):
    """How far the rebalancing under way is, and what the last one of this node did."""


class CancelRebalance(Request, frozen=True, kw_only=True, tag="cancel_rebalance"):
    """Begin no further moves, on whichever node that happens."""


class Drain(Request, frozen=True, kw_only=True, tag="drain"):
    """Put this node into maintenance."""


class Revive(Request, frozen=True, kw_only=True, tag="revive"):
    """Bring this node back from maintenance."""


class MaintenanceStatus(Request, frozen=True, kw_only=True, tag="maintenance_status"):
    """Whether this node is in maintenance, and which masters it could not give away."""


# --- looking ---


class QueueView(Request, frozen=True, kw_only=True, tag="queue_view"):
    """Who has a copy of a queue, who sends to whom, and how far each is."""

    vhost: str
    name: str


class BrowseQueue(Request, frozen=True, kw_only=True, tag="browse_queue"):
    """The newest messages of a queue, of which none is taken; `before`: only those with a lower seq."""

    vhost: str
    name: str
    count: Annotated[int, msgspec.Meta(ge=1, le=limits.browse_messages_max)] = 1
    before: int | None = None
    body: int = limits.browse_body_bytes_max


class ListEvents(Request, frozen=True, kw_only=True, tag="list_events"):
    """What happened in the cluster, the newest last.

    `events`: how the names of those wanted begin; `since`: µs since 1970; `before`: the seq to go on from.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=limits.browse_messages_max)] = 100
    before: int | None = None
    since: int | None = None
    events: tuple[str, ...] = ()
    vhost: str | None = None
    name: str | None = None


# --- the node ---


class CloseConnection(Request, frozen=True, kw_only=True, tag="close_connection"):
    """Close the connection with this pid or name."""

    connection: str
    reason: str = "Closed via management plugin"


class CloseConnections(Request, frozen=True, kw_only=True, tag="close_connections"):
    """Close the connections of a vhost, of a user, or all; with a limit at most so many."""

    vhost: str | None = None
    user: str | None = None
    limit: int = 0
    reason: str = "Closed via management plugin"


class Inquire(Request, frozen=True, kw_only=True, tag="inquire"):
    """Rows that other nodes hold: `node.inquiry.Replies`. The fields narrow what is asked for.

    `nodes`: whom to ask; None is all others.
    """

    kind: str
    vhost: str | None = None
    name: str = ""
    owner: str = ""
    ids: tuple[int, ...] = ()
    nodes: tuple[str, ...] | None = None
    body: bytes = b""


class Stop(Request, frozen=True, kw_only=True, tag="stop"):
    """Stop the node as SIGTERM does."""

    reason: str = "asked by an administrator"


# --- cursors ---


class ListCursors(Request, frozen=True, kw_only=True, tag="list_cursors"):
    """The cursors of the queues of a vhost, or of one of them."""

    vhost: str
    name: str = ""


class DropCursor(Request, frozen=True, kw_only=True, tag="drop_cursor"):
    """Take a cursor away from a queue; its reader has to begin anew."""

    vhost: str
    name: str
    cursor: str


# --- the cluster ---


class ForgetClusterNode(Request, frozen=True, kw_only=True, tag="forget_cluster_node"):
    """Remove a node that is gone for good from the cluster.

    `force`: although it may be serving queues where nobody sees it.
    """

    node: str
    force: bool = False


class SetPartitionHandling(Request, frozen=True, kw_only=True, tag="set_partition_handling"):
    """Choose what this node does while it is cut off from the majority, until its process starts again."""

    mode: str
    nodes: tuple[str, ...] | None = None
    """With `pause_if_all_down`: the nodes of which one must be in reach; as they were if not given."""


class PartitionHandling(Request, frozen=True, kw_only=True, tag="partition_handling"):
    """Which side of a partition is this node on, and what does it do there?"""


class LeaveCluster(Request, frozen=True, kw_only=True, tag="leave_cluster"):
    """May this node leave the cluster? `force`: even if messages are lost with it."""

    force: bool = False


class ChangeClusterNodeType(Request, frozen=True, kw_only=True, tag="change_cluster_node_type"):
    """Give a node another role, this one if none is named."""

    node: str = ""
    role: Literal["voter", "non-voter", "witness"]


class EnableFeatureFlag(Request, frozen=True, kw_only=True, tag="enable_feature_flag"):
    """Switch a feature on, or `all`."""

    name: str


class SetFeatureLevel(Request, frozen=True, kw_only=True, tag="set_feature_level"):
    """Raise the feature level of the cluster."""

    level: Annotated[int, msgspec.Meta(ge=1)]


def named_requests() -> dict[str, type[Request]]:
    """Every request by the name it has on the outside."""
    return {str(kind.__struct_config__.tag): kind for kind in Request.__subclasses__()}
