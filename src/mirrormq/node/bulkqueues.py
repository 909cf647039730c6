"""The operation `queues`: facts about queues, their marks from whoever acts as their master.

Guarantee: every queue that was asked for is in the answer, with marks its master has just given; or the whole
call fails, `unavailable` if it is worth another try. Asked for what is known (`partial`) it does not fail: a
queue whose master gave no marks has none, and says why.
"""

from typing import TYPE_CHECKING

from mirrormq.meta import records
from mirrormq.node import bulkaway, bulkfacts
from mirrormq.node.bulkcall import Call
from mirrormq.node.inquiryframes import Ask, row_of
from mirrormq.node.report_mirrors import own_copy
from mirrormq.wire.bulk import BulkError, Fields

if TYPE_CHECKING:
    from mirrormq.node.inquiry import Replies
    from mirrormq.node.node import Node

MARKS = "marks"


def queues(call: Call) -> None:
    """Facts about queues; one that is asked for by name and is not there is an error."""
    asked = call.take(bulkfacts.Asked)

    def chosen(wanted: list[records.Queue]) -> None:
        def gathered(found: dict[int, Fields | BulkError]) -> None:
            rows = []
            for record in wanted:
                marks = found[record.id]
                if isinstance(marks, BulkError) and not asked.partial:
                    call.fail(marks)
                    return
                if isinstance(marks, BulkError):
                    marks = {"next": None, "why": marks.text, "code": marks.code}
                rows.append({**bulkfacts.describe(call.node, record, call.session), **marks})
            call.answer({"queues": rows})

        bulkaway.ask_masters(call.node, wanted, MARKS, {}, gathered)

    bulkfacts.wanted(call, asked, chosen)


def copies(call: Call) -> None:
    """What each node that has a copy of a queue has of it, as it says itself: for audits."""
    asked = call.take(bulkfacts.Asked)
    (record,) = bulkfacts.named(call, bulkfacts.Asked(asked.vhost, asked.queue or ""))
    node = call.node
    own = own_copy(node, record.id)
    names = [member["node"] for member in bulkfacts.members(node, record)]

    def told(replies: "Replies") -> None:
        rows = [row_of(raw) for some in replies.rows.values() for raw in some]
        call.answer({"copies": [*([own] if own else []), *rows], "missing": dict(replies.missing)})

    question = Ask(0, "copies", ids=(record.id,))
    node.inquiries.ask(question, [name for name in names if name != node.node_name], told)


def _marks(node: "Node", number: int, _fields: Fields, done: bulkaway.Done) -> None:
    done(bulkfacts.marks(node, bulkfacts.mastered(node, number)))


bulkaway.MASTER_OPS[MARKS] = _marks
