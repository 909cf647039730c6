"""Direct reply-to: answers go straight from publisher to consumer, through no queue.

A client consumes from the pseudo-queue `amq.rabbitmq.reply-to` without acknowledgements and publishes
requests with that name as reply-to. The broker replaces it by an address that names the process of the
client's node, the consumer's channel and a secret; whoever publishes to this address through the default
exchange of any node reaches the channel while it lives, and nobody afterwards.

Guarantee: an answer is delivered at most once and never stored. To its publisher it counts as unroutable, as
in RabbitMQ: with `mandatory` it is also returned.
"""

import base64
import binascii
from typing import TYPE_CHECKING, Protocol

from mirrormq.base.errors import not_allowed, not_found, precondition_failed
from mirrormq.broker.queueport import Later
from mirrormq.kernel.message import Message
from mirrormq.wire import methods

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.host import Host

QUEUE = "amq.rabbitmq.reply-to"
PREFIX = b"amq.rabbitmq.reply-to."
_SECRET_BYTES = 16
_PLACE_BYTES = 16
"""Process and channel, eight bytes each."""
_DELIVER = bytes.fromhex("003c003c")


class Listener(Protocol):
    """Somebody who waits for answers, on this node or another."""

    def deliver(self, message: Message) -> None:
        """Hand over an answer, if the listener is still there."""
        ...

    def is_there(self) -> bool | Later[bool]:
        """Is anybody behind the address?"""
        ...


class ReplyConsumer:
    """The one consumer of answers a channel may have."""

    __slots__ = ("_channel", "_secret", "address", "tag")

    def __init__(self, channel: "Channel", tag: str) -> None:
        """Draw a new address."""
        self._channel = channel
        self.tag = tag
        self._secret = base64.urlsafe_b64encode(channel.host.rng.token(_SECRET_BYTES))
        place = channel.host.pid.to_bytes(8, "big") + channel.uid.to_bytes(8, "big")
        self.address = PREFIX + base64.urlsafe_b64encode(place) + b"." + self._secret
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

    def is_there(self) -> bool:
        """It was found a moment ago."""
        return True


def find(host: "Host", address: bytes) -> Listener | None:
    """Find who listens behind an address; None if it is gone or the address was never given out.

    Whether a listener of another node is still there, that node will know.
    """
    pid, _ = _place(address)
    return find_here(host, address) if pid == host.pid else host.far_listener(pid, address)


def find_here(host: "Host", address: bytes) -> ReplyConsumer | None:
    """The same among the channels of this node."""
    pid, uid = _place(address)
    channel = host.channels.get(uid) if pid == host.pid else None
    consumer = channel.reply_consumer if channel is not None else None
    return consumer if consumer is not None and consumer.owns(address) else None


def _place(address: bytes) -> tuple[int, int]:
    """Process and channel of an address; (0, 0), which are nobody's, if it never was one."""
    encoded, _, _ = address[len(PREFIX) :].partition(b".")
    try:
        place = base64.urlsafe_b64decode(encoded)
    except (binascii.Error, ValueError):
        return 0, 0
    if len(place) != _PLACE_BYTES:
        return 0, 0
    return int.from_bytes(place[:8], "big"), int.from_bytes(place[8:], "big")


def is_address(routing_key: bytes) -> bool:
    """Does this routing key name a reply consumer rather than a queue?"""
    return routing_key.startswith(PREFIX)


def declare(channel: "Channel", method: methods.QueueDeclare, name: str) -> None:
    """Answer queue.declare for the pseudo-queue or an address: a way to ask whether anybody listens."""

    def answer(is_there: bool) -> None:
        if not is_there:
            raise not_found(f"no {channel.text('queue', name)}")
        channel.last_queue = name
        if not method.nowait:
            channel.send(methods.QueueDeclareOk(name, 0, 1))

    listener = None if name == QUEUE else find(channel.host, name.encode("utf-8", "surrogateescape"))
    channel.wait(method, name == QUEUE if listener is None else listener.is_there(), answer)


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
