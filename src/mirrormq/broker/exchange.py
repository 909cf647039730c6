"""Exchange types: what each accepts in a declaration and a binding, and which destinations it names for a
message.

An exchange knows nothing of other exchanges or of queues: its bindings lead to destinations, which `routes`
follows. Adding, removing and matching a binding take a time that does not grow with the number of bindings,
except for matching in a headers exchange, which asks every binding in turn, as in RabbitMQ.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError, command_invalid, not_implemented, precondition_failed
from mirrormq.broker.arguments import check_exchange_arguments, octets, term, type_tag
from mirrormq.broker.hashring import HashRing
from mirrormq.broker.headers import HeadersPattern, check_x_match
from mirrormq.kernel.topic import TopicMatcher
from mirrormq.meta import records
from mirrormq.wire.properties import Properties, decode_properties

_RESERVED_TYPES = frozenset({"x-mirrored", "x-delayed-message", "x-message-deduplication"})
_HASH_PROPERTIES = ("correlation_id", "message_id", "timestamp")
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")


class Destination(NamedTuple):
    """Where a binding leads: a queue or an exchange of the same vhost, by name."""

    type: records.DestinationType
    name: str


class Letter:
    """What routing may look at: the routing keys, the message's own first, and properties if anybody asks."""

    __slots__ = ("_properties", "keys")

    def __init__(self, keys: tuple[bytes, ...], properties: bytes | Properties | None = None) -> None:
        """Take raw or decoded properties; raw ones are decoded at most once, for an exchange that looks."""
        assert keys
        self.keys = keys
        self._properties = properties

    @property
    def properties(self) -> Properties:
        """The decoded properties; none if they cannot be decoded, as routing must always have an answer."""
        if isinstance(self._properties, bytes):
            try:
                self._properties = decode_properties(self._properties)
            except AmqpError:
                self._properties = None
        if self._properties is None:
            self._properties = Properties()
        return self._properties

    @property
    def headers(self) -> Mapping[str, Any]:
        """The decoded headers, empty if there are none."""
        return self.properties.headers or {}


class Exchange(Protocol):
    """One exchange's bindings."""

    keyed: bool
    """Whether its choice depends on the routing keys alone, so that it may be remembered per key."""

    def bind(self, binding: records.Binding) -> None:
        """Add a binding that this exchange does not have."""

    def unbind(self, binding: records.Binding) -> None:
        """Remove a binding that this exchange has."""

    def match(self, letter: Letter) -> Collection[Destination]:
        """Name the destinations of a message, in no particular order; one may be named twice."""


# --- declarations ---


def check_type(kind: str) -> None:
    """Raise 503 for a type that does not exist, 540 for one that is to come."""
    if kind in TYPES:
        return
    if kind in _RESERVED_TYPES:
        raise not_implemented(f"exchange type '{kind}' is reserved and not implemented")
    # RabbitMQ says "invalid" for a word its node has met elsewhere, which is always so for the empty one.
    raise command_invalid(f"{'unknown' if kind else 'invalid'} exchange type '{kind}'")


def check_declare(vhost: str, name: str, kind: str, arguments: Mapping[str, Any]) -> None:
    """Raise 406, 503 or 540 unless a new exchange may be declared so. One that exists is only compared."""
    check_type(kind)
    check_exchange_arguments(vhost, name, arguments)
    if kind == "x-consistent-hash":
        _check_hash_arguments(arguments)


def check_binding(kind: str, routing_key: str, arguments: Mapping[str, Any]) -> None:
    """Raise 406 unless an exchange of this type may have such a binding."""
    if kind == "headers":
        check_x_match(arguments)
    elif kind == "x-consistent-hash":
        _check_weight(routing_key)


def make_exchange(record: records.Exchange) -> Exchange:
    """Build the exchange of a record, without bindings.

    Records reach us by other ways than a declaration (imported definitions, a later version's files), so one
    that `check_declare` would refuse gives an exchange that does what it can.
    """
    if record.name == "":
        return DefaultExchange()
    if record.type == "x-consistent-hash":
        return HashExchange(record.arguments)
    return _UNCONFIGURED.get(record.type, UnknownExchange)()


def _check_hash_arguments(arguments: Mapping[str, Any]) -> None:
    if "hash-header" in arguments and "hash-property" in arguments:
        raise precondition_failed("hash-header and hash-property are mutually exclusive")
    for key in ("hash-header", "hash-property"):
        if key in arguments and type_tag(arguments[key]) != "longstr":
            raise precondition_failed(f"invalid type '{type_tag(arguments[key])}' for arg '{key}'")
    wanted = arguments.get("hash-property")
    if wanted is not None and wanted not in _HASH_PROPERTIES:
        raise precondition_failed(f"Unsupported property: {wanted}")


def _check_weight(routing_key: str) -> None:
    if not _INTEGER.match(routing_key):
        raise precondition_failed(f"The binding key must be an integer: {term(routing_key)}")
    if int(routing_key) < 1:
        raise precondition_failed("The binding key must be greater than 0")
    if int(routing_key) > limits.hash_weight_max:
        raise precondition_failed(f"The binding key must be at most {limits.hash_weight_max}")


# --- the types ---


class DefaultExchange:
    """Every queue under its own name, without bindings."""

    __slots__ = ()
    keyed = True

    def bind(self, binding: records.Binding) -> None:
        """Refused before it gets here."""
        raise AssertionError(binding)

    unbind = bind

    def match(self, letter: Letter) -> Collection[Destination]:
        """Name the queues called like the keys, whether they exist or not."""
        return [Destination("queue", key.decode("utf-8", "surrogateescape")) for key in letter.keys]


class DirectExchange:
    """Bindings whose key equals a routing key."""

    __slots__ = ("_by_key",)
    keyed = True

    def __init__(self) -> None:
        """Start without bindings."""
        self._by_key: dict[bytes, dict[Destination, int]] = {}

    def bind(self, binding: records.Binding) -> None:
        """Add a binding."""
        _count(self._by_key.setdefault(octets(binding.routing_key), {}), destination_of(binding))

    def unbind(self, binding: records.Binding) -> None:
        """Remove a binding."""
        key = octets(binding.routing_key)
        _uncount(self._by_key[key], destination_of(binding))
        if not self._by_key[key]:
            del self._by_key[key]

    def match(self, letter: Letter) -> Collection[Destination]:
        """Name the destinations bound with one of the keys."""
        if len(letter.keys) == 1:
            return self._by_key.get(letter.keys[0], ())
        return [d for key in letter.keys for d in self._by_key.get(key, ())]


class FanoutExchange:
    """All bindings."""

    __slots__ = ("_all",)
    keyed = True

    def __init__(self) -> None:
        """Start without bindings."""
        self._all: dict[Destination, int] = {}

    def bind(self, binding: records.Binding) -> None:
        """Add a binding; its key is ignored."""
        _count(self._all, destination_of(binding))

    def unbind(self, binding: records.Binding) -> None:
        """Remove a binding."""
        _uncount(self._all, destination_of(binding))

    def match(self, letter: Letter) -> Collection[Destination]:  # noqa: ARG002
        """Name every destination."""
        return self._all


class TopicExchange:
    """Bindings whose pattern matches a routing key."""

    __slots__ = ("_patterns",)
    keyed = True

    def __init__(self) -> None:
        """Start without bindings."""
        self._patterns = TopicMatcher()

    def bind(self, binding: records.Binding) -> None:
        """Add a pattern."""
        self._patterns.add(octets(binding.routing_key), destination_of(binding))

    def unbind(self, binding: records.Binding) -> None:
        """Remove a pattern."""
        self._patterns.remove(octets(binding.routing_key), destination_of(binding))

    def match(self, letter: Letter) -> Collection[Destination]:
        """Name the destinations whose pattern matches one of the keys."""
        if len(letter.keys) == 1:
            return self._patterns.match(letter.keys[0])
        return [d for key in letter.keys for d in self._patterns.match(key)]


class HeadersExchange:
    """Bindings whose arguments the headers satisfy."""

    __slots__ = ("_bindings",)
    keyed = False

    def __init__(self) -> None:
        """Start without bindings."""
        self._bindings: dict[records.BindingId, tuple[HeadersPattern, Destination]] = {}

    def bind(self, binding: records.Binding) -> None:
        """Add a pattern; the routing key only tells bindings apart."""
        self._bindings[binding.identity] = HeadersPattern(binding.arguments), destination_of(binding)

    def unbind(self, binding: records.Binding) -> None:
        """Remove a pattern."""
        del self._bindings[binding.identity]

    def match(self, letter: Letter) -> Collection[Destination]:
        """Name the destinations whose pattern the headers satisfy."""
        headers = letter.headers
        return [destination for pattern, destination in self._bindings.values() if pattern.matches(headers)]


class HashExchange:
    """One destination per message, chosen by the hash of its routing key, a header or a property."""

    __slots__ = ("_header", "_property", "_ring", "keyed")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Take what to hash from the arguments; a binding's key is its weight."""
        header, wanted = arguments.get("hash-header"), arguments.get("hash-property")
        self._header = header if isinstance(header, str) else None
        self._property = wanted if wanted in _HASH_PROPERTIES else None
        self._ring: HashRing[Destination] = HashRing()
        self.keyed = self._header is None and self._property is None

    def bind(self, binding: records.Binding) -> None:
        """Add a binding."""
        self._ring.add(destination_of(binding), _weight(binding.routing_key))

    def unbind(self, binding: records.Binding) -> None:
        """Remove a binding."""
        self._ring.remove(destination_of(binding), _weight(binding.routing_key))

    def match(self, letter: Letter) -> Collection[Destination]:
        """Name the destination the message hashes to."""
        chosen = self._ring.pick(self._value(letter))
        return () if chosen is None else (chosen,)

    def _value(self, letter: Letter) -> bytes:
        if self._header is not None:
            value = letter.headers.get(self._header)
        elif self._property is not None:
            value = getattr(letter.properties, self._property)
        else:
            return letter.keys[0]
        # A message without the value still goes somewhere, always to the same place.
        if value is None:
            return b""
        return octets(value) if isinstance(value, str | bytes) else str(value).encode()


class UnknownExchange(FanoutExchange):
    """An exchange of a type this version does not know: keeps its bindings and routes nothing."""

    __slots__ = ()
    keyed = False

    def match(self, letter: Letter) -> Collection[Destination]:  # noqa: ARG002
        """Name nothing."""
        return ()


_UNCONFIGURED: dict[str, type[DirectExchange | FanoutExchange | TopicExchange | HeadersExchange]] = {
    "direct": DirectExchange,
    "fanout": FanoutExchange,
    "topic": TopicExchange,
    "headers": HeadersExchange,
}
TYPES = (*_UNCONFIGURED, "x-consistent-hash")
"""The exchange types a client may declare."""


def destination_of(binding: records.Binding) -> Destination:
    """Where a binding leads."""
    return Destination(binding.destination_type, binding.destination)


def _weight(routing_key: str) -> int:
    return min(max(int(routing_key), 1), limits.hash_weight_max) if _INTEGER.match(routing_key) else 1


def _count(counts: dict[Destination, int], destination: Destination) -> None:
    # Bindings that differ in key or arguments only may lead to one destination, and go one by one.
    counts[destination] = counts.get(destination, 0) + 1


def _uncount(counts: dict[Destination, int], destination: Destination) -> None:
    left = counts[destination] - 1
    if left:
        counts[destination] = left
    else:
        del counts[destination]
