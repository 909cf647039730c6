"""What goes wrong in the mirror world: drawn by seed, counted, and healed at the end."""

from functools import partial
from typing import TYPE_CHECKING

from mirrormq.mirror.views import REMOVE, Change

if TYPE_CHECKING:
    from mirrormq.sim.mirrornode import MirrorNode
    from mirrormq.sim.mirrorworld import MirrorWorld

MS = 1_000


class Faults:
    """The bad luck of a world."""

    def __init__(self, world: "MirrorWorld") -> None:
        self.world = world
        self.is_over = False
        rng = world.rng
        self._kinds = {
            self._crash: 4,
            self._rack: rng.choice((0, 1)),
            self._power: rng.choice((0, 1)),
            self._reset: 4,
            self._cut: rng.choice((0, 3)),
            self._isolate: rng.choice((0, 2)),
            self._freeze: rng.choice((0, 3)),
            self._slow: 1,
            self._compact: 4,
            self._lose_pins: 1,
            self._transfer: 2,
            self._demote: 1,
            self._synchronise: 1,
            self._delay: 1,
            self._mend: 6,
        }
        self._gap_ms = rng.choice((300, 1_000, 3_000))

    def begin(self) -> None:
        """From now on."""
        world = self.world
        world.at(world.now + world.rng.randint(1, self._gap_ms) * MS, self._strike)

    def heal(self) -> None:
        """No more faults, and the old ones are repaired."""
        world = self.world
        self.is_over = world.is_healed = True
        world.mend()
        world.refusing = 0.0
        world.delay_us = 1_000
        world.options = {
            queue: options._replace(is_manual=False, sync_bytes_per_second=0)
            for queue, options in world.options.items()
        }
        for node in world.nodes.values():
            node.flush_us = 2_000
            node.paused_until = min(node.paused_until, world.now)
            world.start(node.name)
            if node.mirrors is not None:
                for queue, options in world.options.items():
                    node.mirrors.set_options(queue, options)
                    node.mirrors.synchronise(queue)

    def _strike(self) -> None:
        world = self.world
        if self.is_over:
            return
        world.at(world.now + world.rng.randint(1, self._gap_ms) * MS, self._strike)
        kinds = list(self._kinds)
        world.rng.choices(kinds, [self._kinds[kind] for kind in kinds])[0]()
        world.stats.faults += 1

    def _victim(self) -> "MirrorNode":
        world = self.world
        view = world.store.views[world.rng.choice(world.queue_ids)]
        if view.master and world.rng.random() < 0.4:
            return world.nodes[view.master]
        return world.nodes[world.rng.choice(list(world.nodes))]

    def _later(self, name: str) -> None:
        world = self.world
        wait = world.rng.choice((5, 60, 300, 900, 2_000)) * MS
        world.at(world.now + wait, partial(world.start, name))

    def _crash(self) -> None:
        name = self._victim().name
        self.world.crash(name)
        self._later(name)

    def _rack(self) -> None:
        """All members of a queue at once."""
        world = self.world
        for entry in world.store.views[world.rng.choice(world.queue_ids)].members:
            world.crash(entry.node)
            self._later(entry.node)

    def _power(self) -> None:
        for name in self.world.nodes:
            self.world.crash(name)
            self._later(name)

    def _pair(self) -> tuple[str, str]:
        one, other = self.world.rng.sample(list(self.world.nodes), 2)
        return one, other

    def _reset(self) -> None:
        one, other = self._pair()
        self.world.say(f"reset {one} {other}")
        self.world.reset(one, other)

    def _cut(self) -> None:
        one, other = self._pair()
        self.world.say(f"cut {one} {other}")
        self.world.sever(one, other)
        if self.world.rng.random() < 0.5:
            self.world.sever(other, one)

    def _isolate(self) -> None:
        name = self._victim().name
        self.world.say(f"isolate {name}")
        for other in self.world.nodes:
            if other != name:
                self.world.sever(name, other)
                self.world.sever(other, name)

    def _freeze(self) -> None:
        node, world = self._victim(), self.world
        if node.is_running:
            world.say(f"freeze {node.name}")
            node.paused_since = world.now
            node.paused_until = world.now + world.rng.choice((30, 200, 600, 1_500)) * MS
            world.at(node.paused_until, partial(world.soon, node))

    def _slow(self) -> None:
        node = self._victim()
        node.flush_us = self.world.rng.choice((500, 2_000, 50_000, 500_000, 3_000_000))
        self.world.say(f"disk of {node.name}: {node.flush_us}")

    def _compact(self) -> None:
        for node in self.world.nodes.values():
            for log in node.logs.values():
                if node.is_up and self.world.rng.random() < 0.7:
                    log.compact(log.folded - self.world.rng.randrange(8))

    def _lose_pins(self) -> None:
        """Snapshots that held too much are given up."""
        for node in self.world.nodes.values():
            for log in node.logs.values():
                log.lose_pins()

    def _transfer(self) -> None:
        world = self.world
        view = world.store.views[world.rng.choice(world.queue_ids)]
        node = world.nodes.get(view.master)
        if node is not None and node.mirrors is not None and node.is_running:
            to = world.rng.choice(view.members).node
            if node.mirrors.transfer(view.id, to, node.now):
                world.say(f"transfer {view.id} to {to}")
                world.soon(node)

    def _synchronise(self) -> None:
        """An operator wants old records copied, or thinks better of it."""
        world = self.world
        view = world.store.views[world.rng.choice(world.queue_ids)]
        node = world.nodes.get(view.master)
        if node is not None and node.mirrors is not None and node.is_running:
            node.mirrors.synchronise(view.id, wanted=world.rng.random() < 0.6)
            world.soon(node)

    def _demote(self) -> None:
        """A spurious removal, as an operator's policy may ask for."""
        world = self.world
        view = world.store.views[world.rng.choice(world.queue_ids)]
        entry = world.rng.choice(view.members)
        if len(view.members) > 1:
            world.store.change(Change(view.id, view.epoch, REMOVE, entry.node, entry.start))

    def _delay(self) -> None:
        self.world.delay_us = self.world.rng.choice((200, 1_000, 8_000, 100_000))

    def _mend(self) -> None:
        self.world.mend()
