"""Several brokers for tests that kill, stop, pause and start single ones: `cluster(nodes=3)`.

Guarantee: as of one broker, nothing is left behind, whatever happened to the tests. A cluster has a loopback
address of its own, made of this process's number: its ports are free without asking, and are still free when
a killed node is started again, because nobody else on this machine has a reason to bind that address.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mirrormq.runtime.localcluster import LocalNode, listed, local_nodes
from mirrormq.testing.broker import START_SECONDS, BrokerError, BrokerProcess, Place

FIRST_PORT = 5672
PORTS_PER_CLUSTER = 10
CLUSTERS_MAX = 2_000
"""After so many clusters in one process the ports of the first are taken again."""

_numbers = itertools.count()


class ClusterNode:
    """One node of a cluster, seen through one virtual host. Its ports and its data stay while it is down."""

    def __init__(self, cluster: Cluster, member: Member) -> None:
        self._cluster = cluster
        self._member = member

    @property
    def name(self) -> str:
        """Its name as the cluster knows it: mirrormq-1@..."""
        return self._member.local.name

    @property
    def host(self) -> str:
        """Where it takes AMQP."""
        return self._member.local.host

    @property
    def port(self) -> int:
        """Where it takes AMQP."""
        return self._member.local.port

    @property
    def url(self) -> str:
        """The address for clients: amqp://user:password@host:port/vhost. It is the same after a restart."""
        user, password = self._cluster.user, self._cluster.password
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return f"amqp://{login}@{self.host}:{self.port}/{quote(self._cluster.vhost, safe='')}"

    @property
    def admin_url(self) -> str | None:
        """Address of its HTTP admin API, if it was asked for."""
        return f"http://{self.host}:{self._member.local.ports[1]}" if self._member.admin else None

    @property
    def is_running(self) -> bool:
        """Whether it has a process, be it paused."""
        return self._member.is_running

    @property
    def pid(self) -> int:
        """Its process."""
        return self._member.running().pid

    @property
    def log(self) -> str:
        """What it has written to its log since its first start."""
        return (self._member.local.folder / "broker.log").read_text(encoding="utf-8", errors="replace")

    def ask(self, command: str, **arguments: Any) -> Any:
        """Carry out an administrative request on this node."""
        return self._member.running().ask(command, **arguments)

    def kill(self) -> None:
        """End it as a crash does (SIGKILL)."""
        self._member.end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order."""
        self._member.end(signal.SIGTERM)

    def start(self) -> None:
        """Start it again with its data, and wait until it is ready."""
        self._member.start()
        self._member.running().wait_until_ready()

    def restart(self) -> None:
        """Stop it in order and start it again."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): it neither answers nor ends its connections."""
        self._member.running().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._member.running().signal(signal.SIGCONT)


class Cluster:
    """Running nodes, seen through one virtual host."""

    def __init__(self, members: Sequence[Member], vhost: str, user: str, password: str) -> None:
        self._members = tuple(members)
        self.vhost = vhost
        self.user = user
        self.password = password
        self.nodes = tuple(ClusterNode(self, member) for member in members)

    @property
    def urls(self) -> list[str]:
        """The addresses of all nodes, the running ones and the others."""
        return [node.url for node in self.nodes]

    def ask(self, command: str, **arguments: Any) -> Any:
        """Carry out an administrative request on the first node that runs."""
        for node in self.nodes:
            if node.is_running:
                return node.ask(command, **arguments)
        raise BrokerError(f"{command}: no node runs")

    def start_all(self) -> None:
        """Start what does not run, all at once, and let go on what is paused."""
        down = [member for member in self._members if not member.is_running]
        for node in self.nodes:
            if node.is_running:
                node.resume()
        for member in down:
            member.start()
        for member in down:
            member.running().wait_until_ready()

    @contextlib.contextmanager
    def fresh_vhost(self, name: str) -> Iterator[Cluster]:
        """A virtual host of this name that every node knows; gone afterwards, and all nodes run again."""
        # Asked of every node, so that none of them can be behind when a client comes.
        for node in self.nodes:
            node.ask("add_vhost", name=name, actor=self.user)
        try:
            yield Cluster(self._members, name, self.user, self.password)
        finally:
            self.start_all()
            for node in self.nodes:
                try:
                    node.ask("delete_vhost", name=name)
                except BrokerError as error:
                    if "no_such_vhost" not in str(error):
                        raise


class Member:
    """One node and its process, if it has one."""

    def __init__(self, local: LocalNode, root: Path, config: Sequence[str], *, admin: bool) -> None:
        self.local = local
        self.admin = admin
        self._process: BrokerProcess | None = None
        self._config = config
        at = f"{local.host}:{local.ports[1]}"
        self._place = Place(root, local.folder, local.name, f"{local.host}:{local.port}", at)

    @property
    def is_running(self) -> bool:
        """Whether there is a process; one that ended by itself is buried."""
        if self._process is not None and not self._process.is_alive:
            self._process.bury()
            self._process = None
        return self._process is not None

    def start(self) -> None:
        """Start the process, and do not wait for it."""
        if self.is_running:
            raise BrokerError(f"{self.local.name} runs already")
        self._process = BrokerProcess(self._config, admin=self.admin, place=self._place)

    def running(self) -> BrokerProcess:
        """The process, or a complaint."""
        if self._process is None:
            raise BrokerError(f"{self.local.name} does not run")
        return self._process

    def end(self, number: signal.Signals) -> None:
        """End the process and wait until it is gone."""
        process = self.running()
        process.signal(number)
        # One that is paused would not hear of anything but the hardest signal.
        process.signal(signal.SIGCONT)
        process.bury()
        self._process = None


@contextlib.contextmanager
def cluster(nodes: int = 3, config: Sequence[str] = (), *, admin: bool = False) -> Iterator[Cluster]:
    """A cluster of its own on this machine; `config` are lines of rabbitmq.conf for every node."""
    root = Path(tempfile.mkdtemp(prefix="mirrormq-test-"))
    base = FIRST_PORT + next(_numbers) % CLUSTERS_MAX * PORTS_PER_CLUSTER
    local = local_nodes(nodes, base, root, own_address(os.getpid()))
    shared = [f"cluster_nodes = {listed(local)}", f"cluster_secret = {secrets.token_hex(16)}"]
    members = [
        Member(node, root, [*shared, f"cluster_listen = {node.cluster_listen}", *config], admin=admin)
        for node in local
    ]
    try:
        made = Cluster(members, "/", "guest", "guest")
        made.start_all()
        _wait_until_all_vote(made)
        first = members[0].running().broker()
        yield Cluster(members, "/", first.user, first.password)
    finally:
        for member in members:
            if member.is_running:
                member.end(signal.SIGKILL)
        shutil.rmtree(root, ignore_errors=True)


def _wait_until_all_vote(made: Cluster) -> None:
    """A node is ready a moment before it has a vote: one killed until then would take the majority along."""
    deadline = time.monotonic() + START_SECONDS
    pause = threading.Event()
    for node in made.nodes:
        while (roles := {member["role"] for member in node.ask("cluster_status")["members"]}) != {"voter"}:
            if time.monotonic() >= deadline:
                raise BrokerError(f"not every node has a vote after {START_SECONDS:g} s: {roles}\n{node.log}")
            pause.wait(0.01)


def own_address(process: int) -> str:
    """A loopback address that no other process of this machine uses."""
    return f"127.{64 + (process >> 16) % 64}.{(process >> 8) & 255}.{process & 255}"
