"""The faults of the campaign against mirrored queues: what is done to a cluster, and how it is undone.

Every fault leaves all nodes running, all links open and all disks with space. While a node is frozen or a
link of it is cut or slow it counts as touched: see the ledger on why that matters.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.cluster.kit import Cluster, Node, until
from tests.integration.smalldisk import MIB, SmallDisk

FOREIGN = "data folder is new or older than the cluster remembers; forget_cluster_node, then join"
LEASE_S = 5.0
FROZEN_S = LEASE_S + 2.5
"""Longer than a lease."""
FIND_OUT_S = 1.0
"""Within this a node that goes on has closed its clients, or has its lease."""
CUT_S = (0.5, 9.0)
"""From what nobody notices to what ends links and leases."""
DISK_BYTES = 256 * MIB
DISK_SETTINGS = ("disk_reserve=16MiB", "disk_free_limit=32MiB")


class Field:
    """A cluster with mirrored queues on which faults happen."""

    def __init__(
        self, cluster: Cluster, queues: list[str], rng: random.Random, disk: SmallDisk | None
    ) -> None:
        self.cluster = cluster
        self.queues = queues
        self.rng = rng
        self.disk = disk
        """The small disk of the last node."""
        self._touched: list[tuple[set[str], float, float]] = []
        """Names, from, until (infinity while it lasts)."""
        self._stopped: list[tuple[str, float, float]] = []
        """The same of nodes that stood still."""

    # --- looking ---

    def row(self, queue: str) -> dict[str, Any]:
        """What a running node knows of a queue."""
        for node in self.cluster.others():
            rows = node.asked("list_queues", vhost="/") or ()
            for row in rows:
                if row["name"] == queue:
                    return dict(row)
        return {}

    def master(self, queue: str) -> Node:
        """The master of a queue, once it has one that runs."""

        def found() -> Node | None:
            name = self.row(queue).get("master")
            return next((node for node in self.cluster.others() if node.name == name), None)

        return until(found, f"{queue} has a master", 60)

    def mirrors(self, queue: str) -> list[Node]:
        """The other nodes with a copy of a queue."""
        row = self.row(queue)
        named = {*row.get("in_sync", ()), *row.get("unsynchronised", ())} - {row.get("master")}
        return [node for node in self.cluster.others() if node.name in named]

    def wait_synced(self) -> None:
        """Wait until every queue has as many synchronised copies as its policy wants."""
        for queue in self.queues:
            until(partial(self._is_synced, queue), partial(self._told, queue), 90)

    def _is_synced(self, queue: str) -> bool:
        wanted = 2 if queue.startswith("two") else len(self.cluster.nodes)
        return len(self.row(queue).get("in_sync", ())) == wanted

    def _told(self, queue: str) -> str:
        return f"{queue} has all its copies in sync: {self.row(queue)}"

    def is_touched(self, node: Node, since: float) -> bool:
        """Was a node frozen or cut off at any time since then?"""
        return any(node.name in names and since <= end for names, _, end in self._touched)

    def is_late(self, node: Node) -> bool:
        """May what a client gets from this node now have been on its way when the node stood still?"""
        now = time.monotonic()
        return any(node.name == name and began <= now <= end for name, began, end in self._stopped)

    # --- doing ---

    def pick(self, queue: str, *, master: bool) -> Node:
        """The master of a queue, or another node with a copy."""
        found = self.master(queue)
        if master:
            return found
        mirrors = [node for node in self.mirrors(queue) if node is not found]
        return self.rng.choice(mirrors or self.cluster.others(found))

    def last(self, low: float, high: float) -> float:
        """Let a fault last for a random time."""
        seconds = self.rng.uniform(low, high)
        threading.Event().wait(seconds)
        return seconds

    @contextlib.contextmanager
    def touching(self, *nodes: Node) -> Iterator[None]:
        """While these nodes, or all, are frozen or cut off, and until their links have recovered."""
        names = {node.name for node in nodes or self.cluster.nodes}
        place = len(self._touched)
        began = time.monotonic()
        self._touched.append((names, began, float("inf")))
        try:
            yield
        finally:
            # What was delivered before the end of a fault may be acknowledged after it.
            self._touched[place] = (names, began, time.monotonic() + LEASE_S)

    @contextlib.contextmanager
    def stopping(self, node: Node) -> Iterator[None]:
        """While a node stands still, and until it has found out that its lease is over."""
        began = time.monotonic()
        place = len(self._stopped)
        self._stopped.append((node.name, began, float("inf")))
        with self.touching(node), node.frozen():
            yield
        self._stopped[place] = (node.name, began, time.monotonic() + FIND_OUT_S)


Fault = Callable[[Field, str], str]
"""What happens; it returns what it did, for the log."""


def kill_master(field: Field, queue: str) -> str:
    """kill -9, and a start a while later."""
    return _kill(field, field.pick(queue, master=True))


def kill_mirror(field: Field, queue: str) -> str:
    """kill -9 of a node with another copy."""
    return _kill(field, field.pick(queue, master=False))


def _kill(field: Field, node: Node) -> str:
    node.kill()
    seconds = field.last(0, 3)
    field.cluster.start(node)
    return f"{node.short} for {seconds:.1f} s"


def kill_two(field: Field, queue: str) -> str:
    """kill -9 of the master and, right after it, of a mirror; in five nodes the others go on."""
    master, mirror = field.pick(queue, master=True), field.pick(queue, master=False)
    master.kill()
    mirror.kill()
    seconds = field.last(0, 3)
    pair = [master, mirror]
    field.rng.shuffle(pair)
    # Together: with three nodes neither is ready before the other is there.
    field.cluster.start(*pair)
    return f"{master.short} and {mirror.short} for {seconds:.1f} s"


def kill_all(field: Field, _queue: str) -> str:
    """kill -9 of all nodes, started again in another order."""
    nodes = list(field.cluster.nodes)
    field.rng.shuffle(nodes)
    for node in nodes:
        node.signal(signal.SIGKILL)
    for node in nodes:
        node.wait_end()
    field.rng.shuffle(nodes)
    field.cluster.start(*nodes)
    return "started as " + " ".join(node.short for node in nodes)


def freeze_master(field: Field, queue: str) -> str:
    """SIGSTOP for longer than a lease, then SIGCONT."""
    node = field.pick(queue, master=True)
    with field.stopping(node):
        seconds = field.last(FROZEN_S, FROZEN_S + 2)
    return f"{node.short} for {seconds:.1f} s"


def freeze_briefly(field: Field, queue: str) -> str:
    """SIGSTOP of the master for less than a lease."""
    node = field.pick(queue, master=True)
    with field.stopping(node):
        seconds = field.last(0.2, LEASE_S - 1)
    return f"{node.short} for {seconds:.1f} s"


def freeze_all(field: Field, _queue: str) -> str:
    """SIGSTOP of all nodes, as when their machine stands still: nobody was without the others, so no ack
    may be overtaken.
    """
    with contextlib.ExitStack() as stack:
        for node in field.cluster.nodes:
            stack.enter_context(node.frozen())
        seconds = field.last(1, FROZEN_S + 2)
    return f"for {seconds:.1f} s"


def isolate_master(field: Field, queue: str) -> str:
    """No byte between the master and all others."""
    node = field.pick(queue, master=True)
    with field.touching():
        field.cluster.net.isolate(node.name)
        seconds = field.last(*CUT_S)
        field.cluster.net.heal()
    return f"{node.short} for {seconds:.1f} s"


def cut_master_from_mirror(field: Field, queue: str) -> str:
    """No byte between the master and one mirror."""
    return _cut(field, field.pick(queue, master=True), field.pick(queue, master=False), one_way=False)


def cut_one_way(field: Field, queue: str) -> str:
    """No byte from the master to a mirror, or from a mirror to the master."""
    ends = [field.pick(queue, master=True), field.pick(queue, master=False)]
    field.rng.shuffle(ends)
    return _cut(field, *ends, one_way=True)


def cut_between_mirrors(field: Field, queue: str) -> str:
    """No byte between two nodes of which neither is the master."""
    one, other = field.rng.sample(field.cluster.others(field.pick(queue, master=True)), 2)
    return _cut(field, one, other, one_way=False)


def _cut(field: Field, one: Node, other: Node, *, one_way: bool) -> str:
    with field.touching(one, other):
        (field.cluster.net.cut_one_way if one_way else field.cluster.net.cut)(one.name, other.name)
        seconds = field.last(*CUT_S)
        field.cluster.net.heal()
    return f"{one.short} {'to' if one_way else 'and'} {other.short} for {seconds:.1f} s"


def delay_links(field: Field, queue: str) -> str:
    """Every byte from and to the master is late."""
    node, late = field.pick(queue, master=True), field.rng.uniform(0.02, 0.3)
    with field.touching():
        for other in field.cluster.others(node):
            field.cluster.net.delay(node.name, other.name, late)
        seconds = field.last(1, 5)
        field.cluster.net.heal()
    return f"{node.short} by {late * 1000:.0f} ms for {seconds:.1f} s"


def stop_master(field: Field, queue: str) -> str:
    """SIGTERM, and a start a while later."""
    node = field.pick(queue, master=True)
    code = node.stop()
    assert code == 0, f"{node} stopped with {code}"
    seconds = field.last(0, 3)
    field.cluster.start(node)
    return f"{node.short} for {seconds:.1f} s"


def fill_disk(field: Field, _queue: str) -> str:
    """The disk of one node is full for a while."""
    assert field.disk is not None
    field.disk.fill()
    seconds = field.last(2, 5)
    field.disk.relieve()
    return f"{field.cluster.nodes[-1].short} for {seconds:.1f} s"


def empty_folder(field: Field, queue: str) -> str:
    """A mirror loses its data: it is refused, forgotten, and joins as a new node."""
    # Only what has other synchronised copies may be taken away.
    field.wait_synced()
    node = field.pick(queue, master=False)
    if field.disk is not None and node is field.cluster.nodes[-1]:
        node = next(other for other in field.cluster if other not in (node, field.master(queue)))
    node.kill()
    shutil.rmtree(node.folder)
    node.start()
    assert node.wait_end() == 1
    assert FOREIGN in node.wait_for("mirrormq: ").text
    field.cluster.leader().ctl("forget_cluster_node", node=node.name)
    field.cluster.start(node)
    return node.short


FAULTS: dict[str, tuple[int, Fault]] = {
    "kill -9 of the master": (5, kill_master),
    "kill -9 of a mirror": (3, kill_mirror),
    "kill -9 of master and mirror": (2, kill_two),
    "kill -9 of all nodes": (2, kill_all),
    "master frozen longer than its lease": (2, freeze_master),
    "master frozen for a moment": (1, freeze_briefly),
    "all nodes frozen at once": (1, freeze_all),
    "master cut off from all": (2, isolate_master),
    "link of master and mirror cut": (2, cut_master_from_mirror),
    "link cut in one direction": (2, cut_one_way),
    "link between two mirrors cut": (2, cut_between_mirrors),
    "slow links of the master": (1, delay_links),
    "graceful stop of the master": (2, stop_master),
    "full disk of a node": (1, fill_disk),
    "emptied data folder of a mirror": (1, empty_folder),
}
"""Their weights in a random campaign."""


def give_small_disk(cluster: Cluster, disk: SmallDisk) -> None:
    """Let the last node, which must not have started, keep its data on a disk that can be filled."""
    node = cluster.nodes[-1]
    node.enter = disk.enter
    node.view = disk.inside
    node.folder = disk.folder / "data"
    node.settings += DISK_SETTINGS
