"""A whole node under random clients, clocks, crashes and disks, chosen by a seed and checked against the
model.

Guarantee: the same seed gives the same run (`digest`). A broken promise raises `Violation`; the run's last
events are in `trace`.
"""

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.log import journal
from mirrormq.log.disk import LogRefused
from mirrormq.log.journal import Fsync
from mirrormq.log.scan import scan
from mirrormq.node.node import Node
from mirrormq.sim.client import Life, Publish, SimClient, Stats
from mirrormq.sim.disk import DiskFull, MemoryDisk, SlowDisk
from mirrormq.sim.judge import Judge
from mirrormq.sim.machine import Machine, PowerLost
from mirrormq.sim.model import MAYBE, SPECS, Message, ModelQueue, Violation
from mirrormq.sim.session import log_in, method_frame, publish_frames
from mirrormq.wire import methods
from mirrormq.wire.methods import Method

START_WALL = 1_700_000_000_000_000
CLIENTS = 4
FANOUT = "all"
SMALL_LIMITS = {
    "journal_file_bytes": (2_000, 8_000, 40_000),
    "place_bytes_min": (200, 2_000),
    "queue_memory_bytes": (500, 4_000, 1 << 20),
    "window_entries": (4, 32),
    "node_memory_bytes": (2_000, 20_000, 1 << 20),
    "share_memory_bytes_min": (300, 2_000),
    "sweep_entries": (4, 1_000),
    "sweep_pause_us": (1_000, 1_000_000),
    "clock_jump_hold_us": (1_000, 5_000_000),
    "read_back_bytes": (1_000, 10_000),
    "horizon_chunk_min": (2, 8),
    "horizon_chunk_max": (8, 64),
    "segment_bytes_min": (1_000, 4_000),
    "segment_bytes_max": (8_000, 32_000),
    "recycle_slice_bytes": (700, 4_000),
    "meta_log_bytes_max": (2_000, 1 << 20),
}
"""Bounds that matter only for large amounts of data, made small so that a short run passes them often."""


@contextmanager
def small_limits(rng: random.Random, *, is_on: bool) -> Iterator[None]:
    """Run with small bounds, drawn from the seed; or with the shipped ones."""
    chosen = {name: rng.choice(values) for name, values in SMALL_LIMITS.items()} if is_on else {}
    if is_on:
        # Not drawn: the runs of earlier seeds stay what they were.
        chosen["recovery_slice_bytes"] = chosen["recycle_slice_bytes"]
        chosen["checkpoint_logs"] = 2
    before = {name: getattr(limits, name) for name in chosen if hasattr(limits, name)}
    try:
        for name in before:
            setattr(limits, name, chosen[name])
        yield
    finally:
        for name, value in before.items():
            setattr(limits, name, value)


def _noted_on(disk: MemoryDisk) -> tuple[int, int]:
    """Up to where the notes that survived say that the journal was flushed (serial, offset)."""
    found = (0, 0)
    for name in disk.list(journal.PREFIX):
        data = disk.read(name)
        for at, head in scan(data[journal.HEAD_BYTES :]).batches:
            if head[1] == 0:
                for _, _, _, payload in records.other_records(data, journal.HEAD_BYTES + at):
                    found = max(found, journal.read_flushed_note(payload))
    return found


class QueueWorld:
    """One seed."""

    def __init__(
        self,
        seed: int,
        *,
        make_node: type[Node] = Node,
        flips: bool = False,
        exact_marks: bool = False,
        small: bool = True,
        fsync: Fsync = "always",
    ) -> None:
        """`exact_marks`: a message nobody was sent never says it was; `small`: shrink files and windows;
        `fsync`: with another than `always` a power failure may take back what clients were told.
        """
        self.seed = seed
        self.rng = random.Random(seed)
        self.make_node = make_node
        self.flips = flips
        self.exact_marks = exact_marks
        self.small = small
        self.fsync: Fsync = fsync
        self.stats = Stats()
        self.trace: deque[str] = deque(maxlen=60)
        self._digest = hashlib.blake2b(digest_size=16)
        self.queues = {spec.name: ModelQueue(spec) for spec in SPECS}
        self.messages: dict[int, Message] = {}
        self.mono, self.wall = 1_000_000, START_WALL
        self.max_wall = self.wall
        self._last_tick = 0
        self._conn = 0
        self.judge = Judge(self.queues, self.messages, lambda: self.max_wall)
        self.judge.exact_marks = exact_marks
        self.clients: list[SimClient] = []
        self.disk: MemoryDisk = SlowDisk(self.rng)
        self.life = Life(self.queues, self.messages, self.judge, self.stats)
        self._has_failed = False
        self._operations: list[tuple[int, Callable[[SimClient], None]]] = [
            (40, self._publish),
            (25, self._settle),
            (8, self._consume),
            (5, self._get),
            (3, self._cancel),
            (3, self._recover),
            (6, self._end_tx),
            (2, self._purge),
            (2, self._delete),
            (2, self._leave),
        ]
        self._weights = [weight for weight, _ in self._operations]

    @property
    def digest(self) -> str:
        """A fingerprint of everything that happened."""
        return self._digest.hexdigest()

    @property
    def now(self) -> Now:
        """The time of the world."""
        return Now(self.mono, self.wall)

    # --- the run --------------------------------------------------------------------------------

    def run(self, lives: int = 6, steps: int = 90) -> Stats:
        """Several lives of a node, each ended by a crash, and a look at everything in the end."""
        with small_limits(self.rng, is_on=self.small):
            self._start()
            for _ in range(lives):
                self._live(self.rng.randrange(steps // 3, steps * 2))
                self._crash()
            if self.flips:
                self._live(steps)
                self._crash_with_a_flip()
            else:
                self._finish()
        return self.stats

    def note(self, line: str) -> None:
        """One event."""
        self.stats.events += 1
        self.trace.append(f"{self.stats.events} t={self.mono} {line}")
        self._digest.update(line.encode())

    def _start(self) -> None:
        self.life = Life(self.queues, self.messages, self.judge, self.stats)
        self.life.marks_are_exact = self.exact_marks
        try:
            self.machine = self._machine(self.disk)
        except LogRefused as refusal:
            raise Violation(f"the node refuses to start without cause: {refusal}") from refusal
        self.life.passes = lambda: self.machine.passes
        self.machine.read_us = self.rng.choice((0, 500, 20_000))
        if isinstance(self.disk, SlowDisk):
            self.disk.now = self.mono
        self._last_tick = self.mono
        self.clients = [self._connect() for _ in range(CLIENTS)]
        for name, queue in self.queues.items():
            queue.is_auto = False
            self._declare(self.clients[0], name)

    def _machine(self, disk: MemoryDisk) -> Machine:
        return Machine(disk, self.now, make_node=self.make_node, fsync=self.fsync)

    def _live(self, steps: int) -> None:
        crash_at = self.rng.randrange(steps)
        try:
            for step in range(steps):
                for _ in range(self.rng.choice((1, 1, 2, 5))):
                    self._operate()
                if step == crash_at:
                    self.machine.effects_left = self.rng.randrange(12)
                self._pass_time()
                for _ in range(3):
                    self.machine.end_pass()
                    if not self.machine.node.needs_pass:
                        break
                self._replace_gone()
        except PowerLost:
            self._has_failed = True
            self.note("the machine stops between two effects")
        except DiskFull:
            self._has_failed = True
            self.note("the disk is full")

    def _pass_time(self) -> None:
        rng = self.rng
        step = rng.choice((100, 1_000, 5_000, 30_000))
        fault = rng.random()
        if fault < 0.01:
            step = rng.randrange(1_000_000, 100_000_000)
            self.note(f"the machine is suspended for {step} µs")
            self.stats.faults += 1
        elif fault < 0.02:
            jump = rng.choice((-1, 1)) * rng.randrange(1_000, 20_000_000)
            self.wall += jump
            self.note(f"the wall clock steps by {jump} µs")
            self.stats.faults += 1
            self._publish_later_by_an_earlier_clock()
        self.mono += step
        self.wall += step
        self.max_wall = max(self.max_wall, self.wall)
        tick = self.mono - self._last_tick >= limits.tick_us
        if tick:
            self._last_tick = self.mono
        self.machine.pass_time(self.now, tick=tick)

    def _publish_later_by_an_earlier_clock(self) -> None:
        """A publish waits while its client is parked; its time runs from when the node takes it."""
        for queue in self.queues.values():
            for entry in queue.entries.values():
                if not entry.sure:
                    entry.message.sent_wall = min(entry.message.sent_wall, self.wall)

    def _replace_gone(self) -> None:
        for at, client in enumerate(self.clients):
            if client.is_gone or client.conn in self.machine.closed:
                self.note(f"client {client.conn} was closed: {self.life.closes[-1:]}")
                self.life.hung_up += 1
                self.machine.hang_up(client.conn)
                self.clients[at] = self._connect()

    # --- crashes --------------------------------------------------------------------------------

    def _crash(self) -> None:
        rng = self.rng
        # A node that stopped between two effects has no orderly end.
        kind = rng.choice(("power", "power", "power", "kill", "kill" if self._has_failed else "stop"))
        self._has_failed = False
        self.stats.faults += 1
        self.note(f"crash: {kind}")
        if kind == "stop":
            self._stop()
        before = self.machine.disk
        self.machine.abandon()
        if kind == "power":
            after = before.crash(lambda most: rng.randint(0, most), lose_pages=rng.random() < 0.5)
            self.mono = rng.randrange(1_000_000)
        else:
            after = before.restart()
        self.disk = SlowDisk(rng, after)
        sums = ((name, hashlib.blake2b(self.disk.read(name), digest_size=4)) for name in self.disk.list(""))
        self.note(" ".join(f"{name}:{made.hexdigest()}" for name, made in sums))
        if kind == "power" and self.fsync != "always":
            for queue in self.queues.values():
                queue.forget_promises()
        copy = self._machine(self.disk.copy())
        lines = self.judge.judge(copy, crashed=True, is_durable=kind == "power")
        self.note("found " + ", ".join(lines))
        self._start()

    def _stop(self) -> None:
        """An orderly end: clients are told, everything is flushed."""
        self.machine.effects_left = -1
        try:
            self.machine.node.drain(self.now, "stopping")
            self.machine.settle()
        except DiskFull:
            self.note("the disk is full")

    def _crash_with_a_flip(self) -> None:
        """Power failure, and a damaged bit in what the journal knows to be flushed: noticed, contained."""
        disk = self.machine.disk.crash(lambda _: 0)
        serial, offset = _noted_on(disk)
        places = [
            (name, at)
            for name in disk.list(journal.PREFIX)
            for at in range(journal.HEAD_BYTES, disk.durable_size(name))
            if (journal.serial_of(name) or 0) < serial or (journal.serial_of(name) == serial and at < offset)
        ]
        if not places:
            return
        name, at = self.rng.choice(places)
        bit = 1 << self.rng.randrange(8)
        self.note(f"crash: power, and bit {bit} flips in {name} at {at}")
        self.stats.faults += 1
        disk.damage(name, at, bit)
        self.judge.expects_damage = True
        copy = self._machine(disk)
        self.judge.judge(copy, crashed=True, is_durable=True)
        if len(self.judge.damaged) > 1:
            raise Violation(f"one bit damages {sorted(self.judge.damaged)}")

    def _finish(self) -> None:
        """Let everything come to rest, then look at what the live node has."""
        self._live_gently()
        for client in self.clients:
            self.machine.hang_up(client.conn)
        self.machine.settle()
        lines = self.judge.judge(self.machine, crashed=False, is_durable=False)
        self.note("at the end " + ", ".join(lines))
        self.machine.abandon()

    def _live_gently(self) -> None:
        self.machine.effects_left = -1
        for _ in range(30):
            self._operate()
            self._pass_time()
            self.machine.end_pass()
            self._replace_gone()
        self.machine.settle()

    # --- clients --------------------------------------------------------------------------------

    def _connect(self) -> SimClient:
        self._conn += 1
        mode = self.rng.choice(("confirm", "confirm", "confirm", "tx", "plain"))
        client = SimClient(self._conn, mode, self.life)
        last = {"confirm": methods.ConfirmSelectOk, "tx": methods.TxSelectOk, "plain": methods.ChannelOpenOk}
        client.waits_for = last[mode]
        self.machine.connect(client.conn, lambda arrival: self._hear(client, arrival))
        self.machine.send(client.conn, log_in(mode))
        self.note(f"client {client.conn} connects: {mode}")
        return client

    def _hear(self, client: SimClient, arrival: tuple[Method, object]) -> None:
        self._digest.update(repr(arrival).encode())
        client.hear(arrival)  # type: ignore[arg-type]

    def _send(self, client: SimClient, method: Method, answer: type[Method] | None = None) -> None:
        self.note(f"{client.conn}: {method}")
        client.waits_for = answer
        self.machine.send(client.conn, method_frame(method))

    def _operate(self) -> None:
        client = self.rng.choice(self.clients)
        if client.is_open and client.waits_for is None and not client.is_gone:
            [(_, operation)] = self.rng.choices(self._operations, self._weights)
            operation(client)

    def _declare(self, client: SimClient, name: str) -> None:
        """Declare a queue without waiting; the model counts it as there when the answer has come."""
        queue = self.queues[name]
        queue.may_exist = True
        declare = methods.QueueDeclare(queue=name, durable=queue.spec.durable, arguments=queue.spec.arguments)
        client.declaring.append(queue)
        self._send_now(client, declare)
        if queue.spec.in_fanout:
            client.binding.append(queue)
            self._send_now(client, methods.QueueBind(queue=name, exchange="amq.fanout", routing_key=""))

    def _send_now(self, client: SimClient, method: Method) -> None:
        self.note(f"{client.conn}: {method}")
        self.machine.send(client.conn, method_frame(method))

    # --- operations -----------------------------------------------------------------------------

    def _publish(self, client: SimClient) -> None:
        rng = self.rng
        fanout = rng.random() < 0.15
        names = [name for name, queue in self.queues.items() if queue.spec.in_fanout]
        name = rng.choice(list(self.queues))
        targets = names if fanout else [name]
        frames = []
        for _ in range(rng.choice((1, 1, 3, 10))):
            number = len(self.messages) + 1
            message = Message(
                number,
                persistent=rng.random() < 0.8,
                priority=rng.choice((0, 0, 1, 3, 9)),
                ttl_us=rng.choice((1_000_000, 10_000_000)) if rng.random() < 0.05 else None,
                size=rng.choice((4, 20, 100, 700, 9_000)) if rng.random() < 0.3 else 10,
                sent_wall=self.wall,
                publisher=client.conn,
            )
            self.messages[number] = message
            queues = [self.queues[target] for target in targets]
            entries = [(queue, queue.add(message, by_binding=fanout)) for queue in queues]
            client.published(Publish(message, entries))
            key, exchange = ("", "amq.fanout") if fanout else (name, "")
            frames.append(publish_frames(exchange, key, message.properties, message.body))
        self.note(f"{client.conn}: publish {len(frames)} to {targets}, last {len(self.messages)}")
        self._send_bytes(client, b"".join(frames))

    def _send_bytes(self, client: SimClient, data: bytes) -> None:
        """In one piece or two: a frame may end anywhere."""
        cut = self.rng.randrange(len(data) + 1)
        for part in (data[:cut], data[cut:]):
            if part:
                self.machine.send(client.conn, part)

    def _settle(self, client: SimClient) -> None:
        if not client.held:
            return
        rng = self.rng
        tag = rng.choice(list(client.held))
        multiple = rng.random() < 0.4
        kind = rng.random()
        if kind < 0.7:
            self._send(client, methods.BasicAck(tag, multiple))
            client.settle(tag, multiple=multiple, reject=False)
        elif kind < 0.85:
            self._send(client, methods.BasicNack(tag, multiple, False))
            client.settle(tag, multiple=multiple, reject=True)
        elif client.mode != "tx":
            self._send(client, methods.BasicNack(tag, multiple, True))
            client.requeue(tag, multiple=multiple)

    def _consume(self, client: SimClient) -> None:
        name = self.rng.choice([name for name, queue in self.queues.items() if queue.is_up] or [""])
        if not name or len(client.consumed) > 2:
            return
        self.queues[name].was_touched = True
        tag = f"c{self.stats.events}"
        no_ack = self.rng.random() < 0.05
        client.consumed[tag] = name
        if no_ack:
            client.no_ack.add(tag)
            self.queues[name].is_auto = True
        self._send_now(client, methods.BasicQos(0, self.rng.choice((0, 1, 3, 20)), False))
        self._send(
            client,
            methods.BasicConsume(queue=name, consumer_tag=tag, no_ack=no_ack),
            methods.BasicConsumeOk,
        )

    def _get(self, client: SimClient) -> None:
        name = self.rng.choice([name for name, queue in self.queues.items() if queue.is_up] or [""])
        if name:
            self.queues[name].was_touched = True
            client.get_from = name
            self._send(client, methods.BasicGet(queue=name), methods.BasicGetOk)

    def _cancel(self, client: SimClient) -> None:
        if client.consumed:
            tag = self.rng.choice(list(client.consumed))
            self._send(client, methods.BasicCancel(tag), methods.BasicCancelOk)

    def _recover(self, client: SimClient) -> None:
        if client.mode != "tx":
            client.held.clear()
            self._send(client, methods.BasicRecover(True), methods.BasicRecoverOk)

    def _end_tx(self, client: SimClient) -> None:
        if client.mode != "tx":
            return
        if self.rng.random() < 0.8:
            self._send(client, methods.TxCommit(), methods.TxCommitOk)
        else:
            self._send(client, methods.TxRollback(), methods.TxRollbackOk)
            client.rolled_back()

    def _purge(self, client: SimClient) -> None:
        name = self.rng.choice([name for name, queue in self.queues.items() if queue.is_up] or [""])
        if not name or self.machine.node.connections[client.conn].parked:
            return  # parked: nobody knows what will be in the queue when it is done
        queue = self.queues[name]
        # A client that waits may be thrown out in this very pass: what it holds may be ready or not.
        quiet = {entry for other in self.clients if other.waits_for is None for entry in other.outstanding()}
        held = {entry for other in self.clients for entry in other.outstanding()}
        entries = list(queue.entries.values())
        client.purging = (queue, [(one, one.deliveries) for one in entries if one.sure and one not in held])
        for entry in entries:
            if entry not in quiet:
                entry.removal = max(entry.removal, MAYBE)
        self._send(client, methods.QueuePurge(queue=name), methods.QueuePurgeOk)

    def _delete(self, client: SimClient) -> None:
        queue = self.queues["come-and-go"]
        if queue.is_up:
            client.ending = (queue, [entry for entry in queue.entries.values() if entry.sure])
            queue.ask_end()
            self._send(client, methods.QueueDelete(queue=queue.spec.name), methods.QueueDeleteOk)
        elif not queue.may_exist:
            self._declare(client, queue.spec.name)

    def _leave(self, client: SimClient) -> None:
        self.note(f"client {client.conn} hangs up")
        self.life.hung_up += 1
        self.machine.hang_up(client.conn)
        self.clients[self.clients.index(client)] = self._connect()
