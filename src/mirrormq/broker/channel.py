"""One channel: which methods it serves, in which state, and what a mistake costs.

Guarantees
- A mistake with a channel's code closes the channel only: first everything outstanding goes back to its
  queues in the original order, then channel.close is written, and nothing is delivered or served after it
  until the client's close-ok. Any other code closes the connection.
- However a channel ends, its consumers are gone from their queues and its unacknowledged messages are ready
  again.

The methods themselves live in channel_queue, channel_exchange, channel_basic and channel_publish; `_HANDLERS`
is the table. What happens per message is in `kernel.cores.ChannelCore`.
"""

import base64
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mirrormq.base.errors import (
    AmqpError,
    channel_error,
    command_invalid,
    not_found,
    not_implemented,
    precondition_failed,
)
from mirrormq.broker import (
    channel_basic,
    channel_exchange,
    channel_publish,
    channel_queue,
    told,
    transactions,
)
from mirrormq.broker.confirm import ConfirmTracker
from mirrormq.broker.consumer import Consumer
from mirrormq.broker.publisher import Publisher
from mirrormq.broker.queueport import Later, QueuePort
from mirrormq.broker.replyto import ReplyConsumer
from mirrormq.broker.transactions import Transaction
from mirrormq.kernel.cores import ChannelCore
from mirrormq.kernel.message import Message
from mirrormq.meta.commands import Command
from mirrormq.meta.state import Outcome
from mirrormq.wire import methods
from mirrormq.wire.methods import Method

if TYPE_CHECKING:
    from mirrormq.broker.connection import Connection


T = TypeVar("T")

REMOTE = "remote"


class Channel(Publisher):
    """The state machine of one open channel."""

    __slots__ = (
        "confirm",
        "connection",
        "consumers",
        "core",
        "has_far",
        "last_queue",
        "number",
        "prefetch_count",
        "reply_consumer",
        "tx",
        "uid",
    )

    def __init__(self, connection: "Connection", number: int, uid: int) -> None:
        """Open, with nothing declared, consumed or published."""
        assert connection.vhost is not None
        self.connection = connection
        super().__init__(connection.host, connection.vhost, connection.user)
        self.number = number
        self.uid = uid
        self.core = ChannelCore(number, uid, connection.out)
        self.core.tally.above = self.vhost.tally
        self.confirm = ConfirmTracker(self.core)
        self.consumers: dict[str, Consumer] = {}
        self.reply_consumer: ReplyConsumer | None = None
        self.tx: Transaction | None = None
        self.has_far = False
        """Has it ever taken messages of a queue mastered elsewhere?"""
        self.prefetch_count = 0
        """Prefetch of consumers yet to come (basic.qos without `global`)."""
        self.last_queue = ""
        """What an empty queue name stands for: the queue declared last on this channel."""

    # --- what reports show ----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The channel as list_channels names it."""
        return f"{self.connection.name} ({self.number})"

    @property
    def closing(self) -> bool:
        """Has channel.close been sent, and not answered yet?"""
        return self.core.closing

    @property
    def shown_state(self) -> str:
        """The state as list_channels shows it."""
        return "closing" if self.core.closing else "running"

    @property
    def is_transactional(self) -> bool:
        """Was tx.select given?"""
        return self.tx is not None

    @property
    def is_confirming(self) -> bool:
        """Was confirm.select given?"""
        return self.core.confirm

    @property
    def global_prefetch_count(self) -> int:
        """Prefetch shared by all consumers of the channel; 0 = none."""
        return self.core.prefetch_limit

    @property
    def messages_unacknowledged(self) -> int:
        """Deliveries that wait for an acknowledgement."""
        return self.core.unacked - (self.tx.held_count if self.tx else 0)

    @property
    def messages_unconfirmed(self) -> int:
        """Publishes that wait for a confirm."""
        return self.confirm.unconfirmed if self.core.confirm else 0

    @property
    def messages_uncommitted(self) -> int:
        """Publishes that wait for tx.commit."""
        return len(self.tx.publishes) if self.tx else 0

    @property
    def acks_uncommitted(self) -> int:
        """Acknowledgements that wait for tx.commit."""
        return self.tx.acks_count if self.tx else 0

    # --- inputs ---------------------------------------------------------------------------------

    def on_method(self, method: Method) -> None:
        """Serve one method; a mistake ends the channel or the connection."""
        if self.core.closing:
            self._on_method_while_closing(method)
        elif isinstance(method, methods.ChannelClose):
            self.stop()
            self.send(methods.ChannelCloseOk())
            self.connection.forget_channel(self)
        else:
            handler = _HANDLERS.get(type(method))
            try:
                if handler is None:
                    raise command_invalid("unimplemented method")
                handler(self, method)
            except AmqpError as error:
                self.on_error(error, method)

    def on_publish(self, message: Message, mandatory: bool, immediate: bool) -> None:
        """Take a message that the reader could not route by itself."""
        if self.core.closing:
            return
        try:
            channel_publish.publish(self, message, mandatory=mandatory, immediate=immediate)
        except AmqpError as error:
            if self.core.confirm:
                self.core.publish_no -= 1  # counted by the reader, but never to be confirmed
            self.on_error(error, _PUBLISH)

    def on_settle(self, kind: str, tag: int, multiple: bool, requeue: bool) -> None:
        """Take an acknowledgement the reader could not apply: it belongs to a transaction, or to nothing."""
        if self.core.closing:
            return
        try:
            if self.tx is not None and self.tx.hold(kind, tag, multiple, requeue):
                return
            raise precondition_failed(f"unknown delivery tag {tag}")
        except AmqpError as error:
            self.on_error(error, _SETTLES[kind])

    def on_tick(self, now: int) -> None:
        """Close the channel if a delivery has not been acknowledged for too long."""
        timeout_ms = self.host.settings.consumer_timeout_ms
        oldest = self.core.oldest_delivery()
        if not timeout_ms or not oldest or self.core.closing or now - oldest <= timeout_ms * 1000:
            return
        self.fail(
            precondition_failed(
                f"delivery acknowledgement on channel {self.number} timed out. "
                f"Timeout value used: {timeout_ms} ms. "
                "This timeout value can be configured, see consumers doc guide to learn more"
            )
        )

    def cancelled_by_server(self, consumer: Consumer) -> None:
        """The consumer's queue is gone; tell the client, if it wants to know."""
        if self.consumers.pop(consumer.tag, None) is None or self.core.closing:
            return
        consumer.tell("deleted")
        if self.connection.has_capability("consumer_cancel_notify"):
            self.send(methods.BasicCancel(consumer.tag, nowait=True))

    def _on_method_while_closing(self, method: Method) -> None:
        """The client may not have seen our channel.close yet: what it sent before is ignored."""
        if isinstance(method, methods.ChannelCloseOk):
            self.connection.forget_channel(self)
        elif isinstance(method, methods.ChannelClose):
            self.send(methods.ChannelCloseOk())
        elif isinstance(method, methods.ChannelOpen):
            self.on_error(channel_error("second 'channel.open' seen"), method)

    # --- ending ---------------------------------------------------------------------------------

    def on_error(self, error: AmqpError, method: Method | type[Method]) -> None:
        """A mistake in serving `method`."""
        if not error.class_id:
            error.class_id, error.method_id = method.class_id_of, method.method_id_of
        if error.scope == "channel":
            self.fail(error)
        else:
            self.connection.close_with(error)

    def fail(self, error: AmqpError) -> None:
        """Close the channel because of `error`; what the client sends until its close-ok is ignored."""
        self.connection.note(
            "error", f"channel error: {error}", channel=self.number, code=error.code, event="channel.error"
        )
        if self.core.confirm:
            self._confirm_what_is_done()
        self.stop()
        self.connection.out.write_method(self.number, close_payload(methods.ChannelClose, error))

    def _confirm_what_is_done(self) -> None:
        """Answer this pass's publishes before the mistake, where nothing has to be waited for."""
        publish_no, queues = self.core.take_barrier()
        for queue in queues:
            if queue.pending:
                queue.owner.turn()
        positions = [position for queue in queues for position in queue.owner.positions]
        self.confirm.barrier(publish_no, positions)
        self.confirm.advance(self.host.now.mono)

    def stop(self) -> None:
        """Give back what the channel holds; nothing is delivered on it any more. Safe to call again."""
        if self.core.closing:
            return
        self.core.closing = True
        self.host.channels.pop(self.uid, None)
        self.host.census.channel_ended(self.user)
        self.host.census.tell("channel.closed", lambda: told.channel(self))
        self.confirm = ConfirmTracker(self.core)  # confirms on their way must not follow channel.close
        self.tx = None
        self.reply_consumer = None
        consumers, self.consumers = self.consumers, {}
        # First the messages: a queue that goes with its last consumer must not be asked to take them back.
        self.core.release()
        for consumer in consumers.values():
            consumer.queue.cancel(consumer)
            consumer.tell("deleted")

    # --- for the method groups ------------------------------------------------------------------

    def send(self, method: Method) -> None:
        """Write one method."""
        self.connection.send(method, self.number)

    def propose(
        self, method: Method, command: Command, then: Callable[[Outcome], None], *, wait: bool
    ) -> None:
        """Change the metadata for `method`; the connection is parked until `then` has run."""

        def guarded(outcome: Outcome) -> None:
            if self.core.closing:
                return  # closed meanwhile by an operator, a timeout or the node's end
            try:
                then(outcome)
            except AmqpError as error:
                self.on_error(error, method)

        self.connection.propose(command, guarded, wait=wait)

    def wait(self, method: Method, answer: T | Later[T], then: Callable[[T], None]) -> None:
        """Go on with the answer, now or when another node has given it."""
        if isinstance(answer, Later):
            self.wait_for(method, answer, then)
        else:
            then(answer)

    def wait_for(self, method: Method, answer: Later[T], then: Callable[[T], None]) -> None:
        """Go on with the answer when it is here; the connection is parked until then."""

        def guarded(value: T | AmqpError) -> None:
            if not self.core.closing:
                try:
                    if isinstance(value, AmqpError):
                        raise value
                    then(value)
                except AmqpError as error:
                    self.on_error(error, method)
            self.connection.unpark(REMOTE)

        self.connection.park(REMOTE)
        answer.when(guarded)

    def queue(self, name: str, *, may_be_damaged: bool = False) -> QueuePort:
        """Find a queue this connection may use; 404 if there is none, 405 if it is exclusive to another."""
        self.check_hidden("queue", name)
        queue = self.vhost.queues.get(name)
        if queue is None:
            raise not_found(f"no {self.text('queue', name)}")
        queue.may_use(self.connection.conn_id)
        if queue.damage is not None and not may_be_damaged:
            raise not_found(f"{queue.text} is damaged and not served: {queue.damage}")
        return self.host.partition.port(queue)

    def queue_name(self, name: str) -> str:
        """Replace an empty queue name by the queue declared last."""
        if name:
            return name
        if not self.last_queue:
            raise not_found("no previously declared queue")
        return self.last_queue

    def generate(self, prefix: str) -> str:
        """Make a name nobody else has, in the form RabbitMQ gives to queues and consumer tags."""
        token = base64.urlsafe_b64encode(self.host.rng.token(16)).rstrip(b"=")
        return f"{prefix}-{token.decode()}"


def close_payload(method: type[Method], error: AmqpError) -> bytes:
    """Encode a close method by hand: the text may repeat names of the client's that are not UTF-8."""
    text = error.reply_text if error.text else error.name
    raw = text.encode("utf-8", "surrogateescape")
    ids = struct.pack(">HHHB", method.class_id_of, method.method_id_of, error.code, len(raw))
    return ids + raw + struct.pack(">HH", error.class_id, error.method_id)


def _on_open(_channel: Channel, _method: methods.ChannelOpen) -> None:
    raise channel_error("second 'channel.open' seen")


def _on_flow(channel: Channel, method: methods.ChannelFlow) -> None:
    if not method.active:
        raise not_implemented("active=false")
    channel.send(methods.ChannelFlowOk(active=True))


def _on_access_request(channel: Channel, _method: methods.AccessRequest) -> None:
    channel.send(methods.AccessRequestOk(ticket=1))


def _on_confirm_select(channel: Channel, method: methods.ConfirmSelect) -> None:
    if channel.tx is not None:
        raise precondition_failed("cannot switch from tx to confirm mode")
    channel.core.confirm = True
    if not method.nowait:
        channel.send(methods.ConfirmSelectOk())


_PUBLISH = methods.BasicPublish
_SETTLES: dict[str, type[Method]] = {
    "ack": methods.BasicAck,
    "nack": methods.BasicNack,
    "reject": methods.BasicReject,
}

Handler = Callable[[Channel, Any], None]

_HANDLERS: dict[type[Method], Handler] = {
    methods.ChannelOpen: _on_open,
    methods.ChannelFlow: _on_flow,
    methods.AccessRequest: _on_access_request,
    methods.ConfirmSelect: _on_confirm_select,
    **channel_exchange.HANDLERS,
    **channel_queue.HANDLERS,
    **channel_basic.HANDLERS,
    **transactions.HANDLERS,
}
