"""Several real nodes whose frames are passed in memory, with one metadata order for all of them.

Wires are FIFO per direction; a test holds them (`hold`), cuts them and lets them heal. What the nodes propose
is applied on all of them in one order; a node that is told to `lag` gets it later. This stands in for Raft.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from mirrormq.base.types import Now
from mirrormq.broker.host import BrokerSettings
from mirrormq.meta.commands import Command
from mirrormq.meta.state import Outcome
from mirrormq.node import effects as fx
from mirrormq.node.node import Node
from tests.support.nodekit import NodeKit, SeededRng

Done = Callable[[Outcome], None]


class ClusterNode(Node):
    """A node whose metadata commands go through the cluster."""

    cluster: "ClusterKit | None" = None
    early: list[tuple[Command, Done, bool]] | None = None
    """What a restarted node proposes before it has caught up."""

    def propose(self, command: Command, done: Done, wait: bool) -> None:
        if self.early is not None:
            self.early.append((command, done, wait))
        elif self.cluster is None:
            super().propose(command, done, wait)
        else:
            self.cluster.propose(self, self._with_log_ids(command), done, wait)


class Member(NodeKit):
    """One node of a cluster."""

    def __init__(self, cluster: "ClusterKit", name: str, disk: Any = None, **settings: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.is_started = False
        super().__init__(disk, **settings)
        self.is_started = True

    def make_node(self, settings: BrokerSettings, rng: SeededRng) -> Node:
        self.now = self.cluster.now
        others = frozenset(self.cluster.names) - {self.name}
        self.cluster.starts += 1
        seeded = SeededRng(sum(self.name.encode()) * 1000 + self.cluster.starts)
        node = ClusterNode(self.now, name=self.name, settings=settings, rng=seeded, members=others)
        node.early = [] if self.cluster.is_built else None
        return node

    def run(self) -> None:
        if self.is_started:
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
        self.frames = 0
        self.lagging: set[str] = set()
        self._log: list[Command] = []
        self._proposed: deque[tuple[ClusterNode, Command, Done, bool]] = deque()
        self._is_applying = False
        self.is_built = False
        self.members: dict[str, Member] = {}
        for name in self.names:
            self.members[name] = Member(self, name, self.disks.get(name), **settings)
        self._base = {name: self.node(name).store.last_index for name in self.names}
        for member in self.members.values():
            member.node.cluster = self
        self._applied = dict.fromkeys(self.names, 0)
        self.is_built = True
        for one in self.names:
            for other in self.names:
                if one < other:
                    self.heal(one, other)

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def node(self, name: str) -> ClusterNode:
        node = self.members[name].node
        assert isinstance(node, ClusterNode)
        return node

    # --- metadata ---

    def propose(self, node: ClusterNode, command: Command, done: Done, wait: bool) -> None:
        self._proposed.append((node, command, done, wait))
        if self._is_applying:
            return
        self._is_applying = True
        while self._proposed:
            proposer, what, answer, waits = self._proposed.popleft()
            self._log.append(what)
            # Those who lag apply it later; who proposes hears of it when the others have it.
            for name in self.names:
                if name in self.members and name not in self.lagging:
                    is_own = self.node(name) is proposer
                    self._apply(name, answer if is_own else _ignore, waits and is_own)
        self._is_applying = False

    def _apply(self, name: str, done: Done = lambda _: None, wait: bool = False) -> None:
        at = self._applied[name]
        if at < len(self._log):
            self._applied[name] = at + 1
            self.node(name).store.propose(self._log[at], done, wait)

    def catch_up(self, name: str) -> None:
        """Apply everything the node has missed."""
        self.lagging.discard(name)
        while self._applied[name] < len(self._log):
            self._apply(name)
        self.run()

    # --- wires ---

    def carry(self, source: str, target: str, payload: bytes) -> None:
        if (source, target) in self.wires:
            self.wires[source, target].append(payload)
            size = sum(map(len, self.wires[source, target])) if self.full_at is not None else 0
            if self.full_at is not None and size > self.full_at and (source, target) not in self.full:
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
            if source in self.members:
                self.node(source).link_change(self.now, target, False)

    def heal(self, one: str, other: str) -> None:
        """The nodes are linked again."""
        for pair in ((one, other), (other, one)):
            self.wires[pair] = deque()
        for source, target in ((one, other), (other, one)):
            self.node(source).link_change(self.now, target, True)
        self.run()

    def deliver(self, source: str, target: str, count: int = 1) -> None:
        """Pass some frames on, held or not."""
        wire = self.wires[source, target]
        for _ in range(min(count, len(wire))):
            self.frames += 1
            self.node(target).peer_frame(self.now, source, 1, memoryview(wire.popleft()))
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
            for member in list(self.members.values()):
                member.now = self.now
                is_busy |= member.step()
            for pair in list(self.wires):
                if pair in self.wires and pair not in self.held and self.wires[pair]:
                    is_busy = True
                    self.deliver(*pair, len(self.wires[pair]))

    def advance(self, seconds: float) -> None:
        """Let time pass, with a tick at its end."""
        micros = int(seconds * 1_000_000)
        self.now = Now(self.now.mono + micros, self.now.wall + micros)
        for member in self.members.values():
            member.now = self.now
            member.node.tick(self.now)
        self.run()

    # --- processes ---

    def kill(self, name: str) -> None:
        """The process ends; its links break."""
        member = self.members.pop(name)
        if member.disk is not None:
            self.disks[name] = member.disk.crash(lambda most: 0)
        for other in self.names:
            if other != name:
                self.cut(name, other)
        self.run()

    def restart(self, name: str) -> None:
        """Start the node again on its disk."""
        member = Member(self, name, self.disks.get(name), **self.settings)
        self.members[name] = member
        node = self.node(name)
        node.cluster = self
        self._applied[name] = node.store.last_index - self._base[name]
        self.catch_up(name)
        early, node.early = node.early or [], None
        for command, done, wait in early:
            node.propose(command, done, wait)
        for other in self.members:
            if other != name:
                self.heal(name, other)


def _ignore(_: Outcome) -> None:
    """Another node's command."""
