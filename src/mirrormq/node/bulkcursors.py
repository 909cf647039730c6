"""Cursors over the network: opened, moved, dropped and listed from any node, kept by the queue's master.

Guarantees
- A cursor that was reported as open survives what the queue survives. From then on every record from its seq
  on stays readable on every member, until it moves, is dropped, or is lost by its bounds; its name says so.
- A cursor has one live reader; another one is refused, with a word about who has it.
- In the mode `consume` nobody else takes messages from the queue: it begins only while nobody does, and
  everybody else is refused from then on, whichever master the queue has, until the cursor is dropped or lost.
  An advance with `remove` takes what is live before the new position out of the queue, in one batch with it.
"""

from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from mirrormq.base import limits
from mirrormq.base.errors import access_refused, precondition_failed
from mirrormq.broker import taking
from mirrormq.broker.queue import Queue
from mirrormq.log.cursors import Cursor, CursorRefused
from mirrormq.log.durable import DurableLog
from mirrormq.log.locate import Locator
from mirrormq.node import bulkaway, bulkfacts
from mirrormq.node.bulkaway import MASTER_OPS, Done
from mirrormq.node.bulkcall import Call, Handler
from mirrormq.node.bulkservice import Reader
from mirrormq.node.inquiryframes import Ask, row_of
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Fields

if TYPE_CHECKING:
    from mirrormq.node.inquiry import Replies
    from mirrormq.node.node import Node

OPEN, ADVANCE, DROP, LIST, SEEK = "cursor_open", "cursor_advance", "cursor_drop", "cursor_list", "seek"
RELEASE = "cursor_release"
_OUTER = frozenset(("op", "queue", "vhost", "id"))


class _Named(Struct, frozen=True):
    queue: str
    vhost: str | None = None


class _Open(Struct, frozen=True):
    name: str
    at: int | Literal["earliest", "latest"] = "latest"
    mode: Literal["cursor", "consume"] = "cursor"
    reader: str = ""
    query: str = ""
    home: str = ""
    conn: int = 0


class _Advance(Struct, frozen=True):
    name: str
    to: int
    epoch: int | None = None
    reader: str = ""
    query: str = ""
    remove: bool = False
    first: int | None = None
    """Remove what is live from here on; the cursor's old position if it is not given."""
    home: str = ""
    conn: int = 0


class _Drop(Struct, frozen=True):
    name: str


class _Seek(Struct, frozen=True):
    time: int | None = None
    start: int | None = msgspec.field(default=None, name="from")
    size: int | None = msgspec.field(default=None, name="bytes")


# --- the node that the client asked -------------------------------------------------------------------------


def _forward(call: Call) -> None:
    """Put it to the master, with where the client is."""
    named = call.take(_Named)
    session, node = call.session, call.node
    record = bulkfacts.find(session, named.vhost, named.queue)
    given = call.fields.get("id")
    if given not in (None, bulkfacts.identity(record)):
        raise BulkError(bulk.GONE, f"queue '{record.name}' was deleted and declared again")
    fields = {name: value for name, value in call.fields.items() if name not in _OUTER}
    query = str(fields.get("query") or session.user_provided_name or "")[: limits.bulk_query_bytes_max]
    if call.op in (OPEN, ADVANCE):
        fields |= {"query": query, "home": node.node_name, "conn": session.conn_id}
        session.when_over(("cursors", record.id), lambda: _release(node, record.identity, session.conn_id))
    if len(msgspec.msgpack.encode(fields)) > limits.inquiry_body_bytes_max // 2:
        raise BulkError(bulk.LIMIT, "the arguments are too long")

    def answered(found: Fields | BulkError) -> None:
        if isinstance(found, BulkError):
            call.fail(found)
        else:
            call.answer({**found, "id": bulkfacts.identity(record)} if call.op == OPEN else found)

    bulkaway.ask_master(node, record, call.op, fields, answered)


def _release(node: "Node", identity: tuple[str, str], conn: int) -> None:
    record = node.meta.queues.get(identity)
    if record is not None:
        fields = {"home": node.node_name, "conn": conn}
        bulkaway.ask_master(node, record, RELEASE, fields, lambda _: None)


HANDLERS: dict[str, Handler] = dict.fromkeys((OPEN, ADVANCE, DROP, LIST, SEEK), _forward)


# --- the master ---------------------------------------------------------------------------------------------


def _taken(kind: type[bulkaway.T], fields: Fields) -> bulkaway.T:
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BulkError(bulk.REFUSED, str(error)) from None


def _writable(node: "Node", number: int) -> tuple[Queue, DurableLog]:
    queue, log = bulkfacts.logged(node, number)
    if not queue.log.is_open:
        raise BulkError(bulk.UNAVAILABLE, f"{queue.text} is about to get another master")
    return queue, log


def _open(node: "Node", number: int, fields: Fields, done: Done) -> None:
    asked = _taken(_Open, fields)
    queue, log = _writable(node, number)
    queue.turn()  # what this pass brought so far stands before it
    known = next((one for one in log.cursors.cursors() if one.name == asked.name), None)
    if known is not None and known.lost:
        raise BulkError(bulk.GONE, f"cursor '{asked.name}' was lost: {known.lost}; drop it and begin anew")
    if asked.mode == "consume" and known is None:
        _check_alone(queue, log)
    at = {"earliest": min(log.low, log.durable + 1), "latest": log.durable + 1}.get(str(asked.at))
    seq = at if at is not None else int(asked.at)
    if known is None and seq > log.durable + 1:
        raise precondition_failed(f"records are durable up to {log.durable}, {seq} was asked for")
    query = (asked.query or asked.name) if asked.mode == "consume" else None
    reader = Reader(asked.reader, asked.query, asked.home, asked.conn)
    if asked.reader:
        node.bulk.enter(number, asked.name, reader)
    try:
        cursor = log.cursors.open_cursor(asked.name, seq, node.now, query)
    except CursorRefused as refused:
        raise precondition_failed(str(refused)) from None

    def durable(error: BulkError | None) -> None:
        if error is not None:
            done(error)
        elif known is None and asked.at == "earliest" and queue.log.is_mirrored:
            _settle_low(node, queue, cursor, done)
        else:
            done({**_shown(cursor), **_marks(log)})

    node.bulk.when_durable(queue, durable)


def _settle_low(node: "Node", queue: Queue, cursor: Cursor, done: Done) -> None:
    """Let a new cursor begin where all in-sync members have every record: they leave out different ones.

    They have its record by now, so that none of them leaves out anything behind it any more.
    """
    others = [name for name in bulkfacts.in_sync(node, queue.record) if name != node.node_name]

    def told(replies: "Replies") -> None:
        log = queue.log.kept
        if queue.core.gone or queue.log.is_over or log is None:
            done(BulkError(bulk.UNAVAILABLE, f"{queue.text} is gone, or has another master now"))
            return
        lows = [int(row_of(raw).get("low", 1)) for rows in replies.rows.values() for raw in rows]
        begin = min(max([cursor.seq, *lows]), log.durable + 1)
        try:
            # Its reader has not heard of it: nobody else moves it.
            moved = log.cursors.advance(cursor.name, begin, node.now) if begin > cursor.seq else cursor
        except CursorRefused as refused:
            done(BulkError(bulk.GONE, str(refused)))
            return
        done({**_shown(moved), **_marks(log), "low": max(moved.seq, min(log.low, log.durable + 1))})

    node.inquiries.ask(Ask(0, "copies", ids=(queue.record.id,)), others, told)


def _check_alone(queue: Queue, log: DurableLog) -> None:
    """Refuse to consume beside others, or from a mirror, which only its source may change."""
    source = queue.vhost.mirror_of
    if source:
        text = f"{queue.text} mirrors cluster '{source}': read it in the mode browse or cursor"
        raise access_refused(f"{text}, or promote it (mirrormq ctl promote_mirror {queue.vhost.name})")
    if queue.core.max_priority:
        raise precondition_failed(f"{queue.text} has priorities: a query cannot take messages in their order")
    if any(seq not in log.dead for seq in log.counts):
        # They are kept apart from what is read back, and so would be left out.
        text = f"{queue.text} has messages that came back and are counted: take them first"
        raise precondition_failed(text)
    other = log.cursors.consuming
    if other is not None:
        holder = f"query '{other.query}' (cursor '{other.name}')"
    elif queue.consumers.members:
        holder = f"{len(queue.consumers.members)} consumers"
    elif queue.core.unacked or queue.inherited is not None:
        holder = f"{queue.core.unacked} messages that are not acknowledged"
    else:
        return
    raise BulkError(bulk.BUSY, f"{queue.text} is in use by {holder}", holder=holder)


def _advance(node: "Node", number: int, fields: Fields, done: Done) -> None:
    asked = _taken(_Advance, fields)
    queue, log = _writable(node, number)
    before = _cursor(log, asked.name)
    is_other = asked.epoch and asked.to > 1 and log.index.epoch_of(asked.to - 1) != asked.epoch
    if asked.to > log.end + 1 or is_other:
        raise BulkError(bulk.DATA_LOSS, f"record {asked.to - 1} is not in the log any more", **_marks(log))
    if asked.to > log.durable + 1:
        raise BulkError(bulk.UNAVAILABLE, f"records are durable up to {log.durable} by now")
    if asked.remove and before.query is None:
        raise precondition_failed(f"cursor '{asked.name}' does not consume: nothing is removed")
    if asked.reader:
        node.bulk.enter(number, asked.name, Reader(asked.reader, asked.query, asked.home, asked.conn))
    if asked.to < before.seq:
        # Asked again after an answer that was lost, or by a query that starts again from its checkpoint.
        done({"seq": before.seq})
        return
    try:
        if asked.remove:
            first = before.seq if asked.first is None else min(asked.first, before.seq)
            _remove(queue, log, (asked.name, first, asked.to))
        else:
            log.cursors.advance(asked.name, asked.to, node.now)
    except CursorRefused as refused:
        raise precondition_failed(str(refused)) from None
    done({"seq": asked.to})


def _remove(queue: Queue, log: DurableLog, taken: tuple[str, int, int]) -> None:
    """What a query has taken leaves the queue; what is left lies in the log, to be read back when wanted."""
    queue.turn()
    name, first, to = taken
    log.take_between(name, first, to, queue.host.now)
    taking.ready_again(queue, log)


def _cursor(log: DurableLog, name: str) -> Cursor:
    try:
        found = log.cursors.get(name)
    except CursorRefused as refused:
        raise BulkError(bulk.GONE, str(refused)) from None
    if found.lost:
        raise BulkError(bulk.GONE, f"cursor '{name}' was lost: {found.lost}; drop it and begin anew")
    return found


def _drop(node: "Node", number: int, fields: Fields, done: Done) -> None:
    name = _taken(_Drop, fields).name
    queue, log = _writable(node, number)
    try:
        log.cursors.drop(name, node.now)
    except CursorRefused as refused:
        raise BulkError(bulk.NOT_FOUND, f"NOT_FOUND - {refused} of {queue.text}") from None
    node.bulk.forget_cursor(number, name)
    queue.core.touch()  # whoever publishes may have waited for it
    done({})


def rows(node: "Node", queue: Queue, log: DurableLog) -> list[Fields]:
    """The cursors of a queue mastered here, as people and programs see them."""
    found = []
    for cursor in log.cursors.cursors():
        reader = node.bulk.reader_of(queue.record.id, cursor.name)
        found.append(
            {
                **_shown(cursor),
                "held_bytes": log.cursors.held_bytes(cursor),
                "lag": 0 if cursor.lost else max(0, log.durable + 1 - cursor.seq),
                "opened_at": cursor.opened_at,
                "moved_at": cursor.moved_at,
                "lost": cursor.lost or None,
                "mode": "cursor" if cursor.query is None else "consume",
                "reader": None if reader is None else reader.query or reader.reader,
                "reader_node": None if reader is None else reader.home,
            }
        )
    return found


def listed(node: "Node", queue: Queue) -> list[Fields]:
    """The same with the names of the queue, for those who list many."""
    log = queue.log.kept
    where = {"vhost": queue.vhost.name, "queue": queue.name}
    return [] if log is None or log.is_volatile else [{**where, **row} for row in rows(node, queue, log)]


def _list(node: "Node", number: int, _fields: Fields, done: Done) -> None:
    queue = bulkfacts.mastered(node, number)
    log = queue.log.kept
    done({"cursors": [] if log is None or log.is_volatile else rows(node, queue, log)})


def _seek(node: "Node", number: int, fields: Fields, done: Done) -> None:
    asked = _taken(_Seek, fields)
    _, log = bulkfacts.logged(node, number)

    def found(seq: int | None, error: str | None) -> None:
        if seq is None:
            done(BulkError(bulk.UNAVAILABLE, error or "it cannot be told"))
        else:
            done({"seq": min(max(seq, min(log.low, log.durable + 1)), log.durable + 1)})

    following = log.durable + 1
    if asked.time is not None:
        Locator(log, node.read).seq_at_time(max(asked.time, 0), found)
    elif asked.start is None or asked.size is None or asked.start < 1 or asked.size < 0:
        raise precondition_failed("seek takes a time, or from and bytes")
    elif asked.start >= following:
        done({"seq": following})
    else:
        # To an entry of the index, and at least one record further.
        entry = log.index.before_byte(log.index.at(asked.start).written + asked.size)
        is_behind = log.written - log.index.at(asked.start).written <= asked.size
        seq = following if is_behind else max(entry.seq, asked.start + 1)
        done({"seq": min(seq, following)})


def _released(node: "Node", _number: int, fields: Fields, done: Done) -> None:
    node.bulk.connection_ended(str(fields.get("home", "")), int(fields.get("conn", 0)))
    done({})


def _shown(cursor: Cursor) -> Fields:
    return {"name": cursor.name, "seq": cursor.seq, "epoch": cursor.epoch}


def _marks(log: DurableLog) -> Fields:
    following = log.durable + 1
    first = min(log.dead.first_missing(1), following)
    return {"low": min(log.low, following), "first": first, "next": following}


MASTER_OPS |= {OPEN: _open, ADVANCE: _advance, DROP: _drop, LIST: _list, SEEK: _seek, RELEASE: _released}
