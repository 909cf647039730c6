"""What this package needs of a view, and how it asks for another one.

Guarantee asked of whoever keeps the views: one view per queue and epoch, in one order for all nodes; a change
is made only if the epoch is still the one it names, and each change adds 1 to the epoch.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Entry(Protocol):
    """A node of a view, in one of its lives."""

    @property
    def node(self) -> str:
        """Its name."""
        ...

    @property
    def start(self) -> int:
        """Its start counter: an entry speaks of one process only."""
        ...


class MemberEntry(Entry, Protocol):
    """An in-sync member."""

    @property
    def is_restarted(self) -> bool:
        """It has everything that was flushed, and may lack what was only received."""
        ...


class View(Protocol):
    """Who has copies of a queue, in one epoch."""

    @property
    def id(self) -> int:
        """The queue's id."""
        ...

    @property
    def epoch(self) -> int:
        """Number of the view."""
        ...

    @property
    def master(self) -> str:
        """The only node that appends; if its entry is marked as restarted, nobody does."""
        ...

    @property
    def members(self) -> Sequence[MemberEntry]:
        """In-sync members in the order they joined, the master among them."""
        ...

    @property
    def learners(self) -> Sequence[Entry]:
        """Mirrors that are not synchronised."""
        ...

    @property
    def drops_transient(self) -> bool:
        """The master was promoted although it had restarted: what was only received is lost."""
        ...


REMOVE = "remove"
"""Take a member out of the in-sync set."""
ADMIT = "admit"
"""Make a learner, or a restarted member, an unchanged in-sync member."""
DEMOTE = "demote"
"""Make a member a learner."""
ADD_LEARNER = "add_learner"
REMOVE_LEARNER = "remove_learner"
TRANSFER = "transfer"
"""Make an unchanged member the master."""
SURRENDER = "surrender"
"""Make a member the master, and the old master, which cannot read its log, a learner."""


class Change(NamedTuple):
    """A change of a view. It must be refused unless the queue's epoch is `epoch` and, for ADMIT and
    ADD_LEARNER, `start` is the node's registered one.
    """

    queue: int
    epoch: int
    kind: str
    node: str
    start: int


def member_of(view: View, node: str) -> MemberEntry | None:
    """The in-sync entry of a node."""
    for entry in view.members:
        if entry.node == node:
            return entry
    return None


def learner_of(view: View, node: str) -> Entry | None:
    """The learner's entry of a node."""
    for entry in view.learners:
        if entry.node == node:
            return entry
    return None


def acting_master(view: View) -> str:
    """Who may act as the master in this view; empty if nobody may."""
    entry = member_of(view, view.master)
    return "" if entry is None or entry.is_restarted else entry.node


def entry_of(view: View, node: str) -> Entry | None:
    """Whichever entry a node has."""
    return member_of(view, node) or learner_of(view, node)
