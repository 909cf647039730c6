"""CPU per message of a queue used through another node, beside the same queue used on its master.

Two nodes in one process, frames passed in memory: no sockets, no clients' work, no disk. A message is
published with confirms, delivered and acknowledged; through another node it crosses the link twice, as a
publish and as a delivery. What is measured is the time both nodes take together.

    python -m bench.forward [messages]
"""

from __future__ import annotations

import sys
import time
from statistics import median

from mirrormq.wire import methods
from tests.support.clusterkit import ClusterKit
from tests.support.kernelkit import publish, settle_method
from tests.support.nodekit import Client

ROUNDS = 5


class Sink:
    """Takes a client's output without reading it."""

    def __init__(self, client: Client) -> None:
        self.size = 0
        client.received = self._take  # type: ignore[method-assign]

    def _take(self, data: bytes) -> None:
        self.size += len(data)


def cpu_per_message(node: str, size: int, batch: int, messages: int) -> float:
    """Microseconds of one message through clients connected to `node`; the queue is on `master`."""
    kit = ClusterKit("home", "master")
    kit["master"].client().declare("q")
    sender, taker = kit[node].client(), kit[node].client()
    sender.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    taker.consume("q")
    sink = Sink(taker)
    Sink(sender)
    block = publish(b"q", b"x" * size) * batch
    taken = 0

    def run(count: int) -> None:
        nonlocal taken
        for _ in range(count // batch):
            sender.feed(block)
            taken += batch
            taker.feed(settle_method(80, taken, 1))

    run(batch * 10)
    begin = time.process_time()
    run(messages)
    took = time.process_time() - begin
    queue = kit.node("master").vhosts["/"].queues["q"]
    assert (queue.core.acked, queue.core.ready, queue.core.unacked) == (taken, 0, 0)
    assert sink.size > taken * size
    return took * 1_000_000 / messages


def main(messages: int) -> None:
    """Print a table."""
    print("body  batch   on its master   through another node   ratio")
    for size in (16, 1024):
        for batch in (1, 10, 100, 1000):
            count = max(messages * min(batch, 100) // 100, batch) // batch * batch
            here = median(cpu_per_message("master", size, batch, count) for _ in range(ROUNDS))
            there = median(cpu_per_message("home", size, batch, count) for _ in range(ROUNDS))
            print(f"{size:4d} {batch:6d} {here:12.2f} µs {there:19.2f} µs {there / here:7.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
