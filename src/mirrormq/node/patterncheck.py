"""Tells the operator of stored patterns that do not match what they say.

Guarantee: one warning for each policy and permission whose pattern is not matched as it is written, when this
node starts and whenever one is set; nobody's start or change waits for it. Patterns that cannot be matched in
bounded time are refused when somebody sets them, so these come from older versions or from other nodes' logs.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.meta.patterns import doubt
from mirrormq.meta.records import Permission, Policy, TopicPermission

if TYPE_CHECKING:
    from mirrormq.node.node import Node

Record = Policy | Permission | TopicPermission


def begin(node: "Node") -> None:
    """Look at all there are, some in every pass."""
    state = node.meta
    records: Iterable[Record] = chain(
        list(state.policies.values()),
        list(state.permissions.values()),
        list(state.topic_permissions.values()),
    )
    left = iter(records)

    def step() -> bool:
        """Look at some; False when all are done."""
        some = list(islice(left, limits.patterns_checked_per_pass))
        for record in some:
            look_at(node, record)
        return len(some) == limits.patterns_checked_per_pass

    if step():
        node.bulk.go_on_with(step)


def look_at(node: "Node", record: Record) -> None:
    """Warn of one if there is reason to."""
    for name, text in _texts(record):
        wrong = doubt(text)
        if wrong is not None:
            shown = text if len(text) <= limits.short_string_bytes_max else text[:40] + "..."
            said = f"the pattern of {name} is not supported: {wrong}"
            node.note("warning", said, pattern=shown, event="pattern.unsupported")


def _texts(record: Record) -> Iterator[tuple[str, str]]:
    if isinstance(record, Policy):
        kind = "operator policy" if record.operator else "policy"
        yield f"{kind} '{record.name}' in vhost '{record.vhost}'", record.pattern
        return
    of = f"of user '{record.user}' in vhost '{record.vhost}'"
    if isinstance(record, Permission):
        yield f"the permission to configure {of}", record.configure
    yield f"the permission to write {of}", record.write
    yield f"the permission to read {of}", record.read
