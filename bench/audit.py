"""What an audit of a long mirrored queue costs:  python -m bench.audit [--records N] [--size 100]

Three nodes on this machine, a queue mirrored on all of them, filled through a sink; Spark's local[2] in this
process. The job runs twice: on a queue of a few messages, for what Spark takes by itself, and on the long
one. Given are wall times, what was held at most from the start of Spark on (by the driver's Python process;
by the JVM, in which local mode runs the tasks, too; by the largest Python worker), and the CPU of the nodes
per record. One line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from bench import machine
from mirrormq.client.amqp import AmqpClient
from mirrormq.client.bulk import BulkClient, Target
from mirrormq.client.sink import Sink, encode_row
from mirrormq.testing import Cluster, cluster

QUEUE, SHORT = "bench-audit", "bench-short"
BATCH = 200_000
PIECE = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--memory", default="1g", help="heap of the driver's JVM")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mirrormq-bench-"))
    try:
        with cluster(nodes=3) as made:
            policy = {"vhost": "/", "name": "ha", "pattern": "^bench", "apply_to": "queues"}
            made.ask("set_policy", definition={"ha-mode": "all"}, **policy)
            fill(made, SHORT, 100, options.size)
            filled = fill(made, QUEUE, options.records, options.size)
            found = audited(made, folder, options)
        print(json.dumps({"records": options.records, "size": options.size, "fill_s": filled, **found}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill(made: Cluster, queue: str, records: int, size: int) -> float:
    """Publish numbered bodies; the seconds it took."""
    node = made.nodes[0]
    with AmqpClient(node.host, node.port, timeout=30) as client:
        client.declare(queue)
    began = time.monotonic()
    with BulkClient(Target([(node.host, node.port)]), retry_s=30) as client:
        sink = Sink(client, queue)
        sink.open()
        for batch, first in enumerate(range(0, records, BATCH)):
            count = min(BATCH, records - first)
            pieces = [
                b"".join(
                    encode_row(b"%d" % number + bytes(max(0, size - len(b"%d" % number))), queue.encode())
                    for number in range(at, min(at + PIECE, first + count))
                )
                for at in range(first, first + count, PIECE)
            ]
            staged = sink.stage(pieces, batch=batch)
            answer = sink.commit(batch, [staged.tx], wait_s=600)
            assert answer.is_forwarded, answer
    return round(time.monotonic() - began, 1)


def audited(made: Cluster, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Start Spark, audit a short queue and the long one."""
    from mirrormq.spark.session import make_session

    source = Path(__file__).resolve().parent.parent / "src"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    began = time.monotonic()
    spark = make_session("bench", master="local[2]", settings={"spark.driver.memory": options.memory})
    spark.sparkContext.setLogLevel("ERROR")
    started = round(time.monotonic() - began, 1)
    short = job(made, folder, SHORT)
    cpu = {node.pid: machine.cpu_s(node.pid) for node in made.nodes}
    long = job(made, folder, QUEUE)
    spent = sum(machine.cpu_s(pid) - before for pid, before in cpu.items())
    return {
        **long,
        "short_wall_s": short["wall_s"],
        "start_s": started,
        "peak_mb": {name: round(size) for name, size in peaks_of(os.getpid()).items()},
        "nodes_us_per_record": round(spent / options.records * 1e6, 3),
        "load": round(os.getloadavg()[0], 1),
    }


def job(made: Cluster, folder: Path, queue: str) -> dict[str, object]:
    """Audit a queue."""
    from mirrormq.spark.jobs import cli

    hosts = ",".join(f"{node.host}:{node.port}" for node in made.nodes)
    words = ["--url", f"amqp://guest@{hosts}/", "--queue", queue, "--json", "--quiet"]
    words += ["--state-dir", str(folder / "state"), "--out", str(folder / queue)]
    told = io.StringIO()
    began = time.monotonic()
    with contextlib.redirect_stdout(told):
        code = cli.pipeline(["audit", *words])
    took = round(time.monotonic() - began, 1)
    result = json.loads(told.getvalue())
    return {
        "exit": code,
        **{name: result[name] for name in ("verdict", "messages", "ranges")},
        "wall_s": took,
    }


def peaks_of(root: int) -> dict[str, float]:
    """The most megabytes that the driver, its JVM and the largest worker have held so far."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        parents[int(head.split()[0])] = int(rest.split()[1])
    found: dict[str, float] = {}
    for pid in [root, *(pid for pid in parents if root in ancestors(pid, parents))]:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
        kind = status.split()[1]
        name = "driver" if pid == root else "jvm" if kind == "java" else "worker"
        if sizes and (kind == "java" or kind.startswith("python")):
            found[name] = max(found.get(name, 0.0), int(sizes[0]) / 1024)
    return found


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    while pid in parents and parents[pid] not in found:
        pid = parents[pid]
        found.add(pid)
    return found


if __name__ == "__main__":
    main()
