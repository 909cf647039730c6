"""How fast the consumers of a queue are, and how long confirms are held so that publishers stay with them.

Guarantees
- A confirm is held for `limits.pace_us_max` at most, and only while consumers take thousands of messages per
  second and a backlog is there: a burst is taken at once, and a queue without such consumers confirms at full
  speed.
- It is held for no longer than consumers need for some times what its publisher has on the way: whoever waits
  for each confirm is not slowed down by the backlog of others.
"""

from mirrormq.base import limits
from mirrormq.kernel.cores import QueueCore


class Pace:
    """Measures one queue."""

    __slots__ = ("_at", "_core", "_rate", "_taken", "turned_at")

    def __init__(self, core: QueueCore, mono: int) -> None:
        self._core = core
        self._rate = 0
        self._at = mono
        self._taken = 0
        self.turned_at = mono
        """When the queue had its last turn: nothing about it has changed since."""

    def measure(self, mono: int) -> None:
        """How many messages per second consumers took lately."""
        self.turned_at = mono
        elapsed = mono - self._at
        if elapsed >= limits.pace_window_us:
            taken = self._core.delivered + self._core.delivered_no_ack
            rate = (taken - self._taken) * 1_000_000 // elapsed
            # Not at once: consumers that pause for some tenths of a second would else be overrun meanwhile.
            self._rate = max(rate, self._rate * 3 // 4)
            self._at, self._taken = mono, taken

    def hold_us(self, unconfirmed: int) -> int:
        """How long to hold the confirm of a publish, of whose publisher so many are not confirmed."""
        backlog = self._core.ready - limits.pace_messages
        if backlog <= 0 or self._rate < limits.pace_rate_min:
            return 0
        share = min(backlog, unconfirmed * limits.pace_publishers)
        return min(share * 1_000_000 // self._rate, limits.pace_us_max)
