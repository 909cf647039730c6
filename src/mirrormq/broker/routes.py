"""Routing of one vhost: from an exchange and a message to the queues that get it.

Guarantee: each queue is named once, in the order of the names, whatever way leads there and in whatever
order the bindings were made. Bindings between exchanges and alternate exchanges are followed in a loop that
enters no exchange twice, so a cycle ends and costs nothing. An alternate exchange is asked only if the
exchange itself names nothing at all; a destination that leads nowhere counts as named, as in RabbitMQ.

The router names queues and does not hold them: `queues` is the vhost's own table, so a queue that is gone
is out of every route at once, and declaring or deleting one costs nothing here.
"""

from collections.abc import Container
from typing import NamedTuple

from mirrormq.broker.exchange import Destination, Exchange, Letter, make_exchange
from mirrormq.kernel.tally import Tally
from mirrormq.meta import hidden, records


class Walk(NamedTuple):
    """Where a message goes."""

    queues: list[str]
    found: bool
    """Whether the exchange exists."""
    keyed: bool
    """Whether exchange and routing keys alone decided: the answer holds until the topology changes."""


class Place:
    """An exchange in the router: its record, its bindings, and where unrouted messages go."""

    __slots__ = ("alternate", "exchange", "record", "tally")

    def __init__(self, record: records.Exchange, alternate: str | None) -> None:
        """Start without bindings."""
        self.record = record
        self.exchange: Exchange = make_exchange(record)
        self.alternate = alternate
        self.tally = Tally()
        """What clients of this node published to it, and what came of that."""


class Router:
    """The exchanges and bindings of one vhost."""

    __slots__ = ("_hidden", "_places", "_queues")

    def __init__(self, queues: Container[str], hidden: Container[str] = ()) -> None:
        """Route to those names that are in `queues` at the time of asking, and never to the `hidden` ones."""
        self._queues = queues
        self._hidden = hidden
        self._places: dict[str, Place] = {}

    def place(self, exchange: str) -> Place | None:
        """The exchange of this name, None if there is none."""
        return self._places.get(exchange)

    def places(self) -> list[Place]:
        """All exchanges."""
        return list(self._places.values())

    def add_exchange(self, record: records.Exchange, alternate: str | None = None) -> None:
        """Add an exchange without bindings."""
        assert record.name not in self._places, record.name
        self._places[record.name] = Place(record, alternate)

    def set_alternate(self, exchange: str, alternate: str | None) -> None:
        """Change where an exchange sends what it cannot route: a policy was set or cleared."""
        self._places[exchange].alternate = alternate

    def remove_exchange(self, name: str) -> None:
        """Remove an exchange whose bindings are gone."""
        del self._places[name]

    def bind(self, binding: records.Binding) -> None:
        """Add a binding of an exchange that exists."""
        self._places[binding.source].exchange.bind(binding)

    def unbind(self, binding: records.Binding) -> None:
        """Remove a binding."""
        self._places[binding.source].exchange.unbind(binding)

    def route(self, exchange: str, letter: Letter) -> Walk:
        """Find the queues of a message published to `exchange`."""
        start = self._places.get(exchange)
        if start is None:
            return Walk([], found=False, keyed=True)
        queues: dict[str, None] = {}
        keyed = True
        entered = {exchange}
        waiting = [start]
        while waiting:
            place = waiting.pop()
            keyed = keyed and place.exchange.keyed
            destinations = place.exchange.match(letter)
            if not destinations and place.alternate is not None:
                destinations = (Destination("exchange", place.alternate),)
                keyed = False
            for kind, name in destinations:
                if kind == "queue":
                    queues[name] = None
                elif name not in entered:
                    entered.add(name)
                    following = self._places.get(name)
                    if following is not None:
                        waiting.append(following)
        known = (name for name in queues if name in self._queues and not hidden.is_staging(name))
        return Walk(sorted(name for name in known if name not in self._hidden), found=True, keyed=keyed)
