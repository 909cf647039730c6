"""Scenarios of the suite `partitions` for `pause_minority`: a confirmed message survives whatever is cut."""

import pytest

from mirrormq.wire import methods
from tests.support.scenariokit import Site


@pytest.fixture
def site() -> Site:
    return Site()


def is_paused(site: Site, name: str) -> bool:
    return not site[name].is_open


@pytest.mark.parametrize("is_mirrored", [True, False], ids=["mirrored", "unmirrored"])
@pytest.mark.parametrize("cut", ["a", "b"], ids=["master", "other"])
def test_pause_minority_false_promises_what_was_confirmed_survives(
    site: Site, cut: str, is_mirrored: bool
) -> None:
    if is_mirrored:
        site.policy(ha_mode="all")
    site.declare(at="a")
    publisher = site.publisher(cut)
    publisher.publish(50)
    site.advance(0.2)
    site.cut(cut)
    publisher.publish(50, 50)
    site.advance(3)
    publisher.publish(50, 100)
    site.wait(lambda: is_paused(site, cut), f"{cut} pauses")
    publisher.hear()
    promised = {tag - 1 for tag in publisher.confirmed}
    site.heal()
    site.wait(lambda: not is_paused(site, cut), f"{cut} comes back")
    site.advance(5)
    survived = {number for number, _ in site.drain()}
    assert promised <= survived
    assert len(promised) >= 50 or not is_mirrored


def test_pause_minority_on_down_two_dead_nodes_stop_the_third_until_one_is_back(site: Site) -> None:
    site.policy(ha_mode="all")
    site.declare(at="a")
    site.fill(20)
    site.kill("b")
    site.kill("c")
    site.wait(lambda: is_paused(site, "a"), "a pauses")
    site.start("b", *site.names)
    site.wait(lambda: not is_paused(site, "a"), "a is back")
    site.settle("b")
    site.wait(lambda: site.master() == "a", "the queue is served")
    assert site.depth() == 20


def test_partial_pause_minority_a_master_cut_off_from_one_mirror_goes_on_without_it(site: Site) -> None:
    site.policy(ha_mode="all")
    site.declare(at="a")
    site.fill(10)
    pair = frozenset(("a", "b")) if site.leaders == {"c"} else None
    if pair is None:
        # Whoever leads keeps its links: cut two others.
        (leader,) = site.leaders
        pair = frozenset(name for name in site.names if name != leader)
    site.cuts.add(pair)
    for name in sorted(pair):
        other = next(iter(pair - {name}))
        site.unlink(name, other, eof=False)
    publisher = site.publisher(next(iter(site.leaders)))
    publisher.publish(10, 10)
    publisher.wait_confirmed(10)
    assert not any(is_paused(site, name) for name in site.names), "a partial cut pauses nobody"
    site.heal()
    site.wait_copies("a", "b", "c")
    assert [number for number, _ in site.drain()] == list(range(20))


def test_two_masters_never_deliver_at_the_same_time(site: Site) -> None:
    site.policy(ha_mode="all")
    site.declare(at="a")
    site.fill(30)
    near = site["a"].client()
    near.ask(methods.BasicQos(0, 5, False), methods.BasicQosOk)
    near.consume("q")
    site.advance(0.2)
    before = near.deliveries()
    assert len(before) == 5
    site.cut("a")
    site.wait(lambda: site["b"].node.meta.views["/", "q"].master != "a", "another node is the master", 20)
    site.advance(1)
    assert near.deliveries() == [], "the deposed master gives nothing out"
    found = site.drain(at="b")
    assert [number for number, _ in found] == list(range(30))
    assert all(redelivered for number, redelivered in found if number < 5)


def test_prompt_disconnect_detection_many_queues_do_not_multiply_the_time(site: Site) -> None:
    site.policy(ha_mode="all")
    names = [f"q{number}" for number in range(100)]
    client = site["a"].client()
    for name in names:
        client.send(methods.QueueDeclare(queue=name, durable=True))
        site.wait(lambda: bool(client.inbox), "declared")
        client.take()
    site.cut("a")
    site.wait(
        lambda: {site["b"].node.meta.views["/", name].master for name in names} <= {"b", "c"}, "moved", 8
    )
