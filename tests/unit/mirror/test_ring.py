"""The way of a record from the master to every copy."""

from __future__ import annotations

from mirrormq.mirror import ring
from mirrormq.sim.mirrorstore import Learner, Member, SimView

VIEW = SimView(
    1,
    5,
    "b",
    (Member("a", 1), Member("b", 1), Member("c", 2, is_restarted=True), Member("d", 1)),
    (Learner("e", 1),),
)


def everywhere(_: str) -> bool:
    return True


def test_members_follow_the_master_in_the_order_they_joined_and_restarted_ones_last() -> None:
    assert ring.chain(VIEW) == ["b", "a", "d", "c"]


def test_a_member_is_fed_by_its_left_neighbour() -> None:
    assert [ring.source_of(VIEW, node, everywhere) for node in "abcd"] == ["b", "", "d", "a"]


def test_a_member_whose_left_neighbour_cannot_be_reached_is_fed_by_the_master() -> None:
    assert ring.source_of(VIEW, "d", lambda node: node != "a") == "b"


def test_learners_are_fed_by_the_master() -> None:
    assert ring.source_of(VIEW, "e", everywhere) == "b"


def test_nobody_is_fed_without_a_master_or_without_an_entry() -> None:
    assert not ring.source_of(VIEW._replace(master=""), "a", everywhere)
    assert not ring.source_of(VIEW, "z", everywhere)
