"""Real etcd servers for tests: on loopback, on ports that are free, in folders that go with the test."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 30.0
POLL_S = 0.02
PROGRAM = shutil.which("etcd") or ""

needs_etcd = pytest.mark.skipif(not PROGRAM, reason="needs etcd, e.g. 'apt-get install etcd-server'")


class Member:
    """One etcd server: its folder and ports for good, and a process most of the time."""

    def __init__(self, name: str, folder: Path, host: str) -> None:
        self.name = name
        self.folder = folder
        self.client, self.peer = (f"http://{host}:{port}" for port in free_ports(host, 2))
        self.cluster = ""
        self.more: list[str] = []
        """Further arguments."""
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; returns at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [PROGRAM, "--name", self.name, "--data-dir", str(self.folder / "data")]
        words += ["--listen-client-urls", self.client, "--advertise-client-urls", self.client]
        words += ["--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer]
        words += ["--initial-cluster", self.cluster, "--initial-cluster-state", "new", "--logger", "zap"]
        words += self.more
        with (self.folder / "log").open("ab") as log:
            self.popen = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(DEADLINE_S)

    def signal(self, number: signal.Signals) -> None:
        assert self.popen is not None
        self.popen.send_signal(number)

    def call(self, path: str, body: Any, timeout: float = DEADLINE_S) -> Any:
        """A request to its JSON gateway."""
        request = urllib.request.Request(f"{self.client}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)

    def is_well(self) -> bool:
        """Does it answer, knowing a leader?"""
        with contextlib.suppress(OSError, urllib.error.URLError):
            return bool(self.call("/v3/maintenance/status", {}, 1.0).get("leader"))
        return False

    def is_leader(self) -> bool:
        status = self.call("/v3/maintenance/status", {})
        return bool(status["leader"] == status["header"]["member_id"])

    def close(self) -> None:
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait(DEADLINE_S)


class Etcd:
    """The members of one etcd."""

    def __init__(self, folder: Path, size: int, host: str) -> None:
        self.members = [Member(f"e{number}", folder / f"e{number}", host) for number in range(1, size + 1)]
        listed = ",".join(f"{member.name}={member.peer}" for member in self.members)
        for member in self.members:
            member.cluster = listed

    @property
    def endpoints(self) -> list[str]:
        return [member.client for member in self.members]

    def settings(self, prefix: str = "/mirrormq") -> list[str]:
        """Settings of nodes that agree by it."""
        listed = ",".join(self.endpoints)
        return ["coordinator=etcd", f"etcd.endpoints={listed}", f"etcd.prefix={prefix}"]

    def start(self) -> None:
        for member in self.members:
            member.start()
        self.wait_well()

    def wait_well(self) -> None:
        """Wait until all members that run know a leader."""
        deadline = time.monotonic() + DEADLINE_S
        pause = threading.Event()
        running = [one for one in self.members if one.popen is not None and one.popen.poll() is None]
        while not all(member.is_well() for member in running):
            assert time.monotonic() < deadline, f"etcd is not well: {self.log()}"
            pause.wait(POLL_S)

    def leader(self) -> Member:
        """The member that leads."""
        return next(member for member in self.members if member.is_leader())

    def compact(self) -> None:
        """Keep no changes there were so far."""
        revision = self.members[0].call("/v3/kv/range", {"key": "YQ=="})["header"]["revision"]
        self.members[0].call("/v3/kv/compaction", {"revision": revision})

    def log(self) -> str:
        return "\n".join((member.folder / "log").read_text()[-2000:] for member in self.members)

    def close(self) -> None:
        for member in self.members:
            member.close()


@contextlib.contextmanager
def running(folder: Path, size: int = 1, host: str = "127.0.0.1") -> Iterator[Etcd]:
    """An etcd for the length of a test."""
    made = Etcd(folder, size, host)
    try:
        made.start()
        yield made
    finally:
        made.close()


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.create_server((host, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
