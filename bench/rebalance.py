"""What moving masters costs:  python -m bench.rebalance [pause] [copy] [drain] [many]

pause  mirrored queues on the first of three nodes, each with a publisher that waits for every confirm and a
       consumer, all on the other nodes; then `rebalance` by each strategy: the longest wait for a confirm of
       each queue meanwhile, beside the longest one before.
copy   the same with queues without a mirror, which move by a copy; one holds `--backlog` messages.
drain  the same with `drain` of the first node.
many   `--queues` mirrored queues on one node: how long until they are even, and how many each node has then.

Every message is checked: confirmed, delivered once and in order. Real processes on loopback, as the tests
start them. Without a name all parts are run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from mirrormq.node.balancing import STRATEGIES
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until
from tests.cluster.steady import Consumer, Flow, Publisher

POLICY = {"vhost": "/", "name": "ha", "pattern": "^q", "definition": {"ha-mode": "all"}}
WARM_UP = 200
"""Messages of each queue before masters move."""


@contextmanager
def flowing(nodes: Sequence[Node], queues: Sequence[str], first: int) -> Iterator[Flow]:
    """A publisher for each queue, so that no pause of one hides that of another."""
    publishers = [Publisher(nodes[place % len(nodes)], [queue]) for place, queue in enumerate(queues)]
    consumers = [Consumer(node, queues[place :: len(nodes)]) for place, node in enumerate(reversed(nodes))]
    for publisher in publishers:
        publisher.confirmed = dict.fromkeys(publisher.queues, first)
    for consumer in consumers:
        consumer.got.update(dict.fromkeys(consumer.queues, first))
    flow = Flow(publishers, consumers)
    for worker in (*consumers, *publishers):
        worker.thread.start()
    try:
        yield flow
        flow.end()
    finally:
        for worker in (*publishers, *consumers):
            worker.is_over.set()


def forget(flow: Flow) -> None:
    """Measure from here."""
    for publisher in flow.publishers:
        publisher.slowest = dict.fromkeys(publisher.queues, 0.0)


def declare(node: Node, names: Sequence[str], backlog: int = 0) -> None:
    """Empty queues on a node, or with so many messages that nobody gets to see again."""
    channel = node.channel(confirms=False)
    for name in names:
        channel.queue_delete(name)
        channel.queue_declare(name, durable=True)
        for _ in range(backlog):
            channel.basic_publish("", name, b"0")
    channel.connection.close()


def masters(node: Node, prefix: str) -> Counter[str]:
    """How many of these queues every node is the master of."""
    rows = node.ctl("list_queues")
    return Counter(row["node"].partition("@")[0] for row in rows if row["name"].startswith(prefix))


def moved_under_load(cluster: Cluster, queues: Sequence[str], what: str, move: Callable[[], str]) -> None:
    """Move the masters of queues under load, and print what their clients noticed."""
    first, *others = cluster
    with flowing(others, queues, 0) as flow:
        flow.progress(WARM_UP)
        before = flow.slowest
        forget(flow)
        at_first = masters(first, queues[0][0])
        began = time.monotonic()
        result = move()
        took = time.monotonic() - began
        flow.progress(20)
        after = flow.slowest
    waits = sorted(after.values())
    print(
        f"{what:24} {result:28} {took:6.2f} s   longest confirm: median {median(waits) * 1000:5.1f} ms,"
        f" most {waits[-1] * 1000:5.1f} ms (before: {max(before.values()) * 1000:5.1f} ms)"
        f"   {dict(at_first)} -> {dict(masters(first, queues[0][0]))}",
        flush=True,
    )


def rebalanced(node: Node, pattern: str, strategy: str) -> str:
    """Rebalance and wait for the end."""
    begun = node.ctl("rebalance", queue_pattern=pattern, strategy=strategy)
    until(lambda: not node.ctl("rebalance_status")["running"], "it is done", 300)
    run = node.ctl("rebalance_status")["run"]
    assert run["failed"] == 0, run
    return f"{run['moved']} of {begun['planned']} moved"


def drained(node: Node) -> str:
    """Drain a node and wait for the end."""
    node.ctl("drain")
    until(lambda: node.ctl("maintenance_status")["masters"] == 0, "it is drained", 300)
    return "drained"


def measure_pause(cluster: Cluster, count: int) -> None:
    """Each strategy under load."""
    queues = [f"q{number}" for number in range(count)]
    for strategy in STRATEGIES:
        declare(cluster[0], queues)
        move = _bound(rebalanced, cluster[1], "^q", strategy)
        moved_under_load(cluster, queues, f"rebalance by {strategy}", move)


def _bound(move: Callable[..., str], *arguments: object) -> Callable[[], str]:
    return lambda: move(*arguments)


def measure_copy(cluster: Cluster, backlog: int) -> None:
    """Queues without mirrors: a long one that nobody reads beside three that are used."""
    declare(cluster[0], ["plain-long"], backlog)
    queues = ["plain0", "plain1", "plain2"]
    declare(cluster[0], queues)
    moved_under_load(
        cluster, queues, f"copies, one of {backlog}", _bound(rebalanced, cluster[1], "^plain", "")
    )


def measure_drain(cluster: Cluster, count: int) -> None:
    """Maintenance under load."""
    queues = [f"q{number}" for number in range(count)]
    declare(cluster[0], queues)
    moved_under_load(cluster, queues, "drain", _bound(drained, cluster[0]))
    cluster[0].ctl("revive")


def measure_many(cluster: Cluster, count: int) -> None:
    """Very many queues."""
    declare(cluster[0], [f"q-many-{number}" for number in range(count)])
    before = masters(cluster[1], "q-many")
    began = time.monotonic()
    result = rebalanced(cluster[0], "^q-many", "")
    took = time.monotonic() - began
    print(
        f"{count} queues: {result} in {took:.2f} s   {dict(before)} -> {dict(masters(cluster[1], 'q-many'))}"
    )


def main() -> None:
    """Run the parts that were named."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("parts", nargs="*", metavar="PART", help="pause, copy, drain, many; all if none")
    made.add_argument("--used", type=int, default=9, help="queues with clients (9)")
    made.add_argument("--queues", type=int, default=1000, help="queues of `many` (1000)")
    made.add_argument(
        "--backlog", type=int, default=20_000, help="messages of the queue that is copied (20000)"
    )
    given = made.parse_args()
    parts: dict[str, Callable[[Cluster], None]] = {
        "pause": lambda cluster: measure_pause(cluster, given.used),
        "copy": lambda cluster: measure_copy(cluster, given.backlog),
        "drain": lambda cluster: measure_drain(cluster, given.used),
        "many": lambda cluster: measure_many(cluster, given.queues),
    }
    for part in given.parts or parts:
        with tempfile.TemporaryDirectory() as folder, kit.cluster(Path(folder)) as cluster:
            cluster[0].ctl("set_policy", **POLICY)
            parts[part](cluster)


if __name__ == "__main__":
    main()
