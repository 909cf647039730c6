"""A queue whose master is another node, as the clients of this node see it.

Guarantees
- Publishes go to the master in the order they were made here, each exactly once (outgoing.py). `log` counts
  them, so confirms and transactions wait for the master as they wait for a local log.
- At most `limits.forward_owed_bytes_max` is kept per master (and what one pass brings); beyond that, and
  while the master says that its consumers fall behind, publishers are parked.
- While the master is out of reach requests are refused with 404, publishes wait for
  `limits.publish_timeout_us` and are refused then, consumers are kept for `limits.link_grace_us` and
  cancelled then. What was given up is never taken later. Then the queue can be deleted without its master.
- A mirrored queue may get another master. Consumers are registered there in their old places with what they
  hold (inlet.py), unless they asked to be cancelled (`x-cancel-on-ha-failover`); they wait for it for
  `limits.failover_grace_us`. What is told to a master is told to one start of one node (`is_open`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mirrormq.base import limits
from mirrormq.base.errors import REPLY_NAMES, AmqpError, not_found, precondition_failed
from mirrormq.broker.arguments import QueueSettings, locked, resource
from mirrormq.broker.channel import Channel
from mirrormq.broker.confirm import Position
from mirrormq.broker.consumer import Consumer, Consumers, move_consumer
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import Counts, Later, Parkable, QueuePort, Rows, Sender
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
from mirrormq.node.subscriptions import Subscriptions
from mirrormq.node.wishes import Wish, Wishes, pass_on

if TYPE_CHECKING:
    from mirrormq.broker.vhost import VHost
    from mirrormq.node.switch import NodePort, Switch


_INTERNAL_ERROR = 541

T = TypeVar("T")


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
        self.subscriptions = Subscriptions(self)
        self._gets: dict[int, Got | AmqpError | None] = {}
        """Fetches by channel: None while the answer is awaited."""
        self.epochs: list[tuple[int, int]] = []
        """(epoch, seq of its first record) of the master's log, as far as the master has said."""
        self.successor: QueuePort | None = None
        """The queue here, since this node is the master."""
        self.wishes = Wishes(self)
        self.since = 0
        """The epoch in which the mastership began, 0 if the queue is not mirrored."""
        self._start = 0
        """The start of the node that is the master."""
        self._session = 0
        """Of the link, when consumers were registered last."""
        self._is_led = True
        self._moved_at = self.host.now.mono
        self.link: PeerLink = switch.link(self._look())
        before = switch.link(self.host.node_name).queues.get(record.id)
        self.link.queues[record.id] = self
        if before is None:
            self.outgoing, self._postbox = Outgoing(self), Postbox(self)
        else:
            # This node was the master so shortly that what it owed to itself is not all reported.
            self.outgoing, self._postbox = before.hand_over(self)
        self.log = self.outgoing.log
        switch.remotes[record.id] = self

    # --- what others ask ------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The queue as error texts name it."""
        return resource("queue", self.name, self.vhost.name)

    @property
    def positions(self) -> list[Position]:
        """What the confirm of everything published so far waits for."""
        if self.core.gone:
            return []
        if self.core.pending:
            self.outgoing.take()
        further = self.successor.positions if self.successor is not None else ()
        return [(self.log, self.log.end), *further]

    @property
    def is_available(self) -> bool:
        """Can its master be reached?"""
        return self.is_open

    @property
    def is_mirrored(self) -> bool:
        """May another node become its master?"""
        return self.since > 0

    @property
    def is_open(self) -> bool:
        """Is the link to its master open, and to the very process that is it?"""
        if not self.link.is_open:
            return False
        return not self.since or (self._is_led and self.link.start == self._start)

    @property
    def is_stale(self) -> bool:
        """Is what is registered at the master over, to be registered anew?"""
        return bool(self.since) and self.link.is_stale

    @property
    def may_hand_out(self) -> bool:
        """May messages that are here be given to clients?"""
        return self.is_open and (not self.since or (self.switch.look_at_lease() and not self.is_stale))

    def may_be_known(self, was_mirrored: bool) -> bool:
        """May what another process was sent first have been delivered, although its successor has not got it?

        Not if the queue was mirrored then: a message is delivered when every mirror has it (F12), so one that
        the next master does not have was not, unless that one lost something when it took over.
        """
        view = self.host.state.views.get(self.record.identity)
        return not was_mirrored or view is None or view.drops_transient or view.losses > 0

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
        self.follow()

    def _look(self) -> str:
        """Take the master from the metadata; returns its node."""
        view = self.host.state.views.get(self.record.identity)
        self._is_led = self.switch.master_of(self.record) != ""
        if view is None:
            self.since = self._start = 0
            return self.record.node
        self.since, self._start = view.since, view.members[0].start
        return view.members[0].node

    def follow(self) -> None:
        """The record, the view or a node has changed: is there another master?"""
        if self.successor is None and self.switch.is_master(self.record):
            return  # the queue here is about to take over
        if self._is_retired:  # an object that takes what is owed comes with the next master
            return
        since, was_open = self.since, self.is_open
        node = self._look()
        # A queue that begins to be mirrored keeps its master, and that one its consumers.
        if node != self.link.peer or (since and since != self.since):
            self._move(node)
        elif was_open and not self.is_open:
            self.on_link_down()
        elif self.is_open and not was_open:
            if self._session == self.link.session:
                self.link.go_stale()  # the link did not break: go on as after a lapse of the lease
                self.core.touch()  # publishes have waited
            else:
                self.forget_known()  # the link came back before, and nobody asked for what was kept
                self.link.go_stale()  # but for something else, perhaps
                self.on_link_up()
        elif self.is_open and since != self.since and not self.is_stale:
            self.subscriptions.register_orphans()
            self.wishes.go_on()

    def _move(self, node: str) -> None:
        """There is another master: consumers, and what clients hold, are registered there."""
        self.on_link_down()
        self._leave_link()
        link = self.switch.link(node)
        if self.since:
            self._moved_at = self.host.now.mono
            self.subscriptions.move(link)
        else:
            self.subscriptions.lose_all()
        self._join_link(link)

    def _leave_link(self) -> None:
        if self.link.queues.get(self.record.id) is self:  # else another object has taken its place
            del self.link.queues[self.record.id]
        self.link.active.pop(self, None)
        self.link.holding.pop(self, None)
        self.link.owed_bytes -= self.outgoing.size
        self._session = self._held_in = 0  # another link counts its sessions on its own

    def _join_link(self, link: PeerLink) -> None:
        self.link = link
        self._session = 0
        link.queues[self.record.id] = self
        link.owed_bytes += self.outgoing.size
        link.active[self] = None
        if self._parked:
            link.holding[self] = None
        if self.is_open:
            self.on_link_up()

    def is_down(self) -> AmqpError:
        """What a client hears of a queue whose master is out of reach."""
        kind = "durable " if self.record.durable else ""
        return not_found(f"home node '{self.record.node}' of {kind}{self.text} is down or inaccessible")

    @property
    def _is_away(self) -> bool:
        """Is the master out of reach for longer than a link needs to come back, or a queue to get another?"""
        grace = limits.failover_grace_us if self.since else limits.link_grace_us
        since = max(self.link.down_at, self._moved_at, self.host.partition.patient_since)
        return not self.is_open and self.host.now.mono - since >= grace

    # --- requests -------------------------------------------------------------------------------

    def _ask(
        self,
        what: int,
        read: Callable[[Answer], T],
        here: Callable[[QueuePort], T | Later[T]],
        flags: int = 0,
    ) -> Later[T]:
        """Ask the master; `here` asks the queue on this node instead, if it has become that."""
        later: Later[T] = Later()

        def answered(answer: Answer | Got | AmqpError) -> None:
            told = self.read(answer)
            later.answer(told if isinstance(told, AmqpError) else read(told))

        def ask(number: int) -> peerframes.Ask:
            return peerframes.Ask(number, self.record.id, what, flags)

        self.wishes.ask(Wish(ask, answered, lambda queue: pass_on(lambda: here(queue), later)))
        return later

    def read(self, answer: Answer | Got | AmqpError) -> Answer | AmqpError:
        """What the master said, as the client is told it."""
        if not isinstance(answer, Answer):
            return answer if isinstance(answer, AmqpError) else self.is_down()
        if answer.code:
            code = answer.code if answer.code in REPLY_NAMES else _INTERNAL_ERROR
            return AmqpError(code, answer.text or f"no {self.text}")
        return answer

    def counts(self, *, is_use: bool) -> Later[Counts]:
        """Ask the master."""
        return self._ask(
            peerframes.USE if is_use else peerframes.COUNTS,
            lambda answer: Counts(*(*answer.numbers, 0, 0)[:2]),
            lambda queue: queue.counts(is_use=is_use),
        )

    def purge(self) -> Later[int]:
        """Ask the master."""
        return self._ask(peerframes.PURGE, _first, lambda queue: queue.purge())

    def delete(self, *, if_unused: bool, if_empty: bool) -> Later[int]:
        """Ask the master, which alone can judge the conditions."""
        if (self._is_away or not self._is_led) and not if_unused:
            return self._delete_unasked(if_empty=if_empty)
        flags = (peerframes.IF_UNUSED if if_unused else 0) | (peerframes.IF_EMPTY if if_empty else 0)
        return self._ask(
            peerframes.DELETE,
            _first,
            lambda queue: queue.delete(if_unused=if_unused, if_empty=if_empty),
            flags,
        )

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
        self.host.note("warning", text, event="queue.deleted_unreached")
        return later

    # --- consumers ------------------------------------------------------------------------------

    def consume(self, consumer: Consumer) -> Later[None]:
        """Register the consumer at the master."""
        return self.subscriptions.consume(consumer)

    def cancel(self, consumer: Consumer) -> Later[None] | None:
        """Forget the consumer here and at the master; what it holds stays outstanding."""
        return self.subscriptions.cancel(consumer)

    def credit_changed(self, consumer: Consumer) -> None:
        """basic.qos: the master counts for us."""
        self.subscriptions.credit_changed(consumer)

    # --- basic.get ------------------------------------------------------------------------------

    def wait_to_get(self, channel: Channel, again: Callable[[], None]) -> bool:
        """Ask the master for a message; the second time the answer is here."""
        if channel.uid not in self._gets:
            if not self.is_open and not self.since:
                raise self.is_down()
            inlet = self.subscriptions.inlet(channel)
            inlet.awaited += 1
            self._gets[channel.uid] = None
            self._get(channel, inlet, again)
            return True
        answer = self._gets[channel.uid]
        if isinstance(answer, AmqpError):
            del self._gets[channel.uid]
            raise answer
        return False

    def _get(self, channel: Channel, inlet: Inlet, again: Callable[[], None]) -> None:
        def make(request: int) -> peerframes.Get:
            nonlocal inlet
            inlet = self.subscriptions.renewed(inlet)
            return peerframes.Get(request, self.record.id, inlet.number, self.since)

        def here(_: QueuePort) -> None:
            inlet.awaited -= 1
            self._gets.pop(channel.uid, None)
            again()

        wish = Wish(make, lambda answer: self._got(channel, inlet, answer, again), here, registers=True)
        self.wishes.ask(wish)

    def _got(
        self, channel: Channel, inlet: Inlet, answer: Answer | Got | AmqpError, again: Callable[[], None]
    ) -> None:
        is_over = self.is_stale or (isinstance(answer, Got) and answer.outlet != inlet.number)
        if isinstance(answer, Got) and is_over and not channel.closing:
            self._get(channel, inlet, again)  # it came under a registration that is over: once more
            return
        if isinstance(answer, Got) and answer.tag and not inlet.core.gone and self._lacks_lease(channel):
            # What was meant for consumers waits for the lease, and must not be overtaken.
            inlet.take(answer)
            inlet.give_back_unseen()
            self.switch.when_leased.append(lambda: self._get(channel, inlet, again))
            return
        if isinstance(answer, Got) and inlet.core.gone:
            self.subscriptions.disown(inlet)
        if isinstance(answer, Got) and not inlet.core.gone and answer.outlet == inlet.number:
            if answer.tag:
                inlet.catch_up()
                inlet.take(answer)
            self._gets[channel.uid] = answer
        else:
            failure = self.read(answer)
            self._gets[channel.uid] = failure if isinstance(failure, AmqpError) else self.is_down()
        inlet.awaited -= 1  # not before: what cannot be taken costs the link, and it is asked for again
        if channel.closing:
            del self._gets[channel.uid]
            if not inlet.core.gone:
                inlet.give_back_unseen()
        again()

    def _lacks_lease(self, channel: Channel) -> bool:
        return bool(self.since) and not channel.closing and not self.switch.look_at_lease()

    def get(self, channel: ChannelCore, no_ack: bool) -> bool:
        """Write the message that was fetched."""
        answer = self._gets.pop(channel.uid)
        assert isinstance(answer, Got)
        if not answer.tag:
            self.core.note_empty(channel)
            return False
        core = self.subscriptions.inlets[channel.uid].fetched
        return core.get(channel, no_ack, 0, self.host.now.mono, elsewhere=answer.left)

    # --- publishing -----------------------------------------------------------------------------

    def close_batch(self) -> None:
        """What waits goes as one block."""
        if not self.core.gone:
            self.outgoing.take(limits.forward_batch_bytes)

    def turn(self) -> None:
        """Send what was published in this pass."""
        if not self.core.gone:
            self.outgoing.take()
            self._postbox.send()

    def receive(self, message: Message | Rows, sender: Sender, number: int, *, is_resent: bool) -> None:
        """Send a numbered dead letter, or rows; their sender hears when the master has them on disk."""
        if self.core.gone:
            sender.arrived(number)
        else:
            self._postbox.post(Letter(message, sender, number, is_resent=is_resent))
            self.core.touch()

    def on_report(self, done: int, refused: list[int]) -> None:
        """The master has taken publishes up to `done` for good, except those it refused."""
        self.outgoing.report(done, refused)
        self._leave_if_done()

    def on_arrived(self, source: int, numbers: tuple[int, ...]) -> None:
        """The master has these dead letters for good."""
        self._postbox.arrived(source, numbers)
        self._leave_if_done()

    @property
    def _owes(self) -> bool:
        return not (self.outgoing.is_empty and self._postbox.is_empty)

    def _leave_if_done(self) -> None:
        if self._is_retired and not self._owes:
            self._leave_link()
            self.release_parked()  # who published to it in the pass of the promotion may have been held since

    # --- the link -------------------------------------------------------------------------------

    def on_link_up(self) -> None:
        """Start again: send what is owed, register consumers."""
        if not self.is_open:
            return  # another process of that node, which is not the master
        self.outgoing.start_again()
        self._postbox.start_again()
        self._session = self.link.session
        self.subscriptions.register()
        self.wishes.go_on()
        self.core.touch()

    def renew(self, *, is_held: bool) -> None:
        """This node's lease had run out, and is back: register anew, with what the master has kept."""
        self.subscriptions.suspend()
        if not is_held or not self.is_open:
            self.forget_known()
        if self.is_open:
            self._session = self.link.session
            self.subscriptions.register()
            self.wishes.go_on()

    def on_link_down(self) -> None:
        """Clients keep what they hold for a while; consumers are to be registered again."""
        self.subscriptions.suspend()

    def forget_known(self) -> None:
        """The master has kept nothing of what clients hold, unless this is another process of its node."""
        if not self.since or self.link.start == self._start:
            self.subscriptions.forget_known()

    def on_tick(self) -> None:
        """Give up what waited for the master for too long."""
        if not (self.subscriptions or self._owes or self.wishes):
            self.link.active.pop(self, None)
        self.wishes.look(self.host.now.mono)
        if self.is_open:
            self.outgoing.look()
            return
        self.outgoing.give_up()
        if self._is_away:
            self.subscriptions.give_up()

    # --- the end --------------------------------------------------------------------------------

    def destroy(self) -> None:
        """The queue is deleted: nobody waits for it any more."""
        consumers = self.consumers.clear()
        self.subscriptions.clear()
        self.end()
        self.switch.remotes.pop(self.record.id, None)
        self.core.destroy()
        self.wishes.fail(not_found(f"no {self.text}"))
        self.host.drop_log(self.record)  # one that is left from the time when this node was its master
        self.release_parked()
        for consumer in consumers:
            consumer.cancelled()

    def end(self) -> None:
        """Nobody waits any more for what was sent to it, nor does this object for its master."""
        self.outgoing.end()
        self._postbox.end()
        self.switch.sent.pop(self.record.id, None)
        self._leave_link()

    def retire(self, successor: QueuePort) -> None:
        """This node is the master now: what is owed goes to the new object, through the node's own link.

        Consumers and what clients hold become its own.
        """
        consumers = [member for member in self.consumers.clear() if isinstance(member, Consumer)]
        if not self.outgoing.is_empty:
            # What waits here would overtake what is owed, which takes the way through the link.
            self.outgoing.take(limits.forward_batch_bytes)
        successor.core.take_over(self.core)
        assert isinstance(successor, Queue)
        self.subscriptions.give_to(successor)
        self.successor = successor
        self.record = successor.record
        self.follow()
        self._is_retired = True
        if not self.outgoing.is_empty:
            # Now, before anything that clients publish to the new object: the parked ones go on at once.
            self.outgoing.take()
            self.link.flush()
            self.switch.serve_own()
        self.switch.remotes.pop(self.record.id, None)
        self.release_parked()
        self._leave_if_done()
        for consumer in consumers:
            move_consumer(consumer, successor)
        self.wishes.go_on()

    def hand_over(self, successor: "RemoteQueue") -> tuple[Outgoing, Postbox]:
        """There is yet another master: what is still owed goes to the object that stands for it."""
        self._leave_link()
        self.outgoing.pass_to(successor)
        self._postbox.pass_to(successor)
        successor.link.owed_bytes += self.outgoing.size
        successor.link.active[successor] = None
        successor.core.touch()
        successor.take_parked(self._parked)
        self._parked = []
        return self.outgoing, self._postbox

    def take_clients(self, predecessor: Queue, consumers: list[Consumer]) -> None:
        """This node is the master no more: register its consumers at the new one, with what clients hold."""
        self.subscriptions.take_from(predecessor, consumers)
        if self.is_open:
            self.on_link_up()

    # --- back-pressure --------------------------------------------------------------------------

    def pace_us(self, unconfirmed: int) -> int:  # noqa: ARG002
        """The master reports when it likes."""
        return 0

    @property
    def is_held(self) -> bool:
        """Has the master said that publishers run ahead?"""
        return self._held_in == self.link.session and self.is_open

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

    def take_parked(self, parked: list[Parkable]) -> None:
        """Publishers that another object for this queue has held wait here."""
        if parked:
            self._parked += parked
            self.link.holding[self] = None

    def release_parked(self) -> None:
        """Publishers may go on."""
        self.link.holding.pop(self, None)
        parked, self._parked = self._parked, []
        for publisher in parked:
            publisher.unpark("ahead")


def _first(answer: Answer) -> int:
    return sum(answer.numbers[:1])
