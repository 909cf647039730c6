"""The queues a cluster keeps for itself: what happened in it (`mirrormq.events`) and how it fared, second by
second (`mirrormq.samples`).

Guarantees
- They are ordinary queues to whoever reads them, and to nobody else: clients and administrators cannot
  declare, delete, purge, bind or publish to them, whatever their permissions say.
- Policies of users do not apply to them, definition files do not hold them, limits and counts leave them out.
- Each is mirrored on every node and drops its oldest messages at a bound, so it never fills a disk.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from mirrormq.base import limits
from mirrormq.meta import hidden
from mirrormq.meta.records import Queue, Table
from mirrormq.meta.tables import Tables

VHOST: Final = "/"
EVENTS: Final = "mirrormq.events"
SAMPLES: Final = "mirrormq.samples"
NAMES: Final = frozenset((EVENTS, SAMPLES))

DEFINITION: Final[Table] = {
    "ha-mode": "all",
    "ha-sync-mode": "automatic",
    "max-length-bytes": limits.system_queue_bytes,
    "overflow": "drop-head",
}
"""What applies to them in place of policies."""

_NONE: Final[frozenset[str]] = frozenset()


def is_system(vhost: str, name: str) -> bool:
    """Does a queue of this name belong to the cluster?"""
    return vhost == VHOST and name in NAMES


def names_in(vhost: str) -> frozenset[str]:
    """The names of such queues in a vhost."""
    return NAMES if vhost == VHOST else _NONE


def is_ordinary(record: Queue) -> bool:
    """Is it a queue of users?"""
    return not is_system(record.vhost, record.name) and not hidden.is_staging(record.name)


def ordinary(found: Iterable[Queue]) -> Iterator[Queue]:
    """Of these queues those of users, found as they are taken: there may be very many."""
    return (record for record in list(found) if is_ordinary(record))


def count_in(tables: Tables, vhost: str) -> int:
    """How many queues users have in a vhost."""
    own = sum((VHOST, name) in tables.queues for name in names_in(vhost))
    return len(tables.queues_in(vhost)) - own


def count_on(tables: Tables, node: str) -> int:
    """How many queues of users have their master on a node."""
    found = (tables.queues.get((VHOST, name)) for name in NAMES)
    own = sum(record is not None and record.node == node for record in found)
    return len(tables.queues_on(node)) - own


def count(tables: Tables) -> int:
    """How many queues users have."""
    return len(tables.queues) - sum((VHOST, name) in tables.queues for name in NAMES)
