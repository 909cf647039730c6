"""Publishes of one home node to one queue, as the master takes them.

Guarantees
- Each is taken exactly once and in order: `taken` is the highest number so far, kept with the queue's log
  where the queue is durable; what is at or below it is dropped, a gap closes the link and is sent again.
- A number is reported as done when the message is durable (persistent ones in a durable queue) or in the
  queue (all others), and everything before it is done, too. Refused ones are named in the same report.
"""

from collections import deque
from typing import TYPE_CHECKING

from mirrormq.broker.queue import Queue
from mirrormq.kernel import forward
from mirrormq.kernel.crc32c import crc32c
from mirrormq.kernel.records import PID_OF_HOMES, PID_OF_LETTERS
from mirrormq.log.durable import DurableLog
from mirrormq.node import peerframes
from mirrormq.node.peerframes import BadFrame, Post, Publish

if TYPE_CHECKING:
    from mirrormq.node.peerlink import PeerLink

_NAME_BITS = 22
_START_BITS = 40


def make_pid(node: str, start: bytes) -> int:
    """The id a process puts on its publishes: marked as one, a hash of the node's name, a random part."""
    name = crc32c(node.encode()) & ((1 << _NAME_BITS) - 1)
    return PID_OF_HOMES | name << _START_BITS | int.from_bytes(start[:5], "big")


class Stream:
    """What one process of a home node publishes to one queue."""

    def __init__(self, link: "PeerLink", queue: Queue) -> None:
        self.link = link
        self.queue = queue
        self.pid = link.pid
        self.taken = 0
        self.done = 0
        self._told = 0
        self._new_refused: list[int] = []
        self._refused: deque[int] = deque()
        """Refused publishes of which the home node may not have heard."""
        self._is_persistent = False
        """Is something taken in this pass to be flushed?"""
        self._waiting: deque[tuple[int, int]] = deque()
        """(position in the log, number): done up to the number when the log is durable there."""
        self._is_held = False
        self._is_alarmed = False
        log = queue.log
        if isinstance(log, DurableLog):
            for row in [row for row in log.letters if self._is_outdated(row)]:
                del log.letters[row]
            self.taken = self.done = log.letters.get(self.pid | PID_OF_LETTERS, 0)

    def _is_outdated(self, row: int) -> bool:
        """Is this the row of an earlier process of the same node?"""
        if not row & PID_OF_LETTERS:
            return False
        pid = row ^ PID_OF_LETTERS
        return pid != self.pid and pid >> _START_BITS == self.pid >> _START_BITS

    def open(self, base: int) -> None:
        """The home node starts again behind `base`: it knows what became of everything up to there."""
        if base > self.taken:
            self.taken = base
            self._keep_row()
        # What is behind `base` and not durable yet is still waited for.
        while self._waiting and self._waiting[0][1] <= base:
            self._waiting.popleft()
        self.done = max(self.done, base)
        self._forget_refused(base)
        self._new_refused.clear()
        self._told = self.done
        self.link.send(peerframes.report(self.queue.record.id, self.done, list(self._refused)))
        if self._is_held or self._is_alarmed:
            self._tell_held()

    def take(self, frame: Publish) -> None:
        """A block of publishes."""
        self._forget_refused(frame.base)
        self.taken, persistent = forward.take_publishes(
            self.queue.core,
            frame.data,
            frame.at,
            frame.first,
            frame.records,
            self.taken,
            self.pid,
            frame.is_resent,
        )
        self._is_persistent = self._is_persistent or persistent > 0

    def take_letter(self, frame: Post) -> None:
        """A dead letter of another node; the queue itself knows whether it has it."""
        if frame.first > self.taken + 1:
            raise BadFrame("publishes are missing")
        message = forward.read_message(frame.data, frame.at)
        if frame.first <= self.taken or self.queue.core.gone:
            return
        self.taken = frame.first
        if self.queue.outlives:
            source = _Source(frame.source)
            self.queue.receive(message, source, frame.number, is_resent=frame.is_resent)
        else:
            self.queue.core.push(message, 0, 0, frame.is_resent)
        self._is_persistent = True

    def after_turn(self, limit: int) -> None:
        """What was taken in this pass is in the queue, or refused."""
        self._keep_row()
        log = self.queue.log
        if self._is_persistent and isinstance(log, DurableLog):
            self._waiting.append((log.end, self.taken))
        elif self._waiting:
            self._waiting.append((self._waiting[-1][0], self.taken))
        else:
            self.done = self.taken
        self._is_persistent = False
        if self.queue.is_ahead(limit):
            self.queue.park(self)

    def _keep_row(self) -> None:
        log = self.queue.log
        if isinstance(log, DurableLog):
            log.letters[self.pid | PID_OF_LETTERS] = self.taken

    def refuse(self, number: int) -> None:
        """The queue refused this publish."""
        self._new_refused.append(number)
        self._refused.append(number)

    def _forget_refused(self, base: int) -> None:
        while self._refused and self._refused[0] <= base:
            self._refused.popleft()

    def report(self) -> bool:
        """Tell the home node what is done by now; False if nothing is left to be told later."""
        durable = self.queue.log.durable
        while self._waiting and self._waiting[0][0] <= durable:
            self.done = self._waiting.popleft()[1]
        if self.done > self._told or self._new_refused:
            refused, self._new_refused = self._new_refused, []
            self._told = self.done
            self.link.send(peerframes.report(self.queue.record.id, self.done, refused))
        return bool(self._waiting)

    # --- back-pressure: the queue parks this home node as it parks a connection ---

    def park(self, reason: str) -> None:  # noqa: ARG002
        """Publishers of the home node run ahead of consumers."""
        self._is_held = True
        self._tell_held()

    def unpark(self, reason: str) -> None:  # noqa: ARG002
        """They may go on."""
        self._is_held = False
        self._tell_held()

    def set_alarm(self, is_alarmed: bool) -> None:
        """The master runs short of memory or disk."""
        self._is_alarmed = is_alarmed
        self._tell_held()

    def _tell_held(self) -> None:
        queue_id = self.queue.record.id
        if self.link.streams.get(queue_id) is self:  # else the home node has started again
            is_held = self._is_held or self._is_alarmed
            self.link.send(peerframes.encode(peerframes.Hold(queue_id, is_held)))


class _Source:
    """The queue of another node in which a letter died. Its master hears through the report of the stream."""

    __slots__ = ("queue_id",)

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id

    def arrived(self, number: int) -> None:
        """The report follows when the log is durable."""
