"""Links of simulated clusters: what could not happen between real processes does not happen here either."""

from __future__ import annotations

from mirrormq.sim.clusternet import Line, Links
from mirrormq.sim.clusterworld import SECOND, ClusterWorld


class DeadlyLinks(Links):
    """A node dies in the middle of what it does about the loss of a link."""

    victim = ""

    def _lose(self, line: Line, end: str, *, eof: bool) -> None:
        super()._lose(line, end, eof=eof)
        if end == self.victim:
            self.victim = ""
            self._world.kill(end, "between two effects")


def are_linked(world: ClusterWorld) -> bool:
    """Does every node know of a link to every other one?"""
    names = set(world.nodes)
    return all(
        node.node is not None and node.node.membership.links.keys() == names - {name}
        for name, node in world.nodes.items()
    )


def test_a_node_that_dies_over_its_old_link_is_given_no_new_one_until_it_is_back() -> None:
    """Seed 124: the other end held a link to a process that never was, and both waited for ever."""
    world = ClusterWorld(1, size=3, listed=True)
    links = world.links = DeadlyLinks(world)
    world.form()
    dying = world.nodes["n3"]
    world.power_off("n1")
    links.victim = "n3"
    world.start("n1")
    # Its power went unnoticed: n3 loses the old link only to the new one.
    world.run_until(lambda: dying.node is None, SECOND, "n3 does not die")
    line = world.links.line("n1", "n3")
    assert line is None or "n3" not in line.ends
    world.start("n3")
    world.run_until(lambda: are_linked(world), 10 * SECOND, "n1 and n3 are not linked again")
