"""What a home node sends to a master: publishes, consumers, settlements, requests.

Guarantee: each is done as if the client were connected here, with the same errors. A queue that is not there
was deleted (it cannot be too new, see peerlink.py): publishes to it count as done, requests are answered 404.
What is meant for an earlier mastership of a mirrored queue changes nothing: its home node is about to hear of
the new one, and asks again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrormq.base.errors import AmqpError, internal_error, not_found
from mirrormq.broker.inherited import since_of
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import Later, Rows
from mirrormq.broker.rowsender import take_unnumbered
from mirrormq.kernel import forward
from mirrormq.node import peerframes
from mirrormq.node.outlet import FarConsumer, Outlet
from mirrormq.node.peerframes import (
    Ask,
    BadFrame,
    Cancel,
    Consume,
    Credit,
    Get,
    Inherit,
    Limit,
    Moved,
    Open,
    Post,
    PostRows,
    Publish,
    Ready,
    Renew,
    Resume,
    Settle,
    Untold,
)
from mirrormq.node.peerlink import Asker, PeerLink
from mirrormq.node.stream import Stream
from mirrormq.wire.table import decode_table

if TYPE_CHECKING:
    from mirrormq.node.switch import Switch

_UNTOLD = "it was called dead, and what its clients held of mirrored queues was given out again"


# --- publishes ----------------------------------------------------------------------------------


def on_open(switch: "Switch", link: PeerLink, frame: Open) -> None:
    """A stream of publishes begins, or begins again."""
    queue = switch.masters.get(frame.queue)
    if queue is None:
        return  # the home node hears of the deletion by itself
    stream = link.streams.get(frame.queue)
    if stream is None:
        stream = link.streams[frame.queue] = Stream(link, queue)
        if switch.node.alarms:
            stream.set_alarm(True)
    stream.open(frame.base)
    switch.report_later(stream)


def on_publish(switch: "Switch", link: PeerLink, frame: Publish) -> None:
    """Publishes arrive."""
    stream = _stream(switch, link, frame.queue)
    if stream is not None:
        stream.take(frame)
        switch.fed[stream] = None


def on_post(switch: "Switch", link: PeerLink, frame: Post) -> None:
    """A dead letter arrives. One for a damaged queue stays where it is, until the queue is whole or gone."""
    message = forward.read_message(frame.data, frame.at)
    queue = switch.masters.get(frame.queue)
    if queue is None or queue.damage is not None:
        return
    source = _Source(link, frame)
    if queue.outlives:
        queue.receive(message, source, frame.number, is_resent=frame.is_resent)
    else:
        queue.core.push(message, 0, 0, frame.is_resent)
        source.arrived(frame.number)


def on_rows(switch: "Switch", link: PeerLink, frame: PostRows) -> None:
    """Committed rows of a sink arrive."""
    queue = switch.masters.get(frame.queue)
    if queue is None or queue.damage is not None:
        return
    rows = Rows(bytes(frame.data[frame.at :]), frame.first, frame.records, frame.op)
    source, number = _Source(link, frame), frame.first + frame.records - 1
    if queue.outlives:
        queue.receive(rows, source, number, is_resent=frame.is_resent)
    else:
        take_unnumbered(queue, rows, is_resent=frame.is_resent)
        source.arrived(number)


class _Source:
    """The queue of another node in which a letter died, or from which rows come."""

    __slots__ = ("_link", "_target", "queue_id")

    def __init__(self, link: PeerLink, frame: Post | PostRows) -> None:
        self.queue_id = frame.source
        self._target = frame.queue
        self._link = link

    def arrived(self, number: int) -> None:
        """Tell its master at the end of the pass."""
        self._link.arrived.setdefault((self._target, self.queue_id), []).append(number)


def _stream(switch: "Switch", link: PeerLink, queue_id: int) -> Stream | None:
    stream = link.streams.get(queue_id)
    if stream is None and queue_id in switch.masters:
        raise BadFrame("publishes to a stream that is not open")
    return stream


def forget(switch: "Switch", queue_ids: set[int]) -> None:
    """These queues are gone from here."""
    for link in switch.links.values():
        for queue_id in queue_ids & link.streams.keys():
            switch.forget_stream(link.streams.pop(queue_id))
        for outlet in list(link.outlets.values()):
            if outlet.queue.core.gone:
                outlet.drop()


# --- consumers ----------------------------------------------------------------------------------


def on_consume(switch: "Switch", link: PeerLink, frame: Consume) -> None:
    """Register a consumer, or one that was there before the link broke."""
    try:
        arguments = decode_table(frame.arguments)[0]
    except AmqpError:
        raise BadFrame("a consumer's arguments cannot be read") from None
    if frame.consumer == 0 or frame.consumer in link.served:
        raise BadFrame("a consumer is registered twice")
    asker = link.asker(frame.request)
    later: Later[None] | None = None
    try:
        queue = _queue(switch, frame.queue, since=frame.since)
        outlet = _outlet(switch, link, frame.outlet, queue)
        before = link.suspended.pop(frame.consumer, None)
        outlet.channel.prefetch_limit = frame.shared
        consumer = FarConsumer(outlet, frame, arguments)
        if before is not None and before.outlet is outlet:
            consumer = before  # with what it holds
        elif before is not None and before.outlet.queue is queue:
            consumer.order = before.order
            queue.back(before, consumer)
        else:
            later = queue.consume(consumer)
    except AmqpError as error:
        asker.refuse(error)
        return
    if later is None:
        outlet.add(consumer)
        asker.answer(consumer.order)
    else:
        later.when(lambda error: _consuming(asker, frame, consumer, error))


def _consuming(asker: Asker, frame: Consume, consumer: FarConsumer, error: AmqpError | None) -> None:
    """A consumer that had to wait is registered, or not."""
    link, outlet = asker.link, consumer.outlet
    if error is not None:
        asker.refuse(error)
    elif frame.consumer in link.served:
        # It was asked for again after a break, and that came first: by another outlet, even of this number.
        outlet.queue.cancel(consumer)
        others = (one.consumers.get(frame.consumer) for one in link.outlets.values())
        asker.answer(*(one.order for one in others if one is not None))
    elif link.outlets.get(outlet.number) is outlet and not outlet.is_suspended:
        outlet.add(consumer)
        asker.answer(consumer.order)
    else:
        # The link broke meanwhile, and nobody hears this; or the lease of the home node had run out, which
        # suspends what it has and leaves its requests unanswered: it is to ask again.
        outlet.queue.cancel(consumer)
        asker.refuse(_moved())


def on_inherit(switch: "Switch", link: PeerLink, frame: Inherit) -> None:
    """What a channel holds of the master before this one. Told again, it is known already."""
    asker = link.asker(frame.request)
    try:
        queue = _queue(switch, frame.queue, since=frame.since)
    except AmqpError as error:
        asker.refuse(error)
        return
    outlet = link.outlets.get(frame.outlet)
    if outlet is None:
        outlet = _new_outlet(switch, link, frame.outlet, queue)
        outlet.inherit(frame)
    elif not outlet.is_suspended:
        raise BadFrame("a channel inherits once")
    asker.answer(*outlet.refused)


def on_moved(switch: "Switch", link: PeerLink, frame: Moved) -> None:
    """The home node has told all about queues that moved up to this index."""
    link.spoken = max(link.spoken, frame.index)
    switch.promotions.look()


def on_renew(_switch: "Switch", link: PeerLink, frame: Renew) -> None:
    """The home node's lease had run out. If it was called dead all it had was given out again."""
    is_held = not link.is_dropped
    # Not heeded before it is ready: the answer may come when its lease has run out once more, or never.
    link.drops_told = link.drops
    if is_held:
        for outlet in link.outlets.values():
            if since_of(outlet.queue):
                outlet.suspend()
    else:
        link.drop_mirrored()
    link.asker(frame.request).answer(int(is_held))


def on_resume(_switch: "Switch", link: PeerLink, frame: Resume) -> None:
    """A channel of the home node is still there. An outlet that is not has lost its queue meanwhile."""
    outlet = link.outlets.get(frame.outlet)
    if outlet is not None:
        outlet.resume(frame)
    elif link.is_untold:
        raise Untold(_UNTOLD)


def on_ready(_switch: "Switch", link: PeerLink, _frame: Ready) -> None:
    """Consumers that did not come back are gone."""
    if link.drops_told == link.drops:
        link.is_dropped = False
    link.drop_suspended()


def _outlet(switch: "Switch", link: PeerLink, number: int, queue: Queue) -> Outlet:
    outlet = link.outlets.get(number)
    if outlet is None:
        outlet = _new_outlet(switch, link, number, queue)
    if outlet.queue is not queue or outlet.is_suspended:
        raise BadFrame("an outlet belongs to one queue, and must be resumed before it is used")
    return outlet


def _new_outlet(switch: "Switch", link: PeerLink, number: int, queue: Queue) -> Outlet:
    if link.is_untold and since_of(queue):
        raise Untold(_UNTOLD)
    return Outlet(switch.node, link, number, queue, switch.outlets)


def on_cancel(_switch: "Switch", link: PeerLink, frame: Cancel) -> None:
    """A consumer goes; what it holds is still to be settled. Or all of them go."""
    asker = link.asker(frame.request)
    outlet = link.outlets.get(frame.outlet)
    later = None
    if outlet is not None and frame.consumer:
        later = outlet.cancel(frame.consumer)
    elif outlet is not None:
        for number in list(outlet.consumers):
            outlet.cancel(number)
        outlet.drop()
        if since_of(outlet.queue):
            # What it has settled last the home node keeps until it may forget it for good.
            link.when_settled(outlet.queue, asker.answer)
            return
    if later is None:
        asker.answer()
    else:
        later.when(lambda _: asker.answer())


def on_settle(_switch: "Switch", link: PeerLink, frame: Settle) -> None:
    """Deliveries ended."""
    outlet = link.outlets.get(frame.outlet)
    if outlet is not None:
        outlet.settle(frame.spans)


def on_credit(_switch: "Switch", link: PeerLink, frame: Credit) -> None:
    """The home node has room for more."""
    outlet = link.outlets.get(frame.outlet)
    if outlet is not None:
        outlet.credit(frame.size)


def on_limit(_switch: "Switch", link: PeerLink, frame: Limit) -> None:
    """A consumer's limits changed. One that is suspended hears of them when it is resumed, and not before:
    what it was sent until then would be taken for lost on its way.
    """
    outlet = link.outlets.get(frame.outlet)
    if outlet is not None and not outlet.is_suspended:
        outlet.flush()  # what is written stands before the answer
        outlet.limit(frame.prefetch, frame.is_flowing)
    link.asker(frame.request).answer()


# --- requests -----------------------------------------------------------------------------------


def on_get(switch: "Switch", link: PeerLink, frame: Get) -> None:
    """Fetch a message; it stays unacked here until the home node says what became of it."""
    asker = link.asker(frame.request)
    try:
        queue = _queue(switch, frame.queue, since=frame.since)
        queue.consumers.check_free(queue.text)
    except AmqpError as error:
        asker.refuse(error)
        return
    outlet = _outlet(switch, link, frame.outlet, queue)

    def go_on() -> None:
        # After a break the home node has asked again: what this took out nobody would expect.
        if not asker.is_there:
            return
        try:
            _get(switch, asker, outlet, frame, go_on)
        except AmqpError as error:
            asker.refuse(error)  # a query may have got the queue for itself while the head was read

    go_on()


def _get(switch: "Switch", asker: Asker, outlet: Outlet, frame: Get, again: Callable[[], None]) -> None:
    queue = outlet.queue
    if asker.link.outlets.get(frame.outlet) is not outlet:
        # The home node has registered anew, or the link broke, while the head of the queue was read.
        asker.refuse(_moved())
    elif queue.core.gone or queue.damage is not None:
        asker.refuse(_missing(switch, frame.queue))
    elif outlet.is_suspended:
        asker.refuse(_moved())  # the home node starts anew
    elif not queue.wait_to_get(None, again):
        tag, block = outlet.get()
        asker.send(peerframes.got(frame.request, frame.outlet, tag, queue.message_count, block))


def on_ask(switch: "Switch", link: PeerLink, frame: Ask) -> None:
    """Counts, purge, delete, or whether what has left a queue is safe."""
    asker = link.asker(frame.request)
    if frame.what == peerframes.FLUSH:
        _flush(switch, asker, frame)
        return
    try:
        queue = _queue(switch, frame.queue, may_be_damaged=frame.what == peerframes.DELETE)
        if frame.what in (peerframes.COUNTS, peerframes.USE):
            counts = queue.counts(is_use=frame.what == peerframes.USE)
            asker.answer(*counts)
        elif frame.what == peerframes.PURGE:
            _answer_later(asker, queue.purge())
        elif frame.what == peerframes.DELETE:
            later = queue.delete(
                if_unused=bool(frame.flags & peerframes.IF_UNUSED),
                if_empty=bool(frame.flags & peerframes.IF_EMPTY),
            )
            later.when(lambda count: asker.answer(count if isinstance(count, int) else 0))
        else:
            raise BadFrame(f"nothing is known about request {frame.what}")
    except AmqpError as error:
        asker.refuse(error)


def _flush(switch: "Switch", asker: Asker, frame: Ask) -> None:
    """Answer when what has left the queue never comes back."""

    def answered(is_sure: bool) -> None:
        if is_sure:
            asker.answer()
        elif queue.damage is not None:
            asker.refuse(internal_error(f"{queue.text} is damaged"))
        else:
            asker.refuse(_moved())  # its next master is told what this one was, and asked

    if not frame.queue:  # a node of an earlier version asks for all queues at once
        switch.node.after_local_flush(asker.answer)
        return
    try:
        queue = _queue(switch, frame.queue, may_be_damaged=True)
    except AmqpError as error:
        asker.refuse(error)
        return
    switch.settling.when_durable(queue, answered)


def _queue(
    switch: "Switch", queue_id: int, *, since: int | None = None, may_be_damaged: bool = False
) -> Queue:
    queue = switch.masters.get(queue_id)
    if queue is None:
        raise _missing(switch, queue_id)
    if since is not None and since != since_of(queue):
        raise _moved()
    if queue.damage is not None and not may_be_damaged:
        raise not_found(f"{queue.text} is damaged and not served: {queue.damage}")
    return queue


def _missing(switch: "Switch", queue_id: int) -> AmqpError:
    """Why a queue is not mastered here: it is deleted, or its home node is about to hear of another one."""
    return _moved() if queue_id in switch.remotes else not_found("")


def _answer_later(asker: Asker, count: "int | Later[int]") -> None:
    def answer(count: int | AmqpError) -> None:
        if isinstance(count, AmqpError):
            asker.refuse(count)
        else:
            asker.answer(count)

    if isinstance(count, Later):
        count.when(answer)
    else:
        answer(count)


def _moved() -> AmqpError:
    """The queue has another master, as its home node will hear; clients never see this code."""
    error = not_found("")
    error.code = peerframes.MOVED
    return error


SERVERS: dict[type, Callable[["Switch", PeerLink, Any], None]] = {
    Open: on_open,
    Publish: on_publish,
    Post: on_post,
    PostRows: on_rows,
    Consume: on_consume,
    Ready: on_ready,
    Resume: on_resume,
    Inherit: on_inherit,
    Moved: on_moved,
    Renew: on_renew,
    Cancel: on_cancel,
    Settle: on_settle,
    Credit: on_credit,
    Limit: on_limit,
    Get: on_get,
    Ask: on_ask,
}
