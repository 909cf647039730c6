"""What reports show of mirrored queues: who has a copy, how far each is, and what a queue waits for.

Guarantee: columns made by `described` follow from the metadata alone and are the same on every node; those
made by `measured` are known to the acting master only, which tells them to other nodes when it is asked.

RabbitMQ's names stand beside ours. States of a queue: running, syncing (old records are being copied),
transferring (another node is about to become the master), held (fewer copies in sync than `ha-min-in-sync`),
stopped_clean (its master went down in good order and nobody could take over), down (no master), damaged.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mirrormq.meta import mirroring, system, views
from mirrormq.meta.records import Learner, Member, Queue, View
from mirrormq.meta.state import MetaState
from mirrormq.mirror.copy import Copy
from mirrormq.mirror.mirrors import Mirrors
from mirrormq.node.happenings import Counters

if TYPE_CHECKING:
    from mirrormq.broker.queueport import QueuePort
    from mirrormq.node.balancer import Balancer
    from mirrormq.node.maintenance import Maintenance

Row = dict[str, Any]

RUNNING, SYNCING, TRANSFERRING, HELD = "running", "syncing", "transferring", "held"
STOPPED_CLEAN, DOWN, DAMAGED = "stopped_clean", "down", "damaged"

IN_SYNC, RESTARTED, WAITING, COPYING, CATCHING_UP = (
    "in-sync",
    "restarted",
    "waiting",
    "copying",
    "catching-up",
)
"""States of a mirror; one whose node is not there is `down`."""

_BUSY = (COPYING, CATCHING_UP)

Progress = Sequence[tuple[str, float, int, str]]
"""(node, percent, bytes sent, state) of the mirrors that are not in sync."""


class CopiesPort(Protocol):
    """The copies of mirrored queues on this node, as operators see and change them."""

    @property
    def mirrors(self) -> Mirrors:
        """The mirroring of this process."""
        ...

    @property
    def counters(self) -> Counters:
        """What has happened to mirrored queues, as far as this node tells of it."""
        ...

    def synchronise(self, queue_id: int, wanted: bool) -> str:
        """Copy old records to mirrors that are not in sync, or no longer; nothing, or why not."""
        ...

    def repair(self, queue_id: int) -> str:
        """Have the copy of a queue here fetched anew from other nodes; nothing, or why not."""
        ...

    @property
    def balancer(self) -> "Balancer":
        """Rebalancing."""
        ...

    @property
    def maintenance(self) -> "Maintenance":
        """Whether this node is in maintenance, and what is left of its masters."""
        ...

    def transfer(self, queue_id: int, to: str, done: Callable[[str], None], run: int = 0) -> None:
        """Hand a queue mastered here over to another node; `done` gets nothing, or why not."""
        ...

    def progress(self, queue_id: int) -> Progress:
        """How far mirrors that are not in sync are."""
        ...


class MirrorSource(Protocol):
    """The node, as reports about mirrors read it."""

    node_name: str

    @property
    def state(self) -> MetaState:
        """The metadata."""
        ...

    @property
    def copies(self) -> CopiesPort | None:
        """The copies of mirrored queues here; None until the node has entered its cluster."""
        ...


# --- what every node knows ---------------------------------------------------------------------------------


def described(source: MirrorSource, record: Queue, pid: Callable[[str, int], str]) -> Row:
    """Columns of a queue that follow from its view; none if it is not mirrored. `pid` names a queue on a
    node.
    """
    view = source.state.views.get(record.identity)
    if view is None:
        return {}
    nodes = source.state.nodes
    found = views.columns(view, nodes, lambda node: pid(node, view.id))
    live = [entry for entry in view.members if views.is_live(nodes, entry)]
    in_sync = [entry.node for entry in live if not entry.is_restarted]
    behind = [entry.node for entry in live if entry.is_restarted]
    behind += [entry.node for entry in view.learners if views.is_live(nodes, entry)]
    row: Row = {
        **found,
        "slave_nodes": [entry.node for entry in _mirrors(view) if views.is_live(nodes, entry)],
        "synchronised_slave_nodes": [node for node in in_sync if node != view.master],
        "master": view.master if views.has_master(nodes, view) else None,
        "epoch": view.epoch,
        "in_sync": in_sync,
        "unsynchronised": behind,
        "copies_wanted": wanted(source.state, record),
        "losses": view.losses,
        "replication": "async" if is_async(source.state, record) else "sync",
        "to_salvage": [node for parting in view.partings for node in parting.nodes],
        "salvaged": view.salvaged,
        "salvage_dropped": view.dropped,
    }
    if record.arguments.get("x-queue-type") == "quorum":
        members = [view.master, *(entry.node for entry in _mirrors(view))]
        online = [view.master] if row["master"] else []
        row |= {"leader": row["master"], "members": members, "online": [*online, *row["slave_nodes"]]}
    return row


def wanted(state: MetaState, record: Queue) -> int:
    """How many copies the policy of a queue wants in this cluster."""
    return mirroring.target(mirroring.mirroring_of(state, record, "safe"), state.nodes)


def is_async(state: MetaState, record: Queue) -> bool:
    """Are publishes to a queue confirmed before its mirrors have them?"""
    return mirroring.mirroring_of(state, record, "safe").is_async


def state_without_master(state: MetaState, record: Queue) -> str:
    """The state of a queue that nobody serves."""
    view = state.views.get(record.identity)
    return STOPPED_CLEAN if view is not None and view.is_stopped else DOWN


def awaited(state: MetaState, view: View) -> list[str]:
    """The nodes one of which must come back for a queue without a master to be served without a loss.

    Those that were not restarted come first; a forgotten node is not waited for.
    """
    entries = sorted(view.members, key=lambda entry: entry.is_restarted)
    return [entry.node for entry in entries if entry.node in state.nodes and entry.start >= 0]


def _mirrors(view: View) -> list[Member | Learner]:
    return [*view.members[1:], *view.learners]


# --- what only the master knows ----------------------------------------------------------------------------


def measured(source: MirrorSource, live: "QueuePort") -> Row:
    """Columns of a queue that is mastered here: its state and, if it is mirrored, how far its mirrors are."""
    if live.damage is not None:
        return {"state": DAMAGED}
    record = live.record
    view = source.state.views.get(record.identity)
    copy = None if source.copies is None else source.copies.mirrors.copies.get(record.id)
    if source.copies is None or view is None or copy is None or copy.master is None:
        return {"state": RUNNING}
    master = copy.master
    end = copy.log.end
    progress = {
        node: (percent, size, state) for node, percent, size, state in source.copies.progress(view.id)
    }
    rows: list[Row] = []
    for entry in _mirrors(view):
        report = master.report_of(entry.node)
        percent, size, state = progress.get(entry.node, (None, 0, ""))
        rows.append(
            {
                "node": entry.node,
                "state": _mirror_state(source, entry, state),
                "progress": percent,
                "bytes_sent": size,
                "lag": None if report is None else max(0, end - report.flushed),
            }
        )
    done = [row["progress"] for row in rows if row["progress"] is not None]
    lags = [row["lag"] for row in rows if row["state"] == IN_SYNC and row["lag"] is not None]
    found: Row = {
        "state": _queue_state(master.is_frozen, master.is_held, [row["state"] for row in rows]),
        "durable_mark": master.durable,
        "mirror_lag": max(lags, default=0),
        "mirrors": rows,
        "sync_progress": min(done, default=None),
        **_loss_window(copy),
    }
    if found["state"] == SYNCING:
        messages = live.core.ready + live.core.unacked
        found["sync_messages"] = int(messages * min(done, default=0) / 100)
    return found


def _loss_window(copy: Copy) -> Row:
    """With asynchronous replication: what may have been confirmed and is not known to be on the disk of every
    mirror in sync, so that it may be lost if this node dies now.
    """
    if not copy.options.is_async:
        return {}
    count, size, oldest = copy.log.backlog
    age = max(0, copy.mirrors.now.wall - oldest) if count else 0
    return {"loss_window_records": count, "loss_window_bytes": size, "loss_window_seconds": age / 1e6}


def _mirror_state(source: MirrorSource, entry: Member | Learner, told: str) -> str:
    if not views.is_live(source.state.nodes, entry):
        return DOWN
    if isinstance(entry, Member) and not entry.is_restarted:
        return IN_SYNC
    return told or (RESTARTED if isinstance(entry, Member) else WAITING)


def _queue_state(is_frozen: bool, is_held: bool, mirrors: list[str]) -> str:
    if is_frozen:
        return TRANSFERRING
    if is_held:
        return HELD
    return SYNCING if any(state in _BUSY for state in mirrors) else RUNNING


# --- checks ------------------------------------------------------------------------------------------------


def sync_critical(source: MirrorSource, *, quorum: bool | None = None) -> list[Row]:
    """Mirrored queues that nobody could take over without a loss if this node stopped now.

    `quorum`: only those declared with `x-queue-type: quorum`, or only the others.
    """
    found = []
    for view in views.sync_critical(source.state, source.node_name):
        record = source.state.queues[view.identity]
        if system.is_system(view.vhost, view.name):
            continue  # whatever becomes of it, no message of a user is lost
        is_quorum = record.arguments.get("x-queue-type") == "quorum"
        if quorum in (None, is_quorum):
            text = f"queue '{view.name}' in vhost '{view.vhost}'"
            kind = "quorum" if is_quorum else "classic"
            found.append({"name": view.name, "virtual_host": view.vhost, "readable_name": text, "type": kind})
    return found


# --- the copy on this node ---------------------------------------------------------------------------------


def own_copy(source: MirrorSource, queue_id: int) -> Row | None:
    """What this node has of a mirrored queue, whoever is its master; None if it has nothing."""
    copy = None if source.copies is None else source.copies.mirrors.copies.get(queue_id)
    if copy is None:
        return None
    log = copy.log
    return {
        "id": queue_id,
        "node": source.node_name,
        "end": log.end,
        "flushed": log.durable,
        "low": log.low,
        "is_complete": log.is_complete,
        "copied": log.copied,
        "copied_of": log.base,
    }
