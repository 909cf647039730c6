"""One simulated node of a group: the shipped Raft with a disk, a clock and clients, from start to crash.

What happens to it is decided by the world; it carries out effects and keeps the timers. Inputs are gathered
for a moment before `end_pass`, as a loop does that reads all its sockets first.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrormq.cluster import identity as ids
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft.raft import Myself, Raft
from mirrormq.sim.disk import MemoryDisk, SlowDisk
from mirrormq.sim.machine import SeededRng
from mirrormq.sim.raftkv import KvMachine, Op

if TYPE_CHECKING:
    from mirrormq.sim.raftworld import RaftWorld


class _Outbox:
    """The disk as Raft sees it in one life; a read finds what the file holds when it is asked for."""

    def __init__(self, node: "RaftNode", disk: SlowDisk) -> None:
        self._node = node
        self._disk = disk

    def append(self, file: str, data: bytes) -> None:
        self._disk.append(file, data)

    def flush(self, file: str, token: int) -> None:
        self._disk.flush(file, token)

    def replace(self, file: str, data: bytes | bytearray, token: int) -> None:
        self._disk.replace(file, data, token)

    def remove(self, file: str) -> None:
        self._disk.remove(file)

    def read(self, file: str, offset: int, length: int, token: int) -> None:
        data = self._disk.read_part(file, offset, length)
        delay = self._node.world.rng.randrange(2_000) + self._disk.stalled_us
        self._node.later(delay, lambda raft: raft.disk_read(token, data))


class RaftNode:
    """A machine of the world; `raft` is None while its process is down."""

    def __init__(self, world: "RaftWorld", name: str) -> None:
        """An empty disk."""
        self.world = world
        self.name = name
        self.raft: Raft | None = None
        self.machine = KvMachine()
        self.life = 0
        self.paused_until = 0
        self.disk = SlowDisk(world.rng)
        self.disk.median_us = world.rng.choice([200, 2_000, 10_000])
        self.identity = ids.Identity(b"")
        self.is_rolled_back = False
        self.is_wiped = False
        """Its disk is empty, and the group has not taken it in again."""
        self.old_disks: list[MemoryDisk] = []
        self.waiting: list[tuple[int, Op, tuple[bool, int, int]]] = []
        """Answers that are not durable yet."""
        self.removed: list[int] = []
        """Where this life was told that it was removed."""
        self.is_refused = False
        """Whether this life was told that its folder is refused."""
        self._base = world.rng.randrange(1, 10**9)
        self._since = 0
        self._rate = 1 + world.rng.choice([-0.05, -0.01, 0, 0, 0.01, 0.05])
        self._pass_at: int | None = None
        self._timer_at = 0

    @property
    def mono(self) -> int:
        """This machine's clock; it counts pauses."""
        return self._base + int((self.world.now - self._since) * self._rate)

    def run_clock_at(self, rate: float) -> None:
        """From now on this machine's clock runs faster or slower than true time."""
        self._base, self._since, self._rate = self.mono, self.world.now, rate
        self.soon(lambda _: None)

    @property
    def is_up(self) -> bool:
        """Is the process there, if perhaps paused?"""
        return self.raft is not None

    def take_applied(self) -> list[tuple[int, str]]:
        """Indices applied since the last call, each with a fingerprint of the state after it."""
        applied, self.machine.applied = self.machine.applied, []
        return applied

    def start(self, *, may_form: bool = False, force_sole: bool = False) -> None:
        """Start the process on what the disk holds; `force_sole`: without the others, as somebody else."""
        assert self.raft is None
        self.life += 1
        rng = SeededRng(f"{self.world.seed} {self.name} {self.life}")
        known = (
            ids.decode_identity(self.disk.read(ids.FILE))
            if ids.FILE in self.disk.list("")
            else ids.new_identity(rng)
        )
        self.identity = ids.begin_start(ids.forced(known, rng) if force_sole else known, rng)
        # Flushed before the first link opens.
        self.disk = SlowDisk(
            self.world.rng, _with_file(self.disk, ids.FILE, ids.encode_identity(self.identity))
        )
        self.disk.median_us = self.world.rng.choice([200, 2_000, 10_000])
        self.disk.now = self.world.now
        self.machine = KvMachine()
        self.waiting = []
        self.removed = []
        self.is_refused = False
        me = Myself(self.name, self.identity.identity, self.identity.start, self.identity.tokens)
        raft = self.world.make_raft(
            me, self.machine, _Outbox(self, self.disk), rng, options=self.world.options
        )
        self.raft = raft
        raft.start(self.mono, self.disk, may_form=may_form, force_sole=force_sole)
        self._pass_at = None
        self._soon()

    def stop(self, disk: MemoryDisk) -> None:
        """The process is gone; the next one finds this disk."""
        self.raft = None
        self.life += 1
        self.paused_until = 0
        self.disk = SlowDisk(self.world.rng, disk)

    def later(self, delay: int, do: Callable[[Raft], object]) -> None:
        """Have something happen to this life of the process; it waits while the process is paused."""
        life = self.life

        def happen() -> None:
            if self.life != life or self.raft is None:
                return
            if self.paused_until > self.world.now:
                self.world.at(self.paused_until, happen)
                return
            do(self.raft)
            self._soon()

        self.world.at(self.world.now + delay, happen)

    def soon(self, do: Callable[[Raft], object]) -> None:
        """The same, at once."""
        self.later(0, do)

    def _soon(self) -> None:
        if self._pass_at is None:
            self._pass_at = self.world.now + self.world.rng.choice([0, 20, 300])
            self._wake(self._pass_at, self._end_pass)

    def _wake(self, at: int, do: Callable[[], None]) -> None:
        life = self.life

        def happen() -> None:
            if self.life != life:
                return
            if self.paused_until > self.world.now:
                self.world.at(self.paused_until, happen)
            else:
                do()

        self.world.at(at, happen)

    def _end_pass(self) -> None:
        raft = self.raft
        assert raft is not None
        self._pass_at = None
        self.disk.now = self.world.now
        raft.end_pass(self.mono)
        outgoing, raft.outgoing = raft.outgoing, []
        for peer, frame in outgoing:
            self.world.transmit(self, peer, frame)
        events, raft.events = raft.events, []
        for event in events:
            self._on_event(raft, event)
        self._answer_durable(raft)
        self.world.check(self)
        if self.raft is not raft:
            return
        self._arm(raft)
        if raft.needs_pass:
            self._soon()

    def _arm(self, raft: Raft) -> None:
        due = self.disk.next_due()
        if due is not None:
            self._wake(max(due, self.world.now), self._report_disk)
        delay = max(0, int((raft.timer_at - self.mono) / self._rate) + 1)
        at = self.world.now + delay
        if at != self._timer_at or delay == 0:
            self._timer_at = at
            self._wake(at, lambda: self._on_timer(at))

    def _on_timer(self, at: int) -> None:
        if at == self._timer_at and self.raft is not None:
            self._timer_at = 0
            self.raft.on_timer(self.mono)
            self._soon()

    def _report_disk(self) -> None:
        if self.raft is not None:
            for token in self.disk.finish_due(self.world.now):
                self.raft.disk_done(self.mono, token)
                self._soon()

    def _on_event(self, raft: Raft, event: ev.Event) -> None:
        self.world.say(f"{self.name} {event}", is_loud=not isinstance(getattr(event, "ref", None), Op))
        if isinstance(event, ev.Applied) and isinstance(event.ref, Op):
            assert isinstance(event.result, tuple)
            self.waiting.append((event.index, event.ref, event.result))
        elif isinstance(event, ev.ReadReady) and isinstance(event.ref, Op):
            version, writer = self.machine.keys.get(event.ref.key, (0, 0))
            # With one voter the state runs ahead of the disk: what a client sees must not be lost.
            self.waiting.append((raft.applied_index, event.ref, (True, version, writer)))
        elif isinstance(event, ev.Refused) and isinstance(event.ref, Op):
            self.world.retry(event.ref, event.leader)
        elif isinstance(event, ev.Removed):
            self.removed.append(event.index)
        elif isinstance(event, ev.FolderRefused):
            self.is_refused = True
        elif isinstance(event, ev.Registered):
            self.identity = ids.on_recorded(self.identity, event.token)
            self.disk.replace(ids.FILE, ids.encode_identity(self.identity), -self.life)

    def _answer_durable(self, raft: Raft) -> None:
        ready = [one for one in self.waiting if one[0] <= raft.durable_index]
        self.waiting = [one for one in self.waiting if one[0] > raft.durable_index]
        for _, op, (is_done, version, writer) in ready:
            self.world.answer(op, version, writer, is_done=is_done)


def _with_file(disk: MemoryDisk, name: str, data: bytes) -> MemoryDisk:
    """A disk with one more durable file."""
    disk.replace(name, data, -1)
    while disk.finish_next() is not None:
        pass
    return disk
