"""One machine of a simulated cluster: a shipped `Node` with its disk, its clocks and its clients.

What happens to it is decided by the world. Inputs run at once, or when the process goes on if it is paused,
in their order; effects are carried out in order and may stop after any of them.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from mirrormq.base import limits
from mirrormq.base.types import Now, Peer
from mirrormq.cluster.identity import Identity
from mirrormq.cluster.raft.raft import Options, Raft
from mirrormq.meta.codec import encode_records
from mirrormq.meta.passwords import salted_hash
from mirrormq.meta.state import MetaState, bootstrap_commands
from mirrormq.node import effects as fx
from mirrormq.node.memberport import ClusterOptions
from mirrormq.node.node import Node
from mirrormq.sim.disk import MemoryDisk, ReadFailed, SlowDisk
from mirrormq.sim.machine import PowerLost, SeededRng
from mirrormq.sim.model import Violation
from mirrormq.sim.session import Reader

if TYPE_CHECKING:
    from mirrormq.sim.clusterworld import ClusterWorld

START_WALL = 1_700_000_000_000_000
PASSES_US = ((0, 20, 300), (100, 1_000, 4_000))
"""How long after an input the pass is over: of a process that has little to do, and of a busy one."""
DAMAGES = ("queue.damaged", "mirror.damaged")
"""Events that no world of whole nodes may have: their disks lose what was not flushed, and nothing else."""

NOBODY = (b"", 0, bytes(16))
Input = Callable[[Node, Now], object]


def fingerprint(state: MetaState) -> str:
    """What all definitions are, in their order."""
    data = encode_records([*state.records()])
    return hashlib.blake2b(data + state.last_id.to_bytes(8, "big"), digest_size=8).hexdigest()


class ClientReader(Protocol):
    """Puts together what a node sends to a client."""

    def feed(self, data: bytes) -> Iterator[Any]:
        """What is complete with these bytes."""
        ...


class SimNode:
    """A machine; `node` is None while its process is down."""

    def __init__(self, world: "ClusterWorld", name: str) -> None:
        """An empty disk."""
        self.world = world
        self.name = name
        self.options = ClusterOptions(address=name)
        self.node: Node | None = None
        self.life = 0
        self.disk = SlowDisk(world.rng)
        self.old_disks: list[MemoryDisk] = []
        self.card: tuple[bytes, int, bytes] = NOBODY
        """Identity, start and cluster it shows to other nodes."""
        self.dialled: set[str] = set()
        self.known: tuple[str, ...] = ()
        """The file in which the runtime keeps what is dialled."""
        self.is_open = False
        """Are clients let in?"""
        self.must_be_refused = False
        """Its folder is not the one the cluster knows."""
        self.is_kept_off = False
        """An operator wants it to be down."""
        self.is_leaving = False
        """It was asked to leave, which may come true at any time."""
        self.is_out = False
        """It was forgotten, and nobody has let it in again."""
        self.removed: list[int] = []
        self.is_refused = False
        self.stopped = ""
        """Why the process ended itself."""
        self.notes: deque[str] = deque(maxlen=300)
        self.paused_until = self.paused_since = 0
        self.effects_left = -1
        """Effects carried out before the process is killed; -1: all of them."""
        self.wall_offset = 0
        self._base = world.rng.randrange(10**6, 10**9)
        self._rate = 1 + world.rng.choice([-0.045, -0.01, 0, 0, 0.01, 0.045])
        self._inbox: deque[Input] = deque()
        self._hear: dict[int, tuple[ClientReader, Callable[[Any], None]]] = {}
        self._held: dict[int, deque[bytes]] = {}
        """What clients sent that the node has not read."""
        self._stopped: set[int] = set()
        """Clients from which the node does not read."""
        self._read_at: dict[int, int] = {}
        """When it has read something from a client."""
        self._passes = PASSES_US[0]
        self._is_pass_due = False
        self._timer_at = 0
        self._disk_at = 0
        self._told_index = 0

    # --- state ---

    @property
    def mono(self) -> int:
        """This machine's clock; it counts pauses."""
        return self._base + int(self.world.now * self._rate)

    @property
    def now(self) -> Now:
        """Both clocks."""
        return Now(self.mono, START_WALL + self.world.now + self.wall_offset)

    @property
    def raft(self) -> Raft | None:
        """Its Raft, while the process is there."""
        if self.node is None:
            return None
        raft = self.node.membership.metadata.raft
        assert isinstance(raft, Raft)
        return raft

    @property
    def identity(self) -> Identity:
        """Who its folder says it is."""
        return self.node.membership.identity if self.node is not None else Identity(b"")

    def take_applied(self) -> list[tuple[int, str]]:
        """The state as it is now, if it has changed since the last call."""
        node = self.node
        if node is None or node.membership.raft.applied_index == self._told_index:
            return []
        self._told_index = node.membership.raft.applied_index
        return [(self._told_index, fingerprint(node.state))]

    @property
    def pass_us(self) -> int:
        """How long a pass takes at most."""
        return max(self._passes)

    @property
    def is_paused(self) -> bool:
        """Does the process stand still?"""
        return self.paused_until > self.world.now

    @property
    def is_introduced(self) -> bool:
        """Does it take links?"""
        return self.card != NOBODY

    @property
    def phase(self) -> str:
        """How far it is."""
        return self.node.membership.phase if self.node is not None else "down"

    # --- life ---

    def start(self) -> None:
        """Start the process on what the disk holds."""
        assert self.node is None, self.name
        world = self.world
        self.life += 1
        self.stopped = ""
        self.disk = SlowDisk(world.rng, self.disk)
        self.disk.median_us = world.rng.choice([200, 2_000, 10_000])
        self.disk.now = world.now
        self._passes = world.rng.choice(PASSES_US)
        self.effects_left = -1
        rng = SeededRng(f"{world.seed} {self.name} {self.life}")
        node = world.make_node(
            self.now,
            name=self.name,
            settings=world.settings,
            rng=rng,
            cluster=replace(self.options, known=self.known),
        )
        fresh = bootstrap_commands("guest", salted_hash(b"guest", b"salt"), "/", ("administrator",))
        self.node = node
        node.start(self.now, self.disk, fresh)
        certificate = self.options.death_certificate
        # Snapshots are taken much more often than an installation would want.
        node.membership.raft.options = Options(certificate, world.meta_log_bytes)
        self._run(lambda *_: None)
        self._tick_later(self.life)

    def end(self, disk: MemoryDisk) -> None:
        """The process is gone; the next one finds this disk."""
        node = self.node
        if node is not None:
            # Deliveries hold their queues where the collector cannot see it.
            for channel in node.channels.values():
                channel.core.release()
            for core in node.switch.holders():
                core.release()
        self.node = None
        self.life += 1
        self.paused_until = 0
        self.card = NOBODY
        self.dialled = set()
        self.is_open = False
        self._inbox.clear()
        self._hear.clear()
        self._held.clear()
        self._stopped.clear()
        self._read_at.clear()
        self._is_pass_due = False
        self._timer_at = self._disk_at = self._told_index = 0
        self.disk = SlowDisk(self.world.rng, disk)

    def reboot_clocks(self) -> None:
        """The machine was off: its clock begins again."""
        self._base = self.world.rng.randrange(10**6, 10**9) - int(self.world.now * self._rate)

    def pause(self, until: int) -> None:
        """Let the process stand still."""
        if not self.is_paused:
            self.paused_since = self.world.now
        self.paused_until = max(self.paused_until, until)
        self.world.links.on_pause(self.name, until)
        self._later(until - self.world.now, self.resume)

    def resume(self) -> None:
        """Everything that came meanwhile is served at once."""
        while self._inbox and not self.is_paused and self.node is not None:
            self._run(self._inbox.popleft())
        if self.node is not None and not self.is_paused:
            self._run(self._serve_timer)

    # --- inputs ---

    def input(self, do: Input) -> None:
        """Something happens to the process."""
        if self.node is None:
            return
        if self.is_paused or self._inbox:
            self._inbox.append(do)
        else:
            self._run(do)

    def _run(self, do: Input) -> None:
        node = self.node
        if node is None:
            return
        self.disk.now = self.world.now
        try:
            do(node, self.now)
            self._drain(node)
        except PowerLost:
            self.world.kill(self.name, "between two effects")
            return
        if self.node is node:
            self._soon()

    def _later(self, delay: int, do: Callable[[], None]) -> None:
        """For this life of the process; while it is paused nothing happens."""
        life = self.life

        def happen() -> None:
            if self.life != life or self.node is None:
                return
            if self.is_paused:
                self.world.at(self.paused_until, happen)
            else:
                do()

        self.world.after(delay, happen)

    def _soon(self) -> None:
        if not self._is_pass_due:
            self._is_pass_due = True
            self._later(self.world.rng.choice(self._passes), self._end_pass)

    def _end_pass(self) -> None:
        self._is_pass_due = False
        node = self.node
        assert node is not None
        self.disk.now = self.world.now
        try:
            node.end_pass(self.now)
            self.world.passed(self)
            self._drain(node)
        except PowerLost:
            self.world.kill(self.name, "between two effects")
            return
        if self.node is not node:
            return
        self.world.check(self)
        if node.needs_pass:
            self._soon()
        self._arm(node)

    def _arm(self, node: Node) -> None:
        world = self.world
        due = self.disk.next_due()
        if due is not None and (not self._disk_at or due < self._disk_at):
            self._disk_at = at = max(due, world.now)
            self._later(at - world.now, lambda: self._report_disk(at))
        timer = node.next_timer()
        if timer is not None:
            wanted = world.now + max(0, int((timer - self.mono) / self._rate) + 1)
            if not self._timer_at or wanted < self._timer_at:
                self._timer_at = wanted
                self._later(wanted - world.now, lambda: self._on_timer(wanted))

    def _on_timer(self, at: int) -> None:
        if at == self._timer_at:
            self._timer_at = 0
            self._run(self._serve_timer)

    def _serve_timer(self, node: Node, now: Now) -> None:
        node.on_timer(now)
        # Mirrors hear of marks at once, not at the end of the pass.
        self.world.passed(self)

    def _report_disk(self, at: int) -> None:
        if at != self._disk_at:
            return
        self._disk_at = 0
        for token in self.disk.finish_due(self.world.now):
            self._run(lambda node, now, token=token: node.disk_done(now, token))  # type: ignore[misc]
        if self.node is not None:
            self._arm(self.node)

    def _tick_later(self, life: int) -> None:
        def tick() -> None:
            self._run(serve)
            if self.life == life:
                self._tick_later(life)

        def serve(node: Node, now: Now) -> None:
            node.tick(now)
            self.world.passed(self)

        self._later(int(limits.tick_us / self._rate), tick)

    # --- clients ---

    def connect(self, conn: int, hear: Callable[[Any], None], reader: ClientReader | None = None) -> None:
        """Take in a client; what it receives goes to `hear`. It speaks AMQP, unless it brings its reader."""
        assert self.is_open, self.name
        self._hear[conn] = (Reader() if reader is None else reader, hear)
        peer = Peer("127.0.0.1", 10_000 + conn % 50_000, "127.0.0.1", 5672)
        self.input(lambda node, now: node.client_open(now, conn, peer))

    def send(self, conn: int, data: bytes) -> None:
        """Bytes of a client; they wait while the node does not read from it."""
        self._held.setdefault(conn, deque()).append(data)
        self._feed(conn)

    def _feed(self, conn: int) -> None:
        def take(node: Node, now: Now) -> None:
            held = self._held.get(conn, ())
            while held and conn not in self._stopped and conn in node.connections and conn in self._hear:
                self._read_at[conn] = self.world.now
                node.client_bytes(now, conn, memoryview(held.popleft()))
                self._drain(node)

        self.input(take)

    def read_at(self, conn: int) -> int:
        """When the node has read the last bytes of a client: it may have let them wait."""
        return self._read_at.get(conn, 0)

    def hang_up(self, conn: int) -> None:
        """A client's socket is gone."""
        if self._hear.pop(conn, None) is not None:
            self._held.pop(conn, None)
            self._stopped.discard(conn)
            self.input(lambda node, now: node.client_closed(now, conn))

    # --- effects ---

    def _drain(self, node: Node) -> None:
        while node.effects and self.node is node:
            for effect in node.effects.take():
                if self.effects_left == 0:
                    raise PowerLost
                self.effects_left -= self.effects_left > 0
                self._carry_out(node, effect)
                if self.node is not node:
                    return

    def _carry_out(self, node: Node, effect: fx.Effect) -> None:
        world = self.world
        match effect:
            case fx.Write(conn):
                self._write(node, conn)
            case fx.Append(file, data):
                self.disk.append(file, data)
            case fx.Flush(file, token):
                self.disk.flush(file, token)
            case fx.Replace(file, data, token):
                self.disk.replace(file, data, token)
            case fx.Remove(file):
                self.disk.remove(file)
            case fx.Send(peer, lane, payload):
                world.links.send(self.name, peer, lane, payload)
            case fx.Note(level, text, fields):
                self.notes.append(f"{level} {text} {fields}")
                if fields.get("event") in DAMAGES:
                    raise Violation(f"{self.name}: no disk was harmed, and {text}")
            case fx.Read():
                self._read(effect)
            case _:
                self._carry_out_rare(node, effect)

    def _carry_out_rare(self, node: Node, effect: fx.Effect) -> None:
        world = self.world
        match effect:
            case fx.Close(conn):
                self._write(node, conn)
                world.after(0, lambda: self.hang_up(conn))
            case fx.Pause(conn):
                self._stopped.add(conn)
            case fx.Resume(conn):
                self._stopped.discard(conn)
                world.after(0, lambda: self._feed(conn))
            case fx.Introduce(identity, start, cluster):
                self.card = (identity, start, cluster)
                world.checker.introduced(self)
            case fx.Dial(address):
                self.dialled.add(address)
                self.known = tuple(sorted(self.dialled))
                world.links.dial(self.name, address)
            case fx.Undial(address):
                self.dialled.discard(address)
                self.known = tuple(sorted(self.dialled))
            case fx.Cut(peer, _):
                world.after(0, lambda: world.links.close(self.name, peer))
            case fx.Doors(is_open):
                self.is_open = is_open
                world.say(f"{self.name} {'opens' if is_open else 'closes'} its doors")
                if is_open:
                    world.checker.doors_opened(self)
            case fx.Stop(reason):
                life = self.life
                world.say(f"{self.name} stops: {reason}")
                world.after(0, lambda: world.stop(self.name, reason) if self.life == life else None)
            case _:
                raise NotImplementedError(type(effect).__name__)

    def _write(self, node: Node, conn: int) -> None:
        data = b"".join(node.take_output(conn))
        found = self._hear.get(conn)
        if found is not None:
            reader, hear = found
            for arrival in reader.feed(data):
                hear(arrival)

    def _read(self, effect: fx.Read) -> None:
        """The content of this moment, reported later."""
        data, error = None, None
        try:
            data = self.disk.read_part(effect.file, effect.offset, effect.length)
        except ReadFailed as failed:
            error = str(failed)
        except AssertionError:
            error = f"there is no {effect.file}"
        self._later(
            self.world.rng.choice((0, 500, 5_000)),
            lambda: self._run(lambda node, now: node.disk_read(now, effect.token, data, error)),
        )
