"""Scenarios of the suite `simple_ha`: what clients see of a mirrored queue whose master dies or moves."""

from collections.abc import Callable
from typing import Any

import pytest

from mirrormq.wire import methods
from tests.support.scenariokit import Consumer, Site

Failure = Callable[[Site], None]


@pytest.fixture
def site() -> Site:
    made = Site()
    made.policy(ha_mode="all")
    return made


def sigkill(site: Site) -> None:
    site.kill("a")


def stop(site: Site) -> None:
    site.stop("a")


def policy(site: Site) -> None:
    site.policy(ha_mode="nodes", ha_params=["b", "c"])


FAILURES = [sigkill, stop, policy]


def name_of(value: Any) -> str:
    return getattr(value, "__name__", str(value))


def test_rapid_redeclare_of_a_queue_that_was_just_deleted(site: Site) -> None:
    client = site["a"].client()
    for _ in range(20):
        for method in (methods.QueueDeclare(queue="r", durable=True), methods.QueueDelete(queue="r")):
            client.send(method)
            site.wait(lambda: bool(client.inbox), f"{method.name} is answered")
            assert not isinstance(client.take()[0], methods.ChannelClose)


def test_declare_synchrony_declare_ok_means_that_the_mirrors_exist(site: Site) -> None:
    client = site["a"].client()
    client.send(methods.QueueDeclare(queue="q", durable=True))
    site.wait(lambda: bool(client.inbox), "declared")
    client.expect(methods.QueueDeclareOk)
    assert site.in_sync() == {"a", "b", "c"}
    site.fill(1)
    site.kill("a")
    site.wait(lambda: site.master() in ("b", "c"), "a mirror is promoted")
    assert site.depth() == 1


def test_clean_up_exclusive_queues_of_a_killed_node(site: Site) -> None:
    client = site["a"].client()
    client.send(methods.QueueDeclare(queue="mine", exclusive=True))
    site.wait(lambda: bool(client.inbox), "declared")
    assert ("/", "mine") in site["b"].node.meta.queues
    assert ("/", "mine") not in site["b"].node.meta.views, "exclusive queues are not mirrored"
    site.kill("a")
    site.wait(lambda: ("/", "mine") not in site["b"].node.meta.queues, "it goes with its connection")


@pytest.mark.parametrize("fail", FAILURES, ids=name_of)
@pytest.mark.parametrize("home", ["b", "c"])
def test_consume_survives_with_cancel_notification(site: Site, fail: Failure, home: str) -> None:
    site.declare(at="a")
    arguments = {"x-cancel-on-ha-failover": True}
    consumer = Consumer(site, site[home].client(), arguments=arguments)
    publisher = site.publisher("c")
    publisher.publish(100)
    site.advance(0.1)
    taken = {number for number, _ in consumer.take()}
    consumer.ack_all()
    fail(site)
    publisher.publish(100, 100)

    def cancelled() -> bool:
        taken.update(number for number, _ in consumer.take())
        return consumer.cancelled == 1

    site.wait(cancelled, "the consumer is told")
    consumer.client.close_socket()
    again = Consumer(site, site[home].client(), arguments=arguments)
    publisher.wait_confirmed(200)

    def complete() -> bool:
        taken.update(number for number, _ in again.take())
        again.ack_all()
        return taken == set(range(200))

    site.wait(complete, f"everything is delivered: {len(taken)}")


@pytest.mark.parametrize("fail", FAILURES, ids=name_of)
@pytest.mark.parametrize("home", ["b", "c"])
def test_auto_resume_a_plain_consumer_goes_on_and_notices_nothing(
    site: Site, fail: Failure, home: str
) -> None:
    site.declare(at="a")
    consumer = Consumer(site, site[home].client())
    publisher = site.publisher("c")
    publisher.publish(100)
    site.advance(0.1)
    taken = consumer.take()
    consumer.ack_all()
    fail(site)
    publisher.publish(100, 100)
    publisher.wait_confirmed(200)

    def complete() -> bool:
        taken.extend(consumer.take())
        consumer.ack_all()
        return {number for number, _ in taken} == set(range(200))

    site.wait(complete, "everything is delivered")
    assert consumer.cancelled == 0
    first = [number for number, redelivered in taken if not redelivered]
    assert first == sorted(set(first)), "first deliveries come once and in order"


@pytest.mark.parametrize("fail", FAILURES, ids=name_of)
@pytest.mark.parametrize("home", ["b", "c"])
def test_confirms_survive_every_publish_is_confirmed_once_and_enqueued_once(
    site: Site, fail: Failure, home: str
) -> None:
    site.declare(at="a")
    publisher = site.publisher(home)
    publisher.publish(100)
    publisher.wait_confirmed(100)
    publisher.publish(50, 100)
    fail(site)
    publisher.publish(50, 150)
    publisher.wait_confirmed(200)
    assert not publisher.nacked
    assert [number for number, _ in site.drain()] == list(range(200))


@pytest.mark.parametrize("fail", FAILURES, ids=name_of)
@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_rejects_survive_a_full_queue_stays_full_and_each_publish_gets_one_answer(
    site: Site, fail: Failure, overflow: str
) -> None:
    site.declare(at="a", arguments={"x-max-length": 10, "x-overflow": overflow})
    publisher = site.publisher("c")
    publisher.publish(20)
    site.advance(0.5)
    fail(site)
    publisher.publish(20, 20)

    def answered() -> bool:
        publisher.hear()
        return len(publisher.confirmed) + len(publisher.nacked) == 40

    site.wait(answered, "each publish is answered")
    assert not publisher.confirmed & publisher.nacked
    survived = [number for number, _ in site.drain()]
    assert len(survived) == 10
    assert {tag - 1 for tag in publisher.confirmed} == set(survived)


def test_unacked_messages_come_back_in_their_original_order_marked(site: Site) -> None:
    site.declare(at="a")
    site.fill(20)
    consumer = Consumer(site, site["a"].client(), prefetch=7)
    assert [number for number, _ in consumer.wait_taken(7)] == list(range(7))
    site.kill("a")
    site.wait(lambda: site.master() in ("b", "c"), "a mirror is promoted")
    found = site.drain()
    assert [number for number, _ in found] == list(range(20))
    assert all(redelivered for number, redelivered in found if number < 7)


def test_late_acks_of_a_consumer_on_a_survivor_count(site: Site) -> None:
    site.declare(at="a")
    site.fill(20)
    consumer = Consumer(site, site["b"].client(), prefetch=7)
    consumer.wait_taken(7)
    site.kill("a")
    site.wait(lambda: site.master() in ("b", "c"), "a mirror is promoted")
    consumer.ack_all()
    taken: list[tuple[int, bool]] = []

    def complete() -> bool:
        taken.extend(consumer.take())
        consumer.ack_all()
        return len(taken) >= 13

    site.wait(complete, "the rest is delivered")
    site.advance(2)
    taken += consumer.take()
    assert [number for number, _ in taken] == list(range(7, 20)), "what was acknowledged does not come again"
    assert site.depth() == 0


def test_what_is_acknowledged_while_the_queue_is_handed_over_does_not_come_again(site: Site) -> None:
    site.declare(at="a")
    site.fill(60)
    consumer = Consumer(site, site["c"].client(), prefetch=60)
    consumer.wait_taken(60)
    queue = next(iter(site["a"].node.switch.masters.values()))
    # Handed over, and held up: the mirrors are not heard, so the queue writes nothing any more.
    site.cut("a")
    site["a"].node.hand_over(site.now, lambda: None)
    site["a"].run()
    assert not queue.log.is_open
    site.heal()
    for tag in range(1, 61):
        consumer.client.send(methods.BasicAck(tag))
    site.wait(lambda: site.master() in ("b", "c"), "another node is the master")
    site.advance(2)
    assert site.depth() == 0
