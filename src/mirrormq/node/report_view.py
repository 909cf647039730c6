"""A queue's view as people watch it: who has a copy, who sends to whom, and how far each of them is.

Guarantee: who the members are follows from the metadata and is the same on every node; marks are known to the
acting master only, which is asked for them. Without its answer the view is shown without marks.
"""

from typing import TYPE_CHECKING, Protocol

from mirrormq.meta import views
from mirrormq.meta.policy import effective
from mirrormq.meta.records import Learner, Member, Queue, View
from mirrormq.mirror import ring
from mirrormq.node import report_mirrors
from mirrormq.node.report_mirrors import IN_SYNC, MirrorSource, Row

if TYPE_CHECKING:
    from mirrormq.broker.queue import Queue as LiveQueue
    from mirrormq.node.switch import Switch

MASTER, MIRROR = "master", "mirror"


class ViewSource(MirrorSource, Protocol):
    """The node, as views are read from it."""

    switch: "Switch"


# --- what every node knows ---------------------------------------------------------------------------------


def described(source: MirrorSource, record: Queue) -> Row:
    """The view of a queue without marks; a queue that is not mirrored has one member."""
    view = source.state.views.get(record.identity)
    policy = effective(source.state, record).policy
    row: Row = {
        "vhost": record.vhost,
        "name": record.name,
        "id": record.id,
        "mirrored": view is not None,
        "policy": None if policy is None else policy.name,
        "copies_wanted": report_mirrors.wanted(source.state, record) if view is not None else 1,
    }
    if view is None:
        return row | _single(source, record)
    nodes = source.state.nodes
    master = view.master if views.has_master(nodes, view) else None
    gone = report_mirrors.state_without_master(source.state, record)
    entries: list[Member | Learner] = [*view.members, *view.learners]
    return row | {
        "state": report_mirrors.RUNNING if master else gone,
        "master": master,
        "epoch": view.epoch,
        "since_epoch": view.since,
        "losses": view.losses,
        "waiver": view.waiver or None,
        "ring": [node for node in ring.chain(view) if _is_live(source, view, node)],
        "members": [_member(source, view, entry) for entry in entries],
        "waits_for": [] if master else report_mirrors.awaited(source.state, view),
    }


def _single(source: MirrorSource, record: Queue) -> Row:
    node = record.node or source.node_name
    known = source.state.nodes.get(node)
    is_running = node == source.node_name or (known is not None and known.is_live)
    state = IN_SYNC if is_running else report_mirrors.DOWN
    member = _entry(node, MASTER, state, running=is_running, source=None)
    return {
        "state": report_mirrors.RUNNING if is_running else report_mirrors.DOWN,
        "master": node if is_running else None,
        "epoch": views.FIRST_EPOCH,
        "since_epoch": views.FIRST_EPOCH,
        "losses": 0,
        "waiver": None,
        "ring": [node] if is_running else [],
        "members": [member],
        "waits_for": [] if is_running else [node],
    }


def _member(source: MirrorSource, view: View, entry: Member | Learner) -> Row:
    nodes = source.state.nodes
    is_running = views.is_live(nodes, entry)
    if not is_running:
        state = report_mirrors.DOWN
    elif isinstance(entry, Learner):
        state = report_mirrors.WAITING
    else:
        state = report_mirrors.RESTARTED if entry.is_restarted else IN_SYNC
    sender = ring.source_of(view, entry.node, lambda node: _is_live(source, view, node)) if is_running else ""
    role = MASTER if entry.node == view.master else MIRROR
    return _entry(entry.node, role, state, running=is_running, source=sender or None)


def _entry(node: str, role: str, state: str, *, running: bool, source: str | None) -> Row:
    return {
        "node": node,
        "role": role,
        "state": state,
        "in_sync": state == IN_SYNC,
        "running": running,
        "source": source,
        "received": None,
        "flushed": None,
        "lag": None,
        "progress": None,
        "bytes_sent": 0,
    }


def _is_live(source: MirrorSource, view: View, node: str) -> bool:
    entry = view.member(node) or view.learner(node)
    return entry is not None and views.is_live(source.state.nodes, entry)


# --- what only the master knows ----------------------------------------------------------------------------


def measured(source: ViewSource, queue_id: int) -> Row | None:
    """Marks of a queue that is mastered here, by `id`; None if it is not."""
    live = source.switch.masters.get(queue_id)
    if live is None:
        return None
    found: Row = {"id": queue_id, "told_by": source.node_name, **_marks(source, live)}
    row = report_mirrors.measured(source, live)
    found["state"] = row["state"]
    found["sync"] = None
    if row.get("sync_progress") is not None:
        found["sync"] = {"progress": row["sync_progress"], "messages": live.core.ready + live.core.unacked}
    told = {mirror["node"]: mirror for mirror in row.get("mirrors", ())}
    for node, marks in found["members"].items():
        mirror = told.get(node, {})
        marks |= {name: mirror[name] for name in ("state", "progress", "bytes_sent", "lag") if name in mirror}
    return found


def _marks(source: ViewSource, live: "LiveQueue") -> Row:
    copy = None if source.copies is None else source.copies.mirrors.copies.get(live.record.id)
    log = live.log
    if copy is None or copy.master is None:
        marks = {"end": log.end, "received": log.end, "durable": log.durable}
        own = {"received": log.end, "flushed": log.durable, "lag": 0}
        return {"marks": marks, "members": {source.node_name: own}, "transfer_to": None}
    master = copy.master
    members: dict[str, Row] = {
        source.node_name: {"received": copy.log.end, "flushed": copy.log.durable, "lag": 0}
    }
    for entry in (*master.view.members, *master.view.learners):
        report = master.report_of(entry.node)
        if entry.node != source.node_name:
            members[entry.node] = {
                "received": None if report is None else report.received,
                "flushed": None if report is None else report.flushed,
            }
    return {
        "marks": {"end": copy.log.end, "received": master.received, "durable": master.durable},
        "members": members,
        "transfer_to": master.transfer_to or None,
    }


# --- both --------------------------------------------------------------------------------------------------


def joined(row: Row, told: Row | None, problem: str = "") -> Row:
    """A view with the marks its master told, or with why there are none."""
    found = {**row, "marks": None, "sync": None, "transfer_to": None, "told_by": None}
    if told is None:
        return {**found, "problem": problem or None}
    found |= {name: told[name] for name in ("marks", "sync", "transfer_to", "told_by", "state")}
    for member in found["members"]:
        member.update(told["members"].get(member["node"], {}))
        member["in_sync"] = member["state"] == IN_SYNC
    return {**found, "problem": None}
