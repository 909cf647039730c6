"""How much of their messages queues keep in memory.

Guarantee: the ready messages of all durable queues together stay near the budget, however many queues there
are. While there is room a queue is bound by its own limit only; above the budget each has its share of it.
"""

from collections.abc import Iterable, Sized

from mirrormq.base import limits
from mirrormq.broker.queueport import QueuePort
from mirrormq.kernel.cores import Worklist


class Budget:
    """The memory of all queues of a node."""

    def __init__(self, work: Worklist, logs: Sized, memory_limit: int) -> None:
        """`logs`: those of the durable queues; `memory_limit`: of the process, 0 = none."""
        self._work = work
        self._logs = logs
        half = memory_limit // 2
        self._bytes = min(limits.node_memory_bytes, half) if half else limits.node_memory_bytes

    def share(self) -> int:
        """Bytes of ready messages a durable queue may keep in memory now."""
        if self._work.resident <= self._bytes:
            return limits.queue_memory_bytes
        return max(self._bytes // max(len(self._logs), 1), limits.share_memory_bytes_min)

    def look(self, queues: Iterable[QueuePort]) -> None:
        """Too much lies in memory: queues over their share get a turn, in which they spill."""
        if self._work.resident <= self._bytes:
            return
        share = self.share()
        for queue in queues:
            if queue.core.durable and queue.core.resident > share:
                queue.core.touch()
