"""Waivers: queues whose masters may act without a lease while all other in-sync members grant them that.

Guarantee: only a queue has one that nobody takes over with a loss meanwhile (docs/partitions.md).
"""

from msgspec import UNSET
from msgspec.structs import replace

from mirrormq.meta import commands, mirroring
from mirrormq.meta.records import View
from mirrormq.meta.tables import Refused, Tables


def waived_by(tables: Tables, node: str) -> int:
    """How many queues a node may go on with while nobody hears of it."""
    return sum(view.waiver == node for view in tables.views_of(node))


def waived(tables: Tables, view: View, command: commands.ChangeView) -> View:
    """Only for queues that nobody else takes over with a loss, nor loses with its nodes."""
    queue = tables.queues[view.identity]
    found = mirroring.mirroring_of(tables, queue, command.ha_defaults)
    if not mirroring.may_waive(found) or not queue.durable or view.waiver == view.master:
        raise Refused("guard", f"queue '{queue.name}' needs the lease of its master", view)
    return replace(view, epoch=view.epoch + 1, waiver=view.master)


def unwaived(_: Tables, view: View, __: commands.ChangeView) -> View:
    """The master needs its lease again."""
    if not view.waiver:
        raise Refused("guard", f"the master of queue '{view.name}' needs its lease", view)
    return replace(view, epoch=view.epoch + 1, waiver=UNSET)
