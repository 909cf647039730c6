"""Holding publishers back while a node of the cluster is short of memory or disk, and telling them.

Guarantee: while an alarm stands, on whichever node, no publish of this connection is taken; everything before
it is. As in RabbitMQ a connection that does not publish notices nothing: it is parked at its first publish,
and only then gets connection.blocked (if it announced that it understands it). When the last alarm is over it
gets connection.unblocked and goes on exactly there.

The other brake, a queue whose consumers cannot keep up, parks the connection under the reason `ahead`
(queue.py).
"""

from typing import TYPE_CHECKING

from mirrormq.wire import methods

if TYPE_CHECKING:
    from mirrormq.broker.connection import Connection

ALARM = "alarm"
AHEAD = "ahead"


class Flow:
    """The brakes of one connection."""

    __slots__ = ("_connection", "_is_told", "is_blocked")

    def __init__(self, connection: "Connection") -> None:
        """Start with the brakes off."""
        self._connection = connection
        self.is_blocked = False
        """Is a publish held because of an alarm?"""
        self._is_told = False

    @property
    def shown_state(self) -> str:
        """How a running connection looks in list_connections."""
        if self.is_blocked:
            return "blocked"
        if self._connection.host.shortages():
            return "blocking"
        return "flow" if self._connection.is_parked_for(AHEAD) else "running"

    def on_alarm(self) -> None:
        """The set of alarms changed, or the connection has just been opened."""
        connection = self._connection
        if not connection.is_open:
            return
        has_alarm = bool(connection.host.shortages())
        connection.reader.hold_publish = has_alarm
        if has_alarm or not self.is_blocked:
            return
        self.is_blocked = False
        if self._is_told:
            self._is_told = False
            connection.send(methods.ConnectionUnblocked())
        connection.unpark(ALARM)

    def release(self) -> None:
        """The connection ends: nothing is held or told any more."""
        self._connection.reader.hold_publish = False
        self.is_blocked = self._is_told = False

    def on_held(self) -> None:
        """The next frame is a publish, and an alarm stands."""
        connection = self._connection
        self.is_blocked = True
        connection.park(ALARM)
        if connection.has_capability("connection.blocked"):
            self._is_told = True
            reason = " & ".join(connection.host.shortages())
            connection.send(methods.ConnectionBlocked(f"low on {reason}"))
