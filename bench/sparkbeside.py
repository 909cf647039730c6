"""Spark beside the clients of a mirrored cluster:  python -m bench.sparkbeside PART ... [--rows N]

trigger   a stream of a queue that gets 1,000 messages per second: how long its micro-batches take (p50, p99),
          and how long a message was in the queue when its batch ended.
beside    confirms of a publisher (2,000 messages per second, 1 KiB, persistent) while a job reads rows from
          the broker again and again, and while the same job reads the same rows at the same rate from
          Parquet; in turns. Also: the longest passes of the nodes' loops meanwhile.
served    a batch read of a queue with two mirrors: the CPU of its master and of the mirrors per row, and
          what they take in the same time when nobody reads.
held      the CPU of each turn of the nodes' event loops (bench.loophold; needs perf) while Spark reads as
          fast as it can, from the mirrors and then from the master.

Three nodes and Spark (local[2]) share the cores of this machine. Each result is a line of JSON.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from bench import generator, loophold, machine
from bench.audit import fill
from mirrormq.client.amqp import AmqpClient
from mirrormq.testing import Cluster, cluster

COLD, HOT, LIVE = "bench-cold", "bench-hot", "bench-live"
TRIGGER_RATE, TRIGGER_S = 1_000, 40
HOT_RATE, BESIDE_S, PERIOD_S = 2_000, 24, 3.0
WARM_UP_BATCHES = 10


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sparkbeside", description=__doc__)
    parser.add_argument("parts", nargs="+", choices=["trigger", "beside", "served", "held"])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of 100 B that are read")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    machine.boost_self()
    folder = Path(tempfile.mkdtemp(prefix="mirrormq-bench-"))
    try:
        with cluster(nodes=3, admin=True) as made:
            for node in made.nodes:
                machine.boost(node.pid)
            policy = {"vhost": "/", "name": "ha", "pattern": "^bench", "apply_to": "queues"}
            made.ask("set_policy", definition={"ha-mode": "all"}, **policy)
            bench = Beside(made, folder, options)
            for part in options.parts:
                getattr(bench, part)()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Beside:
    """A cluster and a session."""

    def __init__(self, made: Cluster, folder: Path, options: argparse.Namespace) -> None:
        from mirrormq.spark.session import make_session

        source = Path(__file__).resolve().parent.parent / "src"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        self.made = made
        self.folder = folder
        self.options = options
        self.is_filled = False
        self.spark = make_session("bench", master="local[2]", settings={"spark.driver.memory": "2g"})
        self.spark.sparkContext.setLogLevel("ERROR")

    @property
    def url(self) -> str:
        hosts = ",".join(f"{node.host}:{node.port}" for node in self.made.nodes)
        return f"amqp://guest@{hosts}/"

    def queue(self, name: str, **options: str) -> Any:
        reader = self.spark.read.format("mirrormq").options(url=self.url, queue=name, **options)
        return reader.load()

    def tell(self, **found: object) -> None:
        sys.stdout.write(json.dumps({**found, "load": round(os.getloadavg()[0], 1)}) + "\n")
        sys.stdout.flush()

    def need_rows(self) -> None:
        if not self.is_filled:
            fill(self.made, COLD, self.options.rows, 100)
            self.queue(COLD).write.mode("overwrite").parquet(str(self.folder / COLD))
            self.is_filled = True

    # --- micro-batches ---

    def trigger(self) -> None:
        with AmqpClient(self.made.nodes[0].host, self.made.nodes[0].port, timeout=30) as client:
            client.declare(LIVE)
        stream = self.spark.readStream.format("mirrormq").option("url", self.url).option("queue", LIVE)
        ages: list[float] = []

        def looked(frame: Any, _: int) -> None:
            first = frame.agg({"timestamp": "min"}).collect()[0][0]
            if first is not None:
                ages.append((datetime.now() - first.replace(tzinfo=None)).total_seconds() * 1000)

        publisher = self.publisher(LIVE, TRIGGER_RATE, TRIGGER_S, size=100)
        writer = stream.load().writeStream.foreachBatch(looked)
        query = writer.option("checkpointLocation", str(self.folder / "live")).start()
        publisher.wait()
        query.processAllAvailable()
        took = [
            float(progress["durationMs"]["triggerExecution"])
            for progress in query.recentProgress
            if progress["numInputRows"]
        ][WARM_UP_BATCHES:]
        query.stop()
        self.tell(
            part="trigger",
            rate=TRIGGER_RATE,
            batches=len(took),
            trigger_ms_p50=percentile(took, 50),
            trigger_ms_p99=percentile(took, 99),
            oldest_ms_p50=percentile(ages[WARM_UP_BATCHES:], 50),
            oldest_ms_p99=percentile(ages[WARM_UP_BATCHES:], 99),
        )

    # --- confirms ---

    def beside(self) -> None:
        self.need_rows()
        parquet = self.spark.read.parquet(str(self.folder / COLD))
        noop(self.queue(COLD)), noop(parquet)
        found: dict[str, list[float]] = {"broker": [], "parquet": []}
        for _ in range(self.options.runs):
            for name, frame in (("parquet", parquet), ("broker", self.queue(COLD))):
                confirms, rows_per_s, passes = self.confirms_while(lambda frame=frame: noop(frame))
                found[name].append(confirms["p99"])
                self.tell(
                    part="beside", reads=name, rows_per_s=rows_per_s, confirm_ms=confirms, passes=passes
                )
        medians = {name: statistics.median(values) for name, values in found.items()}
        ratio = round(medians["broker"] / medians["parquet"], 2)
        self.tell(part="beside", confirm_p99_ms=medians, ratio=ratio)

    def confirms_while(self, read: Callable[[], None]) -> tuple[dict[str, float], int, object]:
        """Read again and again, beginning once in each period, while somebody publishes."""
        before = [pass_times(node.admin_url) for node in self.made.nodes]
        publisher = self.publisher(HOT, HOT_RATE, BESIDE_S, size=1024)
        began, rounds = time.monotonic(), 0
        while time.monotonic() - began < BESIDE_S - 1:
            read()
            rounds += 1
            time.sleep(max(0.0, began + rounds * PERIOD_S - time.monotonic()))
        rate = round(rounds * self.options.rows / (time.monotonic() - began))
        said, complaint = publisher.communicate(timeout=120)
        if not said.strip():
            raise SystemExit(complaint)
        after = [pass_times(node.admin_url) for node in self.made.nodes]
        passes = [longest(old, new) for old, new in zip(before, after, strict=True)]
        return json.loads(said)["confirm_ms"], rate, passes

    def publisher(self, queue: str, rate: int, seconds: int, *, size: int) -> subprocess.Popen[str]:
        node = self.made.nodes[0]
        command = [str(generator.program()), "--hosts", f"{node.host}:{node.port}", "--queue", queue]
        command += ["--durable", "--persistent", "--mode", "publish", "--size", str(size)]
        command += [
            "--rate",
            str(rate),
            "--seconds",
            str(seconds),
            "--warmup",
            "3",
            "--confirm-window",
            "20000",
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    # --- who serves ---

    def served(self) -> None:
        self.need_rows()
        noop(self.queue(COLD))
        before, began = self.node_cpu_s(), time.monotonic()
        for _ in range(self.options.runs):
            noop(self.queue(COLD))
        took = time.monotonic() - began
        spent = self.node_cpu_s(before)
        before = self.node_cpu_s()
        time.sleep(took)
        idle = self.node_cpu_s(before)
        rows, master = self.options.rows * self.options.runs, self.master()
        self.tell(
            part="served",
            rows_per_s=round(rows / took),
            seconds=round(took, 1),
            master=master,
            cpu_s={name: round(cpu, 3) for name, cpu in spent.items()},
            idle_cpu_s={name: round(cpu, 3) for name, cpu in idle.items()},
            us_per_row={name: round(cpu / rows * 1e6, 3) for name, cpu in spent.items()},
            master_share=round(spent[master] / max(1e-9, sum(spent.values())), 3),
        )

    def master(self) -> str:
        return str(json.loads(fetched(self.made.nodes[0].admin_url, f"/api/queues/%2F/{COLD}"))["node"])

    def node_cpu_s(self, before: dict[str, float] | None = None) -> dict[str, float]:
        """CPU of the nodes, since `before`."""
        return {
            node.name: cpu_s(node.pid) - (before[node.name] if before is not None else 0.0)
            for node in self.made.nodes
        }

    # --- how long loops are held ---

    def held(self) -> None:
        self.need_rows()
        names = {node.pid: node.name for node in self.made.nodes}
        for source in ("auto", "master"):
            noop(self.queue(COLD, readFrom=source))
            began = time.monotonic()
            with loophold.watching(list(names)) as holds:
                for _ in range(self.options.runs):
                    noop(self.queue(COLD, readFrom=source))
            self.tell(
                part="held",
                reads=source,
                master=self.master(),
                rows_per_s=round(self.options.rows * self.options.runs / (time.monotonic() - began)),
                loops={names[pid]: found for pid, found in holds.by_pid.items()},
            )


def cpu_s(pid: int) -> float:
    """CPU of a process as the scheduler counts it: ticks are too coarse for an idle one."""
    stats = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def fetched(url: str | None, path: str) -> str:
    login = {"Authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}{path}", headers=login)) as answer:
        return str(answer.read().decode())


def pass_times(url: str | None) -> dict[float, int]:
    """How many passes of a node's loop took at most so many seconds."""
    text = fetched(url, "/metrics")
    found = re.findall(r'^mirrormq_loop_pass_seconds_bucket\{le="([^"]+)"\} (\S+)', text, re.MULTILINE)
    return {float(bound): int(float(count)) for bound, count in found}


def longest(before: dict[float, int], after: dict[float, int]) -> dict[str, float]:
    """The bounds below which 99.9 % and all passes of a time stayed, and how many there were."""
    new = sorted((bound, count - before.get(bound, 0)) for bound, count in after.items())
    total = new[-1][1] if new else 0
    bounds = {
        name: next((bound for bound, count in new if count >= share * total), 0.0)
        for name, share in (("p999_s", 0.999), ("max_s", 1.0))
    }
    return {"passes": total, **bounds}


def percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 1) if ordered else 0.0


if __name__ == "__main__":
    main()
