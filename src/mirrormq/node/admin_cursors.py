"""Administrators' requests about cursors: what there is, and taking one away.

Any node can be asked; masters answer for their queues. A node that does not answer is named with the rows.
"""

from itertools import islice
from typing import TYPE_CHECKING

from mirrormq.base import limits
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
    rows: list[Row] = yield Await(_own(host, request.vhost, ids))
    replies: Later[Replies] = Later()
    question = Ask(0, "cursors", vhost=octets(request.vhost), ids=ids)
    host.inquiries.ask(question, host.inquiries.others(), replies.answer)
    found: Replies = yield Await(replies)
    rows += [row_of(raw) for some in found.rows.values() for raw in some]
    rows.sort(key=lambda row: (row["queue"], row["name"]))
    return {"rows": rows, "missing": dict(found.missing)}


def _own(host: "Node", vhost: str, ids: tuple[int, ...]) -> "Later[list[Row]]":
    """Cursors of the queues mastered here, looked for in slices: there may be very many queues."""
    found: Later[list[Row]] = Later()
    rows: list[Row] = []
    left = iter(ids or list(host.switch.masters))

    def step() -> bool:
        some = list(islice(left, limits.cursor_queues_per_step))
        for number in some:
            queue = host.switch.masters.get(number)
            kept = None if queue is None or queue.vhost.name != vhost else queue.log.kept
            if queue is not None and kept is not None and len(kept.cursors):
                rows.extend(bulkcursors.listed(host, queue))
        if not some:
            found.answer(rows)
        return bool(some)

    if step():
        host.bulk.go_on_with(step)
    return found


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
