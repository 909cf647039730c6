"""A cluster of shipped nodes with mirrored queues under virtual time, chosen by a seed.

Guarantee: the same seed gives the same run. Everything a client may rely on is checked while it happens
(`hacheck`, `hahistory`); in the end all faults are healed, every queue has all the copies its policy wants,
one more master is killed, and every confirmed message is taken out of its queue by a client.
"""

import random
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

from mirrormq.base.types import Now
from mirrormq.broker.branch import Branch
from mirrormq.broker.host import BrokerSettings
from mirrormq.meta import mirroring
from mirrormq.meta.commands import ForcePromote, SetPolicy
from mirrormq.meta.records import FORGOTTEN, Policy, Queue, View
from mirrormq.meta.state import MetaState
from mirrormq.node.copies import Copies
from mirrormq.node.membership import READY
from mirrormq.node.node import Node
from mirrormq.node.partition import AUTOHEAL, MODES, PAUSE_IF_ALL_DOWN, PAUSE_MINORITY
from mirrormq.sim.clusterclient import Client
from mirrormq.sim.clusternode import SimNode
from mirrormq.sim.clusterworld import MORE_LIMITS, ClusterStats, ClusterWorld, small_limits
from mirrormq.sim.hacheck import MirrorChecker
from mirrormq.sim.haclient import BRIEF, SPECS, HaClient
from mirrormq.sim.hafacts import WatchedCopyLog
from mirrormq.sim.hafaults import CONFIRMS, HaFaults
from mirrormq.sim.haheard import SPOOLING
from mirrormq.sim.hahistory import LETTERS, HaHistory, HaSent
from mirrormq.sim.hatx import TxClient
from mirrormq.sim.queueworld import SMALL_LIMITS as QUEUE_LIMITS
from mirrormq.sim.raftworld import SMALL_LIMITS as RAFT_LIMITS
from mirrormq.sim.timeline import SECOND

HA_LIMITS = {
    "recent_bytes_max": (2_000, 50_000, 1 << 20),
    "copy_mark_bytes": (2_000, 50_000, 1 << 20),
    "copy_read_bytes": (500, 5_000, 1 << 20),
    "copy_hold_bytes_max": (5_000, 1 << 20, 1 << 30),
    "copy_slice_bytes": (500, 1 << 20),
    "mirror_frame_bytes": (2_000, 1 << 20),
    "mirror_read_bytes": (500, 2_000),
    "mirror_epochs_max": (2, 8, 64),
    "mirror_slice_queues": (1, 200),
    "mirror_proposals_max": (1, 64),
    "stray_copy_us": (5 * SECOND, 600 * SECOND),
    "recovery_wait_us": (5 * SECOND, 30 * SECOND),
    "ask_us_max": (3 * SECOND // 2,) * 9 + (15 * SECOND,),
}
SPOOL_LIMITS = {
    "spool_memory_bytes": (0, 500, 20_000),
    "spool_bytes_max": (3_000, 100_000, 1 << 20),
    "spool_file_bytes": (1, 2_000, 100_000),
}
"""With partition modes that keep publishes on disk."""
BRANCH_LIMITS = {
    "branch_slice_messages": (1, 5, 256),
    "branch_merges_max": (1, 16),
    "branches_per_pass": (1, 50),
}
"""With branches."""
LARGEST_BATCH = 256 * 1024
HEAL_US = 240 * SECOND
ANY_MODE = "any"
MODE_SECONDS = (2, 10)


@dataclass
class HaStats(ClusterStats):
    """What a run consisted of."""

    nacks: int = 0
    views: int = 0
    failovers: int = 0
    losses: int = 0
    salvaged: int = 0
    """Messages that came back after a lossy promotion, from copies that it had passed over."""
    unseen: int = 0
    """Confirms of queues that had no view."""
    waived: int = 0
    """Passes after which a queue could be delivered from without a lease."""
    spooled: int = 0
    """Passes after which publishes lay in a spool."""
    branches: int = 0
    """Branches that were opened."""
    branched: int = 0
    """Confirms by a branch."""
    transactions: int = 0
    """Those whose commit was answered."""


class WatchedCopies(Copies):
    """Copies whose logs are remembered outside."""

    log_class = WatchedCopyLog


class WatchedNode(Node):
    """The shipped node."""

    copies_class = WatchedCopies


class HaWorld(ClusterWorld):
    """One seed."""

    client_class = HaClient
    history_class = HaHistory
    queues = SPECS
    lengths: tuple[tuple[int, int], ...] = ((1, 4), (1, 4), (1, 4), (1, 4), (4, 10), (6, 20))
    paces = (6_000, 12_000, 25_000)
    largest_batch = LARGEST_BATCH
    tells_silence = True
    ha_limits = HA_LIMITS

    def __init__(
        self,
        seed: int,
        *,
        make_node: type[Node] = WatchedNode,
        size: int = 0,
        listed: bool | None = None,
        mode: str = PAUSE_MINORITY,
        transactions: bool | None = None,
    ) -> None:
        """`mode`: what nodes do that are cut off; ANY_MODE: one that the seed chooses.

        `transactions`: whether some clients use them; the seed chooses if nothing is said.
        """
        super().__init__(seed, make_node=make_node, size=size, listed=listed)
        if mode == ANY_MODE:
            # By a generator of its own: with one mode for all a seed does what it always did.
            mode = random.Random(f"mode {seed}").choice(MODES)
        # Likewise: most cuts are over before the shipped detector would say anything.
        suspicions = (3 * SECOND // 10, self.links.suspect_us, self.links.suspect_us)
        self.links.suspect_us = random.Random(f"silent {seed}").choice(suspicions)
        named = tuple(self.nodes)[:2] if mode == PAUSE_IF_ALL_DOWN else ()
        self.settings = BrokerSettings(partition_handling=mode, partition_nodes=named)
        self.stats: HaStats = HaStats()
        self.ha_history = cast("HaHistory", self.history)
        self.mirrors = MirrorChecker(self)
        self.ha_history.went_unheard = self._went_unheard_alone
        self.ha_history.now = lambda: self.now
        self.seconds = self.rng.choice(self.lengths)
        if mode != PAUSE_MINORITY:
            self.seconds = MODE_SECONDS  # long enough for a mode to begin, and for something to wait
        self.is_risky = self.rng.random() < 0.3
        self.policies: dict[str, dict[str, Any]] = {}
        """What operators want."""
        self.starts: dict[str, int] = {}
        self._is_resting = False
        # By a generator of its own, too: a world without transactions does what it did before there were any.
        self._tx_rng = random.Random(f"tx {seed}")
        self._has_transactions = self.client_class is HaClient and self._tx_rng.random() < 0.25
        if transactions is not None:
            self._has_transactions = transactions
        self._unheard: list[tuple[str, int]] = []
        """Queues from which a client took without acknowledgements, and when it went."""

    def make_faults(self) -> HaFaults:
        """What goes wrong in this world."""
        self.faults = HaFaults(self)
        return self.faults

    def small_limits(self) -> AbstractContextManager[None]:
        """Run with small bounds, so that a short run passes them often."""
        mode = self.settings.partition_handling
        more: dict[str, tuple[int, ...]] = {}
        if mode in SPOOLING:
            more.update(SPOOL_LIMITS)
        if mode == AUTOHEAL:
            more.update(BRANCH_LIMITS)
        return small_limits(
            self.rng, {**QUEUE_LIMITS, **RAFT_LIMITS, **MORE_LIMITS, **self.ha_limits, **more}
        )

    # --- nodes ---

    def start(self, name: str) -> None:
        """Start a process."""
        node = self.nodes[name]
        if not (node.must_be_refused or node.is_out):
            self.mirrors.joined(name)
        self.mirrors.ended(name)
        super().start(name)
        if node.node is not None:
            self.mirrors.watch(node)

    def passed(self, node: SimNode) -> None:
        """Look at a node after a pass, before anybody hears of what it did."""
        if node.node is not None:
            self.starts[node.name] = node.identity.start
        self.mirrors.passed(node)

    def empty(self, name: str) -> None:
        """The folder of a node that is down is emptied."""
        super().empty(name)
        self.mirrors.destroyed(name, self.starts.get(name, 0))

    def node_forgotten(self, name: str) -> None:
        """A node is out, and what it has is worth nothing any more."""
        super().node_forgotten(name)
        self.mirrors.destroyed(name, self.starts.get(name, 0))

    def lose_queues(self, name: str) -> None:
        """The disk of a node is gone, or will be: with it go the queues that only it had."""
        if self.nodes[name].must_be_refused:
            self.mirrors.destroyed(name, self.starts.get(name, 0))
        lost = self._lost.setdefault(name, {})
        for queue in self.queues:
            if queue not in lost and any(
                self._is_only_on(node.node.state, queue, name)
                for node in self.nodes.values()
                if node.node is not None
            ):
                lost[queue] = self.history.lose_queue(queue, 0)

    def _is_only_on(self, state: MetaState, queue: str, name: str) -> bool:
        record, view = state.queues.get(("/", queue)), state.views.get(("/", queue))
        if record is None or record.node != name:
            return False
        return view is None or all(entry.node == name or entry.start == FORGOTTEN for entry in view.members)

    # --- clients ---

    def make_client(self, home: SimNode, conn: int) -> Client:
        """In some worlds half of all clients use transactions, but for those that empty the queues."""
        if self._has_transactions and not self.is_draining and self._tx_rng.random() < 0.5:
            return TxClient(self, home, conn)
        return super().make_client(home, conn)

    def drop_lost(self) -> None:
        """Forget clients that have nothing to talk to."""
        lost = self._just_lost()
        self._unheard += lost
        if lost:
            self.mirrors.client_lost()
        super().drop_lost()

    def _just_lost(self) -> list[tuple[str, int]]:
        """The queues from which clients took without acknowledgements that are gone now."""
        lost = [cast("HaClient", client) for client in self.clients if client.is_lost]
        return [
            (client.consumed[tag], self.now)
            for client in lost
            for tag in sorted(client.without_acks & client.consumed.keys())
        ]

    def went_unheard(self, message: HaSent) -> bool:
        """May a client that acknowledges nothing have gone while this message was on its way to it?"""
        found = any(
            queue in (message.queue, LETTERS if message.is_rejected else "") and message.at <= at
            for queue, at in (*self._unheard, *self._just_lost())
        )
        message.is_acked |= found
        return found

    def _went_unheard_alone(self, message: HaSent) -> bool:
        """The same, of a queue that never had a view: what leaves it nobody watches."""
        names = {facts.name for facts in self.mirrors.facts.values()}
        queue = LETTERS if message.is_rejected else message.queue
        return queue not in names and self.went_unheard(message)

    def is_taken_unasked(self, queue: str) -> bool:
        """Does a client take from this queue without acknowledgements?"""
        clients = [cast("HaClient", client) for client in self.clients]
        return any(client.consumed.get(tag) == queue for client in clients for tag in client.without_acks)

    # --- operators ---

    def _ready(self) -> SimNode | None:
        ready = [node for node in self.nodes.values() if node.phase == READY and not node.is_paused]
        return self.rng.choice(ready) if ready else None

    def set_policy(self, queue: str, definition: dict[str, Any]) -> bool:
        """Ask some node for a policy; whether there was one to ask."""
        node = self._ready()
        if node is None:
            return False
        self.say(f"{node.name}: policy of {queue}: {definition}")
        self.policies[queue] = definition
        policy = Policy("/", f"p-{queue}", f"^{queue}$", definition, "queues")

        def ask(core: Node, _: Now) -> None:
            core.propose(SetPolicy(policy), lambda __: None, False)

        node.input(ask)
        return True

    def move(self, view: View, to: str) -> bool:
        """Ask the master of a queue to hand it over."""
        node = self.nodes[view.master]
        if node.phase != READY or node.is_paused:
            return False
        self.say(f"{view.name} is to move from {node.name} to {to}")

        def ask(core: Node, _: Now) -> None:
            assert core.copies is not None
            core.copies.transfer(view.id, to, lambda problem: self.say(f"move: {problem or 'done'}"))

        node.input(ask)
        return True

    def synchronise(self, view: View, *, wanted: bool) -> bool:
        """Ask the master of a queue to synchronise its mirrors, or to stop that."""
        node = self.nodes[view.master]
        if node.phase != READY or node.is_paused:
            return False

        def ask(core: Node, _: Now) -> None:
            assert core.copies is not None
            core.copies.synchronise(view.id, wanted)

        node.input(ask)
        return True

    def ask_for_rest(self) -> None:
        """From now on operators see to it that every queue gets what its policy says."""
        if not self._is_resting:
            self._is_resting = True
            self.every(SECOND, self._set_right)

    def _set_right(self) -> None:
        leader = self.leader()
        if leader is None or leader.node is None:
            return
        state = leader.node.state
        for queue, definition in self.policies.items():
            if _policy(state, queue) != definition:
                self.set_policy(queue, definition)
        for view in list(state.views.values()):
            if view.learners and all(entry.start == FORGOTTEN for entry in view.members):
                self.promote_by_force(leader, view)  # whoever had it in sync has left, or is forgotten
            elif view.learners:
                self.synchronise(view, wanted=True)

    def promote_by_force(self, node: SimNode, view: View) -> None:
        """An operator accepts what the best of the copies that are left lacks."""
        self.say(f"{view.name} is promoted by force")
        command = ForcePromote(view.vhost, view.name, view.id, force=bool(view.waiver))
        node.input(lambda core, _: core.propose(command, lambda __: None, False))

    # --- the run ---

    def prepare(self) -> None:
        """Make everything clients use, under policies."""
        for queue in SPECS:
            self.set_policy(queue, self.faults.policy(queue))
        self.run_for(SECOND)
        # Where leaders died while the cluster was formed, a lease may have run out since.
        self.run_until(self.is_as_desired, 60 * SECOND, "nodes are paused before anything has happened")
        super().prepare()

    def is_as_desired(self) -> bool:
        """Does every node serve clients, and, in the end, has every queue all its copies?"""
        if not super().is_as_desired():
            return False
        return not self._is_resting or not self.unfinished()

    def unfinished(self) -> list[str]:
        """The queues that are not yet as their policies want them (I17)."""
        leader = self.leader()
        if leader is None or leader.node is None:
            return ["nobody leads"]
        state = leader.node.state
        wrong = [queue for queue, definition in self.policies.items() if _policy(state, queue) != definition]
        wrong += [f"a branch of {one.name}" for one in self.branches() if one.messages > one.core.unacked]
        return wrong + [queue.name for queue in state.queues.values() if not _is_complete(state, queue)]

    def branches(self) -> list[Branch]:
        """All branches there are."""
        copies = [node.node.copies for node in self.nodes.values() if node.node is not None]
        return [branch for one in copies if one is not None for branch in one.branches.every()]

    def _all_consume(self, names: list[str]) -> bool:
        return super()._all_consume(names) and not self.branches()

    def _is_calm(self) -> bool:
        """Do clients do less, since everything is healed? Not before the run counts."""
        return self._is_healed and self.history.confirms >= CONFIRMS

    def finish(self) -> None:
        """Everything is healed."""
        self.run_until(self._is_calm, HEAL_US, "clients get no confirms after healing")
        super().finish()
        self.mirrors.check_states()

    def _change_in_peace(self) -> None:
        """Other policies while nothing fails: no queue has fewer copies in sync than it had or will have."""
        leader = self.leader()
        assert leader is not None and leader.node is not None
        state = leader.node.state
        for queue in self.rng.sample([name for name in SPECS if name != BRIEF], 2):
            view, record = state.views.get(("/", queue)), state.queues.get(("/", queue))
            if view is None or record is None:
                continue
            definition = {**self.faults.policy(queue), "ha-mirror-timeout": 60_000}
            wanted = mirroring.settings(record, definition, "safe")
            target = mirroring.target(wanted, state.nodes) if wanted.mode != "none" else 1
            self.mirrors.floors[view.id] = min(len(view.members), target)
            self.set_policy(queue, definition)
        self.run_until(lambda: not self.unfinished(), HEAL_US, "copies are missing after a change of policy")
        self.mirrors.floors.clear()

    def drain(self) -> None:
        """Change policies, kill one more master, then empty all queues through all nodes."""
        self.run_until(lambda: not self.unfinished(), HEAL_US, "copies are missing")
        if self.rng.random() < 0.5:
            self._change_in_peace()
        if self.rng.random() < 0.7:
            node = self.rng.choice(list(self.nodes.values()))
            if self.rng.random() < 0.5:
                self.kill(node.name, "at last")
            else:
                self.power_off(node.name)
            self.run_for(self.rng.choice((SECOND // 2, 8 * SECOND)))
            if node.node is None:
                self.start(node.name)
            self.run_until(self.is_as_desired, HEAL_US, "a node that was killed last does not come back")
        self.run_until(self._is_followed, HEAL_US, "the nodes do not come to rest at last")
        # A leader may have resigned in this very moment, since its disk was slow.
        self.run_until(lambda: self.leader() is not None, HEAL_US, "nobody leads at last")
        leader = self.leader()
        assert leader is not None and leader.node is not None
        self.stats.salvaged = sum(view.salvaged for view in leader.node.state.views.values())
        super().drain()

    def _is_followed(self) -> bool:
        """Has everybody followed everything that was agreed on?"""
        nodes = [node.node for node in self.nodes.values()]
        return self.checker.is_quiet() and all(
            node is not None and node.settled_index == node.meta_index for node in nodes
        )


def _policy(state: MetaState, queue: str) -> dict[str, Any] | None:
    names = {policy.name: policy.definition for policy in state.policies.values()}
    return names.get(f"p-{queue}")


def _is_complete(state: MetaState, queue: Queue) -> bool:
    found = mirroring.mirroring_of(state, queue, "safe")
    view = state.views.get(queue.identity)
    count = mirroring.target(found, state.nodes) if found.mode != "none" else 1
    if view is None:
        # What is not durable cannot be mirrored later.
        return count == 1 or queue.name == BRIEF
    if (
        view.partings
        or view.learners
        or any(entry.is_restarted or not _is_there(state, entry.node, entry.start) for entry in view.members)
    ):
        return False
    names = {entry.node for entry in view.members}
    able = mirroring.hosts(state.nodes)
    if found.mode == "nodes":
        listed = {name for name in found.nodes if name in able}
        return names == listed or not listed
    return len(names) == count


def _is_there(state: MetaState, name: str, start: int) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.is_live and node.start == start
