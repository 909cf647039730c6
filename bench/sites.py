"""Clusters of three nodes whose queues are mirrored, of either broker, driven in the same words.

Nodes are numbered from 0. `Ours` are processes as the tests start them, `Rabbit` are stock nodes from the
system's packages without plugins. Queues are mirrored by policies set while the cluster runs; what differs
between the brokers (how to ask who is the master, how to see that all mirrors are synchronised) is in here.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import re
import selectors
import signal
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from bench import machine
from mirrormq.wire import methods
from mirrormq.wire.properties import Properties, encode_properties
from mirrormq.wire.spec import CLASS_BASIC, FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.cluster import kit
from tests.support import rabbitmq
from tests.support.raw import RawClient, connect, encode_frame

CHANNEL = 1
NODES = 3
WAIT_S = 300.0
START_S = 900.0
ALL = {"ha-mode": "all", "ha-sync-mode": "automatic"}
POLICY = "bench"


class Site(Protocol):
    """A running cluster."""

    name: str

    def address(self, place: int) -> str:
        """Where a node takes AMQP: host:port."""
        ...

    def pid(self, place: int) -> int: ...

    def pids(self) -> list[int]:
        """Of the nodes that run."""
        ...

    def mirror(self, pattern: str) -> None:
        """Mirror the queues of these names to all nodes, synchronised automatically."""
        ...

    def unmirror(self) -> None: ...

    def master(self, queue: str) -> int: ...

    def leader(self) -> int:
        """The node that leads the agreement on definitions; -1 where there is no such thing."""
        ...

    def wait_synced(self, queue: str, mirrors: int, since: float) -> float:
        """Wait until so many mirrors are synchronised; when that was (wall time), not before `since`."""
        ...

    def kill(self, place: int) -> None:
        """kill -9, also if somebody else has done so."""
        ...

    def start(self, place: int) -> None:
        """Start a node again and wait until it takes clients."""
        ...

    def link_bytes(self, place: int) -> int:
        """Bytes a node has received over the connections to other nodes that are open now."""
        ...

    def log(self, place: int) -> str:
        """What a node has said since its last start."""
        ...

    def lapses(self, place: int) -> int:
        """How often a node could not act because its lease had run out; 0 where there is no such thing."""
        ...

    @property
    def names(self) -> list[str]: ...

    def wait_synced_empty(self, queue: str, mirrors: int) -> None:
        """Wait until a new queue has so many synchronised mirrors."""
        ...

    def settle(self) -> None:
        """Wait until all nodes run and know each other."""
        ...


def until(condition: Callable[[], Any], what: str, seconds: float = WAIT_S, pause: float = 0.02) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds:g} s: {what}")
        time.sleep(pause)
    return found


class Ours:
    """Three nodes of this clone."""

    name = "mirrormq"

    def __init__(self, cluster: kit.Cluster) -> None:
        self.cluster = cluster

    def address(self, place: int) -> str:
        return f"{self.cluster[place].host}:{kit.AMQP}"

    def pid(self, place: int) -> int:
        return self.cluster[place].pid

    def pids(self) -> list[int]:
        return [node.pid for node in self.cluster if node.is_running]

    def mirror(self, pattern: str) -> None:
        self._any().ctl(
            "set_policy", name=POLICY, pattern=pattern, definition=ALL, vhost="/", apply_to="queues"
        )

    def unmirror(self) -> None:
        self._any().ctl("clear_policy", name=POLICY, vhost="/")

    def master(self, queue: str) -> int:
        return self._place(str(self._row(queue)["master"]))

    def leader(self) -> int:
        return self._place(self.cluster.leader().name)

    def wait_synced(self, queue: str, mirrors: int, since: float) -> float:
        def synced() -> bool:
            return len(self._row(queue).get("in_sync", ())) > mirrors

        until(synced, f"{queue} has {mirrors} synchronised mirrors", pause=0.05)
        return max(time.time(), since)

    def kill(self, place: int) -> None:
        node = self.cluster[place]
        if node.is_running:
            node.kill()
        else:
            node.wait_end()

    def start(self, place: int) -> None:
        self.cluster.start(self.cluster[place])
        machine.boost(self.cluster[place].pid)

    def link_bytes(self, place: int) -> int:
        return received_bytes(self.pid(place), {kit.CLUSTER, kit.FRONT})

    def lapses(self, place: int) -> int:
        address = f"http://{self.cluster[place].host}:{kit.ADMIN}/metrics"
        login = {"Authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"}
        with urllib.request.urlopen(urllib.request.Request(address, headers=login)) as answer:
            found = re.search(r"^mirrormq_lease_lapses_total (\d+)", answer.read().decode(), re.MULTILINE)
        return int(found[1]) if found else 0

    def log(self, place: int) -> str:
        node = self.cluster[place]
        return "\n".join(line.text for line in node.lines[node.started_at :])

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.cluster]

    def wait_synced_empty(self, queue: str, mirrors: int) -> None:
        self.wait_synced(queue, mirrors, 0)

    def settle(self) -> None:
        self.cluster.wait_whole()

    def _any(self) -> kit.Node:
        return next(node for node in self.cluster if node.is_running)

    def _place(self, name: str) -> int:
        return [node.name for node in self.cluster].index(name)

    def _row(self, queue: str) -> dict[str, Any]:
        rows = self._any().ctl("list_queues", vhost="/")
        return next((row for row in rows if row["name"] == queue), {})


class Rabbit:
    """Three stock nodes of RabbitMQ."""

    name = "rabbitmq"

    def __init__(self, nodes: list[rabbitmq.RabbitMQ]) -> None:
        self.nodes = nodes
        self._down: set[int] = set()

    def address(self, place: int) -> str:
        return f"127.0.0.1:{self.nodes[place].port}"

    def pid(self, place: int) -> int:
        return self.nodes[place].pid

    def pids(self) -> list[int]:
        return [node.pid for place, node in enumerate(self.nodes) if place not in self._down]

    def mirror(self, pattern: str) -> None:
        definition = '{"ha-mode":"all","ha-sync-mode":"automatic"}'
        self._ctl("set_policy", POLICY, pattern, definition, "--apply-to", "queues")

    def unmirror(self) -> None:
        self._ctl("clear_policy", POLICY)

    def master(self, queue: str) -> int:
        rows = [line.split("\t") for line in self._ctl("list_queues", "name", "pid").splitlines()]
        pid = next(row[1] for row in rows if row[0] == queue)
        return next(place for place, node in enumerate(self.nodes) if node.name in pid)

    def leader(self) -> int:
        return -1

    def wait_synced(self, queue: str, mirrors: int, since: float) -> float:
        # By the logs: each question by rabbitmqctl would cost more than a second of the cores.
        wanted = re.compile(
            rf"^(\S+ \S+) .*queue '{re.escape(queue)}' in vhost '/': Synchronising: (complete|all mirrors)",
            re.MULTILINE,
        )

        def done() -> float:
            times = [
                datetime.datetime.fromisoformat(found[1]).timestamp()
                for place in range(len(self.nodes))
                if place not in self._down
                for found in wanted.finditer(self.log(place))
            ]
            return max((at for at in times if at >= since), default=0.0)

        at: float = until(done, f"{queue} is synchronised", pause=0.2)
        until(lambda: self._synchronised(queue) >= mirrors, f"{queue} has {mirrors} mirrors", pause=1)
        return at

    def kill(self, place: int) -> None:
        self.nodes[place].end_server(signal.SIGKILL, 30)
        self._down.add(place)

    def start(self, place: int) -> None:
        node = self.nodes[place]
        self._log_path(place).unlink(missing_ok=True)
        node.spawn_server()
        # With thousands of mirrored queues that takes minutes.
        node.wait(START_S)
        self._down.discard(place)
        machine.boost(node.pid)

    def link_bytes(self, place: int) -> int:
        return received_bytes(self.pid(place), {node.dist_port for node in self.nodes})

    def lapses(self, place: int) -> int:  # noqa: ARG002
        return 0

    def log(self, place: int) -> str:
        path = self._log_path(place)
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.nodes]

    def wait_synced_empty(self, queue: str, mirrors: int) -> None:
        until(lambda: self._synchronised(queue) >= mirrors, f"{queue} has {mirrors} mirrors", pause=0.5)

    def settle(self) -> None:
        def whole() -> bool:
            return all(self._ctl("cluster_status").count(node.name) > 2 for node in self.nodes)

        until(whole, "all nodes run", pause=1)

    def _log_path(self, place: int) -> Path:
        node = self.nodes[place]
        return node.folder / "log" / f"{node.name}.log"

    def _ctl(self, *words: str) -> str:
        place = next(place for place in range(len(self.nodes)) if place not in self._down)
        return self.nodes[place].ctl(*words)

    def _synchronised(self, queue: str) -> int:
        for line in self._ctl("list_queues", "name", "synchronised_slave_pids").splitlines():
            name, _, pids = line.partition("\t")
            if name == queue:
                return pids.count("<")
        return 0


def opened(address: str) -> RawClient:
    """A client with a channel."""
    host, _, port = address.rpartition(":")
    client = connect(host, int(port), WAIT_S)
    client.handshake()
    client.open_channel(CHANNEL)
    return client


def declare(address: str, queue: str) -> None:
    """A durable queue, whose master is the node at this address."""
    client = opened(address)
    client.call(CHANNEL, methods.QueueDeclare(queue=queue, durable=True), methods.QueueDeclareOk)
    client.close_cleanly()


def delete(address: str, queue: str) -> None:
    client = opened(address)
    client.call(CHANNEL, methods.QueueDelete(queue=queue), methods.QueueDeleteOk)
    client.close_cleanly()


def declare_all(address: str, queues: Sequence[str], clients: int = 50) -> None:
    """Durable queues over this many connections, each waiting for its answer before the next."""
    connections = [opened(address) for _ in range(clients)]
    frames = [
        encode_frame(FRAME_METHOD, CHANNEL, methods.encode(methods.QueueDeclare(queue=queue, durable=True)))
        for queue in queues
    ]
    left, answered = iter(frames), 0
    with selectors.DefaultSelector() as waiting:
        for client, frame in zip(connections, left, strict=False):
            waiting.register(client.sock, selectors.EVENT_READ, client)
            client.send(frame)
        while answered < len(frames):
            for key, _ in waiting.select():
                key.data.expect(CHANNEL, methods.QueueDeclareOk)
                answered += 1
                if (frame := next(left, b"")) != b"":
                    key.data.send(frame)
    for client in connections:
        client.close_cleanly()


class Burst:
    """A client that publishes one persistent message to each of many queues and waits for all confirms."""

    def __init__(self, address: str, queues: Sequence[str]) -> None:
        self._client = opened(address)
        self._client.call(CHANNEL, methods.ConfirmSelect(), methods.ConfirmSelectOk)
        self._count = len(queues)
        properties = encode_properties(Properties(delivery_mode=2))
        head = struct.pack(">HHQ", CLASS_BASIC, 0, 4) + properties
        content = encode_frame(FRAME_HEADER, CHANNEL, head) + encode_frame(FRAME_BODY, CHANNEL, b"many")
        self._bytes = b"".join(
            encode_frame(FRAME_METHOD, CHANNEL, methods.encode(methods.BasicPublish(routing_key=queue)))
            + content
            for queue in queues
        )
        self.first_at = self.last_at = 0.0
        self.nacks = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def publish(self) -> float:
        """Seconds until the last answer; `first_at` and `last_at` are when answers came."""
        began = time.monotonic()
        self._client.send(self._bytes)
        open_tags = set(range(1, self._count + 1))
        while open_tags:
            answer = self._client.next_frame().method
            assert isinstance(answer, methods.BasicAck | methods.BasicNack), answer
            self.last_at = time.monotonic()
            self.first_at = self.first_at or self.last_at
            tag = answer.delivery_tag
            answered = {one for one in open_tags if one <= tag} if answer.multiple else {tag}
            open_tags -= answered
            if isinstance(answer, methods.BasicNack):
                self.nacks += len(answered)
        return self.last_at - began


def received_bytes(pid: int, ports: set[int]) -> int:
    """Bytes received over the open connections of a process from or to these ports."""
    found = subprocess.run(["ss", "-tinpHO"], capture_output=True, text=True, check=True).stdout
    total = 0
    for line in found.splitlines():
        words = line.split()
        ends = {int(end.rpartition(":")[2]) for end in words[3:5]}
        counted = re.search(r"bytes_received:(\d+)", line)
        if f"pid={pid}," in line and ends & ports and counted:
            total += int(counted[1])
    return total


@contextlib.contextmanager
def running(kinds: list[str], folder: Path) -> Iterator[list[Site]]:
    """All of them at once, so that runs can be interleaved."""
    with contextlib.ExitStack() as stack:
        made: list[Site] = []
        if "rabbitmq" in kinds:
            made.append(Rabbit(stack.enter_context(rabbitmq.cluster(NODES))))
        if "mirrormq" in kinds:
            made.append(Ours(stack.enter_context(kit.cluster(folder / "ours", NODES))))
        for site in made:
            for pid in site.pids():
                machine.boost(pid)
        yield made
