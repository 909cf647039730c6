"""The tx class: publishes and acknowledgements of a channel, held back until tx.commit.

Guarantees, as RabbitMQ gives them
- What a publish may do wrong (rights, missing exchange, properties) is judged when it is sent; its queues are
  chosen then, too, whoever their masters are at the commit. What an acknowledgement names must be outstanding
  when it is sent.
- Commit applies everything in the order it was sent, and is answered when all queues touched have made it
  durable, on every in-sync mirror of those that have mirrors: neither does a publish get lost nor an
  acknowledged message come back while one of these copies is left. If a queue refused one of the publishes
  the channel is closed with 406: the rest has happened.
- What is published to one queue is one batch of its log: all of it is there after a crash, or nothing. There
  is no such promise across queues.
- If a queue of another node takes part, or one with mirrors, acknowledgements wait until all publishes are
  safe, so that a crash may leave both what was acknowledged and what was made of it, but never neither. If a
  link breaks for long before it is known that an acknowledgement is safe, or a queue gets another master, the
  channel is closed with 406, too: the message may come again.
- Rollback forgets publishes and acknowledgements; the messages are outstanding as before, not requeued.
- A channel that closes without commit has published and acknowledged nothing. So has one that holds back more
  than a transaction may (`tx_methods_max`, `tx_bytes_max`): it is closed with 406.

Acknowledgements are kept as they came and applied later in the same order. That gives the same result: tags
only grow, so "all up to n" covers the same deliveries at commit as when it was sent.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrormq.base import limits
from mirrormq.base.errors import precondition_failed
from mirrormq.broker.arguments import text
from mirrormq.broker.confirm import ConfirmTracker
from mirrormq.kernel.cores import QueueCore
from mirrormq.kernel.message import Message
from mirrormq.kernel.tally import CHANNEL_COUNTS, EXCHANGE_COUNTS
from mirrormq.wire import methods
from mirrormq.wire.methods import Method

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel

COMMIT = "commit"

PUBLISH = CHANNEL_COUNTS.index("publish")
RETURN_UNROUTABLE = CHANNEL_COUNTS.index("return_unroutable")
DROP_UNROUTABLE = CHANNEL_COUNTS.index("drop_unroutable")
PUBLISH_IN, PUBLISH_OUT = map(EXCHANGE_COUNTS.index, ("publish_in", "publish_out"))


class Publish(NamedTuple):
    """A message and where it will go."""

    message: Message
    queues: list[QueueCore]
    mandatory: bool
    is_answer: bool = False
    """Did a requester get it who waits for an answer?"""


class Settle(NamedTuple):
    """An acknowledgement, one or all up to `tag`."""

    kind: str
    tag: int
    multiple: bool
    requeue: bool


class RefusalTracker(ConfirmTracker):
    """Stands in for the confirms of a transactional channel: all it must know is whether a queue refused."""

    def __init__(self, channel: "Channel") -> None:
        """Nothing refused yet."""
        super().__init__(channel.core)
        self.has_refused = False

    def nack(self, publish_no: int) -> None:  # noqa: ARG002
        """A queue refused a publish of the commit under way."""
        self.has_refused = True


class Transaction:
    """What a transactional channel has sent since the last commit or rollback."""

    __slots__ = (
        "_bytes",
        "_channel",
        "_settled",
        "_settled_upto",
        "_settles",
        "acks_count",
        "held_count",
        "publishes",
        "tracker",
    )

    def __init__(self, channel: "Channel") -> None:
        """Begin with nothing held."""
        self._channel = channel
        self.tracker = RefusalTracker(channel)
        self.publishes: list[Publish] = []
        self._bytes = 0
        """Of these messages."""
        self._settles: list[Settle] = []
        self._settled: set[int] = set()
        self._settled_upto = 0
        self.held_count = 0
        """Deliveries covered by what is held (for reports: exact unless a multiple ack spans gaps)."""
        self.acks_count = 0
        """The same without rejections."""

    def publish(self, planned: Publish) -> None:
        """Keep a message for the commit."""
        self._check_room()
        message = planned.message
        self._bytes += message.body_size + len(message.properties)
        if self.publishes and self._bytes > limits.tx_bytes_max:
            raise precondition_failed(
                f"a transaction holds {limits.tx_bytes_max // 1024**2} MiB of messages at most: commit sooner"
            )
        self.publishes.append(planned)

    def _check_room(self) -> None:
        if len(self.publishes) + len(self._settles) >= limits.tx_methods_max:
            most = limits.tx_methods_max
            raise precondition_failed(
                f"a transaction holds {most} publishes and acknowledgements at most: commit sooner"
            )

    def hold(self, kind: str, tag: int, multiple: bool, requeue: bool) -> bool:
        """Keep an acknowledgement for the commit; False if it names nothing outstanding."""
        core = self._channel.core
        if tag == 0 and multiple:
            tag = core.next_tag - 1  # "all outstanding" means now, not at commit
            if tag <= self._settled_upto:
                return True
        elif tag <= self._settled_upto or tag in self._settled or not core.has(tag, multiple):
            return False
        self._check_room()
        self._settles.append(Settle(kind, tag, multiple, requeue))
        covered = 1
        if multiple:
            lowest = max(self._settled_upto, core.next_tag - 1 - core.unacked)
            later = {other for other in self._settled if other > tag}
            covered = max(tag - lowest - (len(self._settled) - len(later)), 0)
            self._settled_upto, self._settled = tag, later
        else:
            self._settled.add(tag)
        self.held_count += covered
        self.acks_count += covered if kind == "ack" else 0
        return True

    def recover(self) -> None:
        """Requeue what is outstanding and not covered by an acknowledgement held here."""
        core = self._channel.core
        left = core.unacked - len(self._settled)
        tag = core.next_tag - 1
        while left > 0 and tag > self._settled_upto:
            if tag not in self._settled and core.nack(tag, False, True):
                left -= 1
            tag -= 1

    def take(self) -> tuple[list[Publish], list[Settle]]:
        """Hand over what is held, and begin anew."""
        held = self.publishes, self._settles
        self.publishes, self._settles, self._bytes = [], [], 0
        self._settled, self._settled_upto = set(), 0
        self.held_count = self.acks_count = 0
        return held


def on_select(channel: "Channel", _method: methods.TxSelect) -> None:
    """Make the channel transactional."""
    if channel.core.confirm:
        raise precondition_failed("cannot switch from confirm to tx mode")
    if channel.tx is None:
        channel.tx = Transaction(channel)
        channel.confirm = channel.tx.tracker
        channel.core.tx = True
    channel.send(methods.TxSelectOk())


def on_commit(channel: "Channel", method: methods.TxCommit) -> None:
    """Do what was held back; answer when it is durable."""
    tx = _transaction(channel)
    publishes, settles = tx.take()
    publishes = _at_their_masters(channel, publishes)
    touched: dict[QueueCore, None] = {}
    for publish in publishes:
        # Numbered, so that a queue can say which publish it refused; tx channels do not count them otherwise.
        channel.core.publish_no += 1
        deliver(channel, publish, channel.core.publish_no)
        touched.update(dict.fromkeys(publish.queues))
    if not touched and not settles:
        channel.send(methods.TxCommitOk())
        return
    for queue in touched:
        queue.owner.close_batch()
    channel.connection.park(COMMIT)
    commit = _Commit(channel, tx, method, list(touched))
    # Only what is in the journal of this node alone is there after a crash, or is not, all at once.
    queues = (*touched, *_settled(channel, settles))
    is_near = not channel.has_far and not any(queue.remote for queue in queues)
    if settles and (is_near or not touched):
        commit.settle(settles, then=commit.wait)
    elif settles:
        commit.wait(lambda: commit.settle(settles))
    else:
        commit.wait()


def on_rollback(channel: "Channel", _method: methods.TxRollback) -> None:
    """Forget what was held back."""
    _transaction(channel).take()
    channel.send(methods.TxRollbackOk())


def _at_their_masters(channel: "Channel", publishes: list[Publish]) -> list[Publish]:
    """The same, for what stands for their queues by now: since they were sent one may have got another
    master, and what stood for it then is over. Into a queue that was deleted nothing goes.
    """
    found: dict[QueueCore, QueueCore] = {}
    for core in [core for publish in publishes for core in publish.queues]:
        if core not in found:
            queue = channel.vhost.queues.get(core.owner.name)
            is_left = queue is None or queue.record.id != core.owner.record.id
            found[core] = core if queue is None or is_left else channel.host.partition.port(queue).core
    return [publish._replace(queues=[found[core] for core in publish.queues]) for publish in publishes]


def deliver(channel: "Channel", publish: Publish, publish_no: int) -> None:
    """Put a message into its queues, or return it."""
    for queue in publish.queues:
        queue.push(publish.message, channel.uid, publish_no)
        channel.connection.reader.note_fed(queue)
    published(channel, publish)


def published(channel: "Channel", publish: Publish) -> None:
    """A message is in its queues, if there are any: count it, and return it if its sender asked for that."""
    tally = channel.core.tally
    tally.add(PUBLISH)
    place = channel.vhost.router.place(text(publish.message.exchange))
    if place is not None:
        place.tally.add(PUBLISH_IN)
        place.tally.add(PUBLISH_OUT, len(publish.queues))
    if publish.mandatory and not publish.queues:
        tally.add(RETURN_UNROUTABLE)
        send_return(channel, publish.message)
    elif not publish.queues and not publish.is_answer:
        tally.add(DROP_UNROUTABLE)


def send_return(channel: "Channel", message: Message) -> None:
    """Write basic.return for a message that no queue takes, which is before the message is confirmed."""
    exchange, key = message.exchange, message.routing_key
    payload = _NO_ROUTE + bytes((len(exchange),)) + exchange + bytes((len(key),)) + key
    channel.connection.out.write_content(channel.number, payload, message)


_NO_ROUTE = bytes.fromhex("003c0032 0138") + b"\x08NO_ROUTE"
"""basic.return 312; the rest is added as bytes, because exchange and key need not be UTF-8."""


class _Commit:
    """A commit under way."""

    def __init__(
        self, channel: "Channel", tx: Transaction, method: methods.TxCommit, touched: list[QueueCore]
    ) -> None:
        self._channel = channel
        self._tx = tx
        self._method = method
        self._touched = touched

    def wait(self, then: Callable[[], None] | None = None) -> None:
        """Go on when everything published is durable or refused; without `then` that is the end."""

        def durable(is_sure: bool) -> None:
            self._tx.tracker.has_refused |= not is_sure
            (then or self._finish)()

        self._channel.host.after_durable(self._touched, durable)

    def settle(self, settles: list[Settle], then: Callable[[], None] | None = None) -> None:
        """Acknowledge, and go on when that is durable.

        Acknowledgements ask for no flush by themselves; a committed one must not be taken back by a crash,
        nor by a mirror that becomes the master and has not heard of it.
        """
        if self._channel.closing or self._tx.tracker.has_refused:
            self._finish()  # what is held goes back with the channel
            return
        queues = _settled(self._channel, settles)
        for settle in settles:
            _apply(self._channel, settle)

        def safe(is_sure: bool) -> None:
            self._tx.tracker.has_refused |= not is_sure
            (then or self._finish)()

        self._channel.host.after_settled(queues, safe)

    def _finish(self) -> None:
        channel = self._channel
        if not channel.closing:
            if self._tx.tracker.has_refused:
                channel.on_error(precondition_failed("partial tx completion"), self._method)
            else:
                channel.send(methods.TxCommitOk())
        channel.connection.unpark(COMMIT)


def _settled(channel: "Channel", settles: list[Settle]) -> list[QueueCore]:
    """The queues, or what stands for them here, from which these acknowledgements take something."""
    core = channel.core
    upto = max((settle.tag for settle in settles if settle.multiple), default=0)
    queues = dict.fromkeys(core.covered(upto, True))
    for settle in settles:
        if settle.tag > upto:
            queues.update(dict.fromkeys(core.covered(settle.tag, False)))
    return list(queues)


def _apply(channel: "Channel", settle: Settle) -> None:
    core = channel.core
    if settle.kind == "ack":
        core.ack(settle.tag, settle.multiple)
    else:
        core.nack(settle.tag, settle.multiple, settle.requeue)


def _transaction(channel: "Channel") -> Transaction:
    if channel.tx is None:
        raise precondition_failed("channel is not transactional")
    return channel.tx


HANDLERS: dict[type[Method], Callable[["Channel", Any], None]] = {
    methods.TxSelect: on_select,
    methods.TxCommit: on_commit,
    methods.TxRollback: on_rollback,
}
