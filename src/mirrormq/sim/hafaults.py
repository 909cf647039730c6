"""The faults of a run with mirrored queues: those of any cluster, aimed at masters and mirrors, and operators
who change policies, move masters and ask for synchronisation meanwhile.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirrormq.base.types import Now
from mirrormq.meta.records import View
from mirrormq.node.memberframes import ForceForget
from mirrormq.node.node import Node
from mirrormq.node.partition import PAUSE_MINORITY, SERVING, STOP_PROCESSING
from mirrormq.sim.clusterfaults import Faults
from mirrormq.sim.clusternode import SimNode
from mirrormq.sim.haclient import BRIEF, PLAIN, SPECS
from mirrormq.sim.timeline import SECOND

if TYPE_CHECKING:
    from mirrormq.sim.haworld import HaWorld

CONFIRMS, FAULTS = 200, 5
"""A seed counts with so many of each."""
LONGER_US = 20 * SECOND
"""How much longer faults may last for that."""
STOP_US = 10 * SECOND
"""A node that stops gives up handing over after this time."""
RISKY = "third"
"""The queue whose policy may allow a lossy promotion."""


class HaFaults(Faults):
    """Draws faults for a world with mirrored queues."""

    periods = (200_000, 600_000, 1_500_000)

    def __init__(self, world: "HaWorld") -> None:
        self.ha = world
        if world.settings.partition_handling not in (PAUSE_MINORITY, STOP_PROCESSING):
            self.forget_class = ForceForget  # the operator of a node that is gone knows that it is
        self._stopping: dict[SimNode, int] = {}
        """Nodes on their way out, and the lives that end so."""
        super().__init__(world)

    def kinds(self) -> list[Callable[[], bool]]:
        """Everything that may go wrong; each returns whether it did."""
        return [
            *super().kinds(),
            self._kill_master,
            self._kill_master,
            self._kill_mirror,
            self._kill_all,
            self._power_off_master,
            self._freeze_master,
            self._cut_master,
            self._change_policy,
            self._change_policy,
            self._move,
            self._synchronise,
            self._stop,
        ]

    def run(self, duration: int) -> None:
        """Faults for a while, and until there were enough."""
        if self.ha.settings.partition_handling != PAUSE_MINORITY:
            self._split()
            self.world.run_for(self.rng.randrange(7 * SECOND, 9 * SECOND))
            for node in self.world.nodes.values():
                if node.node is not None and node.node.partition.reaction == SERVING and node.is_open:
                    for _ in range(2):  # those from before may be waiting for something
                        self.world.connect(node)
            self.world.run_for(self.rng.randrange(2 * SECOND, 5 * SECOND))
        super().run(duration)
        end = self.world.now + LONGER_US
        while self.world.now < end and self.world.stats.faults < FAULTS:
            self._period = min(self.periods)
            super().run(SECOND // 2)

    def heal(self) -> None:
        """Undo everything."""
        for node, life in list(self._stopping.items()):
            self._end(node, life)
        super().heal()
        self.ha.ask_for_rest()

    # --- aimed at masters and mirrors ---

    def _view(self) -> View | None:
        views = [facts.view for facts in self.ha.mirrors.facts.values() if not facts.is_deleted]
        return self.rng.choice(views) if views else None

    def _master(self) -> SimNode | None:
        view = self._view()
        node = self.world.nodes.get(view.master) if view is not None else None
        return node if node is not None and node.node is not None else None

    def _kill_master(self) -> bool:
        node = self._master()
        if node is None:
            return False
        self.world.kill(node.name, "which is a master")
        self._start_later(node)
        return True

    def _power_off_master(self) -> bool:
        node = self._master()
        if node is None:
            return False
        self.world.power_off(node.name)
        self._start_later(node)
        return True

    def _kill_mirror(self) -> bool:
        view = self._view()
        names = _mirrors(view) if view is not None else []
        up = [node for name in names if (node := self.world.nodes[name]).node is not None]
        if not up:
            return False
        node = self.rng.choice(up)
        self.world.kill(node.name, "which is a mirror")
        self._start_later(node)
        return True

    def _kill_all(self) -> bool:
        """All processes at once."""
        up = [node for node in self.world.nodes.values() if node.node is not None]
        for node in up:
            self.world.kill(node.name, "with all others")
            self._start_later(node)
        return bool(up)

    def _freeze_master(self) -> bool:
        """Longer than any lease."""
        node = self._master()
        if node is None or node.is_paused:
            return False
        until = self.world.now + self.rng.randrange(5 * SECOND, 12 * SECOND)
        self.world.say(f"pause {node.name}, a master, until {until}")
        node.pause(until)
        return True

    def _cut_master(self) -> bool:
        """From one mirror only, sometimes one way."""
        view = self._view()
        names = _mirrors(view) if view is not None else []
        if view is None or not names:
            return False
        other = self.rng.choice(names)
        if other == view.master:
            return False
        ways = self.rng.choice(
            (
                [(view.master, other)],
                [(other, view.master)],
                [(view.master, other), (other, view.master)],
            )
        )
        self._cut_ways(ways)
        return True

    def _split(self) -> None:
        """Part a minority from the others for longer than a mode waits, often with all copies of a queue."""
        names, view = sorted(self.world.nodes), self._view()
        most = len(names) // 2
        inside = self.rng.sample(names, self.rng.randrange(1, most + 1))
        members = [entry.node for entry in view.members] if view is not None else []
        if 0 < len(members) <= most and self.rng.random() < 0.7:
            inside = members
        others = [name for name in names if name not in inside]
        ways = [(one, other) for one in inside for other in others]
        if self.rng.random() < 0.3:
            # Not from all of them: a master that has its mirrors, and not the leader.
            ways = [way for way in ways if way[1] != others[0]]
        ways += [(other, one) for one, other in ways]
        links = self.world.links
        links.cut_ways(ways)
        self.world.say(f"split {ways}")
        self.world.stats.faults += 1
        self._later(self.rng.randrange(10 * SECOND, 20 * SECOND), lambda: links.mend(ways))

    def _stop(self) -> bool:
        """A process stops in good order: it sends its clients away, gives its queues to others and ends."""
        node = self._up()
        if node is None or not node.is_open:
            return False
        life = self._stopping[node] = node.life
        self.world.say(f"{node.name} stops in good order")
        node.is_open = False

        def give_away(core: Node, now: Now) -> None:
            core.hand_over(now, lambda: self.world.after(0, lambda: self._end(node, life)))

        node.input(lambda core, now: core.drain(now, "the node stops"))
        self.world.after(SECOND // 20, lambda: node.input(give_away) if node.life == life else None)
        self.world.after(STOP_US, lambda: self._end(node, life))
        return True

    def _end(self, node: SimNode, life: int) -> None:
        if self._stopping.get(node) == life:
            del self._stopping[node]
            if node.life == life:
                self.world.kill(node.name, "which has stopped")
                self._start_later(node)

    # --- operators ---

    def policy(self, queue: str) -> dict[str, Any]:
        """Some policy for a queue."""
        rng, names = self.rng, sorted(self.world.nodes)
        modes = ["all", "all", "exactly", "nodes"] + (["none"] if queue == PLAIN else [])
        mode = rng.choice(modes)
        if mode == "none":
            return {"max-length": 1_000_000}
        found: dict[str, Any] = {"ha-mode": mode}
        if mode == "exactly":
            found["ha-params"] = rng.randrange(2 if queue == BRIEF else 1, len(names) + 1)
        elif mode == "nodes":
            found["ha-params"] = rng.sample(names, rng.randrange(2, len(names) + 1))
        if rng.random() < 0.3:
            found["ha-sync-mode"] = "manual"
        # With fewer copies than that it would take no publish, ever.
        if rng.random() < 0.2 and found.get("ha-params") != 1:
            found["ha-min-in-sync"] = 2
        if rng.random() < 0.3:
            found["ha-sync-max-throughput"] = rng.choice((20_000, 1_000_000))
        if queue == RISKY and self.ha.is_risky:
            found["ha-promote-on-failure"] = "always"
        found["ha-replace-delay"] = rng.choice((0, 500, 3_000))
        found["ha-mirror-timeout"] = rng.choice((500, 3_000, 10_000))
        return found

    def _change_policy(self) -> bool:
        queue = self.rng.choice(list(SPECS))
        return self.ha.set_policy(queue, self.policy(queue))

    def _move(self) -> bool:
        view = self._view()
        if view is None:
            return False
        return self.ha.move(view, self.rng.choice(list(self.world.nodes)))

    def _synchronise(self) -> bool:
        view = self._view()
        return view is not None and self.ha.synchronise(view, wanted=self.rng.random() < 0.8)

    def _may_lose(self, node: SimNode) -> bool:
        """Not the last copy that is in sync while others wait for it: nobody promotes by force here."""
        if not super()._may_lose(node):
            return False
        return not any(
            facts.view.learners and all(entry.node == node.name for entry in facts.view.members)
            for facts in self.ha.mirrors.facts.values()
            if not facts.is_deleted
        )


def _mirrors(view: View) -> list[str]:
    """The nodes with copies, without the master."""
    return [entry.node for entry in view.members[1:]] + [entry.node for entry in view.learners]
