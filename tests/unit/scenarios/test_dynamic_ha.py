"""Scenarios of the suite `dynamic_ha`: queues follow their policies and their nodes, and lose nothing."""

import random
from typing import Any

import pytest

from mirrormq.meta.commands import DeleteVHost
from mirrormq.wire import methods
from tests.support.scenariokit import Consumer, Site

COUNT = 10
NUMBERS = list(range(COUNT))


@pytest.fixture
def site() -> Site:
    return Site()


def numbers(site: Site, queue: str = "q") -> list[int]:
    return [number for number, _ in site.drain(queue=queue)]


def nodes(*names: str) -> dict[str, Any]:
    return {"ha_mode": "nodes", "ha_params": list(names)}


def test_change_policy_copies_follow_the_policy_and_nothing_is_lost(site: Site) -> None:
    site.declare(at="a")
    site.fill(COUNT)
    site.policy(ha_mode="all")
    site.wait_copies("a", "b", "c")
    site.policy(**nodes("a", "b"))
    site.wait_copies("a", "b")
    site.policy(**nodes("a", "c"))
    site.wait_copies("a", "c")
    assert site.master() == "a"
    site.clear_policy()
    site.wait_copies("a")
    site.policy(**nodes("b", "c"))
    site.wait_copies("b", "c")
    assert site.master() in ("b", "c"), "the master has left the node that is not listed"
    assert numbers(site) == NUMBERS


def test_change_policy_the_master_stays_until_a_listed_node_is_in_sync(site: Site) -> None:
    site.declare(at="a")
    site.fill(COUNT)
    site.policy(**nodes("b"), ha_sync_mode="manual")
    site.advance(5)
    assert site.master() == "a"
    assert numbers(site) == NUMBERS, "the queue serves while it waits"
    site.wait_copies("b")
    assert site.master() == "b"


def test_change_cluster_exactly_tops_up_when_nodes_come_and_replaces_one_that_goes() -> None:
    site = Site("a", "b", "c", "d")
    site.policy(ha_mode="exactly", ha_params=3, ha_replace_delay=1000)
    site.declare(at="a")
    site.fill(COUNT)
    site.wait(lambda: len(site.in_sync()) == 3, "three copies")
    (outside,) = set(site.names) - site.in_sync()
    gone = next(name for name in sorted(site.in_sync()) if name != site.master())
    site.kill(gone)
    site.wait(lambda: outside in site.in_sync(), f"{outside} replaces {gone}")
    assert len(site.in_sync()) == 3
    site.restart(gone)
    site.wait(lambda: len(site.in_sync()) == 3 and not site.learners(), "three copies again")
    assert numbers(site) == NUMBERS


def test_change_cluster_exactly_more_than_there_are_uses_all(site: Site) -> None:
    site.policy(ha_mode="exactly", ha_params=4)
    site.declare(at="a")
    site.wait_copies("a", "b", "c")


def test_rapid_change_no_operation_fails_while_the_policy_flips(site: Site) -> None:
    client = site["a"].client()
    for turn in range(20):
        if turn % 2:
            site.clear_policy()
        else:
            site.policy(ha_mode="all")
        client.send(methods.QueueDeclare(queue="fast", durable=True))
        site.wait(lambda: bool(client.inbox), "declared")
        client.expect(methods.QueueDeclareOk)
        client.publish("fast", b"%d" % turn)
        client.send(methods.BasicGet(queue="fast", no_ack=True))
        site.wait(lambda: len(client.inbox) >= 2, "fetched")
        client.expect(methods.BasicGetOk)
        assert client.take()[0][1] == b"%d" % turn
        client.send(methods.QueueDelete(queue="fast"))
        site.wait(lambda: bool(client.inbox), "deleted")
        client.expect(methods.QueueDeleteOk)


def test_vhost_deletion_takes_its_mirrored_queues_with_it(site: Site) -> None:
    site.policy(ha_mode="all")
    site.declare(at="a")
    site.fill(COUNT)
    done: list[Any] = []
    site["b"].node.propose(DeleteVHost("/"), done.append, False)
    site.wait(lambda: bool(done), "the vhost is deleted")
    site.advance(2)
    for member in site.members.values():
        assert not member.node.meta.views
        assert member.node.copies is not None
        assert not member.node.copies.mirrors.copies


def unsynchronised(site: Site, **policy: str) -> None:
    """Ten messages whose only copy in sync is on a, and mirrors without them."""
    site.declare(at="a")
    site.fill(COUNT)
    site.policy(ha_mode="all", ha_sync_mode="manual", **policy)
    site.wait(lambda: site.learners() == {"b", "c"}, "two mirrors that are not in sync")


PASSIVE = methods.QueueDeclare(queue="q", passive=True)


def test_force_delete_if_no_master(site: Site) -> None:
    unsynchronised(site)
    site.kill("a")
    site.wait(lambda: site.master() == "", "no copy can be promoted")
    assert site.refusal(PASSIVE) == 404
    assert site.refusal(methods.QueueDelete(queue="q", if_empty=True)) == 406
    assert site.refusal(methods.QueueDelete(queue="q")) == 0
    site.advance(1)
    assert ("/", "q") not in site.any.node.meta.queues


def test_promote_on_failure_when_synced_waits_for_the_node_that_has_everything(site: Site) -> None:
    unsynchronised(site)
    site.kill("a")
    site.wait(lambda: site.master() == "", "no copy can be promoted")
    assert site.refusal(PASSIVE) == 404
    site.restart("a")
    site.wait(lambda: site.master() == "a", "a is back")
    assert numbers(site) == NUMBERS


def test_promote_on_failure_always_serves_what_there_is(site: Site) -> None:
    unsynchronised(site, ha_promote_on_failure="always")
    site.kill("a")
    site.wait(lambda: site.master() in ("b", "c"), "a mirror is promoted")
    assert site.depth() == 0
    view = site.view()
    assert view is not None
    assert view.losses == 1, "it is counted"


def test_promote_on_shutdown_default_waits_for_the_node_that_has_everything(site: Site) -> None:
    unsynchronised(site)
    site.stop("a")
    site.advance(3)
    assert site.refusal(PASSIVE) == 404
    site.restart("a")
    site.wait(lambda: site.master() == "a", "a is back")
    assert numbers(site) == NUMBERS


def test_promote_on_shutdown_always_serves_what_there_is(site: Site) -> None:
    unsynchronised(site, ha_promote_on_shutdown="always")
    site.stop("a")
    site.wait(lambda: site.master() in ("b", "c"), "a mirror is promoted")
    assert site.depth() == 0


def test_promote_on_shutdown_always_yields_to_an_explicit_when_synced_on_failure(site: Site) -> None:
    unsynchronised(site, ha_promote_on_shutdown="always", ha_promote_on_failure="when-synced")
    site.stop("a")
    site.advance(3)
    assert site.refusal(PASSIVE) == 404
    site.restart("a")
    site.wait(lambda: site.master() == "a", "a is back")
    assert numbers(site) == NUMBERS


def test_a_stop_with_a_mirror_in_sync_is_a_planned_transfer(site: Site) -> None:
    site.policy(ha_mode="all")
    site.declare(at="a")
    site.fill(COUNT)
    site.stop("a")
    assert site.master() in ("b", "c")
    assert numbers(site) == NUMBERS
    view = site.view()
    assert view is not None
    assert view.losses == 0


def test_nodes_policy_should_pick_master_from_its_params_and_only_if_in_sync(site: Site) -> None:
    site.policy(**nodes("a", "c"))
    site.declare(at="a")
    site.fill(COUNT)
    site.wait_copies("a", "c")
    # b is listed first and has nothing; c is in sync.
    site.policy(**nodes("b", "c"), ha_sync_mode="manual")
    site.wait(lambda: site.master() == "c", "the listed node in sync becomes the master")
    assert numbers(site) == NUMBERS


@pytest.mark.parametrize("survivor", ["b", "c"])
def test_every_copy_in_sync_has_everything_after_the_whole_cluster_stopped(site: Site, survivor: str) -> None:
    site.policy(ha_mode="all")
    site.declare(at="a")
    site.fill(COUNT)
    for name in ("a", "b", "c"):
        site.kill(name)
    # Two of three are enough for an agreement; the master is not among them.
    other = "c" if survivor == "b" else "b"
    for name in (survivor, other):
        site.start(name, *site.names)
    site.settle(seconds=60)
    site.wait(lambda: site.master() in ("b", "c"), "a restarted copy is promoted", 60)
    assert numbers(site) == NUMBERS


TABLE = [
    ({"ha_mode": "all"}, {"a", "b", "c"}),
    ({"ha_mode": "exactly", "ha_params": 1}, {"a"}),
    ({"ha_mode": "exactly", "ha_params": 3}, {"a", "b", "c"}),
    (nodes("a"), {"a"}),
    (nodes("b"), {"b"}),
    (nodes("a", "nobody"), {"a"}),
    (nodes("nobody"), {"a"}),
    (nodes("b", "c", "nobody"), {"b", "c"}),
]


@pytest.mark.parametrize(("policy", "wanted"), TABLE)
def test_dynamic_mirroring_places_copies_by_the_table(
    site: Site, policy: dict[str, Any], wanted: set[str]
) -> None:
    site.declare(at="a")
    site.fill(3)
    site.policy(**policy)
    site.wait_copies(*wanted)
    assert numbers(site) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(4))
def test_random_policy_sequences_end_as_the_policy_says_with_contents_kept(site: Site, seed: int) -> None:
    rng = random.Random(seed)
    site.declare(at="a")
    publisher = site.publisher("b")
    sent = 0
    for _ in range(8):
        policy, _ = rng.choice(TABLE)
        site.policy(**policy)
        count = rng.randrange(1, 30)
        publisher.publish(count, sent)
        sent += count
        site.advance(rng.choice([0.05, 0.3, 2]))
    site.policy(ha_mode="all")
    publisher.wait_confirmed(sent)
    site.wait_copies("a", "b", "c")
    assert numbers(site) == list(range(sent))


def test_consumers_go_on_while_the_policy_moves_the_master_under_them(site: Site) -> None:
    site.declare(at="a")
    consumer = Consumer(site, site["b"].client())
    publisher = site.publisher("c")
    taken: list[tuple[int, bool]] = []
    for turn, policy in enumerate([nodes("a"), nodes("b"), {"ha_mode": "all"}, nodes("c"), nodes("a", "b")]):
        site.policy(**policy)
        publisher.publish(10, turn * 10)
        site.advance(3)
        taken += consumer.take()
        consumer.ack_all()
    publisher.wait_confirmed(50)
    site.advance(1)
    taken += consumer.take()
    # A new master may mark what was never delivered, and never the other way round.
    assert [number for number, _ in taken] == list(range(50)), "once, and in order"
    assert consumer.cancelled == 0
