"""Sinks on a cluster of shipped nodes with mirrored queues under virtual time, chosen by a seed.

Guarantee: the same seed gives the same run. Drivers stage and commit batches while nodes, links, disks and
clocks fail; in the end everything is healed, all batches arrive, and every target queue is emptied by a
client: each committed row is there once, in order, and all rows of a batch came from one and the same commit.
Of a queue that is deleted meanwhile nothing is there twice.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mirrormq.base.types import Now
from mirrormq.broker.staging import StagingQueue
from mirrormq.meta.commands import SetPolicy
from mirrormq.meta.records import Policy
from mirrormq.node.node import Node
from mirrormq.sim.clusterclient import Client
from mirrormq.sim.clusterfaults import Faults
from mirrormq.sim.clusternode import SimNode
from mirrormq.sim.clusterworld import MORE_LIMITS, ClusterStats, ClusterWorld, small_limits
from mirrormq.sim.model import Violation
from mirrormq.sim.queueworld import SMALL_LIMITS as QUEUE_LIMITS
from mirrormq.sim.raftworld import SMALL_LIMITS as RAFT_LIMITS
from mirrormq.sim.session import Arrival
from mirrormq.sim.sinkdriver import DOOMED, PARTITIONS, TARGETS, Driver, rows_of
from mirrormq.sim.timeline import SECOND
from mirrormq.wire import methods

SINK_LIMITS = {
    "sink_turn_bytes": (300, 4_000, 256 * 1024),
    "sink_window_bytes": (300, 4_000, 2 << 20),
    "sink_cache_bytes": (300, 2_000, 32 << 20),
    "recovery_wait_us": (5 * SECOND,),
    "ask_us_max": (3 * SECOND // 2,),
}
POLICIES: dict[str, dict[str, Any]] = {
    "first": {"ha-mode": "all"},
    "second": {"ha-mode": "exactly", "ha-params": 2},
    DOOMED: {"ha-mode": "all"},
}
DRIVERS = 2
CONFIRMS = 200
"""A seed counts with so many rows."""
MORE_BATCHES = 3
"""How many every driver gets done after healing."""
HEAL_US = 240 * SECOND


@dataclass
class SinkStats(ClusterStats):
    """What a run consisted of."""

    batches: int = 0
    rows: int = 0
    again: int = 0
    """Commits beyond the first one of their batch."""


class SinkFaults(Faults):
    """Everything that must not lose anything, aimed at masters more often than not."""

    periods = (150_000, 500_000, 1_500_000)

    def kinds(self) -> list[Callable[[], bool]]:
        """No disk is emptied: what all its copies lose is lost."""
        harmless = (self._change_role, self._wipe, self._roll_back, self._forget)
        kinds = [kind for kind in super().kinds() if kind not in harmless]
        return [*kinds, self._kill_master, self._kill_master, self._power_off_master, self._change_doomed]

    def _master(self) -> SimNode | None:
        """Whoever has the master of some staging or target queue."""
        up = [node for node in self.world.nodes.values() if node.node is not None]
        having = [node for node in up if node.node is not None and node.node.switch.masters]
        return self.rng.choice(having) if having else None

    def _kill_master(self) -> bool:
        node = self._master()
        if node is None:
            return False
        self.world.kill(node.name, "which is a master")
        self._start_later(node)
        return True

    def _power_off_master(self) -> bool:
        node = self._master()
        if node is None:
            return False
        self.world.power_off(node.name)
        self._start_later(node)
        return True

    def _change_doomed(self) -> bool:
        world = self.world
        assert isinstance(world, SinkWorld)
        return world.change_doomed()


class Collector(Client):
    """A client that declares, deletes and, in the end, takes everything out of queues."""

    def __init__(self, world: ClusterWorld, home: SimNode, conn: int) -> None:
        super().__init__(world, home, conn)
        self.found: dict[str, list[bytes]] = {}

    def hear(self, arrival: Arrival) -> None:
        """Take one answer."""
        method, content = arrival
        if isinstance(method, methods.BasicDeliver):
            assert content is not None
            self.world.whisper(content[1])
            self.found.setdefault(self.consumed[method.consumer_tag], []).append(content[1])
        else:
            super().hear(arrival)

    def take(self, queue: str) -> None:
        """Take everything out of a queue, for good."""
        self.consumed[queue] = queue
        method = methods.BasicConsume(queue=queue, consumer_tag=queue, no_ack=True)
        self.send(method, methods.BasicConsumeOk)


class SinkWorld(ClusterWorld):
    """One seed."""

    client_class = Collector
    queues = ()
    seconds = (3, 12)
    paces = (2_000, 8_000, 20_000)

    def __init__(self, seed: int, *, make_node: type[Node] = Node) -> None:
        super().__init__(seed, make_node=make_node)
        self.stats: SinkStats = SinkStats()
        self.drivers = [Driver(self, f"s{number}") for number in range(1, DRIVERS + 1)]

    def make_faults(self) -> SinkFaults:
        """What goes wrong in this world."""
        return SinkFaults(self)

    def small_limits(self) -> AbstractContextManager[None]:
        """Run with small bounds, so that a short run passes them often."""
        return small_limits(self.rng, {**QUEUE_LIMITS, **RAFT_LIMITS, **MORE_LIMITS, **SINK_LIMITS})

    def next_conn(self) -> int:
        """A number for another connection."""
        self._conn += 1
        return self._conn

    def on_batch(self, driver: Driver) -> None:
        """A driver has heard that a batch is committed."""
        batch = driver.batch
        rows = sum(len(rows_of(self.seed, driver.name, batch, at)) for at in range(PARTITIONS))
        self.stats.batches += 1
        self.stats.rows += rows
        self.stats.again += max(0, len(driver.offers.get(batch, ())) - 1)
        self.history.confirms += rows
        self.history.answers += 1

    # --- the run ---

    def prepare(self) -> None:
        """Declare the targets, under their policies."""
        for queue, definition in POLICIES.items():
            self._set_policy(Policy("/", f"p-{queue}", f"^{queue}$", definition, "queues"))
        self.run_for(SECOND)
        client = self.connect(self.rng.choice([node for node in self.nodes.values() if node.is_open]))
        for queue in (*TARGETS, DOOMED):
            self.run_until(lambda: client.pending is None, 20 * SECOND, "nothing is declared")
            client.send(_declare(queue), methods.QueueDeclareOk)
        self.run_until(lambda: client.pending is None, 20 * SECOND, "nothing is declared")

    def _set_policy(self, policy: Policy) -> None:
        def ask(core: Node, _: Now) -> None:
            core.propose(SetPolicy(policy), lambda __: None, False)

        leader = self.leader()
        assert leader is not None
        leader.input(ask)

    def change_doomed(self) -> bool:
        """Delete or declare the queue that comes and goes; whether there was somebody to ask."""
        self.drop_lost()
        homes = [node for node in self.nodes.values() if node.is_open and not node.is_paused]
        if not self.clients and homes:
            self.connect(self.rng.choice(homes))
        if not self.clients or self.clients[0].pending is not None:
            return False
        method = methods.QueueDelete(queue=DOOMED) if self.rng.random() < 0.5 else _declare(DOOMED)
        self.clients[0].send(method, methods.QueueDeleteOk, methods.QueueDeclareOk)
        return True

    def load(self) -> None:
        """Let drivers work from now on."""
        self.is_loaded = True
        self.every(self.rng.choice(self.paces), self._drive)

    def _drive(self) -> None:
        for driver in self.drivers:
            driver.act()

    def finish(self) -> None:
        """Everything is healed: drivers go on, come to rest, and all rows are where they belong."""
        goals = [driver.batch + MORE_BATCHES for driver in self.drivers]
        self.run_until(
            lambda: (
                self.history.confirms >= CONFIRMS
                and all(driver.batch >= goal for driver, goal in zip(self.drivers, goals, strict=True))
            ),
            HEAL_US,
            "no batch is committed after healing",
        )
        for driver in self.drivers:
            driver.is_ending = True
        self.run_until(lambda: all(driver.is_idle for driver in self.drivers), HEAL_US, "drivers do not end")
        self.run_until(self._has_arrived, HEAL_US, "committed rows do not arrive")
        for client in self.clients:
            client.leave()
        self.drop_lost()
        self.run_until(self.checker.is_quiet, 120 * SECOND, "the nodes do not come to rest")
        self.checker.check_same()
        self._check(self._taken())

    def _has_arrived(self) -> bool:
        sinks = [
            queue
            for node in self.nodes.values()
            if node.node is not None
            for queue in node.node.switch.masters.values()
            if isinstance(queue, StagingQueue)
        ]
        is_there = len(sinks) == len(self.drivers) and self.is_as_desired()
        return is_there and not any(queue.staging.state.sending for queue in sinks)

    def _taken(self) -> dict[str, list[bytes]]:
        """Everything that is in the targets."""
        client = self.connect(self.rng.choice(list(self.nodes.values())))
        assert isinstance(client, Collector)
        there = [queue.name for queue in self.checker.masters() if queue.name in (*TARGETS, DOOMED)]
        for queue in there:
            self.run_until(lambda: client.pending is None, 20 * SECOND, "nothing can be consumed")
            client.take(queue)
        named = (*TARGETS, DOOMED)
        self.run_until(
            lambda: not any(queue.core.ready for queue in self.checker.masters() if queue.name in named),
            120 * SECOND,
            "targets are not emptied",
        )
        self.run_for(SECOND)
        return client.found

    # --- what was promised ---

    def _check(self, found: dict[str, list[bytes]]) -> None:
        for driver in self.drivers:
            attempts: dict[int, dict[int, int]] = {}
            for queue in TARGETS:
                rows = _rows(found.get(queue, []), driver.name)
                wanted = [
                    (batch, partition, at)
                    for batch in range(driver.batch)
                    for partition in range(PARTITIONS)
                    for at, key in enumerate(rows_of(self.seed, driver.name, batch, partition))
                    if key == queue
                ]
                if [row[:3] for row in rows] != wanted:
                    raise Violation(f"{queue}: {_difference([row[:3] for row in rows], wanted)}")
                for batch, partition, _, attempt in rows:
                    if attempts.setdefault(batch, {}).setdefault(partition, attempt) != attempt:
                        raise Violation(f"{queue}: batch {batch} of {driver.name} is of several attempts")
            for batch, seen in attempts.items():
                if not any(seen.items() <= offered.items() for offered in driver.offers[batch]):
                    raise Violation(
                        f"batch {batch} of {driver.name}: {seen} is of no commit: {driver.offers}"
                    )
            doomed = [row[:3] for row in _rows(found.get(DOOMED, []), driver.name)]
            if doomed != sorted(set(doomed)):
                raise Violation(f"{DOOMED}: rows of {driver.name} are there twice, or not in order: {doomed}")
        self.history.deliveries = sum(map(len, found.values()))


def _declare(queue: str) -> methods.QueueDeclare:
    return methods.QueueDeclare(queue=queue, durable=True, arguments={"x-queue-master-locator": "random"})


def _rows(bodies: list[bytes], sink: str) -> list[tuple[int, int, int, int]]:
    """(batch, partition, row, attempt) of a sink's rows."""
    split = [body.split(b"/")[:5] for body in bodies]
    return [
        (int(batch), int(partition), int(at), int(attempt))
        for name, batch, partition, at, attempt in split
        if name.decode() == sink
    ]


def _difference(found: list[tuple[int, int, int]], wanted: list[tuple[int, int, int]]) -> str:
    missing = sorted(set(wanted) - set(found))[:5]
    extra = sorted(set(found) - set(wanted))[:5]
    twice = sorted({row for row in found if found.count(row) > 1})[:5]
    return f"(batch, partition, row) missing {missing}, never committed {extra}, twice {twice}, or reordered"
