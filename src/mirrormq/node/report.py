"""Snapshots of what the node holds, as rows of plain values with RabbitMQ's names; formatting is others'
work.

Every list is a generator that builds one row at a time, so that whoever shows it can stop after a slice and
go on later: no caller holds the loop for 10,000 queues. The records to show are taken when the list begins;
of one that is gone by the time its row is due, the row is left out or shows the last values.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from mirrormq.base.types import Now
from mirrormq.broker.arguments import queue_type
from mirrormq.broker.consumer import Consumer
from mirrormq.broker.mirrorqueue import stored
from mirrormq.kernel.cores import QUEUE_COUNTS
from mirrormq.meta import records, system
from mirrormq.meta.passwords import ARGON2ID, SHA256
from mirrormq.meta.policy import effective
from mirrormq.meta.state import MetaState
from mirrormq.node import report_mirrors
from mirrormq.node.report_mirrors import CopiesPort

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.connection import Connection
    from mirrormq.broker.queueport import QueuePort
    from mirrormq.broker.vhost import VHost

Row = dict[str, Any]

DEFAULT_EXCHANGE = ""


class Source(Protocol):
    """The node, as reports read it."""

    node_name: str
    cluster_name: str
    now: Now
    started_at: Now
    vhosts: "dict[str, VHost]"
    connections: "dict[int, Connection]"
    alarms: set[str]

    @property
    def state(self) -> MetaState:
        """The metadata."""
        ...

    @property
    def copies(self) -> CopiesPort | None:
        """The copies of mirrored queues here; None until the node has entered its cluster."""
        ...


# --- identities ---


def connection_pid(node: str, conn_id: int) -> str:
    """A connection in the form of an Erlang process: scripts pass it to close_connection unread."""
    return f"<{node}.1.{conn_id}.0>"


def channel_pid(node: str, conn_id: int, number: int) -> str:
    """A channel in the same form."""
    return f"<{node}.1.{conn_id}.{number}>"


def queue_pid(node: str, queue_id: int) -> str:
    """A queue in the same form."""
    return f"<{node}.2.{queue_id}.0>"


# --- vhosts and access ---


def vhosts(source: Source) -> Iterator[Row]:
    """All vhosts."""
    for record in sorted(source.state.vhosts.values(), key=lambda record: record.name):
        yield vhost(source, record)


def vhost(source: Source, record: records.VHost) -> Row:
    """One vhost."""
    tags = list(record.tags)
    return {
        "name": record.name,
        "description": record.description,
        "tags": tags,
        "default_queue_type": record.default_queue_type or "undefined",
        "metadata": {"description": record.description, "tags": tags},
        "tracing": False,
        "mirror_of": record.mirror_of,
        "cluster_state": {source.node_name: "running" if record.name in source.vhosts else "down"},
    }


def users(source: Source) -> Iterator[Row]:
    """All users, with their hashes: for administrators only."""
    for record in sorted(source.state.users.values(), key=lambda record: record.name):
        yield user(record)


def user(record: records.User) -> Row:
    """One user. Hashes are in base64, whatever their algorithm: that is the form other tools accept."""
    stored = record.password_hash
    if record.hashing_algorithm == ARGON2ID:
        stored = base64.b64encode(stored.encode()).decode("ascii")
    return {
        "name": record.name,
        "password_hash": stored,
        "hashing_algorithm": record.hashing_algorithm or SHA256,
        "tags": list(record.tags),
        "limits": dict(record.limits),
    }


def permissions(found: Iterable[records.Permission]) -> Iterator[Row]:
    """Rows of permissions."""
    for record in sorted(found, key=lambda record: record.identity):
        yield {
            "user": record.user,
            "vhost": record.vhost,
            "configure": record.configure,
            "write": record.write,
            "read": record.read,
        }


def topic_permissions(found: Iterable[records.TopicPermission]) -> Iterator[Row]:
    """Rows of topic permissions."""
    for record in sorted(found, key=lambda record: record.identity):
        yield {
            "user": record.user,
            "vhost": record.vhost,
            "exchange": record.exchange,
            "write": record.write,
            "read": record.read,
        }


# --- policies and parameters ---


def policies(found: Iterable[records.Policy], *, operator: bool) -> Iterator[Row]:
    """Rows of policies, or of operator policies."""
    for record in sorted(found, key=lambda record: record.identity):
        if record.operator == operator:
            yield {
                "vhost": record.vhost,
                "name": record.name,
                "pattern": record.pattern,
                "apply-to": record.apply_to,
                "definition": record.definition,
                "priority": record.priority,
            }


def parameters(source: Source) -> Iterator[Row]:
    """Runtime parameters as the management API has them: operator policies and limits are among them."""
    state = source.state
    for policy in state.policies.values():
        if policy.operator:
            yield _parameter(policy.vhost, "operator_policy", policy.name, _policy_value(policy))
    for limits in state.vhost_limits.values():
        yield _parameter(limits.vhost, "vhost-limits", "limits", dict(limits.limits))
    for record in state.parameters.values():
        yield _parameter(record.vhost, record.component, record.name, record.value)


def policy_parameters(source: Source) -> Iterator[Row]:
    """Policies as parameters of the component `policy`."""
    for policy in source.state.policies.values():
        if not policy.operator:
            yield _parameter(policy.vhost, "policy", policy.name, _policy_value(policy))


def global_parameters(source: Source) -> Iterator[Row]:
    """Runtime parameters of the whole cluster; the cluster's name is one, set or not."""
    found = source.state.global_parameters
    if "cluster_name" not in found:
        yield {"name": "cluster_name", "value": source.cluster_name}
    for record in sorted(found.values(), key=lambda record: record.name):
        yield {"name": record.name, "value": record.value}


def _parameter(vhost: str, component: str, name: str, value: Any) -> Row:
    return {"vhost": vhost, "component": component, "name": name, "value": value}


def _policy_value(policy: records.Policy) -> Row:
    return {
        "pattern": policy.pattern,
        "definition": policy.definition,
        "priority": policy.priority,
        "apply-to": policy.apply_to,
    }


# --- queues, exchanges, bindings ---


def queues(source: Source, found: Iterable[records.Queue]) -> Iterator[Row]:
    """Rows of queues."""
    for record in list(found):
        yield queue(source, record)


def queue(source: Source, record: records.Queue) -> Row:
    """One queue: its definition and, while it lives here, its counters."""
    node = record.node or source.node_name
    row: Row = {
        "name": record.name,
        "vhost": record.vhost,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "exclusive": record.exclusive,
        "owner_pid": None if record.owner is None else connection_pid(node, record.owner),
        "arguments": record.arguments,
        "node": node,
        "type": queue_type(record.arguments),
        "pid": queue_pid(node, record.id),
    }
    row.update(_policy_of(source, record))
    row.update(report_mirrors.described(source, record, queue_pid))
    home = source.vhosts.get(record.vhost)
    live = None if home is None else home.queues.get(record.name)
    if live is None or live.record.id != record.id:
        row["state"] = report_mirrors.DOWN
        return row
    if not live.is_local:  # only its master knows how many messages it has
        gone = report_mirrors.state_without_master(source.state, record)
        row["state"] = report_mirrors.RUNNING if live.is_available else gone
        return row
    row.update(counters(source, live))
    return row


def counters(source: Source, live: "QueuePort") -> Row:
    """What only the master of a queue knows of it."""
    core = live.core
    ready, unacked = stored(live), core.unacked
    ready_bytes, unacked_bytes = core.ready_bytes, core.unacked_bytes
    members = live.consumers.members
    single = (
        next((member for member in members if member.active), None) if live.settings.single_active else None
    )
    exclusive = next((member for member in members if member.exclusive), None)
    holder = exclusive.channel if isinstance(exclusive, Consumer) else None
    return {
        **report_mirrors.measured(source, live),
        "consumers": len(members),
        "messages": ready + unacked,
        "messages_ready": ready,
        "messages_unacknowledged": unacked,
        "messages_ram": ready + unacked,
        "messages_ready_ram": ready,
        "messages_unacknowledged_ram": unacked,
        "message_bytes": ready_bytes + unacked_bytes,
        "message_bytes_ready": ready_bytes,
        "message_bytes_unacknowledged": unacked_bytes,
        "message_bytes_ram": ready_bytes + unacked_bytes,
        "memory": ready_bytes + unacked_bytes,
        "single_active_consumer_tag": None if single is None else single.tag,
        "exclusive_consumer_tag": None if exclusive is None else exclusive.tag,
        "exclusive_consumer_pid": None if holder is None else _pid_of(source.node_name, holder),
        "message_stats": {
            **dict(zip(QUEUE_COUNTS[:-2], core.counts(), strict=False)),
            "deliver_get": core.delivered + core.delivered_no_ack + core.got,
        },
    }


def depths(source: Source, vhosts: Iterable[str] | None = None) -> Iterator[tuple[int, int]]:
    """Ready and unacknowledged messages of every queue here, or of those in some vhosts."""
    names = source.vhosts if vhosts is None else vhosts
    for home in [source.vhosts[name] for name in names if name in source.vhosts]:
        for live in list(home.queues.values()):
            if live.is_local and _is_counted(live):
                yield live.core.ready, live.core.unacked


def _is_counted(live: "QueuePort") -> bool:
    return not system.is_system(live.record.vhost, live.name)


def exchanges(source: Source, found: Iterable[records.Exchange]) -> Iterator[Row]:
    """Rows of exchanges."""
    for record in list(found):
        yield exchange(source, record)


def exchange(source: Source, record: records.Exchange) -> Row:
    """One exchange."""
    row: Row = {
        "name": record.name,
        "vhost": record.vhost,
        "type": record.type,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "internal": record.internal,
        "arguments": record.arguments,
    }
    found = _policy_of(source, record)
    if found["policy"] is not None:
        row["policy"] = found["policy"]
    return row


def bindings_of(source: Source, vhost: str) -> Iterator[records.Binding]:
    """All bindings of a vhost, those that every queue has to the default exchange first."""
    for record in system.ordinary(source.state.queues_in(vhost)):
        yield default_binding(record)
    yield from list(source.state.bindings_in(vhost))


def default_binding(queue_record: records.Queue) -> records.Binding:
    """The binding that exists because the queue does."""
    name = queue_record.name
    return records.Binding(queue_record.vhost, DEFAULT_EXCHANGE, name, "queue", name)


def bindings(found: Iterable[records.Binding]) -> Iterator[Row]:
    """Rows of bindings."""
    for record in found:
        yield {
            "source": record.source,
            "vhost": record.vhost,
            "destination": record.destination,
            "destination_type": record.destination_type,
            "routing_key": record.routing_key,
            "arguments": record.arguments,
            "properties_key": record.key,
        }


def _policy_of(source: Source, record: records.Queue | records.Exchange) -> Row:
    found = effective(source.state, record)
    return {
        "policy": None if found.policy is None else found.policy.name,
        "operator_policy": None if found.operator is None else found.operator.name,
        "effective_policy_definition": found.definition,
    }


# --- connections, channels, consumers ---


def connections(source: Source) -> Iterator[Row]:
    """Rows of all connections that have logged in or are about to."""
    for found in list(source.connections.values()):
        yield connection(source, found)


def connection(source: Source, found: "Connection") -> Row:
    """One connection."""
    peer = found.peer
    return {
        "pid": connection_pid(source.node_name, found.conn_id),
        "name": found.name,
        "user_provided_name": found.user_provided_name,
        "node": source.node_name,
        "host": peer.local_host,
        "port": peer.local_port,
        "peer_host": peer.host,
        "peer_port": peer.port,
        "ssl": peer.tls,
        "peer_cert_subject": peer.cert_name,
        "state": found.shown_state,
        "type": "network",
        "channels": len(found.channels),
        "channel_max": found.channel_max,
        "protocol": found.protocol,
        "auth_mechanism": found.auth_mechanism,
        "user": found.user,
        "vhost": None if found.vhost is None else found.vhost.name,
        "timeout": found.heartbeat,
        "frame_max": found.frame_max,
        "client_properties": found.client_properties,
        "connected_at": found.connected_at,
        "recv_oct": found.recv_oct,
        "recv_cnt": found.recv_cnt,
        "send_oct": found.send_oct,
        "send_pend": found.send_pend,
    }


def channels(source: Source) -> Iterator[Row]:
    """Rows of all channels."""
    for found in list(source.connections.values()):
        for member in list(found.channels.values()):
            yield channel(source, member)


def channel(source: Source, found: "Channel") -> Row:
    """One channel."""
    owner = found.connection
    node = source.node_name
    return {
        "pid": _pid_of(node, found),
        "connection": connection_pid(node, owner.conn_id),
        "connection_details": {
            "name": owner.name,
            "peer_host": owner.peer.host,
            "peer_port": owner.peer.port,
        },
        "name": found.name,
        "number": found.number,
        "node": node,
        "user": found.user,
        "vhost": found.vhost.name,
        "state": found.shown_state,
        "transactional": found.is_transactional,
        "confirm": found.is_confirming,
        "consumer_count": len(found.consumers),
        "messages_unacknowledged": found.messages_unacknowledged,
        "messages_unconfirmed": found.messages_unconfirmed,
        "messages_uncommitted": found.messages_uncommitted,
        "acks_uncommitted": found.acks_uncommitted,
        "prefetch_count": found.prefetch_count,
        "global_prefetch_count": found.global_prefetch_count,
    }


def consumers(source: Source, vhost: str | None = None) -> Iterator[Row]:
    """Rows of all consumers, or of those in one vhost."""
    for owner in list(source.connections.values()):
        if vhost is not None and (owner.vhost is None or owner.vhost.name != vhost):
            continue
        for member in list(owner.channels.values()):
            for found in list(member.consumers.values()):
                yield consumer(source, found)


def consumer(source: Source, found: Consumer) -> Row:
    """One consumer."""
    member = found.channel
    owner = member.connection
    node = source.node_name
    return {
        "queue_name": found.queue.name,
        "queue": {"name": found.queue.name, "vhost": member.vhost.name},
        "channel_pid": _pid_of(node, member),
        "channel_details": {
            "connection_name": owner.name,
            "name": member.name,
            "node": node,
            "number": member.number,
            "peer_host": owner.peer.host,
            "peer_port": owner.peer.port,
            "user": member.user,
        },
        "consumer_tag": found.tag,
        "ack_required": not found.no_ack,
        "exclusive": found.exclusive,
        "prefetch_count": found.prefetch,
        "active": found.active,
        "activity_status": "up" if found.active else "waiting",
        "arguments": found.arguments,
    }


def totals(source: Source) -> Mapping[str, int]:
    """How many objects there are."""
    state = source.state
    return {
        "connections": len(source.connections),
        "channels": sum(len(found.channels) for found in source.connections.values()),
        "consumers": sum(
            len(member.consumers)
            for found in source.connections.values()
            if found.channels
            for member in found.channels.values()
        ),
        "exchanges": len(state.exchanges),
        "queues": system.count(state),
        "vhosts": len(state.vhosts),
    }


def totals_in(source: Source, vhost: str) -> tuple[int, int]:
    """How many exchanges and queues there are in a vhost."""
    return len(source.state.exchanges_in(vhost)), system.count_in(source.state, vhost)


def _pid_of(node: str, found: "Channel") -> str:
    return channel_pid(node, found.connection.conn_id, found.number)
