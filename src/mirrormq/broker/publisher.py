"""Somebody who uses a vhost: who it is, and what it may do there.

Guarantees
- A right is asked for by the resource's name, and refused with 403 in RabbitMQ's words.
- Queues of the broker's own are refused to everybody.
- In a vhost that mirrors another cluster nobody declares, publishes, consumes or removes anything before it
  is promoted: only the mirror job writes there, and it does not ask here.
"""

from typing import TYPE_CHECKING

from mirrormq.base.errors import access_refused, not_found
from mirrormq.broker import arguments
from mirrormq.meta import hidden, records
from mirrormq.meta.access import DEFAULT_EXCHANGE, Right, TopicRight

if TYPE_CHECKING:
    from mirrormq.broker.host import Host
    from mirrormq.broker.vhost import VHost


class Publisher:
    """A user in a vhost."""

    __slots__ = ("host", "user", "vhost")

    def __init__(self, host: "Host", vhost: "VHost", user: str) -> None:
        self.host = host
        self.vhost = vhost
        self.user = user

    def check(self, right: Right, kind: str, name: str) -> None:
        """Raise 403 unless the user may do this to that queue or exchange."""
        name = name or DEFAULT_EXCHANGE
        self.check_hidden(kind, name)
        if not self.host.access.may(self.user, self.vhost.name, right, name):
            raise access_refused(f"access to {self.text(kind, name)} refused for user '{self.user}'")
        self.check_writable()

    def check_hidden(self, kind: str, name: str) -> None:
        """Raise 403 if this is a queue of the broker's own."""
        if kind == "queue" and hidden.is_staging(name):
            raise access_refused(f"{self.text(kind, name)} belongs to a sink")

    def check_writable(self) -> None:
        """Raise 403 if the vhost mirrors another cluster."""
        source = self.vhost.mirror_of
        if source:
            raise access_refused(
                f"vhost '{self.vhost.name}' mirrors cluster '{source}' and is read-only until promoted: "
                f"mirrormq ctl promote_mirror {self.vhost.name}"
            )

    def check_topic(self, right: TopicRight, exchange: records.Exchange, routing_key: bytes | str) -> None:
        """Raise 403 if a topic permission forbids this routing key."""
        if exchange.type != "topic":
            return
        if not self.host.access.may_topic(self.user, self.vhost.name, right, exchange.name, routing_key):
            raise access_refused(
                f"access to topic '{arguments.text(routing_key)}' in exchange '{exchange.name}' "
                f"in vhost '{self.vhost.name}' refused for user '{self.user}'"
            )

    def text(self, kind: str, name: str) -> str:
        """A queue or exchange of this vhost as error texts name it."""
        return arguments.resource(kind, name, self.vhost.name)

    def exchange(self, name: str) -> records.Exchange:
        """Find an exchange; 404 if there is none."""
        exchange = self.host.state.exchanges.get((self.vhost.name, name))
        if exchange is None:
            raise not_found(f"no {self.text('exchange', name)}")
        return exchange
