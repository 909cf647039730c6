"""A link that breaks for a moment: consumers keep what they hold, and nothing is repeated that arrived."""

from typing import Any

import pytest

from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import PERSISTENT, settle_method
from tests.support.nodekit import Client

ACK, NACK = 80, 120
LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def cluster(**queue: Any) -> ClusterKit:
    kit = ClusterKit()
    owner = kit["master"].client()
    owner.declare("q", **queue)
    owner.declare("dead")
    return kit


def mastered(kit: ClusterKit, name: str = "q") -> Any:
    return kit.node("master").vhosts["/"].queues[name]


def consumer(kit: ClusterKit, prefetch: int = 0, **more: Any) -> Client:
    client = kit["home"].client()
    client.ask(methods.BasicQos(prefetch_count=prefetch), methods.BasicQosOk)
    client.consume("q", **more)
    return client


def fill(kit: ClusterKit, count: int, first: int = 0) -> None:
    local = kit["master"].client()
    for number in range(first, first + count):
        local.publish("q", b"%d" % number)


def flap(kit: ClusterKit, seconds: float = 1) -> None:
    kit.cut("home", "master")
    kit.advance(seconds)
    kit.heal("home", "master")


def test_what_clients_hold_over_a_short_break_is_theirs_and_late_acks_count():
    kit = cluster(auto_delete=True)
    client = consumer(kit)
    fill(kit, 3)
    assert client.deliveries() == [b"0", b"1", b"2"]
    flap(kit)
    assert client.take() == []
    assert mastered(kit).core.unacked == 3
    client.feed(settle_method(ACK, 2, 1))
    assert (mastered(kit).core.unacked, mastered(kit).core.ready) == (1, 0)
    fill(kit, 1, 3)
    assert client.expect(methods.BasicDeliver).delivery_tag == 4
    client.take()
    client.feed(settle_method(ACK, 4, 1))
    assert mastered(kit).core.unacked == 0


def test_acks_sent_while_the_link_is_broken_are_told_when_it_is_back():
    kit = cluster()
    client = consumer(kit)
    fill(kit, 4)
    kit.cut("home", "master")
    client.feed(settle_method(ACK, 3, 1))
    kit.heal("home", "master")
    assert (mastered(kit).core.unacked, mastered(kit).core.ready) == (1, 0)


def test_settlements_lost_on_the_wire_are_sent_again_and_taken_once():
    kit = cluster(arguments=LETTERS)
    client = consumer(kit, prefetch=10)
    fill(kit, 5)
    client.take()
    client.feed(settle_method(ACK, 1, 0))  # the master hears of this one
    kit.hold("home", "master")
    client.feed(settle_method(ACK, 2, 0))
    client.feed(settle_method(NACK, 3, 0))  # rejected: dead
    client.feed(settle_method(NACK, 4, 2))  # requeued
    kit.deliver("home", "master", 1)  # and of the second
    flap(kit)
    again = client.expect(methods.BasicDeliver)
    assert (again.delivery_tag, again.redelivered) == (6, True)
    assert client.deliveries() == [b"3"]
    assert mastered(kit).core.unacked == 2
    assert mastered(kit, "dead").message_count == 1


def test_deliveries_lost_on_the_wire_come_again_in_order():
    kit = cluster()
    client = consumer(kit)
    fill(kit, 2)
    kit.hold("master", "home")
    fill(kit, 3, 2)
    flap(kit)
    fill(kit, 1, 5)
    assert client.deliveries() == [b"%d" % number for number in range(6)]
    client.feed(settle_method(ACK, 6, 1))
    assert mastered(kit).core.unacked == 0
    assert not kit.cuts


def test_what_is_held_over_a_break_counts_against_the_prefetch():
    kit = cluster()
    client = consumer(kit, prefetch=2)
    fill(kit, 5)
    assert client.deliveries() == [b"0", b"1"]
    flap(kit)
    assert client.deliveries() == []
    client.feed(settle_method(ACK, 1, 0))
    assert client.deliveries() == [b"2"]


def test_a_shared_prefetch_changed_during_the_break_holds_after_it():
    kit = cluster()
    client = consumer(kit, prefetch=1)
    fill(kit, 5)
    client.take()
    kit.cut("home", "master")
    client.ask(methods.BasicQos(prefetch_count=3, global_=True), methods.BasicQosOk)
    kit.heal("home", "master")
    client.feed(settle_method(ACK, 1, 0))
    assert len(client.deliveries()) <= 3


def test_a_fetched_message_is_acknowledged_after_a_break():
    kit = cluster()
    fill(kit, 2)
    client = kit["home"].client()
    client.send(methods.BasicGet(queue="q"))
    assert client.expect(methods.BasicGetOk).message_count == 1
    flap(kit)
    client.feed(settle_method(ACK, 1, 0))
    assert (mastered(kit).core.unacked, mastered(kit).core.ready) == (0, 1)


@pytest.mark.parametrize("is_socket", [False, True])
def test_a_channel_that_closed_during_the_break_has_acked_what_it_acked_and_gives_back_the_rest(
    is_socket: bool,
):
    kit = cluster()
    client = consumer(kit)
    fill(kit, 4)
    client.take()
    kit.cut("home", "master")
    client.feed(settle_method(ACK, 2, 1))
    if is_socket:
        client.close_socket()
    else:
        client.ask(methods.ChannelClose(200, "", 0, 0), methods.ChannelCloseOk)
    kit.heal("home", "master")
    kit.advance(1)
    assert (mastered(kit).core.unacked, mastered(kit).core.ready) == (0, 2)
    assert mastered(kit).consumer_count == 0
    for node, peer in (("home", "master"), ("master", "home")):
        link = kit.node(node).switch.links[peer]
        assert (link.inlets, link.outlets, link.suspended, link.served) == ({}, {}, {}, set())


def test_a_consumer_cancelled_during_the_break_keeps_what_it_holds():
    kit = cluster()
    client = consumer(kit)
    fill(kit, 2)
    client.take()
    kit.cut("home", "master")
    client.ask(methods.BasicCancel("c"), methods.BasicCancelOk)
    kit.heal("home", "master")
    assert mastered(kit).consumer_count == 0
    fill(kit, 1, 2)
    assert client.take() == []
    client.feed(settle_method(ACK, 2, 1))
    assert (mastered(kit).core.unacked, mastered(kit).core.ready) == (0, 1)


def test_what_waits_at_the_home_node_is_not_handed_out_while_the_link_is_broken():
    kit = cluster()
    client = consumer(kit)
    kit.node("home").client_paused(kit.now, client.conn)
    fill(kit, 3)
    kit.cut("home", "master")
    kit.node("home").client_writable(kit.now, client.conn)
    kit.run()
    assert client.deliveries() == []
    kit.heal("home", "master")
    assert client.deliveries() == [b"0", b"1", b"2"]


def test_a_link_that_breaks_again_before_it_was_usable_repeats_nothing_either():
    kit = cluster()
    client = consumer(kit)
    fill(kit, 3)
    client.take()
    kit.cut("home", "master")
    client.feed(settle_method(ACK, 1, 0))
    for direction in (("home", "master"), ("master", "home"), ("home", "master")):
        kit.hold(*direction)
        kit.heal("home", "master")
        for _ in range(2):
            kit.deliver(*direction)
            kit.run()
        kit.cut("home", "master")
    kit.heal("home", "master")
    assert client.take() == []
    assert mastered(kit).core.unacked == 2
    client.feed(settle_method(ACK, 3, 1))
    assert mastered(kit).core.unacked == 0
    assert not kit.cuts


def test_a_master_that_restarted_has_given_everything_out_again():
    kit = ClusterKit(disks={"home": MemoryDisk(), "master": MemoryDisk()})
    kit["master"].client().declare("q", durable=True)
    client = consumer(kit)
    client.publish("q", b"x", properties=PERSISTENT)
    client.take()
    kit.kill("master")
    kit.restart("master")
    again = client.expect(methods.BasicDeliver)
    assert (again.delivery_tag, again.redelivered) == (2, True)
    client.take()
    client.feed(settle_method(ACK, 1, 0))
    assert mastered(kit).core.unacked == 1
    client.feed(settle_method(ACK, 2, 0))
    assert mastered(kit).core.unacked == 0


def test_the_single_active_consumer_stays_the_active_one_over_a_break():
    kit = cluster(arguments={"x-single-active-consumer": True})
    client = consumer(kit)
    second = kit["master"].client()
    second.consume("q", "second")
    kit.cut("home", "master")
    fill(kit, 2)
    kit.heal("home", "master")
    assert (client.deliveries(), second.deliveries()) == ([b"0", b"1"], [])


def test_frames_of_settlements_are_kept_only_until_the_master_has_them():
    kit = cluster()
    client = consumer(kit)
    fill(kit, 500)
    client.take()
    (inlet,) = kit.node("home").switch.links["master"].inlets.values()
    for tag in range(1, 501):
        client.feed(settle_method(ACK, tag, 0))
    assert len(inlet._settles) < 40
    assert mastered(kit).core.unacked == 0


def test_no_more_than_a_window_is_at_the_home_node_after_many_breaks():
    kit = cluster()
    client = consumer(kit, no_ack=True)
    local = kit["master"].client()
    kit.node("home").client_paused(kit.now, client.conn)
    for number in range(40):
        local.publish("q", b"%02d" % number + bytes(50_000))
        flap(kit, 0)
    (inlet,) = kit.node("home").switch.links["master"].inlets.values()
    assert inlet.core.resident < 800_000
    kit.node("home").client_writable(kit.now, client.conn)
    kit.run()
    assert [int(body[:2]) for body in client.deliveries()] == list(range(40))
