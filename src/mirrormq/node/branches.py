"""The branches of this node: partition mode `autoheal`.

Guarantees
- While this node is cut off and serves its clients, a durable mirrored queue that cannot commit on its side
  gets a branch (broker/branch.py) when a client of this node publishes to it, or asks for its messages.
  Consumers here that the queue has are the branch's from then on, and the queue's again afterwards.
- A branch is in the list `branches.json` before anything in it is confirmed, and until all of it has arrived
  at the queue, on the disks of all its copies in sync. A process that finds one at its start brings it there.
- The queue's record names a branch in the metadata before the first of its messages is sent, and until none
  can be sent again (`note-merge`): as long as that nobody forgets which of them it has.
- Branches of one queue are brought back in the order in which they were opened. If the queue is deleted they
  go with it, and a warning says how much that was. While some node is short of disk or memory they wait.
- What waited for a confirm when this node was cut off is refused: whether it was taken cannot be known.

Which queue is stuck is a guess about others that costs no message whichever way it goes: a branch is safe
beside any trunk.
"""

from typing import TYPE_CHECKING

import msgspec

from mirrormq.base import limits
from mirrormq.broker.arguments import QueueSettings
from mirrormq.broker.branch import Branch
from mirrormq.broker.confirm import Durable
from mirrormq.broker.consumer import Consumer, move_consumer
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import QueuePort
from mirrormq.log.disk import Disk, LogRefused
from mirrormq.meta import records, system
from mirrormq.meta.commands import NoteMerge
from mirrormq.meta.state import Outcome
from mirrormq.mirror.mirroredlog import MirroredLog
from mirrormq.node.outgoing import RemoteLog
from mirrormq.node.remotequeue import RemoteQueue

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies
    from mirrormq.node.node import Node

FILE = "branches.json"

Identity = tuple[str, str]


class Entry(msgspec.Struct, frozen=True):
    """A branch in the list on disk: the queue it stands for, and its own numbers."""

    vhost: str
    name: str
    id: int
    trunk: int
    sources: tuple[int, int]


_entries = msgspec.json.Decoder(list[Entry])


class Branches:
    """All of them."""

    def __init__(self, node: "Node", copies: "Copies") -> None:
        self._node = node
        self._copies = copies
        self._open: dict[Identity, Branch] = {}
        """Those that serve clients."""
        self._closed: dict[int, Branch] = {}
        """Those that are to be merged, by log id; the oldest first."""
        self._named: set[int] = set()
        """Of those the ones that the metadata names."""
        self._asked: set[int] = set()
        """Those for which the metadata is being changed."""
        self._ended: set[int] = set()
        """Log ids that are needed no more when the list without them is on disk."""
        self._is_changed = False
        """Is the list on disk another one?"""
        self._writing: tuple[int, list[Branch], set[int]] | None = None
        """The token of the list that is being written, who is in it, and who is not any more."""
        self._opened: list[str] = []
        """Queues of which branches were opened in this pass."""
        self._was_serving = False
        self._reach: frozenset[str] = frozenset()
        self._is_due = False
        self.merged = 0
        """Messages of branches that are merged, since this process started."""
        self.dropped = 0
        """Messages of branches whose queues were deleted."""

    # --- what others ask ---

    @property
    def is_serving(self) -> bool:
        """Do clients get branches now?"""
        return self._node.partition.branches_out

    def port(self, queue: QueuePort) -> QueuePort:
        """What serves this node's clients in place of a queue."""
        if not self.is_serving:
            return queue
        found = self._open.get(queue.record.identity)
        if found is not None:
            return found if found.trunk_log == queue.record.log_id else queue
        is_room = len(self._open) + len(self._closed) < limits.branches_max
        return self._begin(queue) if is_room and self._is_stuck(queue) else queue

    def every(self) -> list[Branch]:
        """All there are, the oldest first."""
        return [*self._closed.values(), *self._open.values()]

    def sources(self) -> list[int]:
        """The numbers under which this node may send letters and messages of branches again."""
        return [number for branch in self.every() for number in branch.sources]

    def counts(self) -> dict[str, int]:
        """How many there are, and how many messages are in them."""
        messages = sum(branch.messages for branch in self.every())
        counts = {"open": len(self._open), "merging": len(self._closed), "messages": messages}
        return counts | {"merged": self.merged, "dropped": self.dropped}

    def damaged(self, log_id: int, reason: str) -> bool:
        """Records of a branch cannot be read; False if it is none of one."""
        found = [one for one in self.every() if one.sources[0] == log_id]
        for branch in found:
            branch.fail(reason)
        return bool(found)

    def _is_stuck(self, queue: QueuePort) -> bool:
        """Can a queue commit nothing on this side, as far as can be seen from here?"""
        record, node = queue.record, self._node
        view = node.meta.views.get(record.identity)
        is_fit = view is not None and record.outlives_restart and not record.auto_delete
        if view is None or not is_fit or not system.is_ordinary(record) or queue.damage is not None:
            return False
        if node.vhosts[record.vhost].mirror_of:
            return False
        if isinstance(queue, Queue):
            return self._copies.is_aside(record.id)
        members = {member.node for member in view.members}
        goes_on = view.waiver == view.master and members <= {node.node_name, *node.membership.links}
        return not (goes_on and queue.is_available)

    # --- a branch begins ---

    def _begin(self, queue: QueuePort) -> Branch:
        node, record = self._node, queue.record
        drawn = [int.from_bytes(node.rng.token(8), "big") >> 1 | 1 for _ in range(2)]
        branch = self._make(record, queue.settings, (drawn[0], drawn[1]))
        self._open[record.identity] = branch
        self._is_changed = True
        for consumer in _take_consumers(queue):
            consumer.order = 0
            move_consumer(consumer, branch)
        self._opened.append(queue.text)
        return branch

    def _make(self, record: records.Queue, settings: QueueSettings, sources: tuple[int, int]) -> Branch:
        vhost = self._node.vhosts[record.vhost]
        return Branch(self._node, vhost, record, settings, sources=sources, keeper=self)

    def recover(self, disk: Disk) -> list[Branch]:
        """The branches an earlier process has left, to be filled from the journal and then merged."""
        for entry in listed(disk):
            if entry.vhost not in self._node.vhosts:
                self._is_changed = True  # it went with its vhost
                continue
            queue = self._node.vhosts[entry.vhost].queues.get(entry.name)
            if queue is not None and queue.record.log_id == entry.trunk:
                record, settings = queue.record, queue.settings
            else:
                record = records.Queue(entry.vhost, entry.name, entry.id, log_id=entry.trunk)
                settings = QueueSettings()
            branch = self._make(record, settings, entry.sources)
            branch.close()
            branch.listing.confirmable = 1
            self._closed[entry.sources[0]] = branch
        return list(self._closed.values())

    # --- the list on disk ---

    def _write(self) -> None:
        node = self._node
        every = self.every()
        entries = [Entry(*one.record.identity, one.record.id, one.trunk_log, one.sources) for one in every]
        self._is_changed = False
        self._writing = node.next_token(), every, self._ended
        self._ended = set()
        node.effects.replace(FILE, msgspec.json.encode(entries), self._writing[0])

    def written(self, token: int) -> bool:
        """Something is on disk; False if it is not the list."""
        if self._writing is None or self._writing[0] != token:
            return False
        _, listed, ended = self._writing
        self._writing = None
        for branch in listed:
            branch.listing.confirmable = 1
        for log_id in ended:
            self._node.forget_log(log_id)
        return True

    # --- time ---

    @property
    def needs_pass(self) -> bool:
        """Is something left to be done at once?"""
        is_writing = self._is_changed and self._writing is None
        is_closing = bool(self._open) and not self.is_serving
        return is_writing or is_closing or self._is_due or bool(self._opened)

    def tick(self) -> None:
        """Every second."""
        self._is_due = self._is_due or bool(self._closed)
        if self.is_serving:
            self._refuse_waiting()
            self._take_requests()

    def step(self) -> None:
        """Once a pass: follow the mode, the side and the metadata."""
        self._follow()
        if self._open and not self.is_serving:
            for branch in list(self._open.values())[: limits.branches_per_pass]:
                self._close(branch)
        if self._is_due:
            self._is_due = False
            self._look()
        if self._is_changed and self._writing is None:
            self._write()
        if self._opened:
            self._tell_opened()

    def _tell_opened(self) -> None:
        opened, self._opened = self._opened, []
        named = opened[: limits.mirror_notes_max]
        more = len(opened) - len(named)
        for nth, queue in enumerate(named):
            others = f", and {more} others like it" if more and nth == len(named) - 1 else ""
            text = f"{queue} cannot commit on this side: a branch of it serves the clients of this node"
            self._node.note("warning", text + others, event="partition.branch_opened")

    def _follow(self) -> None:
        """Routes are remembered: forget them when other objects are to be found."""
        is_serving = self.is_serving
        reach = frozenset(self._node.membership.links) if is_serving else frozenset()
        if is_serving == self._was_serving and reach == self._reach:
            return
        self._was_serving, self._reach = is_serving, reach
        for vhost in self._node.vhosts.values():
            vhost.forget_routes()
        if is_serving:
            self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Confirms come in order: what was under way when this node was cut off would hold up all others."""
        for channel in self._node.channels.values():
            if channel.confirm.waiting:
                channel.confirm.give_up(self._is_hopeless)

    def _take_requests(self) -> None:
        """What clients asked of queues of other nodes when these went out of reach is asked of branches."""
        for link in list(self._node.switch.links.values()):
            for queue in list(link.active):
                if queue.wishes and (port := self.port(queue)) is not queue:
                    queue.wishes.divert(port)

    def _is_hopeless(self, log: Durable) -> bool:
        if isinstance(log, RemoteLog):
            return self._is_stuck(log.queue)
        if isinstance(log, MirroredLog):
            queue = self._node.switch.masters.get(log.copy.id)
            return queue is not None and queue.log is log and self._is_stuck(queue)
        return False

    # --- the way back ---

    def _close(self, branch: Branch) -> None:
        """Clients are served by the queue again."""
        del self._open[branch.record.identity]
        self._closed[branch.sources[0]] = branch
        self._is_due = True
        trunk = self.trunk(branch)
        for consumer in branch.close():
            assert isinstance(consumer, Consumer)
            consumer.order = 0
            if trunk is None:
                consumer.cancelled()
            else:
                move_consumer(consumer, trunk)

    @property
    def _is_back(self) -> bool:
        node = self._node
        return node.membership.has_lease() and not node.partition.is_cut and not node.shortages()

    def _look(self) -> None:
        """Go on with those that can be merged now."""
        if not self._is_back:
            return
        busy = 0
        seen: set[Identity] = set()
        for branch in list(self._closed.values()):
            identity = branch.record.identity
            if self.trunk(branch) is None:
                self._drop(branch)
            elif identity not in seen:
                seen.add(identity)
                if branch.core.ready and busy >= limits.branch_merges_max:
                    continue
                busy += branch.core.ready > 0
                self._go_on(branch)

    def _go_on(self, branch: Branch) -> None:
        if branch.sources[0] in self._named:
            branch.core.touch()
        elif not branch.own_log.end:
            self._remove(branch)  # nothing was ever in it
        elif branch.sources[0] not in self._asked:
            self._note(branch, is_over=False)

    def _note(self, branch: Branch, *, is_over: bool) -> None:
        log_id = branch.sources[0]
        record = branch.record
        self._asked.add(log_id)

        def answered(outcome: Outcome) -> None:
            self._asked.discard(log_id)
            if log_id not in self._closed or not outcome.ok:
                return  # it is looked at again with the next tick
            if not is_over:
                self._named.add(log_id)
                branch.core.touch()
            elif branch.is_empty:  # else a transaction has brought something since
                self._finish(branch)

        where = (record.vhost, record.name, record.id)
        command = NoteMerge(*where, self._node.node_name, branch.sources, is_over)
        self._node.membership.propose(command, answered, True)

    # --- what branches ask ---

    def trunk(self, branch: Branch) -> QueuePort | None:
        """The queue a branch stands for, while it is there."""
        vhost = self._node.vhosts.get(branch.record.vhost)
        found = None if vhost is None else vhost.queues.get(branch.record.name)
        return found if found is not None and found.record.log_id == branch.trunk_log else None

    def may_merge(self, branch: Branch) -> bool:
        """May its messages go to the queue now?"""
        return branch.sources[0] in self._named and self._is_back

    def emptied(self, branch: Branch) -> None:
        """All of it has arrived: when that cannot be forgotten here, nobody else has to remember it."""
        log = branch.own_log
        if branch.sources[0] not in self._asked:
            self._asked.add(branch.sources[0])
            self._named.discard(branch.sources[0])
            log.when_durable(log.end, lambda: self._note(branch, is_over=True))

    # --- the end ---

    def _finish(self, branch: Branch) -> None:
        self.merged += branch.merged
        text = f"the branch of {branch.text} is merged: its messages are in the queue"
        self._node.note("info", text, messages=branch.merged, event="partition.branch_merged")
        self._remove(branch)

    def _drop(self, branch: Branch) -> None:
        count = branch.messages
        self.dropped += count
        text = f"{branch.text} was deleted on the other side, and its branch here goes with it"
        self._node.note(
            "warning" if count else "info", text, messages=count, event="partition.branch_dropped"
        )
        self._remove(branch)
        branch.give_up()

    def _remove(self, branch: Branch) -> None:
        log_id = branch.sources[0]
        del self._closed[log_id]
        self._named.discard(log_id)
        self._ended.add(log_id)
        self._is_changed = True
        self._is_due = True
        branch.end()


def listed(disk: Disk) -> list[Entry]:
    """The branches that a process has left."""
    if FILE not in disk.list(FILE):
        return []
    try:
        return _entries.decode(disk.read(FILE))
    except msgspec.MsgspecError as error:
        cure = "restore it from a backup; without it what was published while this node was cut off is lost"
        raise LogRefused(f"{FILE} cannot be read ({error}): {cure}") from None


def _take_consumers(queue: QueuePort) -> list[Consumer]:
    """The consumers of this node's clients, which the queue serves no more. What they hold stays theirs."""
    found = [
        member
        for member in list(queue.consumers.members)
        if isinstance(member, Consumer) and not member.leaves_on_failover
    ]
    for consumer in found:
        if isinstance(queue, RemoteQueue):
            queue.cancel(consumer)
        else:
            queue.consumers.remove(consumer)
    if found and not isinstance(queue, RemoteQueue):
        queue.core.set_consumers(queue.consumers.groups())
    return found
