"""Publisher confirms of one channel: never per message, always in order.

Guarantee: basic.ack for publish number n is sent only when every queue that took one of the messages 1..n
has made it durable. A pass leaves one barrier (highest publish number, positions in the logs it touched);
barriers are released from the front, and all that are released together are answered by one cumulative
basic.ack.

A log whose node has lost the queue to another one confirms nothing any more. What it took and could not
confirm is answered with basic.nack: it may or may not be in the queue, and its publisher may send it again.

A barrier may also be held for some milliseconds although everything is durable: publishers that wait for
confirms are paced that way when they run ahead of busy consumers (`Queue.pace_us`).
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from mirrormq.kernel.cores import ChannelCore
from mirrormq.kernel.tally import CHANNEL_COUNTS


class Durable(Protocol):
    """A log, as far as a barrier asks it."""

    @property
    def confirmable(self) -> int:
        """Every entry up to here is as safe as it was promised to be."""
        ...

    @property
    def is_over(self) -> bool:
        """Is nothing more going to be confirmable? Another node is the master now."""
        ...


Position = tuple[Durable, int]

_ACK = bytes.fromhex("003c0050")
_NACK = bytes.fromhex("003c0078")
CONFIRM = CHANNEL_COUNTS.index("confirm")
_SINGLE = b"\x00"
_MULTIPLE = b"\x01"


class Barrier:
    """Publishes up to a number, what they wait for, and the time before which they are not confirmed."""

    __slots__ = ("_positions", "is_missing", "not_before", "publish_no")

    def __init__(self, publish_no: int, positions: list[Position], not_before: int = 0) -> None:
        self.publish_no = publish_no
        self.not_before = not_before
        self.is_missing = False
        """Is a log over that had not come to its position?"""
        self._positions = positions

    def is_released(self) -> bool:
        """Has every log come to its position, or is it over?

        A position that was reached once is reached for good, so each is looked at until then and no longer:
        thousands of queues may stand in one barrier, and passes are many.
        """
        positions = self._positions
        while positions:
            log, position = positions[-1]
            if log.confirmable < position:
                if not log.is_over:
                    return False
                self.is_missing = True
            positions.pop()
        return True

    def give_up(self, is_stuck: Callable[[Durable], bool]) -> None:
        """Wait no longer for logs of which nobody knows when they come to their positions."""
        left = []
        for log, position in self._positions:
            if log.confirmable < position and is_stuck(log):
                self.is_missing = True
            else:
                left.append((log, position))
        self._positions = left


class ConfirmTracker:
    """Barriers of one channel in confirm mode."""

    def __init__(self, core: ChannelCore) -> None:
        self._core = core
        self._barriers: deque[Barrier] = deque()
        self._answered = 0
        self._refused: set[int] = set()

    @property
    def unconfirmed(self) -> int:
        """Publishes not answered yet."""
        return self._core.publish_no - self._answered

    @property
    def waiting(self) -> bool:
        """Is some barrier not released yet?"""
        return bool(self._barriers)

    @property
    def not_before(self) -> int:
        """When the first barrier may be released (mono µs), 0 if only its logs hold it."""
        return self._barriers[0].not_before if self._barriers else 0

    def barrier(self, publish_no: int, positions: list[Position], not_before: int = 0) -> None:
        """All publishes up to this number are done when these logs are durable up to these positions."""
        self._barriers.append(Barrier(publish_no, positions, not_before))

    def nack(self, publish_no: int) -> None:
        """A queue refused this publish; it is answered in its place, once."""
        if publish_no > self._answered:
            self._refused.add(publish_no)

    def give_up(self, is_stuck: Callable[[Durable], bool]) -> None:
        """Publishes that wait for such logs are refused: they may or may not be in their queues one day."""
        for barrier in self._barriers:
            barrier.give_up(is_stuck)

    def advance(self, now_mono: int) -> None:
        """Answer everything whose barrier is released."""
        released = 0
        while self._barriers and self._barriers[0].not_before <= now_mono:
            if not self._barriers[0].is_released():
                break
            barrier = self._barriers.popleft()
            if barrier.is_missing:
                self._refused.update(range(max(released, self._answered) + 1, barrier.publish_no + 1))
            released = barrier.publish_no
        if released > self._answered:
            self._answer(released)

    def _answer(self, upto: int) -> None:
        """Refusals one by one, everything between and behind them by as few cumulative acks as possible.

        A cumulative ack leaves out what was answered before, so the nack goes first.
        """
        refused = {number for number in self._refused if number <= upto}
        self._refused -= refused
        for number in sorted(refused):
            self._write(_NACK, number, _SINGLE)
        first, self._answered = self._answered + 1, upto
        while upto >= first and upto in refused:
            upto -= 1
        self._core.tally.add(CONFIRM, self._answered + 1 - first - len(refused))
        if upto >= first:
            self._write(_ACK, upto, _SINGLE if first == upto else _MULTIPLE)

    def _write(self, method: bytes, number: int, flags: bytes) -> None:
        self._core.out.write_method(self._core.number, method + number.to_bytes(8, "big") + flags)
