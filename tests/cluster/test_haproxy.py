"""A real HAProxy with the file that `haproxy_config` prints, in front of three real nodes.

Whatever happens to a node, its clients find another one; nobody becomes local by coming through the proxy.
"""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pika.exceptions
import pytest

from mirrormq.ctl.main import CTL
from mirrormq.wire import methods
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until
from tests.support.raw import RawClient

HAPROXY = shutil.which("haproxy") or "/usr/sbin/haproxy"
SETTINGS = ("proxy_protocol=true", "proxy_protocol_sources=127.0.0.0/8")
HOWS = ["stop_app", "SIGTERM", *(name for name in CTL.commands if name == "drain")]
"""Ways to take a node out of service in order."""
GONE = (pika.exceptions.AMQPError, ConnectionError, OSError)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(HAPROXY).exists(), reason="HAProxy is not installed"),
]


class Front(NamedTuple):
    """HAProxy and the nodes behind it."""

    cluster: Cluster
    host: str
    file: Path

    @property
    def amqp(self) -> tuple[str, int]:
        return self.host, 5672

    def connect(self) -> Any:
        host, port = self.amqp
        parameters = pika.ConnectionParameters(
            host, port, heartbeat=0, connection_attempts=1, socket_timeout=kit.DEADLINE_S
        )
        return pika.BlockingConnection(parameters)

    def try_connect(self) -> Any:
        try:
            return self.connect()
        except GONE:
            return None

    def node_of(self, connection: Any, *, asked: Node) -> Node:
        """Where a client came out, as the cluster sees its own end of the proxy's socket."""
        port = connection._impl._transport._sock.getsockname()[1]
        names = {row["peer_port"]: row["pid"] for row in asked.ctl("list_connections")}
        return next(node for node in self.cluster if node.name in names[port])


def printed(node: Node, *words: str) -> str:
    line = [sys.executable, "-m", "mirrormq", "ctl", "--data", str(node.view), "haproxy_config", *words]
    found = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    assert found.stderr == ""
    return found.stdout


def running(file: Path, at: tuple[str, int]) -> subprocess.Popen[bytes]:
    with file.with_suffix(".log").open("wb") as log:
        child = subprocess.Popen([HAPROXY, "-db", "-f", str(file)], stdout=log, stderr=log)

    def listens() -> bool:
        assert child.poll() is None, file.with_suffix(".log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(at) == 0

    until(listens, f"HAProxy listens at {at}")
    return child


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("haproxy")
    with kit.cluster(folder, proxied=True, settings=SETTINGS) as cluster:
        host = cluster[0].host.rpartition(".")[0] + ".100"
        plain, proxied = folder / "plain.cfg", folder / "proxied.cfg"
        binds = ["--bind-amqp", f"{host}:5672", "--bind-management", f"{host}:15672"]
        plain.write_text(printed(cluster[1], *binds))
        binds = ["--bind-amqp", f"{host}:5673", "--bind-management", f"{host}:15673"]
        proxied.write_text(printed(cluster[2], *binds, "--accept-proxy"))
        cluster[0].ctl("set_policy", vhost="/", name="all", pattern="", definition={"ha-mode": "all"})
        children = [running(plain, (host, 5672)), running(proxied, (host, 5673))]
        try:
            yield Front(cluster, host, plain)
        finally:
            for child in children:
                child.terminate()
                child.wait(kit.DEADLINE_S)


def health(node: Node) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(node.host, kit.ADMIN, timeout=kit.DEADLINE_S)
    connection.request("GET", "/health/ready")
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def is_cut_off(connection: Any) -> bool:
    try:
        connection.process_data_events(0)
    except GONE:
        return True
    return bool(connection.is_closed)


def moves(front: Front, connection: Any, left: Node) -> None:
    """A client of a node that is out of service is cut off, finds another one, and its message is there."""
    until(lambda: is_cut_off(connection), f"the client of {left} is cut off")
    again = until(front.try_connect, "the proxy finds another node")
    others = [node for node in front.cluster if node is not left]
    assert front.node_of(again, asked=others[0]) is not left
    channel = again.channel()
    channel.confirm_delivery()
    frame, _, body = channel.basic_get("moving", auto_ack=True)
    assert (frame is not None, body) == (True, b"kept")
    channel.basic_publish("", "moving", b"kept", pika.BasicProperties(delivery_mode=2))
    channel.queue_delete("moving")
    again.close()


def settled(front: Front) -> tuple[Any, Node]:
    """A client with a confirmed message, and its node; all nodes are well."""
    front.cluster.wait_whole()
    for node in front.cluster:
        until(lambda node=node: health(node)[0] == 200, f"{node} is ready")
    connection = until(front.try_connect, "the proxy finds a node")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("moving", durable=True)
    channel.basic_publish("", "moving", b"kept", pika.BasicProperties(delivery_mode=2))
    return connection, front.node_of(connection, asked=front.cluster[0])


def test_haproxy_finds_nothing_to_complain_about_in_the_printed_file(front: Front) -> None:
    checked = subprocess.run(
        [HAPROXY, "-c", "-V", "-f", str(front.file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stdout + checked.stderr
    assert front.file.read_text().count("send-proxy-v2") == 3


def test_clients_are_spread_over_the_nodes(front: Front) -> None:
    front.cluster.wait_whole()
    connections = [front.connect() for _ in range(6)]
    counted = [front.node_of(connection, asked=front.cluster[0]).name for connection in connections]
    assert sorted(counted.count(node.name) for node in front.cluster) == [2, 2, 2]
    for connection in connections:
        connection.close()


def test_a_killed_node_loses_its_clients_to_another(front: Front) -> None:
    connection, node = settled(front)
    node.kill()
    moves(front, connection, node)
    front.cluster.start(node)


@pytest.mark.parametrize("how", HOWS)
def test_a_node_that_is_stopped_in_order_loses_its_clients_to_another(front: Front, how: str) -> None:
    connection, node = settled(front)
    if how == "SIGTERM":
        node.signal(signal.SIGTERM)
    else:
        node.ctl(how)
        reason = "the application is stopped" if how == "stop_app" else "no listener for clients is open"
        assert health(node) == (503, {"status": "failed", "reason": reason})
    moves(front, connection, node)
    if how != "SIGTERM":
        node.ctl("start_app" if how == "stop_app" else "revive")
        until(lambda: health(node) == (200, {"status": "ok"}), f"{node} is ready again")
    else:
        assert node.popen is not None
        assert node.popen.wait(kit.DEADLINE_S) == 0
        node.close()
        front.cluster.start(node)


def test_a_paused_minority_loses_its_clients_to_the_others(front: Front) -> None:
    connection, node = settled(front)
    front.cluster.net.isolate(node.name)
    until(lambda: health(node)[0] == 503, f"{node} is paused")
    assert health(node)[1] == {"status": "failed", "reason": "the node is paused"}
    moves(front, connection, node)
    front.cluster.net.heal()
    until(lambda: health(node)[0] == 200, f"{node} is back")


def from_address(at: tuple[str, int], address: str) -> socket.socket:
    """Come to the front as if from an address: what the proxy before the proxy would say."""
    sock = socket.create_connection(at, timeout=kit.DEADLINE_S)
    sock.sendall(f"PROXY TCP4 {address} {at[0]} 4711 {at[1]}\r\n".encode())
    return sock


@pytest.mark.parametrize(("address", "is_let_in"), [("192.0.2.7", False), ("127.0.0.1", True)])
def test_guest_logs_in_only_from_loopback_however_many_proxies_are_local(
    front: Front, address: str, is_let_in: bool
) -> None:
    front.cluster.wait_whole()
    with RawClient(from_address((front.host, 5673), address)) as client:
        client.send(b"AMQP\x00\x00\x09\x01")
        client.expect(0, methods.ConnectionStart)
        start_ok = methods.ConnectionStartOk(
            client_properties={"capabilities": {"authentication_failure_close": True}},
            mechanism="PLAIN",
            response=b"\x00guest\x00guest",
        )
        if is_let_in:
            client.call(0, start_ok, methods.ConnectionTune)
        else:
            assert client.call(0, start_ok, methods.ConnectionClose).reply_code == 403


@pytest.mark.parametrize(("address", "status"), [("192.0.2.7", 401), ("127.0.0.1", 200)])
@pytest.mark.parametrize("claimed", [None, "127.0.0.1"])
def test_guest_gets_at_the_api_only_from_loopback_whatever_he_claims(
    front: Front, address: str, status: int, claimed: str | None
) -> None:
    front.cluster.wait_whole()
    connection = http.client.HTTPConnection(front.host, 15673, timeout=kit.DEADLINE_S)
    connection.sock = from_address((front.host, 15673), address)
    headers = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    if claimed is not None:
        headers["X-Forwarded-For"] = claimed
    connection.request("GET", "/api/whoami", headers=headers)
    assert connection.getresponse().status == status
    connection.close()
