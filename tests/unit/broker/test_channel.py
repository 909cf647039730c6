"""A channel's own rules: states, errors, confirms, timeouts, names, and what reports show of it."""

import pytest

from mirrormq.meta import commands
from mirrormq.wire import methods
from mirrormq.wire.properties import Properties
from tests.support.fakehost import Client, FakeHost, connected, content_frames, frame, method_frame


def failed(client: Client) -> tuple[int, str, int, int]:
    close = client.expect(methods.ChannelClose)
    return close.reply_code, close.reply_text, close.class_id, close.method_id


MISSING = methods.QueueDeclare(queue="missing", passive=True)


def test_a_channel_error_leaves_the_connection_and_its_other_channels_alone():
    client = connected().open_channel(2)
    client.send(MISSING)
    assert failed(client) == (404, "NOT_FOUND - no queue 'missing' in vhost '/'", 50, 10)
    client.call(methods.BasicQos(), methods.BasicQosOk, 2)


def test_after_an_error_everything_is_ignored_until_close_ok():
    client = connected()
    client.send(MISSING)
    client.next()
    client.open_channel(2)
    client.declare("q", 2)
    client.publish("q", b"ignored")
    client.send(methods.BasicQos())
    assert client.all() == []
    client.send(methods.ChannelCloseOk())
    client.open_channel(1)
    assert (
        client.call(methods.QueueDeclare(queue="q", passive=True), methods.QueueDeclareOk).message_count == 0
    )


def test_a_close_that_crosses_ours_is_answered_and_close_ok_is_still_awaited():
    client = connected()
    client.send(MISSING)
    client.next()
    client.call(methods.ChannelClose(), methods.ChannelCloseOk)
    client.send(methods.ChannelCloseOk())
    client.open_channel()


def test_opening_a_channel_we_are_closing_costs_the_connection():
    client = connected()
    client.send(MISSING)
    client.next()
    client.send(methods.ChannelOpen())
    assert (
        client.expect(methods.ConnectionClose, 0).reply_text == "CHANNEL_ERROR - second 'channel.open' seen"
    )


def test_nothing_is_delivered_after_channel_close():
    host = FakeHost()
    client = connected(host)
    client.declare("q")
    client.call(methods.BasicConsume(queue="q"), methods.BasicConsumeOk)
    publisher = connected(host)
    client.send(MISSING)
    assert isinstance(client.next().method, methods.ChannelClose)
    publisher.publish("q", b"late")
    assert client.all() == []


def test_a_failing_channel_requeues_what_it_held_before_anybody_else_can_see_the_close():
    client = connected()
    client.declare("q")
    client.publish("q", b"1")
    client.call(methods.BasicConsume(queue="q"), methods.BasicConsumeOk)
    client.next()
    client.open_channel(2)
    client.raw(method_frame(1, MISSING) + method_frame(2, methods.BasicGet(queue="q", no_ack=True)))
    client.expect(methods.ChannelClose)
    got = client.next()
    assert got.method.redelivered
    assert got.body == b"1"


def test_a_long_reply_text_is_cut_as_rabbitmq_cuts_it():
    client = connected()
    client.send(methods.QueueDeclare(queue="q" * 250, passive=True))
    text = client.expect(methods.ChannelClose).reply_text
    assert len(text) == 255
    assert text.endswith("q...")


def test_flow_can_only_be_turned_on():
    client = connected()
    assert client.call(methods.ChannelFlow(active=True), methods.ChannelFlowOk).active
    client.send(methods.ChannelFlow(active=False))
    assert client.expect(methods.ConnectionClose, 0).reply_text == "NOT_IMPLEMENTED - active=false"


def test_realms_of_older_protocols_are_granted():
    assert connected().call(methods.AccessRequest("/data"), methods.AccessRequestOk).ticket == 1


@pytest.mark.parametrize(
    "method", [methods.BasicQosOk(), methods.ChannelCloseOk(), methods.ConnectionOpen("/")]
)
def test_methods_that_are_not_for_servers_are_unimplemented(method):
    client = connected()
    client.send(method)
    close = client.expect(methods.ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (503, "COMMAND_INVALID - unimplemented method")
    assert (close.class_id, close.method_id) == (method.class_id_of, method.method_id_of)


# --- confirms -----------------------------------------------------------------------------------


def test_publishes_are_confirmed_cumulatively():
    client = connected()
    client.declare("q")
    client.call(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    one = content_frames(1, methods.BasicPublish(routing_key="q"), Properties(), b"x")
    client.raw(one * 3)
    ack = client.expect(methods.BasicAck)
    assert (ack.delivery_tag, ack.multiple) == (3, True)


def test_a_publish_without_a_queue_is_confirmed_too():
    client = connected()
    client.call(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    client.publish("nowhere", b"x")
    assert client.expect(methods.BasicAck).delivery_tag == 1


def test_a_return_comes_before_the_confirm():
    client = connected()
    client.call(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    client.publish("nowhere", b"x", mandatory=True)
    assert [type(method) for method in client.all()] == [methods.BasicReturn, methods.BasicAck]


def test_publishes_before_a_mistake_are_confirmed_before_the_close_and_none_after_it():
    client = connected()
    client.declare("q")
    client.call(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    good = content_frames(1, methods.BasicPublish(routing_key="q"), Properties(), b"x")
    bad = content_frames(1, methods.BasicPublish(exchange="none"), Properties(), b"x")
    client.raw(good + good + bad)
    ack, close = client.all()
    assert isinstance(ack, methods.BasicAck)
    assert ack.delivery_tag == 2
    assert isinstance(close, methods.ChannelClose)


def test_confirm_without_wait_is_not_answered():
    client = connected()
    client.send(methods.ConfirmSelect(nowait=True))
    assert client.all() == []
    client.publish("nowhere")
    client.expect(methods.BasicAck)


# --- delivery acknowledgement timeout -----------------------------------------------------------


def test_a_delivery_that_is_never_acknowledged_costs_the_channel():
    host = FakeHost(consumer_timeout_ms=30_000)
    client = connected(host)
    client.declare("q")
    client.publish("q", b"1")
    client.call(methods.BasicConsume(queue="q"), methods.BasicConsumeOk)
    client.next()
    host.advance(30)
    assert client.all() == []
    host.advance(1)
    text = (
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. "
        "Timeout value used: 30000 ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    assert failed(client) == (406, text, 0, 0)
    assert host.vhosts["/"].queues["q"].message_count == 1


@pytest.mark.parametrize("settings", [{"consumer_timeout_ms": 0}, {}])
def test_an_acknowledgement_within_the_timeout_keeps_the_channel(settings):
    host = FakeHost(**settings)
    client = connected(host)
    client.declare("q")
    client.publish("q", b"1")
    client.call(methods.BasicConsume(queue="q"), methods.BasicConsumeOk)
    client.next()
    host.advance(60)
    assert client.all() == []


# --- cancel notification ------------------------------------------------------------------------


def test_consumers_of_a_deleted_queue_are_told():
    host = FakeHost()
    client = connected(host)
    client.declare("q")
    client.call(methods.BasicConsume(queue="q", consumer_tag="c"), methods.BasicConsumeOk)
    host.apply(commands.DeleteQueue("/", "q"))
    cancel = client.expect(methods.BasicCancel)
    assert (cancel.consumer_tag, cancel.nowait) == ("c", True)
    assert client.connection.channels[1].consumers == {}


def test_clients_that_do_not_understand_cancel_are_not_told():
    host = FakeHost()
    client = connected(host, capabilities={})
    client.declare("q")
    client.call(methods.BasicConsume(queue="q"), methods.BasicConsumeOk)
    host.apply(commands.DeleteQueue("/", "q"))
    assert client.all() == []
    assert client.connection.channels[1].consumers == {}


# --- reports ------------------------------------------------------------------------------------


def test_reports_see_what_the_channel_holds():
    client = connected()
    client.declare("q")
    client.publish("q", b"1")
    client.call(methods.BasicQos(prefetch_count=5), methods.BasicQosOk)
    client.call(methods.BasicConsume(queue="q"), methods.BasicConsumeOk)
    client.next()
    channel = client.connection.channels[1]
    assert channel.name == "127.0.0.1:50000 -> 127.0.0.1:5672 (1)"
    assert channel.messages_unacknowledged == 1
    assert channel.prefetch_count == 5
    assert channel.global_prefetch_count == 0
    assert not channel.is_transactional
    assert not channel.is_confirming
    assert channel.shown_state == "running"


def test_generated_names_have_rabbitmqs_form_and_differ():
    client = connected()
    names = {client.declare() for _ in range(20)}
    assert len(names) == 20
    for name in names:
        assert name.startswith("amq.gen-")
        assert len(name) == len("amq.gen-") + 22


def test_bytes_split_anywhere_give_the_same_conversation():
    whole = (
        method_frame(1, methods.QueueDeclare(queue="q"))
        + content_frames(1, methods.BasicPublish(routing_key="q"), Properties(), b"body")
        + method_frame(1, methods.BasicGet(queue="q", no_ack=True))
        + frame(8, 0, b"")
    )
    client = connected()
    client.raw(whole)
    expected = client.all()
    for step in (1, 3, 7):
        other = connected()
        for at in range(0, len(whole), step):
            other.raw(whole[at : at + step])
        assert other.all() == expected
