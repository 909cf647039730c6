"""kill -9 of the leader under a stream of declares, again and again on one cluster, with what it cost.

In each round clients on all other nodes declare queues and exchanges one after the other, the leader is
killed, and the round ends when every client has been answered by the new one. Then the killed node is started
again, and every node must know everything that was ever acknowledged. Times are from the kill to the first
node that leads, to the last one that knows it, and to the first acknowledgement of something declared after
the kill.

    python -m tests.cluster.killrun --nodes 3 --rounds 20
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mirrormq.wire import methods
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until
from tests.support.raw import Closed, Unexpected

BEFORE = 20
"""Declares each client has had acknowledged when the leader is killed, and again before the round ends."""


class Acked(NamedTuple):
    """Something that exists, and when it was asked for and acknowledged (wall time)."""

    name: str
    is_queue: bool
    sent_at: float
    acked_at: float


class Declarer:
    """A client of one node that declares durable objects as fast as they are acknowledged."""

    def __init__(self, node: Node, prefix: str) -> None:
        self.node = node
        self.acked: list[Acked] = []
        self.lost = 0
        """Connections that ended under it."""
        self._prefix = f"{prefix}-{node.short}"
        self._is_over = threading.Event()
        self._number = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> list[Acked]:
        """End after the next acknowledgement; returns everything acknowledged."""
        self._is_over.set()
        self._thread.join(kit.DEADLINE_S)
        assert not self._thread.is_alive(), f"the client of {self.node} was not answered"
        if self.failure is not None:
            raise self.failure
        return self.acked

    def wait_acked(self, count: int, since: float = 0.0) -> None:
        """Wait until so many objects that were asked for later than this were acknowledged."""
        what = f"{self.node} acknowledges {count} declares"

        def enough() -> bool:
            return sum(acked.sent_at >= since for acked in self.acked[-2 * count :]) >= count

        until(lambda: enough() or self.failure, what)

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                try:
                    self._declare_on()
                except (Closed, ConnectionError, Unexpected):
                    self.lost += 1
                    self._is_over.wait(kit.POLL_S)
        except BaseException as error:  # noqa: BLE001  (told to whoever waits)
            self.failure = error

    def _declare_on(self) -> None:
        with self.node.raw() as client:
            while not self._is_over.is_set():
                self._number += 1
                name, is_queue = f"{self._prefix}-{self._number}", self._number % 2 == 0
                sent_at = time.time()
                if is_queue:
                    client.call(1, methods.QueueDeclare(queue=name, durable=True), methods.QueueDeclareOk)
                else:
                    method = methods.ExchangeDeclare(exchange=name, type="fanout", durable=True)
                    client.call(1, method, methods.ExchangeDeclareOk)
                self.acked.append(Acked(name, is_queue, sent_at, time.time()))
            client.close_cleanly()


class Round(NamedTuple):
    """What one kill cost, in seconds."""

    leads: float
    known: float
    acked: float
    lost: int
    """Connections of clients on survivors that ended."""


def missing(cluster: Cluster, acked: Sequence[Acked]) -> list[str]:
    """What was acknowledged and a running node does not know."""
    found = []
    for node in cluster.others():
        queues = node.queues()
        exchanges = {row["name"] for row in node.ctl("list_exchanges")}
        known = (exchanges, queues)
        found += [f"{one.name} on {node}" for one in acked if one.name not in known[one.is_queue]]
    return found


def kill_leader(cluster: Cluster, prefix: str, promised: list[Acked]) -> tuple[Node, Round]:
    """One round; what was acknowledged goes to `promised`. Returns the killed node, still down."""
    leader = cluster.wait_whole()
    survivors = cluster.others(leader)
    clients = [Declarer(node, prefix) for node in survivors]
    for client in clients:
        client.wait_acked(BEFORE)
    marks = {node: len(node.lines) for node in survivors}
    killed_at = leader.kill()
    lines = [new_leader_line(node, marks[node]) for node in survivors]
    for client in clients:
        client.wait_acked(BEFORE, killed_at)
    acked = [one for client in clients for one in client.stop()]
    promised += acked
    times = [line.at - killed_at for line in lines]
    first = min(one.acked_at for one in acked if one.sent_at >= killed_at) - killed_at
    return leader, Round(min(times), max(times), first, sum(client.lost for client in clients))


def new_leader_line(node: Node, since: int) -> kit.Line:
    """The line by which a node says who leads now."""
    wanted = "leader changed", "leader="

    def line() -> kit.Line | None:
        found = [said for said in node.said(*wanted, since=since) if said.field("leader") != "none"]
        return found[0] if found else None

    return until(line, f"{node} knows a new leader")


def run(cluster: Cluster, rounds: int, tell: Callable[[str], object]) -> list[Round]:
    """Rounds of kills on one cluster; raises AssertionError if anything acknowledged is lost."""
    promised: list[Acked] = []
    done: list[Round] = []
    for number in range(rounds):
        killed, cost = kill_leader(cluster, f"r{number}", promised)
        done.append(cost)
        lost = missing(cluster, promised)
        assert not lost, f"lost after the kill of {killed}: {lost[:10]}"
        cluster.start(killed)
        cluster.wait_whole()
        lost = missing(cluster, promised)
        assert not lost, f"lost after the restart of {killed}: {lost[:10]}"
        tell(
            f"round {number}: {killed.short} killed, a leader after {cost.leads * 1000:.0f} ms, all know it"
            f" after {cost.known * 1000:.0f} ms, first acknowledged declare after {cost.acked * 1000:.0f} ms;"
            f" {len(promised)} objects promised\n"
        )
    return done


def summary(rounds: Sequence[Round]) -> str:
    """Distributions, in milliseconds."""
    rows = {
        "to the next leader": [cost.leads for cost in rounds],
        "until all know it": [cost.known for cost in rounds],
        "to the first acknowledged declare": [cost.acked for cost in rounds],
    }
    text = f"{len(rounds)} kills; milliseconds from the kill     p50    p90    max\n"
    for name, times in rows.items():
        cells = [f"{at(times, share) * 1000:7.0f}" for share in (0.5, 0.9, 1.0)]
        text += f"  {name:40}{''.join(cells)}\n"
    return text


def at(times: Sequence[float], share: float) -> float:
    """A quantile."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="mirrormq-cluster-") as folder,
        kit.cluster(Path(folder), options.nodes) as cluster,
    ):
        rounds = run(cluster, options.rounds, sys.stdout.write)
    sys.stdout.write(summary(rounds))
    return 1 if at([cost.leads for cost in rounds], 0.9) > 0.5 else 0


if __name__ == "__main__":
    sys.exit(main())
