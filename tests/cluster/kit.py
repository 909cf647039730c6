"""Clusters of real processes for tests: started, killed, stopped, cut apart, asked, and never left behind.

Every cluster has loopback addresses of its own (127.x.y.1 and so on), one per node, so that all nodes use the
usual ports and no two clusters meet. What a node logs is read line by line while it runs: tests wait for what
is said, or ask the admin API until a deadline; nobody sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pika

from mirrormq.client.admin import AdminClient, Refused, Unreachable
from tests.cluster.net import Net
from tests.support.raw import RawClient, connect

SECRET = "the secret of the tests' clusters"
AMQP, ADMIN, CLUSTER, FRONT, CLAIM = 5672, 15672, 25672, 25673, 25674
"""Ports. FRONT is the proxy's in front of a node, CLAIM says that the addresses of a cluster are taken."""

DEADLINE_S = 30.0
POLL_S = 0.02
SETTINGS = ("disk_reserve=1MiB", "shutdown_timeout=2s")

Found = TypeVar("Found")


class Line(NamedTuple):
    """One line of a node's log."""

    at: float
    """Wall time, as the node wrote it; 0 if it did not."""
    text: str

    def field(self, name: str) -> str:
        """A field at the end of the line."""
        found = re.search(rf'\b{name}=("[^"]*"|\S*)', self.text)
        return found[1].strip('"') if found else ""


def until(
    condition: Callable[[], Found | None], what: str | Callable[[], str], seconds: float = DEADLINE_S
) -> Found:
    """Poll until `condition` gives something true, and return that; `what` was waited for."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, _late(what, seconds)
        pause.wait(POLL_S)
    return found


def _late(what: str | Callable[[], str], seconds: float) -> str:
    return f"not within {seconds:g} s: {what if isinstance(what, str) else what()}"


class Node:
    """One node: its folder and addresses for good, and a process most of the time."""

    def __init__(self, name: str, host: str, folder: Path, settings: Sequence[str]) -> None:
        self.name = f"{name}@{host}"
        self.short = name
        self.host = host
        self.folder = folder
        self.settings = list(settings)
        self.enter: list[str] = []
        """Words before the command: how to enter the world in which its folder is."""
        self.view = folder
        """Its folder as this process sees it."""
        self.lines: list[Line] = []
        """Everything it has logged, over all starts."""
        self.popen: subprocess.Popen[bytes] | None = None
        self.started_at = 0
        """Number of lines before the last start."""
        self._changed = threading.Condition()
        self._is_silent = True
        self._clients: list[Any] = []

    def __repr__(self) -> str:
        return self.name

    # The process.

    @property
    def pid(self) -> int:
        assert self.popen is not None, f"{self} was never started"
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def start(self) -> None:
        """Start the process; returns at once."""
        assert not self.is_running, self
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [*self.enter, sys.executable, "-P", "-m", "mirrormq", "serve", "--node-name", self.name]
        words += ["--data", str(self.folder), "--listen", f"{self.host}:{AMQP}", "--stop-on-eof"]
        own = (f"management.tcp.ip={self.host}", f"management.tcp.port={ADMIN}")
        for setting in (*own, f"cluster_listen={self.host}:{CLUSTER}", *SETTINGS, *self.settings):
            words += ["--set", setting]
        self.started_at = len(self.lines)
        self._is_silent = False
        self.popen = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        threading.Thread(target=self._read, args=(self.popen,), daemon=True).start()

    def kill(self) -> float:
        """kill -9; returns when that was, after the process is gone."""
        at = time.time()
        self.signal(signal.SIGKILL)
        self._bury()
        return at

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self._bury()

    def wait_end(self) -> int:
        """Wait until the process ends by itself; its exit code."""
        return self._bury()

    def signal(self, number: signal.Signals) -> None:
        assert self.popen is not None
        self.popen.send_signal(number)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP, and SIGCONT in the end."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def close(self) -> None:
        """Leave nothing behind."""
        for client in self._clients:
            with contextlib.suppress(Exception):
                client.close()
        self._clients.clear()
        if self.popen is not None:
            self.popen.kill()
            self._bury()

    def _bury(self) -> int:
        assert self.popen is not None
        code = self.popen.wait(DEADLINE_S)
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_silent, DEADLINE_S)
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        return code

    def _read(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        with popen.stdout as output:
            for raw in output:
                text = raw.decode(errors="replace").rstrip("\n")
                with self._changed:
                    self.lines.append(Line(_time_of(text), text))
                    self._changed.notify_all()
        with self._changed:
            self._is_silent = True
            self._changed.notify_all()

    # What it says.

    def said(self, *parts: str, since: int | None = None) -> list[Line]:
        """Lines with all these parts, of the last start unless told otherwise."""
        first = self.started_at if since is None else since
        return [line for line in self.lines[first:] if all(part in line.text for part in parts)]

    def wait_for(self, *parts: str, since: int | None = None, seconds: float = DEADLINE_S) -> Line:
        """Wait until a line with all these parts is there; `since` is a number of lines."""
        with self._changed:
            self._changed.wait_for(lambda: self.said(*parts, since=since) or self._is_silent, seconds)
            found = self.said(*parts, since=since)
        assert found, f"{self} did not say {parts} within {seconds:g} s"
        return found[0]

    def wait_ready(self, seconds: float = DEADLINE_S) -> Line:
        """Wait until it takes clients."""
        return self.wait_for("accepting connections", seconds=seconds)

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    # What it answers.

    def _client(self) -> AdminClient:
        key = (self.view / "node.key").read_text().strip()
        return AdminClient(f"http://{self.host}:{ADMIN}", key=key, timeout=DEADLINE_S)

    def ctl(self, command: str, **arguments: Any) -> Any:
        """An administrative command, as `mirrormqctl` on this machine sends it."""
        with self._client() as client:
            return client.ctl(command, **arguments)

    def get(self, path: str) -> Any:
        """GET of a resource of the admin API."""
        with self._client() as client:
            return client.get(*path.split("/"))

    def post(self, path: str, body: Any) -> Any:
        """POST to a resource of the admin API."""
        with self._client() as client:
            return client.request("POST", *path.split("/"), body=body)

    def asked(self, command: str, **arguments: Any) -> Any:
        """As `ctl`; None if nothing answers, or the application does not run."""
        try:
            return self.ctl(command, **arguments)
        except (Unreachable, Refused, OSError):
            return None

    def status(self) -> dict[str, Any]:
        """`cluster_status`, empty if it cannot be had."""
        return self.asked("cluster_status") or {}

    def queues(self, vhost: str = "/") -> set[str]:
        """Names of the queues it knows."""
        return {row["name"] for row in self.ctl("list_queues", vhost=vhost)}

    # Clients.

    def connect(self, user: str = "guest", password: str = "guest", **options: Any) -> Any:
        """Log in with pika; closed in the end at the latest."""
        options.setdefault("heartbeat", 0)
        options.setdefault("socket_timeout", DEADLINE_S)
        parameters = pika.ConnectionParameters(
            self.host,
            AMQP,
            credentials=pika.PlainCredentials(user, password),
            connection_attempts=1,
            blocked_connection_timeout=DEADLINE_S,
            **options,
        )
        made = pika.BlockingConnection(parameters)
        self._clients.append(made)
        return made

    def channel(self, *, confirms: bool = True) -> Any:
        """A channel of a new connection."""
        made = self.connect().channel()
        if confirms:
            made.confirm_delivery()
        return made

    def raw(self, timeout: float = DEADLINE_S) -> RawClient:
        """A client that sends exactly what it is told, logged in, with channel 1 open."""
        made = connect(self.host, AMQP, timeout)
        try:
            made.handshake()
            made.open_channel(1)
        except BaseException:
            made.close()
            raise
        self._clients.append(made)
        return made

    def accepts(self) -> bool:
        """Does it take connections of clients?"""
        try:
            socket.create_connection((self.host, AMQP), timeout=DEADLINE_S).close()
        except (ConnectionRefusedError, ConnectionResetError):
            # Reset: the listener was closed while this connection waited to be accepted.
            return False
        return True


class Cluster:
    """The nodes of one cluster."""

    def __init__(self, folder: Path, names: Sequence[str], *, proxied: bool, settings: Sequence[str]) -> None:
        self.folder = folder
        self._claim, self._prefix = _claim()
        self.net = Net(lambda: {node.name: node.pid for node in self.nodes if node.popen is not None})
        self._port = FRONT if proxied else CLUSTER
        self.proxied = proxied
        self.settings = list(settings)
        self.nodes: list[Node] = []
        for name in names:
            self.add(name)
        listed = ",".join(f"{node.name}:{self._port}" for node in self.nodes)
        for node in self.nodes:
            node.settings.append(f"cluster_nodes={listed}")

    def __getitem__(self, place: int) -> Node:
        return self.nodes[place]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def add(self, name: str, *settings: str) -> Node:
        """One more node, which is listed nowhere."""
        host = f"{self._prefix}.{len(self.nodes) + 1}"
        own = [f"cluster_secret={SECRET}", *self.settings, *settings]
        if self.proxied:
            own.append(f"cluster_advertise={host}:{FRONT}")
        node = Node(name, host, self.folder / name, own)
        if self.proxied:
            self.net.stand_before(node.name, (host, FRONT), (host, CLUSTER))
        self.nodes.append(node)
        return node

    def start(self, *nodes: Node) -> None:
        """Start nodes, all of them if none is named, and wait until they take clients."""
        for node in nodes or self.nodes:
            node.start()
        self.wait_ready(*nodes)

    def wait_ready(self, *nodes: Node) -> None:
        """Wait until nodes, all of them if none is named, take clients."""
        for node in nodes or self.nodes:
            node.wait_ready()

    def wait_whole(self) -> Node:
        """Wait until all running nodes agree on a leader and see all members running; returns the leader."""
        running = [node for node in self.nodes if node.is_running]

        def whole() -> Node | None:
            leader = self._agreed(running)
            if leader is None:
                return None
            names = sorted(node.name for node in running)
            for node in running:
                status = node.status()
                if sorted(status.get("running_nodes", ())) != names or not _all_vote(status):
                    return None
            return leader

        return until(whole, f"{running} are one cluster: {[node.status() for node in running]}")

    def leader(self, *among: Node) -> Node:
        """Wait until some nodes, all running ones if none is named, agree on who leads; returns that one."""
        running = list(among) or [node for node in self.nodes if node.is_running]
        return until(lambda: self._agreed(running), f"{running} agree on a leader")

    def _agreed(self, nodes: list[Node]) -> Node | None:
        named = {node.status().get("leader", "") for node in nodes}
        found = [node for node in self.nodes if {node.name} == named and node.is_running]
        return found[0] if found else None

    def others(self, *out: Node) -> list[Node]:
        """All running nodes but these."""
        return [node for node in self.nodes if node.is_running and node not in out]

    def status_names(self) -> list[str]:
        """The members, as all running nodes agree."""
        (found,) = {tuple(node.status()["disk_nodes"]) for node in self.others()}
        return sorted(found)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.net.close()
        self._claim.close()


@contextlib.contextmanager
def cluster(
    folder: Path,
    names: int | Sequence[str] = 3,
    *,
    proxied: bool = False,
    settings: Sequence[str] = (),
    start: bool = True,
) -> Iterator[Cluster]:
    """A cluster for the length of a test."""
    listed = [f"n{number}" for number in range(1, names + 1)] if isinstance(names, int) else names
    made = Cluster(folder, listed, proxied=proxied, settings=settings)
    LATEST.append(made)
    try:
        if start:
            made.start()
            made.wait_whole()
        yield made
    finally:
        made.close()


LATEST: list[Cluster] = []
"""The clusters of this test, for the report of its failure."""


def _all_vote(status: dict[str, Any]) -> bool:
    return all(member["role"] == "voter" for member in status["members"])


def _time_of(text: str) -> float:
    try:
        return datetime.fromisoformat(text[:32]).timestamp()
    except ValueError:
        return 0.0


def _claim() -> tuple[socket.socket, str]:
    """Loopback addresses that no other cluster uses now, and the socket that keeps them so."""
    for attempt in range(1000):
        number = (os.getpid() * 7 + attempt) % (200 * 250)
        prefix = f"127.{20 + number // 250}.{number % 250}"
        claim = socket.socket()
        try:
            claim.bind((f"{prefix}.254", CLAIM))
            claim.listen(1)
        except OSError:
            claim.close()
        else:
            return claim, prefix
    raise AssertionError("no loopback addresses are left")


def declare(channel: Any, name: str, **options: Any) -> str:
    """A durable queue."""
    channel.queue_declare(name, durable=True, **options)
    return name


def dump(value: Any) -> str:
    """A value for a message of a failed test."""
    return json.dumps(value, indent=1, sort_keys=True, default=str)
