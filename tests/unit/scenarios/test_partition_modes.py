"""What becomes of clients of a node that is cut off, by the mode its operator chose, message by message."""

from typing import Any

import pytest

from mirrormq.node import partition, requests
from mirrormq.node.membership import PAUSED
from mirrormq.wire import methods
from tests.support.scenariokit import Consumer, Site

ASIDE_S = 8
"""Longer than a lease and the time of grace."""


def choose(site: Site, name: str, mode: str) -> Any:
    """Choose a mode on one node, as an administrator does."""
    answers: list[Any] = []
    request = requests.SetPartitionHandling(mode=mode)
    site[name].node.admin(site.now, request, answers.append)
    site.run()
    (answer,) = answers
    return answer


def is_cut(site: Site, name: str) -> bool:
    return site[name].node.partition.is_cut


def bodies(found: list[tuple[int, bool]]) -> list[int]:
    return [number for number, _ in found]


@pytest.fixture
def stopping() -> Site:
    return Site(partition_handling="stop_processing")


# --- stop_processing ---


@pytest.mark.slow
@pytest.mark.parametrize("is_mirrored", [True, False], ids=["mirrored", "unmirrored"])
def test_stop_processing_keeps_clients_blocks_them_and_goes_on_with_the_backlog(
    stopping: Site, is_mirrored: bool
) -> None:
    site = stopping
    if is_mirrored:
        site.policy(ha_mode="all")
    site.declare(at="a")
    site.fill(20)
    consumer = Consumer(site, site["a"].client(), prefetch=5)
    assert bodies(consumer.wait_taken(5)) == [0, 1, 2, 3, 4]
    publisher = site.publisher("a")
    site.cut("a")
    site.wait(lambda: is_cut(site, "a"), "a is cut off")
    site.advance(0.5)
    assert any(isinstance(one, methods.ConnectionBlocked) for one in publisher.client.take())
    publisher.publish(10, 20)
    consumer.ack_all()
    site.advance(ASIDE_S)
    assert consumer.take() == [], "nothing is delivered on the side of the minority"
    publisher.hear()
    assert not publisher.confirmed | publisher.nacked, "nothing is read there"
    assert not site["a"].is_open, "nobody new is let in"
    site.heal()
    site.wait(lambda: not is_cut(site, "a"), "a is back")
    publisher.wait_confirmed(10)
    assert not publisher.nacked
    found: list[tuple[int, bool]] = []

    def all_taken() -> bool:
        found.extend(consumer.take())
        consumer.ack_all()
        return {number for number, _ in found} >= set(range(5, 30))

    site.wait(all_taken, "the backlog is delivered")
    fresh = [number for number, redelivered in found if not redelivered]
    assert fresh == sorted(fresh), "in order"
    assert consumer.cancelled == 0


@pytest.mark.slow
def test_stop_processing_waits_however_long_it_takes_for_queues_of_other_nodes(stopping: Site) -> None:
    site = stopping
    site.declare(at="b")
    publisher, consumer = site.publisher("a"), Consumer(site, site["a"].client())
    publisher.publish(5)
    publisher.wait_confirmed(5)
    assert bodies(consumer.wait_taken(5)) == [0, 1, 2, 3, 4]
    consumer.ack_all()
    site.cut("a")
    publisher.publish(5, 5)
    site.wait(lambda: is_cut(site, "a"), "a is cut off")
    site.unlink("a", "b", eof=False)
    site.advance(45)
    publisher.hear()
    assert (len(publisher.confirmed), publisher.nacked) == (5, set()), "nothing is given up meanwhile"
    site.heal()
    publisher.wait_confirmed(10)
    assert bodies(consumer.wait_taken(5)) == [5, 6, 7, 8, 9]
    assert consumer.cancelled == 0
    assert not publisher.nacked


@pytest.mark.slow
def test_a_client_without_the_capability_is_stopped_without_a_word(stopping: Site) -> None:
    site = stopping
    site.declare(at="a")
    publisher = site.publisher("a")
    connection = next(one for one in site["a"].node.connections.values() if one.is_open)
    connection.capabilities = {}
    site.cut("a")
    site.wait(lambda: is_cut(site, "a"), "a is cut off")
    publisher.publish(3)
    site.advance(1)
    assert publisher.client.take() == []
    assert connection.shown_state == "blocked"
    site.heal()
    publisher.wait_confirmed(3)
    assert connection.shown_state == "running"


@pytest.mark.slow
def test_the_majority_goes_on_and_two_masters_never_deliver_at_once_when_processing_is_stopped(
    stopping: Site,
) -> None:
    site = stopping
    site.policy(ha_mode="all")
    site.declare(at="a")
    site.fill(30)
    near = Consumer(site, site["a"].client(), prefetch=5)
    assert len(near.wait_taken(5)) == 5
    site.cut("a")
    site.wait(lambda: site["b"].node.meta.views["/", "q"].master != "a", "another node is the master", 20)
    found = site.drain(at="b")
    assert bodies(found) == list(range(30))
    assert near.take() == []
    site.heal()
    site.wait(lambda: not is_cut(site, "a"), "a is back")
    site.advance(3)
    assert near.take() == [], "what the majority has given out does not come again"


# --- another mode, and what is said about it ---


@pytest.mark.slow
def test_another_mode_is_in_force_at_once_on_a_node_that_is_cut_off(stopping: Site) -> None:
    site = stopping
    site.declare(at="a")
    kept = site.publisher("a")
    site.cut("a")
    site.wait(lambda: is_cut(site, "a"), "a is cut off")
    assert site["a"].node.partition.reaction == partition.STOPPED
    answer = choose(site, "a", "pause")
    assert answer.value["handling"] == "pause_minority"
    assert any(isinstance(one, methods.ConnectionClose) for one in kept.client.take())
    assert site["a"].phase == PAUSED
    choose(site, "a", "stop_processing")
    assert site["a"].node.partition.reaction == partition.STOPPED
    site.heal()
    site.settle("a")
    assert site["a"].is_open


def test_a_mode_that_is_not_there_is_refused_with_what_there_is(stopping: Site) -> None:
    assert "comes in a later version" in choose(stopping, "a", "autoheal").problem.text
    assert "not 'sometimes'" in choose(stopping, "a", "sometimes").problem.text
    assert stopping["a"].node.partition.mode == "stop_processing"


@pytest.mark.slow
def test_status_says_which_side_a_node_is_on_and_why(stopping: Site) -> None:
    site = stopping
    status = site["a"].node.partition.status
    assert status()["side"] == "majority"
    assert status()["why"] == "in reach are 3 of 3 voting nodes (a, b, c)"
    site.cut("a")
    for other in ("b", "c"):
        site.unlink("a", other, eof=False)
    site.wait(lambda: is_cut(site, "a"), "a is cut off")
    told = status()
    assert (told["handling"], told["side"], told["reaction"]) == ("stop_processing", "minority", "stopped")
    assert told["why"] == "in reach are 1 of 3 voting nodes (a), not b, c"
    assert told["since"]
    assert site["b"].node.partition.side == "majority"
    site.heal()
    site.wait(lambda: not is_cut(site, "a"), "a is back")
    assert status()["side"] == "majority"
    assert status()["since"] == 0


@pytest.mark.slow
def test_many_clients_are_stopped_and_let_go_on_in_slices(
    stopping: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrormq.base.limits.partition_slice_connections", 2)
    site = stopping
    site.declare(at="a")
    clients = [site.publisher("a") for _ in range(7)]
    site.cut("a")
    site.wait(lambda: is_cut(site, "a"), "a is cut off")
    site.advance(0.2)
    stopped = [one.flow.is_stopped for one in site["a"].node.connections.values() if one.is_open]
    assert stopped == [True] * 7
    site.heal()
    for client in clients:
        client.publish(1)
        client.wait_confirmed(1)
