"""Looks at the clock for every client's connection once a second: heartbeats, timeouts, late acks.

Guarantees
- Every connection that is there at a tick is looked at in the passes that follow it, no more than
  `limits.tick_connections` in one; as few as that are looked at by the tick itself.
- One that closes before its turn is passed over. A tick that comes before all were looked at lets that round
  end first, so that none waits for ever; each look uses the time of its own pass.
"""

from mirrormq.base import limits
from mirrormq.base.staggered import StaggeredDict
from mirrormq.base.walk import KeyWalk
from mirrormq.broker.connection import Connection


class Beats:
    """One round over all connections at a time."""

    def __init__(self, connections: StaggeredDict[int, Connection]) -> None:
        self._connections = connections
        self._walk = KeyWalk(connections)

    @property
    def needs_pass(self) -> bool:
        """Are there more to look at?"""
        return self._walk.is_under_way

    def tick(self) -> None:
        """A second has passed."""
        self._walk.begin()
        if len(self._connections) < limits.tick_connections:
            self.step()  # else in the passes that follow: a tick has enough to do

    def step(self) -> None:
        """Look at some of them."""
        for number in self._walk.take(limits.tick_connections):
            connection = self._connections.get(number)
            if connection is not None:
                connection.on_tick()
