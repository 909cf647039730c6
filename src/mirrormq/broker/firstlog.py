"""A queue that was in memory only gets a log, since it is to have mirrors.

Guarantee: the log has everything that the queue has, in its order, before anything that comes later. What
consumers hold is part of that and goes first, as delivered: a mirror counts as in sync when it has the log,
and if the master dies then, whatever nobody had acknowledged is in the queue again.
"""

from typing import TYPE_CHECKING

from mirrormq.kernel.cores import QueueCore
from mirrormq.log.durable import DurableLog

if TYPE_CHECKING:
    from mirrormq.broker.host import Host


def begin(log: DurableLog, core: QueueCore, host: "Host", end: int) -> None:
    """Begin an empty log behind the seqs that the queue has given out; what is ready waits to be admitted."""
    log.begin_at(end)
    if core.unacked:
        _record_held(log, core, host)
    core.readmit(end)


def _record_held(log: DurableLog, core: QueueCore, host: "Host") -> None:
    """Write what consumers hold. It stays theirs, under the seqs of these records."""
    held = sorted(
        ((seq, tag, holder) for holder in host.holders() for seq, tag in holder.outstanding(core)),
        key=lambda one: one[0],
    )
    if not held:
        return  # those who hold it are on their way out
    lent = QueueCore(host.work, host.grave, None, core.max_priority)
    for _, tag, holder in held:
        holder.lend(tag, lent)
    first = log.append(lent, len(held), host.now)
    log.reach(log.end, 0, host.now)
    for seq, (_, tag, holder) in enumerate(held, first):
        holder.renumber(tag, seq)
    lent.destroy()
