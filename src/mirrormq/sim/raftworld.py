"""A group of Raft nodes under virtual time with faulty links, disks, clocks and operators, by seed.

Guarantee: the same seed gives the same run (`digest`). A broken promise raises `Violation`; the last events
are in `trace`. A run is: form the group, faults under load, then heal everything and require progress.
"""

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from mirrormq.base import limits
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft.membership import NON_VOTER, VOTER, WITNESS, Change
from mirrormq.cluster.raft.raft import Options, Raft
from mirrormq.sim.model import Violation
from mirrormq.sim.raftcheck import Checker
from mirrormq.sim.raftkv import History, Op, cas_command
from mirrormq.sim.raftnet import Connection, Network
from mirrormq.sim.raftnode import RaftNode

SECOND = 1_000_000
KEYS = ("a", "b", "c")
SIZES = (1, 3, 3, 3, 3, 4, 5, 5, 7)
SMALL_LIMITS = {
    "raft_append_bytes_max": (120, 600, 1 << 20),
    "raft_trailing_bytes_max": (0, 300, 1 << 20),
    "raft_snapshot_part_bytes": (30, 200, 1 << 18),
    "raft_apply_slice_entries": (3, 1_000),
    "raft_inflight_appends_max": (1, 4, 64),
    "raft_waiting_max": (30, 300),
    "raft_inflight_bytes_max": (100, 1 << 22),
    "raft_resend_us": (2_000_000, 10_000_000),
    "peer_chunk_bytes": (120, 300, 1 << 16),
}
TRIES = 4


@contextmanager
def small_limits(rng: random.Random) -> Iterator[None]:
    """Run with small bounds, so that a short run passes them often."""
    before = {name: getattr(limits, name) for name in SMALL_LIMITS}
    try:
        for name, values in SMALL_LIMITS.items():
            setattr(limits, name, rng.choice(values))
        yield
    finally:
        for name, value in before.items():
            setattr(limits, name, value)


@dataclass
class RaftStats:
    """What a run consisted of."""

    events: int = 0
    faults: int = 0
    commits: int = 0
    reads: int = 0
    elections: int = 0
    changes: int = 0


class RaftWorld:
    """One seed. A directed test passes `size` and drives it by hand."""

    def __init__(self, seed: int, *, make_raft: type[Raft] = Raft, size: int = 0) -> None:
        """`make_raft`: another class plants a bug, or switches a rule off."""
        self.seed = seed
        self.make_raft = make_raft
        self.rng = random.Random(seed)
        self.now = 0
        self.trace: deque[str] = deque(maxlen=400)
        self.stats = RaftStats()
        self.history = History()
        self.net = Network(self.rng, self.at, lambda: self.now)
        certificate = bool(size) or self.rng.random() < 0.8
        self.options = Options(
            death_certificate=certificate, log_bytes_max=self.rng.choice([600, 3_000, 1 << 20])
        )
        self.nodes: dict[str, RaftNode] = {}
        self.checker = Checker(self.nodes)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._ops = 0
        self.open_ops: dict[int, Op] = {}
        for at in range(1, (size or self.rng.choice(SIZES)) + 1):
            self.nodes[f"n{at}"] = RaftNode(self, f"n{at}")
        self.desired: dict[str, str | None] = dict.fromkeys(self.nodes, VOTER)
        """What the operator wants each node to be; None: no member."""
        self.patience = 0
        """How long a node keeps a link whose other end is silent; 0: drawn each time."""
        self.is_loaded = False
        self._is_healed = False

    @property
    def digest(self) -> str:
        """A fingerprint of everything that happened."""
        return self._digest.hexdigest()

    # --- time ---

    def at(self, when: int, do: Callable[[], None]) -> None:
        """Have something happen."""
        assert when >= self.now, (when, self.now)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, do))

    def run_for(self, duration: int) -> None:
        """Let virtual time pass."""
        self.run_until(lambda: False, duration, must=False)

    def run_until(self, condition: Callable[[], bool], duration: int, *, must: bool = True) -> bool:
        """Let time pass until something is true; if it `must` be and is not, there was no progress."""
        end = self.now + duration
        while not condition():
            if not self._heap or self._heap[0][0] > end:
                self.now = end
                if must:
                    raise Violation("no progress")
                return False
            self.now, _, do = heapq.heappop(self._heap)
            do()
            self.stats.events += 1
        return True

    def say(self, text: str, *, is_loud: bool = True) -> None:
        """Remember what happened; what is not loud is only part of the fingerprint."""
        line = f"{self.now / SECOND:9.6f} {text}"
        if is_loud:
            self.trace.append(line)
        self._digest.update(line.encode())

    def check(self, node: RaftNode) -> None:
        """Look at a node after a pass."""
        if node.raft is not None:
            raft = node.raft
            self._digest.update(f"{node.name} {raft.term} {raft.commit_index} {raft.log.last_index}".encode())
        before = len(self.checker.leaders)
        self.checker.check(node)
        self.stats.elections += len(self.checker.leaders) - before
        self.stats.commits = self.checker.last_committed

    # --- nodes and links ---

    def start(self, name: str, *, may_form: bool = False, force_sole: bool = False) -> None:
        """Start a process; links follow."""
        self.say(f"start {name}")
        self.nodes[name].start(may_form=may_form, force_sole=force_sole)
        for other in self.nodes.values():
            if other.name != name:
                self.reconnect(name, other.name, self.rng.randrange(20_000))

    def kill(self, name: str) -> None:
        """The process dies; the machine closes its sockets and keeps what was written."""
        self.say(f"kill {name}")
        node = self.nodes[name]
        node.stop(node.disk.restart())
        for other in list(self.nodes):
            if other != name:
                self._close_end(name, other)

    def power_off(self, name: str, *, lose_all: bool = False) -> None:
        """The machine dies: nobody is told, and what was not flushed is lost or torn."""
        self.say(f"power off {name}")
        node = self.nodes[name]
        if lose_all:
            node.stop(node.disk.crash(lambda _: 0))
        else:
            lose_pages = self.rng.random() < 0.3
            node.stop(node.disk.crash(lambda most: self.rng.randint(0, most), lose_pages=lose_pages))
        for other in list(self.nodes):
            connection = self.net.open.get(self.net.pair(name, other))
            if connection is not None and name in connection.ends:
                connection.ends.discard(name)
                if (name, other) in self.net.cut:
                    # What a cut holds back waits in the memory of its sender.
                    connection.ways[other].clear()
                patience = self.patience or self.rng.randrange(1, 8) * SECOND
                self.at(self.now + patience, self._give_up(connection, other))

    def reconnect(self, one: str, other: str, delay: int) -> None:
        """Open a link when both are up and packets pass; try again until then."""

        def attempt() -> None:
            a, b = self.nodes[one], self.nodes[other]
            old = self.net.open.get(self.net.pair(one, other))
            if not a.is_up or not b.is_up or (old is not None and old.ends == {one, other}):
                return
            is_waiting = max(a.paused_until, b.paused_until) > self.now
            if old is not None and any(old.ways[end].is_busy for end in old.ends):
                # What the dead end sent last, and its end, usually arrive before anything new does.
                is_waiting = is_waiting or self.rng.random() < 0.8
            if is_waiting or not self.net.may_connect(one, other):
                self.reconnect(one, other, 10_000 + self.rng.randrange(100_000))
                return
            if old is not None:
                for end in sorted(old.ends):
                    self._lose(old, end, eof=False)
            connection = self.net.connect(one, other)
            for end, far in ((one, other), (other, one)):
                self._tell_up(connection, end, far)

        self.at(self.now + delay, attempt)

    def reset(self, one: str, other: str) -> None:
        """`one` closes its link to `other`."""
        connection = self.net.open.get(self.net.pair(one, other))
        if connection is not None and one in connection.ends:
            self._lose(connection, one, eof=False)
            self._close_end(one, other, connection)

    def transmit(self, sender: RaftNode, receiver: str, frame: bytes) -> None:
        """A frame leaves a node."""
        connection = self.net.open.get(self.net.pair(sender.name, receiver))
        if connection is None or sender.name not in connection.ends:
            return
        node = self.nodes[receiver]

        def receive(raft: Raft) -> None:
            if receiver in connection.ends:
                raft.receive(node.mono, sender.name, frame)

        def arrive() -> None:
            if receiver in connection.ends:
                node.soon(receive)

        is_bulk = ms.is_bulk(frame) and isinstance(ms.decode(frame), ms.Append | ms.SnapshotPart)
        self.net.send(connection, (sender.name, receiver), arrive, is_bulk=is_bulk)

    def _tell_up(self, connection: Connection, end: str, far: str) -> None:
        node = self.nodes[end]

        def link_up(raft: Raft) -> None:
            if end in connection.ends:
                raft.link_up(node.mono, far)

        node.soon(link_up)

    def _lose(self, connection: Connection, end: str, *, eof: bool) -> None:
        """A side closes its end, or sees that the other has."""
        connection.ends.discard(end)
        node = self.nodes[end]
        far = next(name for name in connection.ways if name != end)
        if node.raft is not None and self.net.open.get(self.net.pair(end, far)) is connection:
            # At once, even if the process is paused: whoever closes a link has given up its lease before.
            if eof:
                node.soon(lambda raft: raft.link_down(node.mono, far, eof=True))
            else:
                node.raft.link_down(node.mono, far, eof=False)
                node.soon(lambda _: None)
        self.reconnect(end, far, 20_000 + self.rng.randrange(100_000))

    def _close_end(self, name: str, other: str, connection: Connection | None = None) -> None:
        """Tell the other side, behind everything on its way, that this side has closed."""
        connection = connection or self.net.open.get(self.net.pair(name, other))
        if connection is None:
            return
        connection.ends.discard(name)
        if other in connection.ends:
            closed = connection

            def ended() -> None:
                if other in closed.ends:
                    self._lose(closed, other, eof=True)

            self.net.end(connection, (name, other), ended)

    def _give_up(self, connection: Connection, end: str) -> Callable[[], None]:
        def give_up() -> None:
            if end in connection.ends:
                self._lose(connection, end, eof=False)

        return give_up

    def isolate(self, name: str) -> None:
        """Cut a node off from everybody, in both directions."""
        for other in self.nodes:
            if other != name:
                self.net.cut.update({(name, other), (other, name)})

    def mend(self) -> None:
        """Let everything pass again."""
        for direction in sorted(self.net.cut):
            self.net.mend(direction)

    # --- clients ---

    def submit(self, node: str, *, is_read: bool) -> Op:
        """A client asks a node."""
        self._ops += 1
        op = self.history.begin(self._ops, self.rng.choice(KEYS), is_read=is_read)
        self.open_ops[op.number] = op
        self._ask(op, node)
        return op

    def answer(self, op: Op, version: int, writer: int, *, is_done: bool) -> None:
        """A node answers."""
        self.open_ops.pop(op.number, None)
        self.history.answer(op, version, writer, is_done=is_done)
        self.stats.reads = self.history.reads

    def retry(self, op: Op, leader: str) -> None:
        """A node has refused and done nothing."""
        if op.tries >= TRIES or leader not in self.nodes:
            self.open_ops.pop(op.number, None)
            return
        self.at(self.now + 1_000, lambda: self._ask(op, leader))

    def _ask(self, op: Op, name: str) -> None:
        op.tries += 1
        op.node = name
        node = self.nodes[name]
        if not node.is_up:
            self.open_ops.pop(op.number, None)
        elif op.is_read:
            node.soon(lambda raft: raft.read(op))
        else:
            command = cas_command(op.key, op.expected, op.number)
            node.soon(lambda raft: raft.propose(command, op))

    # --- the operator ---

    def leader(self) -> RaftNode | None:
        """The newest leader that is not paused."""
        leading = [
            node
            for node in self.nodes.values()
            if node.raft is not None and node.raft.is_leader and node.paused_until <= self.now
        ]
        return max(leading, key=lambda node: node.raft.term if node.raft else 0) if leading else None

    def operate(self) -> None:
        """Ask the leader for one step towards what is desired, if any is missing."""
        leader = self.leader()
        if leader is None or leader.raft is None:
            return
        steps = [step for name in self.nodes if (step := self._step(leader.raft, name)) is not None]
        if steps:
            self.stats.changes += 1
            leader.soon(partial(_ask_change, leader, self.rng.choice(steps)))

    def _step(self, leader: Raft, name: str) -> Change | None:
        """What brings a node nearer to what is desired of it."""
        node, member, role = self.nodes[name], leader.config.find(name), self.desired[name]
        if member is None:
            is_ready = role is not None and node.identity.identity and not node.is_rolled_back
            return Change(name, NON_VOTER, node.identity.identity) if is_ready else None
        is_strange = node.identity.identity not in (b"", member.identity)
        if is_strange or node.is_rolled_back:
            return Change(name, None)
        node.is_wiped = node.is_wiped and not node.is_up
        # Nobody takes voters away while another has lost its disk: that could be one too many.
        is_safe = role == VOTER or not any(one.is_wiped or one.is_rolled_back for one in self.nodes.values())
        return Change(name, role) if member.role != role and is_safe else None

    def is_as_desired(self) -> bool:
        """Has the leader committed what the operator wants?"""
        leader = self.leader()
        if leader is None or leader.raft is None:
            return False
        raft = leader.raft
        wanted = {name: role for name, role in self.desired.items() if role is not None}
        is_known = all(
            member.identity == self.nodes[member.name].identity.identity for member in raft.config.members
        )
        roles = {member.name: member.role for member in raft.config.members}
        return is_known and roles == wanted and raft.config.index <= raft.commit_index

    def form(self) -> None:
        """Start everybody and wait until the group is as desired."""
        for at, name in enumerate(self.nodes):
            self.start(name, may_form=at == 0)
        self.every(100_000, self.operate)
        self.run_until(self.is_as_desired, 60 * SECOND)

    def every(self, period: int, do: Callable[[], None]) -> None:
        """Do something again and again."""

        def again() -> None:
            do()
            self.at(self.now + period, again)

        self.at(self.now + period, again)

    # --- the run ---

    def run(self) -> None:
        """The whole run of a seed."""
        from mirrormq.sim.raftfaults import Faults

        with small_limits(self.rng):
            names = list(self.nodes)
            if len(names) >= 3 and self.rng.random() < 0.3:
                self.desired[names[-1]] = self.rng.choice([WITNESS, NON_VOTER])
            faults = Faults(self)
            self.form()
            self._load()
            faults.run(self.rng.randrange(10, 30) * SECOND)
            self.say("heal")
            self._is_healed = True
            faults.heal()
            self.run_until(self.is_as_desired, 120 * SECOND)
            self._require_progress()
            self.check_end()

    def _load(self) -> None:
        period = self.rng.choice([3_000, 10_000, 40_000])
        names = list(self.nodes)
        self.is_loaded = True

        def ask() -> None:
            if not self.is_loaded or (self._is_healed and self.rng.random() < 0.9):
                return
            leader = self.leader()
            name = leader.name if leader and self.rng.random() < 0.7 else self.rng.choice(names)
            for _ in range(self.rng.choice([1, 1, 1, 5])):
                self.submit(name, is_read=self.rng.random() < 0.3)

        self.every(period, ask)

    def _require_progress(self) -> None:
        before = self.history.acked
        self.run_until(lambda: self.history.acked > before + 3, 20 * SECOND)
        self.is_loaded = False

        def is_quiet() -> bool:
            leader = self.leader()
            if leader is None or leader.raft is None:
                return False
            last = leader.raft.log.last_index
            members = [self.nodes[name].raft for name in leader.raft.config.names]
            return all(
                raft is not None and raft.applied_index == raft.commit_index == last for raft in members
            )

        # With one small message under way at a time a node that was away needs a while.
        self.run_until(is_quiet, 180 * SECOND)
        self.run_until(lambda: not self._still_open(), 20 * SECOND)

    def check_end(self) -> None:
        """When everything is healed and quiet all members are the same."""
        leader = self.leader()
        if leader is None or leader.raft is None:
            raise Violation("nobody leads after healing")
        for name in leader.raft.config.names:
            raft = self.nodes[name].raft
            assert raft is not None
            if raft.applied_index != leader.raft.applied_index:
                raise Violation(f"{name} has applied {raft.applied_index} of {leader.raft.applied_index}")
            if self.nodes[name].machine.keys != leader.machine.keys:
                raise Violation(f"{name} has another state than {leader.name}")

    def _still_open(self) -> bool:
        """Does a node that lives owe an answer? What a crash or a lost leadership left open stays unknown."""
        return any(node.waiting for node in self.nodes.values())


def _ask_change(leader: RaftNode, change: Change, raft: Raft) -> None:
    raft.change(leader.mono, change, "operator")
