"""A few nodes with one mirrored queue in the mirror world, driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mirrormq.base import limits
from mirrormq.mirror.ports import Options
from mirrormq.mirror.views import ADD_LEARNER, REMOVE, Change
from mirrormq.sim.mirrorstore import SimView
from mirrormq.sim.mirrorstream import Key
from mirrormq.sim.mirrorworld import MS, MirrorWorld

World = type[MirrorWorld]


class Stage:
    """Some nodes with one queue whose members are the first `members` of them, mastered by n1."""

    def __init__(
        self, world: World, *, size: int = 3, members: int = 0, options: Options | None = None
    ) -> None:
        self.world = world(1, size=size, queues=1)
        self.world.wanted[1] = members or size
        self.world.delay_us = 500
        self.world.clients.consumes = False
        if options is not None:
            self.world.options[1] = options
        self.world.form()
        for node in self.world.nodes.values():
            node.flush_us = 200
        self.publish("n1")

    @property
    def view(self) -> SimView:
        return self.world.store.views[1]

    def begin(self, home: str, *, persistent: bool = True) -> Key:
        """Publish."""
        node = self.world.nodes[home]
        key = node.homes[1].add(persistent=persistent)
        self.world.clients.push_publishes(node, node.homes[1])
        return key

    def send(self, home: str, *, persistent: bool = True) -> Key:
        """Publish, and wait until it is in the master's log."""
        key = self.begin(home, persistent=persistent)
        self.run(8)
        return key

    def publish(self, home: str, *, persistent: bool = True) -> Key:
        """Publish, and wait for the confirm."""
        key = self.send(home, persistent=persistent)
        self.until(lambda: self.has_confirmed(key))
        return key

    def has_confirmed(self, key: Key) -> bool:
        facts = self.world.checker.of(1)
        return key in facts.confirmed or key in facts.removed

    def run(self, ms: int) -> None:
        self.world.run_for(ms * MS)

    def until(self, condition: Callable[[], bool], ms: int = 10_000) -> None:
        self.world.run_until(condition, ms * MS)

    def cut(self, *pairs: str) -> None:
        """`"n1>n2"`: hold what n1 sends to n2."""
        for pair in pairs:
            sender, receiver = pair.split(">")
            self.world.sever(sender, receiver)

    def mend(self, *pairs: str) -> None:
        for pair in pairs:
            sender, receiver = pair.split(">")
            self.world.unsever(sender, receiver)

    def promote(self, name: str) -> None:
        self.world.store.promote(1, next(one for one in self.view.members if one.node == name))
        self.run(30)

    def remove(self, name: str) -> None:
        entry = next(one for one in self.view.members if one.node == name)
        assert self.world.store.change(Change(1, self.view.epoch, REMOVE, name, entry.start))
        self.run(60)

    def learn(self, name: str, start: int = 0) -> bool:
        start = start or self.world.nodes[name].start_no
        return self.world.store.change(Change(1, self.view.epoch, ADD_LEARNER, name, start))

    def is_member(self, name: str) -> bool:
        return any(one.node == name and not one.is_restarted for one in self.view.members)

    def end(self) -> None:
        """Heal everything: it goes on, and everybody agrees."""
        world = self.world
        world.storeless.clear()
        world.deaf.clear()
        world.faults.heal()
        for node in world.nodes.values():
            node.flush_us = 200
        self.until(lambda: all(self.is_member(name) for name in list(world.nodes)[: world.wanted[1]]), 20_000)
        home = self.view.master
        self.publish(home)
        self.run(500)
        world.checker.final()


@contextmanager
def bound(**values: int) -> Iterator[None]:
    before = {name: getattr(limits, name) for name in values}
    try:
        for name, value in values.items():
            setattr(limits, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(limits, name, value)


def compact_all(stage: Stage) -> None:
    for node in stage.world.nodes.values():
        if 1 in node.logs:
            node.logs[1].compact(node.logs[1].folded)


def use_logs(monkeypatch: pytest.MonkeyPatch, *, is_on_disk: bool) -> None:
    """Have the copies of a world on disks with small files, or in memory."""
    monkeypatch.setattr(MirrorWorld, "is_on_disk", is_on_disk)
    for name, value in {
        "journal_file_bytes": 1_000,
        "journal_files_max": 1,
        "segment_bytes_min": 1_000,
        "segment_dead_bytes_max": 500,
        "place_bytes_min": 100,
        "recent_bytes_max": 1_000,
    }.items():
        monkeypatch.setattr(limits, name, value)
