"""Scenarios of the suite `sync_detection`: when a mirror counts as synchronised without copying anything."""

import pytest

from mirrormq.wire import methods
from tests.support.scenariokit import Consumer, Site


@pytest.fixture
def site() -> Site:
    made = Site("a", "b", "c")
    made.declare(at="a")
    return made


def manual(site: Site) -> None:
    site.policy(ha_mode="nodes", ha_params=["a", "b"], ha_sync_mode="manual")
    site.advance(3)


def is_synced(site: Site) -> bool:
    return site.in_sync() == {"a", "b"}


def test_follower_synchronization_an_empty_queue_is_in_sync_at_once(site: Site) -> None:
    manual(site)
    site.wait(lambda: is_synced(site), "b is in sync")


def test_follower_synchronization_old_messages_hold_a_mirror_back_until_they_are_gone(site: Site) -> None:
    site.fill(3)
    manual(site)
    assert not is_synced(site)
    site.fill(2, first=3)
    assert not is_synced(site), "new messages do not help"
    consumer = Consumer(site, site["c"].client(), prefetch=3)
    assert [number for number, _ in consumer.wait_taken(3)] == [0, 1, 2]
    site.advance(3)
    assert not is_synced(site), "an unacked message is there"
    consumer.client.send(methods.BasicNack(consumer.unacked[-1][0], True, True))
    consumer.unacked.clear()
    consumer.wait_taken(3)
    site.advance(3)
    assert not is_synced(site), "a requeued one too"
    consumer.ack_all()
    site.wait(lambda: is_synced(site), "b is in sync")


@pytest.mark.parametrize("letters", [False, True], ids=["dropped", "dead-lettered"])
def test_follower_synchronization_ttl_expiry_of_old_messages_makes_it_synchronised(letters: bool) -> None:
    site = Site("a", "b", "c")
    arguments = {"x-message-ttl": 2000}
    if letters:
        site.declare("dead", at="a")
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    site.declare("q", at="a", arguments=arguments)
    site.fill(3)
    site.policy("^q$", ha_mode="nodes", ha_params=["a", "b"], ha_sync_mode="manual")
    site.advance(0.5)
    assert not is_synced(site)
    site.wait(lambda: is_synced(site), "b is in sync when all old messages have expired", 10)
    if letters:
        assert site.depth("dead") == 3
