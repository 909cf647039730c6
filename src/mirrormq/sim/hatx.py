"""A client of mirrored queues that publishes and acknowledges in transactions, and what a commit promises.

When a commit is answered its publishes are confirmed like any others (I8), and what it acknowledged has left
its queue on every in-sync member: what left a queue there is never delivered again (I5).
"""

from typing import TYPE_CHECKING, NamedTuple

from mirrormq.sim.clusterhistory import EMPTY, queue_key
from mirrormq.sim.hacheck import MirrorChecker
from mirrormq.sim.haclient import HaClient
from mirrormq.sim.hafacts import QueueFacts
from mirrormq.sim.hahistory import HaSent
from mirrormq.sim.model import Violation
from mirrormq.sim.session import Arrival
from mirrormq.wire import methods

if TYPE_CHECKING:
    from mirrormq.sim.clusternode import SimNode
    from mirrormq.sim.clusterworld import ClusterWorld
    from mirrormq.sim.haworld import HaWorld


class Ended(NamedTuple):
    """What is to become of a delivery with the next commit."""

    tag: int
    kind: str
    queue: str
    message: HaSent
    seen: int
    """Which of the message's deliveries from this queue it is."""
    at: int


class TxClient(HaClient):
    """One connection with one transactional channel."""

    mode = "tx"
    selected = methods.TxSelectOk

    def __init__(self, world: "ClusterWorld", home: "SimNode", conn: int) -> None:
        super().__init__(world, home, conn)
        self._seen: dict[int, tuple[int, int]] = {}
        """Which delivery of its message each is, and when it came."""
        self._ended: list[Ended] = []

    @property
    def is_waiting(self) -> bool:
        """Is it owed an answer? Nobody says a word about what it has not committed."""
        return self.pending is not None

    # --- what it hears ---

    def hear(self, arrival: Arrival) -> None:
        """Take one answer."""
        method, _ = arrival
        super().hear(arrival)
        if isinstance(method, methods.BasicDeliver | methods.BasicGetOk):
            message = self.held.get(method.delivery_tag)
            if message is not None:
                queue = self.origin[method.delivery_tag]
                self._seen[method.delivery_tag] = (message.seen[queue], self.world.now)
        elif isinstance(method, methods.TxCommitOk):
            self._committed()

    def _committed(self) -> None:
        self._ha.stats.transactions += 1
        for number in self._unconfirmed.values():
            self.world.history.confirm(number, self.world.now)
            self._ha.mirrors.confirmed(self._ha.ha_history.sent[number], self.home)
        self._unconfirmed.clear()
        ended, self._ended = self._ended, []
        check_commit(self._ha, [one for one in ended if one.kind == "ack"])

    # --- what it does ---

    def _publish(self) -> None:
        super()._publish()
        self._end_sometimes()

    def _settle(self) -> None:
        super()._settle()
        self._end_sometimes()

    def _end_sometimes(self) -> None:
        chance = self.world.rng.random()
        if chance < 0.4:
            self._commit()
        elif chance < 0.45:
            self._rollback()

    def settle(self, tag: int, kind: str, *, multiple: bool = False) -> None:
        """Say what becomes of deliveries with the next commit."""
        for each in [one for one in self.held if one == tag or (multiple and one < tag)]:
            ended = Ended(each, kind, self.origin.pop(each), self.held.pop(each), *self._seen.pop(each))
            self._ended.append(ended)
        if kind == "ack":
            self.send(methods.BasicAck(tag, multiple))
        else:
            self.send(methods.BasicNack(tag, multiple, kind == "requeue"))

    def _commit(self) -> None:
        for one in self._ended:
            self.mark(one.message, one.kind, one.queue)
        self.send(methods.TxCommit(), methods.TxCommitOk)

    def _rollback(self) -> None:
        for one in self._ended:
            self.held[one.tag], self.origin[one.tag] = one.message, one.queue
            self._seen[one.tag] = (one.seen, one.at)
        self._ended.clear()
        self._unconfirmed.clear()
        self.send(methods.TxRollback(), methods.TxRollbackOk)


def check_commit(world: "HaWorld", acked: list[Ended]) -> None:
    """What a commit has acknowledged, and the master of its queue has removed, is removed for good."""
    for one in acked:
        number = one.message.number
        facts = next(
            (
                facts
                for facts in world.mirrors.facts.values()
                if facts.name == one.queue and not facts.is_deleted
            ),
            None,
        )
        if facts is None or facts.is_excused or number in facts.removed or number not in facts.seqs:
            continue
        if _is_owed(world, facts, one) and _is_removed_at_master(world.mirrors, facts, number):
            raise Violation(
                f"I5: {one.queue}: message {number} was acknowledged in a commit that is answered, and has"
                " not left the queue on every member"
            )


def _is_owed(world: "HaWorld", facts: QueueFacts, one: Ended) -> bool:
    """Is it this acknowledgement, and no other cause, that has removed the message?"""
    message = one.message
    if message.is_excused or message.seen[one.queue] != one.seen:
        return False  # the client held it no more: it was given to somebody else
    if not facts.is_durable or world.policies.get(one.queue, {}).get("ha-replication") == "async":
        return False
    ops = world.ha_history.ops.get(queue_key(one.queue), ())
    is_purged = any(op.kind == EMPTY and op.end >= one.at for op in ops)
    return not is_purged and not world.is_taken_unasked(one.queue)


def _is_removed_at_master(checker: MirrorChecker, facts: QueueFacts, number: int) -> bool:
    seq = facts.seqs[number]
    return any(seq in log.log.dead for log in checker.masters_of(facts))
