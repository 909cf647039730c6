"""One connection to another node, from its first byte to its end, without the socket.

Guarantee: frames are exchanged only after the handshake; what the other end sent before it closed is
delivered before the end is told; an end is told exactly once.

States: HANDSHAKE -> OPEN -> CLOSED, or HANDSHAKE -> CLOSED. A silent peer is suspected elsewhere
(`peer/detector.py`); here a link only ends when the silence has lasted so long that TCP would be slower to
recover than a new connection is. Whoever owns the link hears of its end before the socket is closed, so that
a lease that hangs on it can be given up first.
"""

from enum import Enum
from typing import NamedTuple

from mirrormq.base import limits
from mirrormq.base.rng import Rng
from mirrormq.base.types import Now
from mirrormq.peer.card import Card, PeerInfo
from mirrormq.peer.faults import Code, PeerFault, readable
from mirrormq.peer.framing import GRANT, PING, PONG, Data, Frame, Incoming, Kind, Lane, Payload
from mirrormq.peer.handshake import Handshake, Judge, SharedSecret
from mirrormq.peer.lanes import Outgoing


class State(Enum):
    """How far a link is."""

    HANDSHAKE = "handshake"
    OPEN = "open"
    CLOSED = "closed"


class Happening(Enum):
    """What changes the state of a link."""

    AGREED = "agreed"
    REFUSED = "refused"
    ENDED = "ended"


MOVES: dict[tuple[State, Happening], State] = {
    (State.HANDSHAKE, Happening.AGREED): State.OPEN,
    (State.HANDSHAKE, Happening.REFUSED): State.CLOSED,
    (State.OPEN, Happening.ENDED): State.CLOSED,
}


class Loss(Enum):
    """How a socket ended."""

    EOF = "the other end closed the connection"
    RESET = "the other end reset the connection"
    ERROR = "the connection failed"


class Opened(NamedTuple):
    """Both ends have agreed."""

    peer: PeerInfo


class Received(NamedTuple):
    """Payloads arrived, in order within each lane."""

    frames: list[tuple[Lane, Payload]]


class Writable(NamedTuple):
    """The bulk lane was full and takes payloads again."""


class Measured(NamedTuple):
    """A keepalive came back."""

    round_trip: int
    offset: int
    """How far the peer's wall clock is ahead, in microseconds; wrong by at most half the round trip."""


class Refused(NamedTuple):
    """There will be no link."""

    code: Code
    text: str


class Down(NamedTuple):
    """An open link is over. `eof`: it was the other end that closed or reset it, or said goodbye."""

    eof: bool
    text: str


Event = Opened | Received | Writable | Measured | Refused | Down


class Link:
    """One end of a connection between nodes."""

    def __init__(
        self,
        number: int,
        me: Card,
        now: Now,
        *,
        is_dialler: bool,
        secret: SharedSecret,
        judge: Judge,
        rng: Rng,
    ) -> None:
        self.number = number
        self.state = State.HANDSHAKE
        self.peer: PeerInfo | None = None
        self.round_trip = 0
        """Time of the last keepalive's return, in microseconds; 0 before the first."""
        self._handshake = Handshake(number, me, is_dialler=is_dialler, secret=secret, judge=judge, rng=rng)
        self._in = Incoming()
        self._out = Outgoing()
        self._events: list[Event] = []
        self._since = now.mono
        self._heard = now.mono
        self._pinged = now.mono
        self._ticked = now.mono
        self._is_held = False

    # What the owner may ask.

    @property
    def is_open(self) -> bool:
        """Whether payloads can be sent."""
        return self.state is State.OPEN

    @property
    def is_closed(self) -> bool:
        """Whether the link is over; its last bytes may still have to be sent."""
        return self.state is State.CLOSED

    @property
    def is_full(self) -> bool:
        """Whether the bulk lane takes nothing more for now."""
        return self._out.is_full

    @property
    def waiting_bytes(self) -> int:
        """Bytes of both lanes that have not been handed out."""
        return self._out.bulk_bytes + self._out.control_bytes

    @property
    def name(self) -> str:
        """Name of the peer as far as it is proved, else empty."""
        card = self._handshake.peer
        return card.name if card is not None else ""

    def take_events(self) -> list[Event]:
        """Everything that happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def take_output(self) -> list[Data]:
        """Bytes to be sent next; empty if there are none. To be asked again while the socket takes more."""
        if self._handshake.output:
            first: list[Data] = [self._handshake.output]
            self._handshake.output = bytearray()
            return first
        taken = self._out.take()
        if taken and self._out.has_room_again() and self.is_open:
            self._events.append(Writable())
        return taken

    # What happens to it.

    def receive(self, now: Now, data: memoryview) -> None:
        """Bytes of the other end; nothing refers to `data` after this."""
        if self.is_closed:
            return
        self._heard = now.mono
        try:
            if self.state is State.HANDSHAKE:
                used = self._handshake.receive(data)
                if not self._handshake.is_done:
                    return
                self._agree(now)
                data = data[used:]
            if data:
                self._on_frames(now, self._in.receive(data))
                if self._in.fault is not None:
                    self.close(self._in.fault.text)
        except PeerFault as fault:
            self._refuse(fault.code, fault.text)

    def tick(self, now: Now) -> None:
        """Time has passed: give up a handshake, send a keepalive, give up a silent link."""
        # A pause of this node itself is nobody's silence; see the detector.
        gap = now.mono - self._ticked
        self._ticked = now.mono
        if gap >= limits.peer_suspect_us:
            self._heard = min(now.mono, self._heard + gap)
        if self.state is State.HANDSHAKE:
            if now.mono - self._since >= limits.peer_handshake_us:
                fault = PeerFault(Code.TIME)
                self._handshake.refuse(fault.code, fault.text)
                self._refuse(fault.code, fault.text)
        elif self.state is State.OPEN:
            if now.mono - self._heard >= limits.peer_silence_us:
                self.close(f"nothing was heard for {limits.peer_silence_us // 1_000_000} seconds")
            elif now.mono - self._pinged >= limits.peer_keepalive_us:
                self._pinged = now.mono
                self._out.ping(now.mono)

    def lost(self, loss: Loss) -> None:
        """The socket ended by itself."""
        if self.state is State.HANDSHAKE:
            self._refuse(Code.LOST, f"{loss.value} before the handshake was finished")
        elif self.state is State.OPEN:
            self._end(Down(loss is not Loss.ERROR, loss.value))

    # What the owner wants.

    def send(self, lane: Lane, *parts: Data) -> bool:
        """Queue one payload, given in one or more pieces; False if the lane is full or the link not open."""
        if self.state is not State.OPEN:
            return False
        if lane is Lane.BULK:
            return self._out.bulk(parts)
        return self._out.control(parts[0] if len(parts) == 1 else b"".join(parts))

    def hold(self) -> None:
        """Grant no more bulk: at most the window still arrives. Control frames and keepalives go on."""
        self._is_held = True

    def unhold(self) -> None:
        """Grant bulk again."""
        self._is_held = False
        if self.is_open:
            self._grant()

    def close(self, reason: str) -> None:
        """End the link from this side. The goodbye is output; the socket is closed after it."""
        if self.state is State.OPEN:
            self._out.goodbye(reason)
            self._end(Down(eof=False, text=reason))
        self.refuse(Code.VERDICT, reason)

    def refuse(self, code: Code, text: str) -> None:
        """End a handshake from this side, and say why."""
        if self.state is State.HANDSHAKE:
            self._handshake.refuse(code, text)
            self._refuse(code, text)

    # Inside.

    def _agree(self, now: Now) -> None:
        self._move(Happening.AGREED)
        done = self._handshake
        assert done.peer is not None, self.number
        self.peer = PeerInfo(done.peer, self.number, done.version, done.is_dialler)
        self._pinged = now.mono
        self._out.ping(now.mono)
        self._grant()
        self._events.append(Opened(self.peer))

    def _on_frames(self, now: Now, frames: list[Frame]) -> None:
        received: list[tuple[Lane, Payload]] = []
        goodbye: str | None = None
        for kind, payload in frames:
            if kind is Kind.CONTROL:
                received.append((Lane.CONTROL, payload))
            elif kind is Kind.BULK:
                received.append((Lane.BULK, payload))
            elif kind is Kind.PING:
                self._out.pong(PING.unpack(payload)[0], now.wall)
            elif kind is Kind.PONG:
                self._on_pong(now, *PONG.unpack(payload))
            elif kind is Kind.GRANT:
                self._out.granted(GRANT.unpack(payload)[0])
            else:
                goodbye = f"the other node said: {readable(bytes(payload))}"
                break
        if received:
            self._events.append(Received(received))
        if goodbye is not None:
            self._end(Down(eof=True, text=goodbye))
        elif not self._is_held:
            self._grant()

    def _on_pong(self, now: Now, echo: int, wall: int) -> None:
        round_trip = now.mono - echo
        # An echo of something never sent is a mistake of the other end, but no reason to lose the link.
        if 0 <= round_trip <= 2 * limits.peer_silence_us:
            self.round_trip = max(1, round_trip)
            self._events.append(Measured(self.round_trip, wall + round_trip // 2 - now.wall))

    def _grant(self) -> None:
        """Let the other end send on, a quarter of the window at a time."""
        taken, window = self._in.bulk_bytes, limits.peer_window_bytes
        if taken + window - self._in.granted >= window // 4:
            self._in.granted = taken + window
            self._out.grant(self._in.granted)

    def _refuse(self, code: Code, text: str) -> None:
        self._move(Happening.REFUSED)
        self._events.append(Refused(code, text))

    def _end(self, down: Down) -> None:
        self._move(Happening.ENDED)
        self._events.append(down)

    def _move(self, happening: Happening) -> None:
        after = MOVES.get((self.state, happening))
        assert after is not None, (self.state, happening)
        self.state = after
