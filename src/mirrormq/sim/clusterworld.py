"""A whole cluster of shipped nodes under virtual time: clients, operators and faults, chosen by a seed.

Guarantee: the same seed gives the same run (`digest`). A broken promise raises `Violation`; the last events
are in `trace`. A run is: form the cluster, faults under load, then heal everything and require progress.

How clusters come about: a list that all nodes are given, started in any order; or one node that others join.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.broker.host import BrokerSettings
from mirrormq.cluster.raft.membership import VOTER
from mirrormq.node.memberframes import Answer, Forget, SetRole, Wish
from mirrormq.node.memberport import ClusterOptions, Contact
from mirrormq.node.membership import READY
from mirrormq.node.node import Node
from mirrormq.sim.clustercheck import ClusterChecker
from mirrormq.sim.clusterclient import EXCHANGES, LOCATORS, Client
from mirrormq.sim.clusterhistory import PUT, History, Op, binding_key, exchange_key
from mirrormq.sim.clusternet import Links
from mirrormq.sim.clusternode import SimNode
from mirrormq.sim.disk import SlowDisk
from mirrormq.sim.model import Violation
from mirrormq.sim.queueworld import SMALL_LIMITS as QUEUE_LIMITS
from mirrormq.sim.raftworld import SMALL_LIMITS as RAFT_LIMITS
from mirrormq.sim.timeline import SECOND, Timeline
from mirrormq.wire import methods

if TYPE_CHECKING:
    from mirrormq.sim.clusterfaults import Faults

SIZES = (3, 3, 3, 5)
CLIENTS = 5
MORE_LIMITS = {
    "forward_window_bytes": (300, 4_000, 512 * 1024),
    "forward_block_bytes": (200, 2_000, 128 * 1024),
    "forward_owed_bytes_max": (3_000, 50_000, 16 << 20),
}


@contextmanager
def small_limits(rng: random.Random, bounds: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Run with bounds chosen from these."""
    chosen = {name: rng.choice(values) for name, values in bounds.items() if hasattr(limits, name)}
    before = {name: getattr(limits, name) for name in chosen}
    try:
        for name, value in chosen.items():
            setattr(limits, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(limits, name, value)


@dataclass
class ClusterStats:
    """What a run consisted of."""

    events: int = 0
    faults: int = 0
    confirms: int = 0
    answers: int = 0
    deliveries: int = 0
    commits: int = 0
    elections: int = 0
    changes: int = 0
    refused: int = 0


class ClusterWorld(Timeline):
    """One seed. A directed test passes `size` and drives it by hand."""

    client_class: type[Client] = Client
    history_class: type[History] = History
    checker_class: type[ClusterChecker] = ClusterChecker
    settings = BrokerSettings()
    """Those of all nodes."""
    queues: Iterable[str] = LOCATORS
    """The names of the queues that clients use."""
    seconds = (15, 40)
    """How long faults last, at least and at most."""
    paces = (4_000, 10_000, 30_000)
    """Time between two things that clients do."""
    tells_silence = False
    """Are nodes told that a link is silent? It means something to mirrors only."""

    def __init__(
        self, seed: int, *, make_node: type[Node] = Node, size: int = 0, listed: bool | None = None
    ) -> None:
        """`make_node`: another class plants a bug. `listed`: all nodes have one list; else others join n1."""
        super().__init__()
        self.seed = seed
        self.make_node = make_node
        self.rng = random.Random(seed)
        self.stats = ClusterStats()
        self.history = self.history_class()
        self.meta_log_bytes = self.rng.choice([2_000, 10_000, 1 << 20])
        self.links = Links(self)
        self.nodes: dict[str, SimNode] = {}
        self.checker = self.checker_class(self)
        self.clients: list[Client] = []
        self.is_loaded = False
        self.is_draining = False
        self.drained_since = 0
        self._lost: dict[str, dict[str, Op]] = {}
        """Queues that go with a node whose disk is lost, or that has to go."""
        self._is_healed = False
        self._conn = 0
        names = [f"n{at}" for at in range(1, (size or self.rng.choice(SIZES)) + 1)]
        for name in names:
            self.nodes[name] = SimNode(self, name)
        self.roles: dict[str, str] = dict.fromkeys(names, VOTER)
        """What the operator wants each node to be."""
        self._name_contacts(self.rng.random() < 0.6 if listed is None else listed)

    def _name_contacts(self, is_listed: bool) -> None:
        names = list(self.nodes)
        certificate = self.rng.random() < 0.8
        listed = tuple(Contact(name, name) for name in self.rng.sample(names, len(names)))
        for at, (name, node) in enumerate(self.nodes.items()):
            known = self.rng.choice(names[:at]) if at else ""
            node.options = ClusterOptions(
                nodes=listed if is_listed else (),
                join=Contact(known, known) if known and not is_listed else None,
                address=name,
                death_certificate=certificate,
            )

    # --- nodes ---

    def start(self, name: str) -> None:
        """Start a process."""
        self.say(f"start {name}")
        self.nodes[name].start()

    def kill(self, name: str, how: str = "") -> None:
        """The process dies; the machine closes its sockets and keeps what was written."""
        self.say(f"kill {name} {how}")
        node = self.nodes[name]
        self.links.process_ends(name)
        node.end(node.disk.restart())

    def stop(self, name: str, reason: str) -> None:
        """A process ends itself."""
        node = self.nodes[name]
        node.stopped = reason
        if node.is_leaving:
            # It may not have told anybody that its wish came true; what only it has by now goes with it.
            self.lose_queues(name)
        self.links.process_ends(name)
        node.end(node.disk.restart())
        self.checker.stopped(node)
        self.stats.refused += 1

    def power_off(self, name: str) -> None:
        """The machine dies: nobody is told, and what was not flushed is lost or torn."""
        self.say(f"power off {name}")
        node, rng = self.nodes[name], self.rng
        self.links.power_goes(name)
        node.end(node.disk.crash(lambda most: rng.randint(0, most), lose_pages=rng.random() < 0.3))
        node.reboot_clocks()

    def empty(self, name: str) -> None:
        """The folder of a node that is down is emptied; what only it had is lost."""
        node = self.nodes[name]
        assert node.node is None, name
        self.lose_queues(name)
        node.disk = SlowDisk(self.rng)
        node.known = ()
        node.old_disks.clear()

    def lose_queues(self, name: str) -> None:
        """The disk of a master is gone: nobody can ask for its messages any more."""
        for queue in self.queues:
            homes = {
                record.node
                for node in self.nodes.values()
                if node.node is not None and (record := node.node.state.queues.get(("/", queue))) is not None
            }
            lost = self._lost.setdefault(name, {})
            if name in homes and queue not in lost:
                lost[queue] = self.history.lose_queue(queue, 0)

    def node_forgotten(self, name: str) -> None:
        """A node is out, and its queues are deleted by now: what is declared later is somewhere else."""
        for op in self._lost.pop(name, {}).values():
            op.end = self.now

    def passed(self, node: SimNode) -> None:
        """Look at a node after a pass, before anybody hears of what it did."""

    def check(self, node: SimNode) -> None:
        """Look at a node after a pass."""
        raft = node.raft
        assert raft is not None
        self.whisper(f"{node.name} {raft.term} {raft.commit_index} {raft.log.last_index}".encode())
        self.checker.check(node)

    def leader(self) -> SimNode | None:
        """The newest leader that is not paused."""
        leading = [
            node
            for node in self.nodes.values()
            if node.raft is not None and node.raft.is_leader and not node.is_paused
        ]
        return max(leading, key=lambda node: node.raft.term if node.raft else 0) if leading else None

    # --- operators ---

    def wish(self, by: SimNode, wish: Wish, done: Callable[[Answer], None]) -> None:
        """Have an operator ask a node for a change of the membership."""
        self.say(f"{by.name} is asked: {wish}")
        self.stats.changes += 1

        def answered(answer: Answer) -> None:
            self.say(f"{by.name} answers: {answer.problem or 'done'}")
            done(answer)

        by.input(lambda node, _: node.membership.council.wish(wish, answered))

    def insist(self, wish: Wish, done: Callable[[], None], is_wanted: Callable[[], bool]) -> None:
        """Ask again and again, any node that serves clients, until it is done or not wanted any more."""

        def ask() -> None:
            if not is_wanted():
                return
            ready = [node for node in self.nodes.values() if node.phase == READY and not node.is_paused]
            if not ready or (isinstance(wish, Forget) and wish.name in {node.name for node in ready}):
                self.after(SECOND, ask)
                return
            by = self.rng.choice(ready)
            life = by.life
            asked = [True]

            def answered(answer: Answer) -> None:
                asked.clear()
                # Somebody else may have asked before, who never heard the answer.
                is_done = isinstance(wish, Forget) and "is no member" in answer.problem
                if answer.problem and not is_done:
                    self.after(SECOND, ask)
                else:
                    done()

            def look() -> None:
                # Who was asked may be gone.
                if asked and by.life != life:
                    asked.clear()
                    ask()
                elif asked:
                    self.after(SECOND, look)

            self.wish(by, wish, answered)
            self.after(SECOND, look)

        ask()

    def is_as_desired(self) -> bool:
        """Does every node serve clients, in the role it is meant to have?"""
        leader = self.leader()
        if leader is None or leader.raft is None or any(node.phase != READY for node in self.nodes.values()):
            return False
        config = leader.raft.config
        roles = {member.name: member.role for member in config.members}
        return roles == self.roles and config.index <= leader.raft.commit_index

    def set_role(self, name: str, role: str) -> None:
        """Have a node get a role."""
        self.roles[name] = role
        self.insist(SetRole(name, role), lambda: None, lambda: self.roles[name] == role)

    # --- clients ---

    def connect(self, home: SimNode) -> Client:
        """A new client."""
        self._conn += 1
        self.say(f"client {self._conn} connects to {home.name}")
        client = self.make_client(home, self._conn)
        self.clients.append(client)
        return client

    def make_client(self, home: SimNode, conn: int) -> Client:
        """A client of the kind this world has."""
        return self.client_class(self, home, conn)

    def _operate(self) -> None:
        self.drop_lost()
        if not self.is_loaded or (self._is_calm() and self.rng.random() < 0.8):
            return
        homes = [node for node in self.nodes.values() if node.is_open and not node.is_paused]
        if homes and len(self.clients) < CLIENTS:
            self.connect(self.rng.choice(homes))
        if self.clients:
            for _ in range(self.rng.choice((1, 1, 2))):
                self.rng.choice(self.clients).act()

    def _is_calm(self) -> bool:
        """Do clients do less, since everything is healed?"""
        return self._is_healed

    def drop_lost(self) -> None:
        """Forget clients that have nothing to talk to."""
        for client in self.clients:
            if client.is_lost:
                self.say(f"client {client.conn} is gone: {client.why}")
                client.home.hang_up(client.conn)
        self.clients = [client for client in self.clients if not client.is_lost]

    # --- the run ---

    def run(self) -> None:
        """The whole run of a seed."""
        with self.small_limits():
            faults = self.make_faults()
            self.form()
            self.prepare()
            self.load()
            faults.run(self.rng.randrange(*self.seconds) * SECOND)
            self.say("heal")
            self._is_healed = True
            faults.heal()
            self.run_until(self.is_as_desired, 180 * SECOND, "not all nodes serve clients in their roles")
            self.finish()
        self.sum_up()
        if not self.stats.confirms:
            raise Violation("nothing was confirmed")

    def make_faults(self) -> "Faults":
        """What goes wrong in this world."""
        from mirrormq.sim.clusterfaults import Faults

        return Faults(self)

    def small_limits(self) -> AbstractContextManager[None]:
        """Run with small bounds, so that a short run passes them often."""
        return small_limits(self.rng, {**QUEUE_LIMITS, **RAFT_LIMITS, **MORE_LIMITS})

    def form(self) -> None:
        """Start everybody in any order and wait until the cluster is as desired."""
        for name in self.rng.sample(list(self.nodes), len(self.nodes)):
            self.after(self.rng.randrange(2 * SECOND), partial(self.start, name))
        for _ in range(self.rng.choice((0, 0, 2, 6))):
            self.run_for(self.rng.randrange(2 * SECOND))
            self._disturb_forming()
        self.run_for(SECOND)
        self.run_until(self.is_as_desired, 60 * SECOND, "no cluster is formed")

    def _disturb_forming(self) -> None:
        """Kill a node before there is a cluster, or while it grows."""
        up = [node for node in self.nodes.values() if node.node is not None]
        if not up:
            return
        self.stats.faults += 1
        node = self.rng.choice(up)
        if self.rng.random() < 0.5:
            self.kill(node.name)
        else:
            self.power_off(node.name)
        self.after(self.rng.choice((1_000, 100_000, SECOND)), lambda: self.start(node.name))

    def prepare(self) -> None:
        """Make everything clients use."""
        client = self.connect(self.nodes[self.rng.choice(list(self.nodes))])

        def wait() -> None:
            self.run_until(lambda: client.pending is None, 20 * SECOND, "nothing is declared")

        wait()
        for queue in self.queues:
            client.declare(queue)
            wait()
        for exchange in EXCHANGES:
            op = self.history.begin(PUT, exchange_key(exchange), self.now)
            made = methods.ExchangeDeclare(exchange=exchange, type="direct", durable=True)
            client.send(made, methods.ExchangeDeclareOk, op=op)
            wait()
            for queue in self.queues:
                op = self.history.begin(PUT, binding_key(exchange, queue), self.now)
                bound = methods.QueueBind(queue=queue, exchange=exchange, routing_key=queue)
                client.send(bound, methods.QueueBindOk, op=op)
                wait()

    def load(self) -> None:
        """Let clients work from now on."""
        self.is_loaded = True
        self.every(self.rng.choice(self.paces), self._operate)

    def finish(self) -> None:
        """Everything is healed: it goes on, comes to rest, and is what was promised."""
        before = self.history.confirms, self.history.answers
        self.run_until(
            lambda: self.history.confirms > before[0] + 5 and self.history.answers > before[1],
            60 * SECOND,
            "clients are not served after healing",
        )
        self.is_loaded = False
        self.run_until(
            lambda: not any(client.is_waiting and not client.is_lost for client in self.clients),
            60 * SECOND,
            "clients wait for ever",
        )
        for client in self.clients:
            client.leave()
        self.drop_lost()
        self.run_until(self.checker.is_quiet, 120 * SECOND, "the nodes do not come to rest")
        self.checker.check_same()
        self.drain()
        owed = self.history.check_messages()
        self.say(f"{owed} messages were owed and arrived")

    def drain(self) -> None:
        """Empty all queues through all nodes."""
        self.is_draining, self.drained_since = True, self.now
        self.run_until(self.checker.are_served, 120 * SECOND, "queues have no masters")
        names = [queue.name for queue in self.checker.masters()]
        self.every(5_000, lambda: self._drain_more(names))
        self.run_until(
            lambda: self._all_consume(names) and self.checker.is_drained(),
            120 * SECOND,
            "queues are not emptied",
        )

    def _drain_more(self, names: list[str]) -> None:
        """A client on each node that consumes everything; links may still be opening."""
        self.drop_lost()
        served = {client.home.name for client in self.clients}
        for node in self.nodes.values():
            if node.is_open and node.name not in served:
                self.connect(node)
        for client in self.clients:
            client.settle_all()
            missing = [name for name in names if name not in client.consumed.values()]
            if missing and client.pending is None:
                client.consume(missing[0])

    def _all_consume(self, names: list[str]) -> bool:
        consumed = [sorted(client.consumed.values()) for client in self.clients if client.pending is None]
        return consumed == [sorted(names)] * len(self.nodes)

    def sum_up(self) -> None:
        """Count, and let go of all nodes."""
        stats, history = self.stats, self.history
        stats.events = self.events
        stats.confirms, stats.answers = history.confirms, history.answers
        stats.deliveries = history.deliveries
        stats.commits = self.checker.raft.last_committed
        stats.elections = len(self.checker.raft.leaders)
        for node in self.nodes.values():
            if node.node is not None:
                node.end(node.disk)
