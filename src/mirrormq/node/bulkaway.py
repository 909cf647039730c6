"""What one node asks another on behalf of a client of the bulk protocol, and how it answers.

Guarantees
- What a master has to answer is answered by the node that acts as the master, wherever the client is: a node
  that has another opinion of who that is says `unavailable`, and the client tries again.
- The node that was asked by the client has checked what the client may do; nodes trust each other.
- Whoever asks is answered once. That a question was not answered does not mean that nothing was done.

Questions travel as inquiries of the kind `bulk` (docs/protocol/inquiry.md): the operation and its arguments
as a MessagePack map, one row per answer: `id` and `answer` or `error`, before it maybe rows with `data`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.node.bulkcall import from_amqp
from mirrormq.node.inquiryframes import Ask, row_of
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Fields

if TYPE_CHECKING:
    from mirrormq.meta import records
    from mirrormq.node.inquiry import Replies
    from mirrormq.node.node import Node

KIND = "bulk"

T = TypeVar("T")
Rows = list[dict[str, Any]]
Done = Callable[[Fields | BulkError], None]
"""Gets the answer, or why there is none."""
Serve = Callable[["Node", int, Fields, Done], None]
"""Answers a question about the queue with this number (0: the arguments say which)."""

_OWN = ("self", "code", "text")
"""What an error has anyway."""

MASTER_OPS: dict[str, Serve] = {}
"""Answered by the master of a queue; entered by those who serve them."""
MEMBER_OPS: dict[str, Callable[["Node", Fields, Callable[[Rows], None]], None]] = {}
"""Answered by any node, with rows of its own."""


def serve(node: "Node", number: int, body: bytes, done: Callable[[Rows], None]) -> None:
    """Answer a question of another node."""
    try:
        fields = bulk.decode(body)
    except bulk.BadFrame as error:
        done([_row(number, BulkError(bulk.REFUSED, str(error)))])
        return
    op = str(fields.pop("op", ""))
    if op in MEMBER_OPS:
        MEMBER_OPS[op](node, fields, done)
    else:
        serve_here(node, number, op, fields, lambda found: done([_row(number, found)]))


def serve_here(node: "Node", number: int, op: str, fields: Fields, done: Done) -> None:
    """Answer a question to the master of a queue, if that is this node."""
    found = MASTER_OPS.get(op)
    try:
        if found is None:
            raise BulkError(bulk.UNKNOWN_OP, f"node '{node.node_name}' does not know '{op}'")
        found(node, number, fields, done)
    except BulkError as error:
        done(error)
    except AmqpError as error:
        done(from_amqp(error))


def ask_master(node: "Node", record: "records.Queue", op: str, fields: Fields, done: Done) -> None:
    """Put a question to whoever acts as the master of a queue."""
    ask_masters(node, [record], op, fields, lambda found: done(found[record.id]))


def ask_masters(
    node: "Node",
    wanted: "Sequence[records.Queue]",
    op: str,
    fields: Fields,
    done: Callable[[dict[int, Fields | BulkError]], None],
) -> None:
    """Put one question about many queues to their masters; `done` gets an answer for each, by its number."""
    found: dict[int, Fields | BulkError] = {}
    away: dict[str, list[records.Queue]] = {}

    def answered(number: int, one: Fields | BulkError) -> None:
        is_new = number not in found
        found[number] = one
        if is_new and len(found) == len(wanted):
            done(found)

    def gathered(asked: "list[records.Queue]", replies: "Replies") -> None:
        answers = {row.get("id"): row for row in _rows(replies)}
        problem = _problem(replies)
        for record in asked:
            answered(record.id, _found(answers.get(record.id), problem))

    if not wanted:
        done(found)
    for record in wanted:
        master = node.switch.master_of(record)
        if record.id in node.switch.masters:
            serve_here(node, record.id, op, fields, partial(answered, record.id))
        elif not master or master == node.node_name:
            text = f"queue '{record.name}' in vhost '{record.vhost}' has no master now"
            answered(record.id, BulkError(bulk.UNAVAILABLE, text))
        else:
            away.setdefault(master, []).append(record)
    body = msgspec.msgpack.encode({"op": op, **fields})
    for master, asked in away.items():
        for some in _parts(asked):
            question = _question(body, [record.id for record in some])
            node.inquiries.ask(question, [master], partial(gathered, some))


def ask_member(node: "Node", name: str, op: str, fields: Fields, done: Callable[[Rows, str], None]) -> None:
    """Put a question to one node; `done` gets its rows, or none and why."""
    body = msgspec.msgpack.encode({"op": op, **fields})

    def gathered(replies: "Replies") -> None:
        done(_rows(replies), _problem(replies))

    node.inquiries.ask(_question(body, []), [name], gathered)


class _Row(msgspec.Struct, frozen=True):
    """What may be in a row by these names, whoever sent it."""

    id: int = 0
    answer: Fields | None = None
    error: tuple[str, str, Fields] | None = None
    data: bytes = b""
    position: int = 0


def _rows(replies: "Replies") -> Rows:
    rows = [row_of(raw) for one in replies.rows.values() for raw in one]
    try:
        msgspec.convert(rows, list[_Row])
    except (msgspec.MsgspecError, RecursionError) as error:
        return [row_of_error(BulkError(bulk.UNAVAILABLE, f"a node's answer cannot be read: {error}"))]
    return rows


def _problem(replies: "Replies") -> str:
    return "; ".join(f"node '{peer}' {text}" for peer, text in replies.missing.items())


def _question(body: bytes, ids: list[int]) -> Ask:
    return Ask(0, KIND, ids=tuple(ids), body=body)


def _parts(items: "list[records.Queue]") -> "list[list[records.Queue]]":
    most = limits.inquiry_ids_max
    return [items[at : at + most] for at in range(0, len(items), most)]


def _row(number: int, found: Fields | BulkError) -> dict[str, Any]:
    if isinstance(found, BulkError):
        return {"id": number, "error": [found.code, found.text, found.more]}
    return {"id": number, "answer": found}


def _found(row: dict[str, Any] | None, problem: str) -> Fields | BulkError:
    if row is None:
        return BulkError(bulk.UNAVAILABLE, problem or "the master moved while it was asked")
    answer: Fields | None = row.get("answer")
    if answer is None:
        return error_in(row) or BulkError(bulk.UNAVAILABLE, "a node's answer says nothing")
    return answer


def row_of_error(error: BulkError) -> dict[str, Any]:
    """An error as the only row of an answer."""
    return _row(0, error)


def error_in(row: dict[str, Any]) -> BulkError | None:
    """The error in a row."""
    if row.get("error") is None:
        return None
    code, text, more = row["error"]
    return BulkError(code, text, **{name: one for name, one in more.items() if name not in _OWN})
