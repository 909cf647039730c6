"""Seeds of whole clusters that broke a promise once, each with what was wrong."""

from __future__ import annotations

import pytest

from mirrormq.sim.clusterhistory import DELETE, PUT, History, exchange_key, queue_key
from mirrormq.sim.clusterworld import ClusterWorld
from mirrormq.sim.model import Violation

SEEDS = {
    124: "the simulated net linked a node with one that had just died over its old link",
    391: "a queue was given to a node that had failed to leave, and went when it was forgotten after all",
    551: "the same with a binding",
    5060: "a node that had left and joined again was taken for one that had failed to leave",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_broke_a_promise_once_keeps_all_of_them(seed: int) -> None:
    ClusterWorld(seed).run()


def test_a_queue_declared_after_its_lost_node_was_forgotten_has_to_stay() -> None:
    history = History()
    history.begin(PUT, queue_key("q"), 10).answered(20)
    lost = history.lose_queue("q", 0)
    history.check_definition(queue_key("q"), is_there=False)
    lost.end = 100
    history.check_definition(queue_key("q"), is_there=False)
    history.begin(PUT, queue_key("q"), 200).answered(300)
    with pytest.raises(Violation, match="queue q is not there"):
        history.check_definition(queue_key("q"), is_there=False)
    history.begin(DELETE, queue_key("q"), 250)
    history.check_definition(queue_key("q"), is_there=False)


def test_what_was_answered_at_once_after_a_long_wait_may_have_been_found_done() -> None:
    history, key = History(), exchange_key("x")
    history.begin(PUT, key, 10).answered(10_000)
    history.begin(DELETE, key, 20_000).answered(30_000)
    history.begin(PUT, key, 40_000).answered(6_000_000, read_at=5_999_900)
    history.check_definition(key, is_there=False)
    history.begin(PUT, key, 40_000).answered(6_000_000, read_at=5_900_000)
    with pytest.raises(Violation, match="exchange x is not there"):
        history.check_definition(key, is_there=False)
