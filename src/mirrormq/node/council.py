"""Changes of the membership: wishes of operators and of new nodes, granted by the leader.

Guarantee: a wish that is answered as come true is committed, in the configuration and in the metadata; one
that is refused has changed nothing that the next attempt would not set right. Wishes may be told again, to
another leader as well: what was done before is found done.

Whoever has a wish keeps it and tells it again and again; the leader remembers nothing. It looks how far the
wish has come true, takes the next step, and answers. Others pass a wish on to the leader, since a node that
joins may be linked with one of them only.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mirrormq.base import limits
from mirrormq.cluster.raft import membership as mb
from mirrormq.meta import views, waiving
from mirrormq.meta.commands import (
    Command,
    ForgetNode,
    NodeDead,
    NodeReturned,
    PromoteRestarted,
    PutNode,
    SetGlobalParameter,
)
from mirrormq.meta.records import Node
from mirrormq.meta.state import Outcome
from mirrormq.node import memberframes as mf
from mirrormq.node.memberframes import Answer, Ask, ForceForget, Forget, Join, SetRole, Wish

if TYPE_CHECKING:
    from mirrormq.node.membership import Membership

CLUSTER_NAME = "cluster_name"
FOREIGN = "its data folder is new or older than the cluster remembers; forget_cluster_node, then join"


class _Kept(Struct):
    """A wish of this node."""

    wish: Wish
    done: Callable[[Answer], None]
    until: int
    again_at: int = 0
    is_repeated: bool = False
    problem: str = "the cluster has no leader"


class Council:
    """The wishes of this node, those it passes on, and, while it leads, those it grants."""

    def __init__(self, membership: "Membership") -> None:
        self._membership = membership
        self._kept: dict[int, _Kept] = {}
        self._relayed: dict[int, tuple[str, int]] = {}
        self._number = 0
        self._waiting: dict[tuple[str, int], int] = {}
        """Nodes (with their start) whose mirrored queues have no master, and since when."""
        self._count_at = 0
        self._proposed: set[Command] = set()
        """Commands on their way: one that is wanted again every tenth of a second is proposed once."""

    # --- who has a wish ---

    def wish(self, wish: Wish, done: Callable[[Answer], None], *, is_patient: bool = False) -> None:
        """Have a wish come true; `done` hears what became of it. A patient one is never given up."""
        now = self._membership.now.mono
        self._number += 1
        self._kept[self._number] = _Kept(wish, done, 1 << 62 if is_patient else now + limits.ask_us_max)
        self.look(now)

    def look(self, now: int) -> None:
        """Tell wishes again, and give up those that took too long."""
        for number, kept in list(self._kept.items()):
            if now >= kept.until:
                del self._kept[number]
                kept.done(Answer(number, True, f"it did not come true in time: {kept.problem}"))
            elif now >= kept.again_at:
                kept.again_at = now + limits.ask_again_us
                self._tell(number, kept)

    @property
    def timer_at(self) -> int:
        """When `look` is needed next."""
        return min((kept.again_at for kept in self._kept.values()), default=1 << 62)

    def on_answer(self, answer: Answer) -> None:
        """The leader has looked at a wish."""
        relayed = self._relayed.pop(answer.number, None)
        if relayed is not None:
            peer, number = relayed
            self._membership.send(peer, mf.encode(replace(answer, number=number)))
            return
        kept = self._kept.get(answer.number)
        if kept is None:
            return
        if answer.is_final:
            del self._kept[answer.number]
            kept.done(answer)
        else:
            kept.problem = answer.problem

    def on_left(self) -> None:
        """This node has been removed, which is what it wished; nobody would answer it any more."""
        name = self._membership.name
        for number, kept in list(self._kept.items()):
            if kept.wish == Forget(name, name):
                del self._kept[number]
                kept.done(Answer(number, True, ""))

    def _tell(self, number: int, kept: _Kept) -> None:
        membership = self._membership
        ask = Ask(number, kept.is_repeated, False, kept.wish)
        if membership.raft.is_leader:
            kept.is_repeated = True
            self.on_answer(self._look_at(number, ask))
            return
        leader = membership.raft.leader
        if leader in membership.links:
            chosen = leader
        else:
            # A node that belongs to no cluster yet asks whoever does, one after the other.
            others = sorted(peer for peer, cluster in membership.links.items() if any(cluster))
            if not others or membership.is_member:
                return
            chosen = others[membership.now.mono // limits.ask_again_us % len(others)]
        kept.is_repeated = True
        membership.send(chosen, mf.encode(ask))

    # --- who hears of one ---

    def on_ask(self, peer: str, ask: Ask) -> None:
        """Another node has a wish, or passes one on."""
        membership = self._membership
        if membership.raft.is_leader:
            # One that stood still may not lead any more, and the wish may be an old one that has long come
            # true, and been followed by others. Whoever has it asks again.
            if membership.holds_lease():
                membership.send(peer, mf.encode(self._look_at(ask.number, ask)))
        elif not ask.is_relayed and membership.raft.leader in membership.links:
            self._number += 1
            self._relayed[self._number] = (peer, ask.number)
            if len(self._relayed) > limits.asks_relayed_max:
                del self._relayed[next(iter(self._relayed))]
            passed = replace(ask, number=self._number, is_relayed=True)
            membership.send(membership.raft.leader, mf.encode(passed))

    def _look_at(self, number: int, ask: Ask) -> Answer:
        wish = ask.wish
        if isinstance(wish, Join):
            return self._join(number, wish)
        if isinstance(wish, Forget):
            return self._forget(number, wish, ask.is_repeated)
        return self._set_role(number, wish)

    def _join(self, number: int, wish: Join) -> Answer:
        membership = self._membership
        raft, state = membership.raft, membership.state
        member = raft.config.find(wish.name)
        if member is not None and member.identity != wish.identity:
            return Answer(number, True, f"node {wish.name} cannot join: {FOREIGN}")
        if wish.level < state.level:
            return Answer(
                number,
                True,
                f"node {wish.name} cannot join: the cluster has feature level {state.level}, its software"
                f" knows levels up to {wish.level}; install a newer version there",
            )
        if CLUSTER_NAME not in state.global_parameters:
            # Each node would show its own until somebody sets one.
            self._propose(SetGlobalParameter(CLUSTER_NAME, membership.cluster_name))
        known = state.nodes.get(wish.name)
        if known is None or known.address != wish.address:
            role = known.role if known is not None else mb.VOTER
            self._propose(PutNode(Node(wish.name, wish.address, role, level=wish.level)))
            return Answer(number, False, "its address is being recorded")
        if member is None:
            return self._change(number, mb.Change(wish.name, mb.NON_VOTER, wish.identity))
        if raft.config.index > raft.commit_index:
            return Answer(number, False, "its membership is being recorded")
        addresses = tuple(node.address for node in state.nodes.values() if node.address)
        return Answer(number, True, "", membership.identity.cluster, addresses)

    def _forget(self, number: int, wish: Forget, is_repeated: bool) -> Answer:
        membership = self._membership
        raft, name = membership.raft, wish.name
        is_known = raft.config.find(name) is not None or name in membership.state.nodes
        if not is_known and raft.config.index <= raft.commit_index:
            problem = "" if is_repeated else f"node {name} is no member of this cluster"
            return Answer(number, True, problem)
        if raft.config.names == (name,):
            return Answer(number, True, f"node {name} is the last one of the cluster; reset it instead")
        if name != wish.by and name in membership.links:
            return Answer(number, True, f"node {name} is running: stop it first, or run leave_cluster there")
        alone = waiving.waived_by(membership.state, name)
        if alone and name != wish.by and not isinstance(wish, ForceForget):
            text = f"node {name} may be serving {alone} queues where nobody sees it (partition mode ignore):"
            return Answer(number, True, f"{text} see that it is down for good, then forget it with --force")
        if raft.config.find(name) is not None:
            if name == membership.name:
                return self._hand_over(number)
            return self._change(number, mb.Change(name, None))
        node = membership.state.nodes.get(name)
        if node is not None and self._is_over(node, membership.now.mono):
            self._propose(ForgetNode(name))
        return Answer(number, False, "its queues are being dropped")

    def _is_over(self, node: Node, now: int) -> bool:
        """Whoever is out may act until its lease is over; others take its queues over then, not before."""
        return self._membership.raft.lease_over(node.name, now, node.start)

    def _hand_over(self, number: int) -> Answer:
        """The leader leaves: another one has to see to that."""
        membership = self._membership
        raft = membership.raft
        voters = [
            member.name
            for member in raft.config.members
            if member.role == mb.VOTER and member.name in membership.links
        ]
        if not voters:
            return Answer(number, True, f"node {membership.name} is the only voter that can be reached")
        raft.transfer(membership.now.mono, voters[0])
        membership.is_due = True
        return Answer(number, False, "the leader hands over before it leaves")

    def _set_role(self, number: int, wish: SetRole) -> Answer:
        membership = self._membership
        node = membership.state.nodes.get(wish.name)
        member = membership.raft.config.find(wish.name)
        if node is None or member is None:
            return Answer(number, True, f"node {wish.name} is no member of this cluster")
        if node.role != wish.role:
            try:
                mb.changed(membership.raft.config, mb.Change(wish.name, wish.role))
            except mb.ChangeRefused as error:
                return Answer(number, True, str(error))
            self._propose(PutNode(replace(node, role=wish.role)))
        elif member.role == wish.role and membership.raft.config.index <= membership.raft.commit_index:
            return Answer(number, True, "")
        return Answer(number, False, "its role is being changed")

    def _change(self, number: int, change: mb.Change) -> Answer:
        """Take a step; what speaks against it may be over the next time it is tried."""
        membership = self._membership
        try:
            mb.changed(membership.raft.config, change)
        except mb.ChangeRefused as error:
            return Answer(number, True, str(error))
        problem = membership.change(change)
        return Answer(number, False, problem or "the configuration is being changed")

    # --- the leader's own duties ---

    def lead(self, now: int) -> None:
        """Give nodes the role they are meant to have; say who is dead, who is back, and who is out."""
        membership = self._membership
        raft = membership.raft
        for node in list(membership.state.nodes.values()):
            member = raft.config.find(node.name)
            if member is None:
                # One that has never started is about to join; any other is out, and whoever asked for that
                # may not have lived to see the rest.
                if node.start and raft.config.index <= raft.commit_index and self._is_over(node, now):
                    self._propose(ForgetNode(node.name))
                continue
            if member.role != node.role and member.token:
                membership.change(mb.Change(node.name, node.role))
            if node.is_live and raft.lease_over(node.name, now, node.start):
                dead = NodeDead(node.name, node.start, membership.ha_defaults, node.returns, self._departed())
                self._propose(dead)
            elif not node.is_live and node.start == member.start and raft.answers(node.name, now):
                self._propose(NodeReturned(node.name, node.start))
        if now >= self._count_at:
            self._count_at = now + limits.tick_us
            self._promote_waiting(now)

    def _departed(self) -> tuple[str, ...]:
        """Nodes that are out and not forgotten yet, since they may act until their leases are over."""
        config = self._membership.raft.config
        if config.index > self._membership.raft.commit_index:
            return ()
        nodes = self._membership.state.nodes.values()
        return tuple(sorted(node.name for node in nodes if node.start and config.find(node.name) is None))

    def _promote_waiting(self, now: int) -> None:
        """Queues have waited long enough for members that were not restarted."""
        membership = self._membership
        waiting = views.waiting(membership.state)
        self._waiting = {item: self._waiting.get(item, now) for item in waiting.items()}
        for (name, start), since in self._waiting.items():
            if now - since >= limits.recovery_wait_us:
                self._propose(PromoteRestarted(name, start, membership.ha_defaults, self._departed()))

    def _propose(self, command: Command) -> None:
        if command in self._proposed:
            return
        self._proposed.add(command)

        def done(_: Outcome) -> None:
            self._proposed.discard(command)

        self._membership.propose(command, done, False)
