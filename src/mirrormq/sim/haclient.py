"""A client of mirrored queues: it publishes, settles, purges and deletes, and believes what it is told."""

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mirrormq.node.partition import SERVING
from mirrormq.sim.clusterclient import Client
from mirrormq.sim.clusterhistory import DELETE, EMPTY, PUT, Sent, queue_key
from mirrormq.sim.hahistory import DYING, LETTERS, HaSent
from mirrormq.sim.model import Violation
from mirrormq.sim.session import Arrival
from mirrormq.wire import methods

if TYPE_CHECKING:
    from mirrormq.sim.clusternode import SimNode
    from mirrormq.sim.clusterworld import ClusterWorld
    from mirrormq.sim.haworld import HaWorld

RANKED, BRIEF, PLAIN, KEPT = "ranked", "brief", "plain", "kept"
PRIORITIES = 3
CONSUMERS = 3
"""Consumers of a client of a node that is cut off."""


class Spec(NamedTuple):
    """How a queue of the world is declared."""

    name: str
    durable: bool = True
    arguments: dict[str, Any] = {}  # noqa: RUF012


SPECS = {
    spec.name: spec
    for spec in (
        Spec(KEPT),
        Spec("other"),
        Spec("third", arguments={"x-queue-master-locator": "min-masters"}),
        Spec(RANKED, arguments={"x-max-priority": PRIORITIES}),
        Spec(DYING, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": LETTERS}),
        Spec(LETTERS),
        Spec(BRIEF, durable=False),
        Spec(PLAIN, arguments={"x-queue-master-locator": "random"}),
    )
}
NEVER_DELETED = (KEPT, DYING, LETTERS)


class HaClient(Client):
    """One connection with one channel in confirm mode."""

    def __init__(self, world: "ClusterWorld", home: "SimNode", conn: int) -> None:
        super().__init__(world, home, conn)
        self._ha = cast("HaWorld", world)
        self.held: dict[int, HaSent] = {}  # type: ignore[assignment]
        self.origin: dict[int, str] = {}
        """The queue of each delivery, by its tag."""
        self.without_acks: set[str] = set()
        """Consumers that acknowledge nothing."""

    # --- what it hears ---

    def hear(self, arrival: Arrival) -> None:
        """Take one answer."""
        method, _ = arrival
        if isinstance(method, methods.BasicDeliver | methods.BasicGetOk):
            is_get = isinstance(method, methods.BasicGetOk)
            tag = "" if isinstance(method, methods.BasicGetOk) else method.consumer_tag
            queue = self.get_from if is_get else self.consumed.get(tag)
            if queue is None:
                raise Violation(f"client {self.conn} gets a message for a consumer that was cancelled")
            self.origin[method.delivery_tag] = queue
        op = self.pending.op if self.pending is not None else None
        super().hear(arrival)
        if op is not None and isinstance(method, methods.QueueDeclareOk):
            op.is_sure &= not self._ha.mirrors.is_outdated(self.home, method.queue, op.start)
        if isinstance(method, methods.BasicDeliver | methods.BasicGetOk):
            assert queue is not None
            self._ha.mirrors.delivered(queue, self.held[method.delivery_tag])
        if isinstance(method, methods.BasicDeliver) and method.consumer_tag in self.without_acks:
            self.origin.pop(method.delivery_tag)
            self.held.pop(method.delivery_tag).is_acked = True

    @property
    def _asks_branches(self) -> bool:
        return self.home.node is not None and self.home.node.partition.branches_out

    def _settled(self, method: methods.BasicAck | methods.BasicNack) -> None:
        last = method.delivery_tag
        if last not in self._unconfirmed:
            raise Violation(f"I10: publish {last} of client {self.conn} is answered twice, or was never sent")
        numbers = [
            number for number in self._unconfirmed if number == last or (method.multiple and number < last)
        ]
        for number in numbers:
            message = self._unconfirmed.pop(number)
            if isinstance(method, methods.BasicAck):
                self.world.history.confirm(message, self.world.now)
                self._ha.mirrors.confirmed(self._ha.ha_history.sent[message], self.home)
            else:
                self._ha.stats.nacks += 1

    @property
    def is_waiting(self) -> bool:
        """Is it owed an answer, or a word about a publish?"""
        return self.pending is not None or bool(self._unconfirmed)

    # --- what it does ---

    def act(self) -> None:
        """Do one thing, if nothing is waited for. On a node that goes on although it is cut off most other
        things than publishes, deliveries and what becomes of them would wait until it is healed.
        """
        node = self.home.node
        is_cut = node is not None and node.partition.reaction == SERVING
        if is_cut and self.pending is None and self.world.rng.random() < 0.9:
            kinds = [self._publish, self._publish, self._settle]
            if self._asks_branches:
                kinds += [self._settle, self._get] + [self._consume] * (len(self.consumed) < CONSUMERS)
            self.world.rng.choice(kinds)()
        else:
            super().act()

    def _message(self, number: int, queue: str) -> Sent:
        rng = self.world.rng
        size = rng.choice((20, 300, 3_000, 9_000)) if rng.random() < 0.15 else 10
        priority = rng.randrange(PRIORITIES + 1) if queue == RANKED else 0
        is_persistent = rng.random() < 0.8
        return HaSent(number, queue, self.conn, self.world.now, is_persistent, size, priority=priority)

    def _settle(self) -> None:
        if not self.held:
            return
        rng = self.world.rng
        tag = rng.choice(list(self.held))
        multiple = rng.random() < 0.4
        kind = rng.choices(("ack", "reject", "requeue"), (7, 1, 2))[0]
        self.settle(tag, kind, multiple=multiple)

    def settle(self, tag: int, kind: str, *, multiple: bool = False) -> None:
        """Say what becomes of deliveries."""
        for each in [one for one in self.held if one == tag or (multiple and one < tag)]:
            self.mark(self.held.pop(each), kind, self.origin.pop(each))
        if kind == "ack":
            self.send(methods.BasicAck(tag, multiple))
        else:
            self.send(methods.BasicNack(tag, multiple, kind == "requeue"))

    def mark(self, message: HaSent, kind: str, queue: str) -> None:
        """The next thing it says may take a message out of a queue."""
        is_letter = queue != message.queue
        message.is_acked |= kind == "ack" or (kind == "reject" and is_letter)
        message.is_rejected |= kind == "reject"

    def settle_all(self) -> None:
        """Acknowledge everything it holds."""
        if self.held:
            self.settle(max(self.held), "ack", multiple=True)

    def consume(self, queue: str) -> None:
        """Consume from a queue, sometimes without acknowledgements."""
        tag = f"c{self.world.events}-{len(self.consumed)}"
        self.consumed[tag] = queue
        no_ack = self.world.rng.random() < 0.15 and not self.world.is_draining
        if no_ack:
            self.without_acks.add(tag)
        method = methods.BasicConsume(queue=queue, consumer_tag=tag, no_ack=no_ack)
        self.send(method, methods.BasicConsumeOk)

    def declare(self, name: str) -> None:
        """Declare a queue."""
        spec = SPECS[name]
        method = methods.QueueDeclare(queue=name, durable=spec.durable, arguments=spec.arguments)
        self.send(method, methods.QueueDeclareOk, op=self._begin(PUT, queue_key(name)))

    def _delete(self) -> None:
        name = self._queue()
        if name not in NEVER_DELETED:
            op = self._begin(DELETE, queue_key(name))
            self.send(methods.QueueDelete(queue=name), methods.QueueDeleteOk, op=op)

    def _purge(self) -> None:
        name = self._queue()
        if name != KEPT:
            op = self._begin(EMPTY, queue_key(name))
            self.send(methods.QueuePurge(queue=name), methods.QueuePurgeOk, op=op)

    def _unbind(self) -> None:
        if self.world.rng.random() < 0.3:
            super()._unbind()

    def _delete_exchange(self) -> None:
        if self.world.rng.random() < 0.3:
            super()._delete_exchange()
