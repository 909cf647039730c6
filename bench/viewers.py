"""What watching costs:  python -m bench.viewers --queues 10000 --connections 1000 --viewers 10

A cluster with many queues and idle connections. First how long the first page of each list takes, and how
long a person in front of a browser waits for the list of queues. Then the CPU of the node that is watched:
with nobody, with viewers that follow what the pages of the web UI follow (some the same page, some others),
and with Prometheus beside them. At last a small request goes round all the time: how long the slowest one
took bounds how long the loop was held by anything.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import selectors
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench import inbrowser, machine
from tests.cluster import kit
from tests.cluster.kit import ADMIN, AMQP, Node
from tests.support import raw

ROUNDS = 5
RATE = 50
"""Messages per second meanwhile."""
IMPORTED = 500
"""Queues declared by one request."""
COLUMNS = (
    "name,vhost,durable,auto_delete,exclusive,arguments,node,policy,operator_policy,"
    "effective_policy_definition,state,messages,messages_ready,messages_unacknowledged,consumers,slave_nodes,"
    "synchronised_slave_nodes,sync_progress,message_stats.publish_details.rate,"
    "message_stats.deliver_get_details.rate,message_stats.ack_details.rate"
)
SAMPLES = "lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5"
FIRST_PAGE = f"queues?page=1&page_size=100&columns={COLUMNS}"
QUEUE = "queues/%2F/q-00042"
WATCHED: tuple[tuple[str, ...], ...] = (
    (f"overview?{SAMPLES}", "nodes"),
    (f"overview?{SAMPLES}", "nodes"),
    (f"overview?{SAMPLES}", "nodes"),
    (FIRST_PAGE,),
    (FIRST_PAGE,),
    (f"queues?page=7&page_size=100&columns={COLUMNS}",),
    (f"{QUEUE}?{SAMPLES}", f"mirrormq/{QUEUE}/view", "mirrormq/timeline?limit=30&vhost=%2F&queue=q-00042"),
    (f"{QUEUE}?{SAMPLES}", f"mirrormq/{QUEUE}/view", "mirrormq/timeline?limit=30&vhost=%2F&queue=q-00042"),
    ("connections?page=1&page_size=100",),
    ("mirrormq/timeline?limit=100", "mirrormq/cluster"),
)
"""What ten people look at."""

SCRAPED = ("/metrics", "/metrics/per-object")
SCRAPE_S = 15.0
"""How often Prometheus asks unless told otherwise."""

LISTS = {
    "queues": FIRST_PAGE,
    "queues by messages": f"{FIRST_PAGE}&sort=messages&sort_reverse=true",
    "queues by publish rate": f"{FIRST_PAGE}&sort=message_stats.publish_details.rate&sort_reverse=true",
    "queues by state": f"{FIRST_PAGE}&sort=state",
    "queues by name filter": f"{FIRST_PAGE}&name=q-000",
    "connections": "connections?page=1&page_size=100",
    "connections by octets": "connections?page=1&page_size=100&sort=recv_oct&sort_reverse=true",
    "channels": "channels?page=1&page_size=100",
    "bindings": "bindings?page=1&page_size=100",
    "consumers": "consumers?page=1&page_size=100",
    "exchanges": "exchanges?page=1&page_size=100",
    "overview": "overview",
}


class Session:
    """A log-in of the UI."""

    def __init__(self, node: Node) -> None:
        self.host = node.host
        basic = base64.b64encode(b"guest:guest").decode()
        self._headers = {"Authorization": f"Basic {basic}"}
        self._headers = {"Authorization": f"Bearer {self.ask('POST', 'mirrormq/session')['token']}"}

    def ask(self, verb: str, path: str) -> Any:
        connection = http.client.HTTPConnection(self.host, ADMIN, timeout=60)
        connection.request(verb, f"/api/{path}", headers=self._headers)
        body = connection.getresponse().read()
        connection.close()
        return json.loads(body)

    def scrape(self, path: str) -> int:
        """Octets of what Prometheus gets there."""
        connection = http.client.HTTPConnection(self.host, ADMIN, timeout=60)
        connection.request("GET", path, headers=self._headers)
        size = len(connection.getresponse().read())
        connection.close()
        return size

    def follow(self, topics: tuple[str, ...]) -> socket.socket:
        """Open a stream; what it says is there to be read."""
        found = socket.create_connection((self.host, ADMIN), timeout=10)
        query = "&".join(f"topics={quote(topic, safe='')}" for topic in topics)
        lines = [f"GET /api/mirrormq/stream?{query} HTTP/1.1", f"Host: {self.host}"]
        lines += [f"{name}: {value}" for name, value in self._headers.items()]
        found.sendall("\r\n".join((*lines, "", "")).encode())
        return found


class Pulse(threading.Thread):
    """A small request, again and again."""

    def __init__(self, session: Session) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._ended = threading.Event()
        self.times: list[float] = []

    def run(self) -> None:
        while not self._ended.wait(0.01):
            began = time.perf_counter()
            self._session.ask("GET", "mirrormq/session")
            self.times.append(time.perf_counter() - began)

    def end(self) -> tuple[float, float]:
        """The middle and the slowest, in milliseconds."""
        self._ended.set()
        self.join()
        ordered = sorted(self.times)
        return ordered[len(ordered) // 2] * 1000, ordered[-1] * 1000


class Scraper(threading.Thread):
    """Prometheus: all metrics, again and again."""

    def __init__(self, session: Session, every: float) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._every = every
        self._ended = threading.Event()
        self.seen: dict[str, list[tuple[float, int]]] = {path: [] for path in SCRAPED}
        """Seconds and octets."""

    def run(self) -> None:
        while True:
            for path, seen in self.seen.items():
                began = time.perf_counter()
                size = self._session.scrape(path)
                seen.append((time.perf_counter() - began, size))
            if self._ended.wait(self._every):
                return

    def end(self) -> None:
        self._ended.set()
        self.join()


class Traffic(threading.Thread):
    """Messages for one queue after the other, slowly: figures change all the time."""

    def __init__(self, node: Node, queues: int) -> None:
        super().__init__(daemon=True)
        self._channel = node.channel(confirms=False)
        self._queues = queues
        self._ended = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._ended.wait(1 / RATE):
            number += 1
            self._channel.basic_publish("", f"q-{number * 7 % self._queues:05}", b"x" * 100)

    def end(self) -> None:
        self._ended.set()
        self.join()


def prepare(nodes: list[Node], queues: int, connections: int) -> list[raw.RawClient]:
    """Queues through a definition file, and idle connections with a channel each."""
    rows = [
        {"name": f"q-{number:05}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for number in range(queues)
    ]
    nodes[0].ctl(
        "set_policy",
        vhost="/",
        name="two",
        pattern="^q-",
        definition={"ha-mode": "exactly", "ha-params": 2, "queue-master-locator": "min-masters"},
        apply_to="queues",
    )
    for first in range(0, queues, IMPORTED):
        nodes[0].post("definitions", {"queues": rows[first : first + IMPORTED]})
    clients = []
    for number in range(connections):
        client = raw.connect(nodes[number % len(nodes)].host, AMQP, 30)
        client.handshake()
        client.open_channel(1)
        clients.append(client)
    return clients


def watch(session: Session, viewers: int, seconds: float, pid: int) -> tuple[float, int]:
    """Percent of a core while so many look, and bytes they got."""
    streams = [session.follow(WATCHED[number % len(WATCHED)]) for number in range(viewers)]
    chosen = selectors.DefaultSelector()
    for stream in streams:
        chosen.register(stream, selectors.EVENT_READ)
    got = 0
    share = 0.0
    for length, is_counted in ((5.0, False), (seconds, True)):
        cpu, began = machine.cpu_s(pid), time.monotonic()
        while (left := began + length - time.monotonic()) > 0:
            for key, _ in chosen.select(left):
                size = len(key.fileobj.recv(1 << 18))  # type: ignore[union-attr]
                got += size if is_counted else 0
        share = (machine.cpu_s(pid) - cpu) / (time.monotonic() - began) * 100
    for stream in streams:
        stream.close()
    return share, got


def watching(given: argparse.Namespace, session: Session, pid: int) -> None:
    """What it costs that somebody looks."""
    cpu, began = machine.cpu_s(pid), time.monotonic()
    time.sleep(given.seconds)
    nobody = (machine.cpu_s(pid) - cpu) / (time.monotonic() - began) * 100
    share, got = watch(session, given.viewers, given.seconds, pid)
    print(f"nobody watches: {nobody:.1f} % of a core; {given.viewers} viewers: {share:.1f} %,")
    print(f"so they cost {share - nobody:.1f} %; they got {got / given.seconds / 1000:.0f} kB/s in all")
    scraper, pulse = Scraper(session, given.scrape), Pulse(session)
    scraper.start()
    share, _ = watch(session, given.viewers, given.seconds, pid)
    print(f"the same and Prometheus every {given.scrape:.0f} s: {share:.1f} %")
    pulse.start()
    watch(session, given.viewers, given.seconds / 2, pid)
    middle, slowest = pulse.end()
    scraper.end()
    for path, seen in scraper.seen.items():
        slow, size = max(seen)
        print(f"{path}: {size / 1000:.0f} kB, the slowest of {len(seen)} {slow * 1000:.0f} ms")
    print(f"a small request meanwhile: {middle:.1f} ms, the slowest {slowest:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description="What watching costs")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument(
        "--scrape", type=float, default=SCRAPE_S, help="seconds between two looks of Prometheus"
    )
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="viewers-") as folder,
        kit.cluster(Path(folder), given.nodes, settings=("events=on", "samples=off")) as made,
    ):
        clients = prepare(made.nodes, given.queues, given.connections)
        watched = made[0]
        session = Session(watched)
        machine.wait_until_quiet(watched.pid, 2)
        for name, path in LISTS.items():
            times = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                session.ask("GET", path)
                times.append((time.perf_counter() - began) * 1000)
            print(f"{name}: {sorted(times)[ROUNDS // 2]:.0f} ms (slowest {max(times):.0f} ms)", flush=True)
        print("\n".join(inbrowser.measure(made)), flush=True)
        traffic = Traffic(made.nodes[-1], given.queues)
        traffic.start()
        watching(given, session, watched.pid)
        traffic.end()
        for client in clients:
            client.close()


if __name__ == "__main__":
    main()
