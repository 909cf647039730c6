"""Keeps one authenticated link to each peer over real sockets, and tells its owner what happens on them.

Guarantee: the owner hears of a link's end before this node closes the socket, so that a lease that hangs on
it is given up before the other end can take the end for a death certificate; `link_down` of an old link comes
before `link_opened` of the one that replaces it. Payloads come in order within their lane.

A link is read as fast as bytes come: back-pressure for bulk is the window of the link (`hold`), because a
socket that is not read holds up heartbeats too. Everything is written once per pass of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

from mirrormq.base import limits
from mirrormq.base.rng import Rng
from mirrormq.base.types import NodeName, Now
from mirrormq.peer.card import Card, PeerInfo
from mirrormq.peer.detector import Detector
from mirrormq.peer.faults import Code
from mirrormq.peer.framing import Data, Lane, Payload
from mirrormq.peer.handshake import SharedSecret
from mirrormq.peer.link import Down, Link, Loss, Measured, Opened, Received, Refused, Writable
from mirrormq.peer.table import LinkTable
from mirrormq.runtime import clock
from mirrormq.runtime.linkends import Acceptor, Target, Targets
from mirrormq.runtime.logs import Log
from mirrormq.runtime.tls import LinkContexts
from mirrormq.runtime.values import Address

UNSENT_LOW = getattr(socket, "TCP_NOTSENT_LOWAT", 25)
"""Linux: how much the kernel takes beyond what is on the wire. Python names it only from 3.12 on."""


class LinkOwner(Protocol):
    """The layer above, which is told everything and decides who is wanted."""

    def link_verdict(self, peer: Card, other: Card | None) -> str | None:
        """Why this peer is not wanted, or None; `other` is who is linked under its name now."""
        ...

    def link_opened(self, now: Now, peer: PeerInfo) -> None:
        """A link is open."""
        ...

    def peer_frame(self, now: Now, peer: PeerInfo, lane: Lane, payload: Payload) -> None:
        """A payload arrived."""
        ...

    def link_writable(self, now: Now, peer: PeerInfo) -> None:
        """The bulk lane of a link was full and takes payloads again."""
        ...

    def link_suspected(self, now: Now, peer: PeerInfo, *, is_suspected: bool) -> None:
        """A peer has gone silent, or was heard again. The link is still open."""
        ...

    def link_down(self, now: Now, peer: PeerInfo, *, eof: bool, reason: str) -> None:
        """A link is over; `eof`: the peer closed or reset it. The socket is closed after this call."""
        ...


class PeerFacts(NamedTuple):
    """What there is to show of a link."""

    peer: PeerInfo
    address: str
    round_trip_us: int
    skew_us: int
    silence_us: int
    is_suspected: bool
    waiting_bytes: int


class PeerLinks:
    """All links of this node."""

    def __init__(
        self,
        me: Card,
        secret: SharedSecret,
        owner: LinkOwner,
        log: Log,
        *,
        rng: Rng | None = None,
        contexts: LinkContexts | None = None,
        now: Callable[[], Now] = clock.now,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.owner = owner
        self.secret = secret
        self.log = log
        self.rng: Rng = rng or clock.MachineRng()
        self.contexts = contexts
        self.now = now
        self.table = LinkTable(me, owner.link_verdict)
        self.detector = Detector(now().mono)
        self.read_buffer = memoryview(bytearray(limits.read_buffer_bytes))
        self.connections: dict[int, Connection] = {}
        self.strangers: dict[int, Connection] = {}
        """Accepted connections that have not proved anything, the oldest first."""
        self.is_closed = False
        self._acceptors: list[Acceptor] = []
        self._targets = Targets(self)
        self._number = 0
        self._suspected: set[str] = set()
        self._dirty: dict[int, Connection] = {}
        self._is_flush_due = False
        self._emptied: asyncio.Future[None] | None = None
        self._told: dict[str, tuple[str, int]] = {}
        self._on: dict[type, Callable[[Connection, Now, Any], None]] = {
            Opened: self._on_opened,
            Received: self._on_received,
            Writable: self._on_writable,
            Measured: self._on_measured,
            Refused: self._on_refused,
            Down: self._on_down,
        }
        self._ticker = self.loop.call_later(limits.peer_tick_us / 1_000_000, self._tick)

    # What the owner wants.

    @property
    def me(self) -> Card:
        """What this node presents; a new one counts for links that begin after it."""
        return self.table.me

    @me.setter
    def me(self, card: Card) -> None:
        self.table.me = card

    def listen(self, listening: socket.socket) -> None:
        """Accept links on a bound socket."""
        acceptor = Acceptor(self, listening)
        acceptor.start()
        self._acceptors.append(acceptor)

    def dial(self, address: Address) -> None:
        """Keep a link to whoever is at this address, until `undial`."""
        self._targets.add(address)

    def undial(self, address: Address) -> None:
        """Dial this address no more; a link that is open stays."""
        self._targets.remove(address)

    def send(self, name: NodeName, lane: Lane, *parts: Data) -> bool:
        """Send one payload, given in one or more pieces nobody changes afterwards; whether it was taken.

        False: there is no open link, or its lane is full. For bulk `link_writable` follows in that case.
        """
        connection = self._open(name)
        if connection is None:
            return False
        self._mark(connection)
        return connection.link.send(lane, *parts)

    def is_full(self, name: NodeName) -> bool:
        """Whether the bulk lane to a peer takes nothing more; True without an open link."""
        connection = self._open(name)
        return connection is None or connection.link.is_full

    def hold(self, name: NodeName) -> None:
        """Let a peer send no more bulk than what is under way; control frames go on."""
        connection = self._open(name)
        if connection is not None:
            connection.link.hold()

    def unhold(self, name: NodeName) -> None:
        """Let a peer send bulk again."""
        connection = self._open(name)
        if connection is not None:
            connection.link.unhold()
            self._mark(connection)

    def drop(self, name: NodeName, reason: str) -> None:
        """End the link to a peer; it is told the reason. If the peer is dialled, that goes on."""
        connection = self._open(name)
        if connection is not None:
            connection.link.close(reason)
            self._after(connection, self.now())

    def facts(self) -> list[PeerFacts]:
        """Describe all open links, by name."""
        now, skewed = self.now().mono, self.detector.skewed()
        return [
            PeerFacts(
                peer,
                self.connections[peer.link].address,
                self.connections[peer.link].link.round_trip,
                skewed.get(peer.name, 0),
                self.detector.silence(peer.name, now),
                peer.name in self._suspected,
                self.connections[peer.link].link.waiting_bytes,
            )
            for peer in self.table.open_links()
        ]

    async def close(self, reason: str) -> None:
        """End all links, telling the peers why, and wait until their sockets are closed."""
        self.is_closed = True
        self._ticker.cancel()
        for acceptor in self._acceptors:
            acceptor.close()
        self._targets.close()
        now = self.now()
        for connection in list(self.connections.values()):
            connection.link.close(reason)
            self._after(connection, now)
        if self.connections:
            self._emptied = self.loop.create_future()
            await self._emptied

    # What happens on the sockets.

    def connection(
        self, target: Target | None = None, on_made: Callable[[], object] = lambda: None
    ) -> Connection:
        """Make the protocol of a new connection; `target` is what was dialled."""
        return Connection(self, target, on_made)

    def made(self, connection: Connection, *, is_dialler: bool) -> Link:
        """Begin a handshake on a new connection."""
        self._number += 1
        now = self.now()
        link = Link(
            self._number,
            self.me,
            now,
            is_dialler=is_dialler,
            secret=self.secret,
            judge=self.table,
            rng=self.rng,
        )
        self.connections[link.number] = connection
        if not is_dialler:
            self.strangers[link.number] = connection
        return link

    def received(self, connection: Connection, data: memoryview) -> None:
        """Bytes of a peer; nothing refers to `data` after this."""
        now = self.now()
        link = connection.link
        if link.is_open:
            self.detector.heard(link.name, now.mono)
        try:
            link.receive(now, data)
        except Exception as error:  # noqa: BLE001
            self._blame(connection, now, error)
        self._after(connection, now)

    def lost(self, connection: Connection, loss: Loss) -> None:
        """A peer's socket has ended."""
        connection.link.lost(loss)
        self._after(connection, self.now())

    def gone(self, connection: Connection) -> None:
        """A socket is closed for good."""
        del self.connections[connection.link.number]
        self.strangers.pop(connection.link.number, None)
        self._dirty.pop(connection.link.number, None)
        if self._emptied is not None and not self.connections and not self._emptied.done():
            self._emptied.set_result(None)

    def evict(self) -> None:
        """Drop the connection that has waited longest without a proof."""
        connection = next(iter(self.strangers.values()))
        connection.link.close("too many connections wait for their handshake")
        self._hear(connection, self.now())
        connection.abort()

    def write(self, connection: Connection) -> None:
        """Hand the socket as much as it takes; close it after the last bytes of a link that is over."""
        link = connection.link
        while not connection.is_paused or link.is_closed:
            data = link.take_output()
            if not data:
                break
            connection.write(data)
        if link.is_closed:
            connection.hang_up()
        else:
            self._hear(connection, self.now())

    def note(self, address: str, level: str, text: str, **fields: object) -> None:
        """Write a line about an address, but not the same one over and over: attempts go on for ever."""
        now = self.now()
        before, at = self._told.pop(address, ("", 0))
        if before != text or now.mono - at >= limits.peer_note_us:
            self.log.note(level, text, {"address": address, **fields}, now.wall)
            at = now.mono
        self._told[address] = (text, at)
        if len(self._told) > limits.peer_notes_max:
            del self._told[next(iter(self._told))]

    # Inside.

    def _open(self, name: NodeName) -> Connection | None:
        peer = self.table.open_link(name)
        return self.connections[peer.link] if peer is not None else None

    def _tick(self) -> None:
        self._ticker = self.loop.call_later(limits.peer_tick_us / 1_000_000, self._tick)
        now = self.now()
        for connection in list(self.connections.values()):
            connection.link.tick(now)
            self._after(connection, now)
        suspects = set(self.detector.suspects(now.mono))
        for peer in self.table.open_links():
            is_suspected = peer.name in suspects
            if is_suspected != (peer.name in self._suspected):
                (self._suspected.add if is_suspected else self._suspected.discard)(peer.name)
                self.owner.link_suspected(now, peer, is_suspected=is_suspected)

    def _mark(self, connection: Connection) -> None:
        self._dirty[connection.link.number] = connection
        if not self._is_flush_due:
            self._is_flush_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        dirty, self._dirty = self._dirty, {}
        for connection in dirty.values():
            self.write(connection)

    def _after(self, connection: Connection, now: Now) -> None:
        self._hear(connection, now)
        self._mark(connection)

    def _hear(self, connection: Connection, now: Now) -> None:
        for event in connection.link.take_events():
            try:
                self._on[type(event)](connection, now, event)
            except Exception as error:  # noqa: BLE001
                # A mistake of ours with one peer must not take the others down with it.
                self._blame(connection, now, error)

    def _blame(self, connection: Connection, now: Now, error: Exception) -> None:
        import traceback

        text = "".join(traceback.format_exception(error))
        self.log.note(
            "error",
            f"internal error, link closed: {text}",
            {"event": "internal_error", "peer": connection.link.name},
            now.wall,
        )
        if not connection.link.is_closed:
            connection.link.close("internal error")
            self._hear(connection, now)

    def _on_opened(self, connection: Connection, now: Now, event: Opened) -> None:
        peer = event.peer
        self.strangers.pop(peer.link, None)
        for number in self.table.rivals(peer):
            other = self.connections[number]
            other.link.refuse(Code.DUPLICATE, "")
            other.link.close("another connection took its place")
            self._after(other, now)
        self.table.opened(peer)
        self.detector.add(peer.name, now.mono)
        if connection.target is not None:
            connection.target.reached(peer.name)
        self._told.pop(connection.address, None)
        self.log.note(
            "info",
            "link open",
            {"event": "link.open", "peer": peer.name, "address": connection.address},
            now.wall,
        )
        self.owner.link_opened(now, peer)

    def _on_received(self, connection: Connection, now: Now, event: Received) -> None:
        peer, hear = connection.link.peer, self.owner.peer_frame
        assert peer is not None, connection.link.number
        for lane, payload in event.frames:
            if connection.is_told_down:
                # The owner has dropped the link while it was told of the frame before.
                return
            hear(now, peer, lane, payload)

    def _on_writable(self, connection: Connection, now: Now, event: Writable) -> None:  # noqa: ARG002
        peer = connection.link.peer
        if peer is not None and not connection.is_told_down:
            self.owner.link_writable(now, peer)

    def _on_measured(self, connection: Connection, now: Now, event: Measured) -> None:
        name = connection.link.name
        known = name in self.detector.skewed()
        self.detector.measured(name, event.offset, event.round_trip)
        if not known and name in self.detector.skewed():
            text = "the clock of a peer differs from this node's"
            self.log.note(
                "warning", text, {"event": "clock.skew", "peer": name, "ahead_us": event.offset}, now.wall
            )

    def _on_refused(self, connection: Connection, now: Now, event: Refused) -> None:  # noqa: ARG002
        link = connection.link
        self.table.gone(link.number)
        self.strangers.pop(link.number, None)
        if event.code is Code.DUPLICATE or self.is_closed:
            pass
        elif connection.target is not None:
            # Someone who connects by accident or to look is none of an operator's business; a target is.
            self.note(
                connection.address,
                "warning",
                f"no link: {event.text}",
                peer=link.name or None,
                event="link.refused",
            )
        else:
            level = "info" if event.code in {Code.MALFORMED, Code.LOST, Code.TIME} else "warning"
            self.note(
                connection.address,
                level,
                f"no link: {event.text}",
                peer=link.name or None,
                event="link.refused",
            )
        if connection.target is not None:
            connection.target.refused(event.code, link.name)

    def _on_down(self, connection: Connection, now: Now, event: Down) -> None:
        peer = connection.link.peer
        assert peer is not None, connection.link.number
        connection.is_told_down = True
        self.table.gone(peer.link)
        self.detector.remove(peer.name)
        self._suspected.discard(peer.name)
        level = "info" if self.is_closed else "warning"
        text = f"link down: {event.text}"
        self.log.note(
            level, text, {"event": "link.closed", "peer": peer.name, "address": connection.address}, now.wall
        )
        try:
            self.owner.link_down(now, peer, eof=event.eof, reason=event.text)
        finally:
            self._targets.lost(peer.name)


class Connection(asyncio.BufferedProtocol):
    """The socket of one link; `target` is what was dialled, None if the peer dialled."""

    def __init__(self, links: PeerLinks, target: Target | None, on_made: Callable[[], object]) -> None:
        self.links = links
        self.target = target
        self._on_made = on_made
        self.address = ""
        self.is_paused = False
        self.is_closing = False
        self.is_told_down = False
        self._is_begun = False
        self._is_over = False
        self._linger: asyncio.TimerHandle | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self.transport = cast(asyncio.Transport, transport)
        if self._is_over:
            self.transport.abort()
            return
        self._is_begun = True
        peer = self.transport.get_extra_info("peername") or ("", 0)
        # A peer that dialled comes from another port each time: notes about it go by its host.
        self.address = str(self.target.address) if self.target is not None else str(peer[0])
        set_options(self.transport)
        self.link = self.links.made(self, is_dialler=self.target is not None)
        self._on_made()
        if self.target is not None:
            self.target.connected(self)
        if self.links.is_closed:
            self.is_closing = True
            self.transport.abort()
            return
        self.links.write(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Lend the shared buffer: it is read and handed on before anybody else can ask for it."""
        return self.links.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on what was read."""
        if not self.is_closing:
            self.links.received(self, self.links.read_buffer[:nbytes])

    def eof_received(self) -> bool:
        """The peer hung up: the transport closes itself, after what it still holds has gone out."""
        if not self.is_closing:
            self.links.lost(self, Loss.EOF)
            self._begin_end()
        return False

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self.is_paused = False
        if not self.is_closing:
            self.links.write(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._is_over:
            return
        self._is_over = True
        if self._linger is not None:
            self._linger.cancel()
        if not self.link.is_closed:
            self.links.lost(self, loss_of(exc))
        self.is_closing = True
        self.links.gone(self)
        if self.target is not None:
            self.target.ended(self)

    # Called by whoever makes the connection.

    def abandon(self) -> None:
        """Its making was cancelled. The loop may have begun it, or be about to, and then closes the transport
        without a word: whoever waits for its end would wait for ever, and nobody would dial again.
        """
        if self._is_begun:
            self.transport.abort()
            self.connection_lost(None)
        self._is_over = True

    # Called by the links.

    def write(self, data: list[Data]) -> None:
        """Send bytes; after the end they have no reader any more."""
        if not self.is_closing and not self.transport.is_closing():
            self.transport.writelines(data)

    def hang_up(self) -> None:
        """Close after everything written has gone out; a reset could overtake the reason for the end."""
        if self.is_closing:
            return
        self._begin_end()
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            # The other end may have gone already; the transport then ends by itself.
            with contextlib.suppress(OSError):
                self.transport.write_eof()
        else:
            self.transport.close()

    def _begin_end(self) -> None:
        """Hand out nothing more; a peer that does not read what it was sent gets a bounded time for it."""
        self.is_closing = True
        seconds = limits.close_linger_ms_max / 1000
        self._linger = self.links.loop.call_later(seconds, self.transport.abort)

    def abort(self) -> None:
        """Close at once."""
        self.is_closing = True
        self.transport.abort()


def set_options(transport: asyncio.Transport) -> None:
    """Keep little in the kernel: what it has taken can no longer be overtaken by a control frame."""
    transport.set_write_buffer_limits(limits.peer_transport_bytes_high, limits.peer_transport_bytes_low)
    used = transport.get_extra_info("socket")
    used.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):
        used.setsockopt(socket.IPPROTO_TCP, UNSENT_LOW, limits.peer_unsent_bytes)


def loss_of(error: Exception | None) -> Loss:
    """How a socket ended. Only what the other end did itself counts as its end, not a failure on the way."""
    if error is None:
        return Loss.EOF
    return Loss.RESET if isinstance(error, ConnectionResetError) else Loss.ERROR
