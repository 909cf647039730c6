"""What publishers wait for while a queue cannot take their messages at once.

Guarantee: a publish that waits to be admitted is confirmed only when it has been, and its position in the log
is safe; wherever the queue's master is by then. What a queue took before it got another master is confirmed
if it was safe at that moment, and otherwise never.

A queue admits in the pass in which it is published to, so that its log's end is the position to wait for.
Only a mirrored queue may have to put that off: while another node is about to become its master, while there
are fewer in-sync mirrors than its policy asks for, and while it is being filled after a promotion.
"""

from typing import TYPE_CHECKING

from mirrormq.base import limits

if TYPE_CHECKING:
    from mirrormq.broker.confirm import Durable, Position
    from mirrormq.broker.queue import Queue
    from mirrormq.broker.queueport import QueuePort

NOT_YET = -1
ADMITTED = 1


class Admission:
    """Publishes that are to be admitted together, as confirms see them: a log whose position 1 is reached
    when they are safe.
    """

    def __init__(self) -> None:
        self._position: Position | None = None

    @property
    def position(self) -> "Position":
        """What a confirm waits for."""
        return (self, ADMITTED)

    @property
    def confirmable(self) -> int:
        """Are they safe?"""
        if self._position is None:
            return NOT_YET
        log, position = self._position
        return ADMITTED if log.confirmable >= position else NOT_YET

    @property
    def is_over(self) -> bool:
        """Will they never be, as far as anybody here can tell?"""
        return self._position is not None and self._position[0].is_over

    def done(self, log: "Durable", position: int) -> None:
        """They were admitted, or refused, or handed over: this is what to wait for now."""
        self._position = (log, position)


class Admissions:
    """The publishes to one queue that are not in its log yet."""

    __slots__ = ("_left", "_queue", "_successor", "_until", "_waiting")

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue
        self._waiting: Admission | None = None
        """What confirms wait for, if somebody asked."""
        self._until = 0
        """When they are refused; 0 if none waits."""
        self._successor: QueuePort | None = None
        """What stands for the queue since it has another master."""
        self._left: list[Position] = []
        """What was in the log when that happened."""

    @property
    def positions(self) -> "list[Position]":
        """What the confirm of everything published so far waits for; a deleted queue holds nobody up.

        The master may have changed in the pass of the publish, before anybody asked: some of it may be in
        the log here, which will not confirm it any more, the rest waits with the successor.
        """
        queue = self._queue
        if self._successor is not None:
            return [*self._left, *self._successor.positions]
        if queue.core.gone:
            return []
        aside = queue.host.partition.positions(queue)
        if not queue.core.pending:
            return [*aside, (queue.log, queue.log.end)]
        if self._waiting is None:
            self._waiting = Admission()
        return [*aside, self._waiting.position]

    def done(self) -> None:
        """Nothing waits any more."""
        self._until = 0
        if self._waiting is not None:
            self._waiting.done(self._queue.log, self._queue.log.end)
            self._waiting = None

    def wait(self) -> None:
        """Publishes wait for the mirrors; those that waited too long are refused."""
        queue = self._queue
        mono = queue.host.now.mono
        if not queue.core.pending:
            return
        aside = queue.host.partition.divert(queue)
        if aside is not None and self._waiting is not None:
            self._waiting.done(*aside)
            self._waiting = None
        if not queue.core.pending:
            self._until = 0
            return
        if not self._until:
            self._until = mono + limits.publish_timeout_us
        self._until = max(self._until, queue.host.partition.patient_since + limits.publish_timeout_us)
        if mono >= self._until:
            queue.core.refuse(queue.core.pending, False)
            queue.tell_refused()
            self.done()
        else:
            queue.wake_in(self._until - mono)

    def hand_over(self, successor: "QueuePort") -> None:
        """The queue has another master, and what waited waits there."""
        self._left, self._successor = [(self._queue.log, self._queue.log.end)], successor
        if self._waiting is not None:
            (position,) = successor.positions
            self._waiting.done(*position)
            self._waiting = None

    def stop(self) -> None:
        """The queue is gone: nobody waits for it."""
        if self._waiting is not None:
            self._waiting.done(self._queue.log, 0)
