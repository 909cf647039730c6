"""Holding publishers back while a node of the cluster is short of memory or disk, and telling them.

Guarantee: while an alarm stands, on whichever node, no publish of this connection is taken; everything before
it is. As in RabbitMQ a connection that does not publish notices nothing: it is parked at its first publish,
and only then gets connection.blocked (if it announced that it understands it). When the last alarm is over it
gets connection.unblocked and goes on exactly there.

The other brake, a queue whose consumers cannot keep up, parks the connection under the reason `ahead`
(queue.py).

A node that is cut off may stop its clients altogether (`stop`): nothing is read from them and nothing is
delivered to them until `go_on`, and they are told so at once. Confirms of what is safe still reach them.
"""

from typing import TYPE_CHECKING

from mirrormq.wire import methods

if TYPE_CHECKING:
    from mirrormq.broker.connection import Connection

ALARM = "alarm"
AHEAD = "ahead"
PARTITION = "partition"


class Flow:
    """The brakes of one connection."""

    __slots__ = ("_connection", "_is_told", "is_blocked", "is_full", "is_stopped")

    def __init__(self, connection: "Connection") -> None:
        """Start with the brakes off."""
        self._connection = connection
        self.is_blocked = False
        """Is a publish held because of an alarm?"""
        self._is_told = False
        self.is_stopped = False
        """Is nothing read or delivered, since this node is cut off?"""
        self.is_full = False
        """Does the client's socket take no more for now?"""

    @property
    def shown_state(self) -> str:
        """How a running connection looks in list_connections."""
        if self.is_blocked or self.is_stopped:
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
        self._tell_free()
        connection.unpark(ALARM)

    def release(self) -> None:
        """The connection ends: nothing is held or told any more."""
        self._connection.reader.hold_publish = False
        self.is_blocked = self.is_stopped = self._is_told = False

    def on_held(self) -> None:
        """The next frame is a publish, and an alarm stands."""
        connection = self._connection
        self.is_blocked = True
        connection.park(ALARM)
        self._tell_blocked(f"low on {' & '.join(connection.host.shortages())}")

    def stop(self, reason: str) -> None:
        """Read nothing more of an open connection and deliver nothing to it."""
        connection = self._connection
        if connection.is_open and not self.is_stopped:
            self.is_stopped = connection.out.blocked = True
            connection.park(PARTITION)
            self._tell_blocked(reason)

    def go_on(self) -> None:
        """Read and deliver again, from where it was stopped."""
        connection = self._connection
        if not self.is_stopped:
            return
        self.is_stopped = False
        connection.out.blocked = self.is_full
        self._tell_free()
        for channel in connection.channels.values():
            for consumer in channel.consumers.values():
                consumer.source.touch()
        connection.unpark(PARTITION)

    def _tell_blocked(self, reason: str) -> None:
        if not self._is_told and self._connection.has_capability("connection.blocked"):
            self._is_told = True
            self._connection.send(methods.ConnectionBlocked(reason))

    def _tell_free(self) -> None:
        """Not while there is another reason to hold it."""
        if self._is_told and not self.is_blocked and not self.is_stopped:
            self._is_told = False
            self._connection.send(methods.ConnectionUnblocked())
