"""The consumers of this node of one queue mastered elsewhere, and what their clients hold.

Guarantees
- A consumer is registered at the master under one number as long as it lives. When the link was broken, this
  node's lease had run out or there is another master, it is registered again, in its old place among all
  consumers and with what its client holds, unless it asked to be cancelled when the master changes.
- What was registered with a master counts for that master only: an answer of the one before changes nothing.
- An inlet nobody needs any more is kept until the master of a mirrored queue has said that what was settled
  there has left the queue everywhere: else the next master would not hear of it.
- If this node becomes the master, or was it, clients keep what they hold (`give_to`, `take_from`).
"""

from typing import TYPE_CHECKING

from mirrormq.base.errors import AmqpError
from mirrormq.broker import inherited
from mirrormq.broker.consumer import Consumer
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import Later, QueuePort
from mirrormq.kernel import forward
from mirrormq.kernel.cores import REASON_ACK, REASON_REJECTED
from mirrormq.node import peerframes
from mirrormq.node.inlet import OUTSTANDING, Inlet, Nobody, Taker
from mirrormq.node.peerframes import Answer, Got
from mirrormq.node.wishes import Wish, is_lost, pass_on
from mirrormq.wire.table import encode_table

if TYPE_CHECKING:
    from mirrormq.node.peerlink import PeerLink
    from mirrormq.node.remotequeue import RemoteQueue


class Subscriptions:
    """Consumers and inlets of one remote queue."""

    def __init__(self, queue: "RemoteQueue") -> None:
        self._queue = queue
        self.inlets: dict[int, Inlet] = {}
        """Where deliveries arrive, by channel."""
        self._leaving: dict[Inlet, None] = {}
        """Those nobody needs any more, but for what the master has not said to have heard."""
        self._numbers: dict[Consumer, int] = {}
        """Consumers as the master knows them."""
        self._orphans: dict[Consumer, None] = {}
        """Consumers to be registered again when the master is back."""
        self._moves = 0
        """How often there was another master."""

    def __bool__(self) -> bool:
        return bool(self.inlets or self._leaving or self._orphans or self._queue.consumers)

    def inlet(self, channel: Taker) -> Inlet:
        """Where deliveries to a channel arrive."""
        inlet = self.inlets.get(channel.uid)
        if inlet is None:
            link = self._queue.link
            inlet = self.inlets[channel.uid] = Inlet(self._queue, link, channel)
            link.active[self._queue] = None
        return inlet

    def renewed(self, inlet: Inlet) -> Inlet:
        """Where to wait for the answer to a request that is put again.

        The master it was meant for may have kept nothing: then all that was known to it was forgotten here.
        """
        if inlet.core.gone:
            inlet = self.inlet(inlet.channel)
            inlet.awaited += 1
        return inlet

    def disown(self, inlet: Inlet) -> None:
        """The master has given something to an inlet that is not there any more."""
        self._leave(inlet)

    @property
    def _all(self) -> list[Inlet]:
        return [*self.inlets.values(), *self._leaving]

    # --- consumers ------------------------------------------------------------------------------

    def consume(self, consumer: Consumer) -> Later[None]:
        """Register a new consumer at the master."""
        later: Later[None] = Later()
        inlet = self.inlet(consumer.channel)
        number = self._number(consumer)
        inlet.awaited += 1
        sent = 0

        def make(request: int) -> peerframes.Consume:
            nonlocal sent, inlet
            sent, inlet = self._moves, self.renewed(inlet)
            return self._frame(request, consumer, inlet, number)

        def answered(answer: Answer | Got | AmqpError) -> None:
            if sent != self._moves and isinstance(answer, Answer) and not answer.code:
                self._queue.wishes.ask(wish)  # that was the master before
            else:
                self._registered(consumer, inlet, self._queue.read(answer), later)

        def here(queue: QueuePort) -> None:
            inlet.awaited -= 1
            self._numbers.pop(consumer, None)
            consumer.queue, consumer.source = queue, queue.core
            consumer.core.prefetch = consumer.prefetch
            pass_on(lambda: queue.consume(consumer), later)

        wish = Wish(make, answered, here, registers=True)
        self._queue.wishes.ask(wish)
        return later

    def _number(self, consumer: Consumer) -> int:
        """The number under which the master knows a consumer."""
        if consumer not in self._numbers:
            self._numbers[consumer] = self._queue.host.next_uid() & 0xFFFFFFFF
        consumer.core.prefetch = 0  # the master counts; deliveries of a broken link count no more
        return self._numbers[consumer]

    def _frame(self, request: int, consumer: Consumer, inlet: Inlet, number: int) -> peerframes.Consume:
        inlet.shared = consumer.channel.core.prefetch_limit
        return peerframes.Consume(
            request=request,
            queue=self._queue.record.id,
            outlet=inlet.number,
            consumer=number,
            tag=consumer.tag.encode("utf-8", "surrogateescape"),
            prefetch=consumer.prefetch,
            shared=inlet.shared,
            no_ack=consumer.no_ack,
            exclusive=consumer.exclusive,
            priority=consumer.priority,
            arguments=encode_table(consumer.arguments),
            since=self._queue.since,
            order=consumer.order,
        )

    def _registered(
        self, consumer: Consumer, inlet: Inlet, answer: Answer | AmqpError, later: Later[None]
    ) -> None:
        inlet.awaited -= 1
        if inlet.core.gone and not isinstance(answer, AmqpError):
            self.disown(inlet)
        if inlet.core.gone or isinstance(answer, AmqpError):
            # The link broke, the queue is gone, or the master refused.
            if consumer not in self._orphans:
                number = self._numbers.pop(consumer, 0)
                inlet.remove(number)
                if isinstance(answer, Answer) and number and inlet.link.is_open:
                    # It is registered there, and nobody here would ever take what it is given.
                    link, outlet = inlet.link, inlet.number
                    link.request(lambda request: peerframes.Cancel(request, outlet, number), _ignore)
            later.answer(answer if isinstance(answer, AmqpError) else self._queue.is_down())
            return
        number = self._numbers.get(consumer, 0)
        if consumer.channel.closing or not number:
            if number:
                self._cancel_at_master(consumer)
            later.answer(None)
            return
        consumer.order = sum(answer.numbers[:1])
        members = self._queue.consumers.members
        if consumer not in members:
            members.append(consumer)
        inlet.add(number, consumer)
        later.answer(None)

    def cancel(self, consumer: Consumer) -> Later[None] | None:
        """Forget the consumer here and at the master; what it holds stays outstanding."""
        self._queue.consumers.remove(consumer)
        self._orphans.pop(consumer, None)
        return self._cancel_at_master(consumer) if consumer in self._numbers else None

    def _cancel_at_master(self, consumer: Consumer) -> Later[None] | None:
        number = self._numbers.pop(consumer)
        inlet = self.inlets.get(consumer.channel.uid)
        if inlet is None:
            return None
        # What came back stands before the cancel, which may take the queue with it.
        inlet.flush()
        inlet.remove(number)
        # Also if its node is not known to be the master now: a link that does not break keeps what it has.
        if not inlet.link.is_open:
            return None  # when it is back the consumer does not come again
        later: Later[None] = Later()
        inlet.link.request(
            lambda request: peerframes.Cancel(request, inlet.number, number), lambda _: later.answer(None)
        )
        return later

    def credit_changed(self, consumer: Consumer) -> None:
        """basic.qos: the master counts for us."""
        inlet = self.inlets.get(consumer.channel.uid)
        if inlet is not None:
            inlet.tell_limit()
            inlet.core.touch()

    def on_cancelled(self, inlet: Inlet, number: int) -> None:
        """The master no longer serves this consumer."""
        consumer = inlet.consumers.get(number)
        if consumer is not None:
            self._drop(consumer)

    def _drop(self, consumer: Consumer) -> None:
        """Tell a client that it is not served any more; what it holds it may still settle."""
        inlet = self.inlets.get(consumer.channel.uid)
        number = self._numbers.pop(consumer, 0)
        self._orphans.pop(consumer, None)
        self._queue.consumers.remove(consumer)
        if inlet is not None:
            inlet.remove(number)
        consumer.cancelled()

    # --- inlets ---------------------------------------------------------------------------------

    def drop_inlet(self, inlet: Inlet) -> None:
        """Nothing is outstanding: neither end has to remember it."""
        if inlet in self._leaving:
            return
        if self.inlets.get(inlet.channel.uid) is inlet:
            del self.inlets[inlet.channel.uid]
        # A tick may come between the last ack and the end of its pass: the master must hear of that first.
        inlet.flush()
        if self._queue.since and inlet.has_unanswered:
            self._leaving[inlet] = None
        else:
            inlet.forget()
        self._leave(inlet)

    def _leave(self, inlet: Inlet) -> None:
        moves = self._moves

        def answered(answer: Answer | Got | AmqpError) -> None:
            is_over = moves == self._moves and not is_lost(answer)
            if is_over and self._leaving.pop(inlet, inlet) is None:
                inlet.forget()

        self._queue.link.request(lambda request: peerframes.Cancel(request, inlet.number, 0), answered)

    def lose_all(self) -> None:
        """What clients hold is the master's again; what has arrived and was not seen, too."""
        for inlet in self._take_all():
            inlet.lose()

    def _take_all(self) -> list[Inlet]:
        inlets, self.inlets, self._leaving = self._all, {}, {}
        return inlets

    def forget_known(self) -> None:
        """The master has kept nothing of what it knew; what it has not heard of it will be told."""
        for inlet in [inlet for inlet in self._all if inlet.is_known and not inlet.is_new]:
            for consumer in inlet.consumers.values():
                consumer.order = 0  # others have taken its place
            if self.inlets.get(inlet.channel.uid) is inlet:
                del self.inlets[inlet.channel.uid]
            self._leaving.pop(inlet, None)
            inlet.lose()

    # --- the link -------------------------------------------------------------------------------

    def suspend(self) -> None:
        """The master is out of reach: consumers are to be registered again."""
        for consumer in self._numbers:
            if consumer in self._queue.consumers.members:
                self._orphans[consumer] = None

    def register(self) -> None:
        """Tell the master, in this order, what channels hold and how it ended, and who consumes.

        If it is yet to answer that it has heard of a lapse of the lease here, that waits for the answer
        (`RemoteQueue.renew`): it suspends or drops what it has when it hears of it, not this.
        """
        if self._queue.is_stale:
            self._queue.link.active[self._queue] = None
            return
        for inlet in self._all:
            inlet.resume()
        for inlet in self._leaving:
            self._leave(inlet)
        self.register_orphans()

    def register_orphans(self) -> None:
        """Register the consumers that are not, in the order of their places."""
        orphans, self._orphans = self._orphans, {}
        for consumer in sorted(orphans, key=lambda consumer: consumer.order):
            self._register_again(consumer)

    def _register_again(self, consumer: Consumer) -> None:
        inlet = self.inlet(consumer.channel)
        number = self._number(consumer)
        moves = self._moves
        later: Later[None] = Later()

        def answered(answer: Answer | Got | AmqpError) -> None:
            is_member = consumer in self._queue.consumers.members
            if moves != self._moves and is_member:
                inlet.awaited -= 1  # the next master was told meanwhile
            elif is_lost(answer) and is_member:
                inlet.awaited -= 1
                self._orphans[consumer] = None  # there is another master, or the link broke once more
            else:
                self._registered(consumer, inlet, self._queue.read(answer), later)

        def told(error: AmqpError | None) -> None:
            is_here = consumer.queue is self._queue  # else this node has become the master, which has it
            if error is not None and is_here and consumer not in self._orphans:
                self._queue.consumers.remove(consumer)
                consumer.cancelled()

        inlet.awaited += 1
        later.when(told)
        self._queue.link.request(lambda request: self._frame(request, consumer, inlet, number), answered)

    def give_up(self) -> None:
        """The master was away for too long."""
        self.lose_all()
        for consumer in list(self._orphans):
            self._drop(consumer)

    def clear(self) -> None:
        """The queue is gone from here."""
        for inlet in self._take_all():
            inlet.forget()
        self._numbers.clear()
        self._orphans.clear()

    # --- another master -------------------------------------------------------------------------

    def move(self, link: "PeerLink") -> None:
        """There is another master, to be told when it is in reach."""
        self._moves += 1
        for inlet in self._all:
            inlet.move(link)
        for consumer in [consumer for consumer in self._orphans if consumer.leaves_on_failover]:
            self._drop(consumer)

    def give_to(self, successor: Queue) -> None:
        """This node is the master: what clients hold is held of the queue here, as far as its log has it."""
        promotion = successor.inherited
        for inlet in self._all if promotion is not None else ():
            assert promotion is not None
            inlet.flush()
            kept = [item for item in inlet.items() if promotion.claim(item.seq, item.seq, item.epoch) != [0]]
            for item in kept:
                if item.how != OUTSTANDING:
                    promotion.settle(item.seq, item.how, REASON_ACK)
            tags = {item.tag for item in kept if item.how == OUTSTANDING}
            for core in (inlet.core, inlet.fetched):
                forward.move_in(inlet.channel.core, core, successor.core, tags)
        self.clear()

    def take_from(self, predecessor: Queue, consumers: list[Consumer]) -> None:
        """This node is the master no more: its consumers, and what clients hold, belong to the new one."""
        queue = self._queue
        queue.epochs = list(inherited.epochs_of(predecessor) or ())
        for consumer in consumers:
            consumer.queue = queue
            if consumer.leaves_on_failover and queue.since:
                consumer.cancelled()
                continue
            queue.consumers.members.append(consumer)
            self._orphans[consumer] = None
            self.inlet(consumer.channel).add(self._number(consumer), consumer)
        self._adopt(list(self.inlets.values()), predecessor)
        if predecessor.core.unacked:  # held by those who have no consumer
            core = predecessor.core
            holders = [one for one in queue.host.channels.values() if one.core.outstanding(core)]
            self._adopt([self.inlet(channel) for channel in holders], predecessor)
        self._take_ends(predecessor)

    def _adopt(self, inlets: list[Inlet], predecessor: Queue) -> None:
        for inlet in inlets:
            inlet.adopt(predecessor.core, self._queue.epochs)

    def _take_ends(self, predecessor: Queue) -> None:
        """What clients settled while the queue was being handed over is in no log: the new master is told.

        Whose it was is not known any more, and does not matter: any channel of this node may tell. If none is
        left that has to do with the queue, nobody's does.
        """
        log = predecessor.log.kept
        spans = predecessor.core.take_settled() if log is not None else []
        if log is None or not spans:
            return
        teller = next((one for one in self.inlets.values() if not one.channel.closing), None)
        if teller is None:
            teller = Inlet(self._queue, self._queue.link, Nobody(self._queue.host.next_uid()))
            self._leaving[teller] = None
            self._queue.link.active[self._queue] = None
        teller.tell_ends(
            [
                (seq, log.index.epoch_of(seq), reason)
                for first, last, reason in spans
                for seq in range(first, last + 1)
                if reason in (REASON_ACK, REASON_REJECTED)
            ]
        )


def _ignore(_: Answer | Got | AmqpError) -> None:
    """Nobody waits for this answer."""
