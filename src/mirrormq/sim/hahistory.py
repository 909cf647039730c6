"""What clients of mirrored queues were told: every message from its publish to the last word about it.

A confirmed message has to be settled by some client in the end, in its queue or as a dead letter; it may only
be missing where a purge, a deletion, or a loss that the run has caused explains it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from mirrormq.broker.salvaged import queue_name
from mirrormq.sim.clusterhistory import DELETE, NEVER, PUT, History, Sent, queue_key
from mirrormq.sim.model import Violation, number_of
from mirrormq.wire.properties import Properties, encode_properties

DYING, LETTERS = "dying", "letters"
"""The queue whose rejected messages become letters in the other one."""


@dataclass(slots=True, eq=False)
class HaSent(Sent):
    """One publish to a queue that may be mirrored."""

    priority: int = 0
    is_acked: bool = False
    """Some client has acknowledged it, so it may be gone."""
    is_rejected: bool = False
    is_excused: bool = False
    """The run has destroyed all its copies, or a loss was allowed: nothing is promised any more."""
    is_salvageable: bool = False
    """The loss was a promotion, and every copy that it passed over comes back in the end."""
    seen: dict[str, int] = field(default_factory=dict)
    """Deliveries by queue."""
    marked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By queue: when, and to whom, the first delivery came that was heard of, if that was a repetition."""
    branch: str = ""
    """The node whose branch confirmed it."""
    is_outlived: bool = False
    """The queue it was routed to is deleted, of which its home node may not have heard by then."""

    @property
    def properties(self) -> bytes:
        """Raw properties."""
        return encode_properties(
            Properties(
                delivery_mode=2 if self.is_persistent else None,
                priority=self.priority or None,
                message_id=str(self.number),
            )
        )


class HaHistory(History):
    """Everything clients did and heard."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[int, HaSent] = {}  # type: ignore[assignment]
        self.doubled: set[str] = set()
        """Queues whose master lost them again before it could tell what it had: two copies may be salvaged
        for one another.
        """
        self.went_unheard: Callable[[HaSent], bool] = lambda _: False
        """Of a queue without mirrors: may it have left for a client that acknowledges nothing and is gone?"""
        self.now: Callable[[], int] = lambda: 0
        """The time of the world."""
        self._firsts: dict[tuple[int, str, int, int], int] = {}
        """Number of the last first delivery by publisher, queue, priority and receiver."""
        self.branched: set[str] = set()
        """Queues of which there were branches: the order between these and the queue is not kept."""

    def deliver(self, queue: str, receiver: int, body: bytes, *, is_marked: bool) -> HaSent:
        """A client got a message."""
        number = number_of(body)
        message = self.sent.get(number) if number is not None else None
        if message is None or message.body != body:
            raise Violation(f"{queue}: a message nobody sent: {body[:40]!r}")
        self.deliveries += 1
        message.deliveries += 1
        is_letter = queue == LETTERS and message.queue == DYING
        is_salvaged = queue == queue_name(message.queue) and message.is_excused
        if is_salvaged and message.seen.get(queue) and not is_marked and message.queue not in self.doubled:
            raise Violation(f"I15: {queue}: message {number} was salvaged twice")
        if message.queue != queue and not (is_letter and message.is_rejected) and not is_salvaged:
            raise Violation(f"{queue}: message {number} was sent to {message.queue}")
        if message.is_returned:
            raise Violation(f"{queue}: message {number} was returned, and is delivered")
        before = message.seen.get(queue, 0)
        message.seen[queue] = before + 1
        if is_marked and not before:
            message.marked[queue] = (self.now(), receiver)
        if is_marked or message.is_excused:
            return message
        if before and not self._is_overtaken(message.marked.pop(queue, None), receiver):
            raise Violation(f"I7: {queue}: message {number} is delivered as new after {before} deliveries")
        lane = (message.publisher, queue, message.priority, receiver)
        if not is_letter and queue not in self.branched:
            if message.number < self._firsts.get(lane, 0):
                raise Violation(f"I6: {queue}: message {number} was delivered after {self._firsts[lane]}")
            self._firsts[lane] = message.number
        return message

    def _is_overtaken(self, marked: tuple[int, int] | None, receiver: int) -> bool:
        """What one pass sends to two clients arrives in no order: the repetition may come first."""
        return marked is not None and marked[0] == self.now() and marked[1] != receiver

    def excuse(self, queue: str, *, transient_only: bool = False, is_salvaged: bool = False) -> int:
        """Nothing is promised any more about what was sent to a queue so far; returns how many that were.

        `is_salvaged`: but that what was persistent is found in the end, there or in the salvage queue.
        """
        found = [
            message
            for message in self.sent.values()
            if (queue == message.queue or (queue == LETTERS and message.is_rejected))
            and not (transient_only and message.is_persistent)
            and not message.is_excused
        ]
        for message in found:
            message.is_excused = True
            message.is_salvageable = is_salvaged and message.is_persistent
        return len(found)

    def lose_branches(self, node: str, merged: set[int], *, transient_only: bool = False) -> None:
        """What only the branches of a node had is gone, or may be."""
        for message in self.sent.values():
            is_here = message.branch == node and message.number not in merged
            if is_here and not (transient_only and message.is_persistent):
                message.is_excused = True

    def excuse_letters(self) -> None:
        """Nothing is promised about letters of transient messages that are on their way."""
        for message in self.sent.values():
            if message.is_rejected and not message.is_persistent:
                message.is_excused = True

    def check_drained(self, message: Sent, now: int) -> None:
        """What was in a queue when that was deleted does not come back; what was salvaged has left it."""
        assert isinstance(message, HaSent)
        if message.queue not in self.branched and not message.seen.get(queue_name(message.queue)):
            super().check_drained(message, now)

    def forsake(self, queue: str) -> None:
        """A copy that was passed over may have been destroyed: what was to be salvaged may be lost."""
        for message in self.sent.values():
            if message.queue == queue:
                message.is_salvageable = False

    def queue_died(self, name: str, now: int) -> None:
        """A queue that does not outlive its nodes is gone with them."""
        self.begin(DELETE, queue_key(name), now).end = now

    def may_be_gone(self, message: HaSent, queue: str) -> bool:
        """Could a purge or a deletion have taken it?"""
        ops = [op for op in self.ops.get(queue_key(queue), ()) if op.kind != PUT]
        return any(op.end >= message.at for op in ops) or (queue == message.queue and message.is_outlived)

    def check_messages(self) -> int:
        """Everything that had to arrive was settled; returns how many that were."""
        owed = 0
        for message in self.sent.values():
            if message.confirmed_at == NEVER or message.is_returned:
                continue
            if message.is_excused and not message.is_salvageable:
                continue
            if self.may_be_gone(message, message.queue):
                continue
            if message.is_rejected and self.may_be_gone(message, LETTERS):
                continue
            owed += 1
            is_settled = message.is_acked or (message.is_rejected and message.queue != DYING)
            if not is_settled and not self.went_unheard(message):
                rule = "I15" if message.is_excused else "I16" if message.branch else "I3"
                raise Violation(
                    f"{rule}: {message.queue}: message {message.number} was confirmed and is lost,"
                    f" {'persistent' if message.is_persistent else 'transient'}, seen {message.seen}"
                )
        return owed
