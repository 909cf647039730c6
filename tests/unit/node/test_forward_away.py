"""A master that stays away: what its queues answer on other nodes, and what becomes of publishes to them."""

from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from mirrormq.wire.methods import Method
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import Client

LONG = 3600
TEXT = "NOT_FOUND - home node 'master' of durable queue 'q' in vhost '/' is down or inaccessible"


def cluster(*, durable: bool = True, **queue: Any) -> ClusterKit:
    """Queue q on `master`."""
    kit = ClusterKit(disks={"home": MemoryDisk(), "master": MemoryDisk()})
    kit["master"].client().declare("q", durable=durable, **queue)
    return kit


def confirming(kit: ClusterKit) -> Client:
    client = kit["home"].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    return client


def closed(client: Client, method: Method) -> tuple[int, str]:
    client.send(method)
    close = client.expect(methods.ChannelClose)
    client.send(methods.ChannelCloseOk())
    client.open(1)
    return close.reply_code, close.reply_text


@pytest.mark.parametrize("seconds", [0, 1, LONG])
def test_what_only_the_master_can_answer_is_answered_404_for_as_long_as_it_is_away(seconds: int):
    kit = cluster()
    kit.kill("master")
    if seconds:
        kit.advance(seconds)
    client = kit["home"].client()
    for method in (
        methods.QueueDeclare(queue="q", durable=True),
        methods.QueueDeclare(queue="q", passive=True),
        methods.BasicConsume(queue="q"),
        methods.BasicGet(queue="q"),
        methods.QueuePurge(queue="q"),
        methods.QueueDelete(queue="q", if_unused=True),
    ):
        assert closed(client, method) == (404, TEXT)


def test_another_declaration_than_the_first_is_a_mistake_whether_the_master_is_there_or_not():
    kit = cluster()
    kit.kill("master")
    code, text = closed(kit["home"].client(), methods.QueueDeclare(queue="q", durable=False))
    assert code == 406
    assert "inequivalent arg 'durable'" in text


def test_the_queue_answers_again_when_its_master_is_back():
    kit = cluster()
    client = kit["home"].client()
    client.publish("q", b"x", properties=PERSISTENT)
    kit.kill("master")
    kit.advance(LONG)
    kit.restart("master")
    assert client.declare("q", passive=True) == methods.QueueDeclareOk("q", 1, 0)
    client.send(methods.BasicGet(queue="q"))
    assert client.expect(methods.BasicGetOk).message_count == 0


@pytest.mark.parametrize("mandatory", [False, True])
def test_a_publish_is_nacked_after_a_bounded_time_and_not_returned(mandatory: bool):
    kit = cluster()
    kit.kill("master")
    kit.advance(LONG)
    client = confirming(kit)
    client.publish("q", b"x", mandatory=mandatory)
    kit.advance(limits.publish_timeout_us / 1_000_000 - 1)
    assert client.take() == []
    kit.advance(1)
    assert client.take() == [methods.BasicNack(1, False, False)]


def test_a_publish_to_a_queue_that_is_there_and_to_one_that_is_not_is_nacked_and_stays_in_the_first():
    kit = cluster()
    client = confirming(kit)
    client.declare("here")
    for name in ("here", "q"):
        client.ask(methods.QueueBind(queue=name, exchange="amq.fanout"), methods.QueueBindOk)
    kit.kill("master")
    client.publish("", b"x", exchange="amq.fanout")
    assert client.take() == []
    kit.advance(limits.publish_timeout_us / 1_000_000)
    assert client.take() == [methods.BasicNack(1, False, False)]
    assert client.declare("here", passive=True).message_count == 1


def test_publishes_nobody_waits_for_are_dropped_counted_and_told_to_the_operator():
    kit = cluster()
    client = kit["home"].client()
    kit.kill("master")
    client.feed(b"".join(publish(b"q", b"%d" % number, PERSISTENT) for number in range(7)))
    kit.advance(limits.publish_timeout_us / 1_000_000)
    (note,) = [note for note in kit["home"].notes if "given up" in note.text]
    assert (note.level, note.fields["messages"]) == ("warning", 7)
    assert kit.node("home").switch.links["master"].owed_bytes == 0
    kit.restart("master")
    assert client.declare("q", passive=True).message_count == 0


def test_publishers_over_the_bound_wait_until_what_came_before_them_is_given_up():
    kit = cluster()
    client = confirming(kit)
    kit.kill("master")
    body = bytes(100_000)
    many = limits.forward_owed_bytes_max // len(body) + 2
    for _ in range(many):
        client.publish("q", body)
    assert client.conn in kit["home"].paused
    kit.advance(limits.publish_timeout_us / 1_000_000)
    kit.advance(1)
    assert client.conn not in kit["home"].paused
    # The last one was only read then, and waits for as long as the others did.
    assert client.take() == [methods.BasicNack(tag, False, False) for tag in range(1, many)]
    kit.advance(limits.publish_timeout_us / 1_000_000)
    assert client.take() == [methods.BasicNack(many, False, False)]


def test_a_connection_that_publishes_elsewhere_is_not_held_up_by_a_master_that_is_away():
    kit = cluster()
    client = kit["home"].client()
    client.declare("here")
    kit.kill("master")
    client.publish("q", b"x")
    client.publish("here", b"x")
    assert client.declare("here", passive=True).message_count == 1


def test_consumers_are_cancelled_and_acknowledgements_of_what_they_hold_are_ignored():
    kit = cluster()
    client = kit["home"].client()
    client.publish("q", b"x", properties=PERSISTENT)
    client.consume("q")
    client.take()
    kit.kill("master")
    kit.advance(limits.link_grace_us / 1_000_000)
    assert client.expect(methods.BasicCancel).consumer_tag == "c"
    client.send(methods.BasicAck(1))
    assert client.take() == []
    kit.restart("master")
    assert client.declare("q", passive=True) == methods.QueueDeclareOk("q", 1, 0)


# --- deleting it ---


def test_a_queue_is_deleted_without_its_master_and_stays_deleted_when_that_is_back():
    kit = cluster()
    client = confirming(kit)
    client.publish("q", b"x", properties=PERSISTENT)
    kit.kill("master")
    kit.advance(LONG)
    client.publish("q", b"y", properties=PERSISTENT)
    client.take()
    client.send(methods.QueueDelete(queue="q"))
    # Nobody waits for a queue that is gone.
    heard = client.take()
    assert methods.BasicAck(2, False) in heard
    assert methods.QueueDeleteOk(0) in heard
    kit.restart("master")
    kit.run()
    assert "q" not in kit.node("master").vhosts["/"].queues
    client.declare("q", durable=True)
    assert client.declare("q", passive=True).message_count == 0


def test_a_queue_that_may_not_be_empty_is_not_deleted_without_its_master():
    kit = cluster()
    kit.kill("master")
    kit.advance(LONG)
    code, text = closed(kit["home"].client(), methods.QueueDelete(queue="q", if_empty=True))
    assert (code, text) == (406, "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty")


def test_a_link_that_broke_a_moment_ago_is_no_reason_to_delete_without_asking():
    kit = cluster()
    client = kit["home"].client()
    kit.cut("home", "master")
    assert closed(client, methods.QueueDelete(queue="q")) == (404, TEXT)


def test_a_master_that_is_only_cut_off_gives_up_a_queue_that_was_deleted_elsewhere():
    kit = cluster()
    taker = kit["master"].client()
    taker.consume("q")
    kit.cut("home", "master")
    kit.advance(LONG)
    client = kit["home"].client()
    client.ask(methods.QueueDelete(queue="q"), methods.QueueDeleteOk)
    kit.run()
    assert taker.expect(methods.BasicCancel).consumer_tag == "c"
    kit.heal("home", "master")
    assert not kit.cuts


def test_a_queue_that_is_not_durable_is_not_called_so():
    kit = cluster(durable=False)
    kit.cut("home", "master")
    code, text = closed(kit["home"].client(), methods.BasicGet(queue="q"))
    assert (code, text) == (404, TEXT.replace("durable ", ""))
