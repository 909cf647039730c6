"""Publishes of one home node to one queue, as the master takes them.

Guarantees
- Each is taken exactly once and in order: `taken` is the highest number so far, kept with the queue's log
  where the queue is durable; what is at or below it is dropped, a gap closes the link and is sent again.
- A number is reported as done when the message is durable (persistent ones in a durable queue) or in the
  queue (all others), and everything before it is done, too. What a restart finds in the log counts as durable
  when this process has flushed it.
- Refused ones are named with the report that covers them, and again whenever the stream is opened, until the
  home node says that it knows. The log keeps them: after a restart they are the numbers missing in it, and
  those of transient messages that the restart dropped.
- What the home node has given up is never waited for: it opens the stream behind it, and the log gets a note.
"""

from collections import deque
from typing import TYPE_CHECKING

from mirrormq.broker.queue import Queue
from mirrormq.kernel import forward
from mirrormq.kernel.crc32c import crc32c
from mirrormq.kernel.ranges import RangeSet
from mirrormq.kernel.records import PID_OF_HOMES, PID_OF_LETTERS
from mirrormq.node import peerframes
from mirrormq.node.peerframes import Publish

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
        self._refused = RangeSet()
        """Refused publishes of which the home node may not have heard; a durable queue's log has them."""
        self._is_persistent = False
        """Is something taken in this pass to be flushed?"""
        self._waiting: deque[tuple[int, int, int]] = deque()
        """(position in the log, number, time): done up to the number when the log is safe there, and not
        before that time.
        """
        self._is_held = False
        self._is_alarmed = False
        self._given_up = 0
        """What the home node has given up, and the log does not say yet."""
        log = queue.log.kept
        if log is not None:
            for row in [row for row in log.letters if self._is_outdated(row)]:
                log.forget_row(row)
            self.taken = log.letters.get(self._row, 0)
            self._refused = log.refused.setdefault(self._row, self._refused)
            if self.taken and queue.log.durable < log.end:
                # What a restart found may be in the page cache only, until this process has flushed it.
                self._waiting.append((log.end, self.taken, 0))
            else:
                self.done = self.taken

    @property
    def _row(self) -> int:
        """The name of this stream in the log."""
        return self.pid | PID_OF_LETTERS

    def _is_outdated(self, row: int) -> bool:
        """Is this the row of an earlier process of the same node?"""
        if not row & PID_OF_LETTERS:
            return False
        pid = row ^ PID_OF_LETTERS
        return pid != self.pid and pid >> _START_BITS == self.pid >> _START_BITS

    def open(self, base: int) -> None:
        """The home node starts again behind `base`: it knows what became of everything up to there."""
        log = self.queue.log
        if base > self.taken:
            self.taken = base
            self._given_up = base
            self._note_given_up()
        # What is behind `base` and not durable yet is still waited for.
        while self._waiting and (self._waiting[0][1] <= base or self._waiting[0][0] <= log.confirmable):
            self.done = max(self.done, self._waiting.popleft()[1])
        self.done = max(self.done, base)
        self._forget_refused(base)
        self._told = self.done
        refused = [at for first, last in self._refused.spans_list() for at in range(first, last + 1)]
        self._tell([at for at in refused if at <= self.done])
        self._new_refused = [at for at in refused if at > self.done]
        if self._is_held or self._is_alarmed:
            self._tell_held()

    def _note_given_up(self) -> None:
        """Write what the home node will not send any more, when the log takes it."""
        queue = self.queue
        if self._given_up and queue.log.is_open and not queue.is_filling and queue.damage is None:
            if queue.log.kept is not None:
                queue.log.kept.note_given_up(self._row, self._given_up, queue.host.now)
            self._given_up = 0

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

    def after_turn(self, limit: int) -> bool:
        """What was taken in this pass is in the queue, or refused; False if the queue has put that off."""
        if self.queue.is_ahead(limit):
            self.queue.park(self)
        if self.queue.core.pending:
            return False
        self._keep_row()
        log = self.queue.log
        position = self._waiting[-1][0] if self._waiting else 0
        if log.is_mirrored:
            position = log.end
        elif self._is_persistent and log.kept is not None:
            # What was refused is not in the log: nobody waits for more than the last persistent one there.
            position = log.kept.last_persistent
        pace = self.queue.pace_us(self.taken - self.done)
        now = self.queue.host.now.mono
        if position or pace:
            self._waiting.append((position, self.taken, now + pace if pace else 0))
            if pace:
                self.queue.host.wake_queue(self.queue, now + pace)
        else:
            self.done = self.taken
        self._is_persistent = False
        return True

    def _keep_row(self) -> None:
        log = self.queue.log.kept
        if log is not None:
            log.letters[self._row] = self.taken

    def refuse(self, number: int) -> None:
        """The queue refused this publish."""
        self._new_refused.append(number)
        self._refused.add(number, number)

    def _forget_refused(self, base: int) -> None:
        """The home node has heard what became of everything up to `base`."""
        spans = self._refused.spans_list() if self._refused else []
        if not spans or spans[0][0] > base:
            return
        self._refused = RangeSet((max(first, base + 1), last) for first, last in spans if last > base)
        if self.queue.log.kept is not None:
            self.queue.log.kept.refused[self._row] = self._refused

    def report(self) -> bool:
        """Tell the home node what is done by now; whether to look again in the next pass."""
        self._note_given_up()
        safe, now = self.queue.log.confirmable, self.queue.host.now.mono
        while self._waiting and self._waiting[0][0] <= safe and self._waiting[0][2] <= now:
            self.done = self._waiting.popleft()[1]
        if self.done > self._told:
            # Not before everything up to them is done: what the home node has not let go of is sent again
            # after a crash, and may then be taken.
            refused = [number for number in self._new_refused if number <= self.done]
            self._new_refused = self._new_refused[len(refused) :]
            self._told = self.done
            self._tell(refused)
        if self._given_up:
            return True
        if not self._waiting:
            return False
        if self._waiting[0][0] <= safe:
            return True  # only time is missing
        # Thousands may wait for thousands of mirrored queues at once: their logs tell when to look again.
        return not self.queue.log.when_moved(self.look_again)

    def look_again(self) -> None:
        """More of the log is safe, maybe."""
        if self.link.streams.get(self.queue.record.id) is self:
            self.link.report_later(self)

    def _tell(self, refused: list[int]) -> None:
        self.link.send(peerframes.report(self.queue.record.id, self.done, refused))

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
