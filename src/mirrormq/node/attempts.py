"""Counts log-ins of this node by protocol, and by where they came from.

Guarantee: bounded. Of more than `auth_sources_max` sources the one that was quiet for longest is forgotten;
the counts by protocol go on. Addresses and names are kept only while an operator lets them be.
"""

from typing import Any

from mirrormq.base import limits

AMQP, HTTP = "amqp091", "http"

_Source = tuple[str, str, str]


class Attempts:
    """What log-ins came to since the node started, or since they were forgotten."""

    def __init__(self) -> None:
        self._protocols: dict[str, list[int]] = {}
        """Succeeded and failed."""
        self._sources: dict[_Source, list[int]] = {}
        self._is_by_source = True

    def count(self, protocol: str, address: str, user: str, *, is_in: bool) -> None:
        """Somebody has tried to log in."""
        at = 0 if is_in else 1
        self._protocols.setdefault(protocol, [0, 0])[at] += 1
        if not self._is_by_source:
            return
        source = (protocol, address, user[: limits.short_string_bytes_max])
        found = self._sources.pop(source, None) or [0, 0]
        found[at] += 1
        if len(self._sources) >= limits.auth_sources_max:
            del self._sources[next(iter(self._sources))]
        self._sources[source] = found

    def forget(self) -> None:
        """Begin anew."""
        self._protocols.clear()
        self._sources.clear()

    def track_sources(self, is_wanted: bool) -> None:
        """Count by sources, or do so no longer and forget them."""
        self._is_by_source = is_wanted
        if not is_wanted:
            self._sources.clear()

    def by_protocol(self) -> list[dict[str, Any]]:
        """One row per protocol."""
        return [{"protocol": protocol, **_counts(found)} for protocol, found in self._protocols.items()]

    def by_source(self) -> list[dict[str, Any]]:
        """One row per protocol, address and user."""
        return [
            {"protocol": protocol, "remote_address": address, "username": user, **_counts(found)}
            for (protocol, address, user), found in self._sources.items()
        ]


def _counts(found: list[int]) -> dict[str, int]:
    return {
        "auth_attempts": sum(found),
        "auth_attempts_failed": found[1],
        "auth_attempts_succeeded": found[0],
    }
