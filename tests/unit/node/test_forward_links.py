"""What becomes of publishes and deliveries between nodes when links break, fill up, or nodes restart."""

import random
from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import PERSISTENT, publish
from tests.support.nodekit import Client


def remote(kit: ClusterKit, name: str = "q", node: str = "home") -> Any:
    """The queue as another node sees it."""
    return kit.node(node).vhosts["/"].queues[name]


def mastered(kit: ClusterKit, name: str = "q") -> Any:
    return kit.node("master").vhosts["/"].queues[name]


def confirming(kit: ClusterKit) -> Client:
    client = kit["home"].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    return client


def drained(kit: ClusterKit, name: str = "q", node: str = "master") -> list[bytes]:
    """Everything ready in a queue, taken by a client of its own."""
    client = kit[node].client()
    client.consume(name, "drain", no_ack=True)
    return client.deliveries()


def confirmed(client: Client) -> tuple[set[int], set[int]]:
    """Publish numbers that were acked and nacked, from an inbox with nothing else in it."""
    acked: set[int] = set()
    nacked: set[int] = set()
    for item in client.take():
        if isinstance(item, methods.BasicNack):
            nacked.add(item.delivery_tag)
        elif isinstance(item, methods.BasicAck):
            first = 1 if item.multiple else item.delivery_tag
            acked |= set(range(first, item.delivery_tag + 1)) - nacked
    return acked, nacked


@pytest.mark.parametrize("seed", range(12))
def test_a_link_cut_among_a_thousand_publishes_leaves_each_once_and_in_order(seed: int):
    rng = random.Random(seed)
    kit = ClusterKit()
    kit["master"].client().declare("q")
    client = confirming(kit)
    number = 0
    while number < 1000:
        kit.hold("home", "master")
        kit.hold("master", "home")
        for _ in range(rng.randrange(1, 6)):
            count = min(rng.randrange(1, 60), 1000 - number)
            client.feed(b"".join(publish(b"q", b"%d" % (number + at)) for at in range(count)))
            number += count
        for _ in range(rng.randrange(6)):
            kit.deliver("home", "master", rng.randrange(3))
            kit["master"].step()
            kit.deliver("master", "home", rng.randrange(2))
        if rng.random() < 0.6:
            kit.cut("home", "master")
            kit.heal("home", "master")
        kit.release()
    acked, nacked = confirmed(client)
    assert (acked, nacked) == (set(range(1, 1001)), set())
    assert drained(kit) == [b"%d" % at for at in range(1000)]
    assert remote(kit).link.owed_bytes == 0
    assert not kit.cuts


def test_publishes_without_confirms_are_sent_again_as_well():
    kit = ClusterKit()
    kit["master"].client().declare("q")
    client = kit["home"].client()
    kit.hold("home", "master")
    for number in range(10):
        client.publish("q", b"%d" % number)
    client.close_socket()
    kit.cut("home", "master")
    kit.heal("home", "master")
    assert drained(kit) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("seed", range(8))
def test_a_master_that_crashes_has_every_confirmed_publish_once_and_in_order(seed: int):
    rng = random.Random(seed)
    kit = ClusterKit(disks={"home": MemoryDisk(), "master": MemoryDisk()})
    kit["master"].client().declare("q", durable=True)
    client = confirming(kit)
    number = 0
    for _ in range(6):
        kit["master"].hold_flushes = rng.random() < 0.7
        if rng.random() < 0.5:
            kit.hold("master", "home")  # the reports are lost
        for _ in range(rng.randrange(1, 5)):
            count = rng.randrange(1, 20)
            bodies = [b"%d" % (number + at) for at in range(count)]
            client.feed(b"".join(publish(b"q", body, PERSISTENT) for body in bodies))
            number += count
            if rng.random() < 0.4:
                kit["master"].flush()
                kit.run()
        kit.kill("master")
        kit.restart("master")
    kit.run()
    acked, nacked = confirmed(client)
    assert (acked, nacked) == (set(range(1, number + 1)), set())
    assert drained(kit) == [b"%d" % at for at in range(number)]


def test_what_a_crashed_master_may_have_delivered_comes_again_marked():
    kit = ClusterKit(disks={"home": MemoryDisk(), "master": MemoryDisk()})
    kit["master"].client().declare("q", durable=True)
    client = kit["home"].client()
    kit["master"].hold_flushes = True
    client.publish("q", b"x", properties=PERSISTENT)
    kit.kill("master")
    kit.restart("master")
    client.consume("q")
    assert client.expect(methods.BasicDeliver).redelivered


def test_a_refused_publish_is_never_confirmed_although_its_report_was_lost():
    kit = ClusterKit()
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    kit["master"].client().declare("q", arguments=arguments)
    client = confirming(kit)
    kit.hold("master", "home")
    client.feed(publish(b"q", b"1") + publish(b"q", b"2") + publish(b"q", b"3"))
    kit.cut("home", "master")
    kit.heal("home", "master")
    acked, nacked = confirmed(client)
    assert (acked, nacked) == ({1}, {2, 3})


def test_after_a_crash_of_a_refusing_master_no_publish_is_confirmed_that_is_not_there():
    kit = ClusterKit(disks={"home": MemoryDisk(), "master": MemoryDisk()})
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    kit["master"].client().declare("q", durable=True, arguments=arguments)
    client = confirming(kit)
    kit.hold("master", "home")
    client.feed(publish(b"q", b"1", PERSISTENT) + publish(b"q", b"2", PERSISTENT))
    taker = kit["master"].client()
    taker.send(methods.BasicGet(queue="q", no_ack=True))
    client.publish("q", b"3", properties=PERSISTENT)
    kit.kill("master")
    kit.restart("master")
    acked, nacked = confirmed(client)
    assert 2 in nacked
    assert 2 not in acked
    assert acked | nacked == {1, 2, 3}


# --- waiting for a master ---


def test_what_is_owed_is_bounded_and_its_publisher_is_parked_until_the_master_reports():
    kit = ClusterKit()
    kit["master"].client().declare("q")
    client = confirming(kit)
    kit.hold("master", "home")
    body = b"x" * 100_000
    sent = 0
    while client.conn not in kit["home"].paused:
        client.feed(publish(b"q", body))
        sent += 1
    link = kit.node("home").switch.links["master"]
    assert limits.forward_owed_bytes_max < link.owed_bytes < limits.forward_owed_bytes_max + 300_000
    kit.release()
    assert client.conn not in kit["home"].paused
    assert link.owed_bytes == 0
    assert confirmed(client)[0] == set(range(1, sent + 1))


def test_a_full_link_takes_no_more_publishes_and_goes_on_when_it_is_writable():
    kit = ClusterKit()
    kit.full_at = 300_000
    kit["master"].client().declare("q")
    client = kit["home"].client()
    kit.hold("home", "master")
    for _ in range(100):
        client.publish("q", b"x" * 50_000)
    assert kit.size("home", "master") < 300_000 + 2 * limits.forward_block_bytes
    kit.release()
    assert mastered(kit).message_count == 100


def test_publishers_on_another_node_are_held_while_they_run_ahead_of_consumers():
    kit = ClusterKit(publish_ahead_bytes=200_000)
    taker = kit["master"].client()
    taker.declare("q")
    taker.ask(methods.BasicQos(prefetch_count=1), methods.BasicQosOk)
    taker.consume("q")
    # It would take more, but its socket is full for the moment.
    kit.node("master").client_paused(kit.now, taker.conn)
    taker.send(methods.BasicQos(prefetch_count=0, global_=True))
    taker.send(methods.BasicConsume(queue="q", consumer_tag="more"))
    client = kit["home"].client()
    for _ in range(5):
        client.publish("q", b"x" * 60_000)
    assert client.conn in kit["home"].paused
    kit.node("master").client_writable(kit.now, taker.conn)
    kit.run()
    assert client.conn not in kit["home"].paused


def test_publishes_wait_for_a_master_and_are_refused_after_the_timeout():
    kit = ClusterKit()
    kit["master"].client().declare("q")
    client = confirming(kit)
    kit.cut("home", "master")
    client.publish("q", b"early")
    kit.advance(limits.publish_timeout_us / 2_000_000)
    client.publish("q", b"late")
    assert client.take() == []
    kit.advance(limits.publish_timeout_us / 2_000_000)
    assert client.take() == [methods.BasicNack(1, False, False)]
    kit.heal("home", "master")
    assert client.take() == [methods.BasicAck(2, False)]
    assert drained(kit) == [b"late"]


def test_requests_about_a_queue_whose_master_is_away_are_answered_404():
    kit = ClusterKit()
    kit["master"].client().declare("q", durable=True)
    client = kit["home"].client()
    kit.cut("home", "master")
    text = "NOT_FOUND - home node 'master' of durable queue 'q' in vhost '/' is down or inaccessible"
    for method in (
        methods.QueueDeclare(queue="q", durable=True),
        methods.QueueDeclare(queue="q", passive=True),
        methods.BasicConsume(queue="q"),
        methods.BasicGet(queue="q"),
        methods.QueuePurge(queue="q"),
        methods.QueueDelete(queue="q"),
    ):
        client.send(method)
        closed = client.expect(methods.ChannelClose)
        assert (closed.reply_code, closed.reply_text) == (404, text)
        client.send(methods.ChannelCloseOk())
        client.open(1)


def test_requests_under_way_when_the_link_breaks_are_answered_404():
    kit = ClusterKit()
    kit["master"].client().declare("q")
    for method in (
        methods.QueueDeclare(queue="q", passive=True),
        methods.BasicConsume(queue="q"),
        methods.BasicGet(queue="q"),
    ):
        client = kit["home"].client()
        kit.hold("home", "master")
        client.send(method)
        assert client.take() == []
        kit.cut("home", "master")
        kit.run()
        assert client.expect(methods.ChannelClose).reply_code == 404
        kit.heal("home", "master")
    assert mastered(kit).consumer_count == 0


# --- consumers ---


def test_a_link_that_stays_broken_gives_everything_back_to_the_master_in_order_and_marked():
    kit = ClusterKit()
    local = kit["master"].client()
    local.declare("q")
    client = kit["home"].client()
    client.consume("q")
    for number in range(5):
        client.publish("q", b"%d" % number)
    assert len(client.deliveries()) == 5
    kit.cut("home", "master")
    local.consume("q", "l")
    assert local.deliveries() == []
    kit.advance(limits.link_grace_us / 1_000_000)
    items = local.take()
    assert [item[1] for item in items if isinstance(item, tuple)] == [b"%d" % at for at in range(5)]
    assert all(item.redelivered for item in items if isinstance(item, methods.BasicDeliver))
    # The old tags mean nothing any more.
    kit.heal("home", "master")
    client.send(methods.BasicAck(5, True))
    assert mastered(kit).core.unacked == 5


def test_what_a_node_held_is_given_out_at_once_when_its_process_is_known_to_be_gone():
    kit = ClusterKit()
    local = kit["master"].client()
    local.declare("q")
    client = kit["home"].client()
    client.consume("q")
    client.publish("q", b"x")
    kit.kill("home")
    local.consume("q", "l")
    assert local.deliveries() == []
    kit.node("master").switch.peer_died("home")
    kit.run()
    assert local.deliveries() == [b"x"]


def test_consumers_are_cancelled_when_the_master_stays_away():
    kit = ClusterKit()
    kit["master"].client().declare("q", auto_delete=True)
    client = kit["home"].client()
    client.consume("q")
    kit.cut("home", "master")
    kit.advance(limits.link_grace_us / 1_000_000 - 1)
    assert client.take() == []
    assert "q" in kit.node("master").vhosts["/"].queues
    kit.advance(1.1)
    assert client.take() == [methods.BasicCancel("c", nowait=True)]
    # For the master its last consumer is gone: the queue goes with it.
    assert "q" not in kit.node("master").vhosts["/"].queues


def test_an_exclusive_consumer_keeps_the_queue_over_a_short_break():
    kit = ClusterKit()
    local = kit["master"].client()
    local.declare("q")
    client = kit["home"].client()
    client.consume("q", exclusive=True)
    kit.cut("home", "master")
    local.send(methods.BasicConsume(queue="q", consumer_tag="l"))
    assert local.expect(methods.ChannelClose).reply_code == 403
    kit.heal("home", "master")
    client.publish("q", b"x")
    assert client.deliveries() == [b"x"]


def test_a_consumer_that_went_during_the_break_gives_its_place_up_when_the_link_is_back():
    kit = ClusterKit()
    local = kit["master"].client()
    local.declare("q")
    client = kit["home"].client()
    client.consume("q", exclusive=True)
    kit.cut("home", "master")
    client.close_socket()
    kit.heal("home", "master")
    local.consume("q")


def test_a_node_that_restarts_has_lost_its_consumers_at_once():
    kit = ClusterKit("home", "master", "other")
    kit["master"].client().declare("q", durable=True)
    client = kit["home"].client()
    client.consume("q", exclusive=True)
    kit.kill("home")
    kit.restart("home")
    other = kit["other"].client()
    other.consume("q")
    other.publish("q", b"x")
    assert other.deliveries() == [b"x"]


def test_a_client_that_does_not_read_costs_a_window_and_keeps_nothing_from_others():
    kit = ClusterKit("home", "master", "other")
    local = kit["master"].client()
    local.declare("q")
    slow = kit["home"].client()
    slow.consume("q", no_ack=True)
    kit.node("home").client_paused(kit.now, slow.conn)
    for number in range(100):
        local.publish("q", b"%03d" % number + b"x" * 50_000)
    (inlet,) = kit.node("home").switch.links["master"].inlets.values()
    assert 0 < inlet.core.resident < limits.forward_window_bytes + 100_000
    assert mastered(kit).message_count > 80
    kit.advance(1)
    kit.advance(1)
    assert inlet.core.resident == 0
    assert mastered(kit).message_count == 100
    quick = kit["other"].client()
    quick.consume("q", no_ack=True)
    assert [body[:3] for body in quick.deliveries()] == [b"%03d" % at for at in range(100)]
    kit.node("home").client_writable(kit.now, slow.conn)
    kit.run()
    local.publish("q", b"again")
    local.publish("q", b"again")
    assert slow.deliveries() == [b"again"]


def test_a_slow_reader_gets_everything_in_order_when_it_reads_again():
    kit = ClusterKit()
    local = kit["master"].client()
    local.declare("q")
    slow = kit["home"].client()
    slow.consume("q", no_ack=True)
    kit.node("home").client_paused(kit.now, slow.conn)
    for number in range(60):
        local.publish("q", b"%03d" % number + b"x" * 50_000)
    kit.node("home").client_writable(kit.now, slow.conn)
    kit.run()
    assert [body[:3] for body in slow.deliveries()] == [b"%03d" % at for at in range(60)]
    assert mastered(kit).core.unacked == 0


def test_a_shared_prefetch_holds_across_a_local_and_a_remote_queue():
    kit = ClusterKit()
    kit["master"].client().declare("q")
    client = kit["home"].client()
    client.declare("here")
    client.ask(methods.BasicQos(prefetch_count=3, global_=True), methods.BasicQosOk)
    client.consume("q", "far")
    client.consume("here", "near")
    for number in range(4):
        client.publish("q", b"far%d" % number)
        client.publish("here", b"near%d" % number)
    assert len(client.deliveries()) == 3
    client.send(methods.BasicAck(3, True))
    assert len(client.deliveries()) == 3
    client.send(methods.BasicAck(6, True))
    assert len(client.deliveries()) == 2


def test_a_closed_channel_leaves_nothing_behind_on_either_node():
    kit = ClusterKit()
    kit["master"].client().declare("q")
    client = kit["home"].client()
    for number in range(6):
        client.publish("q", b"%d" % number)
    client.ask(methods.BasicQos(prefetch_count=2), methods.BasicQosOk)
    client.consume("q")
    client.send(methods.BasicGet(queue="q"))
    client.close_socket()
    assert mastered(kit).message_count == 6
    home = kit.node("home").switch.links["master"]
    master = kit.node("master").switch.links["home"]
    assert not home.inlets
    assert not master.outlets
    assert drained(kit, node="home") == [b"%d" % at for at in range(6)]


def test_a_fetched_message_of_a_channel_that_closed_meanwhile_goes_back():
    kit = ClusterKit()
    kit["master"].client().declare("q")
    client = kit["home"].client()
    client.publish("q", b"x")
    kit.hold("master", "home")
    client.send(methods.BasicGet(queue="q", no_ack=True))
    client.close_socket()
    kit.release()
    taker = kit["master"].client()
    taker.send(methods.BasicGet(queue="q"))
    assert taker.expect(methods.BasicGetOk).redelivered


def test_deleting_the_queue_cancels_consumers_of_all_nodes_and_frees_both_ends():
    kit = ClusterKit("home", "master", "other")
    owner = kit["master"].client()
    owner.declare("q")
    clients = [kit[name].client() for name in ("home", "master", "other")]
    for client in clients:
        client.consume("q")
    confirmer = confirming(kit)
    confirmer.publish("q", b"x")
    owner.send(methods.QueueDelete(queue="q"))
    for client in clients:
        assert methods.BasicCancel("c", nowait=True) in client.take()
    confirmer.take()
    kit.hold("home", "master")
    assert not kit.node("master").switch.links["home"].outlets
    assert not kit.node("master").switch.links["home"].streams
    assert not kit.node("home").switch.links["master"].queues


# --- metadata that comes late ---


def test_an_answer_waits_until_this_node_has_the_metadata_it_relies_on():
    kit = ClusterKit()
    kit["master"].client().declare("q")
    client = kit["home"].client()
    kit.lag("home")
    client.send(methods.QueueDelete(queue="q"))
    assert client.take() == []
    kit.catch_up("home")
    client.expect(methods.QueueDeleteOk)
    client.send(methods.QueueDeclare(queue="q", passive=True))
    assert client.expect(methods.ChannelClose).reply_code == 404


def test_the_last_cancel_of_an_auto_delete_queue_is_answered_when_the_queue_is_gone_here_too():
    kit = ClusterKit()
    kit["master"].client().declare("q", auto_delete=True)
    client = kit["home"].client()
    client.consume("q")
    kit.lag("home")
    client.send(methods.BasicCancel("c"))
    assert client.take() == []
    kit.catch_up("home")
    client.expect(methods.BasicCancelOk)
    assert "q" not in kit.node("home").vhosts["/"].queues


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files so small that a few hundred messages go through all of them."""
    for name, value in {
        "journal_file_bytes": 4000,
        "journal_files_max": 2,
        "recycle_slice_bytes": 1000,
        "place_bytes_min": 300,
        "segment_bytes_min": 2000,
        "segment_bytes_max": 8000,
    }.items():
        monkeypatch.setattr(limits, name, value)


@pytest.mark.parametrize("is_consumed", [False, True])
@pytest.mark.usefixtures("tiny")
def test_what_was_taken_is_remembered_when_its_records_have_left_the_journal(is_consumed: bool):
    kit = ClusterKit(disks={"home": MemoryDisk(), "master": MemoryDisk()})
    local = kit["master"].client()
    local.declare("q", durable=True)
    client = confirming(kit)
    kit.hold("master", "home")
    client.feed(b"".join(publish(b"q", b"far%d" % at, PERSISTENT) for at in range(5)))
    if is_consumed:
        local.consume("q", no_ack=True)
    for at in range(200):
        local.publish("q", b"near%d" % at + bytes(90), properties=PERSISTENT)
    assert "checkpoint" in "".join(kit["master"].disk.list(""))
    kit.kill("master")
    kit.restart("master")
    assert confirmed(client) == (set(range(1, 6)), set())
    left = [body for body in drained(kit) if body.startswith(b"far")]
    assert left == ([] if is_consumed else [b"far%d" % at for at in range(5)])


def test_giving_up_on_some_publishes_confirms_no_others_that_are_not_on_disk():
    kit = ClusterKit(disks={"home": MemoryDisk(), "master": MemoryDisk()})
    kit["master"].client().declare("q", durable=True)
    client = confirming(kit)
    kit["master"].hold_flushes = True
    client.publish("q", b"old", properties=PERSISTENT)
    kit.advance(20)
    client.publish("q", b"new", properties=PERSISTENT)
    kit.cut("home", "master")
    kit.advance(15)
    assert client.take() == [methods.BasicNack(1, False, False)]
    kit.heal("home", "master")
    client.publish("q", b"newer", properties=b"\x00\x00")
    assert client.take() == []
    kit["master"].hold_flushes = False
    kit["master"].flush()
    kit.run()
    assert client.take() == [methods.BasicAck(3, True)]


def test_reports_for_a_process_that_is_gone_confirm_nothing_of_the_next_one():
    kit = ClusterKit(disks={"home": MemoryDisk(), "master": MemoryDisk()})
    kit["master"].client().declare("q", durable=True)
    kit["master"].hold_flushes = True
    first = kit["home"].client()
    for _ in range(3):
        first.publish("q", b"old", properties=PERSISTENT)
    kit.kill("home")
    kit.restart("home")
    client = confirming(kit)
    client.publish("q", b"new", properties=PERSISTENT)
    token = kit["master"].disk.finish_next()
    kit.node("master").disk_done(kit.now, token)
    kit.run()
    assert client.take() == []
    kit["master"].hold_flushes = False
    kit["master"].flush()
    kit.run()
    assert client.take() == [methods.BasicAck(1, False)]


def test_nothing_overtakes_what_a_stalled_client_gave_back():
    kit = ClusterKit()
    local = kit["master"].client()
    local.declare("q")
    slow = kit["home"].client()
    slow.consume("q")
    kit.node("home").client_paused(kit.now, slow.conn)
    for number in range(3):
        local.publish("q", b"%d" % number)
    kit.advance(1)
    kit.hold("home", "master")
    kit.advance(1)  # it gives back what waits; the master does not hear of it yet
    local.publish("q", b"3")
    kit.node("home").client_writable(kit.now, slow.conn)
    kit.run()
    local.publish("q", b"4")
    assert slow.deliveries() == []
    kit.release()
    assert slow.deliveries() == [b"%d" % number for number in range(5)]
