"""Brings the views of the queues mastered here to what their policies say.

Guarantees
- A queue gets its mirrors before it loses others, and never goes through fewer in-sync copies than it had,
  unless nodes die (`meta.mirroring.next_step`).
- One change at a time per queue, on top of the view it was thought out for: whoever comes too late is refused
  by the metadata and looks again.
- What concerns all queues (a policy, a node) is looked at in slices, every queue once.

Who acts: the master of a queue, for its own queue only. A queue without a master waits for one.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mirrormq.base import limits
from mirrormq.base.walk import Walk
from mirrormq.broker.queue import Queue
from mirrormq.meta import mirroring, records, system
from mirrormq.meta.commands import ChangeView, HaDefaults
from mirrormq.meta.mirroring import Mirroring, Step
from mirrormq.meta.records import Member, View
from mirrormq.meta.state import Outcome
from mirrormq.mirror.ports import Options
from mirrormq.mirror.views import Change

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies
    from mirrormq.node.node import Node

Identity = tuple[str, str]

CANCELLED = "the rebalancing was cancelled; the queue stays where it is"


class _Move(NamedTuple):
    """A queue that is to have another master; `run` is the rebalancing it belongs to, 0 if to none."""

    identity: Identity
    to: str
    until: int
    done: Callable[[str], None]
    run: int


class MirrorPolicy:
    """Looks after the views of this node's queues."""

    def __init__(self, node: "Node", copies: "Copies") -> None:
        self._node = node
        self._copies = copies
        self._due: OrderedDict[Identity, None] = OrderedDict()
        """Queues to be looked at."""
        self._all = Walk(lambda: node.meta.queues_on(node.node_name))
        """All of this node, when something concerns every one of them."""
        self._asked: dict[Identity, int] = {}
        """Queues for which a change is on its way, and of which epoch it is."""
        self._later: list[tuple[int, Identity]] = []
        """When to look at queues that wait for a node to come back."""
        self._away: dict[str, int] = {}
        """When nodes went away last, those that are back included."""
        self._moves: dict[int, _Move] = {}

    @property
    def _defaults(self) -> HaDefaults:
        return self._node.settings.ha_defaults

    def of(self, record: records.Queue) -> Mirroring:
        """What the policies say about a queue."""
        return mirroring.mirroring_of(self._node.meta, record, self._defaults)

    def options(self, view: View) -> Options:
        """What the protocol has to know of it."""
        record = self._node.meta.queues.get(view.identity)
        return Options() if record is None else self._options(self.of(record))

    def _options(self, found: Mirroring) -> Options:
        return Options(
            min_in_sync=found.min_in_sync,
            mirror_timeout_us=found.mirror_timeout_ms * 1000,
            is_manual=found.sync_mode == "manual",
            sync_bytes_per_second=found.sync_bytes_per_second,
            sync_batch_size=found.sync_batch_size,
            is_async=found.is_async,
        )

    def members_at_birth(self, record: records.Queue) -> tuple[Member, ...]:
        """Who has a queue that is about to be declared in sync; nobody if it is not mirrored."""
        if record.exclusive:
            return ()
        found = self.of(record)
        nodes = self._node.meta.nodes
        if found.mode == "none" or record.node not in nodes:
            return ()
        names = mirroring.wanted_at_birth(found, record.node, nodes, self._loads(), self._node.next_uid())
        if len(names) < 2:
            return ()
        return tuple(Member(name, nodes[name].start) for name in names)

    def _loads(self) -> dict[str, int]:
        meta = self._node.meta
        return {name: system.count_on(meta, name) for name in meta.nodes}

    # --- what happens ---------------------------------------------------------------------------

    def begin(self) -> None:
        """The node takes part: look at everything."""
        now = self._node.now.mono
        self._away = {node.name: now for node in self._node.meta.nodes.values() if not node.is_live}
        self.look_at_all()

    def look_at_all(self) -> None:
        """Something has changed that may concern every queue."""
        self._all.begin()

    def look_at(self, record: records.Queue) -> None:
        """A queue is new, or its policy has changed."""
        if record.node == self._node.node_name and not record.exclusive:
            self._due[record.identity] = None

    def view_changed(self, view: View) -> None:
        """A view was made."""
        if self._asked.get(view.identity, view.epoch) < view.epoch:
            del self._asked[view.identity]
        if view.master == self._node.node_name:
            self._due[view.identity] = None
        move = self._moves.get(view.id)
        if move is not None and (view.master == move.to or view.master != self._node.node_name):
            del self._moves[view.id]
            move.done("" if view.master == move.to else f"node '{view.master}' has become the master")

    def node_changed(self, name: str, before: records.Node | None, after: records.Node | None) -> None:
        """A node came, went, or changed."""
        if after is None:
            self._away.pop(name, None)
        elif not after.is_live and (before is None or before.is_live):
            self._away[name] = self._node.now.mono
        self.look_at_all()

    def move(self, queue_id: int, to: str, done: Callable[[str], None], run: int = 0) -> None:
        """Another node is to be the master. A queue without a mirror gets one there, and loses this one."""
        nodes, queue = self._node.meta.nodes, self._node.switch.masters.get(queue_id)
        if queue is None or not self._is_mine(queue.record):
            done("this node is not the master of the queue")
        elif queue.record.exclusive:
            done("the queue is exclusive: it stays where its client is")
        elif queue.damage is not None:
            done(f"the queue is damaged: {queue.damage}")
        elif run and self._is_over(run):
            done(CANCELLED)
        elif queue_id in self._moves:
            done(f"it is being moved to node '{self._moves[queue_id].to}'")
        elif to == self._node.node_name:
            done("")
        elif to not in mirroring.hosts(nodes) or not nodes[to].is_live:
            done(f"node '{to}' is not running, or keeps no queues")
        elif nodes[to].is_drained:
            done(f"node '{to}' is in maintenance; `revive` it first")
        else:
            identity, until = queue.record.identity, self._node.now.mono + limits.move_us_max
            self._moves[queue_id] = _Move(identity, to, until, done, run)
            self._due[identity] = None

    def _is_mine(self, record: records.Queue) -> bool:
        view = self._node.meta.views.get(record.identity)
        if view is None:
            return record.node == self._node.node_name
        return view.is_led_by(self._node.node_name, self._copies.start)

    @property
    def is_moving(self) -> bool:
        """Are there queues on their way to another node?"""
        return bool(self._moves)

    def end_moves(self, running: int) -> None:
        """A rebalancing has ended or is to end: of its moves only those are finished that are all but done.

        `running`: the one whose moves go on, 0 if none.
        """
        for queue_id, move in list(self._moves.items()):
            copy = self._copies.mirrors.copies.get(queue_id)
            is_going = copy is not None and copy.master is not None and bool(copy.master.transfer_to)
            if move.run not in (0, running) and not is_going:
                self._give_up(queue_id, CANCELLED)

    def _is_over(self, run: int) -> bool:
        """Has a rebalancing ended whose node may not have heard of that? It may not have begun here, too."""
        meta = self._node.meta
        lock = meta.rebalance
        is_known = meta.last_id >= run
        return is_known and (lock is None or lock.number != run or lock.is_cancelled)

    def _give_up(self, queue_id: int, why: str) -> None:
        """What was copied for the move goes again, unless the policy wants it."""
        move = self._moves.pop(queue_id)
        self._due[move.identity] = None
        move.done(why)

    # --- the pass -------------------------------------------------------------------------------

    @property
    def needs_pass(self) -> bool:
        """Are there queues to be looked at?"""
        return bool(self._due) or self._all.is_under_way

    def step(self) -> None:
        """Look at some of them."""
        most = min(limits.mirror_slice_queues, limits.mirror_looks_max)
        one_by_one = min(len(self._due), most)
        for _ in range(one_by_one):
            identity = next(iter(self._due))
            del self._due[identity]
            self._look(identity)
        for record in self._all.take(most - one_by_one):
            if not record.exclusive:
                self._look(record.identity)

    def tick(self) -> None:
        """Every second."""
        now = self._node.now.mono
        while self._later and self._later[0][0] <= now:
            self._due[heapq.heappop(self._later)[1]] = None
        for queue_id, move in list(self._moves.items()):
            record = self._node.meta.queues.get(move.identity)
            if record is None or record.id != queue_id:
                self._give_up(queue_id, "the queue was deleted")
            elif now >= move.until:
                why = "the new master was not synchronised in time; the queue stays where it is"
                self._give_up(queue_id, why)
            elif not mirroring.is_live(self._node.meta.nodes, move.to):
                self._give_up(queue_id, f"node '{move.to}' went away; the queue stays where it is")
            else:
                self._due[move.identity] = None

    def _look(self, identity: Identity) -> None:
        meta = self._node.meta
        record, view = meta.queues.get(identity), meta.views.get(identity)
        if record is None or record.node != self._node.node_name or identity in self._asked:
            return
        found = self.of(record)
        if view is None:
            self._begin(record, found)
            return
        if not view.is_led_by(self._node.node_name, self._copies.start):
            return
        options = self._options(found)
        if view.id in self._moves:
            options = self._while_moving(options, found)
        self._copies.mirrors.set_options(view.id, options)
        step = self._next_step(record, view, found)
        if step is None:
            self._waive(record, view, found)
            return
        if step.change == "transfer":
            self._copies.mirrors.transfer(view.id, step.node, self._node.now)
        else:
            start = step.start or self._start_of(view, step.node)
            self._ask(self.command(view, Change(view.id, view.epoch, step.change, step.node, start)))

    def _waive(self, record: records.Queue, view: View, found: Mirroring) -> None:
        """Have it said, or not any more, that the master may act without a lease."""
        copy = self._copies.mirrors.copies.get(view.id)
        may = record.durable and mirroring.may_waive(found)
        change = self._copies.waivers.wanted(view, copy, may=may)
        if change:
            self._ask(self.command(view, Change(view.id, view.epoch, change, "", 0)))

    def _while_moving(self, options: Options, found: Mirroring) -> Options:
        """Where the queue goes it is needed in full; one that nobody limits is not copied at full speed."""
        options = options._replace(is_manual=False)
        if found.mode == "none":
            options = options._replace(sync_bytes_per_second=limits.balance_copy_bytes_per_second)
        return options

    def _begin(self, record: records.Queue, found: Mirroring) -> None:
        """Give a queue its first view, if its policy wants it on more than this node, or it is to move."""
        node = self._node
        queue = node.switch.masters.get(record.id)
        is_moving = record.id in self._moves
        is_wanted = found.mode != "none" or is_moving
        if not is_wanted or not isinstance(queue, Queue) or queue.damage is not None:
            return
        me = node.meta.nodes.get(node.node_name)
        names = mirroring.wanted_at_birth(found, node.node_name, node.meta.nodes, {}, 0)
        if me is None or (names == (node.node_name,) and not is_moving):
            return
        if queue.log.kept is None:
            queue.keep_records(node.new_log(record))
        self._ask(
            ChangeView(record.vhost, record.name, record.id, 1, "begin", me.name, me.start, self._defaults)
        )

    def _next_step(self, record: records.Queue, view: View, found: Mirroring) -> Step | None:
        nodes, now = self._node.meta.nodes, self._node.now.mono
        delay = found.replace_delay_ms * 1000
        held = {name: at for name, at in self._away.items() if now - at < delay and name in nodes}
        wanted = mirroring.wanted(found, view, nodes, held, self._loads())
        move = self._moves.get(view.id)
        if move is not None:
            step = mirroring.move_step(view, move.to, nodes)
            if step is not None:
                return step
            wanted = tuple(dict.fromkeys((*wanted, move.to)))
        gone = [at for name, at in held.items() if not nodes[name].is_live]
        if gone and found.mode == "exactly":
            heapq.heappush(self._later, (min(gone) + delay, record.identity))
        return mirroring.next_step(view, wanted, mirroring.target(found, nodes), nodes)

    def _start_of(self, view: View, name: str) -> int:
        entry = view.member(name) or view.learner(name)
        return entry.start if entry is not None else 0

    def _ask(self, command: ChangeView) -> None:
        identity = (command.vhost, command.name)
        self._asked[identity] = command.epoch

        def answered(outcome: Outcome) -> None:
            if self._asked.get(identity) == command.epoch:
                del self._asked[identity]
                if not outcome.ok:
                    # Somebody was faster, or a node died on the way: a new view or a new node will tell.
                    heapq.heappush(self._later, (self._node.now.mono + limits.tick_us, identity))

        self._node.membership.propose(command, answered, False)

    def command(self, view: View, change: Change) -> ChangeView:
        """A change of a view, as the metadata knows it."""
        return ChangeView(
            view.vhost,
            view.name,
            view.id,
            change.epoch,
            change.kind,  # type: ignore[arg-type]
            change.node,
            change.start,
            self._defaults,
        )
