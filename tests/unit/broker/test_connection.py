"""A connection after open: channels, parking, heartbeats, errors, and the ways it ends."""

import pytest

from mirrormq.base.errors import connection_forced
from mirrormq.meta import commands
from mirrormq.wire import methods
from mirrormq.wire.properties import Properties
from tests.support.fakehost import SECOND, Client, FakeHost, connected, content_frames, frame, method_frame


def closed_with(client: Client) -> tuple[int, str, int, int]:
    close = client.expect(methods.ConnectionClose, 0)
    return close.reply_code, close.reply_text, close.class_id, close.method_id


# --- channels -----------------------------------------------------------------------------------


def test_a_channel_must_be_opened_first():
    client = Client(FakeHost()).open()
    client.send(methods.QueueDeclare(queue="q"))
    assert closed_with(client) == (504, "CHANNEL_ERROR - expected 'channel.open'", 50, 10)


def test_opening_a_channel_twice_costs_the_connection():
    client = connected()
    client.send(methods.ChannelOpen())
    assert closed_with(client) == (504, "CHANNEL_ERROR - second 'channel.open' seen", 20, 10)


def test_the_number_of_channels_is_limited_not_their_numbers():
    client = Client(FakeHost(channel_max=2)).open()
    client.open_channel(65_535)
    client.open_channel(7)
    client.send(methods.ChannelOpen(), 8)
    assert closed_with(client) == (
        530,
        "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)",
        0,
        0,
    )


def test_a_closed_channel_makes_room_for_another():
    client = Client(FakeHost(channel_max=1)).open().open_channel(1)
    client.call(methods.ChannelClose(200, "bye"), methods.ChannelCloseOk)
    client.open_channel(2)


def test_channels_of_a_user_are_limited_over_all_connections():
    host = FakeHost()
    host.apply(commands.SetUserLimits("guest", {"max-channels": 1}))
    connected(host)
    other = Client(host).open()
    other.send(methods.ChannelOpen())
    code, text, _, _ = closed_with(other)
    assert code == 530
    assert text == (
        "NOT_ALLOWED - number of channels opened for user 'guest' "
        "has reached the maximum allowed user limit of (1)"
    )


def test_a_late_close_ok_is_no_mistake():
    client = connected()
    client.call(methods.ChannelClose(), methods.ChannelCloseOk)
    client.send(methods.ChannelCloseOk())
    client.open_channel()


# --- channel 0 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [methods.ConnectionOpen("/"), methods.ChannelOpen(), methods.ConnectionTuneOk(1, 4096, 0)]
)
def test_other_methods_on_channel_0_are_unexpected(method):
    client = connected()
    client.send(method, 0)
    assert closed_with(client) == (
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
        method.class_id_of,
        method.method_id_of,
    )


def test_a_new_secret_is_acknowledged():
    connected().call(methods.ConnectionUpdateSecret(b"new", "rotation"), methods.ConnectionUpdateSecretOk, 0)


def test_unreadable_arguments_on_channel_0_are_reported_as_our_own_fault():
    client = connected()
    client.raw(frame(1, 0, bytes((0, 10, 0, 50, 1))))
    assert closed_with(client) == (541, "INTERNAL_ERROR", 0, 0)


# --- frames that cannot be served ---------------------------------------------------------------


def test_an_unknown_method_costs_the_socket_without_a_word():
    client = connected()
    client.raw(frame(1, 1, bytes((0, 61, 0, 1))))
    assert client.all() == []
    assert client.is_closed()


def test_a_table_that_cannot_be_read_costs_the_socket_without_a_word():
    client = connected()
    payload = methods.encode(methods.QueueDeclare(queue="q"))[:-4] + b"\0\0\0\x03\x01aZ"
    client.raw(frame(1, 1, payload))
    assert client.all() == []
    assert client.is_closed()


def test_arguments_of_the_wrong_shape_are_shown():
    client = connected()
    client.raw(frame(1, 1, bytes((0, 60, 0, 10, 0, 1))))
    assert closed_with(client) == (501, "FRAME_ERROR - cannot decode <<0,1>>", 60, 10)


def test_a_name_that_is_not_utf8_names_no_method():
    client = connected()
    client.raw(frame(1, 1, bytes((0, 60, 0, 30, 1, 255, 0))))
    assert closed_with(client) == (501, "FRAME_ERROR - Malformed UTF-8 in shortstr", 0, 0)


def test_a_wrong_frame_end_is_answered_and_nothing_is_read_afterwards():
    host = FakeHost()
    client = connected(host)
    client.raw(frame(1, 1, bytes((0, 60, 0, 10)))[:-1] + b"\0")
    assert closed_with(client)[:2] == (
        501,
        "FRAME_ERROR - type 1, all octets = <<0,60,0,10>>: {invalid_frame_end_marker,0}",
    )
    client.send(methods.ConnectionCloseOk(), 0)
    assert not client.is_closed()
    host.advance(3)
    assert client.is_closed()


def test_a_method_where_a_content_header_is_due_is_unexpected():
    client = connected()
    client.raw(method_frame(1, methods.BasicPublish(routing_key="q")) + method_frame(1, methods.TxSelect()))
    assert closed_with(client) == (
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        60,
        40,
    )


def test_a_delivery_sent_by_a_client_is_judged_after_its_header():
    client = connected()
    client.raw(content_frames(1, methods.BasicDeliver("c", 1), Properties(), b"x"))
    assert closed_with(client) == (503, "COMMAND_INVALID - unimplemented method", 60, 60)


def test_a_publish_on_a_channel_never_opened_is_judged_after_its_header():
    client = Client(FakeHost()).open()
    client.raw(content_frames(5, methods.BasicPublish(routing_key="q"), Properties(), b"x"))
    assert closed_with(client) == (504, "CHANNEL_ERROR - expected 'channel.open'", 60, 40)


def test_a_message_over_the_limit_costs_the_channel():
    client = connected(FakeHost(max_message_size=4))
    client.publish("q", b"12345")
    close = client.expect(methods.ChannelClose)
    assert close.reply_text == "PRECONDITION_FAILED - message size 5 is larger than configured max size 4"
    assert (close.class_id, close.method_id) == (60, 40)


# --- parking ------------------------------------------------------------------------------------


def test_a_durable_declaration_is_answered_when_it_is_flushed_and_nothing_overtakes_it():
    host = FakeHost()
    client = connected(host)
    host.hold_flushes = True
    client.raw(
        method_frame(1, methods.QueueDeclare(queue="q", durable=True)) + method_frame(1, methods.BasicQos())
    )
    assert client.all() == []
    assert host.effects.items[-1] == ("pause", 1)
    host.flush()
    client.expect(methods.QueueDeclareOk)
    client.expect(methods.BasicQosOk)
    assert host.effects.items[-1] == ("resume", 1)


def test_what_arrives_while_parked_is_served_afterwards_in_order():
    host = FakeHost()
    client = connected(host)
    host.hold_flushes = True
    client.send(methods.QueueDeclare(queue="q", durable=True))
    client.publish("q", b"1")
    client.publish("q", b"2")
    client.send(methods.BasicGet(queue="q", no_ack=True))
    assert client.all() == []
    host.flush()
    client.expect(methods.QueueDeclareOk)
    assert client.next().body == b"1"


def test_a_transient_declaration_waits_for_no_flush():
    host = FakeHost()
    client = connected(host)
    host.hold_flushes = True
    client.declare("transient")
    client.declare("exclusive", exclusive=True, durable=True)


def test_deliveries_and_heartbeats_go_on_while_parked():
    host = FakeHost()
    client = connected(host, heartbeat=10)
    client.declare("q")
    client.call(methods.BasicConsume(queue="q", no_ack=True), methods.BasicConsumeOk)
    host.hold_flushes = True
    client.send(methods.ExchangeDeclare(exchange="x", durable=True))
    connected(host).publish("q", b"news")
    host.end_pass()
    assert client.next().body == b"news"
    for _ in range(30):
        host.advance(1)
        client.all()
    assert client.connection.parked
    assert not client.is_closed()
    assert client.heartbeats == 6


def test_a_client_that_leaves_while_parked_is_forgotten():
    host = FakeHost()
    client = connected(host)
    host.hold_flushes = True
    client.send(methods.QueueDeclare(queue="q", durable=True))
    client.connection.on_closed()
    host.flush()
    assert client.all() == []
    assert "q" in host.vhosts["/"].queues


# --- heartbeats ---------------------------------------------------------------------------------


def test_a_silent_server_sends_heartbeats_at_half_the_interval():
    host = FakeHost()
    client = connected(host, heartbeat=10)
    client.all()
    for _ in range(20):
        client.raw(frame(8, 0, b""))
        host.advance(1)
        client.all()
    assert client.heartbeats == 4


def test_a_client_that_reads_nothing_is_not_fed_with_heartbeats():
    host = FakeHost()
    client = connected(host, heartbeat=10)
    for _ in range(30):
        client.raw(frame(8, 0, b""))
        host.advance(1)
    client.all()
    assert client.heartbeats == 1


def test_a_busy_server_sends_no_heartbeats():
    host = FakeHost()
    client = connected(host, heartbeat=10)
    for _ in range(30):
        client.call(methods.BasicQos(), methods.BasicQosOk)
        host.advance(1)
    client.all()
    assert client.heartbeats == 0


def test_a_client_that_misses_two_heartbeats_is_dropped_without_a_word():
    host = FakeHost()
    client = connected(host, heartbeat=5)
    host.advance(10)
    assert not client.is_closed()
    host.advance(1)
    assert client.is_closed()
    assert client.all() == []
    assert ("error", "missed heartbeats from client, timeout: 5s") in host.notes


def test_without_heartbeats_silence_is_no_reason_to_part():
    host = FakeHost()
    client = connected(host, heartbeat=0)
    host.advance(100)
    client.all()
    assert not client.is_closed()
    assert client.heartbeats == 0


# --- ending -------------------------------------------------------------------------------------


def test_the_client_closes():
    host = FakeHost()
    client = connected(host)
    client.call(methods.ConnectionClose(200, "bye"), methods.ConnectionCloseOk, 0)
    assert host.channels == {}
    client.connection.on_closed()
    assert client.connection.state == "gone"


def test_a_client_that_keeps_the_socket_open_after_close_is_hung_up():
    host = FakeHost()
    client = connected(host)
    client.call(methods.ConnectionClose(200, "bye"), methods.ConnectionCloseOk, 0)
    host.advance(29)
    assert not client.is_closed()
    host.advance(1)
    assert client.is_closed()


def test_after_an_error_only_close_and_close_ok_are_served():
    client = connected()
    client.send(methods.BasicQos(prefetch_size=1))
    assert closed_with(client)[:2] == (540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)")
    client.send(methods.QueueDeclare(queue="q"))
    client.publish("q", b"x")
    client.raw(frame(9, 1, b""))
    assert client.all() == []


def test_a_close_that_crosses_ours_is_answered():
    client = connected()
    client.send(methods.BasicQos(prefetch_size=1))
    client.next()
    client.call(methods.ConnectionClose(), methods.ConnectionCloseOk, 0)
    client.send(methods.ConnectionCloseOk(), 0)
    assert client.is_closed()


def test_the_wait_for_close_ok_is_bounded_by_the_heartbeat():
    host = FakeHost()
    client = connected(host, heartbeat=4)
    client.send(methods.BasicQos(prefetch_size=1))
    host.advance(3)
    assert not client.is_closed()
    host.advance(1)
    assert client.is_closed()


def test_an_operator_closes_a_connection():
    client = connected()
    client.connection.force_close("Closed via management plugin")
    assert closed_with(client) == (320, "CONNECTION_FORCED - Closed via management plugin", 0, 0)


def test_a_connection_that_has_not_logged_in_is_closed_at_once_by_an_operator():
    client = Client(FakeHost())
    client.connection.force_close("the node stops")
    assert client.is_closed()


def test_closing_a_parked_connection_stops_it_there():
    host = FakeHost()
    client = connected(host)
    host.hold_flushes = True
    client.raw(
        method_frame(1, methods.QueueDeclare(queue="q", durable=True)) + method_frame(1, methods.BasicQos())
    )
    client.connection.close_with(connection_forced("enough"))
    host.flush()
    assert [type(method) for method in client.all()] == [methods.ConnectionClose]


@pytest.mark.parametrize("how", ["client closes", "socket is lost", "error"])
def test_however_it_ends_exclusive_queues_vanish_and_messages_come_back(how):
    host = FakeHost()
    keeper = connected(host)
    keeper.declare("kept")
    for body in (b"1", b"2", b"3"):
        keeper.publish("kept", body)
    client = connected(host)
    client.declare("mine", exclusive=True)
    client.call(methods.BasicConsume(queue="kept"), methods.BasicConsumeOk)
    assert len(client.all()) == 3
    if how == "client closes":
        client.send(methods.ConnectionClose(), 0)
    elif how == "error":
        client.send(methods.BasicQos(prefetch_size=1))
    else:
        client.connection.on_closed()
    host.end_pass()
    assert set(host.vhosts["/"].queues) == {"kept"}
    bodies = []
    for _ in range(3):
        keeper.send(methods.BasicGet(queue="kept", no_ack=True))
        got = keeper.next()
        assert got.method.redelivered
        bodies.append(got.body)
    assert bodies == [b"1", b"2", b"3"]


def test_only_owners_of_exclusive_queues_report_that_they_are_gone():
    host = FakeHost()
    connected(host).connection.on_closed()
    assert not any(isinstance(command, commands.ConnectionGone) for command in host.commands)


# --- what reports show --------------------------------------------------------------------------


def test_octets_are_counted_in_both_directions():
    client = connected()
    client.all()
    before = client.connection.recv_oct, client.connection.send_oct
    client.call(methods.BasicQos(), methods.BasicQosOk)
    after = client.connection.recv_oct, client.connection.send_oct
    assert after[0] - before[0] == len(method_frame(1, methods.BasicQos()))
    assert after[1] - before[1] == len(method_frame(1, methods.BasicQosOk()))


def test_a_socket_that_takes_nothing_is_not_reading_after_a_while():
    host = FakeHost()
    connection = connected(host).connection
    connection.on_output_blocked()
    assert connection.is_reading()
    host.now = host.now._replace(mono=host.now.mono + 60 * SECOND)
    assert not connection.is_reading()
    connection.on_output_free()
    assert connection.is_reading()
