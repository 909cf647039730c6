"""Brokers for the interop tests: MirrorMQ, or RabbitMQ 3.10.8 when INTEROP_BROKER=rabbitmq.

A test sees only `Broker`: addresses, credentials and the admin API. Both brokers read the same
`rabbitmq.conf` lines, so a test that needs a setting gives it once (`launch`). RabbitMQ takes seconds to
start: INTEROP_RABBITMQ=host:amqp-port:http-port names one that already runs. With INTEROP_BROKER=mirrored the
broker that most tests share is one of three nodes on which all queues are mirrored, with masters anywhere.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from tests.interop.admin import Admin
from tests.support import rabbitmq

PLUGINS = ("rabbitmq_management", "rabbitmq_consistent_hash_exchange", "rabbitmq_auth_mechanism_ssl")


def kind() -> str:
    """Which broker the run is about."""
    return os.environ.get("INTEROP_BROKER", "mirrormq")


@dataclass(frozen=True)
class Broker:
    """Where a broker under test listens and who may log in."""

    kind: str
    host: str
    port: int
    http_port: int
    pid: int = 0
    folder: Path = Path()
    vhost: str = "/"
    user: str = "guest"
    password: str = "guest"

    @property
    def admin(self) -> Admin:
        return _admin(self.host, self.http_port)

    @property
    def is_rabbitmq(self) -> bool:
        return self.kind == "rabbitmq"

    @property
    def url(self) -> str:
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/{self.vhost.replace('/', '%2F')}"

    def within(self, vhost: str) -> Broker:
        return replace(self, vhost=vhost)

    def seen_by(self, user: str, password: str) -> Broker:
        return replace(self, user=user, password=password)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago, for a listener of a test's own."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@cache
def _admin(host: str, port: int) -> Admin:
    return Admin(host, port, "guest", "guest")


@contextlib.contextmanager
def launch(config: Sequence[str] = ()) -> Iterator[Broker]:
    """A broker of its own with further lines of rabbitmq.conf."""
    with rabbitmq_server(config) if kind() == "rabbitmq" else _mirrormq(config) as broker:
        yield broker


@contextlib.contextmanager
def rabbitmq_server(config: Sequence[str] = ()) -> Iterator[Broker]:
    """A RabbitMQ with everything the tests need of its plugins."""
    with rabbitmq.running(PLUGINS, config) as node:
        if any(line.startswith("consumer_timeout") for line in config):
            # RabbitMQ looks once a minute for overdue acknowledgements unless told otherwise.
            node.ctl("eval", "application:set_env(rabbit, channel_tick_interval, 500).")
        broker = Broker("rabbitmq", node.host, node.port, node.management_port, node.pid, node.folder)
        yield broker
        broker.admin.close()


@contextlib.contextmanager
def restartable() -> Iterator[tuple[Broker, Callable[[], None]]]:
    """A broker without admin API, and what restarts it with its data and its port."""
    if kind() == "rabbitmq":
        with rabbitmq.running() as node:

            def restart() -> None:
                node.ctl("stop_app")
                node.ctl("start_app")

            yield Broker("rabbitmq", node.host, node.port, 0, node.pid, node.folder), restart
        return
    with tempfile.TemporaryDirectory(prefix="mirrormq-restart-") as folder, contextlib.ExitStack() as running:
        port = free_port()
        running.enter_context(_served(Path(folder), port))

        def restart() -> None:
            running.close()
            running.enter_context(_served(Path(folder), port))

        yield Broker("mirrormq", "127.0.0.1", port, 0, folder=Path(folder)), restart


@contextlib.contextmanager
def _served(folder: Path, port: int) -> Iterator[None]:
    """`mirrormq serve` on this folder while the context lasts."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "mirrormq", "serve", "--no-admin", "--ready-fd", str(writing)]
    command += ["--listen", f"127.0.0.1:{port}", "--data", str(folder / "data")]
    with (folder / "log").open("ab") as log, os.fdopen(reading, "rb") as ready:
        process = subprocess.Popen(
            command, pass_fds=[writing], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        os.close(writing)
        try:
            assert ready.readline(), (folder / "log").read_text(errors="replace")
            yield
        finally:
            process.terminate()
            process.wait(30)


@contextlib.contextmanager
def shared() -> Iterator[Broker]:
    """The broker most tests of a run share."""
    named = os.environ.get("INTEROP_RABBITMQ")
    if kind() == "rabbitmq" and named:
        host, port, http_port = named.split(":")
        yield Broker("rabbitmq", host, int(port), int(http_port))
        return
    with _mirrored() if kind() == "mirrored" else launch() as broker:
        yield broker


def mirror_all(broker: Broker, vhost: str) -> None:
    """Let all queues of a vhost be mirrored, if the run is about that."""
    if broker.kind == "mirrored":
        definition = {"ha-mode": "all"}
        body = {"pattern": ".*", "definition": definition, "apply-to": "queues", "priority": -1}
        broker.admin.put("policies", vhost, "mirrored", body=body)


@contextlib.contextmanager
def _mirrored() -> Iterator[Broker]:
    from mirrormq.testing.cluster import cluster

    with cluster(3, ["queue_master_locator = random"], admin=True) as nodes:
        node = nodes.nodes[1]
        address = urlsplit(node.admin_url or "")
        broker = Broker("mirrored", node.host, node.port, int(address.port or 0), node.pid)
        yield broker
        broker.admin.close()


@contextlib.contextmanager
def _mirrormq(config: Sequence[str]) -> Iterator[Broker]:
    from mirrormq import testing

    with testing.running(config, admin=True) as node:
        address = urlsplit(node.admin_url or "")
        broker = Broker(
            "mirrormq", node.host, node.port, int(address.port or 0), node.process.pid, node.process.folder
        )
        yield broker
        broker.admin.close()
