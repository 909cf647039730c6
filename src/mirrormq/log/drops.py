"""What a restart drops of queues without mirrors: transient messages, of whose end no record tells.

Guarantee: `of` names all of it, so that a record can say it (docs/format/batch.md, EPOCH). Without that a
mirror that is given the log later, from its first record on, would take what is lost for messages.
"""

from collections.abc import Iterable

from mirrormq.kernel.ranges import RangeSet
from mirrormq.log.fold import Dropped, Fold, Spans


class Drops:
    """What logs knew to be gone before anything was dropped."""

    def __init__(self, logs: Iterable[Fold]) -> None:
        """Their records were read, and say so much."""
        self._before = {
            log.queue_id: (log.dead.copy(), {row: numbers.copy() for row, numbers in log.refused.items()})
            for log in logs
        }

    def of(self, log: Fold) -> Dropped:
        """What is gone since."""
        dead, refused = self._before[log.queue_id]
        numbers = [(row, _added(refused.get(row), now)) for row, now in log.refused.items()]
        return Dropped(_added(dead, log.dead), [(row, spans) for row, spans in numbers if spans])


def _added(before: RangeSet | None, after: RangeSet) -> Spans:
    """What a set has that it had not before."""
    found: Spans = []
    known = before.spans_list() if before is not None else []
    at = 0
    for first, last in after.spans_list():
        low = first
        while at < len(known) and known[at][0] <= last:
            if known[at][0] > low:
                found.append((low, known[at][0] - 1))
            low = known[at][1] + 1
            at += 1
        if low <= last:
            found.append((low, last))
    return found
