"""This node's way to the queues that the cluster keeps for itself (`meta.system`).

Guarantees
- The leader of the metadata declares them once, as soon as the vhost `/` is there, and again should it have
  been deleted and made anew; a node whose settings turn both off neither declares nor publishes anything.
- One that is damaged is given up by its master and begins anew.
- Nothing piles up here: what a queue cannot take now is kept by whoever publishes, within its own bound, or
  left out (`may_publish`).
"""

from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.kernel.message import Message
from mirrormq.meta import records, system
from mirrormq.meta.commands import DeclareQueue, DeleteQueue
from mirrormq.meta.state import Outcome
from mirrormq.wire.properties import Properties, encode_properties

if TYPE_CHECKING:
    from mirrormq.broker.queueport import QueuePort
    from mirrormq.node.node import Node

_EXCHANGE = b"amq.rabbitmq.event"
_APP = "mirrormq"


class SystemQueue:
    """One of them, as this node publishes to it."""

    def __init__(self, node: "Node", name: str, *, is_on: bool) -> None:
        self._node = node
        self._name = name
        self.is_on = is_on
        self._is_asked = False
        self._number = 0

    def _queue(self) -> "QueuePort | None":
        vhost = self._node.vhosts.get(system.VHOST)
        return None if vhost is None else vhost.queues.get(self._name)

    @property
    def may_publish(self) -> bool:
        """Is it there, and does it take messages? While memory or disk run short nobody publishes."""
        queue = self._queue()
        if queue is None or not queue.is_available or queue.damage is not None or self._node.shortages():
            return False
        return queue.core.pending < limits.admission_waiting_max

    def publish(self, key: str, kind: str, content_type: str, body: bytes) -> None:
        """Add a message; `key` is its routing key."""
        queue = self._queue()
        if queue is None:
            return
        node = self._node
        self._number += 1
        start = node.membership.identity.start
        properties = Properties(
            content_type=content_type,
            delivery_mode=2,
            message_id=f"{node.node_name}-{start}-{self._number}",
            timestamp=node.now.wall // 1_000_000,
            type=kind,
            app_id=_APP,
        )
        queue.core.push(Message(_EXCHANGE, key.encode(), encode_properties(properties), body))

    def tick(self) -> None:
        """See that it exists, if this node decides that."""
        node = self._node
        identity = (system.VHOST, self._name)
        if not self.is_on or self._is_asked:
            return
        queue = self._queue()
        if queue is not None and queue.is_local and queue.damage is not None:
            # Nobody else may delete it, and what it holds is not worth keeping the rest away.
            self._is_asked = True
            node.propose(DeleteQueue(*identity, queue.record.id), self._declared, False)
            return
        if not node.membership.raft.is_leader:
            return
        if identity in node.meta.queues or system.VHOST not in node.vhosts:
            return
        record = records.Queue(system.VHOST, self._name)
        record = records.Queue(system.VHOST, self._name, node=node.place(record))
        self._is_asked = True
        node.propose(DeclareQueue(record, or_keep=True), self._declared, False)

    def _declared(self, _: Outcome) -> None:
        # Whatever came of it: the next tick looks again.
        self._is_asked = False
