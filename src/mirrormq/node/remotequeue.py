"""A queue whose master is another node, as the clients of this node see it.

Guarantees
- Publishes go to the master in the order they were made here, each exactly once (outgoing.py). `log` counts
  them, so confirms and transactions wait for the master as they wait for a local log.
- At most `limits.forward_owed_bytes_max` is kept per master (and what one pass brings); beyond that, and
  while the master says that its consumers fall behind, publishers are parked.
- While the master is out of reach requests are refused with 404, publishes wait for
  `limits.publish_timeout_us` and are then refused, consumers are kept for `limits.link_grace_us` and then
  cancelled. What was given up is never taken later: the stream goes on behind it. After that grace the queue
  can be deleted without its master.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.errors import REPLY_NAMES, AmqpError, not_found, precondition_failed
from mirrormq.broker.arguments import QueueSettings, locked, resource
from mirrormq.broker.channel import Channel
from mirrormq.broker.consumer import Consumer, Consumers, move_consumer
from mirrormq.broker.queueport import Counts, Later, Parkable, QueuePort, Sender
from mirrormq.kernel.cores import ChannelCore, QueueCore
from mirrormq.kernel.message import Message
from mirrormq.meta import records
from mirrormq.meta.commands import DeleteQueue
from mirrormq.node import peerframes
from mirrormq.node.inlet import Inlet
from mirrormq.node.outgoing import Outgoing
from mirrormq.node.peerframes import Answer, Got
from mirrormq.node.peerlink import PeerLink
from mirrormq.node.postbox import Letter, Postbox
from mirrormq.wire.table import encode_table

if TYPE_CHECKING:
    from mirrormq.broker.vhost import VHost
    from mirrormq.node.switch import NodePort, Switch


_INTERNAL_ERROR = 541


class RemoteQueue:
    """A queue mastered elsewhere."""

    is_local = False
    damage: str | None = None
    declared_index = 0

    def __init__(
        self, switch: "Switch", vhost: "VHost", record: records.Queue, settings: QueueSettings
    ) -> None:
        self.switch = switch
        self.host: NodePort = switch.node
        self.vhost = vhost
        self.record = record
        self.name = record.name
        self.settings = settings
        self.core = QueueCore(self.host.work, self.host.grave, self, 0)
        self.core.remote = True
        self.consumers = Consumers(False)
        self.dead_letters_dropped = 0
        self._held_in = 0
        """Session of the link in which the master has said that publishers run ahead."""
        self._is_retired = False
        self._parked: list[Parkable] = []
        self._inlets: dict[int, Inlet] = {}
        """Where deliveries arrive, by channel."""
        self._numbers: dict[Consumer, int] = {}
        """Consumers as the master knows them."""
        self._orphans: dict[Consumer, None] = {}
        """Consumers to be registered again when the master is back."""
        self._gets: dict[int, Got | AmqpError | None] = {}
        """Fetches by channel: None while the answer is awaited."""
        self.link: PeerLink = switch.link(record.node)
        self.link.queues[record.id] = self
        self._outgoing = Outgoing(self)
        self.log = self._outgoing.log
        self._postbox = Postbox(self)

    # --- what others ask ------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The queue as error texts name it."""
        return resource("queue", self.name, self.vhost.name)

    @property
    def is_available(self) -> bool:
        """Can its master be reached?"""
        return self.link.is_open

    @property
    def outlives(self) -> bool:
        """Does its master keep its messages over a restart?"""
        return self.record.outlives_restart

    def may_use(self, conn_id: int) -> None:  # noqa: ARG002
        """An exclusive queue lives where its connection does."""
        if self.record.exclusive:
            raise locked(self.record)

    def configure(self, settings: QueueSettings) -> None:
        """The master decides by them; here they are only looked at. Its node may be another one now."""
        self.settings = settings
        if self.record.node != self.link.peer:
            self.on_link_down()
            self.forget_inlets()
            self._leave_link()
            self._join_link(self.switch.link(self.record.node))

    def _leave_link(self) -> None:
        self.link.queues.pop(self.record.id, None)
        self.link.active.pop(self, None)
        self.link.holding.pop(self, None)
        self.link.owed_bytes -= self._outgoing.size

    def _join_link(self, link: PeerLink) -> None:
        self.link = link
        link.queues[self.record.id] = self
        link.owed_bytes += self._outgoing.size
        link.active[self] = None
        if self._parked:
            link.holding[self] = None
        if link.is_open:
            self.on_link_up()

    def _reach(self) -> PeerLink:
        """The link, behind everything that came before in this pass; 404 if the master is out of reach."""
        if not self.link.is_open:
            raise self._is_down()
        self.switch.catch_up()
        return self.link

    def _is_down(self) -> AmqpError:
        kind = "durable " if self.record.durable else ""
        return not_found(f"home node '{self.record.node}' of {kind}{self.text} is down or inaccessible")

    @property
    def _is_away(self) -> bool:
        """Is the master out of reach for longer than a link needs to come back?"""
        return not self.link.is_open and self.host.now.mono - self.link.down_at >= limits.link_grace_us

    # --- requests -------------------------------------------------------------------------------

    def _ask(self, what: int, flags: int = 0) -> Later[Answer]:
        later: Later[Answer] = Later()
        self._reach().request(
            lambda number: peerframes.Ask(number, self.record.id, what, flags),
            lambda answer: later.answer(self._read(answer)),
        )
        return later

    def _read(self, answer: Answer | Got | AmqpError) -> Answer | AmqpError:
        """What the master said, as the client is told it."""
        if not isinstance(answer, Answer):
            return self._is_down()
        if answer.code:
            code = answer.code if answer.code in REPLY_NAMES else _INTERNAL_ERROR
            return AmqpError(code, answer.text or f"no {self.text}")
        return answer

    def counts(self, *, is_use: bool) -> Later[Counts]:
        """Ask the master."""
        later: Later[Counts] = Later()
        asked = self._ask(peerframes.USE if is_use else peerframes.COUNTS)
        asked.when(
            lambda answer: later.answer(
                answer if isinstance(answer, AmqpError) else Counts(*(*answer.numbers, 0, 0)[:2])
            )
        )
        return later

    def purge(self) -> Later[int]:
        """Ask the master."""
        return self._count(self._ask(peerframes.PURGE))

    def delete(self, *, if_unused: bool, if_empty: bool) -> Later[int]:
        """Ask the master, which alone can judge the conditions."""
        if self._is_away and not if_unused:
            return self._delete_unasked(if_empty=if_empty)
        flags = (peerframes.IF_UNUSED if if_unused else 0) | (peerframes.IF_EMPTY if if_empty else 0)
        return self._count(self._ask(peerframes.DELETE, flags))

    def _delete_unasked(self, *, if_empty: bool) -> Later[int]:
        """Delete a queue whose master is away, as RabbitMQ does; the master hears of it when it is back.

        Whether it is empty nobody knows, so it is taken not to be. A delete that asks whether somebody uses
        it is answered like any other question.
        """
        if if_empty:
            raise precondition_failed(f"{self.text} not empty")
        later: Later[int] = Later()
        record = self.record
        command = DeleteQueue(vhost=record.vhost, name=record.name, id=record.id)
        self.host.propose(command, lambda _: later.answer(0), record.outlives_restart)
        text = f"{self.text} was deleted although its node '{record.node}' is out of reach"
        self.host.note("warning", text)
        return later

    def _count(self, asked: Later[Answer]) -> Later[int]:
        later: Later[int] = Later()
        asked.when(
            lambda answer: later.answer(answer if isinstance(answer, AmqpError) else sum(answer.numbers[:1]))
        )
        return later

    # --- consumers ------------------------------------------------------------------------------

    def _inlet(self, link: PeerLink, channel: Channel) -> Inlet:
        inlet = self._inlets.get(channel.uid)
        if inlet is None:
            inlet = self._inlets[channel.uid] = Inlet(self, link, channel)
            link.active[self] = None
        return inlet

    def consume(self, consumer: Consumer) -> Later[None]:
        """Register the consumer at the master."""
        link = self._reach()
        later: Later[None] = Later()
        self._register(consumer, link, self.host.next_uid() & 0xFFFFFFFF, later)
        return later

    def _register(self, consumer: Consumer, link: PeerLink, number: int, later: Later[None]) -> None:
        inlet = self._inlet(link, consumer.channel)
        inlet.awaited += 1
        inlet.shared = consumer.channel.core.prefetch_limit
        consumer.core.prefetch = 0  # the master counts; deliveries of a broken link count no more
        self._numbers[consumer] = number
        link.request(
            lambda request: peerframes.Consume(
                request=request,
                queue=self.record.id,
                outlet=inlet.number,
                consumer=number,
                tag=consumer.tag.encode("utf-8", "surrogateescape"),
                prefetch=consumer.prefetch,
                shared=inlet.shared,
                no_ack=consumer.no_ack,
                exclusive=consumer.exclusive,
                priority=consumer.priority,
                arguments=encode_table(consumer.arguments),
            ),
            lambda answer: self._registered(consumer, inlet, self._read(answer), later),
        )

    def _registered(
        self, consumer: Consumer, inlet: Inlet, answer: Answer | AmqpError, later: Later[None]
    ) -> None:
        inlet.awaited -= 1
        if inlet.core.gone or isinstance(answer, AmqpError):
            # The link broke, the queue is gone, or the master refused.
            if consumer not in self._orphans:
                inlet.remove(self._numbers.pop(consumer, 0))
            later.answer(answer if isinstance(answer, AmqpError) else self._is_down())
            return
        number = self._numbers.get(consumer, 0)
        if consumer.channel.closing or not number:
            if number:
                self._cancel_at_master(consumer)
            later.answer(None)
            return
        if consumer not in self.consumers.members:
            self.consumers.members.append(consumer)
        inlet.add(number, consumer)
        later.answer(None)

    def cancel(self, consumer: Consumer) -> Later[None] | None:
        """Forget the consumer here and at the master; what it holds stays outstanding."""
        self.consumers.remove(consumer)
        self._orphans.pop(consumer, None)
        return self._cancel_at_master(consumer) if consumer in self._numbers else None

    def _cancel_at_master(self, consumer: Consumer) -> Later[None] | None:
        number = self._numbers.pop(consumer)
        inlet = self._inlets.get(consumer.channel.uid)
        if inlet is None:
            return None
        # What came back stands before the cancel, which may take the queue with it.
        inlet.flush()
        inlet.remove(number)
        if not self.link.is_open:
            return None  # when it is back the consumer does not come again
        later: Later[None] = Later()
        self.link.request(
            lambda request: peerframes.Cancel(request, inlet.number, number), lambda _: later.answer(None)
        )
        return later

    def credit_changed(self, consumer: Consumer) -> None:
        """basic.qos: the master counts for us."""
        inlet = self._inlets.get(consumer.channel.uid)
        if inlet is not None:
            inlet.tell_limit()
            inlet.core.touch()

    def on_cancelled(self, inlet: Inlet, number: int) -> None:
        """The master no longer serves this consumer."""
        consumer = inlet.consumers.get(number)
        if consumer is not None:
            inlet.remove(number)
            self._numbers.pop(consumer, None)
            self.consumers.remove(consumer)
            consumer.cancelled()

    def drop_inlet(self, inlet: Inlet) -> None:
        """Nothing is outstanding: neither end has to remember it."""
        if self._inlets.get(inlet.channel.uid) is inlet:
            del self._inlets[inlet.channel.uid]
        # A tick may come between the last ack and the end of its pass: the master must hear of that first.
        inlet.flush()
        inlet.forget()
        self.link.request(lambda request: peerframes.Cancel(request, inlet.number, 0), _ignore)

    # --- basic.get ------------------------------------------------------------------------------

    def wait_to_get(self, channel: Channel, again: Callable[[], None]) -> bool:
        """Ask the master for a message; the second time the answer is here."""
        if channel.uid not in self._gets:
            link = self._reach()
            inlet = self._inlet(link, channel)
            inlet.awaited += 1
            self._gets[channel.uid] = None
            link.request(
                lambda request: peerframes.Get(request, self.record.id, inlet.number),
                lambda answer: self._got(channel, inlet, answer, again),
            )
            return True
        answer = self._gets[channel.uid]
        if isinstance(answer, AmqpError):
            del self._gets[channel.uid]
            raise answer
        return False

    def _got(
        self, channel: Channel, inlet: Inlet, answer: Answer | Got | AmqpError, again: Callable[[], None]
    ) -> None:
        inlet.awaited -= 1
        if isinstance(answer, Got) and not inlet.core.gone:
            if answer.tag:
                inlet.catch_up()
                inlet.take(answer)
            self._gets[channel.uid] = answer
        else:
            failure = self._read(answer)
            self._gets[channel.uid] = failure if isinstance(failure, AmqpError) else self._is_down()
        if channel.closing:
            del self._gets[channel.uid]
            if not inlet.core.gone:
                inlet.give_back_unseen()
        again()

    def get(self, channel: ChannelCore, no_ack: bool) -> bool:
        """Write the message that was fetched."""
        answer = self._gets.pop(channel.uid)
        assert isinstance(answer, Got)
        if not answer.tag:
            return False
        core = self._inlets[channel.uid].fetched
        return core.get(channel, no_ack, 0, self.host.now.mono, elsewhere=answer.left)

    # --- publishing -----------------------------------------------------------------------------

    def close_batch(self) -> None:
        """What waits goes as one block."""
        if not self.core.gone:
            self._outgoing.take(limits.forward_batch_bytes)

    def turn(self) -> None:
        """Send what was published in this pass."""
        if not self.core.gone:
            self._outgoing.take()
            self._postbox.send()

    def receive(self, message: Message, sender: Sender, number: int, *, is_resent: bool) -> None:
        """Send a numbered dead letter; its sender hears when the master has it on disk."""
        if self.core.gone:
            sender.arrived(number)
        else:
            self._postbox.post(Letter(message, sender, number, is_resent=is_resent))
            self.core.touch()

    def on_report(self, done: int, refused: list[int]) -> None:
        """The master has taken publishes up to `done` for good, except those it refused."""
        self._outgoing.report(done, refused)
        self._leave_if_done()

    def on_arrived(self, source: int, numbers: tuple[int, ...]) -> None:
        """The master has these dead letters for good."""
        self._postbox.arrived(source, numbers)
        self._leave_if_done()

    @property
    def _owes(self) -> bool:
        return not (self._outgoing.is_empty and self._postbox.is_empty)

    def _leave_if_done(self) -> None:
        if self._is_retired and not self._owes:
            self._leave_link()

    # --- the link -------------------------------------------------------------------------------

    def on_link_up(self) -> None:
        """Start again: send what is owed, register consumers."""
        self._outgoing.start_again()
        self._postbox.start_again()
        for inlet in self._inlets.values():
            inlet.resume()
        orphans, self._orphans = self._orphans, {}
        for consumer in orphans:
            self._register_again(consumer)
        self.core.touch()

    def _register_again(self, consumer: Consumer) -> None:
        later: Later[None] = Later()
        self._register(consumer, self.link, self._numbers[consumer], later)

        def answered(error: AmqpError | None) -> None:
            # A link that broke once more has made an orphan of it: no reason to tell the client.
            if error is not None and consumer not in self._orphans:
                self.consumers.remove(consumer)
                consumer.cancelled()

        later.when(answered)

    def on_link_down(self) -> None:
        """Clients keep what they hold for a while; consumers are to be registered again."""
        for consumer in self._numbers:
            if consumer in self.consumers.members:
                self._orphans[consumer] = None

    def forget_inlets(self) -> None:
        """What clients hold is the master's again; what has arrived and was not seen, too."""
        inlets, self._inlets = self._inlets, {}
        for inlet in inlets.values():
            inlet.forget()

    def on_tick(self) -> None:
        """Give up what waited for the master for too long."""
        if not (self._inlets or self._orphans or self.consumers or self._owes):
            self.link.active.pop(self, None)
        if self.link.is_open:
            return
        self._outgoing.give_up()
        if self._is_away:
            self.forget_inlets()
            orphans, self._orphans = self._orphans, {}
            for consumer in orphans:
                self._numbers.pop(consumer, None)
                self.consumers.remove(consumer)
                consumer.cancelled()

    # --- the end --------------------------------------------------------------------------------

    def destroy(self) -> None:
        """The queue is deleted: nobody waits for it any more."""
        consumers = self.consumers.clear()
        self._outgoing.end()
        self._postbox.end()
        self.forget_inlets()
        self._numbers.clear()
        self._orphans.clear()
        self._leave_link()
        self.core.destroy()
        self.host.drop_log(self.record)  # one that is left from the time when this node was its master
        self.release_parked()
        for consumer in consumers:
            consumer.cancelled()

    def retire(self, successor: QueuePort) -> None:
        """This node is the master now: what is owed goes to the new object, through the node's own link."""
        consumers = [member for member in self.consumers.clear() if isinstance(member, Consumer)]
        successor.core.take_over(self.core)
        self.record = successor.record
        self.configure(self.settings)
        self._orphans.clear()
        self._is_retired = True
        self.release_parked()
        self._leave_if_done()
        for consumer in consumers:
            move_consumer(consumer, successor)

    # --- back-pressure --------------------------------------------------------------------------

    def pace_us(self) -> int:
        """The master reports when it likes."""
        return 0

    @property
    def is_held(self) -> bool:
        """Has the master said that publishers run ahead?"""
        return self._held_in == self.link.session and self.link.is_open

    def hold(self, is_held: bool) -> None:
        """The master says that publishers must wait, or need not any more."""
        self._held_in = self.link.session if is_held else 0

    def is_ahead(self, limit: int) -> bool:  # noqa: ARG002
        """Is too much owed, or do the master's consumers fall behind?"""
        return self.is_held or self.link.is_over

    def park(self, publisher: Parkable) -> None:
        """Hold this publisher until the master has caught up."""
        if publisher not in self._parked:
            self._parked.append(publisher)
            self.link.holding[self] = None
            publisher.park("ahead")

    def release_parked(self) -> None:
        """Publishers may go on."""
        self.link.holding.pop(self, None)
        parked, self._parked = self._parked, []
        for publisher in parked:
            publisher.unpark("ahead")


def _ignore(_: Answer | Got | AmqpError) -> None:
    """Nobody waits for this answer."""
