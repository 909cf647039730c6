"""A queue as channels, exchanges and reports see it, wherever its master is.

Guarantee of the interface: a client cannot tell from the answers on which node the queue lives, except by
the time they take and by what happens when that node is out of reach. What the master must be asked for
comes as a `Later`; a queue mastered here answers at once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from mirrormq.base.errors import AmqpError
from mirrormq.broker.arguments import QueueSettings
from mirrormq.broker.confirm import Position
from mirrormq.kernel.cores import ChannelCore, QueueCore
from mirrormq.kernel.message import Message
from mirrormq.meta import records

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.consumer import Consumer, Consumers
    from mirrormq.broker.queue import Queue

T = TypeVar("T")


class Later(Generic[T]):
    """An answer that another node gives: the value, or what the client did wrong."""

    __slots__ = ("_answer", "_then")

    def __init__(self) -> None:
        self._answer: tuple[T | AmqpError] | None = None
        self._then: Callable[[T | AmqpError], None] | None = None

    def when(self, then: Callable[[T | AmqpError], None]) -> None:
        """Call `then` with the answer, once."""
        self._then = then
        if self._answer is not None:
            then(self._answer[0])

    def answer(self, value: T | AmqpError) -> None:
        """The answer is here; a second one is ignored."""
        if self._answer is None:
            self._answer = (value,)
            if self._then is not None:
                self._then(value)


class Counts(NamedTuple):
    """What queue.declare-ok tells."""

    messages: int
    consumers: int


class Parkable(Protocol):
    """Somebody who publishes and can be held: a connection, or a home node on behalf of its connections."""

    def park(self, reason: str) -> None:
        """Publish nothing more until `unpark`."""
        ...

    def unpark(self, reason: str) -> None:
        """Go on."""
        ...


class Rows(NamedTuple):
    """Committed rows of a sink for one queue, as they travel between nodes (kernel/rows.pyx).

    They are sent like one dead letter whose number is that of the last row.
    """

    data: bytes
    first: int
    """Number of the first row; they are dense."""
    records: int
    op: int


class Sender(Protocol):
    """The queue in which a dead letter died, or a staging queue, as the letter's target sees it."""

    @property
    def queue_id(self) -> int:
        """Its log id."""
        ...

    def arrived(self, number: int) -> None:
        """The target has this letter for good."""
        ...


class QueuePort(Protocol):
    """A queue, mastered here or elsewhere."""

    name: str
    record: records.Queue
    settings: QueueSettings
    core: QueueCore
    consumers: "Consumers"
    damage: str | None
    dead_letters_dropped: int

    @property
    def positions(self) -> list[Position]:
        """What the confirm of everything published so far waits for; of a deleted queue, nothing."""
        ...

    @property
    def is_local(self) -> bool:
        """Is its master this node?"""
        ...

    @property
    def is_available(self) -> bool:
        """Can its master be reached?"""
        ...

    @property
    def outlives(self) -> bool:
        """Does what it takes survive a restart, so that dead letters are waited for?"""
        ...

    @property
    def text(self) -> str:
        """The queue as error texts name it."""
        ...

    def may_use(self, conn_id: int) -> None:
        """Raise 405 unless the queue is shared or belongs to this connection of this node."""
        ...

    def configure(self, settings: QueueSettings) -> None:
        """Take new effective settings."""
        ...

    def counts(self, *, is_use: bool) -> Counts | Later[Counts]:
        """How many messages are ready and how many consumers there are; `is_use`: counts for x-expires."""
        ...

    def consume(self, consumer: "Consumer") -> Later[None] | None:
        """Register a consumer."""
        ...

    def cancel(self, consumer: "Consumer") -> Later[None] | None:
        """Forget a consumer."""
        ...

    def credit_changed(self, consumer: "Consumer") -> None:
        """The limits of the consumer's channel changed."""
        ...

    def wait_to_get(self, channel: "Channel", again: Callable[[], None]) -> bool:
        """Must a basic.get wait? Then `again` is called later, and the same is asked once more."""
        ...

    def get(self, channel: ChannelCore, no_ack: bool) -> bool:
        """Write basic.get-ok and the message at the head; False if there is none."""
        ...

    def purge(self) -> int | Later[int]:
        """Remove everything ready; how many messages that were."""
        ...

    def delete(self, *, if_unused: bool, if_empty: bool) -> Later[int]:
        """Delete the queue; how many messages were ready. Raises 406 if a condition does not hold."""
        ...

    def receive(self, message: Message | Rows, sender: Sender, number: int, *, is_resent: bool) -> None:
        """Take a numbered dead letter, or rows of a sink; the sender hears when they are durable."""
        ...

    def close_batch(self) -> None:
        """A transaction has published: what waits now must reach the log in one batch."""
        ...

    def turn(self) -> None:
        """Do everything this pass brought."""
        ...

    def destroy(self) -> object:
        """The queue is deleted."""
        ...

    def retire(self, successor: "QueuePort") -> None:
        """The master moved from or to this node: hand over to the object that stands for the queue now."""
        ...

    def take_clients(self, predecessor: "Queue", consumers: "list[Consumer]") -> None:
        """The master moved away from this node: these consumers, and what clients here hold, belong to it."""
        ...

    def is_ahead(self, limit: int) -> bool:
        """Must its publishers be held?"""
        ...

    def park(self, publisher: Parkable) -> None:
        """Hold this publisher until they need not be held any more."""
        ...
