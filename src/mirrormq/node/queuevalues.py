"""One column of all queues mastered here, without their rows: what a long list is sorted by.

Guarantee: a value is the one that the row of the queue would have at that moment; a column that is not known
here takes the row.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from mirrormq.broker.mirrorqueue import stored
from mirrormq.node import report_mirrors, report_rates
from mirrormq.node.report_rates import Look

if TYPE_CHECKING:
    from mirrormq.broker.queueport import QueuePort

Finder = Callable[["QueuePort"], Any]


class ValueSource(report_mirrors.MirrorSource, report_rates.RateSource, Protocol):
    """The node, as columns are read."""


_COUNTED: dict[str, Finder] = {
    "messages": lambda live: stored(live) + live.core.unacked,
    "messages_ready": stored,
    "messages_unacknowledged": lambda live: live.core.unacked,
    "message_bytes": lambda live: live.core.ready_bytes + live.core.unacked_bytes,
    "memory": lambda live: live.core.ready_bytes + live.core.unacked_bytes,
    "consumers": lambda live: len(live.consumers.members),
}


def finder(source: ValueSource, column: str, look: Look | None) -> Finder | None:
    """How to find the value of a column; None if it takes the row. `look`: when rates are of."""
    found = _COUNTED.get(column)
    if found is not None:
        return found
    if column == "state":
        return lambda live: report_mirrors.measured(source, live)["state"]
    rate = None if look is None else report_rates.queue_rate(column)
    if rate is None or look is None:
        return None
    return lambda live: rate(source, live.record.id, look)
