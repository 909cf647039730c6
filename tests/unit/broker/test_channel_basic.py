"""qos, consume, cancel, get, acknowledgements and recover, as clients see them."""

import pytest

from mirrormq.wire import methods
from tests.support.fakehost import Client, FakeHost, connected


def failed(client: Client, method) -> str:
    close = client.call(method, methods.ChannelClose)
    assert (close.class_id, close.method_id) == (method.class_id_of, method.method_id_of)
    return close.reply_text


def filled(count: int, host: FakeHost | None = None) -> Client:
    client = connected(host)
    client.declare("q")
    for number in range(count):
        client.publish("q", b"%d" % number)
    return client


def deliveries(client: Client) -> list[int]:
    return [method.delivery_tag for method in client.all() if isinstance(method, methods.BasicDeliver)]


def consume(client: Client, channel: int = 1, **arguments) -> str:
    return client.call(methods.BasicConsume(**arguments), methods.BasicConsumeOk, channel).consumer_tag


# --- consume and cancel -------------------------------------------------------------------------


def test_the_answer_comes_before_the_first_delivery():
    client = filled(1)
    client.send(methods.BasicConsume(queue="q", consumer_tag="c"))
    client.expect(methods.BasicConsumeOk)
    delivered = client.next()
    assert delivered.method == methods.BasicDeliver("c", 1, False, "", "q")
    assert delivered.body == b"0"


def test_a_tag_is_made_if_none_is_given():
    assert consume(filled(0), queue="q").startswith("amq.ctag-")


def test_a_tag_is_unique_per_channel():
    client = filled(0)
    consume(client, queue="q", consumer_tag="c")
    client.open_channel(2)
    consume(client, 2, queue="q", consumer_tag="c")
    client.send(methods.BasicConsume(queue="q", consumer_tag="c"))
    close = client.expect(methods.ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (530, "NOT_ALLOWED - attempt to reuse consumer tag 'c'")


def test_consuming_without_wait_is_not_answered():
    client = filled(1)
    client.send(methods.BasicConsume(queue="q", no_ack=True, nowait=True))
    assert [type(method) for method in client.all()] == [methods.BasicDeliver]


def test_an_exclusive_consumer_excludes_others():
    client = filled(0)
    consume(client, queue="q", exclusive=True)
    assert failed(client, methods.BasicConsume(queue="q")) == (
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    )


def test_exclusive_and_single_active_consumer_exclude_each_other():
    client = connected()
    client.declare("q", arguments={"x-single-active-consumer": True})
    assert failed(client, methods.BasicConsume(queue="q", exclusive=True)) == (
        "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    )


def test_quorum_queues_take_no_notice_of_exclusive_and_refuse_shared_prefetch():
    client = connected()
    client.declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    consume(client, queue="q", exclusive=True)
    consume(client, queue="q", exclusive=True)
    client.call(methods.BasicQos(prefetch_count=5, global_=True), methods.BasicQosOk)
    client.send(methods.BasicConsume(queue="q"))
    close = client.expect(methods.ConnectionClose, 0)
    assert close.reply_text == "NOT_IMPLEMENTED - queue 'q' in vhost '/' does not support global qos"


def test_arguments_are_checked():
    assert failed(filled(0), methods.BasicConsume(queue="q", arguments={"x-priority": "high"})) == (
        "PRECONDITION_FAILED - invalid arg 'x-priority' for queue 'q' in vhost '/': "
        '"expected integer, got longstr"'
    )


def test_fail_over_arguments_and_no_local_are_accepted():
    client = filled(0)
    consume(client, queue="q", no_local=True, arguments={"x-cancel-on-ha-failover": True})


@pytest.mark.parametrize("method", [methods.BasicConsume(queue="q"), methods.BasicGet(queue="q")])
def test_reading_needs_the_right_to_read(method):
    host = FakeHost()
    host.add_user("eve", "eve", rights=(".*", ".*", "^$"))
    filled(1, host)
    eve = connected(host, user="eve", password="eve")
    assert failed(eve, method) == "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'eve'"


@pytest.mark.parametrize("method", [methods.BasicConsume(queue="none"), methods.BasicGet(queue="none")])
def test_a_missing_queue_is_named(method):
    assert failed(connected(), method) == "NOT_FOUND - no queue 'none' in vhost '/'"


def test_a_cancelled_consumer_gets_nothing_more_and_keeps_what_it_has():
    client = filled(1)
    consume(client, queue="q", consumer_tag="c")
    assert deliveries(client) == [1]
    client.call(methods.BasicCancel("c"), methods.BasicCancelOk)
    client.publish("q", b"later")
    assert client.all() == []
    client.send(methods.BasicAck(1))
    assert client.all() == []


def test_cancelling_nobody_is_no_mistake():
    client = connected()
    assert client.call(methods.BasicCancel("ghost"), methods.BasicCancelOk).consumer_tag == "ghost"
    client.send(methods.BasicCancel("ghost", nowait=True))
    assert client.all() == []


# --- prefetch -----------------------------------------------------------------------------------


def test_prefetch_holds_for_consumers_that_come_after_it():
    client = filled(10)
    consume(client, queue="q", consumer_tag="free")
    assert len(deliveries(client)) == 10
    client.call(methods.BasicQos(prefetch_count=2), methods.BasicQosOk)
    client.call(methods.BasicCancel("free"), methods.BasicCancelOk)
    client.send(methods.BasicRecoverAsync(requeue=True))
    consume(client, queue="q")
    assert len(deliveries(client)) == 2


def test_shared_prefetch_counts_all_consumers_of_the_channel():
    client = filled(10)
    client.declare("other")
    for _ in range(5):
        client.publish("other")
    client.call(methods.BasicQos(prefetch_count=3, global_=True), methods.BasicQosOk)
    consume(client, queue="q")
    client.send(methods.BasicConsume(queue="other"))
    assert len(deliveries(client)) == 3


def test_a_higher_shared_prefetch_takes_effect_at_once():
    client = filled(10)
    client.call(methods.BasicQos(prefetch_count=1, global_=True), methods.BasicQosOk)
    consume(client, queue="q")
    assert deliveries(client) == [1]
    client.send(methods.BasicQos(prefetch_count=4, global_=True))
    assert deliveries(client) == [2, 3, 4]
    client.send(methods.BasicQos(prefetch_count=0, global_=True))
    assert len(deliveries(client)) == 6


def test_prefetch_per_consumer_lifts_a_shared_one():
    client = filled(10)
    client.call(methods.BasicQos(prefetch_count=1, global_=True), methods.BasicQosOk)
    consume(client, queue="q")
    assert deliveries(client) == [1]
    client.send(methods.BasicQos(prefetch_count=2))
    assert len(deliveries(client)) == 9


def test_no_ack_consumers_ignore_prefetch():
    client = filled(10)
    client.call(methods.BasicQos(prefetch_count=1), methods.BasicQosOk)
    consume(client, queue="q", no_ack=True)
    assert len(deliveries(client)) == 10


def test_prefetch_by_size_is_not_implemented():
    client = connected()
    client.send(methods.BasicQos(prefetch_size=1000))
    assert client.expect(methods.ConnectionClose, 0).reply_text == "NOT_IMPLEMENTED - prefetch_size!=0 (1000)"


# --- get ----------------------------------------------------------------------------------------


def test_get_tells_how_many_are_left():
    client = filled(3)
    client.send(methods.BasicGet(queue="q"))
    got = client.next()
    assert got.method == methods.BasicGetOk(1, False, "", "q", 2)
    assert got.body == b"0"


def test_get_from_an_empty_queue_says_so():
    filled(0).call(methods.BasicGet(queue="q"), methods.BasicGetEmpty)


# --- acknowledgements ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        methods.BasicAck(7),
        methods.BasicAck(7, multiple=True),
        methods.BasicNack(7, requeue=True),
        methods.BasicReject(7),
    ],
)
def test_an_unknown_delivery_tag_costs_the_channel(method):
    client = filled(1)
    consume(client, queue="q")
    client.next()
    assert failed(client, method) == "PRECONDITION_FAILED - unknown delivery tag 7"


def test_a_delivery_can_be_acknowledged_once():
    client = filled(1)
    client.call(methods.BasicGet(queue="q"), methods.BasicGetOk)
    client.send(methods.BasicAck(1))
    assert failed(client, methods.BasicAck(1)) == "PRECONDITION_FAILED - unknown delivery tag 1"


def test_acknowledging_all_of_nothing_is_no_mistake():
    client = connected()
    client.send(methods.BasicAck(0, multiple=True))
    client.send(methods.BasicNack(0, multiple=True))
    assert client.all() == []


def test_rejected_messages_come_back_only_if_asked():
    client = filled(2)
    client.call(methods.BasicGet(queue="q"), methods.BasicGetOk)
    client.call(methods.BasicGet(queue="q"), methods.BasicGetOk)
    client.send(methods.BasicReject(1, requeue=True))
    client.send(methods.BasicNack(2, requeue=False))
    client.send(methods.BasicGet(queue="q", no_ack=True))
    got = client.next()
    assert (got.body, got.method.redelivered, got.method.message_count) == (b"0", True, 0)


# --- recover ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [methods.BasicRecover(requeue=True), methods.BasicRecoverAsync(requeue=True)]
)
def test_recover_puts_everything_back_in_order(method):
    client = filled(3)
    for _ in range(3):
        client.call(methods.BasicGet(queue="q"), methods.BasicGetOk)
    client.send(method)
    answers = client.all()
    assert len(answers) == isinstance(method, methods.BasicRecover)
    bodies = []
    for _ in range(3):
        client.send(methods.BasicGet(queue="q", no_ack=True))
        bodies.append(client.next().body)
    assert bodies == [b"0", b"1", b"2"]


@pytest.mark.parametrize("method", [methods.BasicRecover(), methods.BasicRecoverAsync()])
def test_recover_to_the_same_consumer_is_not_implemented(method):
    client = connected()
    client.send(method)
    assert client.expect(methods.ConnectionClose, 0).reply_text == "NOT_IMPLEMENTED - requeue=false"
