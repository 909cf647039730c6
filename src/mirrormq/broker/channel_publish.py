"""Publishing in the Python lane: every message the reader could not route from its memo alone.

These are messages with CC or BCC, a user-id, direct reply-to or an unusual expiration; to headers exchanges,
with an alternate exchange or without a queue; in a transaction; and all those that are refused. The checks
come in RabbitMQ's order, and for a message that passes them the result is the same as in the compiled lane.
"""

from typing import TYPE_CHECKING

from mirrormq.base.errors import access_refused, not_implemented, precondition_failed
from mirrormq.broker import faults, replyto
from mirrormq.broker.arguments import octets, text, type_tag
from mirrormq.broker.transactions import Publish, deliver, published
from mirrormq.kernel.message import Message
from mirrormq.meta import system
from mirrormq.wire.properties import Properties, decode_properties, join_properties, split_properties
from mirrormq.wire.table import join_table, split_table

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.publisher import Publisher

_HEADERS = 1 << 13
_REPLY_TO = 1 << 9
_EXPIRATION = 1 << 8
_USER_ID = 1 << 4
_DELIVERY_MODE = 1 << 12
_LOOKED_AT = _HEADERS | _DELIVERY_MODE | _REPLY_TO | _EXPIRATION | _USER_ID
"""Flags of the properties that routing and checks read; without any of them nothing is decoded."""

_NO_PROPERTIES = Properties()


def publish(channel: "Channel", message: Message, *, mandatory: bool, immediate: bool) -> None:
    """Check a message, find its queues, and put it there, or keep it for tx.commit."""
    if immediate:
        raise not_implemented("immediate=true")
    check_rights(channel, text(message.exchange), message.routing_key)
    properties = _read(message)
    if properties.reply_to == replyto.QUEUE:
        message = _with_reply_address(channel, message)
    message, extra_keys = _examine(channel, message, properties)
    _route(channel, message, extra_keys, mandatory=mandatory)


def examine(publisher: "Publisher", message: Message) -> tuple[Message, list[bytes]]:
    """Check what a message says of itself: what is to be published, and further keys to route by."""
    return _examine(publisher, message, _read(message))


def _read(message: Message) -> Properties:
    raw = message.properties
    return decode_properties(raw) if int.from_bytes(raw[:2], "big") & _LOOKED_AT else _NO_PROPERTIES


def _examine(publisher: "Publisher", message: Message, properties: Properties) -> tuple[Message, list[bytes]]:
    _check_user_id(publisher, properties)
    _check_expiration(message, properties)
    extra_keys = _extra_keys(properties)
    _check_delivery_mode(properties)
    if properties.headers and "BCC" in properties.headers:
        message = _without_bcc(message)
    return message, extra_keys


def _route(channel: "Channel", message: Message, extra_keys: list[bytes], *, mandatory: bool) -> None:
    routed = channel.vhost.route_message(message, extra_keys)
    for listener in routed.replies:
        listener.deliver(message)
    queues = [channel.host.partition.port(queue).core for queue in routed.queues]
    planned = Publish(message, queues, mandatory, bool(routed.replies))
    core = channel.core
    if channel.tx is not None:
        channel.tx.publish(planned)
    elif not core.confirm:
        deliver(channel, planned, 0)
    else:
        # Also without a queue: then the confirm waits for nothing and goes out at the end of this pass.
        core.enqueue(message, queues)
        for queue in queues:
            channel.connection.reader.note_fed(queue)
        published(channel, planned)


# --- checks -------------------------------------------------------------------------------------


def check_rights(publisher: "Publisher", name: str, routing_key: bytes) -> None:
    """Raise unless somebody may publish to this exchange with this key."""
    publisher.check("write", "exchange", name)
    exchange = publisher.exchange(name)
    if exchange.internal:
        raise access_refused(f"cannot publish to internal {publisher.text('exchange', name)}")
    publisher.check_topic("write", exchange, routing_key)
    queue = text(routing_key)
    if not name and system.is_system(publisher.vhost.name, queue):
        raise access_refused(f"{publisher.text('queue', queue)} belongs to the cluster alone")


def _check_user_id(publisher: "Publisher", properties: Properties) -> None:
    """A message may only claim to be from its publisher, unless that one may impersonate others."""
    claimed = properties.user_id
    if claimed is None or claimed == publisher.user:
        return
    user = publisher.host.state.users.get(publisher.user)
    if user is None or "impersonator" not in user.tags:
        raise precondition_failed(
            f"user_id property set to '{claimed}' but authenticated user was '{publisher.user}'"
        )


def _check_expiration(message: Message, properties: Properties) -> None:
    if properties.expiration is None or message.ttl_us >= 0:
        return  # the kernel could read it
    raw = split_properties(message.properties)["expiration"][1:]
    error = faults.bad_expiration(raw)
    if error is not None:
        raise error


def _check_delivery_mode(properties: Properties) -> None:
    mode = properties.delivery_mode
    if mode not in (None, 1, 2):
        raise precondition_failed(f"invalid message: {{delivery_mode_unknown,{mode}}}")


def _extra_keys(properties: Properties) -> list[bytes]:
    """Routing keys of the CC and BCC headers: arrays of strings, other elements are ignored."""
    keys: list[bytes] = []
    headers = properties.headers or {}
    for name in ("CC", "BCC"):
        if name not in headers:
            continue
        value = headers[name]
        if not isinstance(value, list):
            reason = f'{{unacceptable_type_in_header,"{name}",{type_tag(value)}}}'
            raise precondition_failed(f"invalid message: {reason}")
        keys.extend(octets(key) for key in value if isinstance(key, str | bytes))
    return keys


# --- changes to a message -----------------------------------------------------------------------


def _with_reply_address(channel: "Channel", message: Message) -> Message:
    fields = split_properties(message.properties)
    address = replyto.address_for(channel)
    fields["reply_to"] = bytes((len(address),)) + address
    return _rebuilt(message, fields)


def _without_bcc(message: Message) -> Message:
    """Nobody but the broker may see the BCC header."""
    fields = split_properties(message.properties)
    kept = [(name, value) for name, value in split_table(fields["headers"]) if name != "BCC"]
    fields["headers"] = join_table(kept)
    return _rebuilt(message, fields)


def _rebuilt(message: Message, fields: dict[str, bytes]) -> Message:
    return Message(message.exchange, message.routing_key, join_properties(fields), message.body)
