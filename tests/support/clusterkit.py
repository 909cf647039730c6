"""Several real nodes whose frames are passed in memory; one more that no test sees leads them.

Wires are FIFO per direction; a test holds them (`hold`), cuts them and lets them heal. The leader is the only
voter, so the others can be killed, cut off from each other and held back (`lag`) in any combination while
the metadata goes on. Time moves in steps short enough for leases to be renewed.
"""

from collections import deque
from typing import Any

from mirrormq.base.types import Now
from mirrormq.broker.host import BrokerSettings
from mirrormq.meta.commands import PutNode
from mirrormq.meta.records import Node as NodeRecord
from mirrormq.node import effects as fx
from mirrormq.node.memberport import ClusterOptions, Contact
from mirrormq.node.membership import READY
from mirrormq.node.node import Node
from tests.support.nodekit import NodeKit, SeededRng

LEADER = "leader"
STEP_US = 500_000


class Member(NodeKit):
    """One node of a cluster."""

    def __init__(self, cluster: "ClusterKit", name: str, disk: Any = None, **settings: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.is_linked = False
        super().__init__(disk, **settings)

    def make_node(self, settings: BrokerSettings, rng: SeededRng) -> Node:
        self.now = self.cluster.now
        self.cluster.starts += 1
        seeded = SeededRng(sum(self.name.encode()) * 1000 + self.cluster.starts)
        contact = None if self.name == LEADER else Contact(LEADER, LEADER)
        options = ClusterOptions(join=contact, address=self.name)
        return Node(self.now, name=self.name, settings=settings, rng=seeded, cluster=options)

    def run(self) -> None:
        if self.is_linked:
            self.cluster.run()
        else:
            super().run()

    def step(self) -> bool:
        """One pass; was there anything to do?"""
        self.node.end_pass(self.now)
        return self._drain() or self.node.needs_pass

    def advance(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    def to_peer(self, effect: fx.Send | fx.Cut) -> None:
        if isinstance(effect, fx.Cut):
            self.cluster.cuts.append((self.name, effect.peer, effect.reason))
            self.cluster.cut(self.name, effect.peer)
        else:
            self.cluster.carry(self.name, effect.peer, effect.payload)


class ClusterKit:
    """Started nodes, all linked with each other."""

    def __init__(self, *names: str, disks: dict[str, Any] | None = None, **settings: Any) -> None:
        self.now = Now(1_000_000, 1_700_000_000_000_000)
        self.names = names or ("home", "master")
        self.settings = settings
        self.disks = disks or {}
        self.starts = 0
        self.wires: dict[tuple[str, str], deque[bytes]] = {}
        self.held: set[tuple[str, str]] = set()
        self.full: set[tuple[str, str]] = set()
        self.cuts: list[tuple[str, str, str]] = []
        self.full_at: int | None = None
        self.members: dict[str, Member] = {}
        self.leader = Member(self, LEADER)
        self.leader.is_linked = True
        self.leader.node.news.set_takes_queues(False)
        for name in self.names:
            record = NodeRecord(name, name, "non-voter")
            self.leader.node.propose(PutNode(record), lambda _: None, False)
        self.run()
        for name in self.names:
            self._start(name)
        assert self.cuts == []

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def node(self, name: str) -> Node:
        return self.leader.node if name == LEADER else self.members[name].node

    def _start(self, name: str) -> None:
        member = Member(self, name, self.disks.get(name), **self.settings)
        self.members[name] = member
        member.is_linked = True
        for other in (LEADER, *self.members):
            if other != name:
                self.heal(name, other)
        for _ in range(20):
            if member.node.membership.phase == READY:
                return
            self.advance(0.5)
        raise AssertionError(f"{name} does not come up: {member.notes}")

    # --- metadata ---

    def lag(self, name: str) -> None:
        """Let a node hear of no change of the metadata."""
        self.hold(LEADER, name)

    def catch_up(self, name: str) -> None:
        """Let it hear of everything it has missed."""
        self.held.discard((LEADER, name))
        self.run()

    # --- wires ---

    def carry(self, source: str, target: str, payload: bytes) -> None:
        if (source, target) in self.wires:
            self.wires[source, target].append(payload)
            if self.full_at is None or LEADER in (source, target):
                return
            size = sum(map(len, self.wires[source, target]))
            if size > self.full_at and (source, target) not in self.full:
                self.full.add((source, target))
                self.node(source).link_full(self.now, target)

    def size(self, source: str, target: str) -> int:
        """Bytes on their way."""
        return sum(map(len, self.wires.get((source, target), ())))

    def hold(self, source: str, target: str) -> None:
        """Frames in this direction stay on the wire."""
        self.held.add((source, target))

    def release(self) -> None:
        """All wires carry again."""
        self.held.clear()
        self.run()

    def cut(self, one: str, other: str) -> None:
        """The link breaks; what is on the wire is lost."""
        pairs = ((one, other), (other, one))
        if pairs[0] not in self.wires:
            return
        for pair in pairs:
            del self.wires[pair]
            self.full.discard(pair)
            self.held.discard(pair)
        for source, target in pairs:
            if source in self.members or source == LEADER:
                self.node(source).link_change(self.now, target, False, eof=True)

    def heal(self, one: str, other: str) -> None:
        """The nodes are linked again."""
        for pair in ((one, other), (other, one)):
            self.wires[pair] = deque()
        for source, target in ((one, other), (other, one)):
            cluster = self.node(target).membership.identity.cluster or bytes(16)
            self.node(source).link_change(self.now, target, True, cluster)
        self.run()

    def deliver(self, source: str, target: str, count: int = 1) -> None:
        """Pass some frames on, held or not."""
        wire = self.wires[source, target]
        for _ in range(min(count, len(wire))):
            self.node(target).peer_frame(self.now, source, memoryview(wire.popleft()))
            if (source, target) not in self.wires:
                return
        if not wire and (source, target) in self.full:
            self.full.discard((source, target))
            self.node(source).link_writable(self.now, target)

    # --- time ---

    def run(self) -> None:
        """Passes and frames until nothing is left to do."""
        is_busy = True
        while is_busy:
            is_busy = False
            for member in (self.leader, *self.members.values()):
                member.now = self.now
                is_busy |= member.step()
            for pair in list(self.wires):
                if pair in self.wires and pair not in self.held and self.wires[pair]:
                    is_busy = True
                    self.deliver(*pair, len(self.wires[pair]))

    def advance(self, seconds: float) -> None:
        """Let time pass, with a tick at its end."""
        left = int(seconds * 1_000_000)
        while left > 0:
            step = min(left, STEP_US)
            left -= step
            self.now = Now(self.now.mono + step, self.now.wall + step)
            for member in (self.leader, *self.members.values()):
                member.now = self.now
                if left > 0:
                    member.node.on_timer(self.now)
                else:
                    member.node.tick(self.now)
            self.run()

    # --- processes ---

    def kill(self, name: str, *, power: bool = True) -> None:
        """The process ends; its links break. With `power` what its disk had not flushed is lost."""
        member = self.members.pop(name)
        if member.disk is not None:
            self.disks[name] = member.disk.crash(lambda most: 0) if power else member.disk.restart()
        for other in (LEADER, *self.names):
            if other != name:
                self.cut(name, other)
        self.run()

    def restart(self, name: str) -> None:
        """Start the node again on its disk."""
        self._start(name)
