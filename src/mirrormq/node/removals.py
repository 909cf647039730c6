"""Takes a dead node out of the views of all queues mastered here, in as few commands as that takes.

Guarantees
- Only the live master of a queue takes a member out of its view, as everywhere: a command names the epoch
  that the metadata has here, and changes nothing if that is over or another node is the master by then.
- It is asked for on top of the view in the metadata, whether that was entered here already or not. So a queue
  that was promoted by the death goes from the old master's view to the one without it in one step, and what
  concerns thousands of queues is not done twice.
- Some commands at a time, each of a size that is carried out in a millisecond or two.

While a node is being taken out the masters do not ask for that themselves; what was refused is theirs again
afterwards.
"""

from collections import deque
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.meta.commands import ChangeView, ChangeViews
from mirrormq.meta.state import Outcome
from mirrormq.mirror import views
from mirrormq.mirror.views import Change

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies
    from mirrormq.node.node import Node

Identity = tuple[str, str]


class _Dead:
    """One life of a node that is over."""

    def __init__(self, name: str, start: int, left: deque[Identity]) -> None:
        self.name = name
        self.start = start
        self.left = left
        """Queues that have not been looked at."""
        self.under_way = 0
        """Commands without an answer."""


class Removals:
    """All of them on this node."""

    def __init__(self, node: "Node", copies: "Copies") -> None:
        self._node = node
        self._copies = copies
        self._dead: dict[str, _Dead] = {}

    def begin(self, name: str, start: int) -> None:
        """A life of a node is over."""
        found = deque(view.identity for view in self._node.meta.views_of(name))
        if found:
            self._dead[name] = _Dead(name, start, found)
            self._copies.mirrors.removing.add(name)

    def end(self, name: str) -> None:
        """The node is there again, or all was asked for: who is left is the business of the masters."""
        dead = self._dead.pop(name, None)
        if dead is not None:
            self._copies.mirrors.removing.discard(name)
            self._copies.mirrors.look_at(name)

    @property
    def needs_pass(self) -> bool:
        """Can more be asked for?"""
        return any(dead.left and dead.under_way < limits.mirror_removals_max for dead in self._dead.values())

    def step(self) -> None:
        """Ask for some more, and see what is done."""
        for dead in list(self._dead.values()):
            if dead.left and dead.under_way < limits.mirror_removals_max:
                self._ask(dead)
            if not dead.left and not dead.under_way:
                self.end(dead.name)

    def _ask(self, dead: _Dead) -> None:
        changes: list[ChangeView] = []
        for _ in range(min(len(dead.left), limits.mirror_slice_queues)):
            change = self._change(dead.left.popleft(), dead)
            if change is not None:
                changes.append(change)
        if not changes:
            return
        dead.under_way += 1

        def answered(_: Outcome) -> None:
            dead.under_way -= 1

        self._node.membership.propose(ChangeViews(tuple(changes)), answered, False)

    def _change(self, identity: Identity, dead: _Dead) -> ChangeView | None:
        node = self._node
        view = node.meta.views.get(identity)
        if view is None or not view.is_led_by(node.node_name, self._copies.start):
            return None
        member = view.member(dead.name)
        if member is None or member.start != dead.start:
            return None
        change = Change(view.id, view.epoch, views.REMOVE, dead.name, dead.start)
        return self._copies.policy.command(view, change)
