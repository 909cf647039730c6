"""AMQP over TLS: certificates of both sides, EXTERNAL, and new certificates without a restart."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrormq.client.bulk import BulkClient, Target
from mirrormq.wire import methods
from mirrormq.wire.properties import Properties
from tests.integration.process import Process, failing, running, sentence
from tests.integration.test_hygiene import wait_for_line
from tests.interop.certificates import Authority, Pair
from tests.support.bulkkit import bodies
from tests.support.raw import Closed, RawClient, connect


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "pki").mkdir()
    return Authority(tmp_path / "pki")


@pytest.fixture
def served(authority: Authority, tmp_path: Path) -> Pair:
    """The node's certificate, at a place where it can be exchanged."""
    return install(authority.issue("localhost", server=True), tmp_path)


def install(pair: Pair, folder: Path) -> Pair:
    shutil.copy(pair.certificate, folder / "cert.pem")
    shutil.copy(pair.key, folder / "key.pem")
    return Pair(folder / "cert.pem", folder / "key.pem")


def tls_options(served: Pair, authority: Authority, *more: str) -> list[str]:
    settings = [
        "listeners.ssl=127.0.0.1:0",
        f"ssl_options.certfile={served.certificate}",
        f"ssl_options.keyfile={served.key}",
        f"ssl_options.cacertfile={authority.certificate}",
        *more,
    ]
    return [word for setting in settings for word in ("--set", setting)]


def tls_port(node: Process) -> int:
    url = next(url for url in node.announced["amqp"] if url.startswith("amqps://"))
    return int(url.rpartition(":")[2])


def dial(node: Process, authority: Authority, pair: Pair | None = None) -> RawClient:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    plain = socket.create_connection(("127.0.0.1", tls_port(node)), timeout=10)
    return RawClient(context.wrap_socket(plain, server_hostname="localhost"))


@pytest.fixture
def definitions(tmp_path: Path) -> Iterator[str]:
    """Users named by certificates."""
    names = ["CN=app one", "app one"]
    content = {
        "vhosts": [{"name": "/"}],
        "users": [{"name": name, "password_hash": "", "tags": ""} for name in names],
        "permissions": [
            {"user": name, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"} for name in names
        ],
    }
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(content))
    return f"load_definitions={file}"


def test_a_client_logs_in_over_tls(tmp_path: Path, authority: Authority, served: Pair) -> None:
    with running(tmp_path, *tls_options(served, authority)) as node:
        with dial(node, authority) as client:
            client.handshake()
            client.open_channel(1)
            client.close_cleanly()
        with connect("127.0.0.1", node.port) as client:
            client.handshake()


def test_records_are_read_in_bulk_over_tls_by_a_user_its_certificate_names(
    tmp_path: Path, authority: Authority, served: Pair, definitions: str
) -> None:
    options = tls_options(served, authority, definitions, "ssl_options.verify=verify_peer")
    pair = authority.issue("app one", server=False)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(pair.certificate, pair.key)
    context.check_hostname = False
    bodies_sent = [b"%d" % number * 5_000 for number in range(200)]
    with running(tmp_path, *options) as node:
        with dial(node, authority, pair) as client:
            client.handshake(mechanism="EXTERNAL")
            client.open_channel(1)
            client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
            client.call(1, methods.QueueDeclare(queue="q", durable=True), methods.QueueDeclareOk)
            for body in bodies_sent:
                persistent = Properties(delivery_mode=2)
                client.publish(1, methods.BasicPublish(routing_key="q"), body, persistent)
            while client.expect(1, methods.BasicAck).delivery_tag < len(bodies_sent):
                pass
        target = Target([("127.0.0.1", tls_port(node))], password=None, tls=context)
        with BulkClient(target) as reader:
            (facts,) = reader.call("queues", queue="q")["queues"]
            assert facts["members"][0]["address"] == f"127.0.0.1:{tls_port(node)}"
            data = b"".join(reader.read(queue="q", id=facts["id"], start=1, end=facts["next"], live=True))
    assert bodies(data) == bodies_sent


def test_plain_bytes_on_the_tls_port_disturb_nobody(
    tmp_path: Path, authority: Authority, served: Pair
) -> None:
    with running(tmp_path, *tls_options(served, authority)) as node, dial(node, authority) as client:
        client.handshake()
        with socket.create_connection(("127.0.0.1", tls_port(node)), timeout=10) as stranger:
            stranger.sendall(b"AMQP\x00\x00\x09\x01" * 10)
            assert b"AMQP" not in stranger.recv(100)
        client.open_channel(1)


def test_a_silent_handshake_is_not_waited_for(tmp_path: Path, authority: Authority, served: Pair) -> None:
    options = tls_options(served, authority, "ssl_handshake_timeout=200")
    with (
        running(tmp_path, *options) as node,
        socket.create_connection(("127.0.0.1", tls_port(node)), timeout=10) as stranger,
    ):
        assert stranger.recv(1) == b""


@pytest.mark.parametrize(
    ("login_from", "user"), [("distinguished_name", "CN=app one"), ("common_name", "app one")]
)
def test_external_logs_in_by_the_name_in_the_certificate(
    tmp_path: Path, authority: Authority, served: Pair, definitions: str, login_from: str, user: str
) -> None:
    verify = ["ssl_options.verify=verify_peer", f"ssl_cert_login_from={login_from}", definitions]
    pair = authority.issue("app one", server=False)
    with (
        running(tmp_path, *tls_options(served, authority, *verify)) as node,
        dial(node, authority, pair) as client,
    ):
        client.handshake(mechanism="EXTERNAL")
        channel = client.open_channel(1)
        # The broker checks `user-id` against the name the connection logged in with.
        client.call(channel, methods.QueueDeclare(queue="q"), methods.QueueDeclareOk)
        client.publish(channel, methods.BasicPublish(routing_key="q"), b"mine", Properties(user_id=user))
        client.call(channel, methods.QueueDelete(queue="q"), methods.QueueDeleteOk)


def test_external_is_offered_only_with_a_certificate(
    tmp_path: Path, authority: Authority, served: Pair
) -> None:
    options = tls_options(served, authority, "ssl_options.verify=verify_peer")
    with running(tmp_path, *options) as node:
        assert "EXTERNAL" not in offered(dial(node, authority))
        assert "EXTERNAL" in offered(dial(node, authority, authority.issue("someone", server=False)))


def offered(client: RawClient) -> str:
    with client:
        client.send(b"AMQP\x00\x00\x09\x01")
        return client.expect(0, methods.ConnectionStart).mechanisms.decode()


def test_a_client_without_a_certificate_can_be_refused(
    tmp_path: Path, authority: Authority, served: Pair
) -> None:
    more = ["ssl_options.verify=verify_peer", "ssl_options.fail_if_no_peer_cert=true"]
    with running(tmp_path, *tls_options(served, authority, *more)) as node:
        with pytest.raises((OSError, Closed)):
            offered(dial(node, authority))
        with dial(node, authority, authority.issue("guest", server=False)) as client:
            client.handshake()


def test_sighup_takes_a_new_certificate_for_new_connections(
    tmp_path: Path, authority: Authority, served: Pair
) -> None:
    with running(tmp_path, *tls_options(served, authority)) as node, dial(node, authority) as old:
        old.handshake()
        before = fingerprint(node, authority)
        install(authority.issue("localhost", server=True), tmp_path)
        assert fingerprint(node, authority) == before, "nothing changes without the signal"
        node.signal(signal.SIGHUP)
        wait_for_line(node, "certificates and log files reloaded")
        assert fingerprint(node, authority) != before
        old.open_channel(1)


def test_a_bad_new_certificate_leaves_the_old_one_in_use(
    tmp_path: Path, authority: Authority, served: Pair
) -> None:
    with running(tmp_path, *tls_options(served, authority)) as node:
        before = fingerprint(node, authority)
        served.certificate.write_text("no certificate")
        node.signal(signal.SIGHUP)
        wait_for_line(node, "reload failed, the old certificates stay in use")
        assert fingerprint(node, authority) == before


def fingerprint(node: Process, authority: Authority) -> bytes | None:
    with dial(node, authority) as client:
        assert isinstance(client.sock, ssl.SSLSocket)
        return client.sock.getpeercert(binary_form=True)


def test_wrong_files_stop_the_start_with_one_sentence(
    tmp_path: Path, authority: Authority, served: Pair
) -> None:
    other = authority.issue("other", server=True)
    common = ["--no-admin", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    wrong_key = tls_options(Pair(served.certificate, other.key), authority)
    assert "cannot be used: KEY_VALUES_MISMATCH" in sentence(failing(*common, *wrong_key))
    missing = tls_options(Pair(tmp_path / "none.pem", served.key), authority)
    assert "cannot be read: No such file" in sentence(failing(*common, *missing))


def test_an_old_version_of_tls_is_not_spoken(tmp_path: Path, authority: Authority, served: Pair) -> None:
    with running(tmp_path, *tls_options(served, authority, "ssl_options.versions=tlsv1.3")) as node:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        plain = socket.create_connection(("127.0.0.1", tls_port(node)), timeout=10)
        with plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="localhost")


def test_a_proxy_header_comes_before_the_handshake(
    tmp_path: Path, authority: Authority, served: Pair
) -> None:
    options = tls_options(served, authority, "proxy_protocol=true", "proxy_protocol_sources=127.0.0.1")
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with running(tmp_path, *options) as node:
        plain = socket.create_connection(("127.0.0.1", tls_port(node)), timeout=10)
        plain.sendall(b"PROXY TCP4 127.0.0.9 127.0.0.1 4711 5671\r\n")
        with RawClient(context.wrap_socket(plain, server_hostname="localhost")) as client:
            client.handshake()
            client.open_channel(1)
