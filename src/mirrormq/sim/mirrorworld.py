"""Nodes with mirrored queues under virtual time: faulty links, disks, leases and operators, by seed.

Guarantee: the same seed gives the same run (`digest`). A broken promise raises `Violation`; the last events
are in `trace`. A run is: publish and consume under faults, then heal everything and require progress.
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
from mirrormq.log.durable import DurableLog
from mirrormq.mirror import views
from mirrormq.mirror.mirroredlog import MirroredLog
from mirrormq.mirror.mirrors import Mirrors
from mirrormq.mirror.ports import Options
from mirrormq.mirror.views import Change
from mirrormq.sim.memorylog import MemoryCopyLog, MemoryStore
from mirrormq.sim.mirrorcheck import Checker
from mirrormq.sim.mirrorclients import WINDOW, Clients
from mirrormq.sim.mirrordisk import DiskStore, NodeDisk, SimDiskCopy
from mirrormq.sim.mirrorfaults import Faults
from mirrormq.sim.mirrornode import MirrorNode
from mirrormq.sim.mirrorstore import SimView, ViewStore
from mirrormq.sim.model import Violation

MS = 1_000
SECOND = 1_000_000
TICK = 20 * MS
LEASE = 800 * MS
RECOVERY_WAIT = 1_500 * MS
SMALL_LIMITS: dict[str, tuple[int, ...]] = {
    "peer_suspect_us": (300 * MS,),
    "mirror_answer_us": (60 * MS,),
    "mirror_transfer_us": (500 * MS,),
    "mirror_epochs_max": (2, 8, 64),
    "mirror_frame_bytes": (300, 2_000, 1 << 20),
    "mirror_read_bytes": (1, 200, 2_000, 1 << 18),
    "mirror_reads_max": (1, 4),
    "mirror_proposals_max": (1, 64),
    "mirror_slice_queues": (1, 200),
    "mirror_early_max": (1, 20_000),
    "journal_file_bytes": (1_000, 3_000, 40_000),
    "journal_files_max": (1, 2, 4),
    "segment_bytes_min": (500, 4_000),
    "segment_bytes_max": (4_000, 32_000),
    "segment_dead_bytes_max": (300, 5_000),
    "place_bytes_min": (100, 2_000),
    "index_mark_bytes": (300, 4_000),
    "recycle_slice_bytes": (300, 4_000),
    "recovery_slice_bytes": (300, 4_000),
    "range_slice_bytes": (300, 4_000),
    "recent_bytes_max": (1, 1_000, 1 << 20),
    "copy_mark_bytes": (1, 500, 1 << 20),
    "copy_read_bytes": (200, 2_000),
    "copy_hold_bytes_max": (4_000, 20_000, 1 << 30),
}


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
class MirrorStats:
    """What a run consisted of."""

    events: int = 0
    faults: int = 0
    confirms: int = 0
    deliveries: int = 0
    views: int = 0
    promotions: int = 0
    admissions: int = 0
    copies: int = 0


class Connection:
    """A link between two nodes: in order, nothing lost while both keep it."""

    def __init__(self, number: int, ends: tuple[str, str]) -> None:
        self.number = number
        self.ends = set(ends)
        self.last = dict.fromkeys(ends, 0)
        """When the last frame to an end arrives."""
        self.held: dict[str, list[bytes]] = {end: [] for end in ends}
        """Frames to an end that a cut holds back."""
        self.flying = dict.fromkeys(ends, 0)


class MirrorWorld:
    """One seed. A directed test passes `size` and drives it by hand."""

    mirrors_class: type[Mirrors] = Mirrors
    log_class: type[MirroredLog] = MirroredLog
    store_class: type[ViewStore] = ViewStore
    is_on_disk = True
    """Whether copies are the shipped ones on simulated disks, or stand-ins in memory."""
    copy_log_class: type[MemoryCopyLog] = MemoryCopyLog
    disk_copy_class: type[SimDiskCopy] = SimDiskCopy
    durable_log_class: type[DurableLog] = DurableLog
    needs_lease = True
    waits_for_lease = True

    def __init__(self, seed: int, *, size: int = 0, queues: int = 0) -> None:
        """`size`: so many nodes, and nothing happens by itself but time."""
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0
        self.trace: deque[str] = deque(maxlen=400)
        self.stats = MirrorStats()
        self.is_directed = bool(size)
        self.checker = Checker(self)
        self.store = self.store_class()
        self.store.watch = self._view_made
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._soon: set[str] = set()
        names = [f"n{at}" for at in range(1, (size or self.rng.choice((2, 3, 3, 3, 4, 5))) + 1)]
        self.nodes = {name: MirrorNode(self, name) for name in names}
        self.queue_ids = list(range(1, (queues or self.rng.choice((1, 1, 2, 3))) + 1))
        self.wanted = {queue: self.rng.choice((2, 3, len(names))) for queue in self.queue_ids}
        """How many copies the policy wants."""
        self.options: dict[int, Options] = {}
        self.grants = dict.fromkeys(names, 0)
        """Until when the keeper of views takes a node for alive."""
        self.connections: dict[tuple[str, str], Connection] = {}
        self.cut: set[tuple[str, str]] = set()
        """(sender, receiver) of directions that hold everything."""
        self.cut_since: dict[tuple[str, str], int] = {}
        self.delay_us = self.rng.choice((200, 1_000, 8_000))
        self.is_loaded = False
        self.is_healed = False
        self.deferring = 0.0 if size else self.rng.choice((0.0, 0.5, 1.0))
        self.refusing = 0.0 if size else self.rng.choice((0.0, 0.0, 0.1, 0.4))
        self.faults = Faults(self)
        self.clients = Clients(self)
        self.storeless: set[str] = set()
        """In a directed run: nodes that the keeper of views does not hear."""
        self.deaf: set[str] = set()
        """In a directed run: nodes that hear of no views."""

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

    # --- nodes ---

    def number_of(self, name: str) -> int:
        """A node as a number."""
        return int(name[1:])

    def make_store(self, node: MirrorNode) -> MemoryStore | DiskStore:
        """The disk of a new node."""
        return DiskStore(node, NodeDisk(node), {}) if self.is_on_disk else MemoryStore(node)

    def form(self) -> None:
        """Start all nodes and make the queues."""
        for queue in self.queue_ids:
            if queue not in self.options:
                self.options[queue] = Options(
                    min_in_sync=1 if self.is_directed else self.rng.choice((1, 1, 1, 2)),
                    mirror_timeout_us=SECOND,
                    is_manual=not self.is_directed and self.rng.random() < 0.15,
                    sync_bytes_per_second=0 if self.is_directed else self.rng.choice((0, 0, 2_000, 50_000)),
                )
        names = list(self.nodes)
        for name, node in self.nodes.items():
            node.start()
            self.store.starts[name] = node.start_no
        for at, queue in enumerate(self.queue_ids):
            turned = names[at % len(names) :] + names[: at % len(names)]
            self.store.create(queue, turned[: self.wanted[queue]])
        for at, node in enumerate(self.nodes.values()):
            node.must_see = len(self.store.order)
            self.at(self.now + 1 + at * 1_000, partial(self._tick, node, node.start_no))
        self.at(self.now + TICK, self._supervise)
        self.run_for(200 * MS)

    def start(self, name: str) -> None:
        """Start a process."""
        node = self.nodes[name]
        if not node.is_up:
            self.say(f"start {name}")
            node.start()
            self.at(self.now + 1, partial(self._tick, node, node.start_no))

    def crash(self, name: str, *, lose_all: bool = False, lose_nothing: bool = False) -> None:
        """A process dies."""
        node = self.nodes[name]
        if node.is_up:
            self.say(f"crash {name}")
            node.crash(self.rng, lose_all=lose_all, lose_nothing=lose_nothing)
            for other in self.nodes:
                if other != name:
                    self.reset(name, other)

    def _tick(self, node: MirrorNode, start: int) -> None:
        if node.start_no != start or not node.is_up:
            return
        self.at(self.now + TICK + self.rng.randrange(-5 * MS, 5 * MS), partial(self._tick, node, start))
        if not node.is_running:
            return
        if self.reaches_store(node.name):
            self._talk_to_store(node)
        if node.mirrors is None:
            return
        for other in self.nodes:
            if other != node.name:
                self._watch_link(node, other)
        node.store.tick()
        node.mirrors.tick(node.now)
        # At once: what was committed in this tick must not be lost on the checker by a crash.
        self._pass(node)
        self.clients.publish(node)
        self.soon(node)

    def _talk_to_store(self, node: MirrorNode) -> None:
        if not node.is_registered:
            if self.store.starts.get(node.name) != node.start_no:
                self.say(f"register {node.name} {node.start_no}")
                self.store.register(node.name, node.start_no)
                self.grants[node.name] = 0
                node.must_see = len(self.store.order)
            node.join()
            node.apply_views(node.must_see)
            self.soon(node)
        order = len(self.store.order)
        if node.name in self.deaf:
            order = 0
        elif self.is_directed or self.rng.random() < 0.7:
            node.apply_views(order if self.is_directed else self.rng.randint(node.applied, order))
        if node.applied >= node.must_see and node.applied == order:
            # A lease is given only to those who know what was decided before.
            node.lease_until = self.now + LEASE * 9 // 10
            self.grants[node.name] = self.now + LEASE
        proposals, node.proposals = node.proposals, []
        for change, done in proposals:
            if self.is_directed or self.rng.random() < 0.8:
                self._decide(node, change, done)
            else:
                node.proposals.append((change, done))

    def _decide(self, node: MirrorNode, change: Change, done: Callable[[bool], None]) -> None:
        is_made = self.store.change(change)
        self.stats.admissions += is_made and change.kind == views.ADMIT
        self.say(f"{node.name} asks {change} -> {is_made}")
        start = node.start_no

        def tell() -> None:
            if node.start_no == start and node.is_up:
                done(is_made)
                self.soon(node)

        self.at(self.now + (0 if self.is_directed else self.rng.randrange(100 * MS)), tell)

    def reaches_store(self, name: str) -> bool:
        """Whether a node is connected with a majority."""
        if self.is_directed:
            return name not in self.storeless
        reached = [
            other
            for other, node in self.nodes.items()
            if other == name
            or (node.is_running and (name, other) not in self.cut and (other, name) not in self.cut)
        ]
        return 2 * len(reached) > len(self.nodes) or len(self.nodes) == 2

    def _supervise(self) -> None:
        self.at(self.now + TICK, self._supervise)

        def is_live(name: str, start: int) -> bool:
            if not self.waits_for_lease and not (self.nodes[name].is_running and self.reaches_store(name)):
                return False
            return self.grants[name] > self.now and self.store.starts[name] == start

        for queue in self.queue_ids:
            before = self.store.views[queue]
            self.store.supervise(queue, self.now, is_live, RECOVERY_WAIT)
            if self.store.views[queue] is not before:
                self.stats.promotions += 1
            if not self.is_directed or self.is_healed:
                self._place(queue, is_live)

    def _place(self, queue: int, is_live: Callable[[str, int], bool]) -> None:
        """The policy wants so many copies."""
        view = self.store.views[queue]
        master = views.member_of(view, view.master)
        if master is None or master.is_restarted or not is_live(master.node, master.start):
            return
        if self.rng.random() < 0.9:
            return
        if len(view.members) + len(view.learners) < self.wanted[queue]:
            free = [
                name
                for name in self.nodes
                if views.entry_of(view, name) is None
                and name in self.store.starts
                and is_live(name, self.store.starts[name])
            ]
            if free:
                name = self.rng.choice(free)
                start = self.store.starts[name]
                self.store.change(Change(queue, view.epoch, views.ADD_LEARNER, name, start))

    def _view_made(self, view: SimView) -> None:
        self.say(
            f"view {view.id}: epoch {view.epoch} master {view.master}"
            f" members {[(one.node, one.start, one.is_restarted) for one in view.members]}"
            f" learners {[tuple(one) for one in view.learners]}"
        )
        self.stats.views += 1
        self.checker.promoted(view)

    # --- passes, disks ---

    def soon(self, node: MirrorNode) -> None:
        """Have a node end its pass."""
        if node.name not in self._soon:
            self._soon.add(node.name)
            self.at(self.now, partial(self._pass, node))

    def _pass(self, node: MirrorNode) -> None:
        self._soon.discard(node.name)
        if node.is_running:
            node.end_pass()
            if node.mirrors is not None and node.mirrors.has_more and not node.is_waking:
                node.is_waking = True
                self.at(self.now + 1 * MS, partial(self._wake, node))

    def _wake(self, node: MirrorNode) -> None:
        node.is_waking = False
        self.soon(node)

    def flush(self, node: MirrorNode, log: MemoryCopyLog) -> None:
        """A flush has begun."""

        def done() -> None:
            if node.is_up and node.logs.get(log.stream_id) is log:
                if not node.is_running:
                    self.at(node.paused_until, done)
                    return
                log.finish_flush()
                self.soon(node)

        self.at(self.now + 1 + self.rng.randrange(node.flush_us), done)

    def later(self, node: MirrorNode, do: Callable[[], None]) -> None:
        """Have a read of a node end, at once or after a while, but never before the caller is done."""
        start = node.start_no
        wait = self.rng.randrange(5 * MS) if self.rng.random() < self.deferring else 0

        def answer() -> None:
            if node.is_up and node.start_no == start:
                do()
                self.soon(node)

        self.at(self.now + wait, answer)

    def deferrer(self, node: MirrorNode) -> Callable[[Callable[[], None]], None]:
        """When reads of a node are done."""
        start = node.start_no

        def defer(do: Callable[[], None]) -> None:
            def later() -> None:
                if node.is_up and node.start_no == start:
                    do()
                    self.soon(node)

            if self.rng.random() < self.deferring:
                self.at(self.now + self.rng.randrange(5 * MS), later)
            else:
                do()

        return defer

    # --- links ---

    def pair(self, one: str, other: str) -> tuple[str, str]:
        """How a link is named."""
        return (one, other) if one < other else (other, one)

    def _watch_link(self, node: MirrorNode, other: str) -> None:
        """Dial if there is no link; suspect the other end if it is silent."""
        pair = self.pair(node.name, other)
        far = self.nodes[other]
        assert node.mirrors is not None
        connection = self.connections.get(pair)
        if connection is None or not connection.ends:
            is_open = (node.name, other) not in self.cut and (other, node.name) not in self.cut
            if is_open and far.is_running and far.mirrors is not None:
                self._count += 1
                connection = self.connections[pair] = Connection(self._count, pair)
                for end in (node, far):
                    assert end.mirrors is not None
                    peer = far if end is node else node
                    end.mirrors.link_up(peer.name, peer.start_no, end.now)
                    self.soon(end)
            return
        since = self.cut_since.get((other, node.name), self.now)
        if not far.is_running:
            since = min(since, self.now - TICK)
        if node.name in connection.ends:
            is_silent = self.now - since > limits.peer_suspect_us or (
                far.is_up
                and far.paused_until > self.now
                and far.paused_since < self.now - limits.peer_suspect_us
            )
            if node.mirrors.link(other).is_suspect != is_silent:
                node.mirrors.suspect(other, node.now, is_silent=is_silent)

    def reset(self, one: str, other: str) -> None:
        """A link ends, with all that is on its way."""
        connection = self.connections.pop(self.pair(one, other), None)
        if connection is None:
            return
        for end, far in ((one, other), (other, one)):
            node = self.nodes[end]
            if end in connection.ends and node.mirrors is not None:
                node.mirrors.link_down(far, node.now)
                self.soon(node)
        connection.ends.clear()

    def transmit(self, sender: MirrorNode, receiver: str, frame: bytes) -> bool:
        """A frame leaves a node; whether the link took it."""
        connection = self.connections.get(self.pair(sender.name, receiver))
        if connection is None or receiver not in connection.ends:
            return True
        if self.rng.random() < self.refusing:
            self.at(self.now + 1 + self.rng.randrange(20 * MS), partial(self._writable, sender, receiver))
            return False
        if (sender.name, receiver) in self.cut:
            connection.held[receiver].append(frame)
        else:
            self._fly(connection, sender.name, receiver, frame)
        return True

    def _writable(self, node: MirrorNode, peer: str) -> None:
        if node.mirrors is not None:
            node.mirrors.writable(peer)
            self.soon(node)

    def _fly(self, connection: Connection, sender: str, receiver: str, frame: bytes) -> None:
        delay = self.rng.randint(self.delay_us // 2, self.delay_us)
        if self.rng.random() < 0.03 and not self.is_directed:
            delay *= 10
        when = connection.last[receiver] = max(connection.last[receiver], self.now + delay)
        self.at(when, partial(self._arrive, connection, sender, receiver, frame))

    def _arrive(self, connection: Connection, sender: str, receiver: str, frame: bytes) -> None:
        node = self.nodes[receiver]
        if receiver not in connection.ends or node.mirrors is None:
            return
        if not node.is_running:
            self.at(node.paused_until, partial(self._arrive, connection, sender, receiver, frame))
            return
        node.mirrors.receive(sender, frame, node.now)
        self.soon(node)

    def sever(self, sender: str, receiver: str) -> None:
        """Hold everything in one direction."""
        self.cut.add((sender, receiver))
        self.cut_since.setdefault((sender, receiver), self.now)

    def mend(self) -> None:
        """Let everything pass again."""
        for sender, receiver in sorted(self.cut):
            self.unsever(sender, receiver)

    def unsever(self, sender: str, receiver: str) -> None:
        """Let one direction pass again, with what it held."""
        connection = self.connections.get(self.pair(sender, receiver))
        if connection is not None:
            for frame in connection.held[receiver]:
                self._fly(connection, sender, receiver, frame)
            connection.held[receiver].clear()
        self.cut.discard((sender, receiver))
        self.cut_since.pop((sender, receiver), None)

    # --- a run ---

    def horizon_ahead(self) -> int:
        """How far a horizon runs ahead of what is delivered."""
        return 4 if self.is_directed else self.rng.randrange(4)

    def redelivered_upto(self, horizon: int, end: int) -> int:
        """What a new master takes for possibly delivered before."""
        return min(horizon, end)

    def run(self) -> None:
        """All of it."""
        with small_limits(self.rng):
            self.form()
            self.is_loaded = True
            self.faults.begin()
            end = self.now + 12 * SECOND
            while self.now < end:
                self.run_for(100 * MS)
                for view in self.store.views.values():
                    self.checker.members(view)
            self.faults.heal()
            before = self.stats.confirms
            self.run_until(lambda: self._is_well(before), 60 * SECOND)
            self.is_loaded = False
            self.run_for(SECOND)
            self.run_until(lambda: self._is_well(before), 20 * SECOND)
            self.checker.final()

    def _is_well(self, before: int) -> bool:
        for queue in self.queue_ids:
            view = self.store.views[queue]
            if not view.master or self.nodes[view.master].queues.get(queue) is None:
                return False
            if len(view.members) < min(self.wanted[queue], len(self.nodes)):
                return False
            if any(one.is_restarted for one in view.members):
                return False
        return self.stats.confirms >= before + 5 and not any(
            number + WINDOW < home.next
            for node in self.nodes.values()
            for home in node.homes.values()
            for number in home.unconfirmed
        )
