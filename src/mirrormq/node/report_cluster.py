"""The cluster as `cluster_status` shows it: who belongs to it, who is there, and what it can still lose.

RabbitMQ's keys stand for what they mean there (`disk_nodes`, `running_nodes`, `versions`, `alarms`,
`partitions`, `listeners`, `feature_flags`); the others are ours. A node knows of the others what they told
it a moment ago; of one it does not hear it shows only what the metadata hold.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mirrormq import __version__
from mirrormq.cluster.raft.raft import Raft
from mirrormq.meta.records import Node as NodeRecord
from mirrormq.node.membership import FEATURE_LEVEL, PAUSED, Membership
from mirrormq.node.news import News
from mirrormq.node.report import Row, Source

if TYPE_CHECKING:
    from mirrormq.broker.host import BrokerSettings

PURPOSES = {
    "amqp": "AMQP 0-9-1",
    "amqp/ssl": "AMQP 0-9-1 over TLS",
    "http": "HTTP API",
    "http/prometheus": "Prometheus",
}
"""What listeners are for, by protocol."""

NOT_DRAINED, DRAINED = "not under maintenance", "marked for maintenance"
"""RabbitMQ's words."""

RAFT, ETCD = "raft", "etcd"
VOTER, NON_VOTER, WITNESS = "voter", "non-voter", "witness"
ROLES = (VOTER, NON_VOTER, WITNESS)

FLAGS = {
    "implicit_default_bindings": "the default exchange needs no bindings",
    "quorum_queue": "x-queue-type: quorum gives a mirrored queue",
    "user_limits": "limits of connections and channels per user",
    "virtual_host_metadata": "virtual hosts have descriptions and tags",
}
"""RabbitMQ's feature flags that mean something here. All of them are on, since the first feature level."""


class Member(NamedTuple):
    """A node of the cluster."""

    name: str
    role: str = VOTER
    is_running: bool = True
    address: str = ""
    """host:port at which the other nodes reach it."""
    version: str = __version__
    alarms: tuple[str, ...] = ()
    listeners: tuple[Row, ...] = ()
    is_drained: bool = False


class View(NamedTuple):
    """The cluster as one node sees it."""

    node: str
    cluster_name: str
    cluster_id: str
    """As a hexadecimal number; empty while the node belongs to no cluster."""
    members: tuple[Member, ...]
    leader: str
    """Who orders the metadata; empty while nobody is known to."""
    is_paused: bool = False
    """This node hears no majority and serves no clients."""
    level: int = FEATURE_LEVEL
    coordinator: str = RAFT
    """What the nodes agree by."""
    partition: Row = {}  # noqa: RUF012
    """Which side of a partition this node is on, and what it does there."""


class ClusterSource(Source, Protocol):
    """The node, with what it knows of the others."""

    membership: Membership
    news: News
    settings: "BrokerSettings"
    memory_used: int
    disk_free: int


def view_of(source: ClusterSource, listeners: Sequence[Row]) -> View:
    """What this node sees; `listeners` are its own."""
    membership = source.membership
    members = membership.raft.config.members
    return View(
        source.node_name,
        cluster_name(source),
        membership.identity.cluster.hex(),
        tuple(_seen(source, member.name, member.role, listeners) for member in members),
        membership.raft.leader,
        membership.phase == PAUSED,
        source.state.level,
        RAFT if isinstance(membership.raft, Raft) else ETCD,
        membership.partition.status(),
    )


def _seen(source: ClusterSource, name: str, role: str, listeners: Sequence[Row]) -> Member:
    """A member as this node sees it, by what it says of itself."""
    record = source.state.nodes.get(name) or NodeRecord(name)
    found = _heard(source, name, role, listeners)
    if record.is_drained and name != source.node_name:
        found = found._replace(listeners=())  # it tells where it would listen
    return found._replace(address=record.address, is_drained=record.is_drained)


def _heard(source: ClusterSource, name: str, role: str, listeners: Sequence[Row]) -> Member:
    if name == source.node_name:
        alarms = tuple(sorted(source.alarms))
        return Member(name, role, True, alarms=alarms, listeners=tuple(listeners))
    facts = source.news.of(name)
    if facts is None or source.news.is_silent(name):
        return Member(name, role, False)
    rows = tuple(
        {
            "node": name,
            "protocol": heard.protocol,
            "interface": heard.interface,
            "port": heard.port,
            "purpose": PURPOSES.get(heard.protocol, heard.protocol),
        }
        for heard in facts.listeners
    )
    return Member(name, role, True, "", facts.version, tuple(facts.alarms), rows)


def node_details(source: ClusterSource, facts: Mapping[str, Any]) -> Row:
    """What this node tells of itself; `facts` is what only its process knows."""
    alarms = source.alarms
    copies = () if source.copies is None else source.copies.mirrors.copies.values()
    masters = sum(copy.master is not None for copy in copies)
    return {
        "name": source.node_name,
        "running": True,
        "paused": source.membership.phase == PAUSED,
        "partition": source.membership.partition.status(),
        "lease": {"held": source.membership.has_lease()},
        "cluster_links": [{"name": name} for name in source.news.live() if name != source.node_name],
        "masters": masters,
        "mirrors": len(copies) - masters,
        "os_pid": str(facts.get("pid", "")),
        "uptime": (source.now.mono - source.started_at.mono) // 1000,
        "mem_used": source.memory_used,
        "mem_limit": source.settings.memory_limit,
        "mem_alarm": "memory" in alarms,
        "disk_free": source.disk_free,
        "disk_free_limit": source.settings.disk_free_limit,
        "disk_free_alarm": "disk" in alarms,
        "fd_used": facts.get("fd_used", 0),
        "fd_total": facts.get("fd_limit", 0),
        "sockets_used": len(source.connections),
        "db_dir": facts.get("data_dir"),
        "config_files": list(facts.get("config_files", ())),
        "log_files": list(facts.get("log_files", ())),
        "version": __version__,
    }


def told_details(source: ClusterSource, name: str) -> Row:
    """What is known of another node without asking it; of one that is not heard, only that."""
    facts = source.news.of(name)
    if facts is None or source.news.is_silent(name):
        return {"name": name, "running": False}
    return {
        "name": name,
        "running": True,
        "uptime": max(0, source.now.wall - facts.started_at) // 1000,
        "mem_used": facts.memory_used,
        "mem_limit": facts.memory_limit,
        "mem_alarm": "memory" in facts.alarms,
        "disk_free": facts.disk_free,
        "disk_free_limit": facts.disk_free_limit,
        "disk_free_alarm": "disk" in facts.alarms,
        "sockets_used": facts.connections,
        "version": facts.version,
    }


def cluster_status(view: View) -> Row:
    """Everything `cluster_status` shows."""
    members = sorted(view.members)
    running = [member for member in members if member.is_running]
    unheard = [member.name for member in members if not member.is_running]
    return {
        "node": view.node,
        "cluster_name": view.cluster_name,
        "cluster_id": view.cluster_id,
        "members": [_member(view, member) for member in members],
        "leader": view.leader,
        "disk_nodes": [member.name for member in members],
        "ram_nodes": [],
        "running_nodes": [member.name for member in running],
        "versions": {member.name: {"mirrormq_version": member.version} for member in running},
        "alarms": [
            {"type": "resource_limit", "resource": alarm, "node": member.name}
            for member in running
            for alarm in member.alarms
        ],
        # A node that is cut off sees all others gone at once; of single ones nobody can tell.
        "partitions": {view.node: unheard} if view.is_paused else {},
        "partition": dict(view.partition),
        "paused": view.is_paused,
        "maintenance_status": {
            member.name: DRAINED if member.is_drained else NOT_DRAINED for member in members
        },
        "listeners": {member.name: list(member.listeners) for member in running},
        "feature_level": view.level,
        "feature_flags": list(feature_flags(view.level)),
        "coordinator": view.coordinator,
        "failures_tolerated": max(0, _spare(view)),
        "tolerance": tolerance(view),
    }


def tolerance(view: View) -> str:
    """How many more nodes can fail before the cluster stops, and what would help."""
    if view.coordinator == ETCD:
        running = sum(member.is_running for member in view.members)
        return f"agrees by etcd: it goes on while one node and a majority of etcd run ({running} nodes do)"
    spare = _spare(view)
    voters = _voters(view)
    if spare < 0:
        return f"has no majority: {-spare} more of its {len(voters)} voting nodes must be running"
    text = f"tolerates {spare} failure{'' if spare == 1 else 's'}"
    if len(voters) == 1:
        return f"{text}: it is one node"
    if len(voters) % 2 == 0:
        return f"{text}; add a witness"
    missing = [member.name for member in voters if not member.is_running]
    return f"{text}; not running: {', '.join(missing)}" if missing else text


def is_majority_critical(view: View) -> bool:
    """Would the cluster stop if this node did?"""
    if view.coordinator == ETCD:
        return False
    votes = any(member.name == view.node for member in _voters(view))
    return votes and len(_voters(view)) > 1 and _spare(view) <= 0


def feature_flags(level: int) -> list[Row]:
    """RabbitMQ's feature flags, sorted."""
    assert level >= 1, level
    return [
        {
            "name": name,
            "state": "enabled",
            "stability": "stable",
            "desc": FLAGS[name],
            "doc_url": "",
            "provided_by": "rabbit",
        }
        for name in sorted(FLAGS)
    ]


def cluster_name(source: Source) -> str:
    """The name an administrator gave, or the configured one."""
    found = source.state.global_parameters.get("cluster_name")
    return source.cluster_name if found is None else str(found.value)


def _member(view: View, member: Member) -> Row:
    return {
        "name": member.name,
        "role": member.role,
        "running": member.is_running,
        "leader": member.name == view.leader,
        "address": member.address,
    }


def _voters(view: View) -> list[Member]:
    return sorted(member for member in view.members if member.role != NON_VOTER)


def _spare(view: View) -> int:
    """Running voters beyond a majority; below zero if there is none."""
    voters = _voters(view)
    if view.coordinator == ETCD:
        return sum(member.is_running for member in view.members) - 1
    return sum(member.is_running for member in voters) - (len(voters) // 2 + 1)
