"""The basic class except publishing: qos, consume, cancel, get, recover."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrormq.base.errors import access_refused, not_allowed, not_implemented, resource_locked
from mirrormq.broker import arguments, replyto
from mirrormq.broker.consumer import Consumer
from mirrormq.wire import methods
from mirrormq.wire.methods import Method

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel

GET = "get"


def on_qos(channel: "Channel", method: methods.BasicQos) -> None:
    """Set prefetch: for consumers yet to come or, with `global`, shared by all consumers of the channel.

    As in RabbitMQ the first form also lifts a shared limit set before.
    """
    if method.prefetch_size:
        raise not_implemented(f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        channel.core.prefetch_limit = method.prefetch_count
    else:
        channel.core.prefetch_limit = 0
        channel.prefetch_count = method.prefetch_count
    for consumer in channel.consumers.values():
        consumer.queue.credit_changed(consumer)
    channel.send(methods.BasicQosOk())


def on_consume(channel: "Channel", method: methods.BasicConsume) -> None:
    """Subscribe to a queue. The answer is written before the first delivery, at the end of the pass."""
    name = channel.queue_name(method.queue)
    if name == replyto.QUEUE:
        replyto.consume(channel, method)
        return
    if method.consumer_tag in channel.consumers:
        raise not_allowed(f"attempt to reuse consumer tag '{method.consumer_tag}'")
    channel.check("read", "queue", name)
    queue = channel.queue(name)
    arguments.check_consume_arguments(channel.vhost.name, queue.record, method.arguments)
    settings = queue.settings
    if settings.quorum and channel.core.prefetch_limit:
        raise not_implemented(f"{queue.text} does not support global qos")
    # RabbitMQ's quorum queues take no notice of `exclusive`; a single active consumer excludes it.
    exclusive = method.exclusive and not settings.quorum
    if exclusive and settings.single_active:
        raise access_refused(f"{queue.text} in exclusive use")
    tag = method.consumer_tag or channel.generate("amq.ctag")
    consumer = Consumer(
        channel,
        queue,
        tag,
        no_ack=method.no_ack,
        exclusive=exclusive,
        prefetch=channel.prefetch_count,
        arguments=method.arguments,
    )
    channel.wait(method, queue.consume(consumer), lambda _: _consuming(channel, method, consumer))


def _consuming(channel: "Channel", method: methods.BasicConsume, consumer: Consumer) -> None:
    channel.consumers[consumer.tag] = consumer
    consumer.tell("created")
    if not method.nowait:
        channel.send(methods.BasicConsumeOk(consumer.tag))


def on_cancel(channel: "Channel", method: methods.BasicCancel) -> None:
    """End a subscription; one that does not exist counts as ended."""
    reply = channel.reply_consumer
    if reply is not None and reply.tag == method.consumer_tag:
        channel.reply_consumer = None
    consumer = channel.consumers.pop(method.consumer_tag, None)
    done = None if consumer is None else consumer.queue.cancel(consumer)
    if consumer is not None:
        consumer.tell("deleted")
    channel.wait(method, done, lambda _: _answer_cancel(channel, method))


def _answer_cancel(channel: "Channel", method: methods.BasicCancel) -> None:
    if not method.nowait:
        channel.send(methods.BasicCancelOk(method.consumer_tag))


def on_get(channel: "Channel", method: methods.BasicGet) -> None:
    """Fetch one message."""
    name = channel.queue_name(method.queue)
    channel.check("read", "queue", name)
    queue = channel.queue(name)
    if queue.settings.quorum and queue.settings.single_active:
        raise resource_locked(
            f"cannot obtain access to locked {queue.text}. basic.get operations are not supported "
            "by quorum queues with single active consumer"
        )
    if queue.wait_to_get(channel, lambda: _get_again(channel, method)):
        channel.connection.park(GET)
    elif not queue.get(channel.core, method.no_ack):
        channel.send(methods.BasicGetEmpty())


def _get_again(channel: "Channel", method: methods.BasicGet) -> None:
    if not channel.closing:
        channel.on_method(method)
    channel.connection.unpark(GET)


def on_recover_async(channel: "Channel", method: methods.BasicRecoverAsync) -> None:
    """Put everything outstanding back."""
    _recover(channel, requeue=method.requeue)


def on_recover(channel: "Channel", method: methods.BasicRecover) -> None:
    """Put everything outstanding back, and say so."""
    _recover(channel, requeue=method.requeue)
    channel.send(methods.BasicRecoverOk())


def _recover(channel: "Channel", *, requeue: bool) -> None:
    if not requeue:
        raise not_implemented("requeue=false")
    if channel.tx is not None:
        channel.tx.recover()
    else:
        channel.core.recover()


HANDLERS: dict[type[Method], Callable[["Channel", Any], None]] = {
    methods.BasicQos: on_qos,
    methods.BasicConsume: on_consume,
    methods.BasicCancel: on_cancel,
    methods.BasicGet: on_get,
    methods.BasicRecover: on_recover,
    methods.BasicRecoverAsync: on_recover_async,
}
