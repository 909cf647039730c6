"""Nodes that vote, found by each other's addresses: forming, joining, leaving and dying, under virtual time.

A node is at the address that is its name. Links come up when somebody dials and nothing is cut; time moves in
steps short enough for heartbeats.
"""

from collections import deque
from typing import Any

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.broker.host import BrokerSettings
from mirrormq.node import effects as fx
from mirrormq.node.memberport import ClusterOptions, Contact
from mirrormq.node.membership import READY
from mirrormq.node.node import Node
from tests.support.nodekit import NodeKit, SeededRng

STEP_US = 20_000


class Member(NodeKit):
    """One node, its disk, and what it wants of the world."""

    def __init__(self, group: "Group", name: str, options: ClusterOptions, disk: Any = None) -> None:
        self.group = group
        self.name = name
        self.options = options
        self.dials: set[str] = set()
        self.card: fx.Introduce | None = None
        self.is_open = False
        self.stopped = ""
        super().__init__(disk, **group.settings)

    def make_node(self, settings: BrokerSettings, rng: SeededRng) -> Node:
        self.now = self.group.now
        self.group.starts += 1
        seeded = SeededRng(sum(self.name.encode()) * 1000 + self.group.starts)
        return Node(self.now, name=self.name, settings=settings, rng=seeded, cluster=self.options)

    @property
    def phase(self) -> str:
        return self.node.membership.phase

    def step(self) -> bool:
        """One pass; was there anything to do?"""
        self.node.end_pass(self.now)
        return self._drain() or self.node.needs_pass

    def run(self) -> None:
        self.group.run()

    def carry_out(self, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Introduce):
            self.card = effect
        elif isinstance(effect, fx.Dial):
            self.dials.add(effect.address)
        elif isinstance(effect, fx.Undial):
            self.dials.discard(effect.address)
        elif isinstance(effect, fx.Doors):
            self.is_open = effect.is_open
        elif isinstance(effect, fx.Stop):
            self.stopped = effect.reason

    def to_peer(self, effect: fx.Send | fx.Cut) -> None:
        if isinstance(effect, fx.Cut):
            self.group.unlink(self.name, effect.peer, eof=False)
        elif (self.name, effect.peer) in self.group.wires:
            self.group.wires[self.name, effect.peer].append(effect.payload)

    def _drain(self) -> bool:
        items = self.node.effects.take()
        others = []
        for effect in items:
            if isinstance(effect, fx.Introduce | fx.Dial | fx.Undial | fx.Doors | fx.Stop):
                self.carry_out(effect)
            else:
                others.append(effect)
        self.node.effects._items = [*others, *self.node.effects.take()]
        return super()._drain() or bool(items)


class Group:
    """Several nodes; none is there before `start`."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.now = Now(1_000_000, 1_700_000_000_000_000)
        self.starts = 0
        self.members: dict[str, Member] = {}
        self.disks: dict[str, Any] = {}
        self.wires: dict[tuple[str, str], deque[bytes]] = {}
        self.cuts: set[frozenset[str]] = set()
        self._silent: dict[tuple[str, str], int] = {}
        """Wires on which nothing arrives, and since when."""
        self._suspected: set[tuple[str, str]] = set()

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    # --- processes ---

    def start(self, name: str, *listed: str, join: str = "", **more: Any) -> Member:
        """Start a node, on its old disk if it has one."""
        nodes = tuple(Contact(other, other) for other in listed)
        contact = Contact(join, join) if join else None
        options = ClusterOptions(nodes=nodes, join=contact, address=name, **more)
        self.members[name] = member = Member.__new__(Member)
        member.__init__(self, name, options, self.disks.pop(name, None))  # type: ignore[misc]
        return member

    def kill(self, name: str) -> None:
        """End a process; what its disk had flushed stays."""
        member = self.members.pop(name)
        self.disks[name] = member.disk.crash(lambda most: 0)
        for other in list(self.members):
            self.unlink(other, name, eof=True)

    def empty(self, name: str) -> None:
        """Lose the disk of a node that does not run."""
        del self.disks[name]

    # --- links ---

    def cut(self, *names: str) -> None:
        """Part these nodes from all others, without a word."""
        rest = [other for other in self.members if other not in names]
        self.cuts |= {frozenset((one, other)) for one in names for other in rest}

    def heal(self) -> None:
        """Everybody reaches everybody again."""
        self.cuts.clear()

    def unlink(self, one: str, other: str, *, eof: bool) -> None:
        """A link ends at both sides."""
        if (one, other) not in self.wires:
            return
        for source, target in ((one, other), (other, one)):
            del self.wires[source, target]
            self._silent.pop((source, target), None)
            self._suspected.discard((source, target))
            if source in self.members:
                self.members[source].node.link_change(self.now, target, False, eof=eof)

    def _link(self) -> None:
        for name, member in list(self.members.items()):
            for address in sorted(member.dials):
                other = self.members.get(address)
                parted = frozenset((name, address)) in self.cuts
                if other is None or member.card is None or other.card is None or parted:
                    continue
                clusters = {member.card.cluster, other.card.cluster} - {bytes(16)}
                if (name, address) in self.wires or len(clusters) > 1:
                    continue
                for one, two in ((member, other), (other, member)):
                    self.wires[one.name, two.name] = deque()
                    assert two.card is not None
                    one.node.link_change(self.now, two.name, True, two.card.cluster)

    def _suspect(self) -> None:
        """Tell each node whom it has not heard for long, as its detector would: living peers always speak."""
        for wire in self.wires:
            source, target = wire
            if frozenset(wire) in self.cuts:
                self._silent.setdefault(wire, self.now.mono)
            else:
                self._silent.pop(wire, None)
            since = self._silent.get(wire, self.now.mono)
            is_silent = self.now.mono - since >= limits.peer_suspect_us
            if is_silent != (wire in self._suspected):
                (self._suspected.add if is_silent else self._suspected.discard)(wire)
                self.members[target].node.link_suspected(self.now, source, is_silent)

    # --- time ---

    def run(self) -> None:
        """Passes and frames until nothing is left to do."""
        while self.round():
            pass

    def round(self) -> bool:
        """One pass of each node, and the frames that are under way then; was there anything to do?"""
        is_busy = False
        for member in list(self.members.values()):
            member.now = self.now
            is_busy |= member.step()
        for source, target in list(self.wires):
            wire = self.wires.get((source, target))
            if not wire or frozenset((source, target)) in self.cuts:
                continue
            is_busy = True
            while wire and (source, target) in self.wires:
                self.members[target].node.peer_frame(self.now, source, memoryview(wire.popleft()))
        return is_busy

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(int(seconds * 1_000_000) // STEP_US):
            self.now = Now(self.now.mono + STEP_US, self.now.wall + STEP_US)
            self._link()
            self._suspect()
            for member in self.members.values():
                member.now = self.now
                if self.now.mono % 1_000_000 == 0:
                    member.node.tick(self.now)
                else:
                    member.node.on_timer(self.now)
            self.run()

    def settle(self, *names: str, seconds: float = 10) -> None:
        """Let time pass until these nodes, or all, serve clients."""
        for _ in range(int(seconds * 20)):
            waited = [self.members[name] for name in names or self.members]
            if all(member.phase == READY for member in waited):
                return
            self.advance(0.05)
        told = {name: (member.phase, member.stopped) for name, member in self.members.items()}
        raise AssertionError(f"not ready: {told}")

    @property
    def leaders(self) -> set[str]:
        """Who leads, as the running nodes see it."""
        return {member.node.membership.raft.leader for member in self.members.values()}
