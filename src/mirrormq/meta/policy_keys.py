"""The settings a policy may make, and which values each may have: RabbitMQ 3.10's, with its words for what is
wrong.

Settings of plugins that RabbitMQ users have in their definition files (federation, sharding) are accepted and
have no effect. Any other unknown setting is refused: a misspelt one would otherwise protect nothing,
silently.
"""

import json
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


def _mirroring_problems(definition: Table) -> list[str]:
    """`ha-params` must fit `ha-mode`."""
    mode = definition.get("ha-mode", "all")
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


_PROMOTE = ("always", "when-synced")
_LOCATORS = ("client-local", "balanced", "random", "least-leaders", "min-masters")

_KEYS: dict[str, tuple[Check, str]] = {
    "alternate-exchange": (_text, "{} is not a valid alternate exchange name"),
    "consumer-timeout": (_at_least(1), "{} is not a valid consumer timeout"),
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
    "ha-sync-batch-size": (_at_least(1), "ha-sync-batch-size takes an integer greater than 0, {} given"),
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
    "queue-leader-locator": (_one_of(*_LOCATORS), "{} is not a valid queue leader locator value"),
    "queue-master-locator": (_one_of(*_LOCATORS), "{} invalid queue-master-locator value"),
    "queue-mode": (_one_of("default", "lazy"), "{} is not a valid queue-mode value"),
    "queue-version": (_one_of(1, 2), "{} is not a valid queue-version value"),
    "routing-key": (_text, "{} is not a valid routing key"),
    "shards-per-node": (_at_least(1), "{} is not a valid number of shards"),
    "stream-max-segment-size-bytes": (_at_least(0), "{} is not a valid segment size"),
}

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
