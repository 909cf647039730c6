"""Who is waited for when a mirrored queue gets another master, and what a node without a lease loses."""

from typing import Any

import pytest

from mirrormq.meta.commands import NodeDead
from mirrormq.node import requests
from mirrormq.wire import methods
from tests.support.scenariokit import Consumer, Site
from tests.unit.node.test_failover import ack, consumer, mastered, settle, site, wide


def parted(group: Site, *pairs: str) -> None:
    """Frames between these nodes stay under way."""
    group.cuts |= {frozenset(pair) for pair in pairs}


def test_nothing_is_delivered_before_every_live_node_has_said_what_it_holds():
    group = site()
    group.fill(6)
    held = consumer(group, "c", prefetch=2)
    held.wait_taken(2)
    other = consumer(group, "b", prefetch=10)
    other.wait_taken(4)
    other.ack_all()
    group.advance(0.3)
    parted(group, "bc")
    group.kill("a")
    group.advance(1)  # a majority of b and c cannot agree on anything meanwhile
    group.heal()
    group.wait(lambda: group.master() == "b", "b is the master")
    group.advance(0.5)
    assert other.take() == []
    assert mastered(group).core.unacked == 2


def test_new_messages_are_confirmed_while_a_home_node_is_waited_for():
    group = wide()
    group.fill(2)
    held = consumer(group, "e", prefetch=1)
    held.wait_taken(1)
    parted(group, "be")
    group.kill("a")
    group.wait(lambda: group.master() == "b", "b is the master")
    publisher = group.publisher("b")
    publisher.publish(3, 2)
    publisher.wait_confirmed(3)
    taker = consumer_later(group, "c")
    assert mastered(group).inherited.is_waiting
    assert not taker.inbox
    group.heal()
    group.wait(lambda: bool(taker.inbox), "the consumer is registered")
    taker.expect(methods.BasicConsumeOk)
    group.advance(0.5)
    assert taker.deliveries() == [b"1", b"2", b"3", b"4"]
    assert mastered(group).core.unacked == 5


def consumer_later(group: Site, node: str) -> Any:
    client = group[node].client()
    client.send(methods.BasicConsume(queue="q", consumer_tag="c"))
    group.advance(0.3)
    return client


def test_a_node_out_of_reach_stops_a_queue_for_ten_seconds_at_most():
    group = wide()
    group.fill(2)
    held = consumer(group, "e", prefetch=1)
    held.wait_taken(1)
    parted(group, "be")
    group.kill("a")
    group.wait(lambda: group.master() == "b", "b is the master")
    taker = consumer_later(group, "c")
    group.advance(11)
    taker.expect(methods.BasicConsumeOk)
    assert taker.deliveries() == [b"0", b"1"]
    group.heal()
    group.advance(1)
    ack(held, 0)  # too late: it is somebody else's
    group.advance(0.5)
    assert mastered(group).core.unacked == 2
    assert held.cancelled == 0


def moved(group: Site, to: str) -> None:
    """The queue gets this master, by a planned move."""
    record = group.any.node.meta.queues["/", "q"]
    group[group.master()].node.copies.transfer(record.id, to, lambda _: None)
    group.wait(lambda: group.master() == to, f"{to} is the master")
    group.advance(0.3)


def too_late(node: str) -> tuple[Site, Consumer]:
    """A client of this node holds message 0, but the master has heard of it too late."""
    group = wide("a", "b", "d")
    group.fill(2)
    held = consumer(group, node, prefetch=1)
    held.wait_taken(1)
    parted(group, "b" + node)
    group.kill("a")
    group.wait(lambda: group.master() == "b", "b is the master")
    group.advance(11)
    return group, held


def test_what_a_node_has_told_too_late_it_does_not_claim_from_the_next_master():
    group, held = too_late("e")
    taker = consumer(group, "c")
    assert taker.wait_taken(2) == [(0, True), (1, True)]
    group.heal()
    group.advance(1)
    moved(group, "d")
    settle(held, methods.BasicNack, 0, requeue=True)
    group.advance(0.3)
    assert taker.take() == []
    ack(taker, 0, 1)
    group.advance(0.5)
    assert (mastered(group, "d").core.unacked, mastered(group, "d").core.ready) == (0, 0)


def test_of_two_deliveries_of_a_message_to_one_client_the_later_one_counts_at_a_new_master():
    group, held = too_late("d")
    group.heal()
    group.wait_copies("b", "d")
    assert held.wait_taken(1) == [(0, True)]
    (first, _), (second, _) = held.unacked
    moved(group, "d")
    held.client.send(methods.BasicNack(first, requeue=True))
    group.advance(0.3)
    assert held.take() == []
    held.client.send(methods.BasicAck(second))
    assert held.wait_taken(1) == [(1, True)]
    held.client.send(methods.BasicAck(held.unacked[-1][0]))
    group.advance(0.5)
    assert (mastered(group, "d").core.unacked, mastered(group, "d").core.ready) == (0, 0)


def test_a_dead_node_is_not_waited_for():
    group = wide()
    group.fill(3)
    held = consumer(group, "e", prefetch=2)
    held.wait_taken(2)
    group.kill("e")
    group.kill("a")
    group.wait(lambda: group.master() == "b", "b is the master")
    taker = consumer(group, "c")
    assert taker.wait_taken(3) == [(0, True), (1, True), (2, True)]


# --- leases -----------------------------------------------------------------------------------------


def test_a_home_node_without_a_lease_hands_nothing_out():
    group = site()
    group.fill(4)
    held = consumer(group, "c", prefetch=2)
    held.wait_taken(2)
    raft = group["c"].node.membership.raft
    until, raft.holder.until = raft.holder.until, 0  # its lease is over, and nobody has told it
    group.run()
    ack(held, 0, 1)
    assert held.take() == []
    raft.holder.until = until
    assert [number for number, _ in held.wait_taken(2)] == [2, 3]


def test_a_get_without_a_lease_waits_and_takes_nothing_out():
    group = site()
    group.fill(2)
    client = group["c"].client()
    home = group["c"].node
    until, home.membership.raft.holder.until = home.membership.raft.holder.until, 0
    group.run()
    home.switch.links["a"].is_stale = False  # as one that was opened since
    client.send(methods.BasicGet(queue="q"))
    group.run()
    assert client.deliveries() == []
    assert mastered(group, "a").core.ready == 2
    home.membership.raft.holder.until = until
    group.advance(0.1)
    client.expect(methods.BasicGetOk)
    assert client.deliveries() == [b"0"]


def test_what_a_node_held_that_was_called_dead_is_given_out_again_and_its_late_acks_change_nothing():
    group = site()
    group.fill(2)
    held = consumer(group, "c", prefetch=2)
    held.wait_taken(2)
    record = group["a"].node.meta.nodes["c"]
    group["a"].node.propose(NodeDead("c", record.start, returns=record.returns), lambda _: None, False)
    group.advance(0.04)
    assert group["a"].node.switch.link("c").is_up
    assert held.take() == [(0, True), (1, True)]  # it has registered anew, with nothing
    first, again = held.unacked[:2], held.unacked[2:]
    held.client.send(methods.BasicAck(first[1][0], True))
    assert mastered(group, "a").core.unacked == 2
    held.client.send(methods.BasicAck(again[1][0], True))
    assert mastered(group, "a").core.unacked == 0


@pytest.mark.parametrize("is_greeted", [False, True], ids=["before its greeting", "after its greeting"])
def test_a_node_called_dead_while_its_link_comes_back_does_not_go_on_with_what_is_gone(is_greeted: bool):
    group = site()
    group.fill(6)
    held = consumer(group, "c", prefetch=3)
    held.wait_taken(3)
    switch = group["a"].node.switch
    hello = switch._hello
    switch._is_new = lambda _: False  # that it is alive again is not heard of yet

    def greeted(link: Any, frame: Any) -> None:
        switch._hello = hello
        if is_greeted:
            hello(link, frame)
        switch.peer_died("c")
        if not is_greeted:
            hello(link, frame)

    switch._hello = greeted
    group.unlink("a", "c", eof=False)  # the master's greeting says that all is kept
    assert held.wait_taken(3) == [(0, True), (1, True), (2, True)]
    first, again = held.unacked[:3], held.unacked[3:]
    held.client.send(methods.BasicAck(first[2][0], True))
    group.advance(0.3)
    assert (mastered(group, "a").core.unacked, mastered(group, "a").core.ready) == (3, 3)
    held.client.send(methods.BasicAck(again[2][0], True))
    assert [number for number, _ in held.wait_taken(3)] == [3, 4, 5]


def test_after_a_lapse_nothing_is_repeated_that_the_master_has_kept():
    group = site()
    group.fill(6)
    held = consumer(group, "c", prefetch=3)
    held.wait_taken(3)
    group["c"].node.switch.lapse()
    ack(held, 0)
    group.advance(0.5)
    assert [number for number, _ in held.take()] == [3]
    assert (mastered(group, "a").core.unacked, mastered(group, "a").core.ready) == (3, 2)
    held.ack_all()
    group.advance(0.5)
    assert [number for number, _ in held.take()] == [4, 5]


def test_a_node_called_dead_before_it_held_anything_keeps_what_it_holds_at_its_next_lapse():
    group = site()
    group.fill(4)
    record = group["a"].node.meta.nodes["c"]
    group["a"].node.propose(NodeDead("c", record.start, returns=record.returns), lambda _: None, False)
    group.advance(0.5)
    assert group["a"].node.meta.nodes["c"].is_live
    held = consumer(group, "c", prefetch=2)
    held.wait_taken(2)
    group["c"].node.switch.lapse()
    ack(held, 0, 1)
    group.advance(0.5)
    assert held.take() == [(2, False), (3, False)]
    assert (mastered(group, "a").core.unacked, mastered(group, "a").core.ready) == (2, 0)


def test_what_was_under_way_during_a_lapse_comes_again_once():
    group = site()
    held = consumer(group, "c")
    group.cuts |= {frozenset(("a", "c"))}
    group.fill(3)
    group["c"].node.switch.lapse()
    group.heal()
    assert [number for number, _ in held.wait_taken(3)] == [0, 1, 2]
    group.advance(0.5)
    assert held.take() == []
    held.ack_all()
    group.advance(0.3)
    assert (mastered(group, "a").core.unacked, mastered(group, "a").core.ready) == (0, 0)


def test_publishers_that_the_old_master_held_go_on_under_the_next_one():
    group = Site(publish_ahead_bytes=20_000)
    group.policy(ha_mode="all")
    group.declare("q", at="a")
    group.wait_copies(*group.names)
    slow = consumer(group, "a")
    # It would take more, but its socket is full for the moment.
    group["a"].node.client_paused(group.now, slow.client.conn)
    client = group["c"].client()
    for _ in range(5):
        client.publish("q", b"x" * 10_000)
    group.wait(lambda: client.conn in group["c"].paused, "the publisher is held")
    (link_to_old, link_to_next) = (group["c"].node.switch.link(peer) for peer in "ab")
    assert link_to_old.session == link_to_next.session  # so the old word could be taken for the next one's
    move = requests.MoveMaster(vhost="/", name="q", node="b")
    group["a"].node.admin(group.now, move, lambda _: None)
    group.wait(lambda: group.master() == "b", "b is the master")
    slow.client.close_socket()
    group.wait(lambda: client.conn not in group["c"].paused, "the publisher goes on")
    client.publish("q", b"one more")
    group.wait(lambda: mastered(group).message_count == 6, "all are in the queue")
