"""The time by which messages expire.

Guarantee: a wall clock that jumps ahead expires nothing for a minute. Somebody who set it wrongly can set it
back, and no message is lost that was not old. A clock that goes back only makes messages live longer.
"""

from collections.abc import Callable

from mirrormq.base import limits
from mirrormq.base.types import Now


class ClockWatch:
    """Compares the wall clock with the machine's own time."""

    def __init__(self, now: Now, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._drift = now.wall - now.mono
        self._held = 0
        """How far the wall clock jumped ahead lately."""
        self._hold_until = 0

    def wall(self, now: Now) -> int:
        """The wall time by which messages expire now."""
        # Not only at ticks: a queue may have its turn between the jump and the next one.
        if now.wall - now.mono - self._drift > limits.clock_jump_us:
            self.look(now)
        return now.wall - self._held

    def look(self, now: Now) -> bool:
        """Time passes. True if messages that were held may expire now."""
        drift = now.wall - now.mono
        gained = drift - self._drift
        self._drift = drift
        released = self._held > 0 and now.mono >= self._hold_until
        if released:
            self._held = 0
        if gained > limits.clock_jump_us:
            self._held += gained
            self._hold_until = now.mono + limits.clock_jump_hold_us
            self._warn(
                f"the wall clock jumped ahead by {gained / 1e6:.1f} s: messages expire by the old time for "
                f"another {limits.clock_jump_hold_us // 1_000_000} s; set the clock back if it is wrong"
            )
        elif gained < 0:
            self._held = max(self._held + gained, 0)
        return released
