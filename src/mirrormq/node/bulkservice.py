"""What a master remembers of the clients of the bulk protocol, on whichever node they are.

Guarantees
- A cursor has one live reader. It is live from its first operation until its connection ends, or the node it
  is connected to goes out of reach; then the next one may have the cursor. A new master knows no reader: the
  first that comes is the one.
- Whoever waits until something is durable hears of it once, or that it cannot be told any more.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mirrormq.broker.queue import Queue
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError

if TYPE_CHECKING:
    from mirrormq.node.node import Node


class Reader(NamedTuple):
    """Who reads with a cursor."""

    reader: str
    """Its name, unique per run of a query."""
    query: str
    """What it says of itself to people."""
    home: str
    """The node it is connected to."""
    conn: int


class _Waiting(NamedTuple):
    queue: Queue
    position: int
    done: Callable[[BulkError | None], None]


class BulkService:
    """The readers of cursors of queues mastered here, and who waits for what."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._readers: dict[tuple[int, str], Reader] = {}
        self._waiting: list[_Waiting] = []
        self._going: list[Callable[[], bool]] = []

    # --- readers ---

    def reader_of(self, queue: int, cursor: str) -> Reader | None:
        """Who reads with a cursor now."""
        return self._readers.get((queue, cursor))

    def enter(self, queue: int, cursor: str, reader: Reader) -> None:
        """This reader uses a cursor: refused while another one lives."""
        found = self._readers.get((queue, cursor))
        if found is not None and found.reader != reader.reader:
            holder = found.query or found.reader
            raise BulkError(bulk.BUSY, f"cursor '{cursor}' has another live reader: {holder}", holder=holder)
        self._readers[queue, cursor] = reader

    def forget_cursor(self, queue: int, cursor: str) -> None:
        """There is no such cursor any more."""
        self._readers.pop((queue, cursor), None)

    def connection_ended(self, home: str, conn: int) -> None:
        """A client of a node is gone."""
        self._drop(lambda reader: (reader.home, reader.conn) == (home, conn))

    def link_down(self, peer: str) -> None:
        """A node is out of reach, and with it its clients."""
        self._drop(lambda reader: reader.home == peer)

    def _drop(self, is_gone: Callable[[Reader], bool]) -> None:
        self._readers = {key: one for key, one in self._readers.items() if not is_gone(one)}

    # --- durability ---

    def when_durable(self, queue: Queue, done: Callable[[BulkError | None], None]) -> None:
        """Call `done` when everything written to a queue's log so far survives what the queue survives."""
        self._waiting.append(_Waiting(queue, queue.log.end, done))
        self._node.journal.want_flush()

    def go_on_with(self, step: Callable[[], bool]) -> None:
        """Call `step` at the end of every pass until it says False: work that is done in slices."""
        self._going.append(step)

    @property
    def needs_pass(self) -> bool:
        """Is there something to go on with?"""
        return bool(self._going)

    def step(self) -> None:
        """End of a pass: who has waited long enough?"""
        self._going = [go_on for go_on in self._going if go_on()]
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.queue.core.gone or one.queue.log.is_over:
                one.done(BulkError(bulk.UNAVAILABLE, f"{one.queue.text} is gone, or has another master now"))
            elif one.queue.log.durable >= one.position:
                one.done(None)
            else:
                self._waiting.append(one)
