"""A subscription: who gets messages of a queue, in which order of preference.

Among consumers with credit the highest `x-priority` is served first and equals take turns; with a single
active consumer only the first registered one is served until it goes.
"""

from bisect import insort
from typing import TYPE_CHECKING, Any, Protocol

from mirrormq.base.errors import AmqpError, access_refused
from mirrormq.broker import told
from mirrormq.kernel.cores import ConsumerCore
from mirrormq.log.cursors import Cursors

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.queueport import QueuePort


class Subscriber(Protocol):
    """A consumer as its queue's master sees it: one of a channel here, or of another node."""

    tag: str
    no_ack: bool
    exclusive: bool
    prefetch: int
    """How many unacknowledged messages it may hold; 0 = any number."""
    priority: int
    order: int
    """Its place among all consumers of the queue, kept over changes of the master; 0 = not known yet."""
    active: bool
    core: ConsumerCore

    def is_reading(self) -> bool:
        """Does whoever is behind it take what is written, or did so a moment ago?"""
        ...

    def cancelled(self) -> None:
        """The queue no longer serves it."""
        ...


class Consumer:
    """One basic.consume of one channel."""

    def __init__(
        self,
        channel: "Channel",
        queue: "QueuePort",
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        arguments: dict[str, Any],
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = arguments
        self.priority: int = arguments.get("x-priority", 0)
        self.order = 0
        self.active = True
        self.prefetch = prefetch
        self.core = ConsumerCore(channel.core, tag.encode("utf-8", "surrogateescape"), no_ack, prefetch)
        self.source = queue.core
        """Where its messages come from; for a queue mastered elsewhere what has arrived of them here."""

    @property
    def leaves_on_failover(self) -> bool:
        """Does the client want to hear of a new master by being cancelled?"""
        return self.arguments.get("x-cancel-on-ha-failover") is True

    def is_reading(self) -> bool:
        """Does the client take what is written to it, or did so a moment ago?"""
        return self.channel.connection.is_reading()

    def tell(self, what: str) -> None:
        """Tell of an event: it was created, or is deleted."""
        self.channel.host.census.tell(f"consumer.{what}", lambda: told.consumer(self))

    def cancelled(self) -> None:
        """The queue is gone or broken: tell the client."""
        self.channel.cancelled_by_server(self)


class Consumers:
    """The consumers of one queue in the order they came."""

    def __init__(self, single_active: bool, cursors: Cursors | None = None) -> None:
        self.single_active = single_active
        self.cursors = cursors
        """Of the queue's log: a query may be the only one who takes messages."""
        self.members: list[Subscriber] = []
        self.had_any = False
        self.last_order = 0
        """The highest order given out; a new master begins above all that those before it gave."""

    def __len__(self) -> int:
        return len(self.members)

    def add(self, consumer: Subscriber, queue_text: str) -> None:
        """Register; refused while an exclusive consumer exists, or if this one wants to be exclusive among
        others.
        """
        if any(member.exclusive for member in self.members) or (consumer.exclusive and self.members):
            raise access_refused(f"{queue_text} in exclusive use")
        self.check_free(queue_text)
        if not consumer.order:
            self.last_order += 1
            consumer.order = self.last_order
        insort(self.members, consumer, key=_order)
        self.had_any = True
        self._choose_active()

    def check_free(self, queue_text: str) -> None:
        """Refuse whoever wants messages while a query is the only one who takes them."""
        found = self.cursors.consuming if self.cursors is not None else None
        if found is not None:
            text = f"{queue_text} in exclusive use by query '{found.query}' (cursor '{found.name}')"
            raise access_refused(text)

    def remove(self, consumer: Subscriber) -> bool:
        """Forget it; False if it was not registered."""
        if consumer not in self.members:
            return False
        self.members.remove(consumer)
        self._choose_active()
        return True

    def replace(self, old: Subscriber, new: Subscriber) -> None:
        """The same consumer after its node was out of reach for a moment; it keeps its place."""
        self.members[self.members.index(old)] = new
        self._choose_active()

    def clear(self) -> list[Subscriber]:
        """Forget all; return who they were."""
        members, self.members = self.members, []
        return members

    def groups(self) -> list[list[ConsumerCore]]:
        """Who may be served now, by falling priority."""
        by_priority: dict[int, list[ConsumerCore]] = {}
        for member in self.members:
            if member.active:
                by_priority.setdefault(member.priority, []).append(member.core)
        return [by_priority[priority] for priority in sorted(by_priority, reverse=True)]

    def _choose_active(self) -> None:
        for position, member in enumerate(self.members):
            member.active = position == 0 or not self.single_active


def _order(consumer: Subscriber) -> int:
    return consumer.order


def move_consumer(consumer: Consumer, successor: "QueuePort") -> None:
    """This node is the queue's master now: register a consumer there; if that fails tell the client."""
    if consumer.leaves_on_failover:
        consumer.cancelled()
        return
    consumer.queue, consumer.source = successor, successor.core
    consumer.core.prefetch = consumer.prefetch

    def answered(error: AmqpError | None) -> None:
        if error is not None:
            consumer.cancelled()

    try:
        later = successor.consume(consumer)
    except AmqpError:
        consumer.cancelled()
        return
    if later is not None:
        later.when(answered)
