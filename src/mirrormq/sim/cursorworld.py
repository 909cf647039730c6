"""A node whose queues have named cursors, under crashes, recycling and rewriting, chosen by a seed.

The model is the record stream itself: every batch is noted when it is handed to the journal. Whatever
happens to files afterwards, a range read through a cursor must give the noted records, no cursor may move or
vanish but by a record that says so, and an index must answer what counting the noted records answers.
"""

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.broker.queue import Queue
from mirrormq.kernel import records
from mirrormq.log.cursors import CursorRefused, Cursors
from mirrormq.log.durable import DurableLog
from mirrormq.log.inspect import Inspection, records_in
from mirrormq.log.locate import Locator
from mirrormq.log.rangeread import RangeReader
from mirrormq.log.scan import scan
from mirrormq.node.node import Node
from mirrormq.sim.client import Stats
from mirrormq.sim.disk import MemoryDisk, SlowDisk
from mirrormq.sim.machine import Machine, PowerLost
from mirrormq.sim.model import Violation
from mirrormq.sim.queueworld import START_WALL, small_limits
from mirrormq.sim.session import Arrival, log_in, method_frame, publish_frames
from mirrormq.wire import methods

QUEUES = ("one", "two", "three")
CURSORS = ("a", "b", "c")
PERSISTENT = b"\x10\x00\x02"
TRANSIENT = b"\x10\x00\x01"
SMALL_LIMITS = {
    "range_slice_bytes": (300, 5_000),
    "index_mark_bytes": (500, 5_000),
    "segment_rewrite_bytes_max": (8_000, 64_000),
    "segment_dead_bytes_max": (1_000, 20_000),
    "recycle_slice_batches": (2, 300),
    "rewrite_look_segments": (2, 64),
}

Row = tuple[int, int, int, bytes]
"""Epoch, kind, flags and payload of a record."""


class Stream:
    """What was written to one log."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.times: dict[int, int] = {}
        self.durable = 0

    def note(self, batch: bytes) -> None:
        """A batch is handed to the journal."""
        for seq, row, time in rows_of(batch):
            self.rows[seq], self.times[seq] = row, time

    def cut(self, end: int) -> None:
        """A crash took what lies behind `end`."""
        for seq in [seq for seq in self.rows if seq > end]:
            del self.rows[seq], self.times[seq]

    def cursors(self) -> dict[str, tuple[int, bool]]:
        """(position, is lost) by name, as the records say."""
        cursors = Cursors(DurableLog.__new__(DurableLog))
        for seq in sorted(self.rows):
            _, kind, flags, payload = self.rows[seq]
            if kind == records.CURSOR:
                cursors.apply(flags, payload)
        return {cursor.name: (cursor.seq, bool(cursor.lost)) for cursor in cursors.cursors()}


class CursorWorld:
    """One seed."""

    def __init__(self, seed: int, *, make_node: type[Node] = Node) -> None:
        self.rng = random.Random(seed)
        self.make_node = make_node
        self.stats = Stats()
        """`confirms` counts records found again after a crash."""
        self.trace: deque[str] = deque(maxlen=60)
        self.mono, self.wall = 1_000_000, START_WALL
        self.streams: dict[int, Stream] = {}
        self.held: list[int] = []
        self.rewritten = 0
        self.ranges = 0
        self._last_tick = 0

    @property
    def now(self) -> Now:
        """The time of the world."""
        return Now(self.mono, self.wall)

    def run(self, lives: int = 4, steps: int = 120) -> Stats:
        """Several lives of a node, each ended by a crash."""
        with small_limits(self.rng, is_on=True), _more_small_limits(self.rng):
            self._start(SlowDisk(self.rng))
            for _ in range(lives):
                self._live(self.rng.randrange(steps // 3, steps * 2))
                self._crash()
        return self.stats

    def _note(self, line: str) -> None:
        self.stats.events += 1
        self.trace.append(f"{self.stats.events} t={self.mono} {line}")

    # --- one life ---

    def _start(self, disk: MemoryDisk) -> None:
        self.held = []
        self.machine = Machine(disk, self.now, make_node=self._make)
        self.machine.connect(1, self._hear)
        self.machine.send(1, log_in("plain"))
        for name in QUEUES:
            self._send(methods.QueueDeclare(queue=name, durable=True))
        self.machine.settle()
        self._look_at_durable()

    def _make(self, *args: Any, **more: Any) -> Node:
        """A node of which every batch is noted on its way to the journal."""
        node = self.make_node(*args, **more)
        add = node.journal.add

        def noted(log: Any, batch: bytes, *, flush: bool, now: Now) -> tuple[str, int]:
            self.streams.setdefault(log.queue_id, Stream()).note(batch)
            return add(log, batch, flush=flush, now=now)

        node.journal.add = noted  # type: ignore[method-assign]
        return node

    @property
    def digest(self) -> str:
        """A fingerprint of everything that was written."""
        rows = [(key, sorted(stream.rows.items())) for key, stream in sorted(self.streams.items())]
        return hashlib.blake2b(repr(rows).encode(), digest_size=16).hexdigest()

    def _hear(self, arrival: Arrival) -> None:
        method = arrival[0]
        if isinstance(method, methods.BasicGetOk):
            self.held.append(method.delivery_tag)
            self.stats.deliveries += 1

    def _send(self, method: methods.Method) -> None:
        self.machine.send(1, method_frame(method))

    def _live(self, steps: int) -> None:
        stops_at = self.rng.randrange(steps * 2)
        try:
            for step in range(steps):
                for _ in range(self.rng.choice((1, 2, 5))):
                    self._operate()
                if step == stops_at:
                    self.machine.effects_left = self.rng.randrange(12)
                self._pass_time()
                if self.rng.random() < 0.05:
                    self._judge(self.machine, fully=False)
        except PowerLost:
            self._note("the machine stops between two effects")

    def _pass_time(self) -> None:
        step = self.rng.choice((100, 5_000, 200_000, 1_100_000))
        self.mono, self.wall = self.mono + step, self.wall + step
        tick = self.mono - self._last_tick >= limits.tick_us
        self._last_tick = self.mono if tick else self._last_tick
        self.machine.pass_time(self.now, tick=tick)
        self.machine.end_pass()
        self.rewritten = max(self.rewritten, self.machine.node.recycler.rewritten_bytes)
        self._look_at_durable()

    def _look_at_durable(self) -> None:
        for log in self.machine.node.logs.values():
            if log.queue_id in self.streams:
                self.streams[log.queue_id].durable = log.durable

    def _operate(self) -> None:
        kind = self.rng.random()
        name = self.rng.choice(QUEUES)
        if kind < 0.45:
            count = self.rng.choice((1, 3, 20))
            size = self.rng.choice((5, 50, 400))
            properties = self.rng.choice((PERSISTENT, PERSISTENT, TRANSIENT))
            frames = publish_frames("", name, properties, self.rng.randbytes(size))
            self.machine.send(1, frames * count)
            self._note(f"publish {count} of {size} bytes to {name}")
        elif kind < 0.75:
            no_ack = self.rng.random() < 0.7
            for _ in range(self.rng.choice((1, 10, 30))):
                self._send(methods.BasicGet(queue=name, no_ack=no_ack))
        elif kind < 0.85 and self.held:
            self.rng.shuffle(self.held)
            for _ in range(self.rng.choice((1, 3))):
                if self.held and len(self.held) > 2:  # the oldest stay: they hold their segments
                    tag = max(self.held)
                    self.held.remove(tag)
                    self._send(methods.BasicAck(tag, False))
        elif kind < 0.87:
            self._send(methods.QueuePurge(queue=name))
        else:
            self._use_cursor(name)

    def _use_cursor(self, queue: str) -> None:
        rng = self.rng
        found = self.machine.node.vhosts["/"].queues.get(queue)
        if found is None:
            return
        assert isinstance(found, Queue)
        log = found.log
        assert isinstance(log, DurableLog)
        name = rng.choice(CURSORS)
        kind = rng.random()
        try:
            if kind < 0.4:
                at = rng.choice((None, log.low, rng.randint(log.low, log.end + 1)))
                made = log.cursors.open_cursor(name, at, self.now)
                self._note(f"{queue}: cursor {name} stands at {made.seq}")
            elif kind < 0.85:
                at = log.cursors.get(name).seq
                log.cursors.advance(name, rng.randint(at, max(log.durable + 1, at)), self.now)
                self._note(f"{queue}: cursor {name} moves")
            elif kind < 0.95:
                log.cursors.drop(name, self.now)
                self._note(f"{queue}: cursor {name} is dropped")
            else:
                log.cursors.max_bytes = rng.choice((2_000, 20_000, 1 << 30))
        except CursorRefused as refused:
            self._note(f"{queue}: {refused}")

    # --- crashes and what must hold ---

    def _crash(self) -> None:
        rng = self.rng
        self.stats.faults += 1
        is_power = rng.random() < 0.7
        self._note("power failure" if is_power else "killed")
        before = self.machine.disk
        if is_power:
            after = before.crash(lambda most: rng.randint(0, most), lose_pages=rng.random() < 0.5)
        else:
            after = before.restart()
        disk = SlowDisk(rng, after)
        copy = Machine(disk.copy(), self.now, make_node=self._make)
        for log in copy.node.logs.values():
            stream = self.streams.setdefault(log.queue_id, Stream())
            if log.end < stream.durable:
                raise Violation(f"the log ends with {log.end}, {stream.durable} was durable")
            stream.cut(log.end)
            stream.durable = log.end
        self._judge(copy, fully=True)
        names = {key: str(key) for key in copy.node.logs}
        faults = Inspection(disk.copy(), names).verify().faults
        if faults:
            raise Violation(f"an inspection finds {faults}")
        self.stats.confirms += sum(len(stream.rows) for stream in self.streams.values())
        for log in copy.node.logs.values():  # what the copy wrote when it started is not on the other disk
            self.streams[log.queue_id].cut(self.streams[log.queue_id].durable)
        self._start(disk)

    def _judge(self, machine: Machine, *, fully: bool) -> None:
        for vhost in machine.node.vhosts.values():
            for queue in vhost.queues.values():
                if queue.damage is not None:
                    raise Violation(f"{queue.text} is damaged without cause: {queue.damage}")
        for log in list(machine.node.logs.values()):
            stream = self.streams.get(log.queue_id)
            if stream is not None and stream.rows:
                self._judge_log(machine, log, stream, fully=fully)

    def _judge_log(self, machine: Machine, log: DurableLog, stream: Stream, *, fully: bool) -> None:
        found = {cursor.name: (cursor.seq, bool(cursor.lost)) for cursor in log.cursors.cursors()}
        if found != stream.cursors():
            raise Violation(f"cursors are {found}, the records say {stream.cursors()}")
        held = [seq for seq, is_lost in found.values() if not is_lost]
        if held and log.low > min(held):
            raise Violation(f"a cursor stands at {min(held)}, records are kept from {log.low} on")
        end = log.durable + 1
        starts = [seq for seq in held if seq <= end] if fully else held[:1]
        if log.low <= end:
            starts.append(self.rng.randint(log.low, end))
        for start in starts:
            stop = end if fully or start >= end else self.rng.randint(start, end)
            if start <= stop:
                self._check_range(machine, log, stream, (start, stop))
        if fully and log.low < end:
            self._check_index(machine, log, stream)

    def _check_range(self, machine: Machine, log: DurableLog, stream: Stream, span: tuple[int, int]) -> None:
        start, end = span
        self.ranges += 1
        got: dict[int, Row] = {}
        for batch in read_range(log, reading(machine), start, end):
            got.update((seq, row) for seq, row, _ in rows_of(batch))
        wanted = {seq: stream.rows[seq] for seq in range(start, end)}
        if got != wanted:
            wrong = [seq for seq in range(start, end) if got.get(seq) != wanted[seq]]
            raise Violation(f"range {start} to {end}: record {wrong[:1]} differs, {len(got)} were read")

    def _check_index(self, machine: Machine, log: DurableLog, stream: Stream) -> None:
        rng = self.rng
        end = log.durable + 1
        seqs = range(log.low, end)
        where = Locator(log, reading(machine))
        time = rng.randint(stream.times[log.low], stream.times[log.durable] + 1)
        after = (seq for seq in seqs if stream.times[seq] >= time)
        if time > stream.times[log.low]:
            _expect(where.seq_at_time, (time,), next(after, end))
        entry = log.index.at(rng.choice(seqs))
        if entry.seq >= log.low and log.end == log.durable:
            publishes = sum(stream.rows[seq][1] == records.PUBLISH for seq in range(entry.seq, log.end + 1))
            if log.published - entry.publishes != publishes:
                raise Violation(f"{publishes} publishes from {entry.seq} on, and {entry} of {log.published}")


def rows_of(batch: bytes) -> Iterator[tuple[int, Row, int]]:
    """(seq, record, time) of the records of a batch."""
    [(at, head)] = scan(batch).batches
    at += records.HEAD_BYTES
    for seq, kind, flags, size in records_in(batch, 0, head):
        payload = batch[at + 12 : at + 12 + size]
        at += 12 + size
        yield seq, (head[2], kind, flags, payload), head[6]


def reading(machine: Machine) -> Callable[..., None]:
    """Read the disk of a machine at once."""

    def read(file: str, offset: int, length: int, done: Callable[..., None]) -> None:
        if file in machine.disk.list(file):
            done(machine.disk.read_part(file, offset, length), None)
        else:
            done(None, "there is no such file")

    return read


def read_range(log: DurableLog, read: Callable[..., None], start: int, end: int) -> Iterator[bytes]:
    """Batches with exactly the records start <= seq < end."""
    reader = RangeReader(log, start, end)
    while (piece := reader.ask()) is not None:
        answers: list[tuple[bytes | None, str | None]] = []
        read(*piece, lambda data, error, answers=answers: answers.append((data, error)))
        yield from reader.feed(*answers[0])


def _expect(ask: Callable[..., None], arguments: tuple[int, ...], wanted: int) -> None:
    answers: list[tuple[int | None, str | None]] = []
    ask(*arguments, lambda found, error: answers.append((found, error)))
    if answers != [(wanted, None)]:
        raise Violation(f"{ask.__name__}{arguments} is {answers}, not {wanted}")


@contextmanager
def _more_small_limits(rng: random.Random) -> Iterator[None]:
    before = {name: getattr(limits, name) for name in SMALL_LIMITS}
    try:
        for name, values in SMALL_LIMITS.items():
            setattr(limits, name, rng.choice(values))
        yield
    finally:
        for name, value in before.items():
            setattr(limits, name, value)
