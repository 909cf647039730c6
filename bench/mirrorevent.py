"""How long a message takes into a mirror:  python -m bench.mirrorevent [--messages 100] [--size 100]

Two clusters of a node each on this machine, and `mirrormq pipeline mirror --strategy event` between them, in
a process of its own (Spark's local[2]). Messages are published one at a time, at moments that have nothing to
do with Spark's batches. The time of each begins when the source has confirmed it, and ends when the target
tells readers of it: its queue holds one message more, and the mark up to which it may be read is behind it.
That is asked for every millisecond. One line of JSON, times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mirrormq.client.amqp import AmqpClient, Confirmed
from mirrormq.client.bulk import BulkClient, BulkError, Target
from mirrormq.testing import Cluster, ClusterNode, cluster

QUEUE, VHOST = "bench-followed", "bench-mirror"
WARM_UP = 30
POLL_S = 0.001
PAUSE_S = 0.6
"""Between two messages, at most: longer than a batch."""
START_S, ARRIVE_S = 120.0, 30.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mirrorevent")
    parser.add_argument("--messages", type=int, default=100)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mirrormq-bench-"))
    try:
        with cluster(nodes=1) as west, cluster(nodes=1) as east:
            found = measured(west, east, folder, options)
        print(json.dumps({"messages": options.messages, "size": options.size, **found}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(
    west: Cluster, east: Cluster, folder: Path, options: argparse.Namespace
) -> dict[str, float | str]:
    """Start the job, publish until it is warm, and measure."""
    source, target = west.nodes[0], east.nodes[0]
    with AmqpClient(source.host, source.port, timeout=30) as client:
        client.declare(QUEUE)
        client.publish(QUEUE, b"first")
        confirmed(client)
        with (folder / "job.log").open("wb") as log:
            job = subprocess.Popen(job_words(source, target, folder), stdout=log, stderr=log)
        try:
            with BulkClient(Target([(target.host, target.port)], vhost=VHOST), retry_s=START_S) as reader:
                wait_for(reader, 1, START_S, job, folder)
                times = [
                    one(client, reader, 2 + number, options.size, (job, folder))
                    for number in range(WARM_UP + options.messages)
                ]
            load = os.getloadavg()[0]
        finally:
            job.terminate()
            job.wait()
    shown = sorted(times[WARM_UP:])
    return {
        "p50": round(statistics.median(shown)),
        "p99": round(shown[max(0, -(-99 * len(shown) // 100) - 1)]),
        "least": round(shown[0]),
        "most": round(shown[-1]),
        "load": round(load, 1),
    }


def job_words(source: ClusterNode, target: ClusterNode, folder: Path) -> list[str]:
    words = ["--source", f"amqp://guest@{source.host}:{source.port}/"]
    words += ["--url", f"amqp://guest@{target.host}:{target.port}/{VHOST}"]
    words += ["--include", QUEUE, "--strategy", "event", "--state-dir", str(folder / "state"), "--quiet"]
    return [sys.executable, "-m", "mirrormq", "pipeline", "mirror", *words, "--master", "local[2]"]


def one(
    client: AmqpClient, reader: BulkClient, count: int, size: int, job: tuple[subprocess.Popen[bytes], Path]
) -> float:
    """Publish a message; the milliseconds from its confirm until it is the `count`-th in the mirror."""
    time.sleep(random.uniform(0, PAUSE_S))
    client.publish(QUEUE, os.urandom(size))
    confirmed(client)
    began = time.monotonic()
    wait_for(reader, count, ARRIVE_S, *job)
    return (time.monotonic() - began) * 1000


def confirmed(client: AmqpClient) -> None:
    while not isinstance(client.next_event(), Confirmed):
        pass


def wait_for(
    reader: BulkClient, count: int, seconds: float, job: subprocess.Popen[bytes], folder: Path
) -> None:
    """Wait until readers find so many messages in the mirror."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and job.poll() is None:
        try:
            row = reader.call("queues", queue=QUEUE)["queues"][0]
            if int(row["messages"]) >= count and int(row["next"]) > count:
                return
        except BulkError:
            time.sleep(0.1)  # the vhost, or the queue in it, is not there yet
        time.sleep(POLL_S)
    raise RuntimeError(f"message {count} does not come:\n{(folder / 'job.log').read_text()[-2000:]}")


if __name__ == "__main__":
    main()
