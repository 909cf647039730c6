"""A whole node on frames: order, waiting, back-pressure, alarms, time."""

from mirrormq.wire import methods
from tests.support.nodekit import NodeKit

PERSISTENT = b"\x10\x00\x02"


def test_a_published_message_reaches_its_consumer():
    client = NodeKit().client()
    client.declare("q")
    client.consume("q", no_ack=True)
    client.publish("q", b"hello")
    deliver = client.expect(methods.BasicDeliver)
    assert (deliver.consumer_tag, deliver.delivery_tag, deliver.redelivered) == ("c", 1, False)
    assert client.deliveries() == [b"hello"]


def test_a_durable_declare_is_answered_only_after_the_flush():
    kit = NodeKit()
    client = kit.client()
    kit.hold_flushes = True
    client.send(methods.QueueDeclare(queue="q", durable=True))
    assert client.take() == []
    assert client.conn in kit.paused
    kit.flush()
    kit.run()
    assert client.expect(methods.QueueDeclareOk).queue == "q"
    assert client.conn not in kit.paused


def test_a_transient_declare_waits_for_no_disk():
    kit = NodeKit()
    client = kit.client()
    kit.hold_flushes = True
    assert client.declare("q").queue == "q"


def test_frames_behind_a_parked_method_are_served_after_it_in_order():
    kit = NodeKit()
    client = kit.client()
    kit.hold_flushes = True
    client.send(methods.QueueDeclare(queue="q", durable=True))
    client.publish("q", b"behind")
    client.send(methods.BasicGet(queue="q", no_ack=True))
    assert client.take() == []
    kit.hold_flushes = False
    kit.flush()
    kit.run()
    client.expect(methods.QueueDeclareOk)
    client.expect(methods.BasicGetOk)
    assert client.deliveries() == [b"behind"]


def test_confirms_are_cumulative_per_pass():
    client = NodeKit().client()
    client.declare("q")
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    client.publish("q")
    assert client.take() == [methods.BasicAck(1, False)]
    from tests.support.kernelkit import publish

    client.feed(publish(b"q", b"a") + publish(b"q", b"b") + publish(b"nowhere", b"c"))
    assert client.take() == [methods.BasicAck(4, True)]


def test_a_mandatory_message_is_returned_before_it_is_confirmed():
    client = NodeKit().client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    client.publish("nowhere", b"x", mandatory=True)
    returned = client.expect(methods.BasicReturn)
    assert (returned.reply_code, returned.reply_text, returned.routing_key) == (312, "NO_ROUTE", "nowhere")
    client.inbox.popleft()
    assert client.take() == [methods.BasicAck(1, False)]


def test_publishes_beyond_reject_publish_are_nacked_and_the_others_confirmed():
    from tests.support.kernelkit import publish

    client = NodeKit().client()
    client.declare("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    client.feed(b"".join(publish(b"q", b"x") for _ in range(4)))
    assert client.take() == [
        methods.BasicNack(3, False, False),
        methods.BasicNack(4, False, False),
        methods.BasicAck(2, True),
    ]


def test_consumers_of_one_queue_take_turns_within_a_batch():
    from tests.support.kernelkit import publish

    kit = NodeKit()
    first, second, sender = kit.client(), kit.client(), kit.client()
    first.declare("q")
    first.consume("q", no_ack=True)
    second.consume("q", no_ack=True)
    sender.feed(b"".join(publish(b"q", b"%d" % i) for i in range(6)))
    assert first.deliveries() == [b"0", b"2", b"4"]
    assert second.deliveries() == [b"1", b"3", b"5"]


def test_a_closed_connection_gives_its_messages_back_in_order_and_marked():
    kit = NodeKit()
    first, second = kit.client(), kit.client()
    first.declare("q")
    first.consume("q")
    for number in range(3):
        second.publish("q", b"%d" % number)
    first.close_socket()
    second.consume("q")
    items = second.take()
    assert [item.redelivered for item in items if isinstance(item, methods.BasicDeliver)] == [True] * 3
    assert [item[1] for item in items if isinstance(item, tuple)] == [b"0", b"1", b"2"]


def test_exclusive_queues_go_with_their_connection_and_auto_delete_ones_with_the_last_consumer():
    kit = NodeKit()
    client = kit.client()
    client.declare("mine", exclusive=True)
    client.declare("auto", auto_delete=True)
    client.consume("auto")
    client.ask(methods.BasicCancel("c"), methods.BasicCancelOk)
    assert "auto" not in kit.node.vhosts["/"].queues
    client.close_socket()
    assert kit.node.vhosts["/"].queues == {}


def test_an_unused_queue_expires_and_a_used_one_does_not():
    kit = NodeKit()
    client = kit.client()
    client.declare("idle", arguments={"x-expires": 5000})
    client.declare("busy", arguments={"x-expires": 5000})
    client.consume("busy")
    kit.advance(4.9)
    assert set(kit.node.vhosts["/"].queues) == {"idle", "busy"}
    kit.advance(0.2)
    assert set(kit.node.vhosts["/"].queues) == {"busy"}
    client.ask(methods.BasicCancel("c"), methods.BasicCancelOk)
    kit.advance(5.1)
    assert not kit.node.vhosts["/"].queues


def test_messages_expire_by_the_clock_and_are_dead_lettered():
    kit = NodeKit()
    client = kit.client()
    client.declare("dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.declare("q", arguments={"x-message-ttl": 1000, **letters})
    client.publish("q", b"late")
    kit.advance(0.5)
    assert kit.node.vhosts["/"].queues["q"].message_count == 1
    kit.advance(0.6)
    assert kit.node.vhosts["/"].queues["q"].message_count == 0
    client.ask(methods.BasicGet(queue="dead", no_ack=True), methods.BasicGetOk)
    assert client.deliveries() == [b"late"]


def test_an_alarm_holds_publishers_and_only_publishers():
    kit = NodeKit(memory_limit=100)
    publisher, consumer = kit.client(), kit.client()
    consumer.declare("q")
    publisher.publish("q", b"before")
    kit.node.gauges(kit.now, 200, 0)
    kit.run()
    publisher.publish("q", b"held")
    assert publisher.expect(methods.ConnectionBlocked, 0).reason == "low on memory"
    consumer.ask(methods.BasicGet(queue="q", no_ack=True), methods.BasicGetOk)
    assert consumer.deliveries() == [b"before"]
    kit.node.gauges(kit.now, 50, 0)
    kit.run()
    publisher.expect(methods.ConnectionUnblocked, 0)
    consumer.ask(methods.BasicGet(queue="q", no_ack=True), methods.BasicGetOk)
    assert consumer.deliveries() == [b"held"]


def test_a_publisher_that_runs_ahead_of_a_willing_consumer_is_parked_until_it_caught_up():
    kit = NodeKit(publish_ahead_bytes=10_000)
    consumer, publisher = kit.client(), kit.client()
    consumer.declare("q")
    consumer.consume("q", no_ack=True)
    kit.node.client_paused(kit.now, consumer.conn)
    for _ in range(12):
        publisher.publish("q", b"x" * 1000)
    assert publisher.conn in kit.paused
    kit.node.client_writable(kit.now, consumer.conn)
    kit.run()
    assert publisher.conn not in kit.paused
    assert len(consumer.deliveries()) == 12


def test_a_queue_without_consumers_parks_nobody():
    kit = NodeKit(publish_ahead_bytes=10_000)
    publisher = kit.client()
    publisher.declare("q")
    for _ in range(50):
        publisher.publish("q", b"x" * 1000)
    assert publisher.conn not in kit.paused
    assert kit.node.vhosts["/"].queues["q"].message_count == 50


def test_a_consumer_that_takes_nothing_for_a_second_parks_nobody():
    kit = NodeKit(publish_ahead_bytes=10_000)
    consumer, publisher = kit.client(), kit.client()
    consumer.declare("q")
    consumer.consume("q", no_ack=True)
    kit.node.client_paused(kit.now, consumer.conn)
    kit.advance(2)
    for _ in range(30):
        publisher.publish("q", b"x" * 1000)
    assert publisher.conn not in kit.paused


def test_a_transaction_takes_effect_at_commit_and_not_before():
    kit = NodeKit()
    client, other = kit.client(), kit.client()
    client.declare("q")
    client.ask(methods.TxSelect(), methods.TxSelectOk)
    client.publish("q", b"1")
    client.publish("q", b"2")
    assert kit.node.vhosts["/"].queues["q"].message_count == 0
    client.ask(methods.TxCommit(), methods.TxCommitOk)
    other.consume("q", no_ack=True)
    assert other.deliveries() == [b"1", b"2"]


def test_deleting_a_queue_cancels_its_consumers():
    kit = NodeKit()
    client, other = kit.client(), kit.client()
    client.declare("q")
    client.consume("q", tag="mine")
    other.ask(methods.QueueDelete(queue="q"), methods.QueueDeleteOk)
    assert client.expect(methods.BasicCancel).consumer_tag == "mine"


def test_deleting_a_vhost_closes_its_connections():
    from mirrormq.meta.commands import DeleteVHost

    kit = NodeKit()
    client = kit.client()
    kit.node.propose(DeleteVHost("/"), lambda _: None, True)
    kit.run()
    closed = client.expect(methods.ConnectionClose, 0)
    assert (closed.reply_code, closed.reply_text) == (320, "CONNECTION_FORCED - vhost '/' is deleted")


def test_a_purged_queue_frees_its_memory_in_slices():
    from mirrormq.base import limits
    from tests.support.kernelkit import publish

    kit = NodeKit()
    client = kit.client()
    client.declare("q")
    client.feed(publish(b"q", b"x") * (limits.entries_freed_per_pass + 10))
    count = client.ask(methods.QueuePurge(queue="q"), methods.QueuePurgeOk).message_count
    assert count == limits.entries_freed_per_pass + 10
    assert not kit.node.needs_pass


def test_publishes_kept_behind_a_parked_method_are_confirmed_when_they_are_served():
    kit = NodeKit()
    client = kit.client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    kit.hold_flushes = True
    client.send(methods.QueueDeclare(queue="q", durable=True))
    client.publish("q", b"behind")
    assert client.take() == []
    kit.hold_flushes = False
    kit.flush()
    kit.run()
    client.expect(methods.QueueDeclareOk)
    assert client.take() == [methods.BasicAck(1, False)]


def test_an_ack_for_one_queue_lets_consumers_of_another_go_on_under_a_shared_prefetch():
    client = NodeKit().client()
    for name in ("a", "b"):
        client.declare(name)
    client.ask(methods.BasicQos(prefetch_count=1, global_=True), methods.BasicQosOk)
    for name in ("a", "b"):
        client.consume(name, name)
    for name in ("a", "b"):
        client.publish(name, name.encode())
    assert client.deliveries() == [b"a"]
    client.send(methods.BasicAck(1))
    assert client.deliveries() == [b"b"]
