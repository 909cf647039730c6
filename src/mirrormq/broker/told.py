"""What events say of connections, channels and consumers: RabbitMQ's headers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.connection import Connection
    from mirrormq.broker.consumer import Consumer

Headers = dict[str, Any]


def peer(found: "Connection") -> Headers:
    """Where a connection comes from."""
    ends = found.peer
    return {
        "connection_name": found.name,
        "host": ends.local_host,
        "port": ends.local_port,
        "peer_host": ends.host,
        "peer_port": ends.port,
        "ssl": ends.tls,
        "protocol": found.protocol,
        "auth_mechanism": found.auth_mechanism,
    }


def login(found: "Connection", user: str, refusal: str | None) -> Headers:
    """Somebody has logged in, or was refused."""
    headers = {"name": user, "connection_type": "network", **peer(found)}
    return headers if refusal is None else {**headers, "error": refusal}


def connection(found: "Connection") -> Headers:
    """A connection is open, or closed."""
    return {
        **peer(found),
        "name": found.name,
        "user_provided_name": found.user_provided_name or "",
        "user": found.user,
        "vhost": "" if found.vhost is None else found.vhost.name,
        "type": "network",
        "channel_max": found.channel_max,
        "frame_max": found.frame_max,
        "timeout": found.heartbeat,
        "connected_at": found.connected_at,
    }


def channel(found: "Channel") -> Headers:
    """A channel is open, or closed."""
    owner = found.connection
    return {
        "name": found.name,
        "number": found.number,
        "connection_name": owner.name,
        "user": found.user,
        "vhost": found.vhost.name,
    }


def consumer(found: "Consumer") -> Headers:
    """A consumer has come, or is gone."""
    return {
        "consumer_tag": found.tag,
        "queue": found.queue.name,
        "vhost": found.channel.vhost.name,
        "channel_name": found.channel.name,
        "user": found.channel.user,
        "exclusive": found.exclusive,
        "ack_required": not found.no_ack,
        "prefetch_count": found.prefetch,
    }
