"""Which branches of a queue are being brought back (partition mode `autoheal`).

Guarantee: as long as a node may send something of a branch again, the queue's record names the numbers under
which it does so, and whoever has a copy of the queue remembers what it has of them. Those of the last
`limits.merges_kept` branches that are through stay: a node that was the queue's master for a moment, and then
stood still, offers what it had not committed to the next one whenever it goes on.
"""

from collections.abc import Iterator

from msgspec import UNSET
from msgspec.structs import replace

from mirrormq.base import limits
from mirrormq.meta.commands import NoteMerge
from mirrormq.meta.records import Merge, Queue, Record
from mirrormq.meta.tables import Refused, Tables


def merges_of(queue: Queue) -> tuple[Merge, ...]:
    """The branches that a queue's record names, the latest last."""
    return queue.merges if isinstance(queue.merges, tuple) else ()


def sources(tables: Tables) -> Iterator[int]:
    """The numbers under which branches are sent, or were."""
    for queue in tables.queues.values():
        if queue.merges is not UNSET:
            for merge in merges_of(queue):
                yield from merge.sources


def note_merge(tables: Tables, command: NoteMerge) -> Record:
    """A node begins with a branch, or is through. Heard twice, it counts once."""
    queue = tables.queues.get((command.vhost, command.name))
    if queue is None or queue.id != command.id:
        raise Refused("missing", f"no queue '{command.name}' in vhost '{command.vhost}'")
    others = [one for one in merges_of(queue) if one.sources != command.sources]
    over = [one for one in others if one.is_over or one.node not in tables.nodes]
    for one in over[: max(len(over) - limits.merges_kept + 1, 0)]:
        others.remove(one)
    after = replace(queue, merges=(*others, Merge(command.node, command.sources, command.is_over)))
    tables.put(after)
    return after
