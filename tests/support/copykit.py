"""Copies of mirrored queues without a broker: a node's journal, logs and recycler, and a maker of records."""

import random
import struct
from collections import deque
from types import SimpleNamespace
from typing import Any

from mirrormq.base.staggered import StaggeredDict
from mirrormq.base.types import Now
from mirrormq.broker.readback import ReadBack
from mirrormq.kernel import records
from mirrormq.kernel.cores import QueueCore, Worklist
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.message import Message
from mirrormq.log import cursors, dying, journal
from mirrormq.log.copylog import CopyLog
from mirrormq.log.cursors import Cursor
from mirrormq.log.durable import DurableLog
from mirrormq.log.dying import Death
from mirrormq.log.fold import PURGE, encode_epoch
from mirrormq.log.inspect import records_in
from mirrormq.log.journal import Journal
from mirrormq.log.recent import RecentPool
from mirrormq.log.recovery import Owner, Recovery
from mirrormq.log.recycler import Recycler
from mirrormq.log.segments import Segments
from mirrormq.sim.disk import MemoryDisk
from tests.support.kernelkit import NO_PROPERTIES, PERSISTENT

QUEUE = 7
WALL = 1_700_000_000_000_000
HOME = records.PID_OF_HOMES | 5 << 40 | 77
_U64 = struct.Struct("<Q")


def new_core(max_priority: int = 0) -> QueueCore:
    """An empty queue."""
    return QueueCore(Worklist(), Graveyard(), None, max_priority)


class CopyNode:
    """A node that holds logs: mirrored ones in `copies`, and plain ones with their queues in `cores`."""

    def __init__(self, disk=None, mirrored=(QUEUE,), plain=(), *, priorities: int = 0) -> None:
        self.disk = MemoryDisk() if disk is None else disk
        self.now = Now(1_000_000, WALL)
        self._token = 0
        self._reads: deque[tuple[Any, ...]] = deque()
        self.journal = Journal(self.disk, self._next_token)
        self.logs: StaggeredDict[int, DurableLog] = StaggeredDict(0)
        for key in (*mirrored, *plain):
            self.logs[key] = DurableLog(self.journal, Segments(self.disk, key))
        self.pool = RecentPool()
        self.copies = {key: CopyLog(self.logs[key], self.pool) for key in mirrored}
        self.cores = {key: new_core(priorities) for key in plain}
        self.recycler = Recycler(self.disk, self.read, self._next_token, journal=self.journal, logs=self.logs)
        owners = {key: Owner(f"queue {key}", self.cores.get(key), log) for key, log in self.logs.items()}
        self.recovery = Recovery(self.disk, owners)
        self.found = self.recovery.run()
        self.journal.start(
            self.found.next_serial, self.found.serials, self.found.previous_end, self.logs.values()
        )
        self.journal.ends.update(self.recovery.ends)
        self.recycler.orphans += self.recovery.orphans
        self.recycler.kept = self.recovery.kept
        self.damage = {key: owner.damage for key, owner in owners.items()}

    @property
    def copy(self) -> CopyLog:
        return self.copies[QUEUE]

    @property
    def log(self) -> DurableLog:
        return self.logs[QUEUE]

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def read(self, file, offset, length, done) -> None:
        """Read later, as a real disk does."""
        self.journal.before_read(file)
        self._reads.append((file, offset, length, done))

    def answer_reads(self) -> bool:
        """Answer one read."""
        if not self._reads:
            return False
        file, offset, length, done = self._reads.popleft()
        if self.disk.list(file):
            done(self.disk.read_part(file, offset, length), None)
        else:
            done(None, "No such file or directory")
        return True

    def end_pass(self) -> None:
        """Hand over what waits; flushes begin but none ends."""
        self.now = Now(self.now.mono + 1_000, self.now.wall + 1_000)
        self.journal.commit(self.now)
        self.recycler.step()

    def finish_one(self) -> bool:
        """One flush or replace ends."""
        token = self.disk.finish_next()
        if token is None:
            return False
        assert self.journal.flushed(token, self.now) or self.recycler.done(token)
        return True

    def run(self) -> None:
        """Until nothing is left to do."""
        self.now = Now(self.now.mono + 10_000_000, self.now.wall + 1_000_000)
        while True:
            self.end_pass()
            if not self.finish_one() and not self.answer_reads():
                return

    def tick(self) -> None:
        self.recycler.tick(self.now)
        self.run()

    def read_all(self, start: int, max_bytes: int = 1 << 30, key: int = QUEUE) -> list[bytes]:
        """Every batch from `start` on."""
        copy = self.copies[key]
        out: list[bytes] = []
        while start <= copy.end:
            answers: list[Any] = []
            copy.read(start, max_bytes, collect(answers), read=self.read)
            while not answers and self.answer_reads():
                pass
            [(batches, error)] = answers
            assert error is None, error
            assert batches
            out += batches
            start = records.last_seq(batches[-1], 0) + 1
        return out

    def promote(self, core=None, *, is_restarted: bool = False, key: int = QUEUE) -> QueueCore:
        """Make this node the master."""
        core = new_core() if core is None else core
        answers: list[Any] = []
        self.copies[key].become_master()
        self.copies[key].fill_queue(core, self.read, answers.append, is_restarted=is_restarted)
        while not answers and self.answer_reads():
            pass
        assert answers == [None]
        return core

    def messages(self, core: QueueCore, key: int = QUEUE) -> list[tuple[int, bytes, bool]]:
        """(seq, body, redelivered) of what is ready, in order of delivery; the queue is empty afterwards."""
        return drain(self, core, self.logs[key])


def collect(answers: list[Any]) -> Any:
    """A callback that notes what it is given."""
    return lambda *answer: answers.append(answer)


class _Host:
    """What reading back needs of a broker."""

    def __init__(self, node: CopyNode) -> None:
        self.read = node.read


def drain(node: CopyNode, core: QueueCore, log: DurableLog) -> list[tuple[int, bytes, bool]]:
    """Deliver everything that is ready, reading back what lies on disk."""
    from tests.support.kernelkit import Kit

    kit = Kit()
    failed: list[str] = []
    queue = SimpleNamespace(log=log, fail=failed.append)
    back = ReadBack(_Host(node), core, log, queue)  # type: ignore[arg-type]
    out = []
    while core.ready:
        seq = core.head_seq()
        if not seq:
            back.start()
            while not core.head_seq() and node.answer_reads():
                pass
            assert not failed, failed
            assert core.head_seq(), "nothing came back"
            continue
        assert core.get(kit.channel, False, 0, 0)
        [(_, again, body)] = kit.delivered()
        out.append((seq, body, again))
    return out


class Maker:
    """Makes batches of all kinds, as the master of a queue does, and knows what they mean."""

    def __init__(self, seed: int, queue_id: int = QUEUE) -> None:
        self.rng = random.Random(seed)
        self.queue_id = queue_id
        self._core = new_core()
        self.numbers = {HOME: 0}
        self.deaths = 0
        self.wall = WALL

    def batch(self, first: int, epoch: int, live: list[int]) -> bytes:
        """Some batch that may follow `first` - 1, with these messages live."""
        self.wall += self.rng.randrange(1_000)
        choice = self.rng.random()
        if choice < 0.5 or not live:
            return self.publishes(first, epoch, self.rng.randrange(1, 6))
        if choice < 0.8:
            count = self.rng.randrange(1, min(len(live), 5) + 1)
            return self.removal(first, epoch, sorted(self.rng.sample(live, count)))
        return self._other(first, epoch, live)

    def publishes(self, first: int, epoch: int, count: int) -> bytes:
        """A batch of messages, some of them forwarded or transient."""
        for at in range(count):
            pid, number = 1, 0
            if self.rng.random() < 0.4:
                pid = HOME
                self.numbers[pid] += self.rng.choice((1, 1, 1, 2))
                number = self.numbers[pid]
            properties = PERSISTENT if self.rng.random() < 0.7 else NO_PROPERTIES
            body = b"%d-%d " % (first + at, epoch) * self.rng.randrange(1, 9)
            self._core.push(Message(b"", b"q", properties, body), pid, number)
        batch, _ = records.encode_publishes(self._core, count, self.queue_id, epoch, first, self.wall)
        self._core.admit(count, first, self.wall)
        self._core.purge()
        return batch

    def removal(self, first: int, epoch: int, seqs: list[int]) -> bytes:
        payload = _U64.pack(self.wall) + b"".join(struct.pack("<QQQ", seq, seq, 1) for seq in seqs)
        return self.record(first, epoch, records.REMOVE, payload)

    def record(self, first: int, epoch: int, kind: int, payload: bytes, flags: int = 0) -> bytes:
        return records.encode_batch(self.queue_id, epoch, first, self.wall, [(kind, flags, payload)])

    def _other(self, first: int, epoch: int, live: list[int]) -> bytes:
        rng = self.rng
        kind = rng.choice(("horizon", "purge", "dying", "requeue", "pubnote", "cursor", "epoch"))
        if kind == "horizon":
            return self.record(first, epoch, records.HORIZON, _U64.pack(first + rng.randrange(-20, 20) % 99))
        if kind == "purge":
            held = sorted(rng.sample(live, len(live) // 2))
            payload = _U64.pack(self.wall) + _U64.pack(first - 1) + b"".join(map(_U64.pack, held))
            return self.record(first, epoch, records.REMOVE, payload, PURGE)
        if kind == "dying":
            self.deaths += 1
            death = Death(rng.choice(live), self.deaths, 3, self.wall, b"dlx", None, (9,))
            return self.record(first, epoch, records.DYING, dying.encode([death]))
        if kind == "requeue":
            return self.record(first, epoch, records.REQUEUE, struct.pack("<QQ", rng.choice(live), 2))
        if kind == "pubnote":
            self.numbers[HOME] += 3
            row = HOME | records.PID_OF_LETTERS
            return self.record(first, epoch, records.PUBNOTE, struct.pack("<QQ", row, self.numbers[HOME]))
        if kind == "cursor":
            cursor = Cursor("c", first, epoch, self.wall, self.wall)
            flags = rng.choice((cursors.HERE, cursors.DROPPED))
            payload = cursors.encode(cursor, Now(0, self.wall))
            return self.record(first, epoch, records.CURSOR, payload, flags)
        return self.record(first, epoch, records.EPOCH, encode_epoch("mirrormq@a")[1])


class Expected:
    """What a list of batches means, worked out record by record."""

    def __init__(self, batches: list[bytes]) -> None:
        self.live: dict[int, bytes] = {}
        self.transient: dict[int, tuple[int, int]] = {}
        self.horizon = self.end = 0
        self.dying: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self.gaps: set[int] = set()
        self.cursors: dict[str, int] = {}
        for batch in batches:
            self._add(batch)

    def _add(self, batch: bytes) -> None:
        head = records.read_head(batch, 0)
        assert head is not None
        at = records.HEAD_BYTES
        for seq, kind, flags, size in records_in(batch, 0, head):
            payload = batch[at + 12 : at + 12 + size]
            at += 12 + size
            self.end = seq
            if kind == records.PUBLISH:
                self._publish(seq, flags, payload)
            elif kind == records.REMOVE and flags == PURGE:
                (upto,) = _U64.unpack_from(payload, 8)
                held = {value for (value,) in _U64.iter_unpack(payload[16:])}
                self._forget([one for one in self.live if one <= upto and one not in held])
            elif kind == records.REMOVE:
                for low, high, _ in struct.iter_unpack("<QQQ", payload[8:]):
                    self._forget([one for one in self.live if low <= one <= high])
            elif kind == records.HORIZON:
                self.horizon = max(self.horizon, _U64.unpack(payload)[0])
            elif kind == records.DYING:
                for death in dying.decode(payload):
                    self.dying[death.seq] = death.number
            elif kind == records.REQUEUE:
                self.counts.update(struct.iter_unpack("<QQ", payload))
            elif kind == records.PUBNOTE:
                row, number = struct.unpack("<QQ", payload)
                self.rows[row] = max(self.rows.get(row, 0), number)
            elif kind == records.CURSOR and flags == cursors.DROPPED:
                self.cursors.pop("c", None)
            elif kind == records.CURSOR:
                self.cursors["c"] = _U64.unpack_from(payload, 8)[0]

    def _publish(self, seq: int, flags: int, payload: bytes) -> None:
        pid, number = struct.unpack_from("<QQ", payload, 16)
        props, route = struct.unpack_from("<IH", payload, 36)
        self.live[seq] = payload[44 + route + props :]
        if not flags & 1:
            self.transient[seq] = (pid, number)
        if pid & records.PID_OF_HOMES:
            row = pid | records.PID_OF_LETTERS
            before = self.rows.get(row, 0)
            self.gaps.update(range(before + 1, number))
            self.rows[row] = number

    def _forget(self, seqs: list[int]) -> None:
        for seq in seqs:
            del self.live[seq]
            self.transient.pop(seq, None)

    def state(self) -> tuple[Any, ...]:
        """Everything a fold must agree with."""
        return (
            self.end,
            sorted(self.live),
            self.horizon,
            {seq: number for seq, number in self.dying.items() if seq in self.live},
            {seq: count for seq, count in self.counts.items() if seq in self.live},
            self.rows,
            sorted(self.gaps),
            self.cursors,
        )


def state_of(fold: Any) -> tuple[Any, ...]:
    """A fold as `Expected.state` tells it."""
    dead = fold.dead
    row = HOME | records.PID_OF_LETTERS
    gaps = fold.refused[row].spans_list() if row in fold.refused else []
    return (
        fold.end,
        [seq for seq in range(1, fold.end + 1) if seq not in dead],
        fold.horizon,
        {seq: death.number for seq, death in fold.dying.items() if seq not in dead},
        {seq: count for seq, count in fold.counts.items() if seq not in dead},
        fold.letters,
        [number for first, last in gaps for number in range(first, last + 1)],
        {cursor.name: cursor.seq for cursor in fold.cursors.cursors()},
    )


def journal_bytes(disk: MemoryDisk) -> int:
    """Bytes of all journal files."""
    return sum(disk.size(name) for name in disk.list(journal.PREFIX))
