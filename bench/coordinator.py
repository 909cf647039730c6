"""How long the metadata takes to agree, with the embedded Raft and with etcd, on the same machine in one run.

Commit latency: one client declares exchanges on a three-node cluster, one after the other, on the node that
leads and on another one. Fail-over: kill -9 of the leader under a stream of declares, and of the master of a
mirrored queue while a publisher waits for each confirm. With etcd an etcd of three members is added; all
share the disk and the cores.

    python -m bench.coordinator --declares 300 --kills 5
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mirrormq.wire import methods
from tests.cluster import killrun, kit
from tests.cluster.kit import Cluster, Node, until
from tests.cluster.mirrorrun import set_policy
from tests.support import etcdkit


@contextlib.contextmanager
def cluster_on(coordinator: str, folder: Path) -> Iterator[Cluster]:
    """Three nodes, and what they agree by."""
    with contextlib.ExitStack() as stack:
        settings: list[str] = []
        if coordinator == "etcd":
            settings = stack.enter_context(etcdkit.running(folder / "etcd", 3)).settings()
        yield stack.enter_context(kit.cluster(folder / "nodes", 3, settings=settings))


def commits(node: Node, count: int, prefix: str) -> list[float]:
    """Seconds of each declare."""
    times = []
    with node.raw() as client:
        for number in range(count):
            began = time.perf_counter()
            declare = methods.ExchangeDeclare(exchange=f"{prefix}-{number}", type="fanout", durable=True)
            client.call(1, declare, methods.ExchangeDeclareOk)
            times.append(time.perf_counter() - began)
        client.close_cleanly()
    return times


def fail_over(cluster: Cluster, number: int) -> float:
    """Seconds from kill -9 of a queue's master to the next confirm, for a publisher on another node."""
    name = f"mirrored-{number}"
    leader = cluster.wait_whole()
    master = cluster.others(leader)[0]
    kit.declare(master.channel(), name)

    def is_synced() -> bool:
        rows = [row for row in leader.ctl("list_queues", vhost="/") if row["name"] == name]
        return bool(rows) and len(rows[0].get("in_sync", ())) == 3 and rows[0]["master"] == master.name

    until(is_synced, f"{name} has three copies")
    channel = leader.channel()
    persistent = kit.pika.BasicProperties(delivery_mode=2)
    for _ in range(20):
        channel.basic_publish("", name, b"x", persistent)
    began = time.perf_counter()
    master.kill()
    channel.basic_publish("", name, b"x", persistent)
    took = time.perf_counter() - began
    cluster.start(master)
    return took


def line(name: str, times: Sequence[float]) -> str:
    cells = " / ".join(f"{killrun.at(times, share) * 1000:.1f}" for share in (0.5, 0.9, 1.0))
    return f"  {name:58} {cells}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--declares", type=int, default=300)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--only", choices=["raft", "etcd"])
    options = parser.parse_args()
    for coordinator in [options.only] if options.only else ["raft", "etcd"]:
        with (
            tempfile.TemporaryDirectory(prefix="mirrormq-coordinator-") as folder,
            cluster_on(coordinator, Path(folder)) as cluster,
        ):
            sys.stdout.write(f"{coordinator}: milliseconds p50 / p90 / max\n")
            leader = cluster.wait_whole()
            other = cluster.others(leader)[0]
            commits(leader, 20, "warm")
            sys.stdout.write(line("a declare on the leader", commits(leader, options.declares, "leader")))
            sys.stdout.write(line("a declare on another node", commits(other, options.declares, "other")))
            rounds = killrun.run(cluster, options.kills, lambda _: None)
            led = [one.leads for one in rounds]
            sys.stdout.write(line("kill -9 of the leader to the next one", led))
            acked = [one.acked for one in rounds]
            sys.stdout.write(line("kill -9 of the leader to the first acknowledged declare", acked))
            set_policy(cluster[0], "all", "^mirrored-", {"ha-mode": "all"})
            times = [fail_over(cluster, number) for number in range(options.kills)]
            sys.stdout.write(line("kill -9 of a mirrored queue's master to the next confirm", times))
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
