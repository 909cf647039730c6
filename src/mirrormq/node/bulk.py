"""A client that speaks the bulk protocol (docs/protocol/bulk.md): calls in order, one stream at a time.

Guarantees
- Nothing but `login` is served before the client has proved who it is, by the same passwords, limits and
  loopback rule as in AMQP. It is counted, listed and closed like any other connection.
- Calls are served one after the other. Bytes that are no frame cost the client its connection, with a reason,
  and nobody else anything.
- Bounded: one frame of input, `bulk_calls_waiting_max` calls, and of output what one slice of a file makes
  beyond what the socket takes.
- However it ends, its stream is cancelled, once.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.base.types import Peer
from mirrormq.broker import handshake
from mirrormq.broker.connection import CLOSED, GONE, RUNNING, Connection
from mirrormq.node.bulkcall import Call, run
from mirrormq.node.bulkops import LOGIN, OPS
from mirrormq.wire import bulk
from mirrormq.wire.bulk import BadFrame, BulkError, Frame, FrameBuffer

if TYPE_CHECKING:
    from mirrormq.broker.vhost import VHost
    from mirrormq.node.node import Node

PROTOCOL = "MMQB 1"
_BACKLOG = "calls"


class BulkConnection(Connection):
    """The state machine of one such connection."""

    protocol = PROTOCOL

    __slots__ = (
        "_calls",
        "_chunks",
        "_current",
        "_frames",
        "_pinged_at",
        "_total",
        "_waiting",
        "_when_over",
        "node",
    )

    def __init__(self, node: "Node", conn_id: int, peer: Peer) -> None:
        super().__init__(node, conn_id, peer)
        self.node = node
        self.state = handshake.STARTING
        self._frames = FrameBuffer(limits.bulk_login_bytes_max)
        self._calls: deque[Call] = deque()
        self._current: Call | None = None
        self._chunks: list[bytes | memoryview] = []
        self._waiting = 0
        self._total = 0
        self._pinged_at = node.now.mono
        self._when_over: dict[object, Callable[[], None]] = {}

    @classmethod
    def instead_of(cls, node: "Node", before: Connection) -> "BulkConnection":
        """A connection in the place of one that has seen the header of this protocol only."""
        made = cls(node, before.conn_id, before.peer)
        made.recv_oct, made.recv_cnt = before.recv_oct, before.recv_cnt
        return made

    def begin(self, header: bytes, rest: bytes) -> None:
        """Serve what came behind the header, if it is of this version."""
        if header != bulk.HEADER:
            self.write(bulk.HEADER)
            self.drop(f"unknown version of the bulk protocol: {header!r}")
            return
        self._frames.feed(rest)
        self._run()

    # --- what others ask ------------------------------------------------------------------------

    @property
    def send_oct(self) -> int:
        """Octets written so far."""
        return self._total

    @property
    def send_pend(self) -> int:
        """Octets waiting to be written."""
        return self._waiting

    @property
    def is_taking(self) -> bool:
        """Does the client take what is written to it?"""
        return not self.out.blocked

    @property
    def is_busy(self) -> bool:
        """Is a call being served?"""
        return self._current is not None

    def when_over(self, key: object, done: Callable[[], None]) -> None:
        """Call `done` when the connection ends; one per key."""
        self._when_over[key] = done

    # --- input ----------------------------------------------------------------------------------

    def on_bytes(self, data: bytes | memoryview) -> None:
        """Take what the client sent."""
        self.recv_oct += len(data)
        self.recv_cnt += 1
        self._heard_at = self._pinged_at = self.node.now.mono
        if not self._deaf and self.state != GONE:
            self._frames.feed(data)
            self._run()

    def _run(self) -> None:
        if self._running or self._deaf or self.state == GONE:
            return
        self._running = True
        try:
            while not self._parks and not self._deaf:
                frame = self._frames.next()
                if frame is None:
                    break
                self._on_frame(frame)
        except BadFrame as error:
            self.end(BulkError(bulk.CLOSED, f"FRAME_ERROR - {error}"))
        finally:
            self._running = False
        self._read_or_pause()

    def _on_frame(self, frame: Frame) -> None:
        current = self._current
        if frame.kind == bulk.CALL and len(frame.body) > limits.bulk_call_bytes_max:
            raise BadFrame(f"a call of {len(frame.body)} bytes; {limits.bulk_call_bytes_max} are allowed")
        if frame.kind == bulk.CALL:
            self._on_call(Call(self, frame.request, bulk.decode(frame.body)))
        elif frame.kind == bulk.PING:
            self.write(bulk.encode(bulk.PONG, frame.request))
        elif frame.kind in (bulk.ANSWER, bulk.ERROR):
            raise BadFrame("only a server answers")
        elif current is None or (stream := current.stream) is None or current.request != frame.request:
            return  # it has ended, which the client has not heard yet
        elif frame.kind == bulk.CANCEL:
            # The client may have a new call right behind it: it is told where the old stream ends.
            self.write(bulk.encode(bulk.END, frame.request, {"cancelled": True}))
            current.cancel()
            self.call_over(current)
        elif frame.kind in (bulk.DATA, bulk.PART):
            run(lambda _: stream.on_data(frame.body), current)
        elif frame.kind == bulk.END:
            fields = bulk.decode(frame.body)
            run(lambda _: stream.on_end(fields), current)

    def _on_call(self, call: Call) -> None:
        if self.state != RUNNING and call.op != LOGIN:
            call.fail(BulkError(bulk.ACCESS, "ACCESS_REFUSED - log in first"))
            self.drop("a call before log-in")
        elif len(call.fields) > limits.bulk_fields_max:
            call.fail(BulkError(bulk.REFUSED, "too many arguments"))
        elif self._current is not None:
            self._calls.append(call)
            if len(self._calls) >= limits.bulk_calls_waiting_max:
                self.park(_BACKLOG)
        else:
            self._begin(call)

    def _begin(self, call: Call) -> None:
        self._current = call
        handler = OPS.get(call.op)
        if handler is None:
            call.fail(BulkError(bulk.UNKNOWN_OP, f"this node does not know the operation '{call.op}'"))
        else:
            run(handler, call)

    def call_over(self, call: Call) -> None:
        """A call is answered: the next one."""
        if call is not self._current:
            return
        self._current = None
        while self._calls and not self.is_busy and not self._deaf:
            self._begin(self._calls.popleft())
        if self.is_parked_for(_BACKLOG) and len(self._calls) < limits.bulk_calls_waiting_max:
            self.unpark(_BACKLOG)

    # --- output ---------------------------------------------------------------------------------

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes, which nobody may change afterwards: they are not copied."""
        if self.state != GONE and data:
            self._chunks.append(data)
            self._waiting += len(data)
            self.node.effects.write(self.conn_id)

    def take_output(self) -> Sequence[bytes | memoryview]:
        """Everything that waits: a slice of records and the head of its frame go out together."""
        pieces, self._chunks = self._chunks, []
        self._total += self._waiting
        self._waiting = 0
        return pieces

    def on_output_free(self) -> None:
        """The client takes more."""
        super().on_output_free()
        self._heard_at = self.node.now.mono
        stream = self._current.stream if self._current is not None else None
        if self._current is not None and stream is not None:
            run(lambda _: stream.on_writable(), self._current)

    # --- life -----------------------------------------------------------------------------------

    def opened(self, vhost: "VHost") -> None:
        """The client has logged in."""
        super().opened(vhost)
        self._frames.frame_bytes_max = bulk.FRAME_BYTES_MAX

    def on_tick(self) -> None:
        """Look at the clock: a log-in that takes too long, a client that is not there any more."""
        now = self.node.now.mono
        if self.state in (GONE, CLOSED):
            return
        if self._deadline and now >= self._deadline:
            self.drop("handshake timeout")
        elif now - self._heard_at >= limits.bulk_idle_us:
            self.end(BulkError(bulk.CLOSED, "CONNECTION_FORCED - nothing was heard for too long"))
        elif now - self._pinged_at >= limits.bulk_ping_us and not self.out.blocked:
            self._pinged_at = now
            self.write(bulk.encode(bulk.PING, 0))

    def on_closed(self) -> None:
        """The socket is gone, which is how clients end these connections."""
        if self.state == RUNNING:
            self.note("info", "client closed the connection", event="connection.closed")
            self.state = CLOSED
        super().on_closed()
        self._chunks.clear()
        self._waiting = 0

    def close_with(self, error: AmqpError) -> None:
        """End it because of an error, or by an operator's wish."""
        if self.state not in (CLOSED, GONE):
            self.note("error", f"connection closed: {error}", code=error.code, event="connection.error")
            self.end(BulkError(bulk.CLOSED, error.reply_text))

    def end(self, error: BulkError) -> None:
        """Say why, and hang up."""
        if self.state in (CLOSED, GONE):
            return
        self.write(bulk.encode(bulk.ERROR, 0, {"code": error.code, "text": error.text}))
        self._hang_up()

    def _release(self) -> None:
        current, self._current = self._current, None
        self._calls.clear()
        super()._release()
        if current is not None:
            current.cancel()
        when_over, self._when_over = self._when_over, {}
        for done in when_over.values():
            done()
