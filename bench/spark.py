"""What reading and writing queues costs in Spark:  python -m bench.spark [--rows N] [--sizes 100 1024]

One node and one Spark session (local[2]) on this machine. Per size of messages: a DataFrame of random bodies
is written to a queue (exactly once), the queue is read as a batch and as a stream (AvailableNow) into Spark's
noop sink, and so is a Parquet copy of the same rows, for comparison: all columns, `seq` and `body` only (by
`.schema`, and by `.select`), and `count()`. Given are rows and megabytes of bodies per second, and
microseconds of CPU per row: of Spark (JVM and Python workers) and of the node. CPU counts on a busy machine,
too; rates do not. The best of --runs counts; every result is a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import machine
from mirrormq.client.amqp import AmqpClient
from mirrormq.testing import Broker, running

WARM_UP_ROWS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of 100 B; larger ones are fewer")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024])
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="WHAT", help="measure only these, e.g. batch"
    )
    parser.add_argument("--boost", action="store_true", help="take a large share of the cores")
    options = parser.parse_args()
    if options.boost:
        machine.boost_self()
    folder = Path(tempfile.mkdtemp(prefix="mirrormq-bench-"))
    try:
        with running() as broker:
            if options.boost:
                machine.boost(broker.process.pid)
            Bench(broker, folder, options.runs, options.only).run(options.rows, options.sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Bench:
    """A node, a session, and what was measured."""

    def __init__(self, broker: Broker, folder: Path, runs: int, only: list[str]) -> None:
        from mirrormq.spark.session import make_session

        os.environ["MIRRORMQ_PASSWORD"] = broker.password
        source = Path(__file__).resolve().parent.parent / "src"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        self.broker = broker
        self.folder = folder
        self.runs = runs
        self.only = only
        self.spark = make_session("bench", master="local[2]", settings={"spark.driver.memory": "2g"})
        self.spark.sparkContext.setLogLevel("ERROR")

    def run(self, rows: int, sizes: list[int]) -> None:
        self.fill("warm-up", WARM_UP_ROWS, 100)
        self.noop(self.queue("warm-up"))
        for size in sizes:
            self.run_size(f"rows-{size}", size, max(1, rows * 100 // max(100, size)))

    def run_size(self, name: str, size: int, count: int) -> None:
        self.tell("sink", size, count, self.measured(lambda: self.fill(name, count, size), 1))
        self.tell("batch", size, count, self.measured(lambda: self.noop(self.queue(name)), self.runs))
        if self.only == ["batch"]:
            return
        parquet = str(self.folder / name)
        self.queue(name).write.parquet(parquet)
        copy = self.spark.read.parquet(parquet)
        narrow = self.queue(name, "seq LONG, body BINARY")
        for what, step in (
            ("parquet", lambda: self.noop(copy)),
            ("batch, 2 columns by schema", lambda: self.noop(narrow)),
            ("batch, 2 columns by select", lambda: self.noop(self.queue(name).select("seq", "body"))),
            ("parquet, 2 columns", lambda: self.noop(copy.select("seq", "body"))),
            ("batch, count()", lambda: self.queue(name).count()),
            ("batch, 1 column by schema, count()", lambda: self.queue(name, "seq LONG").count()),
            ("stream", lambda: self.stream(name)),
        ):
            if not self.only or what in self.only:
                self.tell(what, size, count, self.measured(step, self.runs))

    def fill(self, name: str, rows: int, size: int) -> None:
        with AmqpClient(
            self.broker.host,
            self.broker.port,
            user=self.broker.user,
            password=self.broker.password,
            timeout=30,
        ) as client:
            client.declare(name)
        parts = -(-size // 64)
        text = (
            "concat("
            + ", ".join(f"sha2(CAST(id * {parts} + {i} AS STRING), 256)" for i in range(parts))
            + ")"
        )
        frame = self.spark.range(0, rows, numPartitions=4).selectExpr(f"substring({text}, 1, {size}) AS body")
        self.options(frame.write.format("mirrormq").mode("append")).option("queue", name).save()

    def options(self, builder: Any) -> Any:
        where = f"amqp://{self.broker.user}@{self.broker.host}:{self.broker.port}/"
        return builder.option("url", where)

    def queue(self, name: str, schema: str = "") -> Any:
        builder = self.options(self.spark.read.format("mirrormq")).option("queue", name)
        return (builder.schema(schema) if schema else builder).load()

    def noop(self, frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def stream(self, name: str) -> None:
        frame = self.options(self.spark.readStream.format("mirrormq")).option("queue", name).load()
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    def measured(self, step: Callable[[], object], runs: int) -> dict[str, float]:
        """The least that it took: time of the fastest run, CPU of the one that took least of it."""
        found = []
        for _ in range(runs):
            spark, node, began = self.spark_cpu_s(), machine.cpu_s(self.broker.process.pid), time.monotonic()
            step()
            found.append(
                {
                    "s": time.monotonic() - began,
                    "spark_cpu_s": self.spark_cpu_s() - spark,
                    "node_cpu_s": machine.cpu_s(self.broker.process.pid) - node,
                }
            )
        least = min(found, key=lambda run: run["spark_cpu_s"] + run["node_cpu_s"])
        return {**least, "s": min(run["s"] for run in found)}

    def spark_cpu_s(self) -> float:
        return tree_cpu_s(os.getpid(), self.broker.process.pid)

    def tell(self, what: str, size: int, rows: int, took: dict[str, float]) -> None:
        spark, node = (took[name] / rows * 1e6 for name in ("spark_cpu_s", "node_cpu_s"))
        result = {
            "what": what, "size": size, "rows": rows, "rows_per_s": round(rows / took["s"]),
            "mb_per_s": round(rows * size / took["s"] / 1e6, 1), "spark_us_per_row": round(spark, 3),
            "node_us_per_row": round(node, 3), "load": round(os.getloadavg()[0], 1),
        }  # fmt: skip
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


def tree_cpu_s(root: int, but: int) -> float:
    """CPU of a process and all that descend from it, those that have ended included, but for one."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        pid, fields = int(head.split()[0]), rest.split()
        if pid != but:
            children.setdefault(int(fields[1]), []).append(pid)
            ticks[pid] = sum(int(field) for field in fields[11:15])
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
