"""A host for broker tests without a node: real metadata, queues and kernel, no store, no clock, no sockets.

Everything that would come later from outside waits until the test lets it: flushes with `hold_flushes`,
log-ins with `hold_logins`, time with `advance`. `Client` is the other end of a connection, frame by frame.
"""

import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from mirrormq.base import limits
from mirrormq.base.types import Now, Peer
from mirrormq.broker.census import Census
from mirrormq.broker.channel import Channel
from mirrormq.broker.connection import Connection
from mirrormq.broker.host import BrokerSettings
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import QueuePort
from mirrormq.broker.vhost import VHost
from mirrormq.kernel.cores import ChannelCore, QueueCore, Worklist
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.outbuffer import Dirty
from mirrormq.log.queuelog import MemoryLog
from mirrormq.meta import commands, records
from mirrormq.meta.access import Access
from mirrormq.meta.state import MetaState, Outcome
from mirrormq.meta.tables import Change
from mirrormq.wire import methods
from mirrormq.wire.methods import Method
from mirrormq.wire.properties import Properties, decode_properties, encode_properties
from mirrormq.wire.spec import PROTOCOL_HEADER

M = TypeVar("M", bound=Method)

SECOND = 1_000_000
PEER = Peer("127.0.0.1", 50_000, "127.0.0.1", 5672)
CAPABILITIES = {
    "publisher_confirms": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class SeededRng:
    """Randomness that repeats."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def token(self, nbytes: int) -> bytes:
        return self._random.randbytes(nbytes)

    def below(self, n: int) -> int:
        return self._random.randrange(n)


class RecordedEffects:
    """What a connection wanted done to its socket, in order."""

    def __init__(self) -> None:
        self.items: list[tuple[str, int]] = []

    def pause(self, conn: int) -> None:
        self.items.append(("pause", conn))

    def resume(self, conn: int) -> None:
        self.items.append(("resume", conn))

    def close(self, conn: int) -> None:
        self.items.append(("close", conn))


class NotCutOff:
    """There are no other nodes to be cut off from."""

    patient_since = 0

    def port(self, queue: QueuePort) -> QueuePort:
        return queue

    def divert(self, _: Queue) -> None:
        return None

    def is_over(self, _: Queue) -> bool:
        return False

    def positions(self, _: Queue) -> list[Any]:
        return []


class FakeHost:
    """Just enough of a node."""

    def __init__(self, **settings: Any) -> None:
        self.now = Now(10 * SECOND, 1_700_000_000 * SECOND)
        self.rng = SeededRng()
        self.settings = BrokerSettings(**settings)
        self.cluster_name = "test@host"
        self.node_name = "test@host"
        self.effects = RecordedEffects()
        self.dirty = Dirty()
        self.work = Worklist()
        self.grave = Graveyard()
        self.state = MetaState()
        self.access = Access(self.state)
        self.vhosts: dict[str, VHost] = {}
        self.channels: dict[int, Channel] = {}
        self.connections: dict[int, Connection] = {}
        self.alarms: set[str] = set()
        self.partition = NotCutOff()
        self.census = Census()
        self.notes: list[tuple[str, str]] = []
        self.hold_flushes = False
        self.hold_logins = False
        self.waiting_flushes: list[Callable[[], None]] = []
        self.waiting_logins: list[Callable[[], None]] = []
        self.commands: list[commands.Command] = []
        self.passwords = {"guest": "guest"}
        self._barriers: list[Callable[[bool], None]] = []
        self.is_sure = True
        """Is what barriers wait for durable in the end, as far as anybody knows?"""
        self._heard: dict[int, Connection] = {}
        self._last_uid = 0
        self.state.watch(self._on_changes)
        self.apply(commands.PutVHost(records.VHost("/")))
        self.add_user("guest", "guest", tags=("administrator",))

    # --- for tests ------------------------------------------------------------------------------

    def apply(self, command: commands.Command) -> Outcome:
        """Change the metadata as an operator would."""
        outcome = self.state.apply(command)
        assert outcome.ok, outcome
        return outcome

    def add_user(
        self,
        name: str,
        password: str,
        *,
        rights: tuple[str, str, str] = (".*", ".*", ".*"),
        tags: tuple[str, ...] = (),
    ) -> None:
        self.passwords[name] = password
        self.apply(commands.PutUser(records.User(name, tags=tags)))
        self.apply(commands.SetPermission(records.Permission(name, "/", *rights)))

    def set_alarm(self, name: str, raised: bool) -> None:
        (self.alarms.add if raised else self.alarms.discard)(name)
        for connection in list(self.connections.values()):
            connection.flow.on_alarm()

    def advance(self, seconds: float) -> None:
        """Let time pass, with a tick every second as the node gives it."""
        left = int(seconds * SECOND)
        while left > 0:
            step = min(left, SECOND)
            left -= step
            self.now = Now(self.now.mono + step, self.now.wall + step)
            for connection in list(self.connections.values()):
                connection.on_tick()
            self.end_pass()

    def flush(self) -> None:
        """Report everything proposed so far as durable."""
        waiting, self.waiting_flushes = self.waiting_flushes, []
        for done in waiting:
            done()
        self.end_pass()

    def finish_logins(self) -> None:
        waiting, self.waiting_logins = self.waiting_logins, []
        for done in waiting:
            done()

    def end_pass(self) -> None:
        """Do what the node does at the end of a loop pass."""
        self._turn()
        for connection in list(self.connections.values()):
            for core in connection.reader.take_confirming():
                channel = self.channels.get(core.uid)
                if channel is not None:
                    publish_no, _ = core.take_barrier()
                    channel.confirm.barrier(publish_no, [])
                    channel.confirm.advance(0)
            connection.reader.take_fed()
        barriers, self._barriers = self._barriers, []
        for done in barriers:
            done(self.is_sure)

    def _turn(self) -> None:
        for core in self.work.take():
            core.owner.turn()

    # --- what the broker asks -------------------------------------------------------------------

    def propose(self, command: commands.Command, done: Callable[[Outcome], None], wait: bool) -> None:
        self.commands.append(command)
        outcome = self.state.apply(command)
        if wait and self.hold_flushes:
            self.waiting_flushes.append(lambda: done(outcome))
        else:
            done(outcome)

    def authenticate(
        self, user: str, password: str | None, peer: Peer, done: Callable[[str | None], None]
    ) -> None:
        known = user in self.state.users and password in (None, self.passwords.get(user))
        refusal = None if known else f"user '{user}' - invalid credentials"
        if self.hold_logins:
            self.waiting_logins.append(lambda: done(refusal))
        else:
            done(refusal)

    def after_durable(self, queues: list[QueueCore], done: Callable[[bool], None]) -> None:
        self._turn()
        self._barriers.append(done)

    def wake_queue(self, queue: Queue, at_mono: int) -> None:
        """No timers: tests give queues their turn."""

    pid = 7
    """No other process is there."""

    def far_listener(self, pid: int, address: bytes) -> None:
        """No other node is there."""

    @property
    def meta_index(self) -> int:
        return 0

    def after_settled(self, queues: list[QueueCore], done: Callable[[bool], None]) -> None:
        done(True)

    def open_log(self, record: records.Queue) -> MemoryLog:
        """Nothing is durable here."""
        return MemoryLog()

    def fill(self, queue: Any) -> None:
        pass

    def drop_log(self, record: records.Queue) -> None:
        """Nothing was kept."""

    def is_master(self, record: records.Queue) -> bool:
        return True

    def holders(self) -> list[ChannelCore]:
        return [channel.core for channel in self.channels.values()]

    def refuse_forwarded(self, queue: Queue, pid: int, number: int) -> None:
        raise AssertionError(pid)

    def read(self, file: str, offset: int, length: int, done: Callable[..., None]) -> None:
        raise AssertionError(file)

    def heard(self, connection: object) -> None:
        """No passes: tests look at the reader themselves."""

    def next_uid(self) -> int:
        self._last_uid += 1
        return self._last_uid

    def shortages(self) -> list[str]:
        return sorted(self.alarms)

    def place(self, queue: records.Queue) -> str:
        return self.node_name

    def memory_share(self) -> int:
        return limits.queue_memory_bytes

    def expiry_wall(self) -> int:
        return self.now.wall

    def note(self, level: str, text: str, **fields: object) -> None:
        self.notes.append((level, text))

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            record = change.record
            if isinstance(record, records.VHost):
                if change.kind == "put" and record.name not in self.vhosts:
                    self.vhosts[record.name] = VHost(self, record.name)
            elif isinstance(record, records.Exchange | records.Queue | records.Binding | records.Policy):
                self.vhosts[record.vhost].apply(change)


class Received(NamedTuple):
    """One method the broker sent, with its content if it has any."""

    channel: int
    method: Method
    properties: Properties | None = None
    body: bytes = b""


class Client:
    """The other end of one connection."""

    def __init__(self, host: FakeHost, peer: Peer = PEER) -> None:
        self.host = host
        conn_id = len(host.connections) + 1
        self.connection = Connection(host, conn_id, peer)
        host.connections[conn_id] = self.connection
        self.heartbeats = 0
        self._received: list[Received] = []
        self._bytes = b""
        self.header = b""

    # --- sending --------------------------------------------------------------------------------

    def raw(self, data: bytes, *, end_pass: bool = True) -> None:
        self.connection.on_bytes(data)
        if end_pass:
            self.host.end_pass()

    def send(self, method: Method, channel: int = 1) -> None:
        self.raw(method_frame(channel, method))

    def publish(
        self,
        key: str,
        body: bytes = b"",
        *,
        exchange: str = "",
        mandatory: bool = False,
        channel: int = 1,
        **properties: Any,
    ) -> None:
        method = methods.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory)
        self.raw(content_frames(channel, method, Properties(**properties), body))

    # --- receiving ------------------------------------------------------------------------------

    def call(self, method: Method, wanted: type[M], channel: int = 1) -> M:
        """Send a method and return the answer, which must be the next thing received."""
        self.send(method, channel)
        return self.expect(wanted, channel)

    def expect(self, wanted: type[M], channel: int = 1) -> M:
        received = self.next()
        assert isinstance(received.method, wanted), received
        assert received.channel == channel, received
        return received.method

    def next(self) -> Received:
        self._take()
        assert self._received, "nothing received"
        return self._received.pop(0)

    def all(self) -> list[Method]:
        """Everything received since the last look, without content."""
        self._take()
        received, self._received = self._received, []
        return [one.method for one in received]

    def is_closed(self) -> bool:
        """Did the broker hang up?"""
        return ("close", self.connection.conn_id) in self.host.effects.items

    def _take(self) -> None:
        self._bytes += bytes(self.connection.out.take())
        while len(self._bytes) >= 7:
            if self._bytes.startswith(b"AMQP"):
                self.header, self._bytes = self._bytes[:8], self._bytes[8:]
                continue
            kind, channel, size = struct.unpack(">BHI", self._bytes[:7])
            payload = self._bytes[7 : 7 + size]
            assert self._bytes[7 + size] == 0xCE
            self._bytes = self._bytes[8 + size :]
            if kind == 1:
                self._received.append(Received(channel, methods.decode(payload)))
            elif kind == 8:
                self.heartbeats += 1
            elif kind == 2:
                last = self._received[-1]
                self._received[-1] = last._replace(properties=decode_properties(payload[12:]))
            else:
                last = self._received[-1]
                self._received[-1] = last._replace(body=last.body + payload)

    # --- whole conversations --------------------------------------------------------------------

    def log_in(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        capabilities: dict[str, Any] | None = None,
        client_properties: dict[str, Any] | None = None,
    ) -> None:
        """Send the protocol header and start-ok."""
        self.raw(PROTOCOL_HEADER)
        self.expect(methods.ConnectionStart, 0)
        properties = {"capabilities": CAPABILITIES if capabilities is None else capabilities}
        self.send(
            methods.ConnectionStartOk(
                {**properties, **(client_properties or {})}, "PLAIN", f"\0{user}\0{password}".encode()
            ),
            0,
        )

    def open(
        self, user: str = "guest", password: str = "guest", *, heartbeat: int = 0, **log_in: Any
    ) -> "Client":
        """Go through the whole handshake."""
        self.log_in(user, password, **log_in)
        tune = self.expect(methods.ConnectionTune, 0)
        self.send(methods.ConnectionTuneOk(tune.channel_max, tune.frame_max, heartbeat), 0)
        self.call(methods.ConnectionOpen("/"), methods.ConnectionOpenOk, 0)
        return self

    def open_channel(self, channel: int = 1) -> "Client":
        self.call(methods.ChannelOpen(), methods.ChannelOpenOk, channel)
        return self

    def declare(self, queue: str = "", channel: int = 1, **arguments: Any) -> str:
        return self.call(
            methods.QueueDeclare(queue=queue, **arguments), methods.QueueDeclareOk, channel
        ).queue


def connected(host: FakeHost | None = None, **open_: Any) -> Client:
    """A client with an open connection and channel 1."""
    return Client(host or FakeHost()).open(**open_).open_channel()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method_frame(channel: int, method: Method) -> bytes:
    return frame(1, channel, methods.encode(method))


def content_frames(channel: int, method: Method, properties: Properties, body: bytes) -> bytes:
    head = struct.pack(">HHQ", 60, 0, len(body)) + encode_properties(properties)
    data = method_frame(channel, method) + frame(2, channel, head)
    return data + frame(3, channel, body) if body else data
