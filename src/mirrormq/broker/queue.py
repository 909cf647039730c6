"""One queue on its master node: decisions about its messages, made once per pass.

Guarantees
- Every change goes append → apply: publishes get their seqs from the log before they are ready, what leaves
  the queue is written to the log in coalesced ranges.
- Order: first what came back, then expiry, then new messages, then delivery. A message whose time to live
  is 0 is therefore delivered if a consumer waits, and expires otherwise; limits count what no consumer
  could take.
- A queue that is gone changes nothing any more; late acknowledgements of its messages are ignored.

The per-message work is in `kernel.cores.QueueCore`; nothing here runs per message, except for what is
dead-lettered, counted or refused.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError, precondition_failed, resource_locked
from mirrormq.broker import firstlog, inherited
from mirrormq.broker.admission import Admissions
from mirrormq.broker.arguments import QueueSettings
from mirrormq.broker.confirm import Position
from mirrormq.broker.consumer import Consumer, Consumers, Subscriber
from mirrormq.broker.holding import Holding
from mirrormq.broker.inbox import Inbox
from mirrormq.broker.inherited import Inherited
from mirrormq.broker.letters import Letters, dead_letter
from mirrormq.broker.pace import Pace
from mirrormq.broker.queueport import Counts, Later, Parkable, QueuePort, Rows, Sender
from mirrormq.broker.readback import ReadBack
from mirrormq.broker.returns import with_delivery_count
from mirrormq.broker.sweep import Sweep
from mirrormq.kernel.cores import REASON_DELIVERY_LIMIT, ChannelCore, QueueCore
from mirrormq.kernel.message import Message
from mirrormq.kernel.records import PID_OF_HOMES, PID_OF_LETTERS
from mirrormq.log.durable import DurableLog, horizon_ahead
from mirrormq.log.queuelog import QueueLog
from mirrormq.meta import records
from mirrormq.meta.commands import DeleteQueue
from mirrormq.meta.state import Outcome

if TYPE_CHECKING:
    from mirrormq.broker.host import Host
    from mirrormq.broker.vhost import VHost

NO_LIMIT = (1 << 63) - 1


def _ignore(_: Outcome) -> None:
    """Nobody waits for it."""


class Queue:
    """A queue mastered here."""

    is_local = True
    is_available = True

    def __init__(self, host: "Host", vhost: "VHost", record: records.Queue, settings: QueueSettings) -> None:
        self.host = host
        self.vhost = vhost
        self.record = record
        self.name = record.name
        self.core = QueueCore(host.work, host.grave, self, settings.max_priority)
        self.log: QueueLog = host.open_log(record)
        self.declared_index = host.meta_index
        self.log.on_progress = self.core.touch
        kept = self.log.kept
        self.core.durable = kept is not None
        # Of a mirrored queue every publish waits for others: transient ones until the mirrors have them.
        self.core.remote = self.log.is_mirrored
        self._read_back = ReadBack(host, self.core, kept, self) if kept is not None else None
        self._get_waiters: list[Callable[[], None]] = []
        self._when_open: list[Callable[[], None]] = []
        """Requests that write, put off until the log takes them."""
        self._admissions = Admissions(self)
        self.is_filling = False
        """Is what it holds still being read, after this node became its master?"""
        self.damage: str | None = None
        """Why the queue cannot be served, if committed data of it could not be read."""
        self.consumers = Consumers(settings.single_active, None if kept is None else kept.cursors)
        self.inherited: Inherited | None = None
        """What clients held of it when this node became its master, while that matters."""
        self.used_at = host.now.mono
        self.dead_letters_dropped = 0
        """Dead letters that reached no queue, or were refused by this one."""
        self.letters: Letters | None = None
        """The dead letters of a durable queue, once it has had one."""
        self._inbox: Inbox | None = None  # numbered letters of other queues, once there was one
        self._ahead = horizon_ahead([])
        self.pace = Pace(self.core, host.now.mono)
        self._holding = Holding(self)
        self._wake_at, self._sweep = 0, Sweep(self)
        self._offered = 0
        """Up to here consumers have had their chance before anything expired."""
        self.configure(settings)
        host.fill(self)

    def configure(self, settings: QueueSettings) -> None:
        """Take new effective settings (arguments or a policy changed)."""
        self.settings = settings
        core = self.core
        core.ttl_us = -1 if settings.ttl_us is None else settings.ttl_us
        core.dead_letter = settings.dead_letter_exchange is not None
        core.counted = settings.delivery_limit is not None or settings.quorum
        self._max_length = NO_LIMIT if settings.max_length is None else settings.max_length
        self._max_bytes = NO_LIMIT if settings.max_bytes is None else settings.max_bytes
        self._memory_max = limits.lazy_memory_bytes if settings.lazy else limits.queue_memory_bytes
        self._limited = settings.max_length is not None or settings.max_bytes is not None
        if self.log.kept is not None:
            bounds = settings.cursor_max_bytes, settings.cursor_max_age_us, settings.cursor_overflow
            self.log.kept.cursors.set_bounds(*bounds)
        if settings.expires_us is not None:
            self.wake_in(settings.expires_us)
        core.touch()

    # --- what others ask ------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The queue as error texts name it."""
        return f"queue '{self.name}' in vhost '{self.vhost.name}'"

    @property
    def outlives(self) -> bool:
        """Does what it takes survive a restart?"""
        return self.log.kept is not None and self.record.outlives_restart

    @property
    def positions(self) -> list[Position]:
        """What the confirm of everything published so far waits for."""
        return self._admissions.positions

    def counts(self, *, is_use: bool) -> Counts:
        """Messages ready and consumers; what was published earlier in this pass counts too."""
        if is_use:
            self.used_at = self.host.now.mono
        if self.core.pending:
            self.turn()
        return Counts(self.message_count, len(self.consumers))

    @property
    def message_count(self) -> int:
        """Messages ready for delivery."""
        return self.core.ready + (self.inherited.coming if self.inherited is not None else 0)

    @property
    def consumer_count(self) -> int:
        """Consumers registered here."""
        return len(self.consumers)

    def may_use(self, conn_id: int) -> None:
        """Raise 405 unless the queue is shared or belongs to this connection."""
        if self.record.exclusive and self.record.owner != conn_id:
            raise resource_locked(
                f"cannot obtain exclusive access to locked {self.text}. It could be originally declared on "
                "another connection or the exclusive property value does not match that of the original "
                "declaration."
            )

    # --- clients --------------------------------------------------------------------------------

    def consume(self, consumer: Subscriber) -> Later[None] | None:
        """Register a consumer, served from the end of this pass on and after those it waits for."""
        if self._is_waiting and not consumer.order:
            return inherited.later(self, lambda: self._consume(consumer))
        self._consume(consumer)
        return None

    def _consume(self, consumer: Subscriber) -> None:
        self.consumers.add(consumer, self.text)
        self._consumers_changed()

    def cancel(self, consumer: Subscriber) -> Later[None] | None:
        """Forget a consumer; the last one takes an auto-delete queue with it, and is answered after that."""
        if not self.consumers.remove(consumer):
            return None
        self._consumers_changed()
        return self.delete_if_left()

    def delete_if_left(self) -> Later[None] | None:
        """Delete an auto-delete queue that had consumers and has none, nor waits for any to come back."""
        is_left = self.consumers.had_any and not self.consumers
        if not self.record.auto_delete or not is_left or self.core.gone or self._is_waiting:
            return None
        later: Later[None] = Later()
        self._delete(lambda _: later.answer(None))
        return later

    def credit_changed(self, consumer: Subscriber) -> None:  # noqa: ARG002
        """A higher limit lets it take more at once."""
        self.core.touch()

    def back(self, old: Subscriber, new: Subscriber) -> None:
        """A consumer of another node is there again, in its old place."""
        self.consumers.replace(old, new)
        self._consumers_changed()

    def wait_to_get(self, channel: object, again: Callable[[], None]) -> bool:  # noqa: ARG002
        """Must the head be read first, or the log hear of its delivery? Then call `again` later."""
        self.consumers.check_free(self.text)
        self.turn()  # what this pass brought so far stands before the request, limits and consumers included
        if self._can_get():
            return False
        self._get_waiters.append(again)
        self.core.touch()
        return True

    def _can_get(self) -> bool:
        if not self._may_write:
            return False
        self._reach()
        seq = self.core.head_seq()
        return seq <= self._deliverable if seq else not (self.message_count or self._is_waiting)

    @property
    def _deliverable(self) -> int:
        upto = self.log.deliverable
        return upto if self.inherited is None else min(upto, self.inherited.upto)

    @property
    def _may_write(self) -> bool:
        return self.log.is_open and not self.is_filling

    def get(self, channel: ChannelCore, no_ack: bool) -> bool:
        """Write basic.get-ok and the message at the head; False if there is none."""
        self.used_at = self.host.now.mono
        wall, mono = self.host.expiry_wall(), self.host.now.mono
        return self.core.get(channel, no_ack, wall, mono, self._deliverable)

    def purge(self) -> int | Later[int]:
        """Remove everything ready; return how many messages that were."""
        self.turn()
        later: Later[int] = Later()
        self._purge(later)
        return later

    def _purge(self, later: Later[int]) -> None:
        if self.core.gone:
            later.answer(AmqpError(404, "the queue is gone, or has another master now"))
        elif not self._may_write:  # when it may, it may have to wait for the nodes once more, and so on
            self._when_open.append(lambda: self._purge(later))
        elif self.inherited is not None and self.inherited.is_waiting:
            self.inherited.then(lambda: self._purge(later))
        else:
            self.log.purge(self._held(), self.host.now)
            self.core.touch()
            later.answer(self.core.purge() + (self.inherited.purge() if self.inherited is not None else 0))

    def delete(self, *, if_unused: bool, if_empty: bool) -> Later[int]:
        """Delete the queue unless a condition fails; the answer is how many messages were ready."""
        counts = self.counts(is_use=False)
        if if_empty and counts.messages:
            raise precondition_failed(f"{self.text} not empty")
        if if_unused and counts.consumers:
            raise precondition_failed(f"{self.text} in use")
        later: Later[int] = Later()
        self._delete(lambda _: later.answer(counts.messages))
        return later

    def retire(self, successor: QueuePort) -> None:
        """Another node is the master now: what waits goes there, with this node's consumers."""
        consumers = [member for member in self.consumers.clear() if isinstance(member, Consumer)]
        if self._inbox is not None:
            self._inbox.hand_over(successor)
        successor.core.take_over(self.core)
        self._admissions.hand_over(successor)
        successor.take_clients(self, consumers)
        self._stop()

    def take_clients(self, predecessor: "Queue", consumers: list[Consumer]) -> None:
        """A queue that is mastered elsewhere takes them."""
        raise NotImplementedError

    def destroy(self) -> list[Subscriber]:
        """The queue is deleted: tell its consumers, let its publishers go on, free its messages in slices."""
        consumers = self.consumers.clear()
        self._stop()
        for consumer in consumers:
            consumer.cancelled()
        self.host.drop_log(self.record)
        return consumers

    def filled(self, error: str | None) -> None:
        """What the log holds is here, or cannot be read."""
        self.is_filling = False
        if self.core.gone:
            return
        if error is not None:
            self.fail(error)
        self.core.touch()

    def keep_records(self, log: DurableLog) -> None:
        """A queue that was in memory only writes what it has and what comes into this log, which is empty."""
        self.turn()
        firstlog.begin(log, self.core, self.host, self.log.end)
        self.core.durable = True
        self._read_back = ReadBack(self.host, self.core, log, self)
        self.take_log(log)

    def take_log(self, log: QueueLog) -> None:
        """The queue gets its first mirror: from now on its marks are those of all of them."""
        self.log = log
        self.core.remote = log.is_mirrored
        log.on_progress = self.core.touch
        self.core.touch()

    def _stop(self) -> None:
        self.core.destroy()
        waiting, self._when_open = self._when_open, []
        for again in waiting:
            again()
        self._admissions.stop()
        if self.inherited is not None:
            self.inherited.stop()
        if self._inbox is not None:
            self._inbox.stop()
        self._answer_gets()
        self._holding.release()

    def _consumers_changed(self) -> None:
        self.used_at = self.host.now.mono
        self.core.set_consumers(self.consumers.groups())
        self._ahead = horizon_ahead([member.prefetch for member in self.consumers.members])
        self.core.touch()
        if self.settings.expires_us is not None:
            self.wake_in(self.settings.expires_us)

    # --- the turn -------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do everything this pass brought; called once per pass while touched."""
        core = self.core
        if core.gone:
            return
        self.pace.measure(self.host.now.mono)
        if not self._may_turn():
            return
        if self.inherited is not None and self._is_inheriting():
            return
        if core.has_coming_back:
            self._count_returns()
        if self._inbox is not None and self._inbox.has_rows:
            self._inbox.admit_rows()
        expiring_at = self.host.expiry_wall()
        if not self._is_new(self._offered):
            core.expire(expiring_at)
        if self._limited:
            self._admit_within_limits()
        else:
            self._admit()
            self._deliver()
        if self._inbox is not None:
            self._inbox.admitted()
        self._offered = self._deliverable
        next_expiry = 0 if self._is_new(self._offered) else core.expire(expiring_at)
        if core.sweep_at or self._sweep.position:
            self._sweep.go_on(expiring_at)
        self._settle()
        if self._read_back is not None:
            self._bound_memory()
        if self._get_waiters and self._can_get():
            self._answer_gets()
        if next_expiry:
            self.wake_in(next_expiry - expiring_at)
        if self.settings.expires_us is not None:
            self._expire_unused()
        if self._holding.parked:
            self._holding.look()

    def _settle(self) -> None:
        """Send what died to where it belongs, and write what left."""
        if self.core.has_dying:
            self._dead_letter()
        if self.letters is not None:
            self.letters.settle()
        self.log.settle(self.core, self.host.now)

    def _is_new(self, offered: int) -> bool:
        """Has no consumer been offered the head yet, since mirrors must have it first? It expires later."""
        return self.log.is_mirrored and bool(self.consumers) and self.core.head_seq() > offered

    def _may_turn(self) -> bool:
        """Is it whole, and does its log take what the turn writes?"""
        if self.damage is not None:
            self.core.refuse(self.core.pending, False)
            self.tell_refused()
            return False
        if not self._may_write:
            self._admissions.wait()
            return False
        if self._when_open:
            waiting, self._when_open = self._when_open, []
            for again in waiting:
                again()
        return True

    @property
    def _is_waiting(self) -> bool:
        """Has some node not said yet what its clients held when this one became the master?"""
        return self.inherited is not None and self.inherited.is_waiting

    def _is_inheriting(self) -> bool:
        """Take what came back of what clients held; True if only that, and new messages, may be served."""
        assert self.inherited is not None
        self.inherited.turn()
        if self.inherited.is_waiting:
            if not self._limited:
                self._admit()
            if self._inbox is not None:
                self._inbox.admitted()
            self.log.settle(self.core, self.host.now)
        elif self.inherited.is_over:
            self.inherited = None
        return self._is_waiting

    def close_batch(self) -> None:
        """What waits is one batch anyway, unless a limit refuses some of it."""

    def _admit(self) -> None:
        count = self.core.pending
        if count and not self.log.takes_publishes:
            self._admissions.wait()
        elif count:
            now = self.host.now
            self.core.admit(count, self.log.append(self.core, count, now), self.log.last_wall)
            self._admissions.done()

    def _deliver(self) -> None:
        if self.core.ready and self.consumers:
            self._reach()
            wall = 0 if self._is_new(self._offered) else self.host.expiry_wall()
            self.core.deliver(wall, self.host.now.mono, self._deliverable)
            self._reach()  # delivery may have stopped at the horizon, and nobody else would move it

    def _reach(self) -> None:
        """Tell the log what is about to be delivered, so that it never waits for the disk."""
        seq = self.core.head_seq()
        if seq:
            self.log.reach(seq, self._ahead, self.host.now)

    def _held(self) -> list[int]:
        """Seqs of this queue's entries that consumers hold."""
        if not self.core.unacked:
            return []
        return [seq for holder in self.host.holders() for seq, _ in holder.outstanding(self.core)]

    def _admit_within_limits(self) -> None:
        """Apply max-length: what consumers take at once does not count, as in RabbitMQ."""
        core = self.core
        now = self.host.now
        if self.settings.overflow == "drop-head":
            # What came back counts before consumers are served.
            core.drop_head(self._max_length, self._max_bytes)
            self._admit()
            self._deliver()
            core.drop_head(self._max_length, self._max_bytes)
            return
        to_dead_letter = self.settings.overflow == "reject-publish-dlx"
        self._deliver()
        if not self.log.takes_publishes:
            self._admissions.wait()
            return
        while core.pending:
            fitting = core.fitting(self._max_length, self._max_bytes)
            if fitting:
                core.admit(fitting, self.log.append(core, fitting, now), self.log.last_wall)
                self._deliver()
            else:
                core.refuse(1, to_dead_letter)
        self._admissions.done()
        self.tell_refused()

    def tell_refused(self) -> None:
        """Tell whoever published it what the queue did not take."""
        for pid, pseq in self.core.take_refused():
            channel = self.host.channels.get(pid)
            if channel is not None and pseq:
                channel.confirm.nack(pseq)
            elif pid & PID_OF_LETTERS:
                self._refuse_letter(pid ^ PID_OF_LETTERS, pseq)
            elif pid & PID_OF_HOMES:
                self.host.refuse_forwarded(self, pid, pseq)

    def _bound_memory(self) -> None:
        """Leave what is far from the head to the log, and read the head back when it lies there."""
        core = self.core
        assert self._read_back is not None
        most = min(self._memory_max, self.host.memory_share())
        if core.resident > most:
            core.spill(limits.window_entries, most // 2)
        if core.ready and not core.head_seq():
            self._read_back.start()

    def _answer_gets(self) -> None:
        waiters, self._get_waiters = self._get_waiters, []
        for again in waiters:
            again()

    def fail(self, reason: str) -> None:
        """Committed data cannot be read: serve nothing of this queue any more, and say so to everybody."""
        if self.damage is not None:
            return
        self.damage = reason
        if self.log.kept is not None:
            self.log.kept.damage = reason
        consumers = self.consumers.clear()
        self.core.set_consumers([])
        why = f"damaged and no longer served: {reason}; restore the data folder from a backup, or delete it"
        self.host.note("error", f"{self.text} is {why}", event="queue.damaged")
        self._answer_gets()
        for consumer in consumers:
            consumer.cancelled()
        self._holding.release()

    def _count_returns(self) -> None:
        """Requeued messages of a counted queue: the number of returns stands in x-delivery-count."""
        limit = self.settings.delivery_limit
        counts = []
        for message, seq, expiry, deliveries in self.core.take_coming_back():
            returns = deliveries + 1
            if limit is not None and returns > limit:
                self.core.throw_away(message, seq, REASON_DELIVERY_LIMIT)
            else:
                counts.append((seq, returns))
                self.core.put_back(with_delivery_count(message, returns), seq, expiry, returns)
        self.log.requeue(counts, self.host.now)

    def _dead_letter(self) -> None:
        """Send what was rejected, expired or dropped to the dead-letter exchange."""
        if self.outlives:
            assert self.log.kept is not None
            if self.letters is None:
                self.letters = Letters(self, self.log.kept)
            self.letters.send(self.core.take_dying(settle=False))
            return
        exchange = self.settings.dead_letter_exchange
        for message, _, reason in self.core.take_dying():
            if exchange is not None:  # else a policy was cleared since it died
                letter = dead_letter(self, message, reason, self.host.now)
                targets = self.vhost.dead_letter_targets(exchange, letter)
                for target in targets:
                    target.core.push(letter.message)
                self.dead_letters_dropped += not targets

    # --- dead letters from others ---------------------------------------------------------------

    def receive(self, message: Message | Rows, sender: Sender, number: int, *, is_resent: bool) -> None:
        """Take a numbered letter or rows, unless the log has them; the sender hears when that is durable."""
        if self._inbox is None:
            self._inbox = Inbox(self)
        self._inbox.receive(message, sender, number, is_resent=is_resent)

    def _refuse_letter(self, source: int, number: int) -> None:
        """There is no room for a dead letter."""
        if self.damage is None and self._inbox is not None:
            goes_on = self.core.dead_letter and self.settings.overflow == "reject-publish-dlx"
            self.dead_letters_dropped += not goes_on
            self._inbox.refuse(source, number)

    # --- time -----------------------------------------------------------------------------------

    def wake_in(self, delay_us: int) -> None:
        """Ask for a turn; a timer that fires too early only costs a look."""
        at = self.host.now.mono + max(delay_us, 0)
        if self._wake_at <= self.host.now.mono or at < self._wake_at:
            self._wake_at = at
            self.host.wake_queue(self, at)

    def _expire_unused(self) -> None:
        """x-expires: delete the queue once nobody consumed, got or declared it for that long."""
        assert self.settings.expires_us is not None
        if self.consumers:
            return
        left = self.used_at + self.settings.expires_us - self.host.now.mono
        if left > 0:
            self.wake_in(left)
        else:
            self._delete()

    def _delete(self, done: Callable[[Outcome], None] = _ignore) -> None:
        record = self.record
        command = DeleteQueue(vhost=record.vhost, name=record.name, id=record.id)
        self.host.propose(command, done, record.outlives_restart)

    # --- back-pressure --------------------------------------------------------------------------

    def pace_us(self, unconfirmed: int) -> int:
        """How long to hold the confirm of a publish so that busy consumers stay close to the head."""
        return self.pace.hold_us(unconfirmed)

    def is_ahead(self, limit: int) -> bool:
        """Do publishers run ahead of consumers or mirrors?"""
        return self._holding.is_ahead(limit)

    def park(self, publisher: Parkable) -> None:
        """Hold this publishing connection or node until the others have caught up."""
        self._holding.park(publisher)
