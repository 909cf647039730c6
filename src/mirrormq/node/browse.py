"""The newest messages of a queue, looked at without taking any of them.

Guarantees
- Messages come in the order of the queue, each once, as they are in its log: live when they are read, whether
  they are ready or held by a consumer. Nothing of the queue changes, and no delivery is counted.
- What was written before the question is seen: it waits for the flush of what is not durable yet.
- Bounded: at most `browse_messages_max` messages, `browse_body_bytes_max` of each body, `browse_bytes_max` in
  all; what does not fit is left out at the old end, and the answer says where it begins.

Only the master answers; any node asks it (`bulkaway`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.broker.queue import Queue
from mirrormq.kernel import records as kernel_records
from mirrormq.log.durable import DurableLog
from mirrormq.log.rangeread import RangeLost, RangeRefused
from mirrormq.log.scan import scan
from mirrormq.log.stretch import Stretch
from mirrormq.meta import records
from mirrormq.node import bulkaway, bulkfacts
from mirrormq.node.bulkcall import from_amqp
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Fields

if TYPE_CHECKING:
    from mirrormq.node.node import Node

OP = "browse"

Rows = list[dict[str, Any]]
Done = Callable[["Rows | BulkError"], None]


class Asked(Struct, frozen=True):
    """The last `count` messages before `before`, or of all; at most `body` bytes of each body."""

    id: int
    count: int
    before: int | None = None
    body: int = limits.browse_body_bytes_max


def newest(node: "Node", record: records.Queue, asked: Asked, done: Done) -> None:
    """Look at a queue, wherever its master is; `done` gets the messages, the oldest first, or why not."""
    if record.id in node.switch.masters:
        _serve(node, msgspec.structs.asdict(asked), lambda rows: done(_unpacked(rows, "")))
        return
    master = node.switch.master_of(record)
    if not master or master == node.node_name:
        text = f"queue '{record.name}' in vhost '{record.vhost}' has no master now"
        done(BulkError(bulk.UNAVAILABLE, text))
        return
    fields = msgspec.structs.asdict(asked)
    bulkaway.ask_member(node, master, OP, fields, lambda rows, problem: done(_unpacked(rows, problem)))


def _unpacked(rows: Rows, problem: str) -> "Rows | BulkError":
    error = bulkaway.error_in(rows[-1]) if rows else None
    if error is not None:
        return error
    return BulkError(bulk.UNAVAILABLE, problem) if problem else rows


# --- the master ---------------------------------------------------------------------------------------------


def _serve(node: "Node", fields: Fields, done: Callable[[Rows], None]) -> None:
    def fail(error: BulkError) -> None:
        done([bulkaway.row_of_error(error)])

    try:
        asked = msgspec.convert(fields, Asked)
        queue, log = bulkfacts.logged(node, asked.id)
        queue.turn()  # what this pass brought so far stands before it
    except msgspec.MsgspecError as error:
        fail(BulkError(bulk.REFUSED, str(error)))
        return
    except BulkError as error:
        fail(error)
        return
    except AmqpError as error:
        fail(from_amqp(error))
        return

    def durable(error: BulkError | None) -> None:
        if error is not None:
            fail(error)
        else:
            _Browsing(node, queue, log, asked, done).start()

    if asked.before is not None and asked.before <= log.durable + 1:
        durable(None)
    else:
        node.bulk.when_durable(queue, durable)


bulkaway.MEMBER_OPS[OP] = _serve


class _Browsing:
    """One look at one queue."""

    def __init__(
        self, node: "Node", queue: Queue, log: DurableLog, asked: Asked, done: Callable[[Rows], None]
    ) -> None:
        self._node = node
        self._queue = queue
        self._log = log
        self._done = done
        self._body = max(0, min(asked.body, limits.browse_body_bytes_max))
        self._wanted = _last_live(log, asked)
        self._rows: Rows = []
        self._size = 0
        self._stretch: Stretch | None = None

    def start(self) -> None:
        """Begin."""
        if not self._wanted:
            self._done([])
            return
        first, last = min(self._wanted), max(self._wanted)
        try:
            span = (first, last + 1, last + 1)
            self._stretch = Stretch(
                self._log,
                span,
                readable=self._log.durable + 1,
                live=True,
                slice_bytes=limits.browse_slice_bytes,
            )
        except RangeRefused as refused:
            self._fail(str(refused))
            return
        self._go_on()

    def _fail(self, text: str) -> None:
        self._done([bulkaway.row_of_error(BulkError(bulk.UNAVAILABLE, f"{self._queue.text}: {text}"))])

    def _go_on(self) -> None:
        assert self._stretch is not None
        try:
            piece = self._stretch.ask()
        except RangeLost as lost:
            self._fail(str(lost))
            return
        if piece is None:
            self._done(self._rows)
        else:
            self._node.read(*piece, self._on_read)

    def _on_read(self, data: bytes | None, error: str | None) -> None:
        assert self._stretch is not None
        try:
            found = self._stretch.feed(data, error)
        except RangeLost as lost:
            self._fail(str(lost))
            return
        if found is not None:
            self._take(bytes(found))
        self._go_on()

    def _take(self, data: bytes) -> None:
        for at, head in scan(data).batches:
            for message, seq, expiry in kernel_records.messages(data, at, self._wanted):
                body = message.body[: self._body]
                self._rows.append(
                    {
                        "seq": seq,
                        "at": head[6],
                        "expiry": expiry or None,
                        "exchange": message.exchange,
                        "routing_key": message.routing_key,
                        "properties": message.properties,
                        "body": body,
                        "size": message.body_size,
                        "redelivered": seq <= self._log.redelivered_upto,
                    }
                )
                self._size += len(body) + len(message.properties)
                while self._size > limits.browse_bytes_max and len(self._rows) > 1:
                    gone = self._rows.pop(0)
                    self._size -= len(gone["body"]) + len(gone["properties"])


def _last_live(log: DurableLog, asked: Asked) -> set[int]:
    """Seqs of the newest live messages, sought backwards in stretches that double: what is dead is passed in
    few steps, and no more than about as many ranges are looked at as messages are wanted.
    """
    count = max(0, min(asked.count, limits.browse_messages_max))
    end = log.durable if asked.before is None else min(log.durable, asked.before - 1)
    first = log.dead.first_missing(1)
    found: list[int] = []
    step = max(64, 2 * count)
    while end >= first and len(found) < count:
        begin = max(first, end - step + 1)
        for low, high in reversed(log.dead.missing_spans(begin, end)):
            seqs = range(high, max(low - 1, high - (count - len(found))), -1)
            found += [seq for seq in seqs if seq not in log.dying]
        end = begin - 1
        step *= 2
    return set(found[:count])
