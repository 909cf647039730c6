"""Rows per second and processor time per row of a sink: staged, committed and in their queue.

    python -m bench.sink --nodes 1 --rows 200000 --batches 5

Starts its own nodes on this machine. A batch counts from the first byte of its rows to the answer of a commit
that waits until all rows are durable in the target queue. With three nodes both the staging queue and the
target are mirrored on all of them; the client is connected to their master, or with --far to another node.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator

from mirrormq.client.amqp import AmqpClient
from mirrormq.client.bulk import BulkClient, Target
from mirrormq.client.sink import Sink, encode_row
from mirrormq.testing import cluster, running

Nodes = list[tuple[str, int, int]]
"""Host, port and process of each."""


@contextlib.contextmanager
def started(nodes: int) -> Iterator[Nodes]:
    if nodes == 1:
        with running() as node:
            yield [(node.host, node.port, node.process.pid)]
        return
    with cluster(nodes=nodes) as made:
        definition = {"ha-mode": "all"}
        made.ask(
            "set_policy", vhost="/", name="ha", pattern="^bench", definition=definition, apply_to="queues"
        )
        yield [(node.host, node.port, node.pid) for node in made.nodes]


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(nodes: Nodes, options: argparse.Namespace) -> None:
    host, port, _ = nodes[0]
    with AmqpClient(host, port, timeout=30) as client:
        client.declare("bench-sink")
    row = encode_row(bytes(options.size), b"bench-sink")
    piece = row * 1000
    with BulkClient(Target([(host, port)])) as client:
        Sink(client, "bench").open()
    contact = nodes[-1] if options.far else nodes[0]
    with BulkClient(Target([contact[:2]]), retry_s=30) as client:
        sink = Sink(client, "bench")
        sink.open()
        for batch in range(options.batches):
            before = [cpu_seconds(pid) for _, _, pid in nodes]
            own, begun = time.process_time(), time.monotonic()
            staged = sink.stage([piece] * (options.rows // 1000), batch=batch)
            middle = time.monotonic()
            answer = sink.commit(batch, [staged.tx], wait_s=300)
            ended = time.monotonic()
            assert answer.is_forwarded, answer
            spent = [cpu_seconds(pid) for _, _, pid in nodes]
            each = [1e6 * (after - first) / staged.rows for first, after in zip(before, spent, strict=True)]
            found = {
                "rows_per_s": int(staged.rows / (ended - begun)),
                "stage_s": round(middle - begun, 3),
                "commit_s": round(ended - middle, 3),
                "node_us_per_row": [round(one, 2) for one in each],
                "client_us_per_row": round(1e6 * (time.process_time() - own) / staged.rows, 2),
            }
            print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--far", action="store_true")
    options = parser.parse_args()
    with started(options.nodes) as nodes:
        measure(nodes, options)


if __name__ == "__main__":
    main()
