"""The settings a policy may make, and which values each may have: RabbitMQ 3.10's, with its words for what is
wrong.

Settings of plugins that RabbitMQ users have in their definition files (federation, sharding) are accepted and
have no effect. Any other unknown setting is refused: a misspelt one would otherwise protect nothing,
silently.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from mirrormq.meta.records import Table

Check = Callable[[Any], bool]


def problems(definition: Table, *, operator: bool) -> list[str]:
    """What is wrong with a definition, one sentence each."""
    allowed = _OPERATOR_KEYS if operator else _KEYS.keys()
    unknown = {key: value for key, value in definition.items() if key not in allowed}
    found = [f"{_shown(unknown)} are not recognised policy settings"] if unknown else []
    for key, value in definition.items():
        if key not in unknown:
            check, words = _KEYS[key]
            if not check(value):
                found.append(words.format(_shown(value)))
    return found + _mirroring_problems(definition)


def is_applicable(definition: Table, queue_type: str) -> bool:
    """Whether a policy can apply to queues of a type: one setting they do not have keeps all of it away.

    Without `ha-mode` only quorum queues are mirrored, so only they have what refines that.
    """
    if queue_type == "classic" and "ha-mode" not in definition and not _REFINING.isdisjoint(definition):
        return False
    return _FOREIGN[queue_type].isdisjoint(definition)


def size_of(value: Any) -> int | None:
    """Bytes, as a number or with a unit as in 100MiB (binary) and 100MB (decimal); None if it is neither."""
    if _is_integer(value, 0):
        return int(value)
    found = re.fullmatch(r"(\d{1,12})\s*([A-Za-z]{0,3})", value) if isinstance(value, str) else None
    if found is None or found[2].lower() not in _SIZE_UNITS:
        return None
    return int(found[1]) * _SIZE_UNITS[found[2].lower()]


def age_us_of(value: Any) -> int | None:
    """Microseconds of a number of milliseconds, or of one with a unit as in 7D, 12h, 30m; None: neither."""
    if _is_integer(value, 0):
        return int(value) * 1_000
    found = re.fullmatch(r"(\d{1,9})([DhmsYM])", value) if isinstance(value, str) else None
    return None if found is None else int(found[1]) * _AGE_UNITS[found[2]] * 1_000_000


def _mirroring_problems(definition: Table) -> list[str]:
    """`ha-params` must fit `ha-mode`, and what RabbitMQ has of it does not work without `ha-mode`."""
    if "ha-mode" not in definition:
        needy = any(key.startswith("ha-") and key not in _REFINING for key in definition)
        words = "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
        return [words] if needy else []
    mode = definition["ha-mode"]
    params = definition.get("ha-params")
    if mode == "all" and params is not None:
        return ['ha-mode="all" does not take parameters']
    if mode == "exactly" and not _is_integer(params, 1):
        return [f'ha-mode="exactly" takes an integer, {_shown(params)} given']
    if mode == "nodes" and not (_is_list_of_text(params) and params):
        return [f'ha-mode="nodes" takes a non-empty list of strings, {_shown(params)} given']
    return []


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)


def _is_integer(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_list_of_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _at_least(least: int) -> Check:
    return lambda value: _is_integer(value, least)


def _one_of(*values: Any) -> Check:
    return lambda value: not isinstance(value, bool) and value in values


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _anything(value: Any) -> bool:
    return value is not None


def _size(value: Any) -> bool:
    return size_of(value) is not None


def _age(value: Any) -> bool:
    return age_us_of(value) is not None


_SIZE_UNITS: dict[str, int] = {"": 1} | {
    letter + ending: base**power
    for power, letter in enumerate("kmgt", 1)
    for ending, base in (("", 1024), ("ib", 1024), ("b", 1000))
}

_REFINING = frozenset(
    {"ha-min-in-sync", "ha-mirror-timeout", "ha-replace-delay", "ha-salvage", "ha-sync-max-throughput"}
)
"""Settings of ours that refine how a queue is mirrored; quorum queues have them, too."""

_PROMOTE = ("always", "when-synced")
LOCATORS = (
    "client-local",
    "min-masters",
    "random",
    "balanced",
    "least-leaders",
    "round-robin",
    "least-connections",
    "least-messages",
)
"""How the master of a new queue may be chosen: RabbitMQ's words for classic and quorum queues, and ours."""

CURSOR_OVERFLOWS = ("invalidate", "block-publish")
"""What happens when a cursor holds more than it may: it is lost, or publishers wait for its reader."""
_AGE_UNITS = {"s": 1, "m": 60, "h": 3_600, "D": 86_400, "M": 30 * 86_400, "Y": 365 * 86_400}

_KEYS: dict[str, tuple[Check, str]] = {
    "alternate-exchange": (_text, "{} is not a valid alternate exchange name"),
    "consumer-timeout": (_at_least(1), "{} is not a valid consumer timeout"),
    "cursor-max-age": (_age, "cursor-max-age takes milliseconds or a time such as 7D or 12h, {} given"),
    "cursor-max-bytes": (_size, "cursor-max-bytes takes bytes such as 1073741824 or 1GiB, {} given"),
    "cursor-overflow": (
        _one_of(*CURSOR_OVERFLOWS),
        'cursor-overflow must be "invalidate" or "block-publish", got {}',
    ),
    "dead-letter-exchange": (_text, "{} is not a valid dead letter exchange name"),
    "dead-letter-routing-key": (_text, "{} is not a valid dead letter routing key"),
    "dead-letter-strategy": (
        _one_of("at-most-once", "at-least-once"),
        "{} is not a valid dead letter strategy",
    ),
    "delivery-limit": (_at_least(0), "{} is not a valid delivery limit"),
    "expires": (_at_least(1), "{} is not a valid queue expiry"),
    "federation-upstream": (_text, "{} is not a valid federation upstream"),
    "federation-upstream-pattern": (_text, "{} is not a valid federation upstream pattern"),
    "federation-upstream-set": (_text, "{} is not a valid federation upstream set"),
    "ha-min-in-sync": (_at_least(1), "ha-min-in-sync takes an integer greater than 0, {} given"),
    "ha-mirror-timeout": (_at_least(1), "ha-mirror-timeout takes milliseconds greater than 0, {} given"),
    "ha-mode": (_one_of("all", "exactly", "nodes"), "{} is not a valid ha-mode value"),
    "ha-params": (_anything, "{} is not a valid ha-params value"),
    "ha-promote-on-failure": (
        _one_of(*_PROMOTE),
        'ha-promote-on-failure must be "always" or "when-synced", got {}',
    ),
    "ha-promote-on-shutdown": (
        _one_of(*_PROMOTE),
        'ha-promote-on-shutdown must be "always" or "when-synced", got {}',
    ),
    "ha-replace-delay": (_at_least(0), "ha-replace-delay takes milliseconds, {} given"),
    "ha-replication": (
        _one_of("sync", "async"),
        'ha-replication must be "sync" or "async", got {}',
    ),
    "ha-salvage": (
        _one_of("queue", "requeue", "drop"),
        'ha-salvage must be "queue", "requeue" or "drop", got {}',
    ),
    "ha-sync-batch-size": (_at_least(1), "ha-sync-batch-size takes an integer greater than 0, {} given"),
    "ha-sync-max-throughput": (
        _size,
        "ha-sync-max-throughput takes bytes per second such as 1048576 or 100MiB, {} given",
    ),
    "ha-sync-mode": (
        _one_of("automatic", "manual"),
        'ha-sync-mode must be "manual" or "automatic", got {}',
    ),
    "initial-cluster-size": (_at_least(0), "{} is not a valid cluster size"),
    "max-age": (_text, "{} is not a valid max age"),
    "max-in-memory-bytes": (_at_least(0), "{} is not a valid maximum memory in bytes"),
    "max-in-memory-length": (_at_least(0), "{} is not a valid maximum memory in bytes"),
    "max-length": (_at_least(0), "{} is not a valid maximum length"),
    "max-length-bytes": (_at_least(0), "{} is not a valid maximum length in bytes"),
    "message-ttl": (_at_least(0), "{} is not a valid message TTL"),
    "overflow": (
        _one_of("drop-head", "reject-publish", "reject-publish-dlx"),
        "{} is not a valid overflow value",
    ),
    "queue-leader-locator": (_one_of(*LOCATORS), "{} is not a valid queue leader locator value"),
    "queue-master-locator": (_one_of(*LOCATORS), "{} invalid queue-master-locator value"),
    "queue-mode": (_one_of("default", "lazy"), "{} is not a valid queue-mode value"),
    "queue-version": (_one_of(1, 2), "{} is not a valid queue-version value"),
    "routing-key": (_text, "{} is not a valid routing key"),
    "shards-per-node": (_at_least(1), "{} is not a valid number of shards"),
    "stream-max-segment-size-bytes": (_at_least(0), "{} is not a valid segment size"),
}

_STREAM_KEYS = frozenset({"initial-cluster-size", "max-age", "stream-max-segment-size-bytes"})

_FOREIGN: dict[str, frozenset[str]] = {
    "classic": _STREAM_KEYS | {"dead-letter-strategy"},
    "quorum": _STREAM_KEYS
    | {
        "ha-mode",
        "ha-params",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
        "ha-replication",
        "ha-sync-mode",
        "queue-master-locator",
        "queue-mode",
    },
}
"""Settings that queues of a type do not have, as in RabbitMQ; `delivery-limit` and `queue-leader-locator` are
for classic queues, too.
"""

_OPERATOR_KEYS = frozenset(
    {
        "delivery-limit",
        "expires",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "max-length",
        "max-length-bytes",
        "message-ttl",
    }
)
