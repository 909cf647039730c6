"""The keeper of views in the simulator: one order of commands, each by compare-and-set.

Guarantee: the rules of who may change a view; nobody removes the last in-sync member, and only an in-sync one
becomes master. Whoever reaches a majority may talk to it; what it decides is told to nodes in its order.
"""

from collections.abc import Callable
from typing import NamedTuple

from mirrormq.mirror import views
from mirrormq.mirror.views import Change
from mirrormq.sim.model import Violation


class Member(NamedTuple):
    """An in-sync member."""

    node: str
    start: int
    is_restarted: bool = False


class Learner(NamedTuple):
    """A mirror that is not synchronised."""

    node: str
    start: int
    is_restarted: bool = False


class SimView(NamedTuple):
    """A view; `since` is the epoch of the last promotion."""

    id: int
    epoch: int
    master: str
    members: tuple[Member, ...]
    learners: tuple[Learner, ...] = ()
    drops_transient: bool = False
    since: int = 1


class ViewStore:
    """Views of all queues, and the order they were made in."""

    guards_start = True
    """Whether a change that adds an entry names the node's registered life."""
    keeps_restarted = True
    """Whether a restarted member stays in the view, marked."""
    prefers_unchanged = True
    """Whether unchanged members are promoted before restarted ones."""

    def __init__(self) -> None:
        self.views: dict[int, SimView] = {}
        self.order: list[SimView] = []
        self.starts: dict[str, int] = {}
        self.vacant: dict[int, int] = {}
        """Since when a queue has no live master."""
        self.watch: Callable[[SimView], None] = lambda _: None
        self.changes = 0

    def create(self, queue: int, nodes: list[str]) -> None:
        """A queue is born with all its members in sync."""
        members = tuple(Member(node, self.starts[node]) for node in nodes)
        self._put(SimView(queue, 1, nodes[0], members))

    def change(self, change: Change) -> bool:
        """Make a change; whether it was made."""
        view = self.views[change.queue]
        if change.epoch != view.epoch:
            return False
        is_added = change.kind in {views.ADMIT, views.ADD_LEARNER}
        if is_added and self.guards_start and self.starts.get(change.node) != change.start:
            return False
        members = tuple(one for one in view.members if one.node != change.node)
        learners = tuple(one for one in view.learners if one.node != change.node)
        match change.kind:
            case views.REMOVE:
                if not members or view.master == change.node:
                    return False
                view = view._replace(members=members, learners=learners)
            case views.DEMOTE:
                if not members or view.master == change.node:
                    return False
                learners = (*learners, Learner(change.node, change.start))
                view = view._replace(members=members, learners=learners)
            case views.ADMIT:
                members = (*members, Member(change.node, change.start))
                view = view._replace(members=members, learners=learners)
            case views.ADD_LEARNER:
                if len(members) < len(view.members):
                    return False
                view = view._replace(learners=(*learners, Learner(change.node, change.start)))
            case views.REMOVE_LEARNER:
                view = view._replace(learners=learners)
            case _:
                entry = views.member_of(view, change.node)
                if entry is None or entry.is_restarted:
                    return False
                view = view._replace(master=change.node, since=view.epoch + 1)
        self._put(view._replace(epoch=view.epoch + 1))
        return True

    def register(self, node: str, start: int) -> None:
        """A node has a new life: its entries stay, marked (ruling 12), and it is nobody's master any more."""
        self.starts[node] = start
        for view in list(self.views.values()):
            if views.entry_of(view, node) is None:
                continue
            members = tuple(
                Member(node, start, is_restarted=True) if one.node == node else one for one in view.members
            )
            if not self.keeps_restarted and len(members) > 1:
                members = tuple(one for one in members if one.node != node)
            learners = tuple(
                Learner(node, start, is_restarted=True) if one.node == node else one for one in view.learners
            )
            self._put(view._replace(epoch=view.epoch + 1, members=members, learners=learners))

    def restate(self, queue: int) -> None:
        """The same view in a new epoch."""
        view = self.views[queue]
        self._put(view._replace(epoch=view.epoch + 1))

    def supervise(self, queue: int, now: int, is_live: Callable[[str, int], bool], wait: int) -> None:
        """Promote if the master's lease is over: the oldest unchanged live member, or after a while the
        oldest restarted one.
        """
        view = self.views[queue]
        entry = views.member_of(view, view.master)
        if entry is not None and not entry.is_restarted and is_live(entry.node, entry.start):
            self.vacant.pop(queue, None)
            return
        since = self.vacant.setdefault(queue, now)
        live = [one for one in view.members if is_live(one.node, one.start)]
        unchanged = [one for one in live if not one.is_restarted]
        picks = unchanged or (live if now - since > wait else [])
        if not self.prefers_unchanged:
            picks = sorted(live, key=lambda one: not one.is_restarted)
        if picks:
            self.promote(queue, picks[0])

    def promote(self, queue: int, pick: Member) -> None:
        """Make a member the master; the old one stays in sync until the new one removes it."""
        view = self.views[queue]
        if pick not in view.members:
            raise Violation("only in-sync members become master")
        others = tuple(one for one in view.members if one.node not in {pick.node, view.master})
        others += tuple(one for one in view.members if one.node == view.master != pick.node)
        self.vacant.pop(queue, None)
        self._put(
            view._replace(
                epoch=view.epoch + 1, master=pick.node, since=view.epoch + 1,
                members=(pick._replace(is_restarted=False), *others), drops_transient=pick.is_restarted,
            )
        )  # fmt: skip

    def _put(self, view: SimView) -> None:
        if not view.members:
            raise Violation("a view without a member")
        self.views[view.id] = view
        self.order.append(view)
        self.changes += 1
        self.watch(view)
