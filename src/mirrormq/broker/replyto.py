"""Direct reply-to: answers go straight from publisher to consumer, through no queue.

A client consumes from the pseudo-queue `amq.rabbitmq.reply-to` without acknowledgements and publishes
requests with that name as reply-to. The broker replaces it by an address that names the consumer's channel
and a secret; whoever publishes to this address through the default exchange reaches the channel while it
lives, and nobody afterwards.

Guarantee: an answer is delivered at most once and never stored. To its publisher it counts as unroutable, as
in RabbitMQ: with `mandatory` it is also returned.
"""

import base64
import binascii
from typing import TYPE_CHECKING

from mirrormq.base.errors import not_allowed, not_found, precondition_failed
from mirrormq.kernel.message import Message
from mirrormq.wire import methods

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.host import Host

QUEUE = "amq.rabbitmq.reply-to"
PREFIX = b"amq.rabbitmq.reply-to."
_SECRET_BYTES = 16
_DELIVER = bytes.fromhex("003c003c")


class ReplyConsumer:
    """The one consumer of answers a channel may have."""

    __slots__ = ("_channel", "_secret", "address", "tag")

    def __init__(self, channel: "Channel", tag: str) -> None:
        """Draw a new address."""
        self._channel = channel
        self.tag = tag
        self._secret = base64.urlsafe_b64encode(channel.host.rng.token(_SECRET_BYTES))
        uid = base64.urlsafe_b64encode(channel.uid.to_bytes(8, "big"))
        self.address = PREFIX + uid + b"." + self._secret
        """What a request's reply-to is replaced by."""

    def owns(self, address: bytes) -> bool:
        """Was this address made for this consumer?"""
        return address == self.address

    def deliver(self, message: Message) -> None:
        """Write an answer. It needs no acknowledgement and, as in RabbitMQ, uses up no delivery tag."""
        channel = self._channel
        tag = self.tag.encode()
        route = _short(message.exchange) + _short(message.routing_key)
        number = channel.core.next_tag.to_bytes(8, "big")
        channel.connection.out.write_content(
            channel.number, _DELIVER + _short(tag) + number + b"\x00" + route, message
        )


def find(host: "Host", address: bytes) -> ReplyConsumer | None:
    """Find the consumer behind an address; None if it is gone or the address was never given out."""
    encoded, _, _ = address[len(PREFIX) :].partition(b".")
    try:
        uid = int.from_bytes(base64.urlsafe_b64decode(encoded), "big")
    except (binascii.Error, ValueError):
        return None
    channel = host.channels.get(uid)
    consumer = channel.reply_consumer if channel is not None else None
    return consumer if consumer is not None and consumer.owns(address) else None


def is_address(routing_key: bytes) -> bool:
    """Does this routing key name a reply consumer rather than a queue?"""
    return routing_key.startswith(PREFIX)


def declare(channel: "Channel", method: methods.QueueDeclare, name: str) -> None:
    """Answer queue.declare for the pseudo-queue or an address: a way to ask whether anybody listens."""
    if name != QUEUE and find(channel.host, name.encode()) is None:
        raise not_found(f"no {channel.text('queue', name)}")
    channel.last_queue = name
    if not method.nowait:
        channel.send(methods.QueueDeclareOk(name, 0, 1))


def consume(channel: "Channel", method: methods.BasicConsume) -> None:
    """Start listening for answers."""
    if method.consumer_tag in channel.consumers:
        raise not_allowed(f"attempt to reuse consumer tag '{method.consumer_tag}'")
    if not method.no_ack:
        raise precondition_failed("reply consumer cannot acknowledge")
    if channel.reply_consumer is not None:
        raise precondition_failed("reply consumer already set")
    tag = method.consumer_tag or channel.generate("amq.ctag")
    channel.reply_consumer = ReplyConsumer(channel, tag)
    if not method.nowait:
        channel.send(methods.BasicConsumeOk(tag))


def address_for(channel: "Channel") -> bytes:
    """What the reply-to of a request published on this channel becomes."""
    if channel.reply_consumer is None:
        raise precondition_failed("fast reply consumer does not exist")
    return channel.reply_consumer.address


def _short(data: bytes) -> bytes:
    return bytes((len(data),)) + data
