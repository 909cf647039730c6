"""Reading records in bulk.

Guarantees
- A client gets the records of its range as they are in the queue's log, in order, each once, or an error;
  never beyond the durable mark, and never of another incarnation or history than the one it named.
- Only the master says that records are lost. Another member that lacks something says "ask elsewhere".
- One slice of a file per stream is in memory, and the next is read only while the client takes what it gets.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from mirrormq.base.errors import AmqpError, precondition_failed
from mirrormq.log.disk import QUIET
from mirrormq.log.durable import DurableLog
from mirrormq.log.rangeread import RangeLost, RangeRefused
from mirrormq.log.stretch import Stretch
from mirrormq.meta import records
from mirrormq.node import bulkaway, bulkfacts, bulkrelay
from mirrormq.node.bulkcall import Call, Output, from_amqp
from mirrormq.node.bulkrelay import Range
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Fields

if TYPE_CHECKING:
    from mirrormq.node.node import Node


def read(call: Call) -> None:
    """Stream records to the client."""
    asked = call.take(Range)
    record = bulkfacts.find(call.session, asked.vhost, asked.queue)
    node = call.node
    try:
        if asked.node not in (None, node.node_name):
            raise BulkError(bulk.ELSEWHERE, f"this is not node '{asked.node}'", members=[asked.node])
        stretch = locate(node, record, asked)
    except BulkError as error:
        if error.code != bulk.ELSEWHERE or not asked.relay:
            raise
        bulkrelay.Relay(call, record, asked).start()
        return
    Reading(call, record, stretch, asked.max_bytes).start()


def locate(node: "Node", record: records.Queue, asked: Range) -> Stretch:
    """What is asked for, in the log of this node; an error if it cannot be given."""
    log, readable = source(node, record, asked)
    try:
        span = (asked.start, asked.end, upto_of(asked))
        stretch = Stretch(log, span, readable=readable, live=asked.live)
    except RangeRefused as refused:
        raise BulkError(bulk.REFUSED, f"PRECONDITION_FAILED - {refused}") from None
    if asked.removals is not None:
        stretch.only_removals(asked.removals)
    if asked.gaps:
        stretch.tolerate()
    return stretch


def source(node: "Node", record: records.Queue, asked: Range) -> tuple[DurableLog, int]:
    """The log of this node, and where it ends for readers; an error if it lacks what is asked for."""
    upto = upto_of(asked)
    if not 1 <= asked.start <= upto or not 1 <= asked.end <= upto:
        raise BulkError(bulk.REFUSED, f"PRECONDITION_FAILED - {asked.start} to {asked.end} is no range")
    if asked.gaps and asked.node != node.node_name:
        raise BulkError(bulk.REFUSED, "PRECONDITION_FAILED - a range with gaps is asked of a named node")
    is_master = record.id in node.switch.masters
    return (_master_log if is_master else _mirror_log)(node, record, asked, upto)


def upto_of(asked: Range) -> int:
    """Up to where records that are no messages are wanted."""
    return asked.end if asked.upto is None or asked.live else asked.upto


def _master_log(node: "Node", record: records.Queue, asked: Range, upto: int) -> tuple[DurableLog, int]:
    """The master's log and where it ends for readers. What cannot be read here is lost, or not safe yet."""
    queue, log = bulkfacts.logged(node, record.id)
    if asked.id != bulkfacts.identity(record):
        raise lost(node, record, "the queue was deleted and declared again")
    if upto - 1 > log.end:
        text = f"the log ends with record {log.end}, {upto - 1} was asked for"
        raise lost(node, record, text, _parted(log, asked))
    if not _is_history(log, asked):
        text = f"record {asked.end - 1} is not the one of epoch {asked.end_epoch} any more"
        raise lost(node, record, text, _parted(log, asked))
    if upto > log.durable + 1:
        # The mark of a new master has to catch up: it has what the old one had called durable.
        raise BulkError(bulk.UNAVAILABLE, f"records of {queue.text} are durable up to {log.durable} by now")
    if asked.start < min(log.low, upto) and not asked.live:
        raise lost(node, record, f"records before {log.low} are no longer kept, {asked.start} was asked for")
    return log, log.durable + 1


def _mirror_log(node: "Node", record: records.Queue, asked: Range, upto: int) -> tuple[DurableLog, int]:
    """The log of a mirror that has what is asked for, as the master has it.

    Matched in this epoch it is a part of the master's log. That all of it is durable is what the client was
    told by the master: this node may not have heard of it yet.
    """
    copy = node.copies.mirrors.copies.get(record.id) if node.copies is not None else None
    log = node.logs.get(record.log_id)
    member = None if copy is None else copy.member
    if copy is None or member is None or log is None or member.is_learner or not member.is_matched:
        raise elsewhere(node, record, f"node '{node.node_name}' has no copy of the queue that is in sync")
    if log.is_volatile:
        raise precondition_failed(bulkfacts.NO_LOG)
    if not copy.log.is_complete or copy.log.damage is not None or asked.id != bulkfacts.identity(record):
        raise elsewhere(node, record, f"the copy of node '{node.node_name}' is not complete")
    if upto - 1 > copy.log.durable or not _is_history(log, asked):
        raise elsewhere(node, record, f"node '{node.node_name}' does not have record {upto - 1} yet")
    if asked.start < min(log.low, upto) and not asked.live:
        raise elsewhere(node, record, f"node '{node.node_name}' keeps records from {log.low} on")
    return log, upto


def _is_history(log: DurableLog, asked: Range) -> bool:
    """Is the last record of the range the one the client was told of?"""
    return not asked.end_epoch or asked.end < 2 or log.index.epoch_of(asked.end - 1) == asked.end_epoch


def _parted(log: DurableLog, asked: Range) -> int:
    """The first record of this log that the client's history has not: that of a later epoch, or none yet."""
    later = [first for epoch, first in log.index.epochs if epoch > (asked.end_epoch or 0)]
    return min(later) if asked.end_epoch and later else log.end + 1


def lost(node: "Node", record: records.Queue, text: str, parted: int | None = None) -> BulkError:
    """The master says that something is gone; `parted`: where its log goes on without what is gone."""
    facts = bulkfacts.marks(node, bulkfacts.mastered(node, record.id))
    known = {name: facts.get(name) for name in ("epoch", "low", "next")}
    if parted is not None:
        known["from"] = parted
    return BulkError(bulk.DATA_LOSS, text, id=bulkfacts.identity(record), **known)


def elsewhere(node: "Node", record: records.Queue, text: str) -> BulkError:
    """Another member can answer."""
    others = [name for name in bulkfacts.in_sync(node, record) if name != node.node_name]
    return BulkError(bulk.ELSEWHERE, text, members=others)


def _fetch(node: "Node", fields: Fields, done: Callable[[bulkaway.Rows], None]) -> None:
    """Another node wants a piece of a range for a client of its own."""
    try:
        asked = msgspec.convert(fields, Range)
        record = known(node, asked)
        stretch = locate(node, record, asked)
    except msgspec.MsgspecError as error:
        done([bulkaway.row_of_error(BulkError(bulk.REFUSED, str(error)))])
    except BulkError as error:
        done([bulkaway.row_of_error(error)])
    except AmqpError as error:
        done([bulkaway.row_of_error(from_amqp(error))])
    else:
        bulkrelay.Fetch(node, stretch, lambda text: lost_here(node, record, text), done).go_on()


bulkaway.MEMBER_OPS[bulkrelay.FETCH] = _fetch


def known(node: "Node", asked: Range) -> records.Queue:
    """The queue that another node means."""
    record = node.meta.queues.get((asked.vhost or "", asked.queue))
    if record is None:
        raise BulkError(bulk.NOT_FOUND, f"NOT_FOUND - no queue '{asked.queue}'")
    return record


def lost_here(node: "Node", record: records.Queue, text: str) -> BulkError:
    """Records that were promised cannot be read: only the master knows that for good."""
    now = node.meta.queues.get(record.identity)
    if now is None or now.id != record.id:
        name, vhost = record.name, record.vhost
        return BulkError(bulk.NOT_FOUND, f"NOT_FOUND - queue '{name}' in vhost '{vhost}' was deleted")
    if record.id in node.switch.masters and node.membership.has_lease():
        return lost(node, record, text)
    return elsewhere(node, record, text)


class Reading(Output):
    """A stream of records to one client."""

    def __init__(self, call: Call, record: records.Queue, stretch: Stretch, max_bytes: int | None) -> None:
        self._call = call
        self._record = record
        self._stretch = stretch
        self._left = max_bytes
        self._is_reading = False
        call.stream = self

    def start(self) -> None:
        """Begin."""
        self._go_on()

    def on_writable(self) -> None:
        """The client takes more."""
        if not self._is_reading:
            self._go_on()

    def on_cancel(self) -> None:
        """What is being read is dropped when it comes."""

    def _go_on(self) -> object:
        """While the stream goes on nobody else is concerned. When it ends, the client's next call begins."""
        if self._call.is_over or not self._call.session.is_taking:
            return QUIET
        try:
            is_enough = self._left is not None and self._left <= 0
            piece = None if is_enough else self._stretch.ask()
        except RangeLost as error:
            self._call.fail(lost_here(self._call.node, self._record, str(error)))
            return None
        if piece is None:
            self._call.end({"position": self._stretch.position})
            return None
        self._is_reading = True
        self._call.node.read(*piece, self._on_read)
        return QUIET

    def _on_read(self, data: bytes | None, error: str | None) -> object:
        self._is_reading = False
        if self._call.is_over:
            return None
        try:
            found = self._stretch.feed(data, error)
        except RangeLost as gone:
            self._call.fail(lost_here(self._call.node, self._record, str(gone)))
            return None
        if found is not None:
            self._call.data(found)
            if self._left is not None:
                self._left -= len(found)
        return self._go_on()
