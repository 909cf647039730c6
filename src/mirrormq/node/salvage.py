"""What only this node has of a queue since another one took over with a loss: moved to where clients find it.

Guarantees
- A copy that was in sync when one that was not took over gets no part in the queue again before every
  message that is live in it and not in the present history has arrived in a durable queue, on the disks of
  all its copies in sync; or was given up because the policy says so (`ha-salvage: drop`).
- Each arrives once, whatever crashes meanwhile: it travels as dead letters do, under its seq and the number
  of the loss, by which the target knows what it has. Nodes that were passed over together have the same, and
  what one of them has salvaged no other does again.
- At most `salvage_queues_max` queues at a time, and of each one slice in memory.
- What cannot be read is not given up silently: the copy stays as it is, and a line says what can be done.
"""

from typing import TYPE_CHECKING, NamedTuple

from mirrormq.base import limits
from mirrormq.broker import salvaged
from mirrormq.broker.queueport import QueuePort
from mirrormq.kernel import records as kernel_records
from mirrormq.kernel.message import Message
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log.copylog import CopyLog
from mirrormq.log.copyread import Scan
from mirrormq.log.scan import Head
from mirrormq.meta import records, system
from mirrormq.meta.commands import DeclareQueue, NoteSalvaged
from mirrormq.meta.mirroring import Salvage
from mirrormq.meta.records import Parting, View
from mirrormq.meta.state import Outcome
from mirrormq.mirror.source import last_common
from mirrormq.node.mirrornotes import queue_text

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies
    from mirrormq.node.node import Node

Identity = tuple[str, str]
Spans = list[tuple[int, int]]


class Salvaging:
    """All queues of which this node has something that nobody else has."""

    def __init__(self, node: "Node", copies: "Copies") -> None:
        self._node = node
        self._copies = copies
        self._due: dict[Identity, None] = {}
        self._runs: dict[Identity, _Run] = {}
        self._complaints: dict[Identity, str] = {}
        """What was said of queues that cannot be salvaged, so that it is said once."""

    def view_changed(self, view: View) -> None:
        """A view was made."""
        if view.parting_of(self._node.node_name) is not None:
            self._due[view.identity] = None

    def is_kept(self, log_id: int) -> bool:
        """Does this node have something of a queue that nobody else has?"""
        views = self._node.meta.views
        return any((view := views.get(one)) is not None and view.log_id == log_id for one in self._due)

    def tick(self) -> None:
        """Every second."""
        if self._due:
            self.step()

    def step(self) -> None:
        """Begin with some of them."""
        for identity in [*self._due]:
            view = self._node.meta.views.get(identity)
            parting = None if view is None else view.parting_of(self._node.node_name)
            if view is None or parting is None:
                del self._due[identity]
                self._complaints.pop(identity, None)
                self._runs.pop(identity, None)
            elif len(self._runs) >= limits.salvage_queues_max:
                return
            elif parting.is_known and identity not in self._runs and identity not in self._copies.due:
                self._begin(view, parting)

    def _begin(self, view: View, parting: Parting) -> None:
        record = self._node.meta.queues[view.identity]
        run = self._runs[view.identity] = _Run(self, view, parting, self._action(record))
        run.start(self._copies.copy_log(view.log_id))

    def _action(self, record: records.Queue) -> Salvage:
        vhost = self._node.vhosts.get(record.vhost)
        if not system.is_ordinary(record) or (vhost is not None and vhost.mirror_of):
            # What the cluster tells of itself, rows whose sink sends them again, copies of what is elsewhere.
            return "drop"
        return self._copies.policy.of(record).salvage

    # --- what runs ask for ---

    @property
    def node(self) -> "Node":
        """The node."""
        return self._node

    def is_current(self, run: "_Run") -> bool:
        """Is a run still what is done about its queue?"""
        return self._runs.get(run.view.identity) is run

    def stop(self, run: "_Run", why: str) -> None:
        """A run cannot go on for now; it begins again with the next tick."""
        identity = run.view.identity
        if self._runs.get(identity) is run:
            del self._runs[identity]
        if why and self._complaints.get(identity) != why:
            self._complaints[identity] = why
            text = f"what only this node has of {queue_text(run.view)} cannot be salvaged: {why}"
            self._node.note("error", text, event="queue.not_salvaged")

    def finish(self, run: "_Run", command: NoteSalvaged) -> None:
        """A run has done everything: say so, and let the copy be one of the others."""

        def answered(outcome: Outcome) -> None:
            if self._runs.get(run.view.identity) is run:
                del self._runs[run.view.identity]
            if outcome.ok:
                self._tell(run, command)
            self.step()

        self._node.membership.propose(command, answered, False)

    def _tell(self, run: "_Run", command: NoteSalvaged) -> None:
        view, counters = run.view, self._copies.counters
        counters.salvaged += command.messages
        counters.salvage_dropped += command.dropped
        where = f"moved to queue '{run.target}'" if run.action != "drop" else "given up, as ha-salvage says"
        count = command.messages + command.dropped
        text = (
            f"{count} messages that only this node had of {queue_text(view)} since the loss of epoch "
            f"{run.parting.epoch} were {where}; its copy follows the others from now on"
        )
        self._node.note("warning" if count else "info", text, event="queue.salvaged")
        self._copies.chronicle.publish(
            "queue.salvaged",
            name=view.name,
            vhost=view.vhost,
            epoch=run.parting.epoch,
            messages=command.messages,
            dropped=command.dropped,
            action=run.action,
            target="" if run.action == "drop" else run.target,
        )


class _Found(NamedTuple):
    message: Message
    seq: int


class _Run:
    """What is done about one queue; as the sender of letters it stands for the loss."""

    def __init__(self, all_: Salvaging, view: View, parting: Parting, action: Salvage) -> None:
        self.view = view
        self.parting = parting
        self.action = action
        self.target = view.name if action == "requeue" else salvaged.queue_name(view.name)
        self.queue_id = parting.id
        self._all = all_
        self._log: CopyLog | None = None
        self._dead = RangeSet()
        self._spans: Spans = []
        """What is left to be looked at."""
        self._count = 0
        self._end = 0
        self._horizon = 0
        self._under_way: set[int] = set()
        self._position = 1

    def start(self, copy: CopyLog | None) -> None:
        """Find out what is to be salvaged, and begin with it."""
        if copy is not None and copy.damage is not None and self.action != "drop":
            why = f"the copy is damaged ({copy.damage}); restore this node's data folder from a backup, or "
            self._all.stop(self, f"{why}give up what it has with the policy `ha-salvage: drop`")
            return
        if copy is not None and copy.is_complete and copy.damage is None:
            self._log = copy
            state = copy.state_at_end()
            self._end, self._horizon = int(copy.end), state.horizon
            self._dead = state.dead
            self._spans = self._divergent(copy)
            self._count = sum(state.dead.missing_count(*span) for span in self._spans)
        if self.action == "drop" or not self._count:
            self._finish()
        else:
            self._find_target()

    def _divergent(self, copy: CopyLog) -> Spans:
        """Seqs whose records are not in the present history, the salvaged ones left out."""
        parting = self.parting
        common = last_common(parting.epochs, parting.end, copy.epochs, self._end)
        spans = [(first, min(last, common)) for first, last in parting.missing]
        spans.append((common + 1, self._end))
        low = parting.reach + 1
        return [(max(first, low), last) for first, last in spans if max(first, low) <= last]

    # --- where it goes ---

    @property
    def _queue(self) -> QueuePort | None:
        vhost = self._all.node.vhosts.get(self.view.vhost)
        return None if vhost is None else vhost.queues.get(self.target)

    def _find_target(self) -> None:
        queue = self._queue
        if queue is not None:
            if self.action == "requeue" or queue.outlives:
                self._read()
            else:
                why = f"queue '{self.target}' is not durable; delete it, or set ha-salvage to requeue or drop"
                self._all.stop(self, why)
            return
        node = self._all.node
        record = records.Queue(self.view.vhost, self.target)
        record = records.Queue(self.view.vhost, self.target, node=node.place(record))

        def declared(outcome: Outcome) -> None:
            if self._all.is_current(self) and outcome.ok and self._queue is not None:
                self._find_target()
            else:
                self._all.stop(self, "" if outcome.ok else outcome.detail)

        node.propose(DeclareQueue(record, or_keep=True), declared, True)

    # --- slices ---

    def _read(self) -> None:
        """Read the next slice."""
        start = self._next()
        if not start:
            self._finish()
            return
        assert self._log is not None
        last = self._spans[0][1]
        found: list[_Found] = []
        size = 0

        def visit(data: bytes, at: int, head: Head) -> bool:
            nonlocal size
            ends = min(kernel_records.last_seq(data, at), last)
            wanted = {seq for seq in range(max(head[3], start), ends + 1) if seq not in self._dead}
            for message, seq, _ in kernel_records.messages(data, at, wanted):
                found.append(_Found(message, seq))
                size += len(message.body) + len(message.properties)
            self._position = ends + 1
            return size < limits.salvage_slice_bytes and ends < last

        def finished(error: str | None) -> None:
            if not self._all.is_current(self):
                return
            is_gap = error is None and not found and self._position == start
            if error is not None or is_gap:
                cure = "look at the disk of this node; it is tried again"
                self._all.stop(self, f"{error or f'record {start} is in no file'}; {cure}")
            else:
                self._send(found)

        Scan(self._log.log, self._all.node.read, (start, last), visit).start(finished)

    def _next(self) -> int:
        """The next live message; 0 if there is none."""
        while self._spans:
            first, last = self._spans[0]
            self._position = self._dead.first_missing(max(first, self._position))
            if self._position <= last:
                return self._position
            self._spans.pop(0)
        return 0

    def _send(self, found: list[_Found]) -> None:
        queue = self._queue
        if queue is None:
            self._all.stop(self, "")  # deleted meanwhile: it is made again
            return
        origin = (self.view.name, self._all.node.node_name, self.parting.epoch)
        is_numbered = queue.outlives
        self._under_way = {one.seq for one in found} if is_numbered else set()
        for message, seq in found:
            marked = salvaged.make_salvaged(message, origin, may_expire=self.action == "requeue")
            if is_numbered:
                queue.receive(marked, self, seq, is_resent=seq <= self._horizon)
            else:
                queue.core.push(marked)  # a queue that does not outlive a restart has no memory of letters
        if not self._under_way:
            self._read()

    def arrived(self, number: int) -> None:
        """The target has it for good."""
        if number in self._under_way:
            self._under_way.discard(number)
            if not self._under_way and self._all.is_current(self):
                self._read()

    def _finish(self) -> None:
        view, parting = self.view, self.parting
        is_dropped = self.action == "drop"
        command = NoteSalvaged(
            *(view.vhost, view.name, view.id, parting.id, self._all.node.node_name),
            reach=parting.reach,
            upto=self._end,
            messages=0 if is_dropped else self._count,
            dropped=self._count if is_dropped else 0,
        )
        self._all.finish(self, command)
