"""The copies of mirrored queues on this node: from views to logs, from frames to the protocol and back.

Guarantees
- A copy is opened when a view names this node, and kept as long as one does. When none does any more its log
  stays for `limits.stray_copy_us`: a node that comes back goes on where it was, and nothing is wiped.
- Views reach the protocol in the order of the metadata, before the queue they are about is told.
- Frames of a peer count from the moment both ends have said which of their starts they are in.
- Nothing here runs per message; what concerns many queues is done in slices.

What the members of a view should be is for `mirrorpolicy` to say; what they tell each other is in `mirror`.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.broker.queue import Queue
from mirrormq.log.copylog import CopyLog
from mirrormq.log.durable import DurableLog
from mirrormq.log.queuelog import QueueLog
from mirrormq.log.recent import RecentPool
from mirrormq.log.segments import Segments
from mirrormq.meta import records
from mirrormq.meta.commands import ChangeView, ChangeViews, Command
from mirrormq.meta.records import View
from mirrormq.meta.state import Outcome
from mirrormq.meta.views import FIRST_EPOCH
from mirrormq.mirror import frames
from mirrormq.mirror.copy import Copy
from mirrormq.mirror.diskcopy import DiskCopy
from mirrormq.mirror.mirroredlog import MirroredLog
from mirrormq.mirror.mirrors import Mirrors
from mirrormq.mirror.ports import Data, Options
from mirrormq.mirror.views import Change
from mirrormq.node.balancer import Balancer
from mirrormq.node.branches import Branches
from mirrormq.node.chronicle import Chronicle
from mirrormq.node.handover import HandOver
from mirrormq.node.happenings import Counters
from mirrormq.node.losses import Losses
from mirrormq.node.maintenance import Maintenance
from mirrormq.node.mirrorpolicy import MirrorPolicy
from mirrormq.node.peerframes import BULK, BadFrame
from mirrormq.node.removals import Removals
from mirrormq.node.salvage import Salvaging
from mirrormq.node.samples import Samples
from mirrormq.node.waivers import WAIVERS, Waivers

if TYPE_CHECKING:
    from mirrormq.node.node import Node

MIRRORING = bytes((frames.FAMILY,))
GREETING = b"\xf9"
_GREETING = struct.Struct("<cQ")
FAMILIES = (MIRRORING, GREETING, WAIVERS)
"""First octets of the frames that are served here."""

Identity = tuple[str, str]


class Copies:
    """All copies on this node, whoever is their master."""

    mirrors_class: type[Mirrors] = Mirrors
    log_class: type[CopyLog] = CopyLog
    mirrored_class: type[MirroredLog] = MirroredLog
    waivers_class: type[Waivers] = Waivers

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.start = node.membership.identity.start
        self.mirrors = self.mirrors_class(node.node_name, self.start, self, node.now)
        self.waivers = self.waivers_class(node)
        self.mirrors.is_held = self.waivers.is_held
        self.mirrors.is_aside = self._takes_none
        self.policy = MirrorPolicy(node, self)
        self.chronicle = Chronicle(node, self)
        self.balancer = Balancer(node, self)
        self.maintenance = Maintenance(node, self)
        self._removals = Removals(node, self)
        self._losses = Losses(node, self)
        self._salvaging = Salvaging(node, self)
        self.branches = node.membership.partition.branches = Branches(node, self)
        self.samples = Samples(node)
        self._pool = RecentPool()
        self._open: dict[int, DiskCopy] = {}
        """Logs of copies, by log id; those of queues that have left this node included."""
        self._strays: dict[int, int] = {}
        """Copies that no view names, by log id, and since when."""
        self._numbers: dict[int, int] = {}
        """The first numbers not used by segments of copies that were let go, by log id."""
        self._full: set[str] = set()
        self._wanted: list[tuple[Change, Callable[[bool], None]]] = []
        self._moved: dict[Identity, None] = {}
        """Queues whose views were entered, of which the rest of the node has not heard."""
        self._due: OrderedDict[Identity, int] = OrderedDict()
        """Queues whose views are to be entered, in the order of the commands that made the first view of each
        that was not, and the indexes of those.
        """
        self._tick_at = 0
        self._had_lease = True
        self._hand_over: HandOver | None = None

    # --- start ----------------------------------------------------------------------------------

    def recovered(self) -> dict[int, DurableLog]:
        """Logs to be filled from disk: of mirrored queues, whether a view names this node now or did."""
        for view in self._node.meta.views.values():
            self._copy_log(view)
        return {log_id: copy.copy.log for log_id, copy in self._open.items()}

    def begin(self) -> None:
        """The logs are read: take part."""
        node = self._node
        for view in list(node.meta.views.values()):
            copy = self._open[view.log_id].copy
            if self._is_named(view):
                self._enter(view)
            elif copy.end:
                self._strays[view.log_id] = node.now.mono
            else:
                self._let_go(view.log_id)
            self._note_losses(view)
        for peer in node.membership.links:
            self.link_change(peer, True)
        self.policy.begin()
        self.maintenance.begin()

    def _is_named(self, view: View) -> bool:
        me = self._node.node_name
        return view.member(me) is not None or view.learner(me) is not None

    # --- views ----------------------------------------------------------------------------------

    def view_put(self, view: View) -> None:
        """There is a new view. Many may come at once, so it is entered later in this pass, or in the next
        ones: until then this node is as one that has not heard of it, which every node is for a while.

        Not so if this node ceases to be the master, or if the queue is new.
        """
        self.waivers.view_put(view)
        copy = self.mirrors.copies.get(view.id)
        is_deposed = copy is not None and copy.master is not None and not self._is_led(view)
        if is_deposed or (copy is None and view.epoch == FIRST_EPOCH):
            self._due.pop(view.identity, None)
            self._apply(view)
        else:
            self._due.setdefault(view.identity, self._node.meta_index)

    @property
    def due(self) -> Container[Identity]:
        """Queues whose views are not entered yet."""
        return self._due.keys()

    @property
    def before_due(self) -> int | None:
        """The index of the last metadata command all of whose views were entered; None: that of the last."""
        return next(iter(self._due.values())) - 1 if self._due else None

    def is_master(self, queue_id: int) -> bool:
        """Does this node act as the master of a mirrored queue?"""
        copy = self.mirrors.copies.get(queue_id)
        return copy is not None and copy.master is not None

    def _takes_none(self, copy: Copy) -> bool:
        return self.is_aside(copy.id) or self._node.switch.detours.is_aside(copy.id)

    def is_aside(self, queue_id: int) -> bool:
        """Is this node the master of a queue, cut off, and unable to commit anything of it?"""
        if not self._node.partition.spools or self._node.membership.has_lease():
            return False
        copy = self.mirrors.copies.get(queue_id)
        return copy is not None and copy.master is not None and not self.waivers.covers(copy)

    def _is_led(self, view: View) -> bool:
        return view.is_led_by(self._node.node_name, self.start)

    def _apply_due(self) -> None:
        """Enter some of the views that wait for it."""
        left = limits.mirror_views_per_pass
        while self._due and left > 0:
            identity = next(iter(self._due))
            del self._due[identity]
            view = self._node.meta.views.get(identity)
            if view is not None:
                was_master = self.is_master(view.id)
                self._apply(view)
                self.tell_moved()
                left -= 1 if self.is_master(view.id) == was_master else limits.mirror_promotion_views

    def _apply(self, view: View) -> None:
        self._moved[view.identity] = None
        if self._is_named(view):
            self._enter(view)
        else:
            self._leave(view)
        self._note_losses(view)
        self.policy.view_changed(view)

    def _note_losses(self, view: View) -> None:
        if view.partings:
            self._losses.view_changed(view)
            self._salvaging.view_changed(view)

    def view_deleted(self, view: View) -> None:
        """The queue is gone."""
        self._due.pop(view.identity, None)
        self.mirrors.drop(view.id)
        self.waivers.left(view.id)
        self._strays.pop(view.log_id, None)
        if self._open.pop(view.log_id, None) is not None:
            self._node.forget_log(view.log_id)

    def tell_moved(self) -> None:
        """Queues may have got or lost their masters: have what stands for them follow."""
        node = self._node
        moved, self._moved = self._moved, {}
        for identity in moved:
            record = node.meta.queues.get(identity)
            vhost = node.vhosts.get(identity[0])
            if record is None or vhost is None:
                continue
            vhost.follow_view(record)
            queue = node.switch.masters.get(record.id)
            if queue is not None and not queue.log.is_mirrored:
                self._begin_mirroring(queue)

    def _enter(self, view: View) -> None:
        disk = self._copy_log(view)
        self._strays.pop(view.log_id, None)
        options = Options() if view.id in self.mirrors.copies else self.policy.options(view)
        copy = self.mirrors.view_changed(view, disk, self._node.now, options)
        self.waivers.entered(view, copy)
        if copy.master is None:
            disk.resign()

    def _leave(self, view: View) -> None:
        disk = self._open.get(view.log_id)
        if disk is None or view.log_id in self._strays:
            return
        self.mirrors.view_changed(view, disk, self._node.now)
        self.mirrors.drop(view.id)
        self.waivers.left(view.id)
        disk.resign()
        self._strays[view.log_id] = self._node.now.mono

    def _copy_log(self, view: View) -> DiskCopy:
        disk = self._open.get(view.log_id)
        if disk is None:
            node = self._node
            log = node.logs.get(view.log_id)
            is_master = view.id in node.switch.masters  # it had no mirrors so far
            if log is None:
                segments = Segments(node.effects, view.log_id)
                segments.avoid(self._numbers.pop(view.log_id, 0))
                log = node.logs[view.log_id] = DurableLog(node.journal, segments)
                queue = node.meta.queues.get(view.identity)
                log.is_volatile = queue is not None and not queue.outlives_restart
            copy = self.log_class(log, self._pool, is_master=is_master)
            disk = self._open[view.log_id] = DiskCopy(copy, node.read, node.recycler, lambda: node.now)
        return disk

    def avoid(self, numbers: Mapping[int, int]) -> None:
        """Segments up to these numbers are left of logs this node has no copy of, and removed before long."""
        self._numbers.update(numbers)

    def copy_log(self, log_id: int) -> CopyLog | None:
        """The copy that this node has of a queue, named by a view or not."""
        disk = self._open.get(log_id)
        return None if disk is None else disk.copy

    def _let_go(self, log_id: int) -> None:
        """Nobody needs this copy any more."""
        self._strays.pop(log_id, None)
        disk = self._open.pop(log_id)
        segments = disk.copy.log.segments
        # Not that of its last segment: the files of one that was wiped are there until the next checkpoint.
        self._numbers[log_id] = segments.last_number
        # At once: what makes it useless is long past, and the same log may begin anew any moment.
        self._node.recycler.orphans += segments.files()
        self._node.logs.pop(log_id, None)

    def damaged(self, log_id: int, reason: str) -> bool:
        """Records of a copy cannot be read: it gets all of them anew. False if there is no such copy."""
        disk = self._open.get(log_id)
        copy = next((one for one in self.mirrors.copies.values() if one.log is disk), None)
        if disk is None or copy is None:
            return False
        disk.copy.log.damage = reason
        copy.damaged()
        text = f"a copy of a mirrored queue is damaged and made anew: {reason}; check the disk of this node"
        view = copy.view
        name = f"{view.vhost} {view.name}" if isinstance(view, View) else ""
        self._node.note("error", text, queue=name, event="mirror.damaged")
        return True

    # --- the master's side ----------------------------------------------------------------------

    def open_log(self, record: records.Queue) -> QueueLog:
        """The log of a queue that this node has become the master of."""
        disk = self._open[record.log_id]
        if not disk.copy.is_master:
            disk.take_over()
        return self._mirrored(record, disk)

    def _mirrored(self, record: records.Queue, disk: DiskCopy) -> MirroredLog:
        log, copy = disk.copy.log, self.mirrors.copies[record.id]
        return self.mirrored_class(copy, log, lambda: self.waivers.may_act(copy), log)

    def fill(self, queue: Queue) -> None:
        """Make ready what the log holds, for a queue that is new here."""
        record = queue.record
        copy = self.mirrors.copies[record.id]
        disk = self._open[record.log_id]
        assert copy.master is not None
        queue.is_filling = True
        drops = copy.master.drops_transient

        def filled(error: str | None) -> None:
            queue.filled(error)
            if error is not None:
                queue.log.mends(error)  # others may have it, now or when they are back

        def fill() -> None:
            disk.fill(queue.core, filled, is_restarted=drops)

        is_plain = not (drops or queue.core.max_priority or disk.copy.log.counts)
        self._node.switch.promotions.begin(queue, fill, is_plain=is_plain)

    def _begin_mirroring(self, queue: Queue) -> None:
        """A queue of this node has its first view."""
        disk = self._open[queue.record.log_id]
        log = self._mirrored(queue.record, disk)
        queue.take_log(log)
        kept = disk.copy.log
        # What a queue in memory holds was never flushed, nor waits for that; any other knows what was.
        end = kept.end if kept.is_volatile else kept.flushed
        kept.on_durable((end, kept.horizon, kept.life))

    # --- what operators ask ---------------------------------------------------------------------

    def synchronise(self, queue_id: int, wanted: bool) -> str:
        """Copy old messages to mirrors that lack them, or do so no longer; why not, if it cannot be."""
        copy = self.mirrors.copies.get(queue_id)
        if copy is None or copy.master is None:
            return "this node is not the master of the queue"
        self.mirrors.synchronise(queue_id, wanted=wanted)
        self.chronicle.sync_asked(queue_id, wanted=wanted)
        return ""

    def repair(self, queue_id: int) -> str:
        """Have the copy of a queue here fetched anew from other nodes; why not, if it cannot be."""
        copy = self.mirrors.copies.get(queue_id)
        if copy is None:
            return "this node has no copy of the queue"
        reason = copy.log.damage or "an operator has it fetched anew"
        if copy.master is not None:
            if copy.master.mend(reason, self._node.now):
                return ""
            return f"no other node with a copy in sync is there ({copy.log.damage or 'it is not damaged'})"
        copy.log.hurt(reason)
        copy.damaged()
        return ""

    def transfer(self, queue_id: int, to: str, done: Callable[[str], None], run: int = 0) -> None:
        """Make another node the master; `done` hears "" or why that did not happen.

        `run`: the rebalancing that wants it, 0 if none does.
        """
        self.policy.move(queue_id, to, done, run)

    @property
    def counters(self) -> Counters:
        """What has happened to mirrored queues, as far as this node tells of it."""
        return self.chronicle.counters

    def progress(self, queue_id: int) -> list[tuple[str, int, int, str]]:
        """(node, percent, bytes sent, phase) of the mirrors of a queue mastered here that are not in sync."""
        copy = self.mirrors.copies.get(queue_id)
        if copy is None or copy.master is None:
            return []
        streams = copy.streams.items()
        return [(peer, one.percent, one.sent, one.phase) for peer, one in streams if copy.is_unsynced(peer)]

    def hand_over(self, done: Callable[[], None]) -> None:
        """This node stops: give its queues to others; `done` is called when nothing is left to give."""
        self._hand_over = HandOver(self._node, self, done)
        if self._hand_over.count:
            self._node.note(
                "info", "mirrored queues are handed over", queues=self._hand_over.count, event="node.handover"
            )
        self._hand_over.step()

    # --- links and frames -----------------------------------------------------------------------

    def link_change(self, peer: str, is_up: bool, *, eof: bool = False) -> None:
        """A link came up or went down."""
        self._full.discard(peer)
        self.waivers.link_change(peer, eof=eof)
        self.mirrors.link_down(peer, self._node.now)
        if is_up:
            self._node.effects.send(peer, BULK, _GREETING.pack(GREETING, self.start))

    def link_suspected(self, peer: str, is_silent: bool) -> None:
        """Nothing has come over a link for long, or something has again."""
        self.mirrors.suspect(peer, self._node.now, is_silent=is_silent)

    def greeted(self, peer: str, payload: Data) -> None:
        """A peer has said which of its starts it is in."""
        if len(payload) != _GREETING.size:
            self._node.effects.cut(peer, "a greeting of another version")
            return
        self.mirrors.link_up(peer, _GREETING.unpack(payload)[1], self._node.now)

    def peer_frame(self, peer: str, payload: Data) -> None:
        """A frame of the protocol."""
        try:
            if payload[:1] == WAIVERS:
                self.waivers.peer_frame(peer, payload)
            else:
                self.mirrors.receive(peer, payload, self._node.now)
        except (frames.BadFrame, BadFrame) as error:
            self._node.note(
                "error", f"node '{peer}' sent a bad frame: {error}", peer=peer, event="link.bad_frame"
            )
            self.mirrors.link_down(peer, self._node.now)
            self._node.effects.cut(peer, str(error))

    def link_full(self, peer: str, is_full: bool) -> None:
        """A link takes no more for now, or takes more again."""
        if is_full:
            self._full.add(peer)
        else:
            self._full.discard(peer)
            self.mirrors.writable(peer)

    def send(self, peer: str, parts: tuple[Data, ...]) -> bool:
        """Hand a frame to a link, unless it is full."""
        if peer in self._full:
            return False
        self._node.effects.send(peer, BULK, b"".join(parts))
        return True

    # --- nodes ----------------------------------------------------------------------------------

    def node_changed(self, name: str, before: records.Node | None, after: records.Node | None) -> None:
        """The metadata says something new of a node."""
        if before is not None and (after is None or not after.is_live or after.start > before.start):
            if after is not None and not after.is_live:
                self._removals.begin(name, after.start)
            self.mirrors.node_dead(name, before.start)
        if after is None or after.is_live:
            self._removals.end(name)
        if after is not None and after.is_live:
            # Whoever came back within its life, or is a new node of an old name, is not lost any more.
            self.mirrors.node_live(name, after.start)
        self.policy.node_changed(name, before, after)
        if name == self._node.node_name:
            self.maintenance.node_changed(before, after)

    # --- proposals ------------------------------------------------------------------------------

    def propose(self, change: Change, done: Callable[[bool], None]) -> None:
        """Ask for a view at the end of the pass, together with others."""
        self._wanted.append((change, done))

    def _propose_wanted(self) -> None:
        wanted, self._wanted = self._wanted, []
        views = {view.id: view for view in self._views_of(wanted)}
        asked: list[tuple[ChangeView, Callable[[bool], None]]] = []
        for change, done in wanted:
            view = views.get(change.queue)
            if view is None or view.epoch != change.epoch:
                done(False)
            else:
                asked.append((self.policy.command(view, change), done))
        if not asked:
            return
        commands = tuple(command for command, _ in asked)
        command: Command = commands[0] if len(commands) == 1 else ChangeViews(commands)

        def answered(_: Outcome) -> None:
            for one, done in asked:
                after = self._node.meta.views.get((one.vhost, one.name))
                done(after is not None and after.id == one.id and after.epoch > one.epoch)

        self._node.membership.propose(command, answered, False)

    def _views_of(self, wanted: list[tuple[Change, Callable[[bool], None]]]) -> list[View]:
        found = []
        for change, _ in wanted:
            copy = self.mirrors.copies.get(change.queue)
            if copy is not None and isinstance(copy.view, View):
                found.append(copy.view)
        return found

    # --- the pass -------------------------------------------------------------------------------

    @property
    def needs_pass(self) -> bool:
        """Is something left for the next pass?"""
        is_looking = self.policy.needs_pass and self._hand_over is None
        is_asking = bool(self._wanted) or self._removals.needs_pass
        is_telling = self.samples.needs_pass or self.chronicle.needs_pass
        is_moving = self.balancer.needs_pass or self.maintenance.needs_pass
        is_busy = bool(self._due) or self.mirrors.has_more or self.branches.needs_pass
        return is_busy or is_asking or is_looking or is_telling or is_moving

    def end_pass(self, now: Now) -> None:
        """Count, report, send and ask."""
        self.chronicle.step()
        self.samples.step()
        self.balancer.step()
        self.branches.step()
        if self._hand_over is None:
            self.maintenance.step()
        if not self.mirrors.copies and not self.needs_pass:
            return
        has_lease = self._node.membership.has_lease()
        if has_lease and not self._had_lease:
            for copy in self.mirrors.copies.values():
                if copy.watcher is not None:
                    copy.watcher.marks_moved()
        self._had_lease = has_lease
        self._removals.step()
        if self._due:
            self._apply_due()
        self.mirrors.end_pass(now)
        if self._hand_over is not None:
            self._hand_over.step()
        elif not self._due:
            # Views come first: what policies want is nothing anybody waits for.
            self.policy.step()
        if self._wanted:
            self._propose_wanted()

    def on_timer(self, now: Now) -> None:
        """Time has passed."""
        if self.mirrors.copies and now.mono >= self._tick_at:
            self._tick_at = now.mono + limits.mirror_tick_us
            self.mirrors.tick(now)
            self.waivers.tick()

    @property
    def timer_at(self) -> int:
        """When `on_timer` is needed next; 0: not at all."""
        return self._tick_at if self.mirrors.copies else 0

    def tick(self) -> None:
        """Every second: let go of copies that nobody has asked for."""
        mono = self._node.now.mono
        for log_id in [one for one, since in self._strays.items() if mono - since > limits.stray_copy_us]:
            if not self._salvaging.is_kept(log_id):
                self._let_go(log_id)
        self._losses.tick()
        self._salvaging.tick()
        self.branches.tick()
        self.policy.tick()
        self.balancer.tick()
        self.maintenance.tick()
        self.chronicle.tick()
        self.samples.tick()
