"""Alarms: what the machine runs short of. Publishers of all nodes are held for it (node/news.py)."""

from typing import Protocol

from mirrormq.broker.host import BrokerSettings


class Alarmed(Protocol):
    """The node, as alarms see it."""

    settings: BrokerSettings
    alarms: set[str]

    def note(self, level: str, text: str, **fields: object) -> None:
        """Tell the operator."""
        ...


def look(node: Alarmed, memory: int, disk_free: int, *, is_full: bool) -> None:
    """Raise or clear the alarms for this much memory used and this much disk left."""
    settings = node.settings
    _set(node, "memory", bool(settings.memory_limit) and memory > settings.memory_limit)
    limit = settings.disk_free_limit
    _set(node, "disk", is_full or (bool(limit) and disk_free < limit))


def _set(node: Alarmed, name: str, raised: bool) -> None:
    if raised == (name in node.alarms):
        return
    if raised:
        node.alarms.add(name)
        node.note(
            "warning", f"{name} alarm set: publishers are held until it clears", alarm=name, event="alarm.set"
        )
    else:
        node.alarms.discard(name)
        node.note("info", f"{name} alarm cleared: publishers go on", alarm=name, event="alarm.cleared")
