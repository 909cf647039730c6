"""Copies of mirrored queues on a few nodes: the real protocol over one metadata state, logs in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirrormq.base.types import Now
from mirrormq.meta import commands as c
from mirrormq.meta.records import View
from mirrormq.meta.state import MetaState
from mirrormq.meta.tables import Change as MetaChange
from mirrormq.mirror.copy import DEFAULTS
from mirrormq.mirror.mirrors import Mirrors
from mirrormq.mirror.ports import Options
from mirrormq.mirror.views import Change
from mirrormq.node.happenings import Counters
from mirrormq.sim.memorylog import MemoryCopyLog
from mirrormq.sim.mirrorstream import PERSISTENT, publish

NOW = Now(1_000_000, 1_700_000_000_000_000)


class KitCopies:
    """What one node has; the port that reports and requests use."""

    def __init__(self, net: CopiesNet, name: str) -> None:
        self.net = net
        self.name = name
        self.mirrors = Mirrors(name, net.state.nodes[name].start, self, NOW)
        self.counters = Counters()
        self.logs: dict[int, MemoryCopyLog] = {}
        self.wishes: list[tuple[Any, ...]] = []
        """What was asked for: ("sync", id, wanted), ("transfer", id, node)."""
        self.told: list[tuple[str, float, int, str]] = []
        """What `progress` says."""
        self.refusal = ""
        """Why nothing is done."""
        self.waiting: list[Callable[[str], None]] | None = None
        """If a list: transfers under way, to be ended by the test."""

    # --- the port ---

    def synchronise(self, queue_id: int, wanted: bool) -> str:
        self.wishes.append(("sync", queue_id, wanted))
        if not self.refusal:
            self.mirrors.synchronise(queue_id, wanted=wanted)
        return self.refusal

    def transfer(self, queue_id: int, to: str, done: Callable[[str], None]) -> None:
        self.wishes.append(("transfer", queue_id, to))
        if self.waiting is not None:
            self.waiting.append(done)
        else:
            done(self.refusal)

    def progress(self, queue_id: int) -> list[tuple[str, float, int, str]]:
        assert queue_id in self.mirrors.copies
        return self.told

    # --- outside ---

    def send(self, peer: str, parts: tuple[bytes | memoryview, ...]) -> bool:
        self.net.wire.append((self.name, peer, b"".join(parts)))
        return True

    def propose(self, change: Change, done: Callable[[bool], None]) -> None:
        if self.net.is_fixed:
            done(False)
            return
        view = next(view for view in self.net.state.views.values() if view.id == change.queue)
        command = c.ChangeView(
            view.vhost,
            view.name,
            view.id,
            change.epoch,
            change.kind,  # type: ignore[arg-type]
            change.node,
            change.start,
        )
        done(self.net.state.apply(command).ok)

    # --- views ---

    def follow(self, view: View) -> None:
        names = {entry.node for entry in (*view.members, *view.learners)}
        if self.name in names:
            log = self.logs.setdefault(view.id, MemoryCopyLog(view.log_id))
            self.mirrors.view_changed(view, log, NOW, self.net.options)

    def append(self, queue_id: int, count: int = 1) -> None:
        """The master appends messages; they go out with the next run."""
        master = self.mirrors.copies[queue_id].master
        assert master is not None
        master.touch(NOW)
        log = self.logs[queue_id]
        for _ in range(count):
            self.net.published += 1
            log.write(publish((1, self.net.published), PERSISTENT, b"x"))


class CopiesNet:
    """The copies of several nodes, linked with each other."""

    def __init__(
        self, state: MetaState, *names: str, options: Options = DEFAULTS, is_fixed: bool = False
    ) -> None:
        """With `is_fixed` the protocol changes no view."""
        self.state = state
        self.is_fixed = is_fixed
        self.options = options
        self.published = 0
        self.wire: list[tuple[str, str, bytes]] = []
        self.deaf: set[str] = set()
        """Nodes that get no frames for now."""
        self.nodes = {name: KitCopies(self, name) for name in names}
        state.watch(self._changed)
        for name, node in self.nodes.items():
            for peer, other in self.nodes.items():
                if peer != name:
                    node.mirrors.link_up(peer, other.mirrors.start, NOW)
        for view in state.views.values():
            self._follow(view)
        self.run()

    def __getitem__(self, name: str) -> KitCopies:
        return self.nodes[name]

    def _changed(self, changes: list[MetaChange]) -> None:
        for change in changes:
            if isinstance(change.record, View) and change.kind == "put":
                self._follow(change.record)

    def _follow(self, view: View) -> None:
        for node in self.nodes.values():
            node.follow(view)

    def run(self) -> None:
        """Pass frames and flush until nothing moves."""
        for _ in range(20):
            for node in self.nodes.values():
                node.mirrors.tick(NOW)
                for log in node.logs.values():
                    if log.begin_flush():
                        log.finish_flush()
                        log.on_flushed()
                node.mirrors.end_pass(NOW)
            held = [frame for frame in self.wire if frame[1] in self.deaf]
            frames = [frame for frame in self.wire if frame[1] not in self.deaf]
            self.wire = held
            for sender, target, payload in frames:
                self.nodes[target].mirrors.receive(sender, payload, NOW)
