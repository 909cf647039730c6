"""Virtual time for a world of many parts: what happens next, what has happened, and a fingerprint of it.

Guarantee: things happen in the order of their times, those of one moment in the order they were asked for.
"""

import hashlib
import heapq
from collections import deque
from collections.abc import Callable

from mirrormq.sim.model import Violation

SECOND = 1_000_000


class Timeline:
    """The true time of a world (µs), which no clock in it shows."""

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        self.trace: deque[str] = deque(maxlen=400)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """A fingerprint of everything that happened."""
        return self._digest.hexdigest()

    def say(self, text: str) -> None:
        """Remember what happened."""
        line = f"{self.now / SECOND:10.6f} {text}"
        self.trace.append(line)
        self._digest.update(line.encode())

    def whisper(self, data: bytes) -> None:
        """What is only part of the fingerprint."""
        self._digest.update(data)

    def at(self, when: int, do: Callable[[], None]) -> None:
        """Have something happen."""
        assert when >= self.now, (when, self.now)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, do))

    def after(self, delay: int, do: Callable[[], None]) -> None:
        """Have something happen later."""
        self.at(self.now + delay, do)

    def every(self, period: int, do: Callable[[], None]) -> None:
        """Do something again and again."""

        def again() -> None:
            do()
            self.after(period, again)

        self.after(period, again)

    def run_for(self, duration: int) -> None:
        """Let time pass."""
        end = self.now + duration
        while self._heap and self._heap[0][0] <= end:
            self._step()
        self.now = end

    def run_until(self, is_so: Callable[[], bool], duration: int, what: str) -> None:
        """Let time pass until something is so; if it takes too long there was no progress."""
        end = self.now + duration
        looked = -1
        while True:
            # Looking at everything after each event would cost more than the events.
            if self.now >= looked + 1_000:
                looked = self.now
                if is_so():
                    return
            if not self._heap or self._heap[0][0] > end:
                raise Violation(f"no progress: {what}")
            self._step()

    def _step(self) -> None:
        self.now, _, do = heapq.heappop(self._heap)
        self.events += 1
        do()
