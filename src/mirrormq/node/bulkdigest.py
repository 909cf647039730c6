"""Digests of a member's records, for comparing copies without moving them.

Guarantees
- A row counts the publishes start <= seq < end of its step that no record before `upto` removed, and sums
  what each of them is: two members that have the same confirmed records have the same rows, whatever their
  files look like and whatever has been removed since.
- Something that is missing or damaged on the asked member makes a difference, not an error.
- Bounded: the log is read twice, a slice at a time; what was removed is kept as ranges.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import asdict

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.kernel import gather
from mirrormq.kernel import records as kernel_records
from mirrormq.kernel.gather import Digest
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log.durable import DurableLog
from mirrormq.log.fold import decode_epoch
from mirrormq.log.rangeread import RangeLost
from mirrormq.log.stretch import Buffer, Stretch
from mirrormq.meta import records
from mirrormq.node import bulkaway, bulkfacts, bulkread
from mirrormq.node.bulkcall import Call, Output, from_amqp
from mirrormq.node.bulkrelay import Range
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Fields

if TYPE_CHECKING:
    from mirrormq.node.node import Node

OP = "digest"
STEP = 1_000


class Asked(Range, frozen=True):
    """A range, and how many seqs a row covers."""

    step: int = STEP


class Digesting:
    """One member's digests of one range."""

    def __init__(
        self, node: "Node", source: tuple[DurableLog, int], asked: Asked, rows: Callable[[bytes], None]
    ) -> None:
        """`rows` gets rows as they are complete."""
        self._node = node
        self._log, self._readable = source
        self._span = (asked.start, asked.end, bulkread.upto_of(asked))
        self._rows = rows
        self._removed = RangeSet()
        self._digest = Digest(asked.start, asked.end, asked.step, self._removed)
        self.is_stopped = False

    def start(self, done: Callable[[str | None], None]) -> None:
        """Begin; `done` gets why it failed, or None."""
        start, end, upto = self._span

        def counted(error: str | None) -> None:
            if error is None:
                self._rows(self._digest.finish())
            done(error)

        def removed(error: str | None) -> None:
            if error is not None:
                done(error)
            else:
                self._read(self._stretch((start, end, end)), self._count, counted)

        # First what was removed, without the messages: a removal comes behind what it removes.
        self._read(self._stretch((start, start, upto)), self._note_removals, removed)

    def _stretch(self, span: tuple[int, int, int]) -> Stretch:
        made = Stretch(self._log, span, readable=self._readable, live=False)
        made.tolerate()
        return made

    def _note_removals(self, data: Buffer) -> None:
        for kind, flags, payload in gather.removals(data, self._removed):
            if kind == kernel_records.EPOCH:
                for first, last in decode_epoch(flags, payload)[1].seqs:
                    self._removed.add(first, last)

    def _count(self, data: Buffer) -> None:
        self._rows(self._digest.feed(data))

    def _read(
        self, stretch: Stretch, take: Callable[[Buffer], None], done: Callable[[str | None], None]
    ) -> None:
        def on_read(data: bytes | None, error: str | None) -> None:
            if self.is_stopped:
                return
            try:
                found = stretch.feed(data, error)
            except RangeLost as lost:
                done(str(lost))
                return
            if found is not None:
                take(found)
            go_on()

        def go_on() -> None:
            try:
                piece = stretch.ask()
            except RangeLost as lost:
                done(str(lost))
                return
            if piece is None:
                done(None)
            else:
                self._node.read(*piece, on_read)

        go_on()


class _Streaming(Output):
    """Rows for a client of this node."""

    def __init__(self, digesting: Digesting) -> None:
        self._digesting = digesting

    def on_writable(self) -> None:
        """Rows are few: nobody waits for the socket."""

    def on_cancel(self) -> None:
        """Nobody wants them any more."""
        self._digesting.is_stopped = True


def digest(call: Call) -> None:
    """Stream rows of this node, or of the one that is named."""
    asked = call.take(Asked)
    _check(asked)
    record = bulkfacts.find(call.session, asked.vhost, asked.queue)
    node = call.node
    if asked.node not in (None, node.node_name):
        _relay(call, record, asked)
        return
    source = bulkread.source(node, record, asked)

    def rows(data: bytes) -> None:
        if data:
            call.data(data)

    def done(error: str | None) -> None:
        if error is not None:
            call.fail(bulkread.lost_here(node, record, error))
        else:
            call.end({"node": node.node_name})

    digesting = Digesting(node, source, asked, rows)
    call.stream = _Streaming(digesting)
    digesting.start(done)


def _check(asked: Asked) -> None:
    if asked.step < 1 or (asked.end - asked.start) // asked.step > limits.bulk_digest_rows_max:
        raise BulkError(
            bulk.LIMIT, f"a step must be such that there are {limits.bulk_digest_rows_max} rows at most"
        )
    if asked.live:
        raise BulkError(bulk.REFUSED, "PRECONDITION_FAILED - a digest is of all records, not of live ones")


def _relay(call: Call, record: records.Queue, asked: Asked) -> None:
    """Fetch the rows of another node."""
    assert asked.node is not None

    def found(rows: bulkaway.Rows, problem: str) -> None:
        last = rows[-1] if rows else {}
        error = bulkaway.error_in(last)
        if error is not None or "end" not in last:
            call.fail(error or BulkError(bulk.UNAVAILABLE, problem or "the node's answer has no end"))
            return
        for row in rows[:-1]:
            call.data(row.get("data", b""))
        call.end({"node": asked.node})

    call.stream = _Ignoring()
    fields = asdict(asked) | {"vhost": record.vhost}
    bulkaway.ask_member(call.node, asked.node, OP, fields, found)


class _Ignoring(Output):
    """The rows of another node come at once."""

    def on_writable(self) -> None:
        """Nothing waits."""

    def on_cancel(self) -> None:
        """What comes is dropped."""


def _serve(node: "Node", fields: Fields, done: Callable[[bulkaway.Rows], None]) -> None:
    """Another node wants the digests of this one."""
    found: list[bytes] = []

    def finished(error: str | None) -> None:
        if error is not None:
            done([bulkaway.row_of_error(bulkread.lost_here(node, record, error))])
            return
        data, most = b"".join(found), limits.bulk_relay_row_bytes
        done([*({"data": data[at : at + most]} for at in range(0, len(data), most)), {"end": True}])

    try:
        asked = msgspec.convert(fields, Asked)
        _check(asked)
        record = bulkread.known(node, asked)
        Digesting(node, bulkread.source(node, record, asked), asked, found.append).start(finished)
    except msgspec.MsgspecError as error:
        done([bulkaway.row_of_error(BulkError(bulk.REFUSED, str(error)))])
    except BulkError as error:
        done([bulkaway.row_of_error(error)])
    except AmqpError as error:
        done([bulkaway.row_of_error(from_amqp(error))])


bulkaway.MEMBER_OPS[OP] = _serve
