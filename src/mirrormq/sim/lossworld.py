"""Mirrored queues whose policies prefer service: learners that lack something take over again and again.

Guarantee: the same seed gives the same run. One queue of the world is risky in every seed: its mirrors are
synchronised slowly or not at all, and its master is killed as soon as it is the only copy in sync. In the end
every copy that was passed over is back, and every persistent message that was ever confirmed has been taken
out of its queue or of its salvage queue, the latter once (I15).
"""

from typing import Any

from mirrormq.node.node import Node
from mirrormq.sim.haclient import KEPT, HaClient
from mirrormq.sim.hafaults import HaFaults
from mirrormq.sim.haworld import HA_LIMITS, HaWorld, WatchedNode
from mirrormq.sim.timeline import SECOND


class LossClient(HaClient):
    """Publishes to the risky queue more than to any other, and seldom takes something out."""

    def _queue(self) -> str:
        return KEPT if self.world.rng.random() < 0.5 else super()._queue()

    def _consume(self) -> None:
        if self.world.rng.random() < 0.3:
            super()._consume()


class LossFaults(HaFaults):
    """Draws faults, and has promotions of the risky queue lose something."""

    is_async = False
    """Is the risky queue confirmed by its master alone, in this run?"""

    def run(self, duration: int) -> None:
        """Faults for a while, and somebody who hunts the risky queue."""
        self.world.every(SECOND // 2, self._hunt)
        super().run(duration)

    def policy(self, queue: str) -> dict[str, Any]:
        """Some policy for a queue; the risky one has one mirror, which is synchronised slowly."""
        found = super().policy(queue)
        if queue == KEPT:
            rate = self.rng.choice((1_000, 5_000))
            found |= {"ha-mode": "exactly", "ha-params": 2, "ha-promote-on-failure": "always"}
            found |= {"ha-sync-max-throughput": rate, "ha-replace-delay": self.rng.choice((0, 500))}
            found.pop("ha-min-in-sync", None)
            if self.is_async:
                found["ha-replication"] = "async"
        return found

    def heal(self) -> None:
        """Undo everything, and let copies be made at full speed."""
        definition = {**self.ha.policies[KEPT]}
        definition.pop("ha-sync-max-throughput", None)
        self.ha.policies[KEPT] = definition
        super().heal()

    def _hunt(self) -> None:
        """Kill what makes the next promotion a loss: the mirror that is in sync, then the master."""
        views = [facts.view for facts in self.ha.mirrors.facts.values() if not facts.is_deleted]
        view = next((view for view in views if view.name == KEPT), None)
        if view is None or not self._is_on or self.rng.random() < 0.5:
            return
        if view.learners and len(view.members) == 1:
            self._kill_for_long(view.master, "which alone has everything")
        elif len(view.members) > 1:
            self._kill_for_long(view.members[1].node, "so that the master is alone")

    def _kill_for_long(self, name: str, why: str) -> None:
        """Not to be back before somebody else has taken its part; most of the nodes stay."""
        node = self.world.nodes.get(name)
        down = sum(one.node is None for one in self.world.nodes.values())
        if node is None or node.node is None or 2 * (down + 1) >= len(self.world.nodes):
            return
        self.world.kill(name, why)
        life = node.life

        def start() -> None:
            if node.life == life:
                self._start(node)

        self._later(self.rng.randrange(2 * SECOND, 8 * SECOND), start)


class LossWorld(HaWorld):
    """One seed."""

    client_class = LossClient
    # Slow copies under load may hold more than other worlds let them, or they would begin anew for ever.
    ha_limits = {**HA_LIMITS, "copy_hold_bytes_max": (1 << 30,)}  # noqa: RUF012
    lengths = ((4, 10), (6, 20))

    def __init__(self, seed: int, *, make_node: type[Node] = WatchedNode) -> None:
        super().__init__(seed, make_node=make_node, size=5)
        self.is_risky = True

    def make_faults(self) -> HaFaults:
        """What goes wrong in this world."""
        self.faults = faults = LossFaults(self)
        faults.is_async = self.rng.random() < 0.4
        return self.faults
