"""A client of the world: what it has asked for, what it holds, and what the answers promise.

Every answer is turned into facts of the model at once; an answer that breaks a promise raises `Violation`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mirrormq.sim.judge import Judge
from mirrormq.sim.model import (
    GONE,
    LIVE,
    MAYBE,
    Entry,
    Found,
    Message,
    ModelQueue,
    Violation,
    check_content,
    number_of,
)
from mirrormq.sim.session import Arrival
from mirrormq.wire import methods
from mirrormq.wire.methods import Method


@dataclass(slots=True)
class Delivery:
    """A message the client holds."""

    queue: ModelQueue
    entry: Entry


@dataclass(slots=True)
class Removal:
    """Something the client took out of a queue, not known to be durable yet."""

    queue: ModelQueue
    entry: Entry
    before_publish: int
    letter: Entry | None = None
    tag: int = 0
    ends: int = 0
    """How often the queue had been deleted by then."""


@dataclass(slots=True)
class Publish:
    """A publish and the entries it became."""

    message: Message
    entries: list[tuple[ModelQueue, Entry]]


@dataclass(slots=True)
class Stats:
    """What a run amounts to."""

    events: int = 0
    faults: int = 0
    confirms: int = 0
    deliveries: int = 0
    commits: int = 0


@dataclass(slots=True)
class Life:
    """What all clients of one life of the node share."""

    queues: dict[str, ModelQueue]
    messages: dict[int, Message]
    judge: Judge
    stats: Stats
    passes: Callable[[], int] = lambda: 0
    """Number of the node's pass."""
    hung_up: int = 0
    """Clients that left in this life: what was on its way to them counts as delivered for the node."""
    closes: list[str] = field(default_factory=list)
    marks_are_exact: bool = True
    """False while bodies leave memory: what is read back below the horizon says it was delivered."""


class SimClient:
    """One connection of the world."""

    def __init__(self, conn: int, mode: str, life: Life) -> None:
        self.conn = conn
        self.mode = mode
        self.life = life
        self.is_open = False
        self.waits_for: type[Method] | None = None
        self.held: dict[int, Delivery] = {}
        self.consumed: dict[str, str] = {}
        """Queue by consumer tag."""
        self.no_ack: set[str] = set()
        self.get_from: str | None = None
        self.publish_no = 0
        self.unconfirmed: deque[tuple[int, Publish]] = deque()
        self.refused: set[int] = set()
        self.removals: list[Removal] = []
        self.tx_publishes: list[Publish] = []
        self.tx_removals: list[Removal] = []
        self.purging: tuple[ModelQueue, list[tuple[Entry, int]]] | None = None
        self.ending: tuple[ModelQueue, list[Entry]] | None = None
        self.is_gone = False
        self.declaring: deque[ModelQueue] = deque()
        """Queues declared without waiting, in the order of the answers."""
        self.binding: deque[ModelQueue] = deque()
        """The same for bindings."""

    # --- answers ---

    def hear(self, arrival: Arrival) -> None:
        """Take one answer of the node."""
        method, content = arrival
        if isinstance(method, methods.BasicDeliver):
            assert content is not None
            found = Found(*content, method.redelivered, method.exchange, method.routing_key)
            tag = method.consumer_tag
            self._delivered(self.consumed[tag], method.delivery_tag, found, no_ack=tag in self.no_ack)
        elif isinstance(method, methods.BasicGetOk):
            assert content is not None
            assert self.get_from is not None
            found = Found(*content, method.redelivered, method.exchange, method.routing_key)
            self._delivered(self.get_from, method.delivery_tag, found, no_ack=False)
            self.waits_for = None
        elif isinstance(method, methods.BasicAck | methods.BasicNack):
            self._answered(method.delivery_tag, method.multiple, isinstance(method, methods.BasicAck))
        elif isinstance(method, methods.ChannelClose | methods.ConnectionClose):
            self.life.closes.append(method.reply_text)
            self.is_gone = True
        elif isinstance(method, methods.BasicCancel | methods.BasicCancelOk):
            self.consumed.pop(method.consumer_tag, None)
            if isinstance(method, methods.BasicCancelOk):
                self.waits_for = None
        else:
            self._other(method)

    def _other(self, method: Method) -> None:
        if isinstance(method, methods.BasicGetEmpty):
            self.waits_for = None
            return
        if isinstance(method, methods.TxCommitOk):
            self._committed()
        elif isinstance(method, methods.QueuePurgeOk):
            self._purged()
        elif isinstance(method, methods.BasicRecoverOk):
            self.held.clear()  # what was on its way when we asked has gone back too
        elif isinstance(method, methods.QueueDeclareOk):
            self.declaring.popleft().declared()
        elif isinstance(method, methods.QueueDeleteOk):
            assert self.ending is not None
            queue, sure = self.ending
            queue.ended(sure)
            queue.may_exist = False
        elif isinstance(method, methods.QueueBindOk):
            self.binding.popleft().is_bound = True
        if self.waits_for is not None and isinstance(method, self.waits_for):
            self.waits_for = None
            self.is_open = True

    def _delivered(self, name: str, tag: int, found: Found, *, no_ack: bool) -> None:
        queue = self.life.queues[name]
        number = number_of(found.body)
        if number is None or number not in self.life.messages:
            raise Violation(f"{name}: delivered a message nobody sent: {found.body[:40]!r}")
        entry = self.life.judge.entry_for(queue, number)
        check_content(queue, entry.message, found, is_letter=entry.is_letter)
        self.life.stats.deliveries += 1
        if not entry.fuzzy:
            self._check_delivery(queue, entry, found)
        if not entry.delivered and found.redelivered:
            entry.marked_in = (self.life.passes(), self.conn)
        elif not found.redelivered:
            entry.marked_in = None
        entry.delivered = True
        entry.deliveries += 1
        if no_ack:
            entry.removal = max(entry.removal, MAYBE)
        else:
            self.held[tag] = Delivery(queue, entry)

    def _check_delivery(self, queue: ModelQueue, entry: Entry, found: Found) -> None:
        name, number = queue.spec.name, entry.message.number
        if entry.removal == GONE:
            raise Violation(f"{name}: message {number} was delivered after its removal was committed")
        if entry.delivered and not found.redelivered and not self._is_overtaken(entry):
            raise Violation(f"{name}: message {number} was delivered before, but says it was not")
        may_be_marked = entry.delivered or entry.recovered or self.life.hung_up
        if found.redelivered and self.life.marks_are_exact and not may_be_marked:
            raise Violation(f"{name}: message {number} says it was delivered before, but was not")
        if found.redelivered or entry.is_letter:
            return
        priority = min(entry.message.priority, queue.spec.arguments.get("x-max-priority", 0))
        # What goes to different clients in one pass arrives in no order.
        lane = (entry.message.publisher, priority, self.conn)
        if entry.index < queue.last_first.get(lane, -1):
            raise Violation(f"{name}: message {number} was delivered too late")
        queue.last_first[lane] = entry.index

    def _is_overtaken(self, entry: Entry) -> bool:
        """What one pass sends to two clients arrives in no order: the repetition may come first."""
        if entry.marked_in is None:
            return False
        at, conn = entry.marked_in
        return at == self.life.passes() and conn != self.conn

    # --- confirms and commits ---

    def _answered(self, tag: int, multiple: bool, is_ack: bool) -> None:
        if not is_ack:
            self.refused.update(
                number for number, _ in self.unconfirmed if number == tag or (multiple and number <= tag)
            )
        answered = [item for item in self.unconfirmed if item[0] == tag or (multiple and item[0] <= tag)]
        if not answered and tag:
            raise Violation(f"confirm of publish {tag}, which was never sent or was confirmed before")
        for item in answered:
            self.unconfirmed.remove(item)
            self._settle_publish(*item)

    def _settle_publish(self, number: int, publish: Publish) -> None:
        self.life.stats.confirms += 1
        if number in self.refused:
            for _, entry in publish.entries:
                entry.refused = len(publish.entries) == 1
            return
        for queue, entry in publish.entries:
            queue.unconfirmed -= 1
            entry.sure = True
            if publish.message.persistent and queue.spec.durable:
                self._commit_removals(queue, number)

    def _commit_removals(self, queue: ModelQueue, publish_no: int) -> None:
        """What left this queue before a publish that is now confirmed stays away."""
        kept = []
        for removal in self.removals:
            if removal.queue is queue and removal.before_publish < publish_no:
                self._commit(removal)
            else:
                kept.append(removal)
        self.removals = kept

    def _commit(self, removal: Removal) -> None:
        if not removal.entry.fuzzy:
            removal.entry.removal = GONE
        letter = removal.letter
        if letter is not None and not letter.fuzzy:
            letter.sure = True

    def _committed(self) -> None:
        self.life.stats.commits += 1
        for publish in self.tx_publishes:
            for queue, entry in publish.entries:
                queue.unconfirmed -= 1
                entry.sure = True
        for removal in self.tx_removals:
            self._commit(removal)
        self.tx_publishes, self.tx_removals = [], []

    def rolled_back(self) -> None:
        """tx.rollback was sent: nothing of it may ever be seen, and what was settled is held as before."""
        for publish in self.tx_publishes:
            for queue, entry in publish.entries:
                queue.unconfirmed -= 1
                entry.removal = GONE
        for removal in self.tx_removals:
            if removal.ends == removal.queue.ends:  # else the queue was deleted meanwhile
                removal.entry.removal = LIVE
            self.held[removal.tag] = Delivery(removal.queue, removal.entry)
        self.tx_publishes, self.tx_removals = [], []

    def _purged(self) -> None:
        assert self.purging is not None
        queue, candidates = self.purging
        for entry, deliveries in candidates:
            if entry.deliveries == deliveries:
                self.removals.append(Removal(queue, entry, self.publish_no))
        self.purging = None

    # --- what the client sends ---

    def published(self, publish: Publish) -> None:
        """A publish was sent."""
        if self.mode == "confirm":
            self.publish_no += 1
            self.unconfirmed.append((self.publish_no, publish))
        elif self.mode == "tx":
            self.tx_publishes.append(publish)

    def settle(self, tag: int, *, multiple: bool, reject: bool) -> None:
        """Acks or rejections without requeue were sent."""
        tags = [held for held in self.held if held == tag or (multiple and held < tag)]
        for each in tags:
            delivery = self.held.pop(each)
            delivery.entry.removal = max(delivery.entry.removal, MAYBE)
            letter = self._letter_of(delivery) if reject else None
            ends = delivery.queue.ends
            removal = Removal(delivery.queue, delivery.entry, self.publish_no, letter, each, ends)
            (self.tx_removals if self.mode == "tx" else self.removals).append(removal)

    def _letter_of(self, delivery: Delivery) -> Entry | None:
        target = delivery.queue.spec.letters_to
        if target is None:
            return None
        queue = self.life.queues[target]
        message = delivery.entry.message
        known = queue.entries.get(message.number)
        if known is not None:
            known.fuzzy = True
            return None
        letter = queue.add(message)
        letter.is_letter = True
        return letter

    def outstanding(self) -> list[Entry]:
        """What the node counts as held by this client: settled in a transaction is not settled yet."""
        held = [delivery.entry for delivery in self.held.values()]
        return held + [removal.entry for removal in self.tx_removals]

    def requeue(self, tag: int, *, multiple: bool) -> None:
        """nack with requeue was sent."""
        for each in [held for held in self.held if held == tag or (multiple and held < tag)]:
            del self.held[each]
