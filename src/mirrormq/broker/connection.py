"""One client connection: its state, its channels, its heartbeats, and how it ends.

Guarantees
- Frames are served strictly in order. A method that must wait parks the connection: no later frame is looked
  at until it is answered, while heartbeats, deliveries and confirms go on.
- However a connection ends, its channels give back what was not acknowledged and its exclusive queues vanish,
  once.
- After connection.close was sent nothing is served but connection.close and close-ok, and the socket is
  closed when the answer came or the time for it ran out.

States: those of the handshake, then running -> closed -> gone. `blocking`, `blocked` and `flow` are how
`running` looks from outside while publishing is held (flow.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError, channel_error, connection_forced, not_allowed
from mirrormq.base.types import Peer
from mirrormq.broker import faults, handshake, told
from mirrormq.broker.channel import Channel, close_payload
from mirrormq.broker.flow import Flow
from mirrormq.broker.handshake import Handshake
from mirrormq.kernel.frames import EV_ACK, EV_ERROR, EV_HELD, EV_METHOD, EV_PUBLISH, FrameReader
from mirrormq.kernel.outbuffer import OutBuffer
from mirrormq.meta.commands import Command, ConnectionGone
from mirrormq.meta.state import Outcome
from mirrormq.wire import methods
from mirrormq.wire.methods import Method
from mirrormq.wire.spec import FRAME_HEADER, FRAME_METHOD, METHODS, PROTOCOL_HEADER

if TYPE_CHECKING:
    from mirrormq.broker.host import Host
    from mirrormq.broker.vhost import VHost

RUNNING = "running"
CLOSED = "closed"
GONE = "gone"

_KNOWN = frozenset(
    class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big") for class_id, method_id in METHODS
)
_CREDIT = frozenset(bytes((0, 60, 0, method_id)) for method_id in (200, 201, 202))
"""basic.credit and its answers: RabbitMQ knows them for its own AMQP 1.0 plugin, we do not serve them."""
_SYNTAX_ERROR = 502
_NOTHING: Mapping[int, Method] = {}
_CLOSE, _CLOSE_OK = bytes((0, 10, 0, 50)), bytes((0, 10, 0, 51))


class Connection:
    """The state machine of one client connection; bytes in through `on_bytes`, bytes out through `out`."""

    protocol = "AMQP 0-9-1"

    __slots__ = (
        "_blocked_at",
        "_deadline",
        "_deaf",
        "_handshake",
        "_headless",
        "_heard_at",
        "_is_counted",
        "_parks",
        "_paused",
        "_running",
        "_sent_at",
        "_sent_total",
        "_ticked_at",
        "auth_mechanism",
        "capabilities",
        "channel_max",
        "channels",
        "client_properties",
        "conn_id",
        "connected_at",
        "flow",
        "frame_max",
        "heartbeat",
        "host",
        "name",
        "out",
        "owns_queues",
        "peer",
        "reader",
        "recv_cnt",
        "recv_oct",
        "state",
        "user",
        "user_provided_name",
        "vhost",
    )

    def __init__(self, host: "Host", conn_id: int, peer: Peer) -> None:
        self.host = host
        self.conn_id = conn_id
        self.peer = peer
        self.name = f"{peer.host}:{peer.port} -> {peer.local_host}:{peer.local_port}"
        self.state = handshake.PRE_INIT
        self.out = OutBuffer(host.dirty, conn_id)
        self.reader = FrameReader()
        self.reader.frame_max = limits.handshake_frame_bytes_max
        self.channels: dict[int, Channel] = {}
        self.flow = Flow(self)

        self.user = ""
        self.vhost: VHost | None = None
        self.auth_mechanism = ""
        self.client_properties: dict[str, Any] = {}
        self.capabilities: dict[str, Any] = {}
        self.user_provided_name: str | None = None
        self.channel_max = 0
        self.frame_max = limits.handshake_frame_bytes_max
        self.heartbeat = 0
        self.connected_at = host.now.wall // 1000
        self.recv_oct = self.recv_cnt = 0
        self.owns_queues = False
        """Did it declare an exclusive queue? Spares the others a command when they close."""

        self._handshake: Handshake | None = Handshake(self)
        self._headless: Mapping[int, Method] = _NOTHING
        """Per channel a method whose content header is still to come (publishes do not come this way)."""
        self._deadline = host.now.mono + host.settings.handshake_timeout_ms * 1000
        """When the handshake, or the wait for close-ok, is over; 0 while running."""
        self._deaf = False
        self._is_counted = False
        """Does the census hold it?"""
        self._running = False
        self._paused = False
        self._parks: set[str] = set()
        self._heard_at = host.now.mono
        self._blocked_at = 0
        self._sent_total = 0
        self._sent_at = 0
        self._ticked_at = 0

    # --- what others ask ------------------------------------------------------------------------

    @property
    def parked(self) -> bool:
        """Is some frame waiting for an answer from elsewhere?"""
        return bool(self._parks)

    @property
    def is_open(self) -> bool:
        """Has connection.open succeeded and nobody closed it yet?"""
        return self.state == RUNNING

    @property
    def shown_state(self) -> str:
        """The state as RabbitMQ's list_connections shows it."""
        return self.flow.shown_state if self.state == RUNNING else self.state

    @property
    def send_oct(self) -> int:
        """Octets written so far."""
        return self.out.total

    @property
    def send_pend(self) -> int:
        """Octets waiting to be written."""
        return self.out.size

    def is_reading(self) -> bool:
        """Does the client take what is written to it, or did so a moment ago?"""
        return not self.out.blocked or self.host.now.mono - self._blocked_at < limits.output_stall_us

    def is_parked_for(self, reason: str) -> bool:
        """Is this one of the things the connection waits for?"""
        return reason in self._parks

    def has_capability(self, name: str) -> bool:
        """Did the client announce this capability?"""
        return self.capabilities.get(name) is True

    # --- inputs ---------------------------------------------------------------------------------

    def on_bytes(self, data: bytes | memoryview) -> None:
        """Take what the client sent."""
        self.recv_oct += len(data)
        self.recv_cnt += 1
        self._heard_at = self.host.now.mono
        if self._deaf or self.state == GONE:
            return
        self.reader.feed(data)
        self._run()

    def take_output(self) -> Sequence[bytes | memoryview]:
        """The pieces that wait to be written; none of them is empty."""
        return (data,) if (data := self.out.take()) else ()

    def on_output_blocked(self) -> None:
        """The client's socket takes no more for now: deliver nothing to it."""
        self.out.blocked = self.flow.is_full = True
        self._blocked_at = self.host.now.mono

    def on_output_free(self) -> None:
        """The client's socket takes output again."""
        self.out.blocked, self.flow.is_full = self.flow.is_stopped, False

    def on_closed(self) -> None:
        """The socket is gone."""
        if self.state == GONE:
            return
        if self.state == RUNNING:
            self.note("warning", "client unexpectedly closed TCP connection", event="connection.lost")
        self._release()
        self.state = GONE
        self._parks.clear()

    def on_tick(self) -> None:
        """Look at the clock: handshake and close timeouts, heartbeats, overdue acknowledgements."""
        if self.state == GONE:
            return
        now = self.host.now.mono
        if self._deadline and now >= self._deadline:
            if self.state in handshake.STATES:
                self.note("error", "handshake timeout", event="connection.handshake_timeout")
            self._hang_up()
            return
        if self.heartbeat:
            self._beat(now)
        if self.state == RUNNING:
            for channel in list(self.channels.values()):
                channel.on_tick(now)

    def close_with(self, error: AmqpError) -> None:
        """End the connection because of `error`, the way its state demands."""
        if self.state in (CLOSED, GONE):
            return
        if self.state in handshake.STATES and self.state not in handshake.ANSWERED:
            text = f"handshake failed in state {self.state}: {error}"
            self.note("error", text, event="connection.handshake_failed")
            self.fall_silent()
            return
        self.note("error", f"connection error: {error}", code=error.code, event="connection.error")
        self._release()
        self.send_close(error)
        self.finish_closing()

    def force_close(self, reason: str) -> None:
        """End the connection by an operator's wish or because the node stops."""
        if self.state == RUNNING:
            self.close_with(connection_forced(reason))
        elif self.state != CLOSED:
            self.drop(reason)

    # --- parking --------------------------------------------------------------------------------

    def park(self, reason: str) -> None:
        """Stop looking at frames until `unpark(reason)`."""
        self._parks.add(reason)
        if not self._running:
            self._read_or_pause()

    def unpark(self, reason: str) -> None:
        """Whatever `reason` waited for has come; go on unless something else is awaited."""
        self._parks.discard(reason)
        if not self._parks and self.state != GONE:
            self.host.heard(self)
            self._run()

    def propose(self, command: Command, then: Callable[[Outcome], None], *, wait: bool) -> None:
        """Change the metadata; `then` runs when the change is applied and, with `wait`, flushed."""

        def done(outcome: Outcome) -> None:
            if self.state == GONE:
                return
            then(outcome)
            self.unpark("metadata")

        self.park("metadata")
        self.host.propose(command, done, wait)

    def _run(self) -> None:
        """Serve frames until there are no more, or one must wait."""
        if self._running or self._deaf or self.state == GONE:
            return  # a nested unpark: the loop further up goes on by itself
        self._running = True
        try:
            if self.state == handshake.PRE_INIT:
                self._read_header()
            while self._may_serve():
                event = self.reader.next()
                if event is None:
                    break
                self._on_event(event)
        finally:
            self._running = False
            self.reader.keep()
        self._read_or_pause()

    def _may_serve(self) -> bool:
        return not self._parks and not self._deaf and self.state != handshake.PRE_INIT

    def _read_or_pause(self) -> None:
        """Ask for input only while it would be looked at: what is read meanwhile must be kept."""
        if self._parks and not self._paused:
            self._paused = True
            self.host.effects.pause(self.conn_id)
        elif self._paused and not self._parks:
            self._paused = False
            self.host.effects.resume(self.conn_id)

    def _read_header(self) -> None:
        header = self.reader.read(len(PROTOCOL_HEADER))
        if header is not None:
            assert self._handshake is not None
            self._handshake.on_header(header)

    def give_up(self) -> bytes:
        """Another object takes the place of this one, which has served nothing; returns what is unread."""
        self.state = GONE
        self._deaf = True
        self.reader.keep()
        return self.reader.read(self.reader.buffered) or b""

    # --- frames ---------------------------------------------------------------------------------

    def _on_event(self, event: tuple[Any, ...]) -> None:
        """Serve one event of the reader; a mistake of the client ends its channel or the connection."""
        kind = event[0]
        if self.state == CLOSED:
            if kind == EV_METHOD and event[1] == 0:
                self._on_method_while_closed(event[2])
            elif kind == EV_ERROR and event[2] in faults.NOISE:
                self._deaf = True
            return
        try:
            if kind == EV_METHOD:
                self._on_method(event[1], event[2])
            elif kind == EV_PUBLISH:
                self.channels[event[1]].on_publish(*event[2:])
            elif kind == EV_ACK:
                self.channels[event[1]].on_settle(*event[2:])
            elif kind == EV_HELD:
                self.flow.on_held()
            else:
                self._on_frame_error(*event[1:])
        except AmqpError as error:
            self.close_with(error)

    def _on_method(self, number: int, payload: bytes) -> None:
        if number != 0 and self.state != RUNNING:
            raise faults.misplaced_frame(FRAME_METHOD, payload)
        if len(payload) < 4:
            raise faults.unknown_frame(FRAME_METHOD, payload)
        if payload[:4] not in _KNOWN and payload[:4] not in _CREDIT:
            # RabbitMQ's reader dies of a method it does not know: the client just sees its socket closed.
            self.drop(f"unknown method {payload[:4].hex()} on channel {number}")
        elif number == 0:
            self._on_method0(payload)
        else:
            method = self._decode(payload)
            if method is not None:
                self._on_channel_method(number, method)

    def _decode(self, payload: bytes) -> Method | None:
        """Read a method of a channel. As in RabbitMQ a table that cannot be read costs the socket."""
        try:
            return methods.decode(payload)
        except AmqpError as error:
            if payload[:4] in _CREDIT:
                raise faults.unreadable(payload) from None
            if error.code == _SYNTAX_ERROR:
                self.drop(f"unreadable table: {error.text}")
                return None
            raise faults.on_channel(error) from None

    def _on_channel_method(self, number: int, method: Method) -> None:
        waiting = self._headless.get(number)
        if waiting is not None:
            raise faults.headless(waiting)
        if method.spec.has_content:
            # Published on a channel that is not open, or meant for a client: judged when the header comes.
            self._headless = {**self._headless, number: method}
            return
        self._serve(number, method)

    def _serve(self, number: int, method: Method) -> None:
        channel = self.channels.get(number)
        if channel is not None:
            channel.on_method(method)
        elif not isinstance(method, methods.ChannelCloseOk):
            self._check_room_for_channel()
            self._open_channel(number, method)

    def _on_method0(self, payload: bytes) -> None:
        try:
            method = methods.decode(payload)
        except AmqpError as error:
            raise faults.on_channel_0(error) from None
        try:
            if self._handshake is not None:
                self._handshake.on_method(method)
            elif isinstance(method, methods.ConnectionClose):
                self._on_close(method)
            elif isinstance(method, methods.ConnectionUpdateSecret):
                self.send(methods.ConnectionUpdateSecretOk())
            else:
                raise channel_error(f"unexpected method in connection state {RUNNING}")
        except AmqpError as error:
            name_method(error, method)
            raise

    def _on_method_while_closed(self, payload: bytes) -> None:
        ids = payload[:4]
        if ids == _CLOSE:
            self.send(methods.ConnectionCloseOk())
        elif ids == _CLOSE_OK:
            self._hang_up()

    def _on_close(self, method: methods.ConnectionClose) -> None:
        text = f"client closes the connection: {method.reply_code} {method.reply_text}"
        self.note("info", text, event="connection.closed")
        self._release()
        self.send(methods.ConnectionCloseOk())
        self.finish_closing()

    def _on_frame_error(self, number: int, code: str, frame_type: int, detail: int, snippet: bytes) -> None:
        if code == "message_too_big":
            self.channels[number].fail(faults.message_too_big(detail, self.reader.max_message_size))
            return
        if self.state != RUNNING and number != 0 and code not in faults.FATAL:
            raise faults.misplaced_frame(frame_type, snippet)
        waiting = self._headless.get(number)
        if waiting is not None and code not in faults.FATAL:
            if frame_type != FRAME_HEADER:
                raise faults.headless(waiting)
            self._serve(number, waiting)  # which closes the connection: no such method has a right to be here
            return
        self.close_with(
            faults.from_reader(number, code, frame_type, detail, snippet, frame_max=self.reader.frame_max)
        )
        if code in faults.FATAL:
            # As RabbitMQ: the close is sent, but no answer can be read any more.
            self._deaf = True
            self._deadline = self.host.now.mono + limits.silence_us

    # --- channels -------------------------------------------------------------------------------

    def _check_room_for_channel(self) -> None:
        """RabbitMQ looks at the number of open channels before it looks at the method."""
        count = len(self.channels)
        if self.channel_max and count >= self.channel_max:
            raise not_allowed(
                f"number of channels opened ({count}) has reached "
                f"the negotiated channel_max ({self.channel_max})"
            )
        limit = self.host.state.user_limit(self.user, "max-channels")
        if limit is None or limit < 0:
            return
        if self.host.census.channels_of(self.user) >= limit:
            raise not_allowed(
                f"number of channels opened for user '{self.user}' "
                f"has reached the maximum allowed user limit of ({limit})"
            )

    def _open_channel(self, number: int, method: Method) -> None:
        if not isinstance(method, methods.ChannelOpen):
            raise name_method(channel_error("expected 'channel.open'"), method)
        channel = Channel(self, number, self.host.next_uid())
        self.channels[number] = channel
        self.host.channels[channel.uid] = channel
        self.host.census.channel_opened(self.user)
        self.host.census.tell("channel.created", lambda: told.channel(channel))
        self.reader.add_channel(channel.core)
        channel.send(methods.ChannelOpenOk())

    def forget_channel(self, channel: Channel) -> None:
        """The channel is closed on both sides; its number is free again."""
        del self.channels[channel.number]
        self.reader.remove_channel(channel.number)

    # --- the handshake's results ----------------------------------------------------------------

    def take_client_properties(self, properties: dict[str, Any]) -> None:
        """Remember what the client says of itself."""
        self.client_properties = properties
        capabilities = properties.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        name = properties.get("connection_name")
        self.user_provided_name = name if isinstance(name, str) else None

    def tuned(self, *, channel_max: int, frame_max: int, heartbeat: int) -> None:
        """Both sides know the limits; heartbeats begin."""
        self.channel_max = channel_max
        self.frame_max = self.reader.frame_max = self.out.frame_max = frame_max
        self.heartbeat = heartbeat
        self._heard_at = self._ticked_at = self._sent_at = self.host.now.mono

    def opened(self, vhost: "VHost") -> None:
        """The client is in its vhost and may open channels."""
        self.vhost = vhost
        self.reader.memo = vhost.memo_for(self.user)
        self.reader.max_message_size = self.host.settings.max_message_size
        self.state = RUNNING
        self._handshake = None
        self._deadline = 0
        self._is_counted = True
        self.host.census.connection_opened(vhost.name, self.user)
        self.host.census.tell("connection.created", lambda: told.connection(self))
        self.flow.on_alarm()
        text = f"user '{self.user}' authenticated and granted access to vhost '{vhost.name}'"
        self.note("info", text, event="connection.opened")

    # --- ending ---------------------------------------------------------------------------------

    def drop(self, reason: str) -> None:
        """Close the socket without another word, after what is already written."""
        self.note("error", reason, event="connection.dropped")
        self._hang_up()

    def fall_silent(self) -> None:
        """Answer nothing and hang up a little later: a client that guesses gets neither a hint nor speed."""
        self.state = CLOSED
        self._deaf = True
        self._deadline = self.host.now.mono + limits.silence_us

    def finish_closing(self) -> None:
        """The last method is sent; wait for the client to close the socket, but not for ever."""
        wait = limits.close_wait_us
        if self.state in (handshake.STARTING, handshake.SECURING, handshake.TUNING):
            wait = limits.silence_us
        elif self.heartbeat:
            wait = min(wait, self.heartbeat * 1_000_000)
        self.state = CLOSED
        self._handshake = None
        self._deadline = self.host.now.mono + wait
        if not self._running:
            self._read_or_pause()

    def _hang_up(self) -> None:
        self._release()
        self.state = CLOSED
        self._deaf = True
        self._deadline = 0
        self.host.effects.close(self.conn_id)

    def _release(self) -> None:
        """Give back everything the connection holds. Safe to call again."""
        channels, self.channels = self.channels, {}
        self.flow.release()
        self._parks.clear()  # what was awaited has lost its meaning, and close-ok must be heard
        if self._is_counted and self.vhost is not None:
            self._is_counted = False
            self.host.census.connection_ended(self.vhost.name, self.user)
            self.host.census.tell("connection.closed", lambda: told.connection(self))
        for channel in channels.values():
            channel.stop()
        if self.owns_queues:
            self.owns_queues = False
            self.host.propose(ConnectionGone(self.conn_id, self.host.node_name), _ignore, False)

    # --- heartbeats -----------------------------------------------------------------------------

    def _beat(self, now: int) -> None:
        """Send a heartbeat after half an interval of silence here; give up after two of them there."""
        interval = self.heartbeat * 1_000_000
        total = self.out.total + self.out.size
        if total != self._sent_total:
            self._sent_total = total
            self._sent_at = self._ticked_at  # written some time after the last look at the clock
        self._ticked_at = now
        if now - self._sent_at >= interval // 2 and not self.out.size:
            self.out.write_heartbeat()
            self._sent_total += 8
            self._sent_at = now
        if self._paused:
            self._heard_at = now  # we do not read, so we cannot hear
        elif self.state != CLOSED and now - self._heard_at > 2 * interval:
            self.drop(f"missed heartbeats from client, timeout: {self.heartbeat}s")

    # --- output ---------------------------------------------------------------------------------

    def send(self, method: Method, number: int = 0) -> None:
        """Write one method."""
        self.out.write_method(number, methods.encode(method))

    def send_close(self, error: AmqpError) -> None:
        """Write connection.close."""
        self.out.write_method(0, close_payload(methods.ConnectionClose, error))

    def note(self, level: str, text: str, **fields: object) -> None:
        """Tell the log, with the connection's name."""
        self.host.note(level, text, connection=self.name, **fields)


def name_method(error: AmqpError, method: Method) -> AmqpError:
    """Fill in which method an error is about, unless its raiser knew better."""
    if not error.class_id:
        error.class_id, error.method_id = method.class_id_of, method.method_id_of
    return error


def _ignore(_: Outcome) -> None:
    """The change was made; nobody waits for it."""
