"""A node in maintenance: it serves no clients and gives all its masters away, until it is brought back.

Guarantees
- Whether a node is in maintenance stands in the metadata: it holds over restarts, every node knows it, and
  none places a master there.
- A queue goes to a copy that is in sync, or is copied first; nothing is lost and no queue has fewer copies in
  sync than before. What nobody can take stays here and is counted, and is tried again.
- It is a state and no procedure: a queue that comes here later, because another node died, is given away too.

Who acts: the node itself. Queues that are being moved count as moving until their view says otherwise.
"""

from typing import TYPE_CHECKING, Any

from mirrormq.base import limits
from mirrormq.meta import records, system
from mirrormq.node import movable
from mirrormq.node.membership import READY
from mirrormq.node.report_cluster import DRAINED, NOT_DRAINED

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies
    from mirrormq.node.node import Node

Identity = tuple[str, str]

NOBODY = "no other node could take it"


class Maintenance:
    """What this node does about its own maintenance."""

    def __init__(self, node: "Node", copies: "Copies") -> None:
        self._node = node
        self._copies = copies
        self._left: list[Identity] = []
        """Queues that are to be given away."""
        self._copied: dict[Identity, None] = {}
        """Those without a mirror that wait until another one is copied."""
        self._moving: dict[int, tuple[str, bool]] = {}
        """Queues under way: where to, and whether they are copied."""
        self._looked_at = 0
        """When it last looked at all queues."""
        self._stuck: dict[Identity, tuple[int, str]] = {}
        """Queues that could not be given away: when that was seen, and why."""

    @property
    def is_drained(self) -> bool:
        """Is this node in maintenance?"""
        record = self._node.meta.nodes.get(self._node.node_name)
        return record is not None and record.is_drained

    def begin(self) -> None:
        """The node takes part in its cluster."""
        if self.is_drained:
            text = "this node is in maintenance: it serves no clients until `revive`"
            self._node.note("warning", text, event="node.in_maintenance")
            self._node.news.set_takes_queues(False)

    def node_changed(self, before: records.Node | None, after: records.Node | None) -> None:
        """The metadata says something new of this node."""
        was_drained = before is not None and before.is_drained
        if after is None or after.is_drained == was_drained:
            return
        node = self._node
        node.news.set_takes_queues(not after.is_drained)
        if after.is_drained:
            text = "maintenance begins: clients and masters go to other nodes"
            node.note("warning", text, event="node.drained")
            node.effects.doors(is_open=False)
            node.send_away(f"node {node.node_name} is in maintenance: connect to another node")
            self._collect()
        else:
            node.note("info", "maintenance is over: clients are welcome", event="node.revived")
            self._left.clear()
            self._copied.clear()
            self._stuck.clear()
            if node.membership.phase == READY:
                node.effects.doors(is_open=True)

    def status(self) -> dict[str, Any]:
        """As administrators see it."""
        meta, me = self._node.meta, self._node.node_name
        found = [(identity, meta.queues.get(identity)) for identity in self._stuck]
        stuck = [identity for identity, queue in found if queue is not None and queue.node == me]
        return {
            "is_drained": self.is_drained,
            "status": DRAINED if self.is_drained else NOT_DRAINED,
            "masters": sum(not queue.exclusive for queue in meta.queues_on(me)),
            "stuck": len(stuck),
            "problems": [
                {"vhost": vhost, "name": name, "reason": self._stuck[vhost, name][1]}
                for vhost, name in stuck[: limits.balance_problems_max]
            ],
        }

    def _masters(self) -> dict[Identity, records.Queue]:
        found = self._node.meta.queues_on(self._node.node_name)
        return {queue.identity: queue for queue in found if not queue.exclusive}

    # --- giving away ----------------------------------------------------------------------------

    @property
    def needs_pass(self) -> bool:
        """Could the next queue be given away now?"""
        return bool(self._left) and len(self._moving) < limits.balance_moves_max

    def tick(self) -> None:
        """Every second: look for queues that have come, or whose time has come again."""
        is_time = not self._moving or self._node.now.mono - self._looked_at >= limits.drain_again_us
        if self.is_drained and not self._left and is_time:
            self._collect()

    def _collect(self) -> None:
        now, here = self._node.now.mono, self._masters()
        self._looked_at = now
        self._stuck = {key: seen for key, seen in self._stuck.items() if key in here}
        self._left = [
            identity
            for identity, queue in here.items()
            if queue.id not in self._moving
            and identity not in self._copied
            and now - self._stuck.get(identity, (now - limits.drain_again_us, ""))[0] >= limits.drain_again_us
        ]

    def step(self) -> None:
        """Begin with some of them."""
        if not self._left:
            return
        if not self.is_drained or not self._node.membership.has_lease():
            self._left.clear()
            return
        for _ in range(min(len(self._left), limits.mirror_slice_queues)):
            if len(self._moving) >= limits.balance_moves_max:
                return
            self._give_away(self._left.pop())

    def _give_away(self, identity: Identity) -> None:
        """Begin to move one queue."""
        node = self._node
        record = node.meta.queues.get(identity)
        if record is None or record.node != node.node_name or record.id in self._moving:
            return
        is_copied = movable.is_alone(node, record)
        if is_copied and sum(one[1] for one in self._moving.values()) >= limits.balance_copies_max:
            self._copied[identity] = None
            return
        target = self._target(record)
        if not target:
            self._stuck[identity] = (node.now.mono, NOBODY)
            return
        self._moving[record.id] = (target, is_copied)

        def done(problem: str) -> None:
            self._moving.pop(record.id, None)
            if is_copied and self._copied:
                self._left.append(self._copied.popitem()[0])
            if problem:
                self._stuck[identity] = (node.now.mono, problem)
            else:
                self._stuck.pop(identity, None)

        self._copies.transfer(record.id, target, done)

    def _target(self, record: records.Queue) -> str:
        """Of the nodes that could be its master the one with the fewest; a mirror not in sync if need be."""
        node = self._node
        sites = [name for name in movable.sites(node) if name != node.node_name]
        found = movable.able(node, record, sites)
        view = node.meta.views.get(record.identity)
        if not found and view is not None and not movable.is_alone(node, record):
            found = [entry.node for entry in view.learners if entry.node in sites]
        coming = [target for target, _ in self._moving.values()]

        def load(name: str) -> tuple[int, str]:
            return system.count_on(node.meta, name) + coming.count(name), name

        return min(found, key=load) if found else ""
