"""Numbered dead letters from other queues, and committed rows of sinks, on their way into this queue.

Guarantees
- A sender hears that a letter has arrived when it is safe here, or when this queue is gone or has no room
  for it, and not before; what is not safe when the queue's master moves is offered to the next one, which
  knows by its number whether it has it.
- Rows of a sink are taken whatever the queue's length limit says about publishes: they were accepted when
  their batch was committed.
- What committed rows take from the queue leaves it, in one batch with their number, while a query consumes
  it. If its cursor was dropped before they came, nothing leaves: others may hold the messages by then.
"""

import struct
from collections import deque
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.broker import taking
from mirrormq.broker.queueport import QueuePort, Rows, Sender
from mirrormq.kernel import forward, records
from mirrormq.kernel.cores import REASON_ACK
from mirrormq.kernel.message import Message
from mirrormq.kernel.records import PID_OF_LETTERS
from mirrormq.kernel.rows import COPY, PUBLISH, TAKE

if TYPE_CHECKING:
    from mirrormq.broker.queue import Queue

_PAIR = struct.Struct("<QQ")
_REMOVED = struct.Struct("<QQQ")
_U64 = struct.Struct("<Q")

Letter = tuple[Message | Rows, Sender, int]


class Inbox:
    """The letters one queue is about to have."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue
        self._waiting: list[Letter] = []
        """Those that wait to be admitted."""
        self._rows: deque[tuple[Rows, Sender, bool]] = deque()
        """Rows that wait, and whether they may have been delivered before."""
        self._pushed: dict[int, int] = {}
        """The last number of each source that was not in the log when it came."""
        self._unsafe: deque[list[Letter]] = deque()
        """Those that are in the log, and not known to be durable."""

    def receive(self, message: Message | Rows, sender: Sender, number: int, *, is_resent: bool) -> None:
        """Take a letter, unless the log has it.

        A damaged queue takes nothing: its letters stay where they died until it is whole again, or gone.
        """
        log = self._queue.log.kept
        assert log is not None
        if number <= log.letters.get(sender.queue_id, 0):
            # It is in the log, but maybe not on disk yet: one sent again over a new link is no safer for it.
            self._secure([(message, sender, number)])
            return
        if isinstance(message, Rows):
            self._rows.append((message, sender, is_resent))
            self._queue.core.touch()
            return
        # One that is sent again over a new link may still wait to be admitted.
        is_new = number > self._pushed.get(sender.queue_id, 0)
        if is_new and self._queue.damage is None:
            self._pushed[sender.queue_id] = number
            self._queue.core.push(message, sender.queue_id | PID_OF_LETTERS, number, is_resent)
        self._waiting.append((message, sender, number))

    def admit_rows(self) -> None:
        """Write the rows that wait, some of them, and make them ready; nothing else waits in the queue."""
        queue = self._queue
        core, log = queue.core, queue.log.kept
        if core.pending:
            core.touch()  # another turn, when what was published before is in the log
            return
        if not queue.log.takes_publishes:
            return
        assert log is not None
        written: list[Letter] = []
        size = 0
        while self._rows and size < limits.sink_turn_bytes:
            rows, sender, is_resent = self._rows.popleft()
            source, number = sender.queue_id, rows.first + rows.records - 1
            if number > log.letters.get(source, 0):
                self._write(rows, source, is_resent=is_resent)
                log.letters[source] = number
            written.append((rows, sender, number))
            size += len(rows.data)
        self._secure(written)
        if self._rows:
            queue.wake_in(1)  # not in this pass: others are to be served, too

    def _write(self, rows: Rows, source: int, *, is_resent: bool) -> None:
        """Write a block of rows of which the log has none, or only the first ones."""
        queue, now = self._queue, self._queue.host.now
        core, log = queue.core, queue.log.kept
        assert log is not None
        # What was sent before and lost since, with an unsynchronised mirror for one, is not waited for.
        row, pid = max(log.letters.get(source, 0), rows.first - 1), source | PID_OF_LETTERS
        if rows.op == PUBLISH:
            forward.take_publishes(core, rows.data, 0, rows.first, rows.records, row, pid, is_resent)
            count = core.pending
            core.admit(count, queue.log.append(core, count, now), queue.log.last_wall)
        elif rows.op == COPY:
            high = log.origins.high if log.origins is not None else 0
            runs = forward.take_copies(core, rows.data, rows.first, rows.records, row, pid, high)
            if runs:
                core.admit(core.pending, log.append_copies(core, runs, now), log.last_wall)
            else:
                log.note_given_up(source, rows.first + rows.records - 1, now)
        elif rows.op == TAKE:
            noted = (records.PUBNOTE, 0, _PAIR.pack(source, rows.first + rows.records - 1))
            taking.take(queue, log, forward.origins(rows.data, rows.records), noted)
        else:
            self._remove(rows, source)

    def _remove(self, rows: Rows, source: int) -> None:
        """Remove copies of messages that are gone at their origin."""
        queue, now = self._queue, self._queue.host.now
        log = queue.log.kept
        assert log is not None
        spans = []
        if log.origins is not None and queue.vhost.mirror_of:
            spans = log.origins.find(forward.origins(rows.data, rows.records))
        others = [(records.PUBNOTE, 0, _PAIR.pack(source, rows.first + rows.records - 1))]
        if spans:
            removed = b"".join([_REMOVED.pack(first, last, REASON_ACK) for first, last in spans])
            others.append((records.REMOVE, 0, _U64.pack(now.wall) + removed))
            for first, last in spans:
                log.dead.add(first, last)
            assert log.origins is not None
            log.origins.tidy(log.dead)
        log.write_others(others, now, flush=True)

    @property
    def has_rows(self) -> bool:
        """Do rows wait?"""
        return bool(self._rows)

    def admitted(self) -> None:
        """The letters that waited are in the log now, if everything that came is."""
        if self._waiting and not self._queue.core.pending:
            log = self._queue.log.kept
            assert log is not None
            waiting, self._waiting = self._waiting, []
            for _, sender, number in waiting:
                log.letters[sender.queue_id] = max(number, log.letters.get(sender.queue_id, 0))
            self._secure(waiting)

    def _secure(self, letters: list[Letter]) -> None:
        log = self._queue.log.kept
        assert log is not None
        self._unsafe.append(letters)

        def durable() -> None:
            if letters in self._unsafe:
                self._unsafe.remove(letters)
                _tell(letters)

        log.when_durable(log.end, durable)

    def refuse(self, source: int, number: int) -> None:
        """There is no room for a letter: it is lost, and its sender goes on."""
        for at, (_, sender, waiting) in enumerate(self._waiting):
            if sender.queue_id == source and waiting == number:
                del self._waiting[at]
                sender.arrived(number)
                return

    def stop(self) -> None:
        """The queue is gone: nobody has to wait for it, nor does its log say any more what is durable."""
        unsafe, self._unsafe = self._unsafe, deque()
        waiting, self._waiting = self._waiting, []
        rows, self._rows = self._rows, deque()
        for letters in unsafe:
            _tell(letters)
        _tell(waiting)
        _tell([(one, sender, one.first + one.records - 1) for one, sender, _ in rows])

    def hand_over(self, successor: QueuePort) -> None:
        """The queue has another master: what is not safe goes there."""
        letters = [letter for batch in (*self._unsafe, self._waiting) for letter in batch]
        letters += [(one, sender, one.first + one.records - 1) for one, sender, _ in self._rows]
        self._unsafe.clear()
        self._rows.clear()
        self._waiting = []
        for message, sender, number in letters:
            successor.receive(message, sender, number, is_resent=True)


def _tell(letters: list[Letter]) -> None:
    for _, sender, number in letters:
        sender.arrived(number)
