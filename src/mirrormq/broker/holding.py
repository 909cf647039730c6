"""Holds the publishers of a queue who run ahead of its consumers, or of its mirrors.

Guarantee: a publisher is held only while that may change by itself: while a consumer would take more, while
mirrors are behind, while a cursor holds more than it may and publishers are to wait for its reader, or while
the queue puts off taking what was sent. It is looked at again after a while in
any case, for a consumer that froze tells nobody. Without a consumer that takes more, only memory counts.
"""

from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.broker.queueport import Parkable

if TYPE_CHECKING:
    from mirrormq.broker.queue import Queue


class Holding:
    """The held publishers of one queue: connections of this node, and other nodes on behalf of theirs."""

    __slots__ = ("_queue", "parked")

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue
        self.parked: list[Parkable] = []

    def is_ahead(self, limit: int) -> bool:
        """Do publishers run ahead of consumers that would take more, or of mirrors?"""
        queue = self._queue
        if queue.log.is_behind or queue.core.pending > limits.admission_waiting_max:
            return True
        if queue.host.partition.is_over(queue):
            return True  # more is kept for it than may be, until this node is not cut off any more
        if queue.log.kept is not None and queue.log.kept.cursors.is_over:
            return True  # its reader has to advance, or an operator to drop the cursor
        if queue.core.ready_bytes <= limit:
            return False
        return any(
            member.active and member.core.may_take() and member.is_reading()
            for member in queue.consumers.members
        )

    def park(self, publisher: Parkable) -> None:
        """Hold one."""
        if publisher not in self.parked:
            self.parked.append(publisher)
            publisher.park("ahead")
            self._queue.wake_in(limits.output_stall_us)

    def look(self) -> None:
        """Let them go on if the others have caught up."""
        if self.is_ahead(self._queue.host.settings.publish_ahead_bytes // 2):
            self._queue.wake_in(limits.output_stall_us)
        else:
            self.release()

    def release(self) -> None:
        """Let all of them go on."""
        parked, self.parked = self.parked, []
        for publisher in parked:
            publisher.unpark("ahead")
