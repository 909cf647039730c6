"""What must be true of a cluster after every pass of a node, seen from outside all nodes."""

from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.broker.queue import Queue
from mirrormq.cluster.raft.raft import Raft
from mirrormq.node.membership import PAUSED, READY
from mirrormq.node.partition import SERVING
from mirrormq.sim.clusterclient import EXCHANGES
from mirrormq.sim.clusterhistory import binding_key, exchange_key, queue_key
from mirrormq.sim.clusternode import SimNode, fingerprint
from mirrormq.sim.model import Violation
from mirrormq.sim.raftcheck import Checker

if TYPE_CHECKING:
    from mirrormq.sim.clusterworld import ClusterWorld

VHOST = "/"
SLACK_US = 2_000
"""Timers are served a moment late, and not before the pass is over that was under way."""


class ClusterChecker:
    """Remembers what was ever true and must stay so."""

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self.raft = Checker(world.nodes)
        self.cluster = bytes(16)
        """The cluster, once there is one."""
        self._lease_seen: dict[str, tuple[int, int]] = {}
        """Life of each node, and until when (on its own clock) it had a lease, or was let in."""

    # --- when something is told ---

    def introduced(self, node: SimNode) -> None:
        """A node shows others who it is."""
        cluster = node.card[2]
        if any(cluster):
            if any(self.cluster) and cluster != self.cluster:
                raise Violation(f"{node.name} belongs to another cluster than the one that was formed")
            self.cluster = cluster

    def doors_opened(self, node: SimNode) -> None:
        """A node lets clients in."""
        assert node.node is not None
        membership = node.node.membership
        if node.must_be_refused:
            raise Violation(f"{node.name} serves clients on a folder that the cluster does not know")
        if node.is_out:
            raise Violation(f"{node.name} was forgotten and serves clients")
        raft = membership.raft
        assert isinstance(raft, Raft)
        member = raft.configs.at(raft.commit_index).find(node.name)
        token = membership.identity.tokens[-1]
        is_recorded = member is not None and member.token == token
        # The only voter needs nobody's permission.
        if not is_recorded and raft.config.voters != (node.name,):
            raise Violation(f"{node.name} serves clients, but this start of it is not recorded")
        record = membership.state.nodes.get(node.name)
        if record is None or record.start != membership.identity.start:
            raise Violation(f"{node.name} serves clients before the definitions know of its start")
        self._lease_seen[node.name] = (node.life, node.mono)

    def stopped(self, node: SimNode) -> None:
        """A node ends itself: because of its folder, or because it was forgotten."""
        if not (node.must_be_refused or node.is_out or node.is_leaving):
            raise Violation(f"{node.name} stops without cause: {node.stopped}")

    # --- after every pass ---

    def check(self, node: SimNode) -> None:
        """Look at a node."""
        self.raft.check(node)
        self._check_lease(node)

    def _check_lease(self, node: SimNode) -> None:
        assert node.node is not None
        membership = node.node.membership
        if node.node.partition.reaction == SERVING:
            return  # its mode says so; what it may do then is checked queue by queue
        if membership.phase != READY:
            if membership.phase == PAUSED and node.is_open:
                raise Violation(f"{node.name} is paused with open doors")
            return
        life, seen = self._lease_seen.get(node.name, (0, 0))
        until = min(membership.raft.lease_until(node.mono), node.mono + limits.lease_us)
        seen = max(seen, until) if life == node.life else until
        self._lease_seen[node.name] = (node.life, seen)
        late = node.mono - seen - limits.pause_grace_us
        if late > SLACK_US + node.pass_us:
            raise Violation(f"{node.name} serves clients without a lease for {late} us longer than it may")

    # --- when everything is healed and quiet ---

    def is_quiet(self) -> bool:
        """Have all nodes applied the same, and is nothing under way?"""
        rafts = [node.raft for node in self._world.nodes.values()]
        indices = {
            (raft.applied_index, raft.commit_index, raft.log.last_index) if raft is not None else None
            for raft in rafts
        }
        idle = all(
            node.node is not None and node.node.membership.is_idle for node in self._world.nodes.values()
        )
        return idle and len(indices) == 1 and len(set(indices.pop() or (0, 1))) == 1

    def check_same(self) -> None:
        """All nodes have the same definitions, and those are what clients were told."""
        states = {node.name: node.node.state for node in self._world.nodes.values() if node.node is not None}
        prints = {name: fingerprint(state) for name, state in states.items()}
        if len(set(prints.values())) > 1:
            raise Violation(f"nodes have different definitions: {prints}")
        state = next(iter(states.values()))
        history = self._world.history
        for queue in self._world.queues:
            history.check_definition(queue_key(queue), is_there=(VHOST, queue) in state.queues)
        for exchange in EXCHANGES:
            history.check_definition(exchange_key(exchange), is_there=(VHOST, exchange) in state.exchanges)
            bound = {one.destination for one in state.bindings_from(VHOST, exchange)}
            for queue in self._world.queues:
                history.check_definition(binding_key(exchange, queue), is_there=queue in bound)

    def masters(self) -> list[Queue]:
        """The queues, each where its master is; without those that are being handed over."""
        found: list[Queue] = []
        nodes = self._world.nodes
        state = next(node.node.state for node in nodes.values() if node.node is not None)
        for record in state.queues.values():
            holding = [
                (name, node.node.switch.masters[record.id])
                for name, node in nodes.items()
                if node.node is not None and record.id in node.node.switch.masters
            ]
            if [name for name, _ in holding] != [record.node] and record.identity in state.views:
                continue
            if [name for name, _ in holding] != [record.node]:
                raise Violation(f"{record.name} belongs to {record.node} and is on {holding}")
            queue = holding[0][1]
            if queue.damage is not None:
                raise Violation(f"{record.name} is damaged: {queue.damage}")
            found.append(queue)
        return found

    def is_drained(self) -> bool:
        """Is every queue empty, with nothing outstanding?"""
        return self.are_served() and all(map(_is_empty, self.masters()))

    def are_served(self) -> bool:
        """Has every queue a master that all know?"""
        state = next(node.node.state for node in self._world.nodes.values() if node.node is not None)
        return len(self.masters()) == len(state.queues)


def _is_empty(queue: Queue) -> bool:
    """Not one that has just got this master and is being filled, nor one whose dead letters are under way."""
    is_made = not queue.is_filling and not (queue.inherited and queue.inherited.is_waiting)
    is_done = not queue.core.has_dying and not (queue.letters and queue.letters.backlog)
    return is_made and is_done and not queue.core.ready and not queue.core.unacked
