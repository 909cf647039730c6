"""Scenarios of the suite `eager_sync`: mirrors that are told to synchronise, or do so by themselves."""

import pytest

from mirrormq.wire import methods
from tests.support.scenariokit import Consumer, Site

COUNT = 200


@pytest.fixture
def site() -> Site:
    made = Site()
    made.declare(at="a")
    made.fill(COUNT)
    return made


def manual(site: Site) -> None:
    """Two mirrors that lack what was in the queue before they came."""
    site.policy(ha_mode="all", ha_sync_mode="manual")
    site.wait(lambda: site.learners() == {"b", "c"}, "two mirrors that are not in sync")


def synchronise(site: Site, wanted: bool = True) -> str:
    """Ask the master to copy old messages, or not to; why not, if so."""
    copies = site[site.master()].node.copies
    assert copies is not None
    view = site.view()
    assert view is not None
    return copies.synchronise(view.id, wanted)


def test_eager_sync_without_it_mirrors_stay_as_they_are_and_keep_new_messages(site: Site) -> None:
    manual(site)
    site.fill(5, first=COUNT)
    site.advance(5)
    assert site.in_sync() == {"a"}
    # RabbitMQ's mirrors would come back empty; here the node that has everything is waited for.
    for name in ("b", "c"):
        site.kill(name)
        site.restart(name)
    assert site.in_sync() == {"a"}
    assert [number for number, _ in site.drain()] == list(range(COUNT + 5))


def test_eager_sync_makes_mirrors_complete_and_any_of_them_can_take_over(site: Site) -> None:
    manual(site)
    assert synchronise(site) == ""
    site.wait_copies("a", "b", "c")
    assert synchronise(site) == "", "once more is no mistake"
    site.kill("a")
    site.wait(lambda: site.master() in ("b", "c"), "a mirror is promoted")
    assert [number for number, _ in site.drain()] == list(range(COUNT))


def test_eager_sync_copies_unacked_messages_too(site: Site) -> None:
    consumer = Consumer(site, site["b"].client(), prefetch=50)
    assert len(consumer.wait_taken(50)) == 50
    manual(site)
    assert synchronise(site) == ""
    site.wait_copies("a", "b", "c")
    consumer.client.close_socket()
    site.kill("a")
    site.wait(lambda: site.master() in ("b", "c"), "a mirror is promoted")
    found = site.drain()
    assert [number for number, _ in found] == list(range(COUNT))
    assert all(redelivered for number, redelivered in found if number < 50), "no false first delivery"


def test_eager_sync_cancel_keeps_what_was_copied_and_can_be_repeated(site: Site) -> None:
    manual(site)
    assert synchronise(site) == ""
    synchronise(site, wanted=False)
    synchronise(site, wanted=False)
    site.advance(3)
    assert synchronise(site) == ""
    site.wait_copies("a", "b", "c")


def test_eager_sync_auto_synchronises_new_mirrors_by_itself(site: Site) -> None:
    site.policy(ha_mode="all")
    site.wait_copies("a", "b", "c")
    site.kill("a")
    site.wait(lambda: site.master() in ("b", "c"), "a mirror is promoted")
    assert site.depth() == COUNT


def test_eager_sync_auto_on_policy_change_synchronises_mirrors_that_waited(site: Site) -> None:
    manual(site)
    site.policy(ha_mode="all", ha_sync_mode="automatic")
    site.wait_copies("a", "b", "c")
    assert site.depth() == COUNT


def test_eager_sync_requeue_before_and_after_delivers_each_once(site: Site) -> None:
    consumer = Consumer(site, site["a"].client(), prefetch=2)
    (first, _), (second, _) = consumer.wait_taken(2)
    assert (first, second) == (0, 1)
    manual(site)
    tags = {number: tag for tag, number in consumer.unacked}
    consumer.client.send(methods.BasicReject(tags[0], True))
    assert synchronise(site) == ""
    site.wait_copies("a", "b", "c")
    consumer.client.send(methods.BasicReject(tags[1], True))
    consumer.client.close_socket()
    site.advance(1)
    assert sorted(number for number, _ in site.drain()) == list(range(COUNT))


def test_synchronising_goes_on_with_a_new_source_when_the_master_dies(site: Site) -> None:
    site.policy(ha_mode="nodes", ha_params=["a", "b"])
    site.wait_copies("a", "b")
    site.policy(ha_mode="all", ha_sync_batch_size=10, ha_sync_max_throughput=1000)
    site.advance(0.3)
    site.kill("a")
    site.wait(lambda: site.master() == "b", "b is promoted")
    site.policy(ha_mode="all")
    site.wait(lambda: "c" in site.in_sync(), "c is in sync")
    assert site.depth() == COUNT
