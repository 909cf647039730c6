"""Administrators' requests about mirrored queues: synchronise, move the master, promote by force, look.

Any node can be asked. What only the master of a queue can do is carried to it by an inquiry and answered when
it is done there, or has failed; a promotion by force is a command of the metadata, since there is no master
to ask. Nothing is promoted with a loss that a `plan` of the same request would not have announced.
"""

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from msgspec import UNSET

from mirrormq.base import limits
from mirrormq.broker.queueport import Later
from mirrormq.meta import commands, views
from mirrormq.meta.records import Queue, View
from mirrormq.node import report, report_mirrors, requests
from mirrormq.node.admin_access import expect, need_vhost
from mirrormq.node.inquiry import Ask, Inquiries, Replies
from mirrormq.node.inquiry_rows import NOT_READY, PROBLEM
from mirrormq.node.inquiryframes import octets, row_of
from mirrormq.node.report import Row, Source
from mirrormq.node.steps import Await, Operation, Propose, Refusal, Steps, Wait


class MirrorHost(Source, Protocol):
    """The node, as these requests see it."""

    inquiries: Inquiries


# --- synchronising ---


def sync_queue(host: MirrorHost, request: requests.SyncQueue) -> Steps:
    """Copy everything to the mirrors that are not in sync; begins it, and does not wait for its end."""
    return (yield from _synchronise(host, request.vhost, request.name, wanted=True))


def cancel_sync_queue(host: MirrorHost, request: requests.CancelSyncQueue) -> Steps:
    """Stop copying; what was copied stays, and a later sync goes on from there."""
    return (yield from _synchronise(host, request.vhost, request.name, wanted=False))


def _synchronise(host: MirrorHost, vhost: str, name: str, *, wanted: bool) -> Steps:
    record, view = need_mirrored(host, vhost, name)
    master = need_master(host, view)
    if master == host.node_name:
        problem = NOT_READY if host.copies is None else host.copies.synchronise(record.id, wanted)
    else:
        question = Ask(0, "sync_queue", ids=(record.id,), limit=int(wanted))
        problem = _told(master, (yield Await(_asked(host, question, [master]))))
    if problem:
        raise Refusal("cannot_sync", f"{_text(record)}: {problem}")
    behind = report_mirrors.described(host, record, report.queue_pid)["unsynchronised"]
    return {"master": master, "unsynchronised": behind}


def repair_queue(host: MirrorHost, request: requests.RepairQueue) -> Steps:
    """Fetch a copy anew from the others; begins it, and does not wait for its end. A master's node hands the
    queue over first. A queue that only one node has cannot be repaired so.
    """
    record, view = need_mirrored(host, request.vhost, request.name)
    node = request.node or need_master(host, view)
    if view.member(node) is None and view.learner(node) is None:
        raise Refusal("cannot_repair", f"{_text(record)} has no copy on node {node}")
    if node == host.node_name:
        problem = NOT_READY if host.copies is None else host.copies.repair(record.id)
    else:
        question = Ask(0, "repair_queue", ids=(record.id,))
        problem = _told(node, (yield Await(_asked(host, question, [node]))))
    if problem:
        cure = "start a node that has it, restore the data folder from a backup, or delete the queue"
        raise Refusal("cannot_repair", f"{_text(record)} on node {node}: {problem}; {cure}")
    return {"node": node}


def sync_status(host: MirrorHost, request: requests.SyncStatus) -> Steps:
    """How far the mirrors of a queue are, as its master knows it."""
    record, view = need_mirrored(host, request.vhost, request.name)
    master = need_master(host, view)
    row: Row = report_mirrors.described(host, record, report.queue_pid)
    if master == host.node_name:
        live = host.vhosts[record.vhost].queues[record.name]
        row |= report_mirrors.measured(host, live)
    else:
        replies = yield Await(_asked(host, Ask(0, "queues", ids=(record.id,)), [master]))
        for raw in replies.rows.get(master, ()):
            row |= row_of(raw)
        if replies.missing:
            raise Refusal("unavailable", f"node {master} {replies.missing[master]}")
    shown = ("master", "epoch", "in_sync", "unsynchronised", "state", "mirrors", "sync_progress")
    return {name: row.get(name) for name in shown}


# --- moving ---


def move_master(host: MirrorHost, request: requests.MoveMaster) -> Steps:
    """Make another node the master without losing anything; answered when it is."""
    record = need_queue(host, request.vhost, request.name)
    view = host.state.views.get(record.identity)
    master = record.node if view is None else need_master(host, view)
    if request.node not in host.state.nodes:
        raise Refusal("not_a_cluster_node", f"node {request.node} is not in the cluster")
    if request.node == master:
        return {"master": master, "from": master}
    if master == host.node_name:
        if host.copies is None:
            raise Refusal("cannot_move", f"node {master} {NOT_READY}")
        moved: Later[str] = Later()
        host.copies.transfer(record.id, request.node, moved.answer)
        problem = yield Await(moved)
    else:
        question = Ask(0, "move_master", ids=(record.id,), name=octets(request.node))
        replies = yield Await(_asked(host, question, [master], limits.move_us_max))
        problem = _told(master, replies)
    if problem:
        raise Refusal("cannot_move", f"{_text(record)} stays on node {master}: {problem}")
    return {"master": request.node, "from": master}


# --- promoting by force ---


def force_promote(host: MirrorHost, request: requests.ForcePromote) -> Steps:
    """Give a queue without a master to the best copy that is there, or to that of the node named."""
    record, view = need_mirrored(host, request.vhost, request.name)
    if views.has_master(host.state.nodes, view):
        text = f"{_text(record)} has a master on node {view.master}; move_master moves it without a loss"
        raise Refusal("has_master", text)
    candidates, is_lossy = _candidates(host, view)
    # A master that may go on without a lease, where nobody sees it, does so in vain from then on.
    is_lossy = is_lossy or bool(view.waiver)
    if request.node and request.node not in candidates:
        there = f"those that could be are {', '.join(candidates)}" if candidates else _nobody(host, view)
        raise Refusal("cannot_promote", f"node {request.node} cannot be its master: {there}")
    if not candidates:
        raise Refusal("cannot_promote", f"{_text(record)}: {_nobody(host, view)}")
    copies = yield from _copies_on(host, record.id, candidates)
    node = request.node or (max(candidates, key=lambda name: _worth(copies, name)) if is_lossy else "")
    chosen = node or candidates[0]
    found: Row = {
        "node": chosen,
        "lossy": is_lossy,
        "passed_over": [entry.node for entry in view.members if entry.node != chosen],
        "waits_for": report_mirrors.awaited(host.state, view),
        "copies": [copies[name] for name in candidates if name in copies],
        "losses": view.losses,
    }
    if request.plan:
        return found
    if is_lossy and not request.accept_loss:
        raise Refusal("would_lose", f"{_text(record)} would lose what only {_names(found['waits_for'])} has")
    force = True if view.waiver else UNSET
    command = commands.ForcePromote(record.vhost, record.name, record.id, node, force)
    outcome = expect((yield Propose(command)))
    if isinstance(outcome.record, View):
        found |= {"node": outcome.record.master, "epoch": outcome.record.epoch}
    return found


def _candidates(host: MirrorHost, view: View) -> tuple[list[str], bool]:
    """Who may be promoted, in the order the metadata prefer, and whether that loses something."""
    nodes = host.state.nodes
    live = [entry for entry in view.members if views.is_live(nodes, entry)]
    if live:
        return [entry.node for entry in sorted(live, key=lambda entry: entry.is_restarted)], False
    return [entry.node for entry in view.learners if views.is_live(nodes, entry)], True


def _copies_on(host: MirrorHost, queue_id: int, nodes: Sequence[str]) -> Generator[Wait, Any, dict[str, Row]]:
    """What some nodes have of a queue, by node; of one that does not answer nothing is known."""
    others = [node for node in nodes if node != host.node_name]
    own = report_mirrors.own_copy(host, queue_id) if host.node_name in nodes else None
    found: dict[str, Row] = {} if own is None else {host.node_name: own}
    if others:
        replies = yield Await(_asked(host, Ask(0, "copies", ids=(queue_id,)), others))
        for node, rows in replies.rows.items():
            for raw in rows:
                found[node] = row_of(raw)
    return found


def _worth(copies: dict[str, Row], node: str) -> tuple[bool, bool, int]:
    """Of two copies the better one: complete before half, long before short."""
    row = copies.get(node)
    if row is None:
        return (False, False, 0)
    return (True, row["is_complete"], row["end"] if row["is_complete"] else row["copied"])


def _nobody(host: MirrorHost, view: View) -> str:
    names = report_mirrors.awaited(host.state, view)
    if not names:
        return "no node has a copy of it any more; delete the queue and declare it again"
    return f"no node that is there has a copy of it; start {_names(names)}"


# --- shared ---


def need_mirrored(host: MirrorHost, vhost: str, name: str) -> tuple[Queue, View]:
    """A queue and its view, or a refusal."""
    record = need_queue(host, vhost, name)
    view = host.state.views.get(record.identity)
    if view is None:
        raise Refusal("not_mirrored", f"{_text(record)} is not mirrored; a policy with ha-mode makes it so")
    return record, view


def need_queue(host: MirrorHost, vhost: str, name: str) -> Queue:
    """A queue, or a refusal."""
    need_vhost(host.state, vhost)
    record = host.state.queues.get((vhost, name))
    if record is None:
        raise Refusal("no_such_queue", f"no queue '{name}' in vhost '{vhost}'")
    return record


def need_master(host: MirrorHost, view: View) -> str:
    """The node that is the master now, or a refusal that says what to do."""
    if views.has_master(host.state.nodes, view):
        return view.master
    names = report_mirrors.awaited(host.state, view)
    cure = f"start {_names(names)}, or see force_promote" if names else "see force_promote"
    raise Refusal("no_master", f"queue '{view.name}' in vhost '{view.vhost}' has no master now: {cure}")


def _asked(
    host: MirrorHost, question: Ask, nodes: Sequence[str], patience: int = limits.inquiry_silence_us
) -> Later[Replies]:
    later: Later[Replies] = Later()
    host.inquiries.ask(question, nodes, later.answer, patience)
    return later


def _told(master: str, replies: Replies) -> str:
    """What the master said; nothing if it is done."""
    if replies.missing:
        return f"node {master} {replies.missing[master]}; whether it was done is not known"
    for raw in replies.rows.get(master, ()):
        return str(row_of(raw).get(PROBLEM, ""))
    return f"node {master} gave no answer"


def _text(record: Queue) -> str:
    return f"queue '{record.name}' in vhost '{record.vhost}'"


def _names(nodes: Sequence[str]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"one of the nodes {', '.join(nodes)}"


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.SyncQueue: sync_queue,
    requests.CancelSyncQueue: cancel_sync_queue,
    requests.RepairQueue: repair_queue,
    requests.SyncStatus: sync_status,
    requests.MoveMaster: move_master,
    requests.ForcePromote: force_promote,
}
