"""Records for a client that cannot reach a node that has them, through the node it can reach.

Guarantees
- The client gets the same bytes as from the member itself, in order, each once; or the error that the member,
  or in the end the master, gives.
- One piece (`bulk_relay_bytes` and a batch) is under way at a time, and the next is asked for only while the
  client takes what it gets. When a member fails in the middle the next one goes on where it stopped.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from mirrormq.base import limits
from mirrormq.log.rangeread import RangeLost
from mirrormq.log.stretch import Stretch
from mirrormq.meta import records
from mirrormq.node import bulkaway, bulkfacts
from mirrormq.node.bulkcall import Call, Output
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError

if TYPE_CHECKING:
    from mirrormq.node.node import Node

FETCH = "fetch"
_NEXT = frozenset((bulk.ELSEWHERE, bulk.UNAVAILABLE))


class Range(Struct, frozen=True):
    """Which records are wanted, of which queue, in which history, and from whom."""

    queue: str
    id: str
    start: int
    end: int
    vhost: str | None = None
    end_epoch: int | None = None
    upto: int | None = None
    node: str | None = None
    live: bool = False
    max_bytes: int | None = None
    relay: bool = False
    removals: int | None = None
    """Not the messages of the range that begins here, but what is said about them before `upto`."""
    gaps: bool = False
    """Give what is there although something is missing; of a named node only."""


class Relay(Output):
    """A stream of records that other nodes have."""

    def __init__(self, call: Call, record: records.Queue, asked: Range) -> None:
        self._call = call
        self._asked = replace(asked, vhost=record.vhost, relay=False, max_bytes=None)
        self._left = asked.max_bytes
        self._is_waiting = False
        self._error: BulkError | None = None
        node = call.node
        if asked.node is not None:
            self._members = [asked.node]
        else:
            self._members = [name for name in bulkfacts.in_sync(node, record) if name != node.node_name]
        call.stream = self

    def start(self) -> None:
        """Begin."""
        self._go_on()

    def on_writable(self) -> None:
        """The client takes more."""
        if not self._is_waiting:
            self._go_on()

    def on_cancel(self) -> None:
        """What is under way is dropped when it comes."""

    def _go_on(self) -> None:
        asked, call = self._asked, self._call
        if call.is_over or not call.session.is_taking:
            return
        upto = asked.end if asked.upto is None or asked.live else asked.upto
        if asked.start >= upto or (self._left is not None and self._left <= 0):
            call.end({"position": asked.start})
        elif not self._members:
            call.fail(self._error or BulkError(bulk.UNAVAILABLE, "no node has a copy that can be read now"))
        else:
            self._is_waiting = True
            bulkaway.ask_member(call.node, self._members[0], FETCH, asdict(asked), self._on_rows)

    def _on_rows(self, rows: bulkaway.Rows, problem: str) -> None:
        self._is_waiting = False
        if self._call.is_over:
            return
        last = rows[-1] if rows else {}
        error = bulkaway.error_in(last)
        if error is None and "position" in last:
            data = b"".join(row.get("data", b"") for row in rows[:-1])
            if data:
                self._call.data(data)
                self._left = None if self._left is None else self._left - len(data)
            self._asked = replace(self._asked, start=last["position"])
        elif error is None or error.code in _NEXT:
            self._error = error or BulkError(bulk.UNAVAILABLE, problem)
            self._members.pop(0)
        else:
            self._call.fail(error)
            return
        self._go_on()


class Fetch:
    """A piece of a range, read for another node."""

    def __init__(
        self,
        node: "Node",
        stretch: Stretch,
        lost: Callable[[str], BulkError],
        done: Callable[[bulkaway.Rows], None],
    ) -> None:
        self._node = node
        self._stretch = stretch
        self._lost = lost
        self._done = done
        self._rows: bulkaway.Rows = []
        self._size = 0

    def go_on(self) -> None:
        """Read on until there is enough."""
        try:
            piece = self._stretch.ask() if self._size < limits.bulk_relay_bytes else None
        except RangeLost as error:
            self._done([bulkaway.row_of_error(self._lost(str(error)))])
            return
        if piece is None:
            self._done([*self._rows, {"position": self._stretch.position}])
        else:
            self._node.read(*piece, self._on_read)

    def _on_read(self, data: bytes | None, error: str | None) -> None:
        try:
            found = self._stretch.feed(data, error)
        except RangeLost as gone:
            self._done([bulkaway.row_of_error(self._lost(str(gone)))])
            return
        if found is not None:
            most = limits.bulk_relay_row_bytes
            view = memoryview(found)
            self._rows += [{"data": bytes(view[at : at + most])} for at in range(0, len(view), most)]
            self._size += len(view)
        self.go_on()
