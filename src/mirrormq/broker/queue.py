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

from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.errors import resource_locked
from mirrormq.broker.arguments import QueueSettings
from mirrormq.broker.consumer import Consumer, Consumers
from mirrormq.broker.deadletter import Reason, make_dead_letter
from mirrormq.kernel.cores import (
    REASON_DELIVERY_LIMIT,
    REASON_EXPIRED,
    REASON_MAXLEN,
    REASON_REJECTED,
    ChannelCore,
    QueueCore,
)
from mirrormq.kernel.message import Message
from mirrormq.log.queuelog import MemoryLog, QueueLog
from mirrormq.meta import records
from mirrormq.meta.commands import DeleteQueue
from mirrormq.wire.properties import raw_headers, replace_headers
from mirrormq.wire.table import join_table, split_table

if TYPE_CHECKING:
    from mirrormq.broker.connection import Connection
    from mirrormq.broker.host import Host
    from mirrormq.broker.vhost import VHost

NO_LIMIT = (1 << 63) - 1

REASONS: dict[int, Reason] = {
    REASON_REJECTED: "rejected",
    REASON_EXPIRED: "expired",
    REASON_MAXLEN: "maxlen",
    REASON_DELIVERY_LIMIT: "delivery_limit",
}


class Queue:
    """A queue mastered here."""

    def __init__(self, host: "Host", vhost: "VHost", record: records.Queue, settings: QueueSettings) -> None:
        self.host = host
        self.vhost = vhost
        self.record = record
        self.name = record.name
        self.log: QueueLog = MemoryLog()
        self.core = QueueCore(host.work, host.grave, self, settings.max_priority)
        self.consumers = Consumers(settings.single_active)
        self.used_at = host.now.mono
        self.dead_letters_dropped = 0
        self._parked: list[Connection] = []
        self._wake_at = 0
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

    def consume(self, consumer: Consumer) -> None:
        """Register a consumer; it is served from the end of this pass on."""
        self.consumers.add(consumer, self.text)
        self._consumers_changed()

    def cancel(self, consumer: Consumer) -> None:
        """Forget a consumer; the last one takes an auto-delete queue with it."""
        if not self.consumers.remove(consumer):
            return
        self._consumers_changed()
        if self.record.auto_delete and not self.consumers and not self.core.gone:
            self._delete()

    def get(self, channel: ChannelCore, no_ack: bool) -> bool:
        """Write basic.get-ok and the message at the head; False if there is none."""
        self.used_at = self.host.now.mono
        self.turn()  # what this pass brought so far stands before the request, limits and consumers included
        return self.core.get(channel, no_ack, self.host.now.wall, self.host.now.mono)

    def purge(self) -> int:
        """Remove everything ready; return how many messages that were."""
        self.turn()
        self.log.purge(self.log.end)
        count = self.core.purge()
        self.core.touch()
        return count

    def touch_used(self) -> None:
        """A redeclaration counts as use for x-expires."""
        self.used_at = self.host.now.mono

    def destroy(self) -> list[Consumer]:
        """The queue is deleted: tell its consumers, let its publishers go on, free its messages in slices."""
        consumers = self.consumers.clear()
        self.core.destroy()
        for consumer in consumers:
            consumer.channel.cancelled_by_server(consumer)
        self._release_parked()
        return consumers

    def _consumers_changed(self) -> None:
        self.used_at = self.host.now.mono
        self.core.set_consumers(self.consumers.groups())
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
        if core.counted:
            self._count_returns()
        core.expire(now.wall)
        if self._limited:
            self._admit_within_limits()
        else:
            self._admit()
            core.deliver(now.wall, now.mono)
        next_expiry = core.expire(now.wall)
        if core.dead_letter:
            self._dead_letter()
        self.log.settle(core.take_settled())
        if next_expiry:
            self._wake_in(next_expiry - now.wall)
        if self.settings.expires_us is not None:
            self._expire_unused()
        if self._parked:
            self._release_if_caught_up()

    def _admit(self) -> None:
        count = self.core.pending
        if count:
            self.core.admit(count, self.log.append(count), self.host.now.wall)

    def _admit_within_limits(self) -> None:
        """Apply max-length: what consumers take at once does not count, as in RabbitMQ."""
        core = self.core
        now = self.host.now
        if self.settings.overflow == "drop-head":
            # What came back counts before consumers are served.
            core.drop_head(self._max_length, self._max_bytes)
            self._admit()
            core.deliver(now.wall, now.mono)
            core.drop_head(self._max_length, self._max_bytes)
            return
        to_dead_letter = self.settings.overflow == "reject-publish-dlx"
        core.deliver(now.wall, now.mono)
        while core.pending:
            fitting = core.fitting(self._max_length, self._max_bytes)
            if fitting:
                core.admit(fitting, self.log.append(fitting), now.wall)
                core.deliver(now.wall, now.mono)
            else:
                core.refuse(1, to_dead_letter)
        for pid, pseq in core.take_refused():
            channel = self.host.channels.get(pid)
            if channel is not None and pseq:
                channel.confirm.nack(pseq)

    def _count_returns(self) -> None:
        """Requeued messages of a counted queue: the number of returns stands in x-delivery-count."""
        limit = self.settings.delivery_limit
        for message, seq, expiry, deliveries in self.core.take_coming_back():
            returns = deliveries + 1
            if limit is not None and returns > limit:
                self.core.throw_away(message, seq, REASON_DELIVERY_LIMIT)
            else:
                self.core.put_back(_with_delivery_count(message, returns), seq, expiry, returns)

    def _dead_letter(self) -> None:
        """Send what was rejected, expired or dropped to the dead-letter exchange."""
        exchange, key = self.settings.dead_letter_exchange, self.settings.dead_letter_key
        assert exchange is not None
        for message, _, reason in self.core.take_dying():
            letter = make_dead_letter(
                message, REASONS[reason], self.host.now, queue=self.name, exchange=exchange, key=key
            )
            targets = self.vhost.dead_letter_targets(exchange, letter)
            for target in targets:
                target.core.push(letter.message)
            self.dead_letters_dropped += not targets

    # --- time -----------------------------------------------------------------------------------

    def _wake_in(self, delay_us: int) -> None:
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
            self._wake_in(left)
        else:
            self._delete()

    def _delete(self) -> None:
        record = self.record
        command = DeleteQueue(vhost=record.vhost, name=record.name, id=record.id)
        self.host.propose(command, lambda _: None, record.outlives_restart)

    # --- back-pressure --------------------------------------------------------------------------

    def is_ahead(self, limit: int) -> bool:
        """Do publishers run ahead of consumers that would take more? Without one, only memory counts."""
        if self.core.ready_bytes <= limit:
            return False
        return any(
            member.active and member.core.may_take() and member.channel.connection.is_reading()
            for member in self.consumers.members
        )

    def park(self, connection: "Connection") -> None:
        """Hold this publishing connection until the consumers have caught up."""
        if connection not in self._parked:
            self._parked.append(connection)
            connection.park("ahead")
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


def _with_delivery_count(message: Message, count: int) -> Message:
    """The same message with `x-delivery-count` in its headers; all others keep their bytes."""
    fields = split_table(raw_headers(message.properties) or bytes(4))
    kept = [(name, value) for name, value in fields if name != "x-delivery-count"]
    headers = join_table([*kept, ("x-delivery-count", b"l" + count.to_bytes(8, "big"))])
    properties = replace_headers(message.properties, headers)
    return Message(message.exchange, message.routing_key, properties, message.body)
