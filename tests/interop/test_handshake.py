"""Promises about opening a connection: header, properties, mechanisms, tuning, vhost, refusals."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands, encode
from pamqp.header import ProtocolHeader

from tests.interop.rawclient import PROTOCOL_HEADER, Closed, RawClient
from tests.interop.waiting import until

CAPABILITIES = {
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
}


def test_start_announces_version_mechanisms_and_capabilities(raw: Any, broker: Any) -> None:
    start = raw(log_in=False).start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {"PLAIN", "AMQPLAIN"} <= set(start.mechanisms.split())
    assert start.locales == "en_US"
    properties = start.server_properties
    assert {name for name, on in properties["capabilities"].items() if on is True} == CAPABILITIES
    assert (properties["product"], properties["version"]) == ("RabbitMQ", "3.10.8")
    if not broker.is_rabbitmq:
        assert properties["platform"] == "MirrorMQ"
        assert properties["mirrormq_version"]


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x01\x00\x00", b"AMQP\x00\x00\x08\x00", b"HTTP/1.1", b"AMQP\x03\x01\x00\x00"]
)
def test_another_protocol_header_is_answered_with_ours_and_the_end(raw: Any, header: bytes) -> None:
    client = raw(log_in=False)
    client.send_bytes(header)
    answer = client.expect(ProtocolHeader)
    assert (answer.major_version, answer.minor_version, answer.revision) == (0, 9, 1)
    with pytest.raises(Closed):
        client.receive()


def test_plain_and_amqplain_log_in(raw: Any, broker: Any) -> None:
    client = raw(log_in=False)
    client.log_in("guest", "guest")
    client = raw(log_in=False)
    client.start()
    table = encode.field_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    client.start_ok(table.decode("latin-1"), "AMQPLAIN")
    client.expect(commands.Connection.Tune, 0)


@pytest.mark.parametrize("name", ["guest", "nobody"])
def test_a_wrong_password_or_user_is_refused_with_a_close_when_the_client_can_take_it(
    raw: Any, name: str
) -> None:
    client = raw(log_in=False)
    client.start()
    client.start_ok(f"\0{name}\0wrong")
    closed = client.expect(commands.Connection.Close, 0)
    assert closed.reply_code == 403
    assert closed.reply_text == (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile."
    )


def test_a_wrong_password_ends_the_connection_of_an_old_client(raw: Any) -> None:
    client = raw(log_in=False)
    client.start()
    client.start_ok("\0guest\0wrong", client_properties={})
    with pytest.raises(Closed):
        client.receive()


def test_what_goes_wrong_before_the_vhost_is_open_ends_the_connection_without_a_word(raw: Any) -> None:
    """RabbitMQ waits 3 s and closes the socket: nobody learns much by trying. All cases wait together."""

    def unknown_mechanism(client: RawClient) -> None:
        client.start()
        client.start_ok("", "CRAM-MD5-X")

    def channel_open_instead_of_start_ok(client: RawClient) -> None:
        client.start()
        client.send(1, commands.Channel.Open())

    def tune(channel_max: int, frame_max: int) -> Callable[[RawClient], None]:
        def beyond_the_offer(client: RawClient) -> None:
            client.log_in("guest", "guest")
            client.tune_ok(channel_max, frame_max)
            client.send(0, commands.Connection.Open(virtual_host="/"))

        return beyond_the_offer

    wrong = [
        unknown_mechanism,
        channel_open_instead_of_start_ok,
        tune(0, 131072),
        tune(3000, 131072),
        tune(2047, 0),
        tune(2047, 4095),
        tune(2047, 131073),
    ]
    clients = [raw(log_in=False) for _ in wrong]
    for client, act in zip(clients, wrong, strict=True):
        act(client)
    for client in clients:
        with pytest.raises(Closed):
            client.receive()


def test_tune_offers_limits_and_the_smaller_side_wins(raw: Any, broker: Any) -> None:
    client = raw(log_in=False)
    tune = client.log_in("guest", "guest")
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)
    client.tune_ok(7, 4096, 0)
    client.call(0, commands.Connection.Open(virtual_host=broker.vhost), commands.Connection.OpenOk)
    client.channel(7, confirm=True)
    client.call(7, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    client.publish(7, "q", bytes(10_000), chunk=4088)
    client.expect(commands.Basic.Ack, 7)
    client.send(7, commands.Basic.Get(queue="q", no_ack=True))
    got = client.expect_content(commands.Basic.GetOk, 7)
    assert (len(got.body), got.frames) == (10_000, 3)


def test_more_channels_than_channel_max_are_an_error_of_the_connection(raw: Any) -> None:
    client = raw(channel_max=2)
    client.channel(1)
    client.channel(2)
    client.send(3, commands.Channel.Open())
    closed = client.expect(commands.Connection.Close, 0)
    assert (closed.reply_code, closed.reply_text) == (
        530,
        "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)",
    )


def test_an_unknown_vhost_is_refused(raw: Any) -> None:
    client = raw(log_in=False)
    client.log_in("guest", "guest")
    client.tune_ok(2047, 131072, 0)
    client.send(0, commands.Connection.Open(virtual_host="missing"))
    closed = client.expect(commands.Connection.Close, 0)
    assert (closed.reply_code, closed.reply_text) == (530, "NOT_ALLOWED - vhost missing not found")


def test_a_user_without_permissions_on_the_vhost_is_refused(raw: Any, broker: Any) -> None:
    broker.admin.add_user(f"outsider-{broker.vhost}", "secret")
    try:
        client = raw(log_in=False)
        client.log_in(f"outsider-{broker.vhost}", "secret")
        client.tune_ok(2047, 131072, 0)
        client.send(0, commands.Connection.Open(virtual_host=broker.vhost))
        closed = client.expect(commands.Connection.Close, 0)
        assert (closed.reply_code, closed.reply_text) == (
            530,
            f"NOT_ALLOWED - access to vhost '{broker.vhost}' refused for user 'outsider-{broker.vhost}'",
        )
    finally:
        broker.admin.delete_user(f"outsider-{broker.vhost}")


def test_close_is_answered(raw: Any) -> None:
    client = raw()
    client.call(0, commands.Connection.Close(200, "bye", 0, 0), commands.Connection.CloseOk)


def test_channel_close_is_answered_and_the_number_may_be_used_again(raw: Any) -> None:
    client = raw()
    for _ in range(3):
        client.channel(5)
        client.call(5, commands.Channel.Close(200, "bye", 0, 0), commands.Channel.CloseOk)


def test_update_secret_renews_the_credentials_of_a_connection(raw: Any) -> None:
    client = raw()
    client.channel()
    client.call(0, commands.Connection.UpdateSecret("guest", "renewal"), commands.Connection.UpdateSecretOk)
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)


def test_client_properties_are_shown_by_the_admin_api(broker: Any, raw: Any) -> None:
    name = f"shown {broker.vhost}"
    raw(client_properties={"product": "interop", "connection_name": name})

    def find() -> Any:
        rows = broker.admin.get("connections")
        return [row for row in rows if row.get("client_properties", {}).get("connection_name") == name]

    (row,) = until(find, "the connection is listed")
    assert (row["user"], row["vhost"], row["client_properties"]["product"]) == (
        "guest",
        broker.vhost,
        "interop",
    )


def test_the_handshake_may_arrive_byte_by_byte(raw: Any, broker: Any) -> None:
    client: RawClient = raw(log_in=False)
    for byte in PROTOCOL_HEADER:
        client.send_bytes(bytes([byte]))
    client.expect(commands.Connection.Start, 0)
    response = b"\0guest\0guest"
    payload = (
        struct.pack(">HHI", 10, 11, 0)
        + b"\x05PLAIN"
        + struct.pack(">I", len(response))
        + response
        + b"\x05en_US"
    )
    data = struct.pack(">BHI", 1, 0, len(payload)) + payload + b"\xce"
    for byte in data:
        client.send_bytes(bytes([byte]))
    client.expect(commands.Connection.Tune, 0)
