"""Promises that need a broker with settings of its own: TLS and EXTERNAL, guest from outside, message size,
delivery-acknowledgement timeout, limits offered in tune."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pytest
from pamqp import commands
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ConnectionClosedByBroker

from tests.interop import brokers
from tests.interop.brokers import Broker
from tests.interop.certificates import Authority, Pair
from tests.interop.rawclient import Closed, RawClient
from tests.interop.talk import Inbox, depth, publish, queue, take_all
from tests.interop.waiting import pump, until


class Strict(NamedTuple):
    """A broker with narrow settings, and what is needed to speak with it."""

    broker: Broker
    tls_port: int
    authority: Authority
    client: Pair
    stranger: Pair

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Strict]:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    server = authority.issue("server", server=True)
    tls_port = brokers.free_port()
    config = [
        f"listeners.ssl.1 = 127.0.0.1:{tls_port}",
        f"ssl_options.cacertfile = {authority.certificate}",
        f"ssl_options.certfile = {server.certificate}",
        f"ssl_options.keyfile = {server.key}",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = false",
        "ssl_cert_login_from = common_name",
        "auth_mechanisms.1 = PLAIN",
        "auth_mechanisms.2 = AMQPLAIN",
        "auth_mechanisms.3 = EXTERNAL",
        "consumer_timeout = 1000",
        "max_message_size = 100000",
        "channel_max = 100",
        "frame_max = 8192",
        "heartbeat = 17",
    ]
    with brokers.launch(config) as broker:
        broker.admin.add_user("robot", "unused")
        broker.admin.permit("robot", "/")
        yield Strict(
            broker,
            tls_port,
            authority,
            authority.issue("robot", server=False),
            authority.issue("stranger", server=False),
        )


@pytest.fixture
def strict_channel(strict: Strict) -> Iterator[Any]:
    at = strict.broker
    connection = pika.BlockingConnection(pika.ConnectionParameters(at.host, at.port))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


def tls_client(strict: Strict, pair: Pair | None = None) -> RawClient:
    return RawClient.connect("127.0.0.1", strict.tls_port, strict.context(pair))


def test_a_real_client_works_over_tls(strict: Strict) -> None:
    options = pika.SSLOptions(strict.context(), "localhost")
    parameters = pika.ConnectionParameters("localhost", strict.tls_port, ssl_options=options)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        queue(channel, "secure", exclusive=True)
        publish(channel, "secure", "x" * 50_000)
        assert take_all(channel, "secure") == ["x" * 50_000]


def test_plain_bytes_on_the_tls_port_get_no_amqp_answer(strict: Strict) -> None:
    with RawClient.connect("127.0.0.1", strict.tls_port).sock as plain:
        plain.sendall(b"AMQP\0\0\x09\x01" * 4)
        try:
            answer = plain.recv(100)
        except ConnectionResetError:
            answer = b""
    assert answer[:1] in {b"", b"\x15"}, "the end, or a TLS alert before it"


def test_a_certificate_of_a_foreign_authority_is_refused(strict: Strict, tmp_path: Path) -> None:
    foreign = Authority(tmp_path).issue("robot", server=False)
    with pytest.raises((ssl.SSLError, Closed, ConnectionError)), tls_client(strict, foreign).sock as sock:
        RawClient(sock).start()
    with tls_client(strict).sock as alive:
        assert alive.version() in {"TLSv1.2", "TLSv1.3"}


def test_external_takes_the_user_from_the_client_certificate(strict: Strict) -> None:
    client = tls_client(strict, strict.client)
    assert "EXTERNAL" in client.start().mechanisms.split()
    client.start_ok("", "EXTERNAL")
    client.expect(commands.Connection.Tune, 0)
    client.tune_ok(100, 8192)
    client.call(0, commands.Connection.Open(virtual_host="/"), commands.Connection.OpenOk)
    client.channel()

    def users() -> bool:
        rows = strict.broker.admin.get("connections")
        return any(row.get("user") == "robot" for row in rows)

    until(users, "the connection belongs to robot")
    client.close()


def test_external_with_an_unknown_name_is_refused(strict: Strict) -> None:
    client = tls_client(strict, strict.stranger)
    client.start()
    client.start_ok("", "EXTERNAL")
    closed = client.expect(commands.Connection.Close, 0)
    assert closed.reply_code == 403
    client.close()


def test_external_without_a_certificate_is_refused(strict: Strict) -> None:
    client = tls_client(strict)
    client.start()
    client.start_ok("", "EXTERNAL")
    assert client.expect(commands.Connection.Close, 0).reply_code == 403
    client.close()


def test_external_is_not_offered_without_tls(strict: Strict) -> None:
    plain = RawClient.connect(strict.broker.host, strict.broker.port)
    assert "EXTERNAL" not in plain.start().mechanisms.split()
    plain.close()


@pytest.fixture(scope="module")
def proxied() -> Iterator[Broker]:
    """A broker behind a proxy that tells where clients come from; everything stays on loopback."""
    config = ["proxy_protocol = true"]
    if brokers.kind() == "mirrormq":
        config.append("proxy_protocol_sources.1 = 127.0.0.1")
    with brokers.launch(config) as broker:
        broker.admin.add_user("robot", "unused")
        broker.admin.permit("robot", "/")
        yield broker


def came_from(proxied: Broker, address: str) -> RawClient:
    client = RawClient.connect(proxied.host, proxied.port)
    client.send_bytes(f"PROXY TCP4 {address} 127.0.0.1 4000 {proxied.port}\r\n".encode())
    return client


def test_guest_may_log_in_from_loopback_only(proxied: Broker) -> None:
    if proxied.is_rabbitmq:
        pytest.skip("RabbitMQ looks at the proxy's own address; MirrorMQ at the one the proxy tells")
    client = came_from(proxied, "203.0.113.7")
    client.start()
    client.start_ok("\0guest\0guest")
    closed = client.expect(commands.Connection.Close, 0)
    assert closed.reply_code == 403
    assert closed.reply_text == (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile."
    )
    client.close()
    for address, user, password in (("203.0.113.7", "robot", "unused"), ("127.0.0.1", "guest", "guest")):
        client = came_from(proxied, address)
        client.log_in(user, password)
        client.close()


def test_tune_offers_what_the_settings_say(strict: Strict) -> None:
    client = RawClient.connect(strict.broker.host, strict.broker.port)
    tune = client.log_in("guest", "guest")
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (100, 8192, 17)
    client.close()


def test_a_message_larger_than_the_limit_closes_the_channel(strict: Strict, strict_channel: Any) -> None:
    queue(strict_channel, "q", exclusive=True)
    publish(strict_channel, "q", "x" * 100_000)
    with pytest.raises(ChannelClosedByBroker) as caught:
        publish(strict_channel, "q", "x" * 100_001)
    assert caught.value.reply_code == 406
    assert caught.value.reply_text == (
        "PRECONDITION_FAILED - message size 100001 is larger than configured max size 100000"
    )


def test_a_delivery_that_nobody_acknowledges_in_time_closes_the_channel_and_returns(
    strict: Strict, strict_channel: Any
) -> None:
    queue(strict_channel, "overdue")
    publish(strict_channel, "overdue", "m")
    at = strict.broker
    with pika.BlockingConnection(pika.ConnectionParameters(at.host, at.port)) as lazy:
        inbox = Inbox(lazy.channel(), "overdue")
        inbox.wait(1)
        idle = lazy.channel()
        reasons: list[Any] = []
        inbox.channel._impl.add_on_close_callback(lambda _channel, reason: reasons.append(reason))
        pump(lazy, lambda: reasons, "the timeout")
        assert reasons[0].reply_code == 406
        assert reasons[0].reply_text == (
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. "
            "Timeout value used: 1000 ms. "
            "This timeout value can be configured, see consumers doc guide to learn more"
        )
        assert idle.is_open, "only the channel that holds the message is closed"
    until(lambda: depth(strict_channel, "overdue") == 1, "the message is back")
    strict_channel.queue_delete("overdue")


def test_a_wrong_log_in_over_tls_is_refused(strict: Strict) -> None:
    options = pika.SSLOptions(strict.context(), "localhost")
    wrong = pika.PlainCredentials("guest", "wrong")
    with pytest.raises((ConnectionClosedByBroker, AMQPConnectionError)):
        pika.BlockingConnection(
            pika.ConnectionParameters("localhost", strict.tls_port, ssl_options=options, credentials=wrong)
        )
