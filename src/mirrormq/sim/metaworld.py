"""Nodes that agree on definitions, under broken links, slow disks and crashes, chosen by a seed.

Guarantee: the same seed gives the same run. Promises: every proposal is told at most once, and once if its
node lives; what was told is on all nodes in the end; all nodes have the same definitions; proposals of one
node are applied once and in their order; a read shows everything that was told anywhere before it was asked.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mirrormq.base import limits
from mirrormq.cluster.metadata import Metadata
from mirrormq.cluster.raft.membership import NON_VOTER, VOTER, Change
from mirrormq.cluster.raft.raft import Myself, Options, Raft
from mirrormq.meta import commands, records
from mirrormq.meta.state import MetaState, Outcome
from mirrormq.meta.tables import Change as MetaChange
from mirrormq.sim.disk import MemoryDisk
from mirrormq.sim.machine import SeededRng
from mirrormq.sim.model import Violation

SECOND = 1_000_000
RAFT, PROPOSALS = 0, 1
PROPOSED = 60


class ReadingDisk(MemoryDisk):
    """The same with the outbox's way to read, which the other side of the port hides."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        super().__init__(files)
        self.reads: list[tuple[int, bytes]] = []

    def read(self, name: str, offset: int = 0, length: int = -1, token: int = 0) -> Any:
        """The whole file; with a token, a part of it that is reported later."""
        data = super().read(name)
        if token:
            self.reads.append((token, data[offset : offset + length]))
        return data


@dataclass
class MetaStats:
    """What a run amounts to."""

    events: int = 0
    faults: int = 0
    told: int = 0
    reads: int = 0


@dataclass
class Wire:
    """One direction of a link."""

    control: deque[tuple[int, bytes]] = field(default_factory=deque)
    bulk: deque[tuple[int, bytes]] = field(default_factory=deque)


class MetaNode:
    """One node: its definitions, its Raft, its disk."""

    def __init__(self, cluster: MetaWorld, name: str, disk: ReadingDisk, start: int) -> None:
        self.cluster = cluster
        self.name = name
        self.disk = disk
        self.start = start
        self.state = MetaState()
        self.applied: Counter[str] = Counter()
        self.state.watch(self._on_changes)
        tokens = tuple(f"{name}-{number}".encode().ljust(16) for number in range(1, start + 1))
        me = Myself(name, name.encode().ljust(16), start, tokens)
        self.metadata = cluster.make_metadata(
            self.state,
            (name, start),
            lambda machine: Raft(me, machine, disk, SeededRng(f"{name} {start}"), options=cluster.options),
            lambda peer, payload: cluster.send(name, peer, PROPOSALS, payload),
        )
        assert isinstance(self.metadata.raft, Raft)
        self.raft = self.metadata.raft
        self.raft.start(cluster.now, disk, may_form=name == "n1")

    def _on_changes(self, changes: list[MetaChange]) -> None:
        for change in changes:
            if isinstance(change.record, records.VHost) and change.kind == "put":
                self.applied[change.record.name] += 1

    def end_pass(self) -> None:
        """One pass, and what it sends."""
        self.metadata.end_pass(self.cluster.now)
        outgoing, self.raft.outgoing = self.raft.outgoing, []
        for peer, frame in outgoing:
            self.cluster.send(self.name, peer, RAFT, frame)


class MetaWorld:
    """All of them, and the links between them."""

    def __init__(
        self,
        seed: int = 1,
        names: tuple[str, ...] = ("n1", "n2", "n3"),
        make_metadata: type[Metadata] = Metadata,
        log_bytes_max: int = 0,
    ) -> None:
        """Nodes that have formed a group; 0: how long their logs may grow is drawn."""
        self.rng = random.Random(seed)
        self.make_metadata = make_metadata
        self.now = SECOND
        self.nodes: dict[str, Any] = {}
        """`MetaNode`, or what another world has in its place."""
        self.starts: Counter[str] = Counter()
        self.disks = {name: ReadingDisk() for name in names}
        self.wires: dict[tuple[str, str], Wire] = {}
        self.done: dict[str, list[Outcome]] = {}
        self.proposed: dict[str, str] = {}
        self.open_reads: Counter[tuple[str, int]] = Counter()
        """Reads that were not told, by node and start."""
        self.stats = MetaStats()
        self.options = Options(log_bytes_max=log_bytes_max or self.rng.choice((600, 1 << 22)))
        for name in names:
            self.boot(name)
        self.settle()
        for name in names[1:]:
            for role in (NON_VOTER, VOTER):
                self.leader.raft.change(self.now, Change(name, role, name.encode().ljust(16)), role)
                self.settle()

    @property
    def leader(self) -> Any:
        """Whoever leads in the highest term."""
        return max((node for node in self.nodes.values() if node.raft.is_leader), key=lambda n: n.raft.term)

    def boot(self, name: str) -> None:
        """Start a node on what its disk holds, linked to all others."""
        self.starts[name] += 1
        self.nodes[name] = MetaNode(self, name, self.disks[name], self.starts[name])
        for other in sorted(self.nodes):
            if other != name:
                self.connect(name, other)

    def crash(self, name: str) -> None:
        """kill -9 and a power failure in one: what was not flushed is gone."""
        node = self.nodes.pop(name)
        lost = node.disk.crash(lambda most: self.rng.randint(0, most))
        self.disks[name] = ReadingDisk({one: lost.read(one) for one in lost.list("")})
        for other in sorted(self.nodes):
            self.cut(name, other)

    def connect(self, one: str, other: str) -> None:
        """Open the link between two nodes, if both are up and it is not."""
        if (one, other) in self.wires or one not in self.nodes or other not in self.nodes:
            return
        self.wires[one, other], self.wires[other, one] = Wire(), Wire()
        for name, peer in ((one, other), (other, one)):
            self.nodes[name].raft.link_up(self.now, peer)
            self.nodes[name].metadata.link_up(peer)

    def cut(self, one: str, other: str) -> None:
        """The link ends on both sides; what was on its way is gone."""
        for name, peer in ((one, other), (other, one)):
            if self.wires.pop((name, peer), None) is not None and name in self.nodes:
                self.nodes[name].raft.link_down(self.now, peer, eof=True)

    def send(self, name: str, peer: str, kind: int, payload: bytes) -> None:
        """Put something on a link; without one it is lost."""
        if (name, peer) in self.wires:
            wire = self.wires[name, peer]
            lane = wire.bulk if len(payload) >= limits.peer_chunk_bytes else wire.control
            lane.append((kind, payload))

    def propose(self, name: str, vhost: str, *, wait: bool = True) -> None:
        """Have a node propose a vhost of that name."""
        self.proposed[vhost] = name
        heard = self.done.setdefault(vhost, [])
        command = commands.PutVHost(records.VHost(vhost, description="x" * self.rng.choice((0, 0, 0, 300))))
        self.nodes[name].metadata.propose(command, heard.append, wait)

    def read(self, name: str) -> None:
        """Have a node read, and look whether it finds what was told before."""
        node = self.nodes[name]
        told = [vhost for vhost, heard in self.done.items() if heard]
        key = (name, self.starts[name])
        self.open_reads[key] += 1

        def done() -> None:
            self.open_reads[key] -= 1
            self.stats.reads += 1
            missing = [vhost for vhost in told if vhost not in node.state.vhosts]
            if missing:
                raise Violation(f"a read on {name} does not show {missing}")

        node.metadata.read(done)

    # --- a run ---

    def run(self) -> None:
        """Proposals and faults, then everything is healed and must come to an end."""
        before = limits.raft_trailing_bytes_max, limits.peer_chunk_bytes
        limits.raft_trailing_bytes_max = self.rng.choice((0, before[0]))
        limits.peer_chunk_bytes = self.rng.choice((400, before[1]))
        try:
            self._run()
        finally:
            limits.raft_trailing_bytes_max, limits.peer_chunk_bytes = before

    def _run(self) -> None:
        down: list[str] = []
        for number in range(PROPOSED):
            name = self.rng.choice(sorted(self.nodes))
            vhost = f"{name}-{self.starts[name]}-{number:03}"
            self.propose(name, vhost, wait=self.rng.random() < 0.5)
            if self.rng.random() < 0.5:
                self.read(self.rng.choice(sorted(self.nodes)))
            self.settle(self.rng.choice((1, 10, 100)))
            self._disturb(down)
        for name in down:
            self.boot(name)
        for one in sorted(self.nodes):
            for other in sorted(self.nodes):
                if one < other:
                    self.connect(one, other)
        alive = [v for v, name in self.proposed.items() if v.startswith(f"{name}-{self.starts[name]}-")]
        self.until(lambda: all(self.done[vhost] for vhost in alive))
        self.until(lambda: not any(self.open_reads[name, self.starts[name]] for name in self.nodes))
        self.settle(2_000)
        self._check()

    def _disturb(self, down: list[str]) -> None:
        rng = self.rng
        event = rng.random()
        if event < 0.15:
            self.cut(*rng.sample(sorted(self.nodes), 2))
        elif event < 0.35:
            self.connect(*rng.sample(sorted(self.nodes), 2))
        elif event < 0.42 and not down:
            down.append(rng.choice(sorted(self.nodes)))
            self.crash(down[0])
        elif event < 0.6 and down:
            self.boot(down.pop())
        else:
            return
        self.stats.faults += 1

    def _check(self) -> None:
        states = {name: list(node.state.vhosts) for name, node in self.nodes.items()}
        first = next(iter(states.values()))
        if any(state != first for state in states.values()):
            raise Violation(f"nodes have different definitions: {states}")
        for vhost, heard in self.done.items():
            self.stats.told += len(heard)
            if len(heard) > 1:
                raise Violation(f"{vhost} was told {len(heard)} times")
            if heard and vhost not in first:
                raise Violation(f"{vhost} was told and is not there")
        for name, node in self.nodes.items():
            own = [vhost for vhost in first if vhost.startswith(f"{name}-")]
            if own != sorted(own, key=_order):
                raise Violation(f"proposals of {name} are out of order: {own}")
            twice = [vhost for vhost, times in node.applied.items() if times > 1]
            if twice:
                raise Violation(f"{name} has applied {twice} more than once")

    # --- time ---

    def step(self) -> None:
        """One of the things that can happen next."""
        self.stats.events += 1
        name = self.rng.choice(sorted(self.nodes))
        node = self.nodes[name]
        if self.rng.random() < 0.5 and (token := node.disk.finish_next()) is not None:
            node.raft.disk_done(self.now, token)
        if node.disk.reads:
            node.raft.disk_read(*node.disk.reads.pop(0))
        for (sender, receiver), wire in sorted(self.wires.items()):
            if receiver == name and (found := self._next_on(wire)) is not None:
                kind, payload = found
                if kind == RAFT:
                    node.raft.receive(self.now, sender, payload)
                else:
                    node.metadata.receive(payload)
        self.now += self.rng.choice((100, 1_000, 20_000))
        if self.now >= node.raft.timer_at:
            node.raft.on_timer(self.now)
        node.end_pass()

    def _next_on(self, wire: Wire) -> tuple[int, bytes] | None:
        """The lanes of a link are in order, but not against each other, and bulk is slow."""
        if wire.bulk and (not wire.control or self.rng.random() < 0.1):
            return wire.bulk.popleft()
        return wire.control.popleft() if wire.control else None

    def until(self, is_so: Callable[[], bool], steps: int = 40_000) -> None:
        """Steps until something is so."""
        for _ in range(steps):
            if is_so():
                return
            self.step()
        raise Violation("nothing goes on although everything is healed")

    def settle(self, steps: int = 300) -> None:
        """Some steps."""
        for _ in range(steps):
            self.step()


def _order(vhost: str) -> tuple[int, int]:
    _, start, number = vhost.split("-")
    return int(start), int(number)
