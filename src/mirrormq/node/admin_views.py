"""Administrators' requests that look: at a queue's view, at the newest messages of a queue, at what happened.

Any node can be asked; masters answer for their queues. Nothing is changed by any of these.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from mirrormq.base import limits
from mirrormq.broker.queueport import Later
from mirrormq.meta import records, system, views
from mirrormq.meta.state import MetaState
from mirrormq.node import browse, report_view, requests
from mirrormq.node.admin_access import need_vhost
from mirrormq.node.admin_objects import check
from mirrormq.node.inquiryframes import Ask, row_of
from mirrormq.node.report import Row
from mirrormq.node.steps import Await, Operation, Refusal, Steps
from mirrormq.wire.bulk import BulkError

if TYPE_CHECKING:
    from mirrormq.node.inquiry import Replies
    from mirrormq.node.node import Node

_UNAVAILABLE = "unavailable"


def queue_view(host: "Node", request: requests.QueueView) -> Steps:
    """The view of a queue, with the marks of its members if its master tells them."""
    record = _queue(host, request.vhost, request.name)
    row = report_view.described(host, record)
    told = report_view.measured(host, record.id)
    problem = ""
    if told is None and row["master"] is None:
        problem = "the queue has no master now"
    elif told is None:
        master = str(row["master"])
        later: Later[Replies] = Later()
        host.inquiries.ask(Ask(0, "views", ids=(record.id,)), [master], later.answer)
        replies: Replies = yield Await(later)
        for raw in replies.rows.get(master, ()):
            told = row_of(raw)
        problem = f"node {master} {replies.missing.get(master, 'is about to become the master')}"
    return report_view.joined(row, told, problem)


def browse_queue(host: "Node", request: requests.BrowseQueue) -> Steps:
    """The newest messages of a queue; none is taken."""
    record = _queue(host, request.vhost, request.name)
    check(host, request, "read", request.name)
    asked = browse.Asked(record.id, request.count, request.before, request.body)
    return {"messages": (yield from _looked(host, record, asked))}


def list_events(host: "Node", request: requests.ListEvents) -> Steps:
    """What happened in the cluster, the newest last, as `mirrormq.events` has it."""
    record = host.state.queues.get((system.VHOST, system.EVENTS))
    if record is None:
        raise Refusal("not_found", "this cluster keeps no events: `events` is off, or it has just begun")
    found: list[Row] = []
    before = request.before
    looked = 0
    while len(found) < request.limit and looked < limits.events_looked_max:
        asked = browse.Asked(record.id, limits.events_per_look, before)
        rows = yield from _looked(host, record, asked)
        if not rows:
            before = None
            break
        looked += len(rows)
        before = rows[0]["seq"]
        some = [event for row in rows if (event := _event(row)) is not None and _is_wanted(event, request)]
        found = some + found
    kept = found[-request.limit :]
    return {"events": kept, "before": kept[0]["seq"] if len(kept) < len(found) else before}


def _looked(host: "Node", record: records.Queue, asked: browse.Asked) -> Any:
    later: Later[browse.Rows | BulkError] = Later()
    browse.newest(host, record, asked, later.answer)
    found = yield Await(later)
    if isinstance(found, BulkError):
        kind = _UNAVAILABLE if found.code == "unavailable" else "bad_request"
        raise Refusal(kind, found.text.removeprefix("PRECONDITION_FAILED - "))
    return found


def _event(row: Row) -> Row | None:
    try:
        found = msgspec.json.decode(row["body"])
    except msgspec.MsgspecError:
        return None
    return {"seq": row["seq"], **found} if isinstance(found, dict) else None


def _is_wanted(event: Row, request: requests.ListEvents) -> bool:
    if request.since is not None and event.get("at", 0) < request.since:
        return False
    if request.events and not any(str(event.get("event", "")).startswith(name) for name in request.events):
        return False
    if request.vhost is not None and event.get("vhost") != request.vhost:
        return False
    return request.name is None or event.get("name") == request.name


def _queue(host: "Node", vhost: str, name: str) -> records.Queue:
    need_vhost(host.state, vhost)
    record = host.state.queues.get((vhost, name))
    if record is None:
        raise Refusal("no_such_queue", f"no queue '{name}' in vhost '{vhost}'")
    return record


def is_behind(state: MetaState, view: records.View) -> bool:
    """Has a queue a mirror that is there and not in sync?"""
    entries: list[records.Member | records.Learner] = [
        *(entry for entry in view.members if entry.is_restarted),
        *view.learners,
    ]
    return any(views.is_live(state.nodes, entry) for entry in entries)


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.QueueView: queue_view,
    requests.BrowseQueue: browse_queue,
    requests.ListEvents: list_events,
}
