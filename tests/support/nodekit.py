"""A whole node without sockets, files or clocks: clients speak frames, time moves when the test says so."""

import random
from collections import deque
from typing import Any, TypeVar

from mirrormq.base.types import Now, Peer
from mirrormq.broker.host import BrokerSettings
from mirrormq.meta.passwords import salted_hash
from mirrormq.meta.state import bootstrap_commands
from mirrormq.node import effects as fx
from mirrormq.node.node import Node
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from mirrormq.wire.methods import Method
from tests.support.kernelkit import frame, header, read_frames

M = TypeVar("M", bound=Method)


class SeededRng:
    """Randomness that repeats."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def token(self, nbytes: int) -> bytes:
        return self._random.randbytes(nbytes)

    def below(self, n: int) -> int:
        return self._random.randrange(n)


class NodeKit:
    """A started node; flushes are done at once unless `hold_flushes` is set.

    Those of files whose names begin with `holds` are never done, nor are such files replaced.
    """

    def __init__(
        self, disk: Any = None, *, hold_flushes: bool = False, holds: str | None = None, **settings: Any
    ) -> None:
        self.holds = holds
        self.now = Now(1_000_000, 1_700_000_000_000_000)
        self.disk = MemoryDisk() if disk is None else disk
        rng = SeededRng(len(self.disk.list("")))
        self.node = self.make_node(BrokerSettings(**settings), rng)
        self.hold_flushes = hold_flushes
        self.notes: list[fx.Note] = []
        self.clients: dict[int, Client] = {}
        self.closed: set[int] = set()
        self.paused: set[int] = set()
        self._conn = 0
        fresh = bootstrap_commands("guest", salted_hash(b"guest", b"salt"), "/", ("administrator",))
        self.node.start(self.now, self.disk, fresh)
        self.run()

    def make_node(self, settings: BrokerSettings, rng: SeededRng) -> Node:
        return Node(self.now, name="mirrormq@test", settings=settings, rng=rng)

    def run(self) -> None:
        """Passes until nothing is left to do."""
        while True:
            self.node.end_pass(self.now)
            done = self._drain()
            if not done and not self.node.needs_pass:
                return

    def advance(self, seconds: float) -> None:
        """Let time pass, with a tick at its end."""
        micros = int(seconds * 1_000_000)
        self.now = Now(self.now.mono + micros, self.now.wall + micros)
        self.node.tick(self.now)
        self.run()

    def client(self, user: str = "guest", password: str = "guest", vhost: str = "/", **more: Any) -> "Client":
        """A client that is logged in and has opened channel 1."""
        client = self.connect(**more.pop("peer", {}))
        client.log_in(user, password, vhost, **more)
        client.open(1)
        return client

    def connect(self, host: str = "127.0.0.1") -> "Client":
        """A client that has only connected."""
        self._conn += 1
        client = self.clients[self._conn] = Client(self, self._conn)
        self.node.client_open(self.now, self._conn, Peer(host, 40000 + self._conn, "127.0.0.1", 5672))
        return client

    def _drain(self) -> bool:
        items = self.node.effects.take()
        for effect in items:
            if isinstance(effect, fx.Write):
                data = b"".join(self.node.take_output(effect.conn))
                self.clients[effect.conn].received(data)
            elif isinstance(effect, fx.Append | fx.Flush | fx.Replace | fx.Remove):
                self._to_disk(effect)
            elif isinstance(effect, fx.Read):
                self._read(effect)
            elif isinstance(effect, fx.Close):
                self.closed.add(effect.conn)
            elif isinstance(effect, fx.Pause):
                self.paused.add(effect.conn)
            elif isinstance(effect, fx.Resume):
                self.paused.discard(effect.conn)
            elif isinstance(effect, fx.Note):
                self.notes.append(effect)
            elif isinstance(effect, fx.Send | fx.Cut):
                self.to_peer(effect)
        if not self.hold_flushes:
            self.flush()
        return bool(items)

    def to_peer(self, effect: fx.Send | fx.Cut) -> None:
        raise AssertionError(effect)

    def _read(self, effect: fx.Read) -> None:
        if effect.file not in self.disk.list(effect.file):
            self.node.disk_read(self.now, effect.token, None, "No such file or directory")
            return
        data = self.disk.read(effect.file)[effect.offset : effect.offset + effect.length]
        self.node.disk_read(self.now, effect.token, data, None)

    def _to_disk(self, effect: fx.Append | fx.Flush | fx.Replace | fx.Remove) -> None:
        is_held = self.holds is not None and effect.file.startswith(self.holds)
        if is_held and isinstance(effect, fx.Flush | fx.Replace):
            return
        getattr(self.disk, type(effect).__name__.lower())(*effect)

    def flush(self) -> None:
        """The disk reports everything it was asked for."""
        while (token := self.disk.finish_next()) is not None:
            self.node.disk_done(self.now, token)


class Client:
    """Speaks AMQP frames to a node in a kit."""

    def __init__(self, kit: NodeKit, conn: int) -> None:
        self.kit = kit
        self.conn = conn
        self.inbox: deque[tuple[int, Any]] = deque()
        """(channel, method or (properties, body))"""
        self._raw = b""
        self._content: tuple[int, bytes, bytes, int] | None = None

    # --- sending ---

    def feed(self, data: bytes) -> None:
        self.kit.node.client_bytes(self.kit.now, self.conn, memoryview(data))
        self.kit.run()

    def send(self, method: Method, channel: int = 1) -> None:
        self.feed(frame(1, channel, methods.encode(method)))

    def publish(
        self,
        key: str,
        body: bytes = b"x",
        *,
        exchange: str = "",
        properties: bytes = b"\x00\x00",
        **more: Any,
    ) -> None:
        channel = more.pop("channel", 1)
        method = methods.BasicPublish(exchange=exchange, routing_key=key, **more)
        parts = frame(1, channel, methods.encode(method)) + header(len(body), properties, channel)
        self.feed(parts + (frame(3, channel, body) if body else b""))

    def ask(self, method: Method, reply: type[M], channel: int = 1) -> M:
        """Send and expect exactly this answer next."""
        self.send(method, channel)
        return self.expect(reply, channel)

    def log_in(self, user: str = "guest", password: str = "guest", vhost: str = "/", **more: Any) -> None:
        capabilities = more.pop(
            "capabilities", {"consumer_cancel_notify": True, "connection.blocked": True, "basic.nack": True}
        )
        self.feed(b"AMQP\x00\x00\x09\x01")
        self.expect(methods.ConnectionStart, 0)
        response = b"\x00" + user.encode() + b"\x00" + password.encode()
        self.send(
            methods.ConnectionStartOk(
                client_properties={"capabilities": capabilities},
                mechanism="PLAIN",
                response=response,
                locale="en_US",
            ),
            0,
        )
        tune = self.expect(methods.ConnectionTune, 0)
        self.send(methods.ConnectionTuneOk(tune.channel_max, more.get("frame_max", tune.frame_max), 0), 0)
        self.send(methods.ConnectionOpen(vhost), 0)
        self.expect(methods.ConnectionOpenOk, 0)

    def open(self, channel: int) -> None:
        self.ask(methods.ChannelOpen(), methods.ChannelOpenOk, channel)

    def declare(self, queue: str, **more: Any) -> methods.QueueDeclareOk:
        return self.ask(methods.QueueDeclare(queue=queue, **more), methods.QueueDeclareOk)

    def consume(self, queue: str, tag: str = "c", **more: Any) -> None:
        self.ask(methods.BasicConsume(queue=queue, consumer_tag=tag, **more), methods.BasicConsumeOk)

    def close_socket(self) -> None:
        self.kit.node.client_closed(self.kit.now, self.conn)
        self.kit.run()

    # --- receiving ---

    def received(self, data: bytes) -> None:
        self._raw += data
        if self._raw.startswith(b"AMQP"):
            self.inbox.append((0, self._raw[:8]))
            self._raw = self._raw[8:]
        for kind, channel, payload in read_frames(self._raw):
            if kind == 1:
                self.inbox.append((channel, methods.decode(payload)))
            elif kind == 2:
                self._content = (channel, payload[12:], b"", int.from_bytes(payload[4:12], "big"))
            elif kind == 3:
                assert self._content is not None
                number, properties, body, size = self._content
                self._content = (number, properties, body + payload, size)
            if self._content is not None and len(self._content[2]) == self._content[3]:
                self.inbox.append((self._content[0], (self._content[1], self._content[2])))
                self._content = None
        self._raw = b""

    def expect(self, kind: type[M], channel: int = 1) -> M:
        """The next thing in the inbox must be this method."""
        assert self.inbox, f"nothing received, expected {kind.__name__}"
        where, what = self.inbox.popleft()
        assert isinstance(what, kind), what
        assert where == channel, (where, channel)
        return what

    def take(self) -> list[Any]:
        """Everything received so far, without the channel numbers."""
        items = [what for _, what in self.inbox]
        self.inbox.clear()
        return items

    def deliveries(self) -> list[bytes]:
        """Bodies received so far; everything else in the inbox is dropped."""
        return [what[1] for what in self.take() if isinstance(what, tuple)]
