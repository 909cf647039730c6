"""What the rest of the node asks of whatever makes the nodes agree on definitions.

Guarantee, of every back end: commands are applied once, on every node, in one order, and those of one node in
the order in which it made them; a guarded transaction happens as a whole or not at all, and its guards are
judged where it stands in that order; `done` is called once, when this node has applied the command (and, with
`wait`, when no crash can take it back); after `read` the state here holds everything that was told done on
any node before the call; terms of leaders rise, and a term has one leader.

Commands and guards are those of `meta/commands.py`, bulk commands included; watching is `MetaState.watch`.
There are two back ends, the embedded Raft and etcd (`etcd/`), both behind `metadata.py`;
`tests/unit/cluster/contract.py` has the promises as tests that both pass unchanged.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from mirrormq.meta.commands import Command
from mirrormq.meta.state import MetaState, Outcome

Done = Callable[[Outcome], None]


class Leadership(Struct, frozen=True):
    """Who leads in `term`, as far as this node knows (empty: nobody)."""

    term: int
    leader: str


class Coordination(Protocol):
    """One node's access to the agreed definitions."""

    state: MetaState
    on_leadership: Callable[[Leadership], None]
    """Hears each change, in order."""

    def propose(self, command: Command, done: Done, wait: bool = True) -> None:
        """Have a command applied; `done` hears its outcome, with `wait` when it cannot be lost any more."""
        ...

    def read(self, done: Callable[[], None]) -> None:
        """Call `done` when the state here holds everything that was acknowledged before this call."""
        ...

    def barrier(self, done: Callable[[], None]) -> None:
        """Call `done` when everything applied here so far is durable."""
        ...

    @property
    def leadership(self) -> Leadership:
        """Who leads now."""
        ...
