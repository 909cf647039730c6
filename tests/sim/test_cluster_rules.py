"""Directed schedules on whole nodes: each fails with its rule switched off, and passes with it on."""

from __future__ import annotations

import pytest

from mirrormq.cluster import identity as ids
from mirrormq.node.membership import READY
from mirrormq.node.node import Node
from mirrormq.sim.clusterplanted import ProposesBeforeIdentity
from mirrormq.sim.clusterworld import SECOND, ClusterWorld
from mirrormq.sim.disk import SlowDisk
from mirrormq.sim.model import Violation

VOTE, LOG = "meta/vote", "meta/log"


class World(ClusterWorld):
    """One node that founds a cluster, and others that join it if they are started."""

    def __init__(self, make_node: type[Node] = Node) -> None:
        super().__init__(1, make_node=make_node, size=3, listed=False)
        self.node = self.nodes["n1"]

    def lose_power(self) -> None:
        """Nothing survives that was not flushed."""
        disk = self.node.disk
        self.links.power_goes("n1")
        self.node.end(disk.crash(lambda _: 0))

    def until_ready(self) -> None:
        self.run_until(lambda: self.node.phase == READY, 10 * SECOND, "n1 does not become ready")

    def hold_back(self, *files: str) -> None:
        """Let flushes of files whose names begin so take for ever."""
        until = self.now + 3_600 * SECOND
        self.node.disk = _HeldDisk(self.node.disk, self, files, until)


class _HeldDisk(SlowDisk):
    def __init__(self, files: SlowDisk, world: ClusterWorld, held: tuple[str, ...], until: int) -> None:
        super().__init__(world.rng, files)
        self._held, self._until = held, until

    def _owe(self, file: str, token: int) -> None:
        if file.startswith(self._held):
            self._busy_until[file] = self._until
        super()._owe(file, token)


def start_held(world: World, *files: str) -> None:
    """Start the node on a disk that does not flush some files."""
    make, made = world.make_node, world.node

    def hold(*args: object, **more: object) -> Node:
        world.hold_back(*files)
        return make(*args, **more)  # type: ignore[arg-type]

    world.make_node = hold  # type: ignore[assignment]
    made.start()
    world.make_node = make


def die_with_an_old_identity(make_node: type[Node]) -> World:
    world = World(make_node)
    world.start("n1")
    world.until_ready()
    world.lose_power()
    start_held(world, ids.FILE)
    world.run_for(SECOND)
    world.lose_power()
    world.start("n1")
    return world


def test_the_number_of_a_start_is_used_once() -> None:
    die_with_an_old_identity(Node).until_ready()
    with pytest.raises(Violation, match="n1 does not become ready"):
        die_with_an_old_identity(ProposesBeforeIdentity).until_ready()


@pytest.mark.parametrize("held", [(LOG, "meta/snapshot"), (LOG, "meta/snapshot", VOTE), (ids.FILE,), (VOTE,)])
def test_whoever_dies_while_it_founds_a_cluster_founds_it_at_the_next_start(held: tuple[str, ...]) -> None:
    world = World()
    start_held(world, *held)
    world.run_for(SECOND)
    world.lose_power()
    world.start("n1")
    world.until_ready()
    client = world.connect(world.node)
    world.run_until(lambda: client.pending is None, 5 * SECOND, "nobody can log in")
    world.start("n2")
    world.start("n3")
    world.run_until(world.is_as_desired, 30 * SECOND, "nobody can join")


def test_a_founder_that_is_recorded_does_not_found_its_cluster_again() -> None:
    world = World()
    world.start("n1")
    world.until_ready()
    world.run_for(SECOND)
    kept = ids.decode_identity(world.node.disk.read(ids.FILE))
    assert kept.cluster
    assert not kept.is_founding
    world.lose_power()
    for name in world.node.disk.list("meta/"):
        world.node.disk.remove(name)
    world.start("n1")
    world.run_for(5 * SECOND)
    assert world.node.phase != READY
