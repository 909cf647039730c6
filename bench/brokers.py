"""The brokers under test: MirrorMQ as `mirrormq serve` starts it, RabbitMQ from the system's packages."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from bench import machine
from tests.support import rabbitmq

HELLO = b"AMQP\x00\x00\x09\x01"
START_TIMEOUT_S = 120.0


class Broker(Protocol):
    """A running broker. `start_s` is the time from its start until it answered an AMQP greeting."""

    name: str
    port: int
    pid: int
    start_s: float

    def stop(self) -> None: ...


def wait_for_amqp(port: int, alive: Callable[[], bool], began: float) -> float:
    """Seconds from `began` until the broker answers connection.start."""
    while time.monotonic() - began < START_TIMEOUT_S:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.settimeout(5)
            probe.sendall(HELLO)
            if probe.recv(1) == b"\x01":
                return time.monotonic() - began
        if not alive():
            break
        time.sleep(0.005)
    raise RuntimeError(f"no AMQP answer on port {port}")


class MirrorMQ:
    """One node with the given environment, its data in a temporary folder."""

    name = "mirrormq"

    def __init__(self, data: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mirrormq-bench-"))
        self.data = data or self._folder / "data"
        self.port, http_port = rabbitmq.free_ports(2)
        config = self._folder / "rabbitmq.conf"
        config.write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {http_port}\n"
        )
        self._log = (self._folder / "log").open("wb")
        began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mirrormq", "serve", "--config", str(config), "--data", str(self.data)],
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._process.pid
        try:
            self.start_s = wait_for_amqp(self.port, lambda: self._process.poll() is None, began)
        except RuntimeError as late:
            said = (self._folder / "log").read_text(errors="replace")
            self.stop()
            raise RuntimeError(f"mirrormq serve did not come up:\n{said}") from late

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class RabbitMQ:
    """One stock node without plugins: its leanest and fastest form."""

    name = "rabbitmq"

    def __init__(self) -> None:
        began = time.monotonic()
        self._node = rabbitmq.RabbitMQ.launch()
        try:
            self.start_s = wait_for_amqp(self._node.port, lambda: True, began)
            self._node.wait()
        except BaseException:
            self._node.stop()
            raise
        self.port, self.pid = self._node.port, self._node.pid

    def stop(self) -> None:
        self._node.stop()


KINDS: dict[str, Callable[[], Broker]] = {"mirrormq": MirrorMQ, "rabbitmq": RabbitMQ}


def available(wanted: str) -> list[str]:
    """The brokers to measure: those named, or MirrorMQ and, where installed, RabbitMQ."""
    if wanted:
        return wanted.split(",")
    return ["mirrormq", "rabbitmq"] if rabbitmq.installed() else ["mirrormq"]


@contextlib.contextmanager
def running(kinds: list[str]) -> Iterator[list[Broker]]:
    """All of them at once, so that runs can be interleaved; an idle broker takes next to nothing."""
    with contextlib.ExitStack() as stack:
        started: list[Broker] = []
        for kind in kinds:
            broker = KINDS[kind]()
            stack.callback(broker.stop)
            machine.boost(broker.pid)
            started.append(broker)
        yield started


def raise_file_limit() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def prepare() -> None:
    """Once per program: enough descriptors for a thousand connections, and a good place on the cores."""
    raise_file_limit()
    machine.boost_self()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
