"""Discards what expired behind a living head.

Guarantee: it is gone `limits.sweep_pause_us` after its time at the latest, as far as it is in memory; a pass
looks at `limits.sweep_entries` entries at most, however long the queue is.
"""

from typing import TYPE_CHECKING

from mirrormq.base import limits

if TYPE_CHECKING:
    from mirrormq.broker.queue import Queue


class Sweep:
    """The sweeping of one queue."""

    __slots__ = ("_not_before", "_queue", "position")

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue
        self.position = 0
        """Where the next pass goes on; 0 if it would begin anew."""
        self._not_before = 0

    def go_on(self, wall: int) -> None:
        """Sweep some of it, if it is time."""
        core, now = self._queue.core, self._queue.host.now.mono
        if self.position == 0:
            wait = max(core.sweep_at - wall, self._not_before - now)
            if wait > 0:
                self._queue.wake_in(wait)
                return
        self._not_before = now + limits.sweep_pause_us
        self.position = core.sweep(wall, self.position, limits.sweep_entries)
        if self.position:
            core.touch()
        elif core.sweep_at:
            self.go_on(wall)
