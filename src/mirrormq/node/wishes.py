"""Requests to the master of a queue, which may be another one before they are answered.

Guarantees
- A request to a mirrored queue whose master goes away before it has answered is put to the next one, if there
  is one within `limits.failover_grace_us`. A new request waits `limits.failover_wait_us` for a master. Then,
  and at once if the queue is not mirrored, it fails.
- If this node becomes the master, the request is put to the queue here.
- One that registers something at the master waits while this node has to tell it that its lease had run out
  (switch.py): what is sent between that and the answer would be registered twice.
- Each is answered once. What a lost answer was about is done twice at most: all of them may be repeated, and
  what a lost basic.get took out is ready again at the new master.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.broker.queueport import Later
from mirrormq.node.peerframes import MOVED, Answer, Got, Other
from mirrormq.node.peerlink import Answered

if TYPE_CHECKING:
    from mirrormq.broker.queueport import QueuePort
    from mirrormq.node.remotequeue import RemoteQueue


T = TypeVar("T")


class Wish(NamedTuple):
    """A request and who waits for it."""

    make: Callable[[int], Other]
    answered: Answered
    here: "Callable[[QueuePort], None]"
    """Puts it to the queue here instead."""
    registers: bool = False
    """Does the master deliver something because of it?"""
    patience_us: int = limits.failover_wait_us
    """How long a new one waits for a master."""
    until: int = 0
    """When it is given up; 0 as long as it is under way."""


def is_lost(answer: Answer | Got | AmqpError) -> bool:
    """Did the link break, or was the one asked not the master?"""
    return isinstance(answer, AmqpError) or (isinstance(answer, Answer) and answer.code == MOVED)


class Wishes:
    """Those of this node's clients to one queue."""

    def __init__(self, queue: "RemoteQueue") -> None:
        self._queue = queue
        self._waiting: list[Wish] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, wish: Wish) -> None:
        """Ask the master, behind everything that came before in this pass."""
        queue = self._queue
        if queue.successor is not None:
            wish.here(queue.successor)  # asked again, because the answer was that of the master before
        elif self._may_send(wish):
            queue.switch.catch_up()
            self._send(wish)
        else:
            self._wait(wish, wish.patience_us)

    def _may_send(self, wish: Wish) -> bool:
        return self._queue.is_open and not (wish.registers and self._queue.is_stale)

    def _send(self, wish: Wish) -> None:
        self._queue.link.request(wish.make, lambda answer: self._on_answer(wish, answer))

    def _on_answer(self, wish: Wish, answer: Answer | Got | AmqpError) -> None:
        if is_lost(answer):
            self._wait(wish, limits.failover_grace_us)
        else:
            wish.answered(answer)

    def _wait(self, wish: Wish, time: int) -> None:
        queue = self._queue
        now = queue.host.now.mono
        if queue.successor is not None:
            wish.here(queue.successor)
        elif not queue.is_mirrored or queue.core.gone or (wish.until and wish.until <= now):
            wish.answered(queue.is_down())
        else:
            self._waiting.append(wish if wish.until else wish._replace(until=now + time))
            queue.link.active[queue] = None

    def go_on(self) -> None:
        """There is a master to ask, or this node is it."""
        waiting, self._waiting = self._waiting, []
        for wish in waiting:
            if self._queue.successor is not None:
                wish.here(self._queue.successor)
            elif self._may_send(wish):
                self._send(wish)
            else:
                self._waiting.append(wish)

    def divert(self, queue: "QueuePort") -> None:
        """Another queue on this node stands in for this one: it is asked what waits."""
        waiting, self._waiting = self._waiting, []
        for wish in waiting:
            wish.here(queue)

    def look(self, now: int) -> None:
        """Give up what has waited for too long; ask again what nobody else would."""
        if self._queue.is_open:
            self.go_on()
        if self._queue.host.partition.patient_since > now - limits.failover_grace_us:
            return
        over = [wish for wish in self._waiting if wish.until <= now]
        self._waiting = [wish for wish in self._waiting if wish.until > now]
        for wish in over:
            wish.answered(self._queue.is_down())

    def fail(self, error: AmqpError) -> None:
        """The queue is gone."""
        waiting, self._waiting = self._waiting, []
        for wish in waiting:
            wish.answered(error)


def pass_on(ask: Callable[[], T | Later[T]], later: Later[T]) -> None:
    """Give the answer of a queue on this node to whoever waits for it."""
    try:
        answer = ask()
    except AmqpError as error:
        later.answer(error)
        return
    if isinstance(answer, Later):
        answer.when(later.answer)
    else:
        later.answer(answer)
