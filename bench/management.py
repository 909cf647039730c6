"""How long the API takes and holds the loop:  python -m bench.management --queues 10000 --connections 1000

A node with so many queues and connections (each with a channel and a consumer) is asked for the first page of
every list, for whole lists, sorted and filtered ones, for what the web UI and Prometheus ask for, and for
changes that concern all queues. Printed are of each request the median and the longest time of an answer, and
how long one callback kept the loop at most: median and maximum over the rounds, in CPU time, since other
processes must not count (bench/holds.py). Python's collector and what the node does every second by itself
are told apart from that. Where the machine is a guest, time that its host took away looks like CPU time: a
long callback during which the count of that grew is left out, and how many there were is told. Not all of it
is counted by the host, so before and after all of this equal pieces of work are measured, too
(bench/stalls.py): a hold is ours if it comes back with requests of its kind, or if there are more of them
per CPU second than equal pieces of work have.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench import brokers, machine, stalls
from bench.holds import HOLD_MS_MAX, Holds, Watch
from mirrormq.wire import methods
from tests.support import raw

CHANNEL = 1
PAGE_MS_MAX = 300.0
IDLE_S = 10.0
STALLS_S = 10.0
Asked = tuple[str, str, Any]
"""Verb, path below /api/ or from the root, body."""
PAGE = "page=1&page_size=100"
LISTS = (
    "queues",
    "queues/%2F",
    "exchanges",
    "bindings",
    "connections",
    "channels",
    "consumers",
    "vhosts",
    "users",
)
PAGES = [
    *(f"{path}?{PAGE}" for path in LISTS),
    f"queues?{PAGE}&sort=messages&sort_reverse=true",
    f"queues?{PAGE}&name=9&use_regex=false",
    f"queues?{PAGE}&name=^many-.*7$&use_regex=true&sort=name",
    f"queues?{PAGE}&name=(m|ma|an|any|[-a-z0-9])%2Bx$&use_regex=true",
    f"queues?{PAGE}&name=(.*)*(.*)*(.*)*x$&use_regex=true",
    f"connections?{PAGE}&name=^(([0-9]%2B[.:]?)%2B.*)%2Bx$&use_regex=true",
    f"queues?{PAGE}&columns=name,messages,message_stats.publish",
    f"connections?{PAGE}&sort=recv_oct&sort_reverse=true",
    f"channels?{PAGE}&sort=name",
    f"mirrormq/sync?{PAGE}",
    f"mirrormq/cursors?{PAGE}",
]
OTHERS = [
    "overview",
    "overview?lengths_age=600&lengths_incr=5&msg_rates_age=600&msg_rates_incr=5",
    "nodes",
    "vhosts/%2F",
    "queues/%2F/many-7",
    "queues/%2F/many-7?lengths_age=600&lengths_incr=5&msg_rates_age=600&msg_rates_incr=5",
    "queues/%2F/many-7/bindings",
    "exchanges/%2F/amq.topic",
    "exchanges/%2F/amq.topic/bindings/source",
    "mirrormq/queues/%2F/many-7/view",
    "mirrormq/queues/%2F/many-7/messages",
    "mirrormq/cluster",
    "mirrormq/timeline",
    "mirrormq/pipelines",
    "permissions",
    "policies",
    "parameters",
    "feature-flags",
    "whoami",
    "openapi.json",
    "health/checks/virtual-hosts",
    "health/checks/node-is-mirror-sync-critical",
    "/metrics",
]
WHOLE = [
    "queues",
    "exchanges",
    "bindings",
    "connections",
    "channels",
    "consumers",
    "definitions",
    "definitions/%2F",
    "/metrics/per-object",
    "/metrics/detailed?family=queue_coarse_metrics&family=queue_metrics",
]
POLICY = {"pattern": "^many-", "definition": {"max-length": 100_000}, "apply-to": "queues"}
DURABLE = {"durable": True}
CHANGES: list[Asked] = [
    ("PUT", "policies/%2F/all", POLICY),
    ("PUT", "policies/%2F/all", POLICY | {"priority": 2}),
    ("DELETE", "policies/%2F/all", None),
    ("PUT", "queues/%2F/further", DURABLE),
    ("POST", "bindings/%2F/e/amq.topic/q/further", {"routing_key": "k.further"}),
    ("DELETE", "queues/%2F/further", None),
    ("PUT", "vhosts/further", {}),
    ("DELETE", "vhosts/further", None),
    ("PUT", "users/further", {"password": "secret", "tags": ""}),
    ("PUT", "permissions/%2F/further", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("DELETE", "users/further", None),
    ("POST", "definitions", {"queues": [{"name": "many-7", "vhost": "/", **DURABLE}]}),
]
"""Each ends where it began, so that they can be repeated in turn."""


SMALL, KIB, BOUNDED = "kept-small", "kept-kib", "kept-bounded"
KEPT = {SMALL: (10_000, 10), KIB: (100, 1_024)}
"""Queues with so many messages of so many bytes."""


def _got(queue: str, count: int, **more: Any) -> Asked:
    wanted = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto", **more}
    return ("POST", f"queues/%2F/{queue}/get?count={count}", wanted)


def _published(size: int, encoding: str) -> Asked:
    payload = "x" * size if encoding == "string" else base64.b64encode(b"x" * size).decode()
    body = {"routing_key": BOUNDED, "payload": payload, "payload_encoding": encoding, "properties": {}}
    return ("POST", f"exchanges/%2F/amq.default/publish?{encoding}={size}", body)


MESSAGES: list[Asked] = [
    _got(KIB, 100),
    _got(SMALL, 10_000),
    _got(SMALL, 500, **{"from": "tail"}),
    ("GET", f"mirrormq/queues/%2F/{KIB}/messages?count=100", None),
    _published(1_024, "string"),
    _published(1_024 * 1_024, "string"),
    _published(1_024 * 1_024, "base64"),
]


def heavy(queues: int) -> list[Asked]:
    """Requests that are about as many objects as there are: a vhost is filled, and deleted with all of it."""
    names = [f"more-{number}" for number in range(queues)]
    made = [{"name": name, "vhost": "further", **DURABLE} for name in names]
    return [
        ("PUT", "vhosts/further", {}),
        ("PUT", "permissions/further/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("POST", "definitions", {"queues": made}),
        ("DELETE", "vhosts/further", None),
    ]


class Measured(NamedTuple):
    """What came of one request."""

    asked: Asked
    times: list[float]
    holds: list[Holds]
    size: int


# --- the node -----------------------------------------------------------------------------------------------


def node(argv: list[str]) -> int:
    """A node that is watched; ends when standard input does."""
    from mirrormq.runtime import main

    sys.modules["uvloop"] = None  # type: ignore[assignment]
    Watch().install()
    return main.serve(argv)


@contextlib.contextmanager
def watched_node() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The node's process, and what it announced."""
    with tempfile.TemporaryDirectory(prefix="bench-management-") as folder:
        words = [sys.executable, "-m", "bench.management", "--node", "--data", f"{folder}/data"]
        words += ["--listen", "127.0.0.1:0", "--set", "management.tcp.port=0"]
        words += ["--set", "management.tcp.ip=127.0.0.1", "--set", "log.default.level=error"]
        made = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            file = Path(folder) / "data" / "node.json"
            pause = threading.Event()
            while not file.exists() or not (found := json.loads(file.read_text()))["amqp"]:
                pause.wait(0.05)
            yield made, found
        finally:
            made.kill()
            made.wait()


# --- what is asked ------------------------------------------------------------------------------------------


class Asker:
    """Asks the API, and the watch."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        host, port = url.rpartition("/")[2].split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=120)
        token = base64.b64encode(b"guest:guest").decode()
        self._headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}

    def request(self, verb: str, path: str, body: Any = None) -> bytes:
        """The body of an answer."""
        data = None if body is None else json.dumps(body)
        target = path if path.startswith("/") else f"/api/{path}"
        self._connection.request(verb, target, data, self._headers)
        answer = self._connection.getresponse()
        found = answer.read()
        assert answer.status < 400, (path, answer.status, found[:300])
        return found

    def worst(self) -> Holds:
        """What held the loop since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Holds(*json.loads(self._process.stdout.readline()))

    def measure(self, asked: list[Asked], rounds: int) -> list[Measured]:
        """Several answers of each, one after the other; the first of all are not counted."""
        found = [Measured(one, [], [], 0) for one in asked]
        for number in range(rounds + 1):
            for place, one in enumerate(found):
                self.worst()
                began = time.perf_counter()
                size = len(self.request(*one.asked))
                took = (time.perf_counter() - began) * 1000
                hold = self.worst()
                if number:
                    one.times.append(took)
                    one.holds.append(hold)
                    found[place] = one._replace(size=size)
        return found


def furnish(asker: Asker, port: int, queues: int, connections: int) -> list[raw.RawClient]:
    """Queues with bindings, connections with a channel and a consumer each."""
    arguments = {"arguments": {}, "vhost": "/"}
    names = [f"many-{number}" for number in range(queues)]
    made = [{"name": name, "durable": True, "auto_delete": False, **arguments} for name in names]
    bound = [
        {
            "source": "amq.topic",
            "destination": name,
            "destination_type": "queue",
            "routing_key": f"k.{name}",
            **arguments,
        }
        for name in names[: queues // 2]
    ]
    asker.request("POST", "definitions", {"queues": made, "bindings": bound})
    bounded = {"arguments": {"x-max-length": 3}, "vhost": "/", "durable": True, "auto_delete": False}
    kept = [{**bounded, "name": name, "arguments": {}} for name in KEPT]
    asker.request("POST", "definitions", {"queues": [*kept, {**bounded, "name": BOUNDED}]})
    fill(port)
    clients = []
    for number in range(connections):
        client = raw.connect("127.0.0.1", port)
        client.handshake()
        client.open_channel(CHANNEL)
        wanted = methods.BasicConsume(queue=names[number % len(names)])
        client.call(CHANNEL, wanted, methods.BasicConsumeOk)
        clients.append(client)
    return clients


def fill(port: int) -> None:
    """Messages to be got by hand; there when this returns."""
    client = raw.connect("127.0.0.1", port)
    client.handshake()
    client.open_channel(CHANNEL)
    for name, (count, size) in KEPT.items():
        for _ in range(count):
            client.publish(CHANNEL, methods.BasicPublish(routing_key=name), b"x" * size)
        client.call(CHANNEL, methods.QueueDeclare(queue=name, passive=True), methods.QueueDeclareOk)
    client.close()


class Group(NamedTuple):
    """Requests of one kind."""

    title: str
    asked: list[Asked]
    rounds: int
    ms_max: float


GROUPS = (
    Group("page", [("GET", path, None) for path in PAGES], 20, PAGE_MS_MAX),
    Group("single", [("GET", path, None) for path in OTHERS], 20, PAGE_MS_MAX),
    Group("whole", [("GET", path, None) for path in WHOLE], 10, 0.0),
    Group("change", CHANGES, 10, 0.0),
    Group("message", MESSAGES, 5, 0.0),
)


def told(title: str, found: Measured, most: float) -> bool:
    """Print a line; whether a bound is broken."""
    holds = [hold.request for hold in found.holds]
    collector = max(hold.collector for hold in found.holds)
    worst = max(found.holds)
    is_broken = worst.request > HOLD_MS_MAX or bool(most and max(found.times) > most)
    figures = f"{statistics.median(found.times):8.1f} ms, max {max(found.times):7.1f}"
    figures += f"   hold {statistics.median(holds):5.2f} ms, max {worst.request:5.2f}"
    figures += f"   collector {collector:5.2f}   {found.size:>10,} B"
    verb, path, _ = found.asked
    often = sum(hold > HOLD_MS_MAX for hold in holds)
    mark = f"  <-- {often} of {len(holds)}, {worst.what}" if is_broken else ""
    sys.stdout.write(f"{title:7}{figures}  {'' if verb == 'GET' else verb + ' '}{path}{mark}\n")
    sys.stdout.flush()
    return is_broken


def summary(found: list[Measured], idle: Holds) -> str:
    """The figures that matter."""
    holds = [hold for one in found for hold in one.holds]
    own = max(hold.own for hold in [*holds, idle])
    longest, long = max(hold.request for hold in holds), sum(hold.request > HOLD_MS_MAX for hold in holds)
    callbacks, spent_s = sum(hold.long for hold in holds), sum(hold.spent_s for hold in holds)
    lines = [
        f"the longest hold of any of {len(holds)} requests: {longest:.2f} ms; {long} of them above the bound",
        f"callbacks above it: {callbacks} in {spent_s:.1f} CPU seconds, {callbacks / spent_s:.2f} per second",
        f"the longest collection meanwhile: {max(hold.collector for hold in holds):.2f} ms",
        f"what the node does by itself every second: {own:.2f} ms at most",
        f"nobody asks for {IDLE_S:.0f} s: {idle.request:.2f} ms, collector {idle.collector:.2f} ms",
        f"not counted, since the host took the machine away: {sum(hold.stolen for hold in holds)} callbacks",
    ]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    if argv[:1] == ["--node"]:
        return node(argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.management")
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is broken")
    options = parser.parse_args(argv)
    machine.enter_private_network("bench.management")
    brokers.raise_file_limit()
    broken = 0
    around = [stalls.measured(STALLS_S)]
    with watched_node() as (process, about):
        asker = Asker(process, about["http"])
        port = int(about["amqp"][0].rpartition(":")[2])
        clients = furnish(asker, port, options.queues, options.connections)
        sys.stdout.write(f"{options.queues} queues, {options.connections} connections\n")
        machine.wait_until_quiet(process.pid, 2)
        asker.worst()
        threading.Event().wait(IDLE_S)
        idle = asker.worst()
        everything: list[Measured] = []
        for group in (*GROUPS, Group("heavy", heavy(options.queues), 5, 0.0)):
            found = asker.measure(group.asked, group.rounds)
            everything += found
            broken += sum(told(group.title, one, group.ms_max) for one in found)
        sys.stdout.write(summary(everything, idle))
        for client in clients:
            client.close()
    around.append(stalls.measured(STALLS_S))
    for when, found in zip(("before", "after"), around, strict=True):
        sys.stdout.write(f"{when}: {found.text()}\n")
    return 1 if broken and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
