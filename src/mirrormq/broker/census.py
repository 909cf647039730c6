"""How many connections and channels are open, by vhost and by user: here, and as far as is known elsewhere.

Guarantee: what is open on this node is counted exactly, at the moment it opens and ends. What is open on
other nodes is what they last reported, so a limit may be overshot by what opened there in the meantime.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

CHURN = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)


class Report(Protocol):
    """What another node says is open there."""

    @property
    def vhosts(self) -> dict[str, int]:
        """Connections by vhost."""
        ...

    @property
    def users(self) -> dict[str, int]:
        """Connections by user."""
        ...

    @property
    def channels(self) -> dict[str, int]:
        """Channels by user."""
        ...


class Census:
    """Counts of this node; `elsewhere` gives those of the others."""

    def __init__(self) -> None:
        self.connections = 0
        self.churn = dict.fromkeys(CHURN, 0)
        """What has begun and ended since this process started."""
        self.logins = {"succeeded": 0, "failed": 0}
        self.vhosts: dict[str, int] = {}
        self.users: dict[str, int] = {}
        self.channels: dict[str, int] = {}
        self.is_changed = False
        """Has something opened or ended since this was last set to False?"""
        self.tell: Callable[[str, Callable[[], dict[str, Any]]], None] = _nobody
        """Tells clients of an event, if anybody wants to hear of it; the headers are made only then."""
        self.elsewhere: Callable[[], Iterable[Report]] = tuple

    def connection_opened(self, vhost: str, user: str) -> None:
        """A connection is in its vhost."""
        self.connections += 1
        self.churn["connection_created"] += 1
        self._add(self.vhosts, vhost, 1)
        self._add(self.users, user, 1)

    def connection_ended(self, vhost: str, user: str) -> None:
        """A connection that was opened ends."""
        self.connections -= 1
        self.churn["connection_closed"] += 1
        self._add(self.vhosts, vhost, -1)
        self._add(self.users, user, -1)

    def channel_opened(self, user: str) -> None:
        """A channel is open."""
        self.churn["channel_created"] += 1
        self._add(self.channels, user, 1)

    def channel_ended(self, user: str) -> None:
        """A channel that was opened ends."""
        self.churn["channel_closed"] += 1
        self._add(self.channels, user, -1)

    def counted(self, done: Callable[[str | None], None]) -> Callable[[str | None], None]:
        """Count what comes of a log-in: None, or why it was refused."""

        def count(refusal: str | None) -> None:
            self.logins["succeeded" if refusal is None else "failed"] += 1
            done(refusal)

        return count

    def connections_in(self, vhost: str) -> int:
        """Connections to a vhost on all nodes."""
        return self.vhosts.get(vhost, 0) + sum(far.vhosts.get(vhost, 0) for far in self.elsewhere())

    def connections_of(self, user: str) -> int:
        """Connections of a user on all nodes."""
        return self.users.get(user, 0) + sum(far.users.get(user, 0) for far in self.elsewhere())

    def channels_of(self, user: str) -> int:
        """Channels of a user on all nodes."""
        return self.channels.get(user, 0) + sum(far.channels.get(user, 0) for far in self.elsewhere())

    def _add(self, counts: dict[str, int], name: str, by: int) -> None:
        self.is_changed = True
        count = counts.get(name, 0) + by
        assert count >= 0, (name, count)
        if count:
            counts[name] = count
        else:
            del counts[name]


def _nobody(_key: str, _headers: Callable[[], dict[str, Any]]) -> None:
    """Nobody wants to hear of anything."""
