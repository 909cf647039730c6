"""What must never happen to a mirrored queue, watched from outside: the world's memory of every promise.

Guarantee: a broken promise raises `Violation` at the moment it is seen. Numbers as in docs/protocol.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING

from mirrormq.kernel import records
from mirrormq.sim.mirrorstream import Key, key_of, records_of, removed_by
from mirrormq.sim.model import Violation

if TYPE_CHECKING:
    from mirrormq.sim.mirrornode import MirrorNode, SimQueue
    from mirrormq.sim.mirrorstore import SimView
    from mirrormq.sim.mirrorworld import MirrorWorld


class QueueFacts:
    """What is known of one queue."""

    def __init__(self) -> None:
        self.stream: dict[int, tuple[int, bytes]] = {}
        """Committed batches by their last seq: epoch and bytes."""
        self.seq_of: dict[Key, int] = {}
        self.confirmed: dict[Key, tuple[int, bool]] = {}
        """Position and whether persistent, of what is confirmed and not known to be removed."""
        self.removed: set[Key] = set()
        """Their removal is committed."""
        self.removing: set[Key] = set()
        """Their removal was appended by some master."""
        self.excused: set[Key] = set()
        """Transient, and no unchanged member was left."""
        self.handed: set[Key] = set()
        self.last_first: dict[int, int] = {}
        """The highest publish number that was delivered as new, by pid."""
        self.delivering = 0
        """The newest mastership that has delivered."""
        self.masters: dict[int, tuple[str, int]] = {}
        """Who has acted as master, by epoch."""


class Checker:
    """The memory of a world."""

    def __init__(self, world: "MirrorWorld") -> None:
        self.world = world
        self.facts: dict[int, QueueFacts] = {}

    def of(self, queue: int) -> QueueFacts:
        """What is known of a queue."""
        found = self.facts.get(queue)
        if found is None:
            found = self.facts[queue] = QueueFacts()
        return found

    # --- events ---

    def committed(self, queue: "SimQueue", before: int, durable: int) -> None:
        """A master says that everything up to here is durable everywhere."""
        if durable <= before:
            return
        facts = self.of(queue.id)
        for batch in queue.raw.batches:
            if not before < batch.last <= durable:
                continue
            known = facts.stream.setdefault(batch.last, (batch.epoch, batch.data))
            if known != (batch.epoch, batch.data):
                raise Violation(f"I2: two committed batches end with {batch.last}")
            self._record(facts, batch.data)
        self._members_have(queue.id, durable)

    def _record(self, facts: QueueFacts, data: bytes) -> None:
        for seq, kind, _, payload in records_of(data):
            if kind == records.PUBLISH:
                key = key_of(payload)
                if facts.seq_of.setdefault(key, seq) != seq:
                    raise Violation(f"I13: {key} is in the queue twice")
            elif kind == records.REMOVE:
                for gone in removed_by(payload):
                    for key, at in facts.seq_of.items():
                        if at == gone:
                            facts.removed.add(key)
                            facts.confirmed.pop(key, None)

    def confirmed(self, queue: "SimQueue", key: Key, position: int, *, persistent: bool) -> None:
        """A publish is confirmed."""
        facts = self.of(queue.id)
        world = self.world
        if key not in facts.confirmed and key not in facts.removed:
            world.stats.confirms += 1
            world.say(f"confirm {queue.id} {key} at {position}", is_loud=False)
        if key in facts.removed or key not in queue.state.keys:
            return
        facts.confirmed[key] = (queue.state.keys[key], persistent)
        view = world.store.views[queue.id]
        if queue.copy.master is not None and queue.copy.master.is_held and position > queue.safe:
            raise Violation(f"I8: {key} is confirmed with too few members")
        self._has(view, key, *facts.confirmed[key])

    def delivered(self, queue: "SimQueue", seq: int, key: Key, *, again: bool) -> None:
        """A message is handed to a client."""
        facts = self.of(queue.id)
        self.world.stats.deliveries += 1
        self.world.say(f"deliver {queue.id} {seq} {key} {again}", is_loud=False)
        if key in facts.removed:
            raise Violation(f"I5: {key} is delivered after its removal was committed")
        if not again and key in facts.handed:
            raise Violation(f"I7: {key} is delivered as new for the second time")
        if queue.since < facts.delivering:
            raise Violation(f"I14: {key} is delivered by an old master")
        facts.delivering = max(facts.delivering, queue.since)
        if not again:
            pid, pseq = key
            if pseq < facts.last_first.get(pid, 0):
                raise Violation(f"I6: {key} comes as new after a later one")
            facts.last_first[pid] = pseq
        facts.handed.add(key)

    def promoted(self, view: "SimView") -> None:
        """A view was made."""
        facts = self.of(view.id)
        if view.drops_transient and view.since == view.epoch:
            # No unchanged member was there to be asked: what was only received may be lost.
            facts.excused |= {key for key, (_, persistent) in facts.confirmed.items() if not persistent}
        self.members(view)

    def node(self, node: "MirrorNode") -> None:
        """Look at a node after a pass (I1, I4)."""
        if node.mirrors is None:
            return
        for copy in node.mirrors.copies.values():
            if copy.master is not None and copy.master.own_first:
                facts = self.of(copy.id)
                epoch, who = copy.master.view.epoch, (node.name, node.start_no)
                if facts.masters.setdefault(epoch, who) != who:
                    raise Violation(f"I1: epoch {epoch} of queue {copy.id} has two masters")
            elif copy.member is not None and copy.member.is_matched:
                self._is_prefix(node, copy.id, copy.member.view.epoch)

    def _is_prefix(self, node: "MirrorNode", queue: int, epoch: int) -> None:
        view = self.world.store.views[queue]
        master = self.world.nodes.get(view.master)
        if view.epoch != epoch or master is None or master.mirrors is None:
            return
        copy = master.mirrors.copies.get(queue)
        if copy is None or copy.master is None or copy.master.view.epoch != epoch:
            return
        mine, other = node.logs[queue], master.logs[queue]
        if mine.end > other.end:
            raise Violation(f"I4: matched log of {node.name} is longer than the master's")
        if mine.batches and other.low <= mine.batches[-1].first:
            last = mine.batches[-1]
            at = bisect_left(other.batches, last.last, key=lambda batch: batch.last)
            if at == len(other.batches) or other.batches[at] != last:
                raise Violation(f"I4: matched log of {node.name} is not a part of the master's")

    # --- states ---

    def _members_have(self, queue: int, durable: int) -> None:
        for entry in self.world.store.views[queue].members:
            log = self.world.nodes[entry.node].logs.get(queue)
            if log is None or log.kept < durable:
                raise Violation(f"I8: {durable} is not flushed by {entry.node}")

    def members(self, view: "SimView") -> None:
        """Every in-sync member has what was confirmed (I2, I3, I8)."""
        facts = self.of(view.id)
        for key, (seq, persistent) in list(facts.confirmed.items()):
            self._has(view, key, seq, persistent)

    def _has(self, view: "SimView", key: Key, seq: int, persistent: bool) -> None:
        facts = self.of(view.id)
        if key in facts.excused:
            return
        for entry in view.members:
            node = self.world.nodes[entry.node]
            log = node.logs.get(view.id)
            is_same = node.is_up and node.is_registered and node.start_no == entry.start
            if persistent:
                if log is None or log.kept < seq or not log.has(key, seq):
                    raise Violation(f"I2: {key} at {seq} is confirmed and missing on {entry.node}")
            elif is_same and not entry.is_restarted and (log is None or not log.has(key, seq)):
                raise Violation(f"I8: {key} at {seq} is confirmed and not received by {entry.node}")

    def final(self) -> None:
        """Everything is healed: nothing is missing, and members agree (I3, I11)."""
        for queue, facts in self.facts.items():
            view = self.world.store.views[queue]
            master = self.world.nodes[view.master]
            state = master.queues[queue].state
            # A removal counts when it is committed: until then the message is in the folded state.
            there = state.keys.keys() | master.logs[queue].state.keys.keys()
            for key in facts.confirmed:
                if key not in there and key not in facts.excused:
                    raise Violation(f"I3: {key} is confirmed, not removed and not there")
            self._agree(view)

    def _agree(self, view: "SimView") -> None:
        seqs = [self.world.nodes[entry.node].logs[view.id].folded for entry in view.members]
        states = []
        for entry in view.members:
            log = self.world.nodes[entry.node].logs[view.id]
            if log.low - 1 <= max(seqs) <= log.end:
                log.fold(max(seqs))
                states.append(log.state.facts())
        if any(state != states[0] for state in states):
            raise Violation(f"I11: members of queue {view.id} differ")
