"""What becomes of clients of a node that is cut off, by the mode its operator chose, message by message."""

from typing import Any

import pytest

from mirrormq.node import partition, requests
from mirrormq.node.membership import PAUSED
from mirrormq.node.waivers import Waivers
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


# --- ignore ---


@pytest.fixture
def ignoring() -> Site:
    return Site("a", "b", "c", "d", "e", partition_handling="ignore")


def wait_waived(site: Site, queue: str = "q") -> None:
    """Wait until the view of a queue lets its master go on without a lease."""
    site.wait(lambda: (view := site.view(queue)) is not None and view.waiver == view.master, "it is waived")
    site.advance(2)


def on_both(site: Site) -> None:
    """A queue whose copies are all on the side that is about to be cut off."""
    site.policy(ha_mode="nodes", ha_params=["a", "b"])
    site.declare(at="a")
    site.wait_copies("a", "b")
    wait_waived(site)


@pytest.mark.slow
def test_ignore_a_queue_that_is_whole_on_this_side_goes_on(ignoring: Site) -> None:
    site = ignoring
    on_both(site)
    publisher, consumer = site.publisher("a"), Consumer(site, site["a"].client())
    publisher.publish(10)
    publisher.wait_confirmed(10)
    consumer.wait_taken(10)
    consumer.ack_all()
    site.cut("a", "b")
    site.wait(lambda: is_cut(site, "a") and is_cut(site, "b"), "they are cut off")
    site.advance(20)
    assert site["a"].is_open, "clients are let in"
    publisher.publish(10, 10)
    publisher.wait_confirmed(20)
    assert consumer.wait_taken(10) == [(number, False) for number in range(10, 20)]
    consumer.ack_all()
    site.advance(1)
    site.heal()
    site.wait(lambda: not is_cut(site, "a"), "a is back")
    site.advance(5)
    publisher.publish(5, 20)
    publisher.wait_confirmed(25)
    assert bodies(consumer.wait_taken(5)) == list(range(20, 25))
    consumer.ack_all()
    assert site.depth() == 0
    assert not publisher.nacked
    assert site.master() == "a"


@pytest.mark.slow
@pytest.mark.parametrize("cut", [("a",), ("b",), ("a", "b")], ids=["master", "home", "both"])
def test_ignore_other_publishes_wait_and_are_taken_once_and_in_order(
    ignoring: Site, cut: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrormq.base.limits.spool_memory_bytes", 100)
    monkeypatch.setattr("mirrormq.base.limits.spool_file_bytes", 1000)
    site = ignoring
    site.policy(ha_mode="all")
    site.declare(at="a")
    wait_waived(site)
    publisher = site.publisher(cut[-1])
    publisher.publish(10)
    publisher.wait_confirmed(10)
    site.cut(*cut)
    site.wait(lambda: all(is_cut(site, name) for name in cut), "they are cut off")
    for name in cut:
        for other in set(site.names) - set(cut):
            site.unlink(name, other, eof=False)
    for first in range(10, 60, 10):
        publisher.publish(10, first)
        site.advance(10)
    publisher.hear()
    assert len(publisher.confirmed) == 10, "nothing is confirmed that is not committed"
    assert not publisher.nacked, "nothing is given up"
    if len(cut) == 1:  # else it waits at the master, which is on the same side
        assert site[cut[-1]].node.switch.spool.bytes > 0
    far = site.publisher("c")
    far.publish(10, 100)
    far.wait_confirmed(10)
    site.heal()
    publisher.wait_confirmed(60)
    assert not publisher.nacked
    assert site[cut[-1]].node.switch.spool.bytes == 0
    found = bodies(site.drain(at="c"))
    assert sorted(found) == [*range(60), *range(100, 110)], "each once"
    assert [number for number in found if number < 100] == list(range(60)), "in order"
    publisher.publish(5, 60)
    publisher.wait_confirmed(65)
    assert bodies(site.drain(at="d")) == list(range(60, 65))


def deliverable(site: Site, name: str) -> int:
    """Up to where a node would deliver from the queue now."""
    node = site[name].node
    queue = node.switch.masters.get(node.meta.queues["/", "q"].id)
    return 0 if queue is None else queue.log.deliverable


RULES = [None, ("_is_granted", True), ("is_held", False)]


@pytest.mark.slow
@pytest.mark.parametrize("broken", RULES, ids=["shipped", "without grants", "nobody waits"])
def test_ignore_a_master_cut_from_the_metadata_but_not_from_its_mirror_yields_to_it(
    broken: tuple[str, bool] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broken is not None:
        monkeypatch.setattr(Waivers, broken[0], lambda *_: broken[1])
    site = Site(partition_handling="ignore")
    (leader,) = site.leaders
    node, mirror = (name for name in site.names if name != leader)
    site.policy(ha_mode="nodes", ha_params=[node, mirror])
    site.declare(at=node)
    site.wait_copies(node, mirror)
    wait_waived(site)
    site.fill(400, at=node)
    near = Consumer(site, site[node].client(), prefetch=5)
    given = near.wait_taken(5)
    far = Consumer(site, site[mirror].client(), prefetch=1)
    site.cuts.add(frozenset((node, leader)))  # the link to its mirror stays
    at_once = False
    for _ in range(200):
        site.advance(0.1)
        at_once = at_once or bool(deliverable(site, node) and deliverable(site, mirror))
        given += far.take()
        far.ack_all()
    assert at_once == (broken is not None), "two masters deliver at once without the rule, and never with it"
    assert site[mirror].node.meta.views["/", "q"].master == mirror
    if broken is None:
        assert deliverable(site, mirror) > 100, "the new one goes on"
        assert deliverable(site, node) == 0, "and the old one does not"
        assert near.take() == []
        fresh = [number for number, redelivered in given if not redelivered]
        assert fresh == sorted(set(fresh)), "as new each comes once, and in order"
        assert {number for number, _ in given} == set(range(max(fresh) + 1)), "and none is missing"


@pytest.mark.slow
def test_ignore_forgetting_or_promoting_past_a_node_that_may_serve_needs_force(ignoring: Site) -> None:
    site = ignoring
    on_both(site)
    site.fill(5)
    site.cut("a", "b")
    site.wait(lambda: is_cut(site, "a") and is_cut(site, "b"), "they are cut off")
    for name in ("a", "b"):
        for other in ("c", "d", "e"):
            site.unlink(name, other, eof=False)

    def ask(request: requests.Request) -> Any:
        answers: list[Any] = []
        site["c"].node.admin(site.now, request, answers.append)
        site.wait(lambda: bool(answers), "it is answered")
        return answers[0]

    refused = ask(requests.ForgetClusterNode(node="a"))
    assert "may be serving 1 queues where nobody sees it" in refused.problem.text
    assert site.view() is not None
    assert ask(requests.ForgetClusterNode(node="a", force=True)).problem is None
    site.wait(lambda: site["c"].node.meta.views["/", "q"].losses == 1, "it counts as a loss")


@pytest.mark.slow
def test_a_mode_that_is_left_takes_the_waiver_back_before_anybody_may_lose_the_queue(ignoring: Site) -> None:
    site = ignoring
    on_both(site)
    choose(site, "a", "pause_minority")
    copies = site["a"].node.copies
    assert copies is not None
    copy = next(iter(copies.mirrors.copies.values()))
    assert not copies.waivers.covers(copy), "not used any more from this moment on"
    site.wait(lambda: (view := site.view()) is not None and not view.waiver, "the view says so, too")
    choose(site, "a", "ignore")
    wait_waived(site)


@pytest.mark.slow
def test_a_queue_that_may_be_promoted_with_a_loss_gets_no_waiver(ignoring: Site) -> None:
    site = ignoring
    site.policy(ha_mode="all", ha_promote_on_failure="always")
    site.declare(at="a")
    site.advance(5)
    assert not site.view().waiver
    site.policy(ha_mode="all")
    wait_waived(site)
    site.policy(ha_mode="all", ha_promote_on_failure="always")
    site.wait(lambda: not site.view().waiver, "it is taken back")


# --- pause_if_all_down ---


@pytest.mark.slow
def test_pause_if_all_down_serves_while_a_node_it_names_is_in_reach_and_pauses_otherwise() -> None:
    site = Site(partition_handling="pause_if_all_down", partition_nodes=("a",))
    site.declare(at="b")
    site.cut("a", "b", "c")  # nobody is cut yet: all of them are on this side
    site.cuts = {frozenset(pair) for pair in (("a", "b"), ("a", "c"), ("b", "c"))}
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        site.unlink(one, other, eof=False)
    site.wait(lambda: all(is_cut(site, name) for name in "abc"), "all are cut off")
    reactions = {name: site[name].node.partition.reaction for name in "abc"}
    assert reactions == {"a": "serving", "b": "closed", "c": "closed"}
    assert site["a"].is_open
    assert not site["b"].is_open
    site.heal()
    site.settle()
    assert all(site[name].is_open for name in "abc")


def test_pause_if_all_down_needs_nodes() -> None:
    site = Site()
    assert "needs the names of nodes" in choose(site, "a", "pause_if_all_down").problem.text
    answers: list[Any] = []
    request = requests.SetPartitionHandling(mode="pause_if_all_down", nodes=("b",))
    site["a"].node.admin(site.now, request, answers.append)
    assert answers[0].value["handling"] == "pause_if_all_down"
