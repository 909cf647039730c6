"""A node of the mirror world: the shipped mirroring, logs on a forgetful disk, simple queues and publishers.

Guarantee: the node does what a queue and a home node do, no more: it appends what is published once, confirms
at the marks, delivers at the marks, and sends unconfirmed publishes again in their order.
"""

import random
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.kernel.cores import QueueCore, Worklist
from mirrormq.kernel.index import Graveyard
from mirrormq.mirror.mirroredlog import MirroredLog
from mirrormq.mirror.ports import Data
from mirrormq.mirror.views import Change
from mirrormq.sim.memorylog import MemoryCopyLog, MemoryStore
from mirrormq.sim.mirrorclients import Home
from mirrormq.sim.mirrordisk import DiskStore, SimDiskCopy
from mirrormq.sim.mirrorstore import SimView
from mirrormq.sim.mirrorstream import PERSISTENT, RESENT, Key, State, note, publish, removal
from mirrormq.sim.model import Violation

if TYPE_CHECKING:
    from mirrormq.mirror.mirrors import Mirrors
    from mirrormq.sim.mirrorworld import MirrorWorld

PREFETCH = 12


class SimQueue:
    """A queue on its master, for one mastership."""

    def __init__(self, node: "MirrorNode", view: SimView) -> None:
        self.node = node
        self.world = node.world
        self.id = view.id
        self.since = view.since
        assert node.mirrors is not None
        self.copy = node.mirrors.copies[view.id]
        self.raw = node.logs[view.id]
        self.state = State()
        self.is_filled = False
        self.applied = self.redelivered_upto = 0
        self.delivered: set[int] = set()
        self.unacked: dict[int, Key] = {}
        self.waiting: list[tuple[int, Key, bool, str]] = []
        """(position, publish, whether it must be flushed, home node) to be confirmed."""
        self.seen_durable = self.raw.folded
        self.safe = 0
        """What was durable while there were enough members."""
        core = QueueCore(Worklist(), Graveyard(), None, 0)
        self.raw.fill(core, self._filled, is_restarted=view.drops_transient)
        # What was just read may have been followed by EPOCH.
        self.log: MirroredLog = self.world.log_class(self.copy, self.raw.own, lambda: node.has_lease)

    def _filled(self, error: str | None) -> None:
        if error is not None:
            raise Violation(f"a promoted queue cannot be filled: {error}")
        self.is_filled = True
        self.state = self.raw.whole_state()
        self.state.live = dict(sorted(self.state.live.items()))
        self.redelivered_upto = self.world.redelivered_upto(self.state.horizon, self.raw.end)
        self.applied = self.raw.end

    def publish(self, home: str, key: Key, *, persistent: bool, is_resent: bool) -> None:
        """A publish comes from a home node: once, in order, or not at all."""
        if not self.is_filled:
            return
        pid, pseq = key
        last = self.state.rows.get(pid, 0)
        if pseq <= last:
            self._again(home, key)
        elif pseq == last + 1 and self.log.takes_publishes:
            self.log.touch(self.node.now)
            flags = (PERSISTENT if persistent else 0) | (RESENT if is_resent else 0)
            seq = self.raw.write(publish(key, flags, b"x" * (pseq % 7)))
            self._applied()
            self.waiting.append((seq, key, persistent, home))
        elif pseq > last + 1:
            self.world.clients.need(self, home, (pid, last + 1))

    def abandoned(self, pid: int, first: int, last: int) -> None:
        """A home node does not have these publishes any more."""
        if self.is_filled and self.state.rows.get(pid, 0) == first - 1 and self.log.takes_publishes:
            self.log.touch(self.node.now)
            self.raw.write(note(pid, last))
            self._applied()

    def _again(self, home: str, key: Key) -> None:
        if key in self.state.dropped:
            self.world.clients.answer(self.node, home, key)
        elif key in self.state.keys:
            seq = self.state.keys[key]
            persistent = bool(self.state.live[seq].flags & PERSISTENT)
            if not any(one[1] == key for one in self.waiting):
                self.waiting.append((seq, key, persistent, home))
        elif not any(one[1] == key for one in self.waiting):
            # It has left the queue: so it was there, and is confirmed with the removal.
            self.waiting.append((self.raw.end, key, True, home))

    def _applied(self) -> None:
        """What was appended is part of the queue, an EPOCH that drops something included."""
        new = []
        for batch in reversed(self.raw.batches):
            if batch.first <= self.applied:
                break
            new.append(batch)
        for batch in reversed(new):
            self.state.apply(batch)
        self.applied = self.raw.end

    def ack(self, seq: int, key: Key) -> None:
        """A consumer is done with a message."""
        if self.unacked.get(seq) == key and self.log.is_open:
            del self.unacked[seq]
            self.log.touch(self.node.now)
            self.raw.write(removal([seq]))
            self._applied()

    def turn(self) -> None:
        """Confirm and deliver what the marks allow."""
        checker = self.world.checker
        if self.copy.master is None or not self.is_filled:
            return
        self._applied()
        durable, received = self.log.durable, self.log.received
        checker.committed(self, self.seen_durable, self.copy.master.durable)
        self.seen_durable = max(self.seen_durable, self.copy.master.durable)
        if not self.copy.master.is_held:
            self.safe = durable
        if self.copy.master.may_commit(self.copy.master.durable) or durable:
            left = []
            for item in self.waiting:
                position, key, persistent, home = item
                if position <= (durable if persistent else received):
                    if key in self.state.dropped:
                        self.world.clients.answer(self.node, home, key)
                    else:
                        checker.confirmed(self, key, position, persistent=persistent)
                        self.world.clients.answer(self.node, home, key)
                else:
                    left.append(item)
            self.waiting = left
        self._deliver()

    def _deliver(self) -> None:
        ready = list(islice((seq for seq in self.state.live if seq not in self.unacked), 2 * PREFETCH))
        if not ready or not self.world.clients.are_at(self.node.name):
            return
        if not self.log.is_open or not self.node.has_lease:
            return
        if ready[0] > self.log.deliverable and len(self.unacked) < PREFETCH:
            self.log.touch(self.node.now)
            self._applied()
            if ready[0] not in self.state.live:
                return
            before = self.raw.end
            self.log.reach(ready[-1], self.world.horizon_ahead(), self.node.now)
            if self.raw.end != before:
                self._applied()
        for seq in ready:
            if seq > self.log.deliverable or len(self.unacked) >= PREFETCH:
                return
            live = self.state.live.get(seq)
            if live is None:
                continue
            again = seq <= self.redelivered_upto or seq in self.delivered or bool(live.flags & RESENT)
            self.unacked[seq] = live.key
            self.delivered.add(seq)
            self.world.checker.delivered(self, seq, live.key, again=again)
            self.world.clients.consume(self, seq, live.key)


class MirrorNode:
    """One node; what survives a crash are its logs and the number of its start."""

    def __init__(self, world: "MirrorWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.start_no = 0
        self.flush_us = 2_000
        self.store: MemoryStore | DiskStore = world.make_store(self)
        """What survives a crash, beside `start_no`."""
        self.is_up = False
        self.mirrors: Mirrors | None = None
        self.paused_until = self.paused_since = 0
        self.lease_until = 0
        self.applied = 0
        """How much of the order of views this process has seen."""
        self.must_see = 0
        """It takes no part before it has seen its own registration."""
        self.is_registered = False
        self.queues: dict[int, SimQueue] = {}
        self.homes: dict[int, Home] = {}
        self.proposals: list[tuple[Change, Callable[[bool], None]]] = []
        self.is_waking = False

    @property
    def logs(self) -> "Mapping[int, MemoryCopyLog | SimDiskCopy]":
        """The copies of queues."""
        return self.store.logs

    @property
    def now(self) -> Now:
        """The time of an input."""
        return Now(self.world.now, self.world.now)

    @property
    def has_lease(self) -> bool:
        """Whether this node may act for the outside."""
        return self.world.now < self.lease_until or not self.world.needs_lease

    @property
    def is_running(self) -> bool:
        """Whether the process does anything right now."""
        return self.is_up and self.paused_until <= self.world.now

    def start(self) -> None:
        """A new process."""
        self.start_no += 1
        self.is_up, self.is_registered, self.mirrors = True, False, None
        self.lease_until, self.applied, self.must_see = 0, 0, 0
        self.queues, self.proposals, self.homes = {}, [], {}
        self.paused_until = 0

    def crash(self, rng: random.Random, *, lose_all: bool = False, lose_nothing: bool = False) -> None:
        """The process is gone, and with it what the disk has not taken."""
        self.is_up, self.mirrors = False, None
        self.store = self.store.crashed(rng, lose_all=lose_all, lose_nothing=lose_nothing)

    def join(self) -> None:
        """Registered: take part."""
        self.is_registered = True
        self.mirrors = self.world.mirrors_class(self.name, self.start_no, self, self.now)
        for number, queue in enumerate(self.world.queue_ids):
            pid = (
                records.PID_OF_HOMES | (self.world.number_of(self.name) << 40) | (self.start_no << 8) | number
            )
            self.homes[queue] = Home(pid, queue)

    # --- what mirroring needs ---

    def send(self, peer: str, parts: tuple[Data, ...]) -> bool:
        """A frame leaves."""
        return self.world.transmit(self, peer, b"".join(parts))

    def propose(self, change: Change, done: Callable[[bool], None]) -> None:
        """A wish for a view; it is asked for until it is answered."""
        self.proposals.append((change, done))

    # --- inputs ---

    def apply_views(self, upto: int) -> None:
        """Hear of views, in their order."""
        assert self.mirrors is not None
        while self.applied < upto:
            view = self.world.store.order[self.applied]
            self.applied += 1
            self.apply_view(view)

    def apply_view(self, view: SimView) -> None:
        """Hear of one view."""
        assert self.mirrors is not None
        log = self.store.open(view.id)
        copy = self.mirrors.view_changed(view, log, self.now, self.world.options[view.id])
        queue = self.queues.get(view.id)
        if copy.master is None:
            self.queues.pop(view.id, None)
            copy.watcher = None
        elif queue is None or queue.copy is not copy or queue.since != view.since:
            self.queues[view.id] = SimQueue(self, view)
        self.world.soon(self)

    def end_pass(self) -> None:
        """The end of a pass of the loop: queues, then mirroring, until both are done."""
        mirrors = self.mirrors
        if mirrors is None:
            return
        while True:
            for queue in list(self.queues.values()):
                queue.turn()
            before = [log.end for log in self.logs.values()]
            mirrors.end_pass(self.now)
            for queue in list(self.queues.values()):
                queue.turn()
            if before == [log.end for log in self.logs.values()]:
                break
        mirrors.events.clear()
        self.store.end_pass()
        self.world.checker.node(self)
