"""From the protocol header to connection.open-ok, and every way to fail on the way."""

import pytest

from mirrormq.base.types import Peer
from mirrormq.broker.handshake import server_properties
from mirrormq.meta import commands, records
from mirrormq.wire import methods
from mirrormq.wire.spec import PROTOCOL_HEADER
from mirrormq.wire.table import encode_table
from tests.support.fakehost import Client, FakeHost, connected, frame, method_frame

TLS_PEER = Peer("127.0.0.1", 50_001, "127.0.0.1", 5671, True, "robot")


def start_ok(mechanism="PLAIN", response=b"\0guest\0guest", properties=None):
    return methods.ConnectionStartOk(properties or {}, mechanism, response)


def started(host=None, **kwargs) -> Client:
    client = Client(host or FakeHost(), **kwargs)
    client.raw(PROTOCOL_HEADER)
    return client


def test_the_server_introduces_itself_as_the_rabbitmq_it_replaces():
    client = started()
    start = client.expect(methods.ConnectionStart, 0)
    assert (start.version_major, start.version_minor, start.locales) == (0, 9, b"en_US")
    properties = start.server_properties
    assert properties["product"] == "RabbitMQ"
    assert properties["version"] == "3.10.8"
    assert properties["platform"] == "MirrorMQ"
    assert properties["mirrormq_version"]
    assert set(properties["capabilities"].values()) == {True}
    assert len(properties["capabilities"]) == 9


def test_server_properties_are_sorted_by_name_as_rabbitmq_sends_them():
    names = list(server_properties("c"))
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("peer", "mechanisms"),
    [
        (Peer("127.0.0.1", 1, "127.0.0.1", 5672), b"PLAIN AMQPLAIN"),
        (Peer("127.0.0.1", 1, "127.0.0.1", 5671, True, None), b"PLAIN AMQPLAIN"),
        (TLS_PEER, b"PLAIN AMQPLAIN EXTERNAL"),
    ],
)
def test_external_is_offered_only_to_clients_with_a_certificate(peer, mechanisms):
    client = started(peer=peer)
    assert client.expect(methods.ConnectionStart, 0).mechanisms == mechanisms


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x09\x00",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"GET / HT",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
)
def test_another_protocol_is_answered_with_ours_and_hung_up(header):
    client = Client(FakeHost())
    client.raw(header)
    assert client.all() == []
    assert client.header == PROTOCOL_HEADER
    assert client.is_closed()


def test_a_header_may_come_byte_by_byte():
    client = Client(FakeHost())
    for octet in PROTOCOL_HEADER:
        client.raw(bytes((octet,)))
    client.expect(methods.ConnectionStart, 0)


def test_header_and_first_method_may_come_in_one_read():
    client = Client(FakeHost())
    client.raw(PROTOCOL_HEADER + method_frame(0, start_ok()))
    client.expect(methods.ConnectionStart, 0)
    client.expect(methods.ConnectionTune, 0)


def test_tune_offers_the_configured_limits():
    client = started(FakeHost(channel_max=12, frame_max=8192, heartbeat=7))
    client.next()
    tune = client.call(start_ok(), methods.ConnectionTune, 0)
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (12, 8192, 7)


def test_amqplain_logs_in():
    client = started()
    client.next()
    response = encode_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    client.call(start_ok("AMQPLAIN", response), methods.ConnectionTune, 0)


def test_external_logs_in_as_the_name_in_the_certificate():
    host = FakeHost()
    host.add_user("robot", "unused")
    client = started(host, peer=TLS_PEER)
    client.next()
    client.call(start_ok("EXTERNAL", b""), methods.ConnectionTune, 0)
    assert client.connection.user == "robot"


def test_a_refused_login_is_told_to_clients_that_understand_it():
    client = Client(FakeHost())
    client.log_in("guest", "wrong")
    close = client.expect(methods.ConnectionClose, 0)
    assert close.reply_code == 403
    assert close.reply_text == (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile."
    )
    assert (close.class_id, close.method_id) == (0, 0)
    assert not client.is_closed()
    client.send(methods.ConnectionCloseOk(), 0)
    assert client.is_closed()


def test_a_refused_login_of_an_old_client_is_hung_up_after_a_pause():
    host = FakeHost()
    client = Client(host)
    client.log_in("guest", "wrong", capabilities={})
    assert client.all() == []
    host.advance(2)
    assert not client.is_closed()
    host.advance(1)
    assert client.is_closed()


def test_nothing_is_served_while_a_password_is_being_checked():
    host = FakeHost()
    host.hold_logins = True
    client = started(host)
    client.next()
    client.raw(method_frame(0, start_ok()) + method_frame(0, methods.ConnectionTuneOk(0, 4096, 0)))
    assert client.all() == []
    assert ("pause", 1) in host.effects.items
    host.finish_logins()
    client.expect(methods.ConnectionTune, 0)
    assert host.effects.items[-1] == ("resume", 1)


def test_a_login_that_ends_after_the_client_left_changes_nothing():
    host = FakeHost()
    host.hold_logins = True
    client = Client(host)
    client.log_in()
    client.connection.on_closed()
    host.finish_logins()
    assert client.all() == []


@pytest.mark.parametrize(
    "method",
    [
        start_ok("CRAM-MD5"),
        start_ok("plain"),
        start_ok("EXTERNAL", b""),
        start_ok("PLAIN", b"nonsense"),
        start_ok("AMQPLAIN", b"\xff\xff"),
        methods.ConnectionOpen("/"),
        methods.ConnectionTuneOk(0, 4096, 0),
        methods.ConnectionClose(),
        methods.QueueDeclare(queue="q"),
    ],
)
def test_mistakes_before_tuning_are_answered_by_silence(method):
    host = FakeHost()
    client = started(host)
    client.next()
    client.send(method, 0)
    assert client.all() == []
    host.advance(3)
    assert client.is_closed()


def test_a_large_frame_before_tuning_is_answered_by_silence():
    client = started()
    client.next()
    client.send(start_ok(properties={"text": "x" * 5000}), 0)
    assert client.all() == []
    assert client.connection.state == "closed"


@pytest.mark.parametrize(
    ("channel_max", "frame_max"), [(0, 131_072), (2048, 131_072), (10, 0), (10, 131_073), (10, 4095)]
)
def test_a_client_may_only_lower_what_was_offered(channel_max, frame_max):
    host = FakeHost()
    client = Client(host)
    client.log_in()
    client.next()
    client.send(methods.ConnectionTuneOk(channel_max, frame_max, 0), 0)
    assert client.connection.state == "closed"
    assert client.all() == []
    assert any("negotiated" in text for _, text in host.notes)


def test_negotiated_limits_are_kept():
    client = Client(FakeHost())
    client.log_in()
    client.next()
    client.send(methods.ConnectionTuneOk(5, 4096, 30), 0)
    client.call(methods.ConnectionOpen("/"), methods.ConnectionOpenOk, 0)
    connection = client.connection
    assert (connection.channel_max, connection.frame_max, connection.heartbeat) == (5, 4096, 30)
    assert connection.out.frame_max == 4096


def opening(host: FakeHost, user: str = "guest") -> Client:
    client = Client(host)
    client.log_in(user, user)
    client.next()
    client.send(methods.ConnectionTuneOk(2047, 131_072, 0), 0)
    return client


def refusal(client: Client, vhost: str = "/") -> str:
    close = client.call(methods.ConnectionOpen(vhost), methods.ConnectionClose, 0)
    assert (close.reply_code, close.class_id, close.method_id) == (530, 10, 40)
    return close.reply_text


def test_a_missing_vhost_is_named():
    assert refusal(opening(FakeHost()), "none") == "NOT_ALLOWED - vhost none not found"


def test_a_vhost_needs_a_permission():
    host = FakeHost()
    host.apply(commands.PutVHost(records.VHost("other")))
    assert refusal(opening(host), "other") == "NOT_ALLOWED - access to vhost 'other' refused for user 'guest'"


def test_the_connection_limit_of_a_vhost_counts_open_connections():
    host = FakeHost()
    host.apply(commands.SetVHostLimits("/", {"max-connections": 1}))
    connected(host)
    assert refusal(opening(host)) == (
        "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit (1) is reached"
    )


def test_the_connection_limit_of_a_user_counts_that_users_connections():
    host = FakeHost()
    host.add_user("eve", "eve")
    host.apply(commands.SetUserLimits("eve", {"max-connections": 1}))
    connected(host)
    connected(host, user="eve", password="eve")
    assert refusal(opening(host, "eve")) == (
        "NOT_ALLOWED - connection refused for user 'eve': user connection limit (1) is reached"
    )


def test_a_negative_limit_is_none():
    host = FakeHost()
    host.apply(commands.SetVHostLimits("/", {"max-connections": -1}))
    connected(host)


def test_a_channel_before_open_is_an_unexpected_frame():
    client = opening(FakeHost())
    client.send(methods.ChannelOpen(), 1)
    close = client.expect(methods.ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (
        505,
        "UNEXPECTED_FRAME - type 1, all octets = <<0,20,0,10,0>>",
    )


def test_a_wrong_method_before_open_names_the_state():
    client = opening(FakeHost())
    client.send(methods.ConnectionClose(), 0)
    close = client.expect(methods.ConnectionClose, 0)
    assert close.reply_text == "CHANNEL_ERROR - unexpected method in connection state opening"


def test_a_heartbeat_during_the_handshake_is_welcome():
    client = started()
    client.next()
    client.raw(frame(8, 0, b""))
    client.call(start_ok(), methods.ConnectionTune, 0)


@pytest.mark.parametrize("stage", ["connected", "header", "start_ok"])
def test_a_client_that_stops_in_the_middle_is_dropped_after_the_handshake_timeout(stage):
    host = FakeHost()
    client = Client(host)
    if stage != "connected":
        client.raw(PROTOCOL_HEADER)
    if stage == "start_ok":
        client.send(start_ok(), 0)
    host.advance(9)
    assert not client.is_closed()
    host.advance(1)
    assert client.is_closed()


def test_the_handshake_timeout_ends_with_open():
    host = FakeHost()
    client = connected(host)
    host.advance(60)
    assert not client.is_closed()


def test_the_name_given_by_the_client_is_remembered():
    client = connected(client_properties={"connection_name": "billing"})
    assert client.connection.user_provided_name == "billing"
    assert client.connection.name == "127.0.0.1:50000 -> 127.0.0.1:5672"
