"""What every role can be told; a role says what it does about it, and nothing by default."""

from typing import TYPE_CHECKING

from mirrormq.cluster.raft.messages import Message

if TYPE_CHECKING:
    from mirrormq.cluster.raft.raft import Raft


class Role:
    """Base of follower, candidate and leader."""

    def __init__(self, raft: "Raft") -> None:
        """A role belongs to one node and lasts for one term, or less."""
        self.raft = raft
        self.timer_at = 0

    def step_down(self) -> None:
        """Another role begins: tell everybody who waits."""

    def on_timer(self, now: int) -> None:
        """Time has passed."""

    def on_message(self, now: int, peer: str, message: Message) -> None:
        """A message of this term."""

    def on_hello(self, now: int, peer: str) -> None:
        """A peer that is accepted can be talked to."""

    def on_link(self, now: int, peer: str) -> None:
        """A link is open; its peer has not said hello yet."""

    def on_link_down(self, now: int, peer: str, is_certificate: bool) -> None:
        """A link is gone."""

    def on_vote_given(self, now: int) -> None:
        """This node has voted for somebody."""

    def on_rival(self, now: int) -> None:
        """Another node stands in the same term, and this one has voted for itself."""

    def on_durable(self, now: int) -> None:
        """The disk has reported something."""

    def on_applied(self, index: int, result: object) -> None:
        """An entry was applied."""

    def end_pass(self, now: int) -> None:
        """The inputs of this pass are complete."""

    def after_apply(self, now: int) -> None:
        """What can be applied in this pass is applied."""

    def on_restored(self) -> None:
        """A leader's snapshot has replaced the state."""

    def on_snapshot_replaced(self) -> None:
        """The snapshot file is about to have other content."""

    def is_sending_snapshot(self) -> bool:
        """Would a new snapshot disturb a transfer?"""
        return False
