"""The lock of rebalancing and the mark of maintenance, as the metadata keep them."""

from __future__ import annotations

import msgspec
import pytest

from mirrormq.meta import commands as c
from mirrormq.meta.codec import decode_records
from mirrormq.meta.records import Node
from mirrormq.meta.state import MetaState
from tests.support.metakit import must


@pytest.fixture
def state() -> MetaState:
    made = MetaState()
    for name in ("a", "b"):
        must(made, c.PutNode(Node(name)))
        must(made, c.NodeRestarted(name, alone=False, start=1))
    return made


def begin(state: MetaState, node: str = "a", start: int = 1) -> int:
    must(state, c.BeginRebalance(node, start, "on-demand", "masters", 5))
    assert state.rebalance is not None
    return state.rebalance.number


def test_only_one_rebalancing_holds_the_lock(state: MetaState) -> None:
    number = begin(state)
    outcome = state.apply(c.BeginRebalance("b", 1, "timer", "messages", 6))
    assert (outcome.ok, outcome.error, outcome.record) == (False, "in_use", state.rebalance)
    must(state, c.EndRebalance(number))
    assert begin(state, "b") > number


def test_a_start_that_is_over_gets_no_lock(state: MetaState) -> None:
    for node, start in (("a", 7), ("c", 1)):
        assert state.apply(c.BeginRebalance(node, start, "timer", "masters", 1)).error == "guard"
    assert state.rebalance is None


def test_the_end_of_an_earlier_one_does_not_take_the_lock_of_a_later_one(state: MetaState) -> None:
    first = begin(state)
    must(state, c.EndRebalance(first))
    second = begin(state, "b")
    must(state, c.EndRebalance(first))
    assert state.rebalance is not None
    assert state.rebalance.number == second


def test_cancelling_marks_the_lock_and_leaves_it_to_its_holder(state: MetaState) -> None:
    assert state.apply(c.CancelRebalance()).error == "missing"
    begin(state)
    must(state, c.CancelRebalance())
    assert state.rebalance is not None
    assert state.rebalance.is_cancelled


@pytest.mark.parametrize(
    "end",
    [
        c.NodeDead("a", 1),
        c.NodeRestarted("a", alone=False, start=2),
        c.ForgetNode("a"),
        c.NodeRestarted("b", alone=True, start=2),
    ],
)
def test_the_lock_goes_with_its_node(state: MetaState, end: c.Command) -> None:
    begin(state)
    must(state, end)
    assert state.rebalance is None


@pytest.mark.parametrize("command", [c.NodeDead("b", 1), c.NodeRestarted("a", alone=False, start=1)])
def test_the_lock_stays_whatever_becomes_of_others_and_if_its_start_goes_on(
    state: MetaState, command: c.Command
) -> None:
    number = begin(state)
    must(state, command)
    assert state.rebalance is not None
    assert state.rebalance.number == number


def test_maintenance_outlives_restarts_deaths_and_changes_of_role(state: MetaState) -> None:
    must(state, c.SetDrained("a", True))
    must(state, c.NodeDead("a", 1))
    must(state, c.NodeRestarted("a", alone=False, start=2))
    must(state, c.PutNode(Node("a", role="non-voter")))
    must(state, c.NodeRestarted("a", alone=True, start=3))
    assert state.nodes["a"].is_drained
    must(state, c.SetDrained("a", False))
    assert not state.nodes["a"].is_drained
    assert state.apply(c.SetDrained("x", True)).error == "missing"


def test_both_are_in_a_snapshot(state: MetaState) -> None:
    begin(state)
    must(state, c.SetDrained("b", True))
    other = MetaState()
    other.restore(state.snapshot())
    assert (other.rebalance, other.nodes) == (state.rebalance, state.nodes)


def test_a_node_of_an_older_snapshot_is_not_in_maintenance() -> None:
    older = {"kind": "node", "name": "a", "address": "a:1", "role": "voter", "start": 3, "is_live": True}
    (found,) = decode_records(msgspec.msgpack.encode([{**older, "level": 1, "returns": 2}]))
    assert found == Node("a", "a:1", "voter", 3, True, returns=2)
