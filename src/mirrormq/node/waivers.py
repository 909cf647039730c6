"""Acting as the master without a lease, where nobody else can: the waiver of partition mode `ignore`.

Guarantees
- A master acts without a lease only while its view says that it may (`View.waiver`), and every other in-sync
  member, recorded or proposed, has granted it that over a link which is still there. Whoever could take its
  place without a loss is one of them, and does not act before its own grant has run out: so no two act at
  once, however the nodes are cut apart and whatever the majority decides meanwhile.
- A grant is asked for with the master's clock and holds there for nine tenths of the time that its giver
  counts from when it answered: clocks of two machines may run a little differently.
- Nobody grants anything to a node that has not heard of its giver's last promotion: the queue asked for may
  be the giver's own by now.
- A process has forgotten what an earlier one granted: it counts as having granted everything when it started.

It takes effect where the lease would: deliveries, and confirms of what is not flushed. Everything else never
needed one, or needs the metadata.

Frames: [0xFA][ask 1, grant 2][u64 clock of the asker][u64 metadata index of the asker], on the control lane.
"""

import struct
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.meta.records import View
from mirrormq.node.memberframes import CONTROL
from mirrormq.node.peerframes import BadFrame

if TYPE_CHECKING:
    from mirrormq.mirror.copy import Copy
    from mirrormq.mirror.links import Link
    from mirrormq.node.node import Node

WAIVERS = b"\xfa"
_FRAME = struct.Struct("<cBQQ")
_ASK, _GRANT = 1, 2


class Waivers:
    """What this node may do without a lease, and what it has granted others."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._started_at = node.now.mono
        self._mine: dict[int, Copy] = {}
        """Mastered here with a waiver, by queue id."""
        self._held: dict[int, Copy] = {}
        """Mastered here since another node lost the queue that may still act without a lease."""
        self._holds: dict[int, int] = {}
        """Until when they wait: what is granted later is granted to who knows of the promotion."""
        self._covered: set[int] = set()
        """Of `_mine` those that could go on when that was looked at last."""
        self._grants: dict[str, tuple[int, int]] = {}
        """By peer: until when its grant holds here, and the connection it came on."""
        self._promises: dict[str, int] = {}
        """By peer: until when this node takes the place of nobody there."""
        self._promoted_at = 0
        """The index of the last metadata command by which this node became a master."""
        self._taken_back: dict[int, int] = {}
        """Epochs in which this node has asked for the end of a waiver: it may have come unseen."""
        self._ask_at = 0

    # --- who may act ---

    def may_act(self, copy: "Copy") -> bool:
        """May the master here deliver, and confirm what is only received?"""
        if self._node.membership.has_lease():
            return not self.is_held(copy)
        return self.covers(copy)

    def covers(self, copy: "Copy") -> bool:
        """May it, although this node has no lease?"""
        if copy.master is None or copy.id not in self._mine or not self._node.partition.waives:
            return False
        assert isinstance(copy.view, View)
        if self._taken_back.get(copy.id) == copy.view.epoch:
            return False
        now = self._node.now.mono
        return all(self._is_granted(name, now) for name in copy.master.required())

    def _is_granted(self, peer: str, now: int) -> bool:
        until, connection = self._grants.get(peer, (0, 0))
        link = self._node_link(peer)
        return now < until and link.is_up and link.connection == connection

    def is_held(self, copy: "Copy") -> bool:
        """Must the master here wait for another one whose waiver may not have run out?"""
        return copy.id in self._held and self._node.now.mono < self._holds[copy.id]

    def _promised_until(self, peer: str) -> int:
        return max(self._promises.get(peer, 0), self._forgotten_until(peer))

    def _forgotten_until(self, peer: str) -> int:
        # Nothing was forgotten about a process whose end was seen.
        return 0 if self._promises.get(peer) == 0 else self._started_at + limits.waiver_us

    # --- views ---

    def view_put(self, view: View) -> None:
        """The metadata has another view."""
        if view.master == self._node.node_name and view.since == view.epoch:
            self._promoted_at = self._node.meta_index
            if view.waiver and view.waiver != view.master:
                self._holds[view.id] = self._promised_until(view.waiver)

    def entered(self, view: View, copy: "Copy") -> None:
        """This node has entered a view."""
        self._mine.pop(view.id, None)
        self._held.pop(view.id, None)
        self._covered.discard(view.id)
        if copy.master is not None and view.waiver == self._node.node_name:
            self._mine[view.id] = copy
        elif copy.master is not None and view.waiver:
            # A process that finds itself the master when it starts has not heard of the promotion.
            self._holds.setdefault(view.id, self._started_at + limits.waiver_us)
            self._held[view.id] = copy
        elif copy.master is None:
            self._taken_back.pop(view.id, None)

    def left(self, queue_id: int) -> None:
        """This node has no copy any more."""
        for table in (self._mine, self._held, self._holds, self._taken_back):
            table.pop(queue_id, None)

    def wanted(self, view: View, copy: "Copy | None", *, may: bool) -> str:
        """The change of a view mastered here that is due: "waive", "unwaive" or none."""
        if copy is None or copy.master is None or copy.view is None or self.is_held(copy):
            return ""
        if copy.view.epoch != view.epoch:
            return ""  # it is about to be entered, and looked at then
        is_wanted = self._node.partition.waives and may
        if is_wanted and view.waiver != view.master:
            return "waive"
        if not is_wanted and view.waiver:
            self._taken_back[view.id] = view.epoch
            return "unwaive"
        return ""

    # --- links and frames ---

    def link_change(self, peer: str, *, eof: bool) -> None:
        """A link came up or went down. A process that ended it, or died, counts no grant of it any more."""
        self._grants.pop(peer, None)
        if eof and self._node.membership.options.death_certificate:
            self._promises[peer] = 0

    def peer_frame(self, peer: str, payload: bytes | memoryview) -> None:
        """Another node asks or grants; raises BadFrame."""
        if len(payload) != _FRAME.size:
            raise BadFrame("a waiver of another version")
        _, what, clock, index = _FRAME.unpack(payload)
        if what == _ASK:
            if index >= self._promoted_at:
                self._promises[peer] = self._node.now.mono + limits.waiver_us
                self._send(peer, _GRANT, clock, index)
        elif what == _GRANT:
            until = clock + limits.waiver_us * limits.lease_use_percent // 100
            self._grants[peer] = (until, self._node_link(peer).connection)
            self._look()
        else:
            raise BadFrame("neither asks nor grants")

    def _send(self, peer: str, what: int, clock: int, index: int) -> None:
        self._node.effects.send(peer, CONTROL, _FRAME.pack(WAIVERS, what, clock, index))

    def _node_link(self, peer: str) -> "Link":
        assert self._node.copies is not None
        return self._node.copies.mirrors.link(peer)

    # --- time ---

    def tick(self) -> None:
        """Several times a second: ask for grants, and see who may go on."""
        now = self._node.now.mono
        if self._mine and now >= self._ask_at and self._node.partition.waives:
            self._ask_at = now + limits.waiver_ask_us
            peers = {name for copy in self._mine.values() if copy.master for name in copy.master.required()}
            for peer in sorted(peers & self._node.membership.links.keys()):
                self._send(peer, _ASK, now, self._node.meta_index)
        self._look()

    def _look(self) -> None:
        """Queues whose masters may act from now on: somebody waits for that."""
        for copy in [copy for copy in self._held.values() if not self.is_held(copy)]:
            del self._held[copy.id]
            self._tell(copy)
            assert isinstance(copy.view, View)
            assert self._node.copies is not None
            self._node.copies.policy.view_changed(copy.view)
        if self._mine and not self._node.membership.has_lease():
            for copy in list(self._mine.values()):
                if self.covers(copy) and copy.id not in self._covered:
                    self._covered.add(copy.id)
                    self._tell(copy)
        elif self._covered:
            self._covered.clear()

    def _tell(self, copy: "Copy") -> None:
        if copy.watcher is not None:
            copy.watcher.marks_moved()
        if self._node.copies is not None:
            self._node.copies.mirrors.uneasy[copy] = None

    def count(self) -> int:
        """How many queues mastered here may go on without a lease now."""
        return sum(self.covers(copy) for copy in self._mine.values())
