"""Declare arguments: which are valid, when two declarations are equivalent, and what they make a queue do.

Guarantee: a declaration is refused in the same cases, in the same order and with the same words as by
RabbitMQ 3.10.8, because clients match on them. Wanted differences: `x-delivery-limit` is also valid for
classic queues and its value is checked, and names kept for our own later features are answered by 540.

RabbitMQ prints Erlang terms into these texts; `term` writes the few kinds that can occur.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from msgspec import Struct

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError, not_implemented, precondition_failed, resource_locked
from mirrormq.meta import records
from mirrormq.meta.policy_keys import CURSOR_OVERFLOWS, age_us_of, size_of
from mirrormq.wire.table import Timestamp

Arguments = Mapping[str, Any]
T = TypeVar("T")

_CURSOR_ARGUMENTS = ("x-cursor-max-bytes", "x-cursor-max-age", "x-cursor-overflow")
_CLASSIC_ARGUMENTS = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-master-locator",
    "x-delivery-limit",
    *_CURSOR_ARGUMENTS,
)
_QUORUM_ARGUMENTS = (
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-quorum-initial-group-size",
    "x-delivery-limit",
    "x-message-ttl",
    "x-queue-leader-locator",
    *_CURSOR_ARGUMENTS,
)
_STREAM_ARGUMENTS = ("x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size")
_QUEUE_ARGUMENTS = {"classic": _CLASSIC_ARGUMENTS, "quorum": _QUORUM_ARGUMENTS}
"""Per queue type the arguments it understands, in the order in which RabbitMQ compares them."""

_ANY_QUEUE_ARGUMENT = frozenset(_CLASSIC_ARGUMENTS + _QUORUM_ARGUMENTS + _STREAM_ARGUMENTS)

_CONSUME_ARGUMENTS = {
    "classic": ("x-cancel-on-ha-failover", "x-priority", "x-credit"),
    "quorum": ("x-priority", "x-credit"),
}
_ANY_CONSUME_ARGUMENT = frozenset({"x-cancel-on-ha-failover", "x-priority", "x-credit", "x-stream-offset"})

_RESERVED = frozenset(
    {
        "x-base-type",
        "x-cache-persistence",
        "x-cache-size",
        "x-cache-ttl",
        "x-copies",
        "x-deduplication-header",
        "x-delay",
        "x-delayed-type",
        "x-message-deduplication",
        "x-mirrored",
        "x-shards",
        "x-shards-per-node",
    }
)
_RESERVED_PREFIX = "x-copy-"

_OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")

_PLAIN_ATOM = re.compile(r"[a-z][a-zA-Z0-9_@]*\Z")


# --- what a queue is to do ---


class QueueSettings(Struct, frozen=True, gc=False):
    """The effective settings of a queue: its arguments and the policy that matches it, merged.

    Python's collector need not look at them: ten thousand may be made at once when a policy changes.
    """

    ttl_us: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    """None: nothing is dead-lettered; the empty name is the default exchange."""
    dead_letter_key: bytes | None = None
    """None: the message keeps its routing keys."""
    max_priority: int = 0
    single_active: bool = False
    delivery_limit: int | None = None
    expires_us: int | None = None
    lazy: bool = False
    quorum: bool = False
    cursor_max_bytes: int | None = None
    cursor_max_age_us: int | None = None
    cursor_overflow: str | None = None


def queue_settings(arguments: Arguments, definition: Arguments) -> QueueSettings:
    """Merge declare arguments with an effective policy definition.

    For limits the smaller of both counts; for everything else the argument wins over the policy. Values that
    `check_queue_arguments` would refuse are passed over: imported definitions may hold anything.
    """
    ttl_ms = _smaller(arguments, definition, "message-ttl")
    expires_ms = _smaller(arguments, definition, "expires")
    exchange = _preferred(arguments, definition, "dead-letter-exchange")
    key = _preferred(arguments, definition, "dead-letter-routing-key")
    overflow = _preferred(arguments, definition, "overflow")
    return QueueSettings(
        ttl_us=None if ttl_ms is None else ttl_ms * 1000,
        max_length=_smaller(arguments, definition, "max-length"),
        max_bytes=_smaller(arguments, definition, "max-length-bytes"),
        overflow=overflow if overflow in _OVERFLOWS else "drop-head",
        dead_letter_exchange=None if exchange is None else text(exchange),
        dead_letter_key=None if key is None else octets(key),
        max_priority=min(_limit(arguments.get("x-max-priority")) or 0, limits.priority_max),
        single_active=arguments.get("x-single-active-consumer") is True,
        delivery_limit=_smaller(arguments, definition, "delivery-limit"),
        expires_us=None if expires_ms is None else expires_ms * 1000,
        lazy=_preferred(arguments, definition, "queue-mode") == "lazy",
        quorum=queue_type(arguments) == "quorum",
        cursor_max_bytes=_first(arguments, definition, "cursor-max-bytes", size_of),
        cursor_max_age_us=_first(arguments, definition, "cursor-max-age", age_us_of),
        cursor_overflow=_first(arguments, definition, "cursor-overflow", _overflow_of),
    )


def queue_type(arguments: Arguments) -> str:
    """The type a queue declared with these valid arguments has: classic or quorum."""
    return "quorum" if arguments.get("x-queue-type") == "quorum" else "classic"


def _smaller(arguments: Arguments, definition: Arguments, name: str) -> int | None:
    values = (_limit(arguments.get("x-" + name)), _limit(definition.get(name)))
    return min((value for value in values if value is not None), default=None)


def _preferred(arguments: Arguments, definition: Arguments, name: str) -> str | bytes | None:
    for value in (arguments.get("x-" + name), definition.get(name)):
        if isinstance(value, str | bytes):
            return value
    return None


def _first(
    arguments: Arguments, definition: Arguments, name: str, read: Callable[[Any], T | None]
) -> T | None:
    """The argument, or else what the policy says."""
    found = read(arguments.get("x-" + name))
    return read(definition.get(name)) if found is None else found


def _overflow_of(value: Any) -> str | None:
    return value if value in CURSOR_OVERFLOWS else None


def _limit(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# --- validity ---


def check_queue_arguments(
    vhost: str, name: str, arguments: Arguments, *, durable: bool, exclusive: bool, auto_delete: bool
) -> None:
    """Raise 406 or 540 unless a new queue may be declared like this. A queue that exists is only compared."""
    where = resource("queue", name, vhost)
    _refuse_reserved(where, arguments)
    exchange_argument("x-dead-letter-exchange", where, arguments)
    _check(where, arguments, {"x-queue-type": _check_queue_type})
    if arguments.get("x-queue-type") == "stream":
        raise not_implemented(f"x-queue-type 'stream' for {where} is not implemented")
    kind = queue_type(arguments)
    known = _QUEUE_ARGUMENTS[kind]
    _check(where, arguments, {key: rule for key, rule in _QUEUE_RULES.items() if key in known})
    _check_known(where, arguments, kind, _ANY_QUEUE_ARGUMENT.difference(known))
    if kind == "quorum":
        _check_quorum_properties(where, durable=durable, exclusive=exclusive, auto_delete=auto_delete)


def check_server_named(arguments: Arguments) -> None:
    """Raise 406 if the server may not choose the name of a queue declared with these arguments."""
    if arguments.get("x-queue-type") in ("quorum", "stream"):
        kind = arguments["x-queue-type"]
        raise precondition_failed(f"Cannot declare a server-named queue for type rabbit_{kind}_queue")


def with_default_type(
    arguments: Arguments, default_type: str | None, *, durable: bool, exclusive: bool, auto_delete: bool
) -> dict[str, Any]:
    """Add the vhost's default queue type, unless the client names one or that type cannot be like this."""
    completed = dict(arguments)
    if not default_type or "x-queue-type" in arguments:
        return completed
    if default_type == "classic" or (durable and not exclusive and not auto_delete):
        completed["x-queue-type"] = default_type
    return completed


def check_consume_arguments(vhost: str, queue: records.Queue, arguments: Arguments) -> None:
    """Raise 406 unless basic.consume may carry these arguments."""
    where = resource("queue", queue.name, vhost)
    kind = queue_type(queue.arguments)
    known = _CONSUME_ARGUMENTS[kind]
    rules = {"x-priority": _check_int, "x-cancel-on-ha-failover": _check_bool}
    _check(where, arguments, {key: rule for key, rule in rules.items() if key in known})
    _check_known(where, arguments, kind, _ANY_CONSUME_ARGUMENT.difference(known))


def check_exchange_arguments(vhost: str, name: str, arguments: Arguments) -> None:
    """Raise 406 or 540 unless a new exchange of any type may have these arguments."""
    where = resource("exchange", name, vhost)
    _refuse_reserved(where, arguments)
    exchange_argument("alternate-exchange", where, arguments)


def exchange_argument(key: str, where: str, arguments: Arguments) -> str | None:
    """The exchange an argument names, None if it is absent; 406 if it is not a string."""
    if key not in arguments:
        return None
    value = arguments[key]
    if type_tag(value) != "longstr":
        raise precondition_failed(f"invalid type '{type_tag(value)}' for arg '{key}' in {where}")
    return text(value)


def _refuse_reserved(where: str, arguments: Arguments) -> None:
    for key in arguments:
        if key in _RESERVED or key.startswith(_RESERVED_PREFIX):
            raise not_implemented(f"argument '{key}' for {where} is reserved and not implemented")


Rule = Callable[[Any, Arguments], str | None]
"""Checks one argument; returns what is wrong with it as RabbitMQ prints it, None if nothing is."""


def _check(where: str, arguments: Arguments, rules: Mapping[str, Rule]) -> None:
    for key, rule in rules.items():
        if key not in arguments:
            continue
        wrong = rule(arguments[key], arguments)
        if wrong is not None:
            raise precondition_failed(f"invalid arg '{key}' for {where}: {wrong}")


def _check_known(where: str, arguments: Arguments, kind: str, foreign: frozenset[str]) -> None:
    for key in arguments:
        if key in foreign:
            raise precondition_failed(f"invalid arg '{key}' for {where} of queue type rabbit_{kind}_queue")


def _check_quorum_properties(where: str, *, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    wrong = {"auto-delete": auto_delete, "exclusive-owner": exclusive, "non-durable": not durable}
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise precondition_failed(f"invalid property '{name}' for {where}")


def _check_int(value: Any, _arguments: Arguments) -> str | None:
    tag = type_tag(value)
    return None if tag in ("signedint", "long") else f'"expected integer, got {tag}"'


def _check_bool(value: Any, _arguments: Arguments) -> str | None:
    return None if isinstance(value, bool) else _unacceptable(value)


def _check_not_negative(value: Any, arguments: Arguments) -> str | None:
    wrong = _check_int(value, arguments)
    if wrong is None and value < 0:
        return f"{{value_negative,{value}}}"
    return wrong


def _check_positive(value: Any, arguments: Arguments) -> str | None:
    wrong = _check_not_negative(value, arguments)
    return "{value_zero,0}" if wrong is None and value == 0 else wrong


def _check_ttl(value: Any, arguments: Arguments) -> str | None:
    wrong = _check_not_negative(value, arguments)
    if wrong is None and value > limits.ttl_ms_max:
        return f"{{value_too_large,{value}}}"
    return wrong


def _check_expires(value: Any, arguments: Arguments) -> str | None:
    return _check_positive(value, arguments) or _check_ttl(value, arguments)


def _check_max_priority(value: Any, arguments: Arguments) -> str | None:
    wrong = _check_not_negative(value, arguments)
    if wrong is None and value > limits.priority_max:
        return f"{{max_value_exceeded,{value}}}"
    return wrong


def _check_queue_version(value: Any, arguments: Arguments) -> str | None:
    wrong = _check_not_negative(value, arguments)
    if wrong is None and value not in (1, 2):
        return f"\"unsupported queue version '{value}'\""
    return wrong


def _check_string(value: Any, _arguments: Arguments) -> str | None:
    return None if type_tag(value) == "longstr" else _unacceptable(value)


def _check_dead_letter_key(value: Any, arguments: Arguments) -> str | None:
    wrong = _check_string(value, arguments)
    if wrong is None and "x-dead-letter-exchange" not in arguments:
        return "routing_key_but_no_dlx_defined"
    return wrong


def _check_queue_mode(value: Any, arguments: Arguments) -> str | None:
    wrong = _check_string(value, arguments)
    if wrong is None and value not in ("default", "lazy"):
        return f"\"unsupported queue mode '{_readable(value)}'\""
    return wrong


def _check_queue_type(value: Any, arguments: Arguments) -> str | None:
    wrong = _check_string(value, arguments)
    if wrong is None and value not in ("classic", "quorum", "stream"):
        return f"\"unsupported queue type '{_readable(value)}'\""
    return wrong


def _one_of(wrong: str, *allowed: str) -> Rule:
    def rule(value: Any, arguments: Arguments) -> str | None:
        return _check_string(value, arguments) or (None if value in allowed else wrong)

    return rule


def _readable_by(read: Callable[[Any], Any]) -> Rule:
    return lambda value, _arguments: None if read(value) is not None else _unacceptable(value)


def _unacceptable(value: Any) -> str:
    return f"{{unacceptable_type,{type_tag(value)}}}"


_QUEUE_RULES: dict[str, Rule] = {
    "x-expires": _check_expires,
    "x-message-ttl": _check_ttl,
    "x-dead-letter-exchange": _check_string,
    "x-dead-letter-routing-key": _check_dead_letter_key,
    "x-dead-letter-strategy": _one_of("invalid_dlx_strategy", "at-most-once", "at-least-once"),
    "x-max-length": _check_not_negative,
    "x-max-length-bytes": _check_not_negative,
    "x-max-in-memory-length": _check_not_negative,
    "x-max-in-memory-bytes": _check_not_negative,
    "x-max-priority": _check_max_priority,
    "x-overflow": _one_of("invalid_overflow", *_OVERFLOWS),
    "x-queue-mode": _check_queue_mode,
    "x-queue-version": _check_queue_version,
    "x-single-active-consumer": _check_bool,
    "x-quorum-initial-group-size": _check_positive,
    "x-queue-leader-locator": _one_of(
        "invalid_queue_locator_arg", "client-local", "balanced", "random", "least-leaders"
    ),
    "x-delivery-limit": _check_not_negative,
    "x-cursor-max-bytes": _readable_by(size_of),
    "x-cursor-max-age": _readable_by(age_us_of),
    "x-cursor-overflow": _one_of("invalid_cursor_overflow", *CURSOR_OVERFLOWS),
}
"""In the order in which RabbitMQ checks them."""


# --- equivalence ---


def assert_queue_equivalent(
    current: records.Queue, arguments: Arguments, *, durable: bool, auto_delete: bool, owner: int | None
) -> None:
    """Raise 405 or 406 unless a declaration by `owner` (None: not exclusive) describes an existing queue."""
    where = resource("queue", current.name, current.vhost)
    if current.owner != owner:
        raise locked(current)
    _assert_same("durable", where, received=durable, current=current.durable)
    _assert_same("auto_delete", where, received=auto_delete, current=current.auto_delete)
    for key in _QUEUE_ARGUMENTS[queue_type(current.arguments)]:
        _assert_same_argument(key, where, received=arguments, current=current.arguments)


def assert_exchange_equivalent(
    current: records.Exchange,
    kind: str,
    arguments: Arguments,
    *,
    durable: bool,
    auto_delete: bool,
    internal: bool,
) -> None:
    """Raise 406 unless a declaration describes the exchange that exists."""
    where = resource("exchange", current.name, current.vhost)
    if kind != current.type:
        raise _inequivalent("type", where, f"'{atom(kind)}'", f"'{atom(current.type)}'")
    _assert_same("durable", where, received=durable, current=current.durable)
    _assert_same("auto_delete", where, received=auto_delete, current=current.auto_delete)
    _assert_same("internal", where, received=internal, current=current.internal)
    _assert_same_argument("alternate-exchange", where, received=arguments, current=current.arguments)


def locked(queue: records.Queue) -> AmqpError:
    """The 405 for a queue that is exclusive to another connection, or not exclusive although declared so."""
    where = resource("queue", queue.name, queue.vhost)
    return resource_locked(
        f"cannot obtain exclusive access to locked {where}. It could be originally declared on another"
        " connection or the exclusive property value does not match that of the original declaration."
    )


def _assert_same(key: str, where: str, *, received: bool, current: bool) -> None:
    if received != current:
        raise _inequivalent(key, where, f"'{term(received)}'", f"'{term(current)}'")


def _assert_same_argument(key: str, where: str, *, received: Arguments, current: Arguments) -> None:
    if key in received and key in current:
        new, old = received[key], current[key]
        if not same_value(new, old):
            raise _inequivalent(key, where, f"'{_shown(new)}'", f"'{_shown(old)}'")
    elif key in received and (key != "x-queue-type" or received[key] != "classic"):
        raise _inequivalent(key, where, _tagged(received[key]), "none")
    elif key in current and (key != "x-queue-type" or current[key] != "classic"):
        raise _inequivalent(key, where, "none", _tagged(current[key]))


def _inequivalent(key: str, where: str, received: str, current: str) -> AmqpError:
    return precondition_failed(
        f"inequivalent arg '{key}' for {where}: received {received} but current is {current}"
    )


def _tagged(value: Any) -> str:
    return f"the value '{_shown(value)}' of type '{type_tag(value)}'"


def _shown(value: Any) -> str:
    return _readable(value) if isinstance(value, str | bytes) else term(value)


# --- how RabbitMQ names and prints things ---


def resource(kind: str, name: str, vhost: str) -> str:
    """A resource as RabbitMQ's texts name it: `queue 'q' in vhost '/'`."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def type_tag(value: Any) -> str:
    """The name RabbitMQ's texts give to a table value's type; integers are as wide as they need to be."""
    if isinstance(value, str):
        return "longstr"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, Timestamp):
        return "timestamp"
    if isinstance(value, int):
        return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
    for python_type, tag in ((float, "double"), (bytes, "binary"), (Decimal, "decimal"), (list, "array")):
        if isinstance(value, python_type):
            return tag
    return "void" if value is None else "table"


def term(value: Any) -> str:
    """A table value as Erlang prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "undefined"
    if isinstance(value, str | bytes):
        return f'<<"{_readable(value)}">>' if value else "<<>>"
    if isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        return f"{{{-int(exponent)},{int(''.join(map(str, digits)))}}}"
    if isinstance(value, list):
        return "[" + ",".join(f"{{{type_tag(v)},{term(v)}}}" for v in value) + "]"
    if isinstance(value, Mapping):
        return (
            "[" + ",".join(f"{{{term(k)},{type_tag(v)},{term(v)}}}" for k, v in sorted(value.items())) + "]"
        )
    return str(value)


def atom(name: str) -> str:
    """A word as Erlang prints an atom: quoted unless it is a plain lower-case one."""
    return name if _PLAIN_ATOM.match(name) else f"'{name}'"


def same_value(a: Any, b: Any) -> bool:
    """Whether two table values are equal to RabbitMQ: 1 is neither 1.0 nor true, and widths do not matter."""
    if isinstance(a, str | bytes) and isinstance(b, str | bytes):
        return octets(a) == octets(b)
    if isinstance(a, bool) != isinstance(b, bool) or isinstance(a, float) != isinstance(b, float):
        return False
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_value(v, b[k]) for k, v in a.items())
    return bool(a == b)


def _readable(value: str | bytes) -> str:
    """For texts sent to a client, which must be valid UTF-8."""
    return octets(value).decode("utf-8", "replace")


def text(value: str | bytes) -> str:
    """A string argument as text, whatever bytes it has."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def octets(value: str | bytes) -> bytes:
    """A string argument as bytes; the inverse of `text`."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
