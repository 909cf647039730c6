"""Messages that leave a queue by their seqs, while a query consumes it.

Guarantees
- They leave as if they were acknowledged, in one batch with whatever says why; those around them stay where
  they are, in order.
- What was dead before, or is dying, is left alone: a seq that is named twice leaves once.

A queue that a query consumes has no consumers, nothing unacknowledged, nothing that came back and is counted,
and no priorities (node/bulkcursors.py): what is ready is what is live in its log.
"""

import struct
from typing import TYPE_CHECKING

from mirrormq.kernel import records
from mirrormq.kernel.cores import REASON_ACK
from mirrormq.log.durable import DurableLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mirrormq.broker.queue import Queue

_REMOVED = struct.Struct("<QQQ")
_U64 = struct.Struct("<Q")


def take(
    queue: "Queue", log: DurableLog, spans: "Sequence[tuple[int, int]]", noted: tuple[int, int, bytes]
) -> None:
    """Remove what is live of these spans; `noted` is written in any case."""
    now = queue.host.now
    found = log.live_spans(spans) if log.cursors.consuming is not None else []
    others = [noted]
    if found:
        removed = b"".join([_REMOVED.pack(first, last, REASON_ACK) for first, last in found])
        others.append((records.REMOVE, 0, _U64.pack(now.wall) + removed))
        for first, last in found:
            log.dead.add(first, last)
    log.write_others(others, now, flush=True)
    if found:
        ready_again(queue, log)


def ready_again(queue: "Queue", log: DurableLog) -> None:
    """Ready is what is left: it lies in the log, to be read back when it is wanted."""
    core = queue.core
    ready, size = core.ready, core.ready_bytes
    core.purge()
    dying = sum(seq not in log.dead for seq in log.dying)
    left = log.dead.missing_count(1, log.end) - dying if log.end else 0
    if left > 0:
        first = log.dead.first_missing(1)
        core.restore_run(first, log.end, left, size * left // max(ready, left))
    core.touch()
