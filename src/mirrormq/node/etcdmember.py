"""This node as a member of a cluster that agrees by etcd instead of the embedded Raft.

Guarantees
- A cluster is what stands under one prefix of one etcd. A fresh folder founds it if nothing is there, which
  one transaction decides, and enters it otherwise; a folder that belongs to another cluster is refused.
- Nothing is asked of etcd before this start is on disk, and this start is recorded only when the name of the
  cluster is on disk as well.
- Clients are let in, sent away and let in again as with Raft; PAUSED means that the lease in etcd could not
  be renewed. After a lease was lost nobody acts before the return is recorded in the metadata.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrormq.base.types import Now
from mirrormq.cluster.etcd import api
from mirrormq.cluster.etcd.agreement import EtcdAgreement
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft.raft import Raft
from mirrormq.log.disk import Disk
from mirrormq.meta.commands import NodeRestarted
from mirrormq.meta.state import Outcome
from mirrormq.node.memberport import ClusterOptions, Inside, MembershipEffects, Started
from mirrormq.node.membership import FEATURE_LEVEL, PAUSED, READY, SEEKING, Membership

if TYPE_CHECKING:
    from mirrormq.cluster.metadata import MetaMachine


class EtcdMembership(Membership):
    """What differs from a node that agrees by Raft."""

    @property
    def etcd(self) -> EtcdAgreement:
        """What the nodes agree by."""
        assert isinstance(self.metadata.raft, EtcdAgreement)
        return self.metadata.raft

    @property
    def is_idle(self) -> bool:
        """Nothing of this node is on its way."""
        return self.metadata.is_idle and self.etcd.is_idle

    def waits_for(self) -> str:
        """Why clients are not served, for people; empty if they are."""
        if self.phase == READY:
            return ""
        if self.phase == PAUSED:
            return f"paused: {self.why_paused()}"
        return f"waiting for etcd: {self.etcd.problem or 'this start is being recorded'}"

    # --- start ---

    def _maker(self, _: type[Raft], /) -> Callable[["MetaMachine"], Raft | EtcdAgreement]:
        options = self.options.etcd
        assert options is not None
        cluster, was_member = self.identity.cluster, bool(self.identity.recorded)
        me, rng = self._myself(), self._node.rng
        return lambda machine: EtcdAgreement(
            me, machine, rng, options, cluster=cluster, was_member=was_member
        )

    def _start_agreement(self, now: Now, disk: Disk) -> Started:  # noqa: ARG002
        return Started(self.identity.start == 1, 0, 0, 0)

    def _restarted(self) -> NodeRestarted:
        # Never alone: others enter at any moment, without asking this node.
        start = self.identity.start
        return NodeRestarted(self.name, False, start, self.options.address, FEATURE_LEVEL)

    def _on_identity_durable(self) -> None:
        super()._on_identity_durable()
        self.etcd.begin()

    def _seek(self) -> None:
        """It finds its cluster by what stands in etcd, not by whom it is linked with."""

    def _enter(self) -> None:
        if not self.state.nodes:
            # Nobody has come this far before: whoever founded the cluster may have died.
            for command in self._first():
                self.propose(command, _ignore, True)
        super()._enter()

    # --- inputs ---

    def etcd_answer(self, now: Now, answer: api.Answer | api.Tidings) -> None:
        """etcd answers a request, or tells what changed."""
        self._node.now = now
        self.is_due = True
        lapses = self.etcd.lapses
        self.etcd.answer(now.mono, answer)
        if self.etcd.lapses != lapses:
            self._lapses += 1
            self._is_lapsed = True

    def disk_done(self, token: int) -> bool:
        """The disk has done what `token` stands for; only the identity is on disk."""
        if token != self._identity_token:
            return False
        self._identity_token = 0
        self._on_identity_durable()
        self.is_due = True
        return True

    def disk_read(self, token: int, data: bytes | None, error: str | None) -> None:
        """Nothing is read from disk here."""

    def _receive(self, peer: str, message: bytes) -> None:
        self.etcd.receive(self.now.mono, peer, message)

    @property
    def timer_at(self) -> int:
        """When `on_timer` is needed next."""
        at = min(self.council.timer_at, self.etcd.timer_at)
        return min(at, self._lapse_at()) if self.phase == READY else at

    def end_pass(self) -> None:
        """Apply what is agreed on, and ask what is to be asked."""
        super().end_pass()
        for request in self.etcd.take_requests():
            self._effects.ask_etcd(request)

    # --- events ---

    def _on_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.Found):
            self._on_found(event.cluster)
        elif isinstance(event, ev.Unfit):
            self._effects.stop(event.reason)
        else:
            super()._on_event(event)

    def _on_found(self, cluster: bytes) -> None:
        """What is under the prefix was read as a whole."""
        if self.state.level > FEATURE_LEVEL:
            self._effects.stop(
                f"the cluster has feature level {self.state.level}, this software knows levels up to"
                f" {FEATURE_LEVEL}: install a newer version"
            )
        elif self.phase == SEEKING:
            self._node.note("info", "joined", cluster=cluster.hex(), event="cluster.joined")
            self._belong(cluster)

    def why_paused(self) -> str:
        """Why there is no lease, for people."""
        if self.etcd.is_stalled(self.now.mono):
            return "its disk does not answer"
        return f"its lease in etcd cannot be renewed ({self.etcd.problem or 'it was lost'})"


def membership_of(
    node: Inside, effects: MembershipEffects, token: Callable[[], int], cluster: ClusterOptions
) -> Membership:
    """How a node belongs to its cluster, by what its nodes agree by."""
    kind = EtcdMembership if cluster.etcd is not None else Membership
    return kind(node, effects, token, cluster)


def _ignore(_: Outcome) -> None:
    """Nobody waits for it."""
