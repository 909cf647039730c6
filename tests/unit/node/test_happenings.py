"""What a change of a view means: who took over and why, and what became of each mirror."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirrormq.meta.records import View
from mirrormq.meta.state import MetaState
from mirrormq.node import happenings
from mirrormq.node.happenings import Promotion
from tests.support.metakit import changed, cluster, declare_mirrored
from tests.support.viewkit import dead, policy, restarted, view_of, with_learners


def of(state: MetaState, do: Callable[[], object]) -> tuple[View, View]:
    before = view_of(state)
    do()
    return before, view_of(state)


def promotion(state: MetaState, do: Callable[[], object]) -> Promotion | None:
    return happenings.promotion(*of(state, do), state.nodes)


def kinds(state: MetaState, do: Callable[[], object]) -> list[tuple[str, str]]:
    return [(change.node, change.kind) for change in happenings.mirror_changes(*of(state, do))]


@pytest.fixture
def state() -> MetaState:
    return cluster("a", "b", "c")


def test_a_dead_master_a_restarted_one_and_one_that_hands_over_are_told_apart(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", "c", durable=True)
    found = promotion(state, lambda: changed(state, "q", "transfer", "b"))
    assert found is not None
    assert (found.former, found.view.master, found.reason, found.is_lossy) == ("a", "b", "transfer", False)
    found = promotion(state, lambda: dead(state, "b"))
    assert found is not None
    assert (found.former, found.reason) == ("b", "failure")
    former = found.view.master
    found = promotion(state, lambda: restarted(state, former))
    assert found is not None
    assert (found.former, found.reason) == (former, "restart")


def test_a_master_that_comes_back_to_what_nobody_could_take_over_returns(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", durable=True)
    assert promotion(state, lambda: dead(state, "a")) is None
    found = promotion(state, lambda: restarted(state, "a"))
    assert found is not None
    assert (found.former, found.view.master, found.reason) == ("a", "a", "return")


def test_a_loss_names_the_copies_that_were_passed_over(state: MetaState) -> None:
    policy(state, ha_promote_on_failure="always")
    with_learners(state, "b")
    found = promotion(state, lambda: dead(state, "a"))
    assert found is not None
    assert (found.is_lossy, found.passed, found.reason) == (True, ("a",), "failure")


def test_a_stop_in_good_order_that_loses_something_is_no_transfer(state: MetaState) -> None:
    policy(state, ha_promote_on_shutdown="always")
    with_learners(state, "b")
    found = promotion(state, lambda: changed(state, "q", "stop"))
    assert found is not None
    assert (found.is_lossy, found.reason) == (True, "shutdown")


def test_each_mirror_is_added_synchronised_demoted_and_removed_once(state: MetaState) -> None:
    declare_mirrored(state, "q", "a", "b", durable=True)
    assert kinds(state, lambda: changed(state, "q", "add_learner", "c")) == [("c", "added")]
    assert kinds(state, lambda: changed(state, "q", "admit", "c")) == [("c", "synchronised")]
    assert kinds(state, lambda: changed(state, "q", "demote", "b")) == [("b", "demoted")]
    assert kinds(state, lambda: changed(state, "q", "remove_learner", "b")) == [("b", "removed")]
    assert kinds(state, lambda: restarted(state, "c")) == []
    assert kinds(state, lambda: changed(state, "q", "admit", "c")) == [("c", "synchronised")]
    assert kinds(state, lambda: changed(state, "q", "remove", "c")) == [("c", "removed")]
    assert promotion(state, lambda: changed(state, "q", "renew")) is None
