"""Queues whose master this node has just become, and whom they wait for.

Guarantee: a queue is let go (`Inherited.release`) when every other live node has said that it has applied the
metadata of the promotion and registered what its clients hold, or is known to be dead; and after
`limits.failover_grace_us` in any case, so that one node out of reach does not stop a queue for ever. What
that one holds is then given out again, marked as redelivered, and its acknowledgements come too late.

One frame per node asks, and one answers, for all queues of a pass (peerframes.Tell, Moved).
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.broker import inherited
from mirrormq.broker.queue import Queue
from mirrormq.meta.views import FIRST_EPOCH
from mirrormq.node import peerframes
from mirrormq.node.peerlink import PeerLink

if TYPE_CHECKING:
    from mirrormq.node.switch import Switch


class Promotions:
    """All of them on this node."""

    def __init__(self, switch: "Switch") -> None:
        self._switch = switch
        self._waiting: OrderedDict[Queue, tuple[int, int]] = OrderedDict()
        """Metadata index and time of the promotion: neither goes back from one to the next."""
        self.needs_pass = False
        """Were so many looked at that the next pass should go on?"""

    def begin(self, queue: Queue, fill: Callable[[], None], *, is_plain: bool) -> None:
        """This node is the queue's master from this command of the metadata on; `fill` makes ready what its
        log holds.
        """
        promotion = inherited.inherit(queue) if inherited.since_of(queue) > FIRST_EPOCH else None
        if promotion is None:
            fill()
            return
        node = self._switch.node
        self._waiting[queue] = (node.meta_index, node.now.mono)
        promotion.fill(fill, is_plain=is_plain)

    def look(self) -> None:
        """Let those go for which everybody has spoken."""
        self.needs_pass = False
        if not self._waiting:
            return
        self._ask()
        spoken = self._spoken()
        late = self._switch.node.now.mono - limits.failover_grace_us
        for _ in range(min(len(self._waiting), limits.mirror_slice_queues)):
            queue, (index, at) = next(iter(self._waiting.items()))
            if index > spoken and at > late and not queue.core.gone:
                return
            del self._waiting[queue]
            if not queue.core.gone:
                self._release(queue, is_late=index > spoken)
        self.needs_pass = bool(self._waiting)

    def _release(self, queue: Queue, *, is_late: bool) -> None:
        if is_late:
            text = f"{queue.text} has waited long enough for what other nodes' clients hold of it"
            self._switch.node.note("warning", text, event="queue.home_missing")
        assert queue.inherited is not None
        queue.inherited.release()

    def _ask(self) -> None:
        """Ask everybody who was not asked since the last promotion, or over an earlier link."""
        latest = next(reversed(self._waiting.values()))[0]
        for link in self._others():
            if link.is_open and max(link.asked, link.spoken) < latest:
                link.asked = latest
                link.send(peerframes.encode(peerframes.Tell()))

    def _spoken(self) -> int:
        """Up to which metadata index has everybody spoken who lives?"""
        return min((link.spoken for link in self._others()), default=self._switch.node.meta_index)

    def _others(self) -> list[PeerLink]:
        switch = self._switch
        return [
            switch.link(record.name)
            for record in switch.node.state.nodes.values()
            if record.is_live and record.name != switch.node.node_name
        ]
