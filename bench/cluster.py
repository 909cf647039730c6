"""What a cluster costs:  python -m bench.cluster [definitions] [many] [forward]

definitions  exchanges and queues declared by one client that waits for each, and by 50 at once, on one node
             and on three (through the leader and through another node): rate and latency.
many         10,000 durable queues on three nodes: rate of declaring, size on disk, start of a node and of the
             whole cluster.
forward      persistent messages with confirms and acknowledgements through the node of their queue and
             through another one: rates, and their share of the local one.

Real processes on loopback, as the tests start them. Without a name all three parts are run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import generator, machine
from mirrormq.wire import methods
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node
from tests.support.raw import RawClient, encode_frame

PARALLEL = 50
CHANNEL = 1
OK = (methods.ExchangeDeclareOk, methods.ExchangeDeleteOk, methods.QueueDeclareOk)
Make = Callable[[int], methods.Method]


class Declares(NamedTuple):
    """What a number of declares took."""

    count: int
    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    def ms(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000


def exchange(prefix: str) -> Make:
    return lambda number: methods.ExchangeDeclare(exchange=f"{prefix}-{number}", type="fanout", durable=True)


def removal(prefix: str) -> Make:
    return lambda number: methods.ExchangeDelete(exchange=f"{prefix}-{number}")


def queue(prefix: str) -> Make:
    return lambda number: methods.QueueDeclare(queue=f"{prefix}-{number}", durable=True)


def declare(node: Node, make: Make, count: int, clients: int) -> Declares:
    """Declare so many objects over this many connections, each waiting for its answer before the next."""
    connections = [node.raw() for _ in range(clients)]
    frames = [encode_frame(1, CHANNEL, methods.encode(make(number))) for number in range(count)]
    latencies: list[float] = []
    sent_at: dict[RawClient, float] = {}
    with selectors.DefaultSelector() as waiting:
        for client in connections:
            waiting.register(client.sock, selectors.EVENT_READ, client)
        began = time.perf_counter()
        left = iter(frames)
        for client, frame in zip(connections, left, strict=False):
            sent_at[client] = time.perf_counter()
            client.send(frame)
        while len(latencies) < count:
            for key, _ in waiting.select():
                client = key.data
                answer = client.read_frame().method
                assert isinstance(answer, OK), answer
                now = time.perf_counter()
                latencies.append(now - sent_at[client])
                frame = next(left, None)
                if frame is not None:
                    sent_at[client] = now
                    client.send(frame)
        took = time.perf_counter() - began
    for client in connections:
        client.close_cleanly()
    return Declares(count, took, latencies)


def measure_definitions(folder: Path, count: int) -> None:
    """Print rates and latencies of declares."""
    print("declares                 nodes  client on    clients   per second   p50 ms   p99 ms")
    for nodes in (1, 3):
        with kit.cluster(folder / f"definitions-{nodes}", nodes) as cluster:
            leader = cluster.wait_whole()
            places = {"the leader": leader}
            if nodes > 1:
                places["another"] = cluster.others(leader)[0]
            for place, node in places.items():
                for name, make in (("exchanges", exchange), ("durable queues", queue)):
                    for clients in (1, PARALLEL):
                        prefix = f"{name[:1]}-{place[-3:]}-{clients}"
                        found = declare(node, make(prefix), count, clients)
                        print(
                            f"{name:24} {nodes:5d}  {place:12} {clients:7d} {found.rate:12,.0f}"
                            f" {found.ms(0.5):8.2f} {found.ms(0.99):8.2f}"
                        )


def measure_many(folder: Path, count: int) -> None:
    """Print what very many queues cost."""
    with kit.cluster(folder / "many") as cluster:
        leader = cluster.wait_whole()
        node = cluster.others(leader)[0]
        empty_s = restart(cluster, node)
        step = count // 10
        rates = []
        for part in range(10):
            found = declare(node, queue(f"many-{part}"), step, PARALLEL)
            rates.append(found.rate)
        print(f"{count:,} durable queues on three nodes, {PARALLEL} connections to one of them")
        print(f"  declared per second: {rates[0]:,.0f} in the first tenth, {rates[-1]:,.0f} in the last")
        log = sum(size for name, size in sizes(node.folder / "meta").items() if name.startswith("log"))
        print(f"  log of the metadata: {log:,} bytes; snapshot: {make_snapshot(node):,} bytes")
        print(f"  exported definitions: {len(json.dumps(node.ctl('export_definitions'))):,} bytes of JSON")
        print(f"  memory of that node: {resident(node):,} KiB; of the leader: {resident(leader):,} KiB")
        killed_s = restart(cluster, node)
        print(f"  kill -9, start of that node until ready: {killed_s:.2f} s (empty {empty_s:.2f} s)")
        for one in cluster:
            one.kill()
        began = time.monotonic()
        cluster.start()
        print(f"  start of all three at once until all take clients: {time.monotonic() - began:.2f} s")


def make_snapshot(node: Node) -> int:
    """Fill the log of the metadata with changes that leave nothing until there is a snapshot; its size."""
    for turn in range(100):
        found = [size for name, size in sizes(node.folder / "meta").items() if name.startswith("snapshot")]
        if found:
            return max(found)
        declare(node, exchange(f"passing-{turn}"), PARALLEL * 10, PARALLEL)
        declare(node, removal(f"passing-{turn}"), PARALLEL * 10, PARALLEL)
    raise SystemExit("no snapshot was made")


def restart(cluster: Cluster, node: Node) -> float:
    """Kill a node; seconds from its start until it takes clients."""
    node.kill()
    began = time.monotonic()
    cluster.start(node)
    took = time.monotonic() - began
    cluster.wait_whole()
    return took


def sizes(folder: Path) -> dict[str, int]:
    """The files of a folder."""
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}


def resident(node: Node) -> int:
    """Resident memory in KiB."""
    text = Path(f"/proc/{node.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def measure_forward(folder: Path, seconds: float, runs: int) -> None:
    """Print what another node between client and queue costs."""
    print("persistent, confirms (1,000), acks (one per 50), one queue, one publisher, one consumer")
    print("                                                             milliseconds, p50 / p99")
    print(
        "size   publisher    consumer       msgs/s   share   msgs/CPU s   share         confirm   end to end"
    )
    with kit.cluster(folder / "forward") as cluster:
        leader = cluster.wait_whole()
        master, home = cluster.others(leader)
        places = {"local": master, "elsewhere": home}
        for size in (16, 1024):
            results: dict[tuple[str, str], list[dict[str, Any]]] = {}
            for _ in range(runs):
                for (pub, publishes), (con, consumes) in itertools.product(places.items(), repeat=2):
                    found = load(cluster, master, (publishes, consumes), size, seconds)
                    results.setdefault((pub, con), []).append(found)
            base = middle(results["local", "local"])
            for (pub, con), found_all in results.items():
                row = middle(found_all)
                print(
                    f"{size:4d}   {pub:12} {con:12} {row.rate:10,.0f} {row.rate / base.rate:7.0%}"
                    f" {row.per_cpu:12,.0f} {row.per_cpu / base.per_cpu:7.0%}"
                    f" {row.confirm[0]:11.2f} / {row.confirm[1]:<7.2f} {row.e2e[0]:8.2f} / {row.e2e[1]:<7.2f}"
                )


class Row(NamedTuple):
    """Medians over some runs."""

    rate: float
    per_cpu: float
    confirm: tuple[float, float]
    e2e: tuple[float, float]


def middle(found: Sequence[dict[str, Any]]) -> Row:
    """Medians; `found` are lines of the generator."""

    def of(*keys: str) -> float:
        values = []
        for line in found:
            value: Any = line
            for key in keys:
                value = value[key]
            values.append(float(value))
        return median(values)

    return Row(
        of("consumed_per_s"),
        of("msgs_per_broker_cpu_s"),
        (of("confirm_ms", "p50"), of("confirm_ms", "p99")),
        (of("e2e_ms", "p50"), of("e2e_ms", "p99")),
    )


def load(
    cluster: Cluster, master: Node, ends: tuple[Node, Node], size: int, seconds: float
) -> dict[str, Any]:
    """One run of the generator with a new queue on `master`."""
    name = f"load-{time.monotonic_ns()}"
    channel = master.channel()
    kit.declare(channel, name)
    publisher, consumer = (f"{node.host}:{kit.AMQP}" for node in ends)
    command = [str(generator.program()), "--pub-hosts", publisher, "--con-hosts", consumer]
    command += ["--queue", name, "--durable", "--persistent", "--size", str(size), "--check"]
    command += ["--confirm-window", "1000", "--prefetch", "1000", "--ack-every", "50"]
    command += ["--seconds", str(seconds), "--warmup", "2"]
    command += ["--broker-pids", ",".join(str(node.pid) for node in cluster)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    channel.queue_delete(name)
    channel.connection.close()
    if not done.stdout.strip():
        raise SystemExit(done.stderr or f"the generator ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    wrong = {what: number for what, number in found["check"].items() if what != "unique" and number}
    if wrong or found["timed_out"]:
        raise SystemExit(f"not every message came once and in order: {wrong or found}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help="definitions, many, forward")
    parser.add_argument("--declares", type=int, default=1_000, help="objects per row of definitions")
    parser.add_argument("--queues", type=int, default=10_000, help="queues of many")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a run of forward")
    parser.add_argument("--runs", type=int, default=3, help="runs per row of forward")
    options = parser.parse_args()
    parts = options.parts or ["definitions", "many", "forward"]
    machine.enter_private_network("bench.cluster")
    with tempfile.TemporaryDirectory(prefix="mirrormq-bench-") as name:
        folder = Path(name)
        if "definitions" in parts:
            measure_definitions(folder, options.declares)
        if "many" in parts:
            measure_many(folder, options.queues)
        if "forward" in parts:
            measure_forward(folder, options.seconds, options.runs)


if __name__ == "__main__":
    main()
