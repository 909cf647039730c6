"""Nodes that agree on definitions by etcd, with answers, watches, links and processes that get lost.

Guarantee: the same seed gives the same run. The promises are those of `metaworld`, and one more: a node that
takes itself to hold a lease has its key in etcd.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from mirrormq.base import limits
from mirrormq.cluster.etcd import api
from mirrormq.cluster.etcd.agreement import EtcdAgreement, EtcdOptions
from mirrormq.cluster.metadata import Metadata
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft.raft import Myself
from mirrormq.meta import records
from mirrormq.meta.state import MetaState
from mirrormq.meta.tables import Change as MetaChange
from mirrormq.sim.etcdserver import EtcdServer
from mirrormq.sim.machine import SeededRng
from mirrormq.sim.metaworld import RAFT, SECOND, MetaStats, MetaWorld
from mirrormq.sim.model import Violation

PREFIX = "/test"


@dataclass
class Client:
    """What is between a node and etcd."""

    asked: deque[api.Request] = field(default_factory=deque)
    answers: deque[api.Answer | api.Tidings] = field(default_factory=deque)
    watch: api.Watch | None = None
    told: int = 0
    """The revision the watch has told last."""


class EtcdNode:
    """One node: its definitions, and how it agrees on them."""

    def __init__(self, world: EtcdWorld, name: str, start: int) -> None:
        self.world = world
        self.name = name
        self.start = start
        self.client = Client()
        self.state = MetaState()
        self.applied: Counter[str] = Counter()
        self.state.watch(self._on_changes)
        self.events: list[ev.Event] = []
        tokens = tuple(f"{name}-{number}".encode().ljust(16) for number in range(1, start + 1))
        me = Myself(name, name.encode().ljust(16), start, tokens)
        self.metadata = world.make_metadata(
            self.state,
            (name, start),
            lambda machine: EtcdAgreement(
                me, machine, SeededRng(f"{name} {start}"), EtcdOptions(PREFIX), was_member=start > 1
            ),
            lambda peer, payload: None,  # noqa: ARG005
        )
        assert isinstance(self.metadata.raft, EtcdAgreement)
        self.raft = self.metadata.raft
        self.metadata.on_event = self.events.append
        self.raft.begin()
        self.raft.speak_up()

    def _on_changes(self, changes: list[MetaChange]) -> None:
        for change in changes:
            if isinstance(change.record, records.VHost) and change.kind == "put":
                self.applied[change.record.name] += 1

    def end_pass(self) -> None:
        """One pass, and what it sends."""
        self.metadata.end_pass(self.world.now)
        outgoing, self.raft.outgoing = self.raft.outgoing, []
        for peer, frame in outgoing:
            self.world.send(self.name, peer, RAFT, frame)
        for request in self.raft.take_requests():
            if isinstance(request, api.Watch):
                self.client.watch, self.client.told = request, 0
            else:
                self.client.asked.append(request)


class EtcdWorld(MetaWorld):
    """All of them, and etcd."""

    def __init__(
        self,
        seed: int = 1,
        names: tuple[str, ...] = ("n1", "n2", "n3"),
        make_metadata: type[Metadata] = Metadata,
        *,
        trouble: float = 0.0,
    ) -> None:
        """Nodes that have entered one cluster. `trouble`: how often something gets lost."""
        self.rng = random.Random(seed)
        self.make_metadata = make_metadata
        self.now = SECOND
        self.etcd = EtcdServer()
        self.trouble = 0.0
        self.cut_off: set[str] = set()
        """Nodes that cannot reach etcd."""
        self.nodes: dict[str, Any] = {}
        self.starts = Counter()
        self.wires = {}
        self.done = {}
        self.proposed = {}
        self.open_reads = Counter()
        self.stats = MetaStats()
        for name in names:
            self.boot(name)
        self.until(self.is_whole)
        self.trouble = trouble

    def is_whole(self) -> bool:
        """Do all nodes hold a lease and know the same leader?"""
        nodes = self.nodes.values()
        return len({node.raft.leader for node in nodes}) == 1 and all(
            node.raft.leader and node.raft.lease_until(self.now) > self.now for node in nodes
        )

    def boot(self, name: str) -> None:
        """Start a node, linked to all others."""
        self.starts[name] += 1
        self.nodes[name] = EtcdNode(self, name, self.starts[name])
        for other in sorted(self.nodes):
            if other != name:
                self.connect(name, other)

    def crash(self, name: str) -> None:
        """kill -9: what was asked may still be done."""
        node = self.nodes.pop(name)
        for request in node.client.asked:
            if self.rng.random() < 0.5:
                self.etcd.handle(self.now, request)
        for other in sorted(self.nodes):
            self.cut(name, other)

    # --- a run ---

    def run(self) -> None:
        """Proposals and faults, then everything is healed and must come to an end."""
        names = ("etcd_log_entries_max", "etcd_trailing_entries", "etcd_part_bytes", "etcd_entries_per_read")
        before = [getattr(limits, name) for name in names]
        limits.etcd_log_entries_max = self.rng.choice((8, 4096))
        limits.etcd_trailing_entries = self.rng.choice((2, 5))
        limits.etcd_part_bytes = self.rng.choice((200, 256 * 1024))
        limits.etcd_entries_per_read = self.rng.choice((2, 32))
        try:
            self._run()
        finally:
            for name, value in zip(names, before, strict=True):
                setattr(limits, name, value)

    def _disturb(self, down: list[str]) -> None:
        rng = self.rng
        event = rng.random()
        name = rng.choice(sorted(self.nodes))
        if event < 0.08:
            self.etcd.compact(rng.randint(self.etcd.compacted, self.etcd.revision))
        elif event < 0.14:
            self.nodes[name].client.watch = None
            self.nodes[name].client.answers.append(api.WatchLost(self._token(name), "cut"))
        elif event < 0.2:
            self.cut_off.add(name)
        elif event < 0.3:
            self.cut_off.clear()
        elif event < 0.33:
            self.now += 7 * SECOND
        else:
            super()._disturb(down)
            return
        self.stats.faults += 1

    def _token(self, name: str) -> int:
        return int(self.nodes[name].raft._view._watch)

    def _check(self) -> None:
        super()._check()
        for node in self.nodes.values():
            unfit = [event for event in node.events if isinstance(event, ev.Unfit | ev.FolderRefused)]
            if unfit:
                raise Violation(f"{node.name} was refused: {unfit}")

    # --- time ---

    def step(self) -> None:
        """One of the things that can happen next."""
        self.stats.events += 1
        self.now += self.rng.choice((100, 1_000, 20_000))
        self.etcd.pass_time(self.now)
        name = self.rng.choice(sorted(self.nodes))
        node = self.nodes[name]
        self._serve(node)
        if node.client.answers:
            node.raft.answer(self.now, node.client.answers.popleft())
        for (sender, receiver), wire in sorted(self.wires.items()):
            if receiver == name and (found := self._next_on(wire)) is not None:
                node.raft.receive(self.now, sender, found[1])
        if self.now >= node.raft.timer_at:
            node.raft.on_timer(self.now)
        node.end_pass()
        self._check_leases()

    def _serve(self, node: EtcdNode) -> None:
        """Let etcd answer one request of a node, and tell some changes."""
        client, rng = node.client, self.rng
        is_lost = rng.random() < self.trouble
        if client.asked:
            request = client.asked.popleft()
            answer: api.Answer = api.Failed(request.token, "it was lost")
            # Lost on the way there, or on the way back.
            if node.name not in self.cut_off and (not is_lost or rng.random() < 0.5):
                made = self.etcd.handle(self.now, request)
                answer = answer if is_lost else made
            client.answers.append(answer)
        watch = client.watch
        if watch is not None and node.name not in self.cut_off:
            found = self.etcd.changes(watch, client.told, rng.choice((1, 3, 100)))
            if found is None:
                client.answers.append(api.WatchLost(watch.token, "compacted"))
                client.watch = None
            elif found:
                client.told = found[-1][0]
                client.answers.append(api.Seen(watch.token, tuple(change for _, change in found)))

    def _check_leases(self) -> None:
        for node in self.nodes.values():
            until = node.raft.lease_until(self.now)
            key = f"{PREFIX}/now/nodes/{node.name}".encode()
            if until > self.now and key not in self.etcd.keys:
                raise Violation(f"{node.name} takes itself to hold a lease, and has no key")

    def until(self, is_so: Any, steps: int = 40_000) -> None:
        """Steps until something is so; what is lost is lost no more."""
        trouble, self.trouble = self.trouble, 0.0
        self.cut_off.clear()
        super().until(is_so, steps)
        self.trouble = trouble
