"""Looking at the logs of all queues, a few per pass: which cursors hold for too long, and how much is dead.

Guarantees
- No more than `limits.survey_logs` logs are looked at in one step; as many as that are looked at all at once.
- A log that is gone by the time it is due is passed over. What was found of one may have changed when the
  survey ends: whoever acts on it looks again at what it takes.
"""

from mirrormq.base import limits
from mirrormq.base.staggered import StaggeredDict
from mirrormq.base.types import Now
from mirrormq.base.walk import KeyWalk
from mirrormq.log.durable import DurableLog


class Survey:
    """One look at everything at a time."""

    def __init__(self, logs: StaggeredDict[int, DurableLog]) -> None:
        self._logs = logs
        self._walk = KeyWalk(logs)
        self._now: Now | None = None
        self.dead_bytes = 0
        """Bytes of segments without anything live."""
        self.segmented: list[int] = []
        """Queues that have segments."""
        self._live = self._journaled = 0

    @property
    def is_under_way(self) -> bool:
        """Is there more to look at?"""
        return self._walk.is_under_way

    @property
    def is_mostly_dead(self) -> bool:
        """Is so little of the journal live that emptying it gives back more than it takes for a while?"""
        return 2 * self._live <= self._journaled

    def begin(self, now: Now | None = None) -> None:
        """Look at all logs; with a time also at their cursors. One look serves all who ask meanwhile."""
        if not self._walk.is_under_way:
            self._walk.begin()
            self.dead_bytes = self._live = self._journaled = 0
            self.segmented = []
        self._now = now or self._now

    def step(self, *, is_tight: bool) -> bool:
        """Look at some of them: was that the rest? `is_tight`: it matters how much of the journal is live."""
        before = self._walk.rounds
        for queue_id in self._walk.take(limits.survey_logs):
            log = self._logs.get(queue_id)
            if log is not None:
                self._look(log, is_tight)
        if self._walk.rounds == before:
            return False
        self._now = None
        return True

    def _look(self, log: DurableLog, is_tight: bool) -> None:
        cursors = log.cursors
        if self._now is not None and len(cursors) and log.damage is None and _is_master(log):
            cursors.check(self._now)
        segments = log.segments
        if segments.all:
            self.segmented.append(log.queue_id)
            if log.damage is None:
                self.dead_bytes += segments.dead_bytes(log.disposable, log.keep_from)
        if is_tight and log.end > segments.end:
            self._journaled += log.end - segments.end
            free_end = min(log.end, max(log.keep_from - 1, segments.end))
            self._live += log.end - free_end
            if free_end > segments.end:
                self._live += log.disposable.missing_count(segments.end + 1, free_end)


def _is_master(log: DurableLog) -> bool:
    return log.copy is None or log.copy.is_master
