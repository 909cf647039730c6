"""The link to one other node: what is sent in which order, and what is remembered about the other end.

Guarantees
- Frames arrive in the order they are sent while the link is up; a frame that cannot be sent is not sent
  later: whoever owns it knows from `is_open` and starts again when the link is back.
- Of one pass the settlements go before the publishes, so an acknowledgement is never overtaken by a message
  that its channel published after it.
- A frame is served only when this node has applied the metadata its sender had: a queue cannot be unknown
  for being too new.
- A request is answered over the link it came on, or not at all: a process that has restarted since counts
  its requests anew, and would take the answer for that to another one of the same number.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError, not_found
from mirrormq.broker.inherited import since_of
from mirrormq.kernel.forward import Malformed
from mirrormq.node import peerframes
from mirrormq.node.peerframes import Answer, BadFrame, Got

if TYPE_CHECKING:
    from mirrormq.broker.queue import Queue
    from mirrormq.broker.staging import OpenTx
    from mirrormq.node.inlet import Inlet
    from mirrormq.node.outlet import FarConsumer, Outlet
    from mirrormq.node.remotequeue import RemoteQueue
    from mirrormq.node.sinkdesk import FarStage
    from mirrormq.node.stream import Stream

Answered = Callable[[Answer | Got | AmqpError], None]
ToldSink = Callable[[dict[str, Any] | None], None]


class Carrier(Protocol):
    """What a link needs of the switch."""

    @property
    def meta_index(self) -> int:
        """Index of the last metadata command applied here."""
        ...

    def carry(self, peer: str, payload: bytes) -> None:
        """Send a frame."""
        ...

    def next_request(self) -> int:
        """A number no request had before."""
        ...

    def when_settled(self, queue: "Queue", done: Callable[[], None]) -> None:
        """Call `done` when all that has left the queue in this pass has left it at every mirror."""
        ...

    def report_later(self, stream: "Stream") -> None:
        """Let a stream report at the end of the pass."""
        ...


class SinkEnds:
    """What sinks use of a link."""

    def __init__(self) -> None:
        self.stages: dict[int, OpenTx] = {}
        """Transactions that the peer stages here."""
        self.far_stages: dict[int, FarStage] = {}
        """Those that this node stages there."""
        self.asked: dict[int, ToldSink] = {}
        """Requests to staging queues mastered there, by number."""


class Asker(NamedTuple):
    """The process at the other end that waits for the answer to a request, as long as the link holds."""

    link: "PeerLink"
    session: int
    """Of the link when it asked."""
    request: int

    @property
    def is_there(self) -> bool:
        """Does it still wait?"""
        return self.link.session == self.session

    def answer(self, *numbers: int) -> None:
        """It is done."""
        self.send(peerframes.encode(Answer(self.request, numbers)))

    def refuse(self, error: AmqpError) -> None:
        """It cannot be done."""
        self.send(peerframes.encode(Answer(self.request, (), error.code, error.text)))

    def send(self, frame: bytes) -> None:
        """Send the answer; nothing if the link broke in between, for then the request has failed there."""
        if self.is_there:
            self.link.send(frame)


class PeerLink:
    """One peer, in both roles: as the master of queues used here, and as the home of clients served here."""

    def __init__(self, carrier: Carrier, peer: str) -> None:
        self._carrier = carrier
        self.peer = peer
        self.is_up = False
        self.is_open = False
        """Up, and the other end has said who it is."""
        self.is_full = False
        self.pid = 0
        """The peer's process: the id its publishes carry."""
        self.start = 0
        """The start of the node that process is."""
        self.session = 0
        """Grows with every time the link opens."""
        self.spoken = 0
        """The peer has told what its clients hold of the queues that moved up to this metadata index."""
        self.asked = 0
        """It was asked to do so up to this index."""
        self.down_at = 0
        self.is_held = False
        """Are the outlets of the peer's process kept since the link broke?"""
        self.inbox: deque[bytes] = deque()
        """Frames that wait for metadata."""
        self.awaited = 0
        self._told = 0
        self._settles: list[bytes] = []
        self._publishes: list[bytes] = []
        self._requests: dict[int, Answered] = {}
        self.replies: list[bytes] = []
        """Answers by direct reply-to that wait while the link is full."""
        self.reply_bytes = 0
        self.replies_dropped = 0
        # as home: what this node's clients use there
        self.queues: dict[int, RemoteQueue] = {}
        self.active: dict[RemoteQueue, None] = {}
        """Those of them that have something to lose with the link: all others need not hear of it."""
        self.inlets: dict[int, Inlet] = {}
        self.is_stale = False
        """Has this node's lease run out since its inlets of mirrored queues were registered?"""
        self.renewals = self.renewing = 0
        """How often, and the last time that the master was told so."""
        self.unsure: list[Callable[[bool], None]] = []
        """Commits that wait for the link, and go on by whether the master has kept what it knew."""
        self.owed_bytes = 0
        self.holding: dict[RemoteQueue, None] = {}
        """Queues whose publishers are held."""
        # as master: what that node's clients use here
        self.outlets: dict[int, Outlet] = {}
        self.served: set[int] = set()
        """Consumers of that node which are registered here."""
        self.suspended: dict[int, FarConsumer] = {}
        """Consumers that keep their places while the link is broken."""
        self.is_dropped = False
        """Was the peer called dead, so that it has to register anew although the link is up?"""
        self.drops = self.drops_told = 0
        """How often that has happened, and of how many of them the peer was told when it asked last."""
        self.streams: dict[int, Stream] = {}
        self.sinks = SinkEnds()
        self.arrived: dict[tuple[int, int], list[int]] = {}
        """Dead letters of that node that arrived here, by queue and source, of which it has not been told."""

    def when_settled(self, queue: "Queue", done: Callable[[], None]) -> None:
        """Call `done` when all that has left the queue in this pass has left it at every mirror."""
        self._carrier.when_settled(queue, done)

    def report_later(self, stream: "Stream") -> None:
        """Let a stream report at the end of the pass."""
        self._carrier.report_later(stream)

    def reset(self) -> None:
        """The link is gone: nothing that was to be sent is."""
        self.is_up = self.is_open = self.is_full = self.is_stale = self.is_dropped = False
        self.awaited = self._told = 0
        self.inbox.clear()
        self._settles.clear()
        self._publishes.clear()
        self.replies.clear()
        self.reply_bytes = self.replies_dropped = 0
        self.arrived.clear()

    def drop_suspended(self) -> None:
        """What was kept while the link was broken is not asked for any more.

        First the messages: a queue that goes with its last consumer must not be asked to take them back.
        """
        self.is_held = False
        suspended, self.suspended = self.suspended, {}
        for outlet in [outlet for outlet in self.outlets.values() if outlet.is_suspended]:
            outlet.drop()
        for consumer in suspended.values():
            consumer.outlet.queue.cancel(consumer)

    def go_stale(self) -> None:
        """What this node consumes of the peer's mirrored queues has to be registered anew."""
        self.is_stale = True
        self.renewals += 1

    def drop_mirrored(self) -> None:
        """What the peer consumes of mirrored queues is given out again; consumers are gone."""
        outlets = [outlet for outlet in self.outlets.values() if since_of(outlet.queue)]
        consumers = [consumer for outlet in outlets for consumer in outlet.consumers.values()]
        for outlet in outlets:
            outlet.drop()
        for consumer in consumers:
            consumer.outlet.queue.cancel(consumer)

    @property
    def is_untold(self) -> bool:
        """Was the peer called dead after it heard last that what it holds is kept?

        It need not have noticed that its lease ran out while the link was open, so it may never ask: if it
        goes on with an outlet that is gone, another one would take its tags for those of other messages.
        """
        return self.is_dropped and self.drops != self.drops_told

    def take_requests(self) -> list[Answered]:
        """Requests that will not be answered."""
        requests, self._requests = self._requests, {}
        return list(requests.values())

    @property
    def may_publish(self) -> bool:
        """Would a block of publishes go out now?"""
        return self.is_open and not self.is_full

    @property
    def is_over(self) -> bool:
        """Is more owed to this master than may be?"""
        return self.owed_bytes > limits.forward_owed_bytes_max

    # --- sending ---

    def greet(self, frame: bytes) -> None:
        """Send the first frame of a link."""
        self._told = self._carrier.meta_index
        self._carrier.carry(self.peer, frame)

    def settle(self, frame: bytes) -> None:
        """Send at the end of the pass, before publishes; nothing if the link is down."""
        if self.is_open:
            self._settles.append(frame)

    def publish(self, frame: bytes) -> None:
        """Send at the end of the pass."""
        self._publishes.append(frame)

    def send(self, frame: bytes) -> None:
        """Send behind everything so far."""
        self.flush()
        self._emit(frame)

    def flush(self) -> None:
        """Send what was kept for the end of the pass."""
        if self._settles:
            settles, self._settles = self._settles, []
            for frame in settles:
                self._emit(frame)
        if self._publishes:
            publishes, self._publishes = self._publishes, []
            for frame in publishes:
                self._emit(frame)
        if self.arrived:
            arrived, self.arrived = self.arrived, {}
            for (queue, source), numbers in arrived.items():
                self._emit(peerframes.encode(peerframes.Arrived(queue, source, tuple(numbers))))

    def _emit(self, frame: bytes) -> None:
        if not self.is_open:
            return
        index = self._carrier.meta_index
        if index > self._told:
            self._told = index
            self._carrier.carry(self.peer, peerframes.encode(peerframes.Sync(index)))
        self._carrier.carry(self.peer, frame)

    # --- requests ---

    def request(self, make: Callable[[int], peerframes.Other], answered: Answered) -> None:
        """Send a request; `answered` gets the answer, or an error if the link is down or breaks before."""
        if not self.is_open:
            answered(not_found(f"node '{self.peer}' is out of reach"))
            return
        number = self._carrier.next_request()
        self._requests[number] = answered
        self.send(peerframes.encode(make(number)))

    def ask_sink(self, make: Callable[[int], peerframes.Other], told: ToldSink) -> None:
        """The same for a staging queue; `told` gets None if there will be no answer."""
        if not self.is_open:
            told(None)
            return
        number = self._carrier.next_request()
        self.sinks.asked[number] = told
        self.send(peerframes.encode(make(number)))

    def answered(self, answer: Answer | Got) -> None:
        """An answer came; one that nobody waits for is ignored."""
        waiting = self._requests.pop(answer.request, None)
        if waiting is None:
            return
        try:
            waiting(answer)
        except (BadFrame, Malformed):
            self._requests[answer.request] = waiting  # it costs the link: whoever waits must hear of that
            raise

    def asker(self, request: int) -> Asker:
        """Who has just sent this request."""
        return Asker(self, self.session, request)
