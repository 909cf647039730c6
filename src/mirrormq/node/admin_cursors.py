"""Administrators' requests about cursors: what there is, and taking one away.

Any node can be asked; masters answer for their queues. A node that does not answer is named with the rows.
"""

from typing import TYPE_CHECKING

from mirrormq.broker.queueport import Later
from mirrormq.meta.records import Queue
from mirrormq.node import bulkaway, bulkcursors, requests
from mirrormq.node.admin_access import need_vhost
from mirrormq.node.inquiryframes import Ask, octets, row_of
from mirrormq.node.report import Row
from mirrormq.node.steps import Await, Operation, Refusal, Steps
from mirrormq.wire.bulk import BulkError, Fields

if TYPE_CHECKING:
    from mirrormq.node.inquiry import Replies
    from mirrormq.node.node import Node


def list_cursors(host: "Node", request: requests.ListCursors) -> Steps:
    """The cursors of a vhost, or of a queue."""
    need_vhost(host.state, request.vhost)
    ids = (_queue(host, request.vhost, request.name).id,) if request.name else ()
    rows: list[Row] = []
    for queue in [host.switch.masters.get(number) for number in ids] if ids else host.switch.masters.values():
        kept = None if queue is None or queue.vhost.name != request.vhost else queue.log.kept
        if queue is not None and kept is not None and len(kept.cursors):
            rows += bulkcursors.listed(host, queue)
    replies: Later[Replies] = Later()
    question = Ask(0, "cursors", vhost=octets(request.vhost), ids=ids)
    host.inquiries.ask(question, host.inquiries.others(), replies.answer)
    found: Replies = yield Await(replies)
    rows += [row_of(raw) for some in found.rows.values() for raw in some]
    rows.sort(key=lambda row: (row["queue"], row["name"]))
    return {"rows": rows, "missing": dict(found.missing)}


def drop_cursor(host: "Node", request: requests.DropCursor) -> Steps:
    """Take a cursor away, lost or not."""
    need_vhost(host.state, request.vhost)
    record = _queue(host, request.vhost, request.name)
    dropped: Later[Fields | BulkError] = Later()
    fields = {"name": request.cursor}
    bulkaway.ask_master(host, record, bulkcursors.DROP, fields, dropped.answer)
    found = yield Await(dropped)
    if isinstance(found, BulkError):
        kind = "no_such_cursor" if found.code == "not-found" else found.code
        raise Refusal(kind, found.text.removeprefix("NOT_FOUND - "))
    return {}


def _queue(host: "Node", vhost: str, name: str) -> Queue:
    record = host.state.queues.get((vhost, name))
    if record is None:
        raise Refusal("no_such_queue", f"no queue '{name}' in vhost '{vhost}'")
    return record


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.ListCursors: list_cursors,
    requests.DropCursor: drop_cursor,
}
