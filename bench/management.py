"""How long the API takes and holds the loop:  python -m bench.management --queues 10000 --connections 1000

A node with so many queues and connections (each with a channel and a consumer) is asked for the first page of
every list, for whole lists, sorted and filtered ones, and for what the web UI and Prometheus ask for. Printed
are the median time of an answer and the longest time one callback kept the loop, in CPU time, since other
processes must not count. The node runs on asyncio's own loop, whose callbacks can be watched.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import gc
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

from bench import brokers, machine
from mirrormq.wire import methods
from tests.support import raw

CHANNEL = 1
ROUNDS = 5
OWN = "Driver._tick"
"""What the node does every second, whether it is asked for something or not."""
PAGE_MS_MAX = 300.0
HOLD_MS_MAX = 2.0
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
    f"queues?{PAGE}&columns=name,messages,message_stats.publish",
    f"connections?{PAGE}&sort=recv_oct&sort_reverse=true",
    f"channels?{PAGE}&sort=name",
    f"mirrormq/sync?{PAGE}",
    f"mirrormq/cursors?{PAGE}",
]
OTHERS = [
    "overview",
    "nodes",
    "queues/%2F/many-7",
    "queues/%2F/many-7/bindings",
    "exchanges/%2F/amq.topic/bindings/source",
    "mirrormq/queues/%2F/many-7/view",
    "mirrormq/timeline",
    "mirrormq/pipelines",
    "permissions",
    "policies",
    "openapi.json",
    "health/checks/virtual-hosts",
    "health/checks/node-is-mirror-sync-critical",
]
WHOLE = ["queues", "exchanges", "bindings", "connections", "channels", "consumers", "definitions"]


class Measured(NamedTuple):
    """What came of one path."""

    path: str
    ms: float
    hold_ms: float
    what: str
    size: int


# --- the node -----------------------------------------------------------------------------------------------


class Watch:
    """The longest callback since it was last asked."""

    def __init__(self) -> None:
        self.worst = 0.0
        self.what = ""
        self._collecting = 0.0

    def install(self) -> None:
        run = asyncio.Handle._run
        gc.callbacks.append(self._on_collection)

        def watched(handle: asyncio.Handle) -> None:
            self._collecting = 0.0
            before = time.thread_time()
            run(handle)
            spent = time.thread_time() - before
            if spent > self.worst and OWN not in repr(handle):
                self.worst, self.what = (
                    spent,
                    f"{repr(handle)[:90]} collector {self._collecting * 1000:.2f} ms",
                )

        asyncio.Handle._run = watched  # type: ignore[method-assign]

    def _on_collection(self, phase: str, _facts: dict[str, int]) -> None:
        now = time.thread_time()
        self._collecting += now if phase == "stop" else -now

    def answer(self) -> None:
        """Tell whoever writes a line to standard input."""
        for _ in sys.stdin:
            told, self.worst = {"ms": self.worst * 1000, "what": self.what}, 0.0
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()


def node(argv: list[str]) -> int:
    """A node that is watched; ends when standard input does."""
    from mirrormq.runtime import main

    sys.modules["uvloop"] = None  # type: ignore[assignment]
    watch = Watch()
    watch.install()
    threading.Thread(target=watch.answer, daemon=True).start()
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
        data = None if body is None else json.dumps(body)
        self._connection.request(verb, f"/api/{path}", data, self._headers)
        answer = self._connection.getresponse()
        found = answer.read()
        assert answer.status < 400, (path, answer.status, found[:300])
        return found

    def worst(self) -> tuple[float, str]:
        """The longest callback since the last call, in ms."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        return told["ms"], told["what"]

    def measure(self, path: str) -> Measured:
        """Several answers, one after the other."""
        times, holds, size = [], [], 0
        self.request("GET", path)
        for _ in range(ROUNDS):
            self.worst()
            began = time.perf_counter()
            size = len(self.request("GET", path))
            times.append((time.perf_counter() - began) * 1000)
            holds.append(self.worst())
        # The best of the worst: what one run alone had was the collector's, or another thread's.
        hold, what = sorted(holds)[len(holds) // 2]
        return Measured(path, statistics.median(times), hold, what, size)


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
    clients = []
    for number in range(connections):
        client = raw.connect("127.0.0.1", port)
        client.handshake()
        client.open_channel(CHANNEL)
        wanted = methods.BasicConsume(queue=names[number % len(names)])
        client.call(CHANNEL, wanted, methods.BasicConsumeOk)
        clients.append(client)
    return clients


GROUPS = (("page", PAGES, PAGE_MS_MAX), ("single", OTHERS, PAGE_MS_MAX), ("whole", WHOLE, 0.0))


def told(title: str, found: Measured, most: float) -> bool:
    """Print a line; whether a bound is broken."""
    is_broken = found.hold_ms > HOLD_MS_MAX or bool(most and found.ms > most)
    figures = f"{found.ms:8.1f} ms  hold {found.hold_ms:5.2f} ms  {found.size:>10,} B"
    mark = f"  <-- {found.what}" if is_broken else ""
    sys.stdout.write(f"{title:7}{figures}  {found.path}{mark}\n")
    sys.stdout.flush()
    return is_broken


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
    with watched_node() as (process, about):
        asker = Asker(process, about["http"])
        port = int(about["amqp"][0].rpartition(":")[2])
        clients = furnish(asker, port, options.queues, options.connections)
        asker.worst()
        sys.stdout.write(f"{options.queues} queues, {options.connections} connections\n")
        for title, paths, most in GROUPS:
            for path in paths:
                broken += told(title, asker.measure(path), most)
        for client in clients:
            client.close()
    return 1 if broken and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
