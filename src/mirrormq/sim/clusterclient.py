"""A client of a simulated cluster: one connection to one node, using queues wherever they are.

It does one thing after the other where it has to wait for an answer, and publishes and acknowledges without
waiting. Everything it is told goes into the history, which raises `Violation` if a promise is broken.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mirrormq.sim.clusterhistory import (
    DELETE,
    EMPTY,
    PUT,
    Op,
    Sent,
    binding_key,
    exchange_key,
    queue_key,
)
from mirrormq.sim.session import Arrival, log_in, method_frame, publish_frames
from mirrormq.sim.timeline import SECOND
from mirrormq.wire import methods
from mirrormq.wire.methods import Method

if TYPE_CHECKING:
    from mirrormq.sim.clusternode import SimNode
    from mirrormq.sim.clusterworld import ClusterWorld

LOCATORS = {
    "here": "client-local",
    "there": "random",
    "even": "min-masters",
    "far": "random",
    "spare": "min-masters",
    "moody": "random",
}
"""The queues of the world, and how each finds its master."""
EXCHANGES = ("news", "mail")
UNCONFIRMED_MAX = 60
PATIENCE_US = 25 * SECOND
"""How long a client waits for an answer before it hangs up."""


class Pending(NamedTuple):
    """What a client waits for."""

    answer: tuple[type[Method], ...]
    since: int
    op: Op | None = None


class Client:
    """One connection with one channel in confirm mode."""

    mode = "confirm"
    selected: type[Method] = methods.ConfirmSelectOk

    def __init__(self, world: "ClusterWorld", home: "SimNode", conn: int) -> None:
        self.world = world
        self.home = home
        self.life = home.life
        self.conn = conn
        self.is_gone = False
        self.why = ""
        self.pending: Pending | None = Pending((self.selected,), world.now)
        self.held: dict[int, Sent] = {}
        self.consumed: dict[str, str] = {}
        """Queue by consumer tag."""
        self.get_from = ""
        self._published = 0
        self._unconfirmed: dict[int, int] = {}
        """Message by publish number."""
        self._operations: list[tuple[int, Callable[[], None]]] = [
            (40, self._publish),
            (25, self._settle),
            (8, self._consume),
            (5, self._get),
            (2, self._cancel),
            (8, self._declare),
            (2, self._delete),
            (1, self._purge),
            (3, self._bind),
            (1, self._unbind),
            (2, self._declare_exchange),
            (1, self._delete_exchange),
            (2, self.leave),
        ]
        home.connect(conn, self.hear)
        home.send(conn, log_in(self.mode))

    @property
    def is_lost(self) -> bool:
        """Is there nothing at the other end any more?"""
        return self.is_gone or self.home.life != self.life

    @property
    def is_waiting(self) -> bool:
        """Is it owed an answer?"""
        return self.pending is not None

    def act(self) -> None:
        """Do one thing, if nothing is waited for."""
        if self.pending is not None:
            if self.world.now - self.pending.since > PATIENCE_US:
                self.leave()
            return
        weights = [weight for weight, _ in self._operations]
        [(_, operation)] = self.world.rng.choices(self._operations, weights)
        operation()

    def leave(self) -> None:
        """Hang up."""
        self.is_gone = True
        self.home.hang_up(self.conn)

    # --- what it hears ---

    def hear(self, arrival: Arrival) -> None:
        """Take one answer."""
        method, content = arrival
        self.world.whisper(repr((self.conn, method)).encode())
        history = self.world.history
        if isinstance(method, methods.BasicDeliver | methods.BasicGetOk):
            assert content is not None
            is_get = isinstance(method, methods.BasicGetOk)
            queue = (
                self.get_from
                if isinstance(method, methods.BasicGetOk)
                else self.consumed[method.consumer_tag]
            )
            sent = history.deliver(queue, self.conn, content[1], is_marked=method.redelivered)
            self.held[method.delivery_tag] = sent
            if self.world.is_draining:
                history.check_drained(sent, self.world.drained_since)
            if is_get:
                self.pending = None
        elif isinstance(method, methods.BasicAck | methods.BasicNack):
            self._settled(method)
        elif isinstance(method, methods.BasicReturn):
            assert content is not None
            history.sent[int(content[1].split(b"/")[0])].is_returned = True
        elif isinstance(method, methods.ChannelClose | methods.ConnectionClose):
            self.why = method.reply_text
            self.is_gone = True
        elif isinstance(method, methods.BasicCancel):
            self.consumed.pop(method.consumer_tag, None)
        elif self.pending is not None and isinstance(method, self.pending.answer):
            if isinstance(method, methods.BasicCancelOk):
                self.consumed.pop(method.consumer_tag, None)
            if self.pending.op is not None:
                read_at = self.home.read_at(self.conn)
                self.pending.op.answered(self.world.now, read_at, self.home.pass_us)
                history.answers += 1
            self.pending = None

    def _settled(self, method: methods.BasicAck | methods.BasicNack) -> None:
        last = method.delivery_tag
        numbers = [
            number for number in self._unconfirmed if number == last or (method.multiple and number < last)
        ]
        for number in numbers:
            message = self._unconfirmed.pop(number)
            if isinstance(method, methods.BasicAck):
                self.world.history.confirm(message, self.world.now)

    # --- what it does ---

    def send(self, method: Method, *answer: type[Method], op: Op | None = None) -> None:
        """Send a method, and wait if there will be an answer."""
        if answer:
            self.pending = Pending(answer, self.world.now, op)
        self.world.say(f"{self.conn} on {self.home.name}: {method}")
        self.home.send(self.conn, method_frame(method))

    def _queue(self) -> str:
        return self.world.rng.choice(tuple(self.world.queues))

    def _publish(self) -> None:
        rng = self.world.rng
        if len(self._unconfirmed) > UNCONFIRMED_MAX:
            return
        queue = self._queue()
        exchange = rng.choice(EXCHANGES) if rng.random() < 0.15 else ""
        frames = []
        for _ in range(rng.choice((1, 1, 3, 10))):
            number = len(self.world.history.sent) + 1
            message = self._message(number, queue)
            self.world.history.publish(message)
            self._published += 1
            self._unconfirmed[self._published] = number
            frames.append(publish_frames(exchange, queue, message.properties, message.body, mandatory=True))
        self.world.say(f"{self.conn} on {self.home.name}: publishes {len(frames)} to {queue} by '{exchange}'")
        data = b"".join(frames)
        middle = rng.randrange(len(data))
        for part in (data[:middle], data[middle:]):
            self.home.send(self.conn, part)

    def _message(self, number: int, queue: str) -> Sent:
        rng = self.world.rng
        size = rng.choice((20, 300, 3_000, 9_000)) if rng.random() < 0.2 else 10
        return Sent(number, queue, self.conn, self.world.now, rng.random() < 0.85, size)

    def _settle(self) -> None:
        if not self.held:
            return
        rng = self.world.rng
        tag = rng.choice(list(self.held))
        multiple = rng.random() < 0.4
        kind = rng.random()
        if kind < 0.75:
            self.send(methods.BasicAck(tag, multiple))
        else:
            self.send(methods.BasicNack(tag, multiple, kind < 0.9))
        for held in [one for one in self.held if one == tag or (multiple and one < tag)]:
            del self.held[held]

    def settle_all(self) -> None:
        """Acknowledge everything it holds."""
        if self.held:
            self.home.send(self.conn, method_frame(methods.BasicAck(max(self.held), True)))
            self.held.clear()

    def _consume(self) -> None:
        if len(self.consumed) < 3:
            self.send(methods.BasicQos(0, self.world.rng.choice((0, 1, 3, 20)), False))
            self.consume(self._queue())

    def consume(self, queue: str) -> None:
        """Consume from a queue."""
        tag = f"c{self.world.events}-{len(self.consumed)}"
        self.consumed[tag] = queue
        self.send(methods.BasicConsume(queue=queue, consumer_tag=tag), methods.BasicConsumeOk)

    def _get(self) -> None:
        self.get_from = self._queue()
        self.send(methods.BasicGet(queue=self.get_from), methods.BasicGetOk, methods.BasicGetEmpty)

    def _cancel(self) -> None:
        if self.consumed:
            tag = self.world.rng.choice(list(self.consumed))
            self.send(methods.BasicCancel(tag), methods.BasicCancelOk)

    def _begin(self, kind: str, key: str) -> Op:
        return self.world.history.begin(kind, key, self.world.now)

    def _declare(self) -> None:
        self.declare(self._queue())

    def declare(self, name: str) -> None:
        """Declare a queue."""
        arguments = {"x-queue-master-locator": LOCATORS[name]}
        method = methods.QueueDeclare(queue=name, durable=True, arguments=arguments)
        self.send(method, methods.QueueDeclareOk, op=self._begin(PUT, queue_key(name)))

    def _delete(self) -> None:
        name = self._queue()
        if name != "here":
            op = self._begin(DELETE, queue_key(name))
            self.send(methods.QueueDelete(queue=name), methods.QueueDeleteOk, op=op)

    def _purge(self) -> None:
        name = self._queue()
        if name != "here":
            op = self._begin(EMPTY, queue_key(name))
            self.send(methods.QueuePurge(queue=name), methods.QueuePurgeOk, op=op)

    def _bind(self) -> None:
        queue, exchange = self._queue(), self.world.rng.choice(EXCHANGES)
        method = methods.QueueBind(queue=queue, exchange=exchange, routing_key=queue)
        self.send(method, methods.QueueBindOk, op=self._begin(PUT, binding_key(exchange, queue)))

    def _unbind(self) -> None:
        queue, exchange = self._queue(), self.world.rng.choice(EXCHANGES)
        method = methods.QueueUnbind(queue=queue, exchange=exchange, routing_key=queue)
        self.send(method, methods.QueueUnbindOk, op=self._begin(DELETE, binding_key(exchange, queue)))

    def _declare_exchange(self) -> None:
        name = self.world.rng.choice(EXCHANGES)
        method = methods.ExchangeDeclare(exchange=name, type="direct", durable=True)
        self.send(method, methods.ExchangeDeclareOk, op=self._begin(PUT, exchange_key(name)))

    def _delete_exchange(self) -> None:
        name = self.world.rng.choice(EXCHANGES)
        op = self._begin(DELETE, exchange_key(name))
        self.send(methods.ExchangeDelete(exchange=name), methods.ExchangeDeleteOk, op=op)
