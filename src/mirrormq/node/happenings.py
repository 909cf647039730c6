"""What a change of the metadata means for mirrored queues: who took over and why, what became of mirrors.

Guarantee: everything here follows from the view before, the view after, and the nodes after the command, so
every node draws the same conclusions; who tells of them is decided by `chronicle`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from mirrormq.meta import views
from mirrormq.meta.records import Node, View

TRANSFER, FAILURE, SHUTDOWN, RESTART, RETURN = "transfer", "failure", "shutdown", "restart", "return"
"""Why a queue has another master: an operator or a policy wanted it, the former one died, it stopped in good
order, it was started again, or it came back and takes over what nobody else could.
"""

ADDED, SYNCHRONISED, DEMOTED, REMOVED = "added", "synchronised", "demoted", "removed"


class Promotion(NamedTuple):
    """A queue has a master that it did not have before."""

    view: View
    former: str
    reason: str
    is_lossy: bool
    passed: tuple[str, ...]
    """Nodes with a copy in sync that a lossy promotion passed over."""


class MirrorChange(NamedTuple):
    """Something became of one mirror of a queue."""

    view: View
    node: str
    kind: str


class Counters:
    """What has happened since this process started, for metrics."""

    def __init__(self) -> None:
        self.promotions = dict.fromkeys((TRANSFER, FAILURE, SHUTDOWN, RESTART, RETURN), 0)
        """Queues whose master this node became, by the reason."""
        self.lossy = 0
        self.mirrors = dict.fromkeys((ADDED, SYNCHRONISED, DEMOTED, REMOVED), 0)
        """What became of mirrors of queues mastered here."""
        self.transfers_failed = 0
        self.salvaged = self.salvage_dropped = 0
        """Messages that only this node had after a loss: moved, or given up."""


def promotion(before: View, after: View, nodes: Mapping[str, Node]) -> Promotion | None:
    """The promotion that a change was, if it was one; a master that cannot act yet is none."""
    if after.since <= before.since or not views.has_master(nodes, after):
        return None
    is_lossy = after.losses > before.losses
    passed = tuple(entry.node for entry in before.members if entry.node != after.master) if is_lossy else ()
    return Promotion(after, before.master, _reason(before, after, nodes), is_lossy, passed)


def _reason(before: View, after: View, nodes: Mapping[str, Node]) -> str:
    if before.master == after.master:
        return RETURN
    former = before.members[0]
    is_there = views.is_live(nodes, former)
    # A master that is there and gives way to a copy that lacks something is about to stop.
    if before.is_stopped or (is_there and after.losses > before.losses):
        return SHUTDOWN
    if is_there:
        return TRANSFER
    node = nodes.get(former.node)
    return RESTART if node is not None and node.is_live else FAILURE


def mirror_changes(before: View, after: View) -> list[MirrorChange]:
    """What became of the mirrors of a queue whose master stayed."""
    found: list[MirrorChange] = []
    for entry in after.learners:
        if before.member(entry.node) is not None:
            found.append(MirrorChange(after, entry.node, DEMOTED))
        elif before.learner(entry.node) is None:
            found.append(MirrorChange(after, entry.node, ADDED))
    for member in after.members:
        former = before.member(member.node)
        if not member.is_restarted and (former is None or former.is_restarted):
            found.append(MirrorChange(after, member.node, SYNCHRONISED))
    there = nodes_of(after)
    found += [MirrorChange(after, node, REMOVED) for node in nodes_of(before) if node not in there]
    return found


def nodes_of(view: View) -> list[str]:
    """Everybody who has a copy."""
    return [entry.node for entry in view.members] + [entry.node for entry in view.learners]


def waiting(changes_of: list[View], nodes: Mapping[str, Node]) -> list[View]:
    """Of these views those that nobody leads."""
    return [view for view in changes_of if not views.has_master(nodes, view)]
