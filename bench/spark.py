"""What reading and writing queues costs in Spark:  python -m bench.spark [--rows N] [--sizes 100 1024]

One node and a Spark (local[2]) on this machine. Per size of messages: a DataFrame of random bodies
is written to a queue (exactly once), the queue is read as a batch and as a stream (AvailableNow) into Spark's
noop sink, and so is a Parquet copy of the same rows, for comparison: all columns, `seq` and `body` only (by
`.schema`, and by `.select`), and `count()`. Given are rows and megabytes of bodies per second, and
microseconds of CPU per row: of Spark (JVM and Python workers) and of the node. CPU counts on a busy machine,
too; rates do not. The best of --runs counts, and `middle_us_per_row` is the median of all but the first two,
Spark and node together; every result is a line of JSON. Whoever writes and whoever reads
is a program of its own, as with users: what Java has seen of the one would shape how it compiles the other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import machine
from mirrormq.client.amqp import AmqpClient
from mirrormq.testing import running

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
    parser.add_argument("--part", nargs=3, metavar=("WHAT", "URL", "PID"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.boost:
        machine.boost_self()
    if options.part:
        run_part(options)
        return
    with running() as broker:
        if options.boost:
            machine.boost(broker.process.pid)
        where = f"amqp://{broker.user}@{broker.host}:{broker.port}/"
        for what in ("write", "read"):
            words = [sys.executable, "-m", "bench.spark", *sys.argv[1:]]
            words += ["--part", what, where, str(broker.process.pid)]
            subprocess.run(words, env=os.environ | {"MIRRORMQ_PASSWORD": broker.password}, check=True)


def run_part(options: argparse.Namespace) -> None:
    """One of the two programs."""
    what, url, pid = options.part
    folder = Path(tempfile.mkdtemp(prefix="mirrormq-bench-"))
    try:
        bench = Bench(url, int(pid), folder, options.runs, options.only)
        (bench.write if what == "write" else bench.read)(options.rows, options.sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Bench:
    """A node, a session, and what was measured."""

    def __init__(self, url: str, node_pid: int, folder: Path, runs: int, only: list[str]) -> None:
        from mirrormq.spark.session import make_session

        source = Path(__file__).resolve().parent.parent / "src"
        os.environ["PYTHONPATH"] = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        self.url = url
        self.node_pid = node_pid
        self.folder = folder
        self.runs = runs
        self.only = only
        self.spark = make_session("bench", master="local[2]", settings={"spark.driver.memory": "2g"})
        self.spark.sparkContext.setLogLevel("ERROR")

    def write(self, rows: int, sizes: list[int]) -> None:
        """Fill the queues; what that takes is told."""
        self.fill("warm-up", WARM_UP_ROWS, 100)
        for size in sizes:
            count = rows_of(size, rows)
            self.tell("sink", size, count, self.measured(partial(self.fill, name_of(size), count, size), 1))

    def read(self, rows: int, sizes: list[int]) -> None:
        """Read them in every way."""
        self.noop(self.queue("warm-up"))
        for size in sizes:
            self.read_size(name_of(size), size, rows_of(size, rows))

    def read_size(self, name: str, size: int, count: int) -> None:
        """The queue with messages of one size."""
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
        target = urlsplit(self.url)
        with AmqpClient(
            target.hostname or "",
            target.port or 0,
            user=target.username or "",
            password=os.environ["MIRRORMQ_PASSWORD"],
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
        return builder.option("url", self.url)

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
            spark, node, began = self.spark_cpu_s(), machine.cpu_s(self.node_pid), time.monotonic()
            step()
            found.append(
                {
                    "s": time.monotonic() - began,
                    "spark_cpu_s": self.spark_cpu_s() - spark,
                    "node_cpu_s": machine.cpu_s(self.node_pid) - node,
                }
            )
        cpu_s = [run["spark_cpu_s"] + run["node_cpu_s"] for run in found]
        least = found[cpu_s.index(min(cpu_s))]
        # Java has compiled what matters after two of them.
        middle = statistics.median(cpu_s[2:] or cpu_s)
        return {**least, "s": min(run["s"] for run in found), "middle_cpu_s": middle}

    def spark_cpu_s(self) -> float:
        return tree_cpu_s(os.getpid(), self.node_pid)

    def tell(self, what: str, size: int, rows: int, took: dict[str, float]) -> None:
        spark, node = (took[name] / rows * 1e6 for name in ("spark_cpu_s", "node_cpu_s"))
        result = {
            "what": what, "size": size, "rows": rows, "rows_per_s": round(rows / took["s"]),
            "mb_per_s": round(rows * size / took["s"] / 1e6, 1), "spark_us_per_row": round(spark, 3),
            "node_us_per_row": round(node, 3),
            "middle_us_per_row": round(took["middle_cpu_s"] / rows * 1e6, 3),
            "load": round(os.getloadavg()[0], 1),
        }  # fmt: skip
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


def name_of(size: int) -> str:
    """The queue with messages of a size."""
    return f"rows-{size}"


def rows_of(size: int, rows: int) -> int:
    """So many that it is about as many octets whatever their size."""
    return max(1, rows * 100 // max(100, size))


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
