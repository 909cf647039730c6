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
from mirrormq.base.errors import precondition_failed, resource_locked
from mirrormq.broker.arguments import QueueSettings
from mirrormq.broker.consumer import Consumer, Consumers, Subscriber, move_consumer
from mirrormq.broker.letters import Letters, dead_letter
from mirrormq.broker.queueport import Counts, Later, Parkable, QueuePort, Sender
from mirrormq.broker.readback import ReadBack
from mirrormq.kernel.cores import REASON_DELIVERY_LIMIT, ChannelCore, QueueCore
from mirrormq.kernel.message import Message
from mirrormq.kernel.records import PID_OF_HOMES, PID_OF_LETTERS
from mirrormq.log.durable import DurableLog, horizon_ahead
from mirrormq.log.queuelog import QueueLog
from mirrormq.meta import records
from mirrormq.meta.commands import DeleteQueue
from mirrormq.meta.state import Outcome
from mirrormq.wire.properties import raw_headers, replace_headers
from mirrormq.wire.table import join_table, split_table

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
        self.core.durable = isinstance(self.log, DurableLog)
        self._read_back = (
            ReadBack(host, self.core, self.log, self.fail) if isinstance(self.log, DurableLog) else None
        )
        self._get_waiters: list[Callable[[], None]] = []
        self.damage: str | None = None
        """Why the queue cannot be served, if committed data of it could not be read."""
        self.consumers = Consumers(settings.single_active)
        self.used_at = host.now.mono
        self.dead_letters_dropped = 0
        """Dead letters that reached no queue, or were refused by this one."""
        self.letters: Letters | None = None
        """The dead letters of a durable queue, once it has had one."""
        self._receiving: list[tuple[Sender, int]] = []
        """Numbered dead letters that wait to be admitted."""
        self._ahead = horizon_ahead([])
        self._rate = 0
        self._measured_at = host.now.mono
        self._measured_taken = 0
        self._parked: list[Parkable] = []
        self._wake_at = 0
        self._sweep_position = 0
        self._sweep_not_before = 0
        self.configure(settings)

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
        if settings.expires_us is not None:
            self._wake_in(settings.expires_us)
        core.touch()

    # --- what others ask ------------------------------------------------------------------------

    @property
    def text(self) -> str:
        """The queue as error texts name it."""
        return f"queue '{self.name}' in vhost '{self.vhost.name}'"

    @property
    def outlives(self) -> bool:
        """Does what it takes survive a restart?"""
        return isinstance(self.log, DurableLog)

    def counts(self, *, is_use: bool) -> Counts:
        """Messages ready and consumers; what was published earlier in this pass counts too."""
        if is_use:
            self.used_at = self.host.now.mono
        if self.core.pending:
            self.turn()
        return Counts(self.core.ready, len(self.consumers))

    @property
    def message_count(self) -> int:
        """Messages ready for delivery."""
        return self.core.ready

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

    def consume(self, consumer: Subscriber) -> None:
        """Register a consumer; it is served from the end of this pass on."""
        self.consumers.add(consumer, self.text)
        self._consumers_changed()

    def cancel(self, consumer: Subscriber) -> Later[None] | None:
        """Forget a consumer; the last one takes an auto-delete queue with it, and is answered after that."""
        if not self.consumers.remove(consumer):
            return None
        self._consumers_changed()
        if not self.record.auto_delete or self.consumers or self.core.gone:
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
        self.turn()  # what this pass brought so far stands before the request, limits and consumers included
        self._reach()
        if self._can_get():
            return False
        self._get_waiters.append(again)
        self.core.touch()
        return True

    def _can_get(self) -> bool:
        seq = self.core.head_seq()
        return seq <= self.log.deliverable if seq else not self.core.ready

    def get(self, channel: ChannelCore, no_ack: bool) -> bool:
        """Write basic.get-ok and the message at the head; False if there is none."""
        self.used_at = self.host.now.mono
        wall, mono = self.host.expiry_wall(), self.host.now.mono
        return self.core.get(channel, no_ack, wall, mono, self.log.deliverable)

    def purge(self) -> int:
        """Remove everything ready; return how many messages that were."""
        self.turn()
        self.log.purge(self._held(), self.host.now)
        count = self.core.purge()
        self.core.touch()
        return count

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
        """Another node is the master now: what waits goes there, and so do the consumers of this node.

        What consumers hold is theirs no more: the new master gives it out again.
        """
        consumers = self.consumers.clear()
        successor.core.take_over(self.core)
        self._stop()
        for consumer in consumers:
            if isinstance(consumer, Consumer):
                move_consumer(consumer, successor)

    def destroy(self) -> list[Subscriber]:
        """The queue is deleted: tell its consumers, let its publishers go on, free its messages in slices."""
        consumers = self.consumers.clear()
        self._stop()
        for consumer in consumers:
            consumer.cancelled()
        self.host.drop_log(self.record)
        return consumers

    def _stop(self) -> None:
        self.core.destroy()
        received, self._receiving = self._receiving, []
        _tell_senders(received)
        self._answer_gets()
        self._release_parked()

    def _consumers_changed(self) -> None:
        self.used_at = self.host.now.mono
        self.core.set_consumers(self.consumers.groups())
        self._ahead = horizon_ahead([member.prefetch for member in self.consumers.members])
        self.core.touch()
        if self.settings.expires_us is not None:
            self._wake_in(self.settings.expires_us)

    # --- the turn -------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do everything this pass brought; called once per pass while touched."""
        core = self.core
        if core.gone:
            return
        now = self.host.now
        self._measure()
        if self.damage is not None:
            core.refuse(core.pending, False)
            self._tell_refused()
            return
        if core.has_coming_back:
            self._count_returns()
        expiring_at = self.host.expiry_wall()
        core.expire(expiring_at)
        if self._limited:
            self._admit_within_limits()
        else:
            self._admit()
            self._deliver()
        if self._receiving:
            self._note_received()
        next_expiry = core.expire(expiring_at)
        if core.sweep_at or self._sweep_position:
            self._sweep(expiring_at)
        if core.has_dying:
            self._dead_letter()
        if self.letters is not None:
            self.letters.settle()
        self.log.settle(core, now)
        if self._read_back is not None:
            self._bound_memory()
        if self._get_waiters and self._can_get():
            self._answer_gets()
        if next_expiry:
            self._wake_in(next_expiry - expiring_at)
        if self.settings.expires_us is not None:
            self._expire_unused()
        if self._parked:
            self._release_if_caught_up()

    def close_batch(self) -> None:
        """What waits is one batch anyway, unless a limit refuses some of it."""

    def _admit(self) -> None:
        count = self.core.pending
        if count:
            now = self.host.now
            self.core.admit(count, self.log.append(self.core, count, now), self.log.last_wall)

    def _deliver(self) -> None:
        if self.core.ready and self.consumers:
            self._reach()
            self.core.deliver(self.host.expiry_wall(), self.host.now.mono, self.log.deliverable)
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
        return [seq for holder in self.host.holders() for seq in holder.held_seqs(self.core)]

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
        while core.pending:
            fitting = core.fitting(self._max_length, self._max_bytes)
            if fitting:
                core.admit(fitting, self.log.append(core, fitting, now), self.log.last_wall)
                self._deliver()
            else:
                core.refuse(1, to_dead_letter)
        self._tell_refused()

    def _tell_refused(self) -> None:
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
        if isinstance(self.log, DurableLog):
            self.log.damage = reason
        consumers = self.consumers.clear()
        self.core.set_consumers([])
        cure = "restore the data folder from a backup, or delete the queue"
        self.host.note("error", f"{self.text} is damaged and no longer served: {reason}; {cure}")
        self._answer_gets()
        for consumer in consumers:
            consumer.cancelled()
        self._release_parked()

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
                self.core.put_back(_with_delivery_count(message, returns), seq, expiry, returns)
        self.log.requeue(counts, self.host.now)

    def _dead_letter(self) -> None:
        """Send what was rejected, expired or dropped to the dead-letter exchange."""
        if isinstance(self.log, DurableLog):
            if self.letters is None:
                self.letters = Letters(self, self.log)
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

    def receive(self, message: Message, sender: Sender, number: int, *, is_resent: bool) -> None:
        """Take a numbered dead letter, unless the log has it; the sender hears when it is durable.

        A damaged queue takes nothing: its letters stay where they died until it is whole again, or gone.
        """
        assert isinstance(self.log, DurableLog)
        if number <= self.log.letters.get(sender.queue_id, 0):
            # It is in the log, but maybe not on disk yet: one sent again over a new link is no safer for it.
            self.log.when_durable(self.log.end, lambda: sender.arrived(number))
            return
        if self.damage is None:
            self.core.push(message, sender.queue_id | PID_OF_LETTERS, number, is_resent)
        self._receiving.append((sender, number))

    def _note_received(self) -> None:
        """The letters that waited are in the log now."""
        assert isinstance(self.log, DurableLog)
        received, self._receiving = self._receiving, []
        for sender, number in received:
            self.log.letters[sender.queue_id] = number
        self.log.when_durable(self.log.end, lambda: _tell_senders(received))

    def _refuse_letter(self, source: int, number: int) -> None:
        """There is no room for a dead letter: it is lost, and its sender goes on."""
        if self.damage is not None:
            return
        goes_on = self.core.dead_letter and self.settings.overflow == "reject-publish-dlx"
        self.dead_letters_dropped += not goes_on
        for at, (sender, waiting) in enumerate(self._receiving):
            if sender.queue_id == source and waiting == number:
                del self._receiving[at]
                sender.arrived(number)
                return

    # --- time -----------------------------------------------------------------------------------

    def _wake_in(self, delay_us: int) -> None:
        """Ask for a turn; a timer that fires too early only costs a look."""
        at = self.host.now.mono + max(delay_us, 0)
        if self._wake_at <= self.host.now.mono or at < self._wake_at:
            self._wake_at = at
            self.host.wake_queue(self, at)

    def _sweep(self, wall: int) -> None:
        """Discard what expired behind a living head, some of it per pass and not more often than needed."""
        now = self.host.now.mono
        if self._sweep_position == 0:
            wait = max(self.core.sweep_at - wall, self._sweep_not_before - now)
            if wait > 0:
                self._wake_in(wait)
                return
        self._sweep_not_before = now + limits.sweep_pause_us
        self._sweep_position = self.core.sweep(wall, self._sweep_position, limits.sweep_entries)
        if self._sweep_position:
            self.core.touch()
        elif self.core.sweep_at:
            self._sweep(wall)

    def _expire_unused(self) -> None:
        """x-expires: delete the queue once nobody consumed, got or declared it for that long."""
        assert self.settings.expires_us is not None
        if self.consumers:
            return
        left = self.used_at + self.settings.expires_us - self.host.now.mono
        if left > 0:
            self._wake_in(left)
        else:
            self._delete()

    def _delete(self, done: Callable[[Outcome], None] = _ignore) -> None:
        record = self.record
        command = DeleteQueue(vhost=record.vhost, name=record.name, id=record.id)
        self.host.propose(command, done, record.outlives_restart)

    # --- pace -----------------------------------------------------------------------------------

    def pace_us(self) -> int:
        """How long to hold the confirm of a publish so that busy consumers stay close to the head.

        Only consumers that take thousands of messages per second count, and the time is short: a burst is
        still taken at once, a queue without such consumers confirms at full speed.
        """
        backlog = self.core.ready - limits.pace_messages
        if backlog <= 0 or self._rate < limits.pace_rate_min:
            return 0
        return min(backlog * 1_000_000 // self._rate, limits.pace_us_max)

    def _measure(self) -> None:
        """How many messages per second consumers took lately."""
        elapsed = self.host.now.mono - self._measured_at
        if elapsed >= limits.pace_window_us:
            taken = self.core.delivered + self.core.delivered_no_ack
            self._rate = (taken - self._measured_taken) * 1_000_000 // elapsed
            self._measured_at, self._measured_taken = self.host.now.mono, taken

    # --- back-pressure --------------------------------------------------------------------------

    def is_ahead(self, limit: int) -> bool:
        """Do publishers run ahead of consumers that would take more? Without one, only memory counts."""
        if self.core.ready_bytes <= limit:
            return False
        return any(
            member.active and member.core.may_take() and member.is_reading()
            for member in self.consumers.members
        )

    def park(self, publisher: Parkable) -> None:
        """Hold this publishing connection or node until the consumers have caught up."""
        if publisher not in self._parked:
            self._parked.append(publisher)
            publisher.park("ahead")
            self._wake_in(limits.output_stall_us)

    def _release_if_caught_up(self) -> None:
        """Look again after a while in any case: a consumer that froze tells nobody."""
        if self.is_ahead(self.host.settings.publish_ahead_bytes // 2):
            self._wake_in(limits.output_stall_us)
        else:
            self._release_parked()

    def _release_parked(self) -> None:
        parked, self._parked = self._parked, []
        for connection in parked:
            connection.unpark("ahead")


def _tell_senders(received: list[tuple[Sender, int]]) -> None:
    for sender, number in received:
        sender.arrived(number)


def _with_delivery_count(message: Message, count: int) -> Message:
    """The same message with `x-delivery-count` in its headers; all others keep their bytes."""
    fields = split_table(raw_headers(message.properties) or bytes(4))
    kept = [(name, value) for name, value in fields if name != "x-delivery-count"]
    headers = join_table([*kept, ("x-delivery-count", b"l" + count.to_bytes(8, "big"))])
    properties = replace_headers(message.properties, headers)
    return Message(message.exchange, message.routing_key, properties, message.body)
