"""What one pass has for one peer, collected and sent as one frame, or as few.

Guarantee: hellos, stops, reports and marks are sent in their newest form or stay here until the link takes
them; flows the link did not take are given back to their streams, which read them again later. So what waits
here for a slow link is bounded by the number of queues and by one pass, whatever is published.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.mirror.frames import Again, Flow, Frame, Hello, Mark, Push, Report, Stop, encode
from mirrormq.mirror.ports import Data, Outside

if TYPE_CHECKING:
    from mirrormq.mirror.source import Stream


class Pending:
    """A flow that is not sent yet; a push grows until it is."""

    __slots__ = ("after", "after_epoch", "flow", "is_start", "raw", "size", "stream")

    def __init__(
        self, stream: "Stream", after: int, *, is_start: bool = False, flow: Flow | None = None
    ) -> None:
        self.stream = stream
        self.after = after
        self.after_epoch = 0
        self.is_start = is_start
        self.flow = flow
        self.raw: list[Data] = []
        self.size = 0

    def value(self) -> Flow:
        """The flow as it is sent."""
        if self.flow is not None:
            return self.flow
        hello = self.stream.hello
        return Push(
            hello.queue, hello.epoch, hello.nonce, self.after, self.after_epoch, self.is_start, self.size
        )


class Link:
    """One peer, connected or not."""

    def __init__(self, peer: str, now: int) -> None:
        self.peer = peer
        self.start = 0
        self.is_up = False
        self.is_suspect = False
        """Connected, and silent for longer than a living peer is; or was when the connection ended."""
        self.down_since = now
        self.is_blocked = False
        """The link has taken all it can for now."""
        self.hellos: dict[int, Hello] = {}
        self.stops: dict[int, Stop] = {}
        self.agains: dict[int, Again] = {}
        self.reports: dict[int, Report] = {}
        self.marks: dict[int, Mark] = {}
        self.flows: list[Pending] = []
        self.waiting_bytes = 0
        self.readers: deque[Stream] = deque()
        """Streams that are behind, in the order of their turns."""
        self.reads = 0
        """Reads under way for them."""
        self.connection = 0
        """Grows with each connection that ends: what belongs to an earlier one has no effect."""

    @property
    def is_reachable(self) -> bool:
        """Whether the peer can be talked to."""
        return self.is_up and not self.is_suspect

    @property
    def may_read(self) -> bool:
        """Whether a stream that is behind could read now."""
        return (
            bool(self.readers) and self.is_up and not self.is_blocked and self.reads < limits.mirror_reads_max
        )

    def clear(self) -> None:
        """The connection is gone, and all that was meant for it."""
        for kind in (self.hellos, self.stops, self.agains, self.reports, self.marks):
            kind.clear()
        self.flows = []
        self.readers.clear()
        self.waiting_bytes = self.reads = 0
        self.is_blocked = False
        self.connection += 1

    def begin_read(self) -> Callable[[], None]:
        """A stream begins to read; returns what to call when that is done."""
        connection = self.connection
        self.reads += 1

        def done() -> None:
            if self.connection == connection:
                self.reads -= 1

        return done

    def push(self, stream: "Stream", batches: list[Data], *, is_start: bool) -> None:
        """Have batches follow what a stream has sent so far."""
        pending = stream.pending
        if pending is None:
            pending = stream.pending = Pending(stream, stream.position, is_start=is_start)
            pending.after_epoch = stream.copy.log.epoch_at(stream.position)
            self.flows.append(pending)
        pending.raw += batches
        size = sum(map(len, batches))
        pending.size += size
        self.waiting_bytes += size

    def flow(self, stream: "Stream", flow: Flow, raw: list[Data]) -> None:
        """Have a flow that is no push go out behind what the stream has sent so far."""
        stream.pending = None
        pending = Pending(stream, stream.position, flow=flow)
        pending.raw = raw
        pending.size = flow.size
        self.waiting_bytes += flow.size
        self.flows.append(pending)

    def pump(self) -> None:
        """Let streams that are behind read, as far as there is room."""
        while self.may_read and self.waiting_bytes < limits.mirror_frame_bytes:
            self.readers.popleft().read()

    def send(self, outside: Outside, *, with_marks: bool) -> None:
        """Send what there is. Marks alone can wait: nobody is held up by them."""
        if not self.is_up or self.is_blocked:
            return
        facts = self.hellos or self.stops or self.agains or self.reports or (with_marks and self.marks)
        if not self.flows and not facts:
            return
        flows, self.flows, self.waiting_bytes = self.flows, [], 0
        at = 0
        while True:
            first, size = at, 0
            while at < len(flows) and (at == first or size + flows[at].size <= limits.mirror_frame_bytes):
                size += flows[at].size
                at += 1
            if not self._send_frame(outside, flows[first:at]):
                self.is_blocked = True
                break
            if at == len(flows):
                return
        for pending in flows[first:]:
            pending.stream.give_back(pending)

    def _send_frame(self, outside: Outside, flows: list[Pending]) -> bool:
        frame = Frame(
            tuple(self.hellos.values()),
            tuple(self.stops.values()),
            tuple(self.reports.values()),
            tuple(self.marks.values()),
            tuple(pending.value() for pending in flows),
            tuple(self.agains.values()),
        )
        if not outside.send(self.peer, encode(frame, [piece for pending in flows for piece in pending.raw])):
            return False
        for kind in (self.hellos, self.stops, self.agains, self.reports, self.marks):
            kind.clear()
        for pending in flows:
            if pending.stream.pending is pending:
                pending.stream.pending = None
        return True
