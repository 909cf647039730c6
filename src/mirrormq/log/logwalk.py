"""Going through the logs of all queues for the recycler, some per pass.

Guarantees
- Every log that is there when a walk begins, and still is when its turn comes, is visited once. A log that
  took the place of another with the same id meanwhile is visited in its stead; one that is new is not.
- No step visits more than `limits.checkpoint_logs` logs, nor goes on when they gave
  `limits.checkpoint_slice_bytes`. As few logs as that are visited when the walk begins.
- What follows a walk is called once, when all were visited, with no walk under way.
"""

from collections.abc import Callable, Iterator

from mirrormq.base import limits
from mirrormq.log.durable import DurableLog


class LogWalk:
    """One walk at a time."""

    def __init__(self, logs: dict[int, DurableLog]) -> None:
        self._logs = logs
        self._left: Iterator[int] | None = None
        self._visit: Callable[[DurableLog], int] = _nothing
        self._then: Callable[[], None] | None = None
        self.steps = 0
        """How many there were so far, of all walks."""

    @property
    def is_under_way(self) -> bool:
        """Are there more to visit?"""
        return self._left is not None

    def begin(self, visit: Callable[[DurableLog], int], then: Callable[[], None]) -> None:
        """Visit all logs, then call `then`; a visit returns how many bytes came of it."""
        assert self._left is None, "one walk at a time"
        self._left, self._visit, self._then = iter(list(self._logs)), visit, then
        if len(self._logs) <= limits.checkpoint_logs:
            self.step()  # else in the passes that follow: whoever asked has done enough for one

    def step(self) -> None:
        """Visit some of them."""
        if self._left is None:
            return
        self.steps += 1
        size = 0
        for visited, queue_id in enumerate(self._left, 1):
            log = self._logs.get(queue_id)
            if log is not None:
                size += self._visit(log)
            if visited >= limits.checkpoint_logs or size >= limits.checkpoint_slice_bytes:
                return
        then, self._left, self._then, self._visit = self._then, None, None, _nothing
        assert then is not None
        then()


def _nothing(log: DurableLog) -> int:  # noqa: ARG001
    return 0
