"""A node that stops in good order gives its mirrored queues to others first.

Guarantee: a queue with an in-sync mirror on a live node loses nothing and is handed over by a planned
transfer; one without is marked as stopped in good order, so that its policy decides what becomes of it. When
time runs out, or no majority is there to agree on anything, the rest is left as after a crash, which loses
nothing that was confirmed either.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.meta import views
from mirrormq.meta.records import View
from mirrormq.mirror.views import Change
from mirrormq.node.membership import PAUSED

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies
    from mirrormq.node.node import Node

Identity = tuple[str, str]


class HandOver:
    """One stop of a node."""

    def __init__(self, node: "Node", copies: "Copies", done: Callable[[], None]) -> None:
        self._node = node
        self._copies = copies
        self._done = done
        self.is_over = False
        self._left = [view.identity for view in node.meta.views_led_by(node.node_name)]
        self._moving: dict[Identity, bool] = {}
        """Queues under way, and whether by a transfer."""
        self._tries: dict[Identity, int] = {}
        self.count = len(self._left)
        self._helpless_since: int | None = None
        """Since when this node has no lease."""

    def step(self) -> None:
        """Look what has moved, and go on with others; some at a time."""
        if self.is_over:
            return
        for identity, is_transfer in list(self._moving.items()):
            if self._is_gone(identity):
                del self._moving[identity]
            elif is_transfer and self._has_failed(identity):
                del self._moving[identity]
                self._left.append(identity)  # the next one may be able to
        while self._left and len(self._moving) < limits.mirror_proposals_max:
            identity = self._left.pop()
            view = self._node.meta.views.get(identity)
            tries = self._tries[identity] = self._tries.get(identity, 0) + 1
            is_led = view is not None and view.is_led_by(self._node.node_name, self._copies.start)
            if view is not None and is_led and tries <= limits.hand_over_tries_max:
                self._begin(view)
        if not self._left and not self._moving:
            self._end()
        elif self._is_helpless():
            left = len(self._left) + len(self._moving)
            self._node.note(
                "warning",
                "mirrored queues stay here: no majority is in reach",
                queues=left,
                event="node.handover_failed",
            )
            self._end()

    def _end(self) -> None:
        self.is_over = True
        self._done()

    def _is_helpless(self) -> bool:
        """Is it of no use to wait? The last nodes of a cluster that stop have nobody to agree with; another
        leader would be there in a moment.
        """
        membership, now = self._node.membership, self._node.now.mono
        if membership.has_lease():
            self._helpless_since = None
            return False
        if self._helpless_since is None:
            self._helpless_since = now
        return membership.phase == PAUSED or now - self._helpless_since >= limits.pause_grace_us

    def _begin(self, view: View) -> None:
        nodes = self._node.meta.nodes
        heirs = [
            entry.node for entry in view.members[1:] if not entry.is_restarted and views.is_live(nodes, entry)
        ]
        heirs.sort(key=lambda name: nodes[name].is_drained)
        is_transfer = bool(heirs) and self._copies.mirrors.transfer(view.id, heirs[0], self._node.now)
        self._moving[view.identity] = is_transfer
        if not is_transfer:
            change = Change(view.id, view.epoch, "stop", self._node.node_name, self._copies.start)
            self._copies.propose(change, lambda is_made: self._refused(view.identity, is_made=is_made))

    def _refused(self, identity: Identity, *, is_made: bool) -> None:
        if not is_made and self._moving.pop(identity, None) is not None:
            self._left.append(identity)  # a mirror may be in sync by now

    def _is_gone(self, identity: Identity) -> bool:
        view = self._node.meta.views.get(identity)
        return view is None or view.master != self._node.node_name or view.is_stopped

    def _has_failed(self, identity: Identity) -> bool:
        """Has a transfer been given up? The other node has died, or did not come along in time."""
        view = self._node.meta.views[identity]
        copy = self._copies.mirrors.copies.get(view.id)
        return copy is None or copy.master is None or not copy.master.transfer_to
