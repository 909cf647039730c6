"""Fills the queues mastered here from the journal when the node starts."""

from typing import TYPE_CHECKING

from mirrormq.broker.queue import Queue
from mirrormq.kernel import records
from mirrormq.log.disk import Disk
from mirrormq.log.fold import NOTHING, encode_epoch
from mirrormq.log.recovery import Owner, Recovery

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies
    from mirrormq.node.node import Node


def recover_queues(node: "Node", disk: Disk, copies: "Copies") -> None:
    """Fill the durable queues and the copies of mirrored ones; what cannot be read damages its queue and no
    other.
    """
    durable = [
        queue
        for vhost in node.vhosts.values()
        for queue in vhost.queues.values()
        if isinstance(queue, Queue) and queue.log.kept is not None
    ]
    durable += copies.branches.recover(disk)
    owners = {
        queue.record.log_id: Owner(queue.text, queue.core, node.logs[queue.record.log_id])
        for queue in durable
    }
    for log_id, log in copies.recovered().items():
        owners[log_id] = Owner(f"a mirrored queue (log {log_id})", None, log)
    node.switch.spool.clear(disk)
    recovery = Recovery(disk, owners)
    found = recovery.run()
    node.journal.start(found.next_serial, found.serials, found.previous_end, node.logs.values())
    node.journal.ends.update(recovery.ends)
    # Not before a checkpoint of ours is durable: the one just read may be in the page cache only, and the
    # older one that a power failure would bring back needs the files this one does not.
    node.recycler.orphans += recovery.orphans
    copies.avoid(recovery.numbers)
    for name in recovery.damaged_heads:
        node.note(
            "warning",
            f"the head of {name} is damaged; its records were read all the same",
            event="storage.head_damaged",
        )
    for fault in recovery.faults:
        if not fault.queue_id:
            node.note("warning", fault.text, event="storage.damaged")
    node.recycler.kept = recovery.kept
    for log_id, log in copies.recovered().items():
        log.damage = owners[log_id].damage
    for queue in durable:
        owner = owners[queue.record.log_id]
        if owner.damage is not None:
            queue.fail(owner.damage)
        elif (dropped := recovery.drops.of(owner.log)) != NOTHING:
            record = encode_epoch(node.node_name, dropped)
            owner.log.write_other(records.EPOCH, *record, node.now, flush=False)
    if found.serials:
        node.note(
            "info",
            "queues recovered",
            messages=found.messages,
            dropped_transient=found.dropped_transient,
            torn_bytes=found.torn_bytes,
            event="storage.recovered",
        )
