"""All mirrored queues of a node: inputs come in here, frames and wishes for views go out.

Guarantee: nothing is done per message, and nothing per queue unless something happened to that queue; what
happens to many queues at once (a link, a dead node) is worked off in slices. There are no timers per queue.

Inputs: views, links, frames, flushed logs, ticks. `end_pass` sends what the pass has come to.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.mirror import frames
from mirrormq.mirror.copy import DEFAULTS, Copy
from mirrormq.mirror.frames import Base, Flow, Hello, Part, Push, Report
from mirrormq.mirror.links import Link
from mirrormq.mirror.master import Master
from mirrormq.mirror.member import Member
from mirrormq.mirror.ports import CopyLog, Data, Event, Options, Outside
from mirrormq.mirror.source import Stream
from mirrormq.mirror.views import View

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


class Mirrors:
    """The mirroring of one process of a node."""

    master_class: type[Master] = Master
    member_class: type[Member] = Member
    stream_class: type[Stream] = Stream

    def __init__(self, me: str, start: int, outside: Outside, now: Now) -> None:
        self.me = me
        self.start = start
        self.outside = outside
        self.is_held: Callable[[Copy], bool] = _never
        """Must a master here wait for another one that may still act without a lease? Then it admits nobody:
        whoever is not in sync yet has granted nothing to that one.
        """
        self.is_aside: Callable[[Copy], bool] = _never
        """Are publishes to a queue mastered here not taken, since nothing could be committed?"""
        self.mono = now.mono
        self.now = now
        """The time of the present input."""
        self.copies: dict[int, Copy] = {}
        self.events: list[Event] = []
        self.proposals = 0
        """Changes of views that are asked for and not answered."""
        self.dirty_masters: set[Copy] = set()
        self.dirty_members: set[Copy] = set()
        self.pending: dict[Copy, None] = {}
        """Mastered here, and not everything is durable."""
        self.uneasy: dict[Copy, None] = {}
        """Mastered here, and another view may be due."""
        self.urgent: set[Copy] = set()
        """Of these, those to be looked at in this pass."""
        self.hasty: OrderedDict[Copy, None] = OrderedDict()
        """Mastered here, and a member may be lost: looked at as soon as more may be asked for, and not by the
        tick, since publishers wait for it.
        """
        self.hurt: dict[Copy, str] = {}
        """Mastered here, and something of it cannot be read: another member is to take over."""
        self.removing: set[str] = set()
        """Dead nodes that somebody else takes out of all views mastered here."""
        self.to_touch: set[Copy] = set()
        self.unanswered: dict[Copy, int] = {}
        """Hellos without an answer, and until when to wait for it."""
        self.throttled: list[Stream] = []
        self.asked: list[Stream] = []
        """Streams that have to begin anew."""
        self.by_peer: dict[str, dict[Copy, None]] = {}
        """Queues whose present view names this peer."""
        self._links: dict[str, Link] = {}
        self._dead: dict[str, int] = {}
        """The last start of a node that is known to be over."""
        self._changes: deque[tuple[list[Copy], str, bool]] = deque()
        """Queues that have not heard yet that a peer is there, or is not; the last of a list comes first."""
        self._early: dict[int, dict[str, list[Hello | Report]]] = {}
        """What peers said about epochs this node has not heard of."""

    def _note_time(self, now: Now) -> None:
        self.now = now
        self.mono = max(self.mono, now.mono)

    # --- views ---

    def view_changed(self, view: View, log: CopyLog, now: Now, options: Options = DEFAULTS) -> Copy:
        """A view was made; `log` is this node's copy, empty if it has none yet. `options` are those of the
        queue when it is new here; `set_options` changes them.
        """
        self._note_time(now)
        copy = self.copies.get(view.id)
        if copy is None:
            copy = self.copies[view.id] = Copy(self, view.id, log)
            copy.options = options
        copy.enter(view, now)
        for peer, said in self._early.pop(view.id, {}).items():
            for item in said:
                self._hear(peer, item)
        return copy

    def set_options(self, queue: int, options: Options) -> None:
        """The policy of a queue says something else."""
        copy = self.copies.get(queue)
        if copy is not None:
            was_manual = copy.options.is_manual
            copy.options = options if options != DEFAULTS else DEFAULTS
            if was_manual and not options.is_manual:
                self.synchronise(queue)
            if copy.master is not None:
                self.dirty_masters.add(copy)
                self.uneasy[copy] = None

    def drop(self, queue: int) -> None:
        """The queue is deleted, or this node has no copy of it any more."""
        copy = self.copies.pop(queue, None)
        if copy is not None:
            copy.leave()
            for collection in (self.dirty_masters, self.dirty_members, self.urgent, self.to_touch):
                collection.discard(copy)
            self.hasty.pop(copy, None)
            self.hurt.pop(copy, None)

    def transfer(self, queue: int, node: str, now: Now) -> bool:
        """Hand the queue over to another unchanged member; whether that was begun. Nothing may be appended
        until the view changes or `transfer_failed` is told.
        """
        copy = self.copies.get(queue)
        if copy is None or copy.master is None or copy.master.transfer_to or node == self.me:
            return False
        if not any(entry.node == node and not entry.is_restarted for entry in copy.master.view.members):
            return False
        copy.master.transfer_to = node
        copy.master.transfer_until = now.mono + limits.mirror_transfer_us
        self.uneasy[copy] = None
        self.urgent.add(copy)
        return True

    def synchronise(self, queue: int, *, wanted: bool = True) -> None:
        """Copy old records to learners of a queue, also in manual mode; or stop where copies are."""
        copy = self.copies.get(queue)
        if copy is not None and copy.master is not None:
            copy.master.is_sync_wanted, copy.master.is_copying_stopped = wanted, not wanted
            if wanted:
                for stream in list(copy.streams.values()):
                    stream.copy_now()

    # --- links ---

    def link(self, peer: str) -> Link:
        """What this node knows of the way to a peer."""
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = Link(peer, self.mono)
        return link

    def link_up(self, peer: str, start: int, now: Now) -> None:
        """There is a connection to a peer, which is in this life."""
        self._note_time(now)
        link = self.link(peer)
        if link.is_up:
            self.link_down(peer, now)
        link.is_up, link.is_suspect, link.start = True, False, start
        self._changes.append((self._concerned(peer), peer, True))

    def link_down(self, peer: str, now: Now) -> None:
        """The connection to a peer is gone."""
        self._note_time(now)
        link = self.link(peer)
        if link.is_up:
            link.is_up, link.down_since = False, now.mono
        link.clear()
        self._early = {
            queue: {name: said for name, said in by_peer.items() if name != peer}
            for queue, by_peer in self._early.items()
        }
        # What belongs to the old connection has no effect from here on; queues hear of it little by little.
        self._changes.append((self._concerned(peer), peer, False))

    def suspect(self, peer: str, now: Now, *, is_silent: bool) -> None:
        """A connected peer has said nothing for long, or says something again."""
        self._note_time(now)
        link = self.link(peer)
        if link.is_up and link.is_suspect != is_silent:
            link.is_suspect = is_silent
            self._changes.append((self._concerned(peer), peer, not is_silent))

    def node_dead(self, node: str, start: int) -> None:
        """A life of a node is over, its lease included."""
        self._dead[node] = max(start, self._dead.get(node, 0))
        self.look_at(node)

    def look_at(self, node: str) -> None:
        """Views that name a node may have to change."""
        mine = dict.fromkeys(copy for copy in self._concerned(node) if copy.master is not None)
        self.uneasy.update(mine)
        self.hasty.update(mine)

    def node_live(self, node: str, start: int) -> None:
        """A life of a node that was called dead is not over after all."""
        if self._dead.get(node, 0) >= start:
            self._dead[node] = start - 1

    def writable(self, peer: str) -> None:
        """The link takes more."""
        self.link(peer).is_blocked = False

    def is_reachable(self, peer: str) -> bool:
        """Whether a peer can be talked to."""
        link = self._links.get(peer)
        return link is not None and link.is_reachable

    def is_lost(self, node: str, start: int) -> bool:
        """Whether a member has to be taken for gone."""
        if self._dead.get(node, 0) >= start:
            return True
        link = self.link(node)
        if link.is_suspect:
            # Also when its connection has ended since: it was waited for long enough before.
            return True
        return not link.is_up and self.mono - link.down_since > limits.peer_suspect_us

    def _concerned(self, peer: str) -> list[Copy]:
        return list(self.by_peer.get(peer, ()))

    # --- frames ---

    def receive(self, peer: str, data: Data, now: Now) -> None:
        """A frame came; raises BadFrame if it is none."""
        self._note_time(now)
        frame, at = frames.decode(data)
        if not self.link(peer).is_up:
            return
        for hello in frame.hellos:
            self._hear(peer, hello)
        for stop in frame.stops:
            copy = self.copies.get(stop.queue)
            if copy is not None:
                copy.on_stop(peer, stop)
        for report in frame.reports:
            self._hear(peer, report)
        for again in frame.agains:
            copy = self.copies.get(again.queue)
            if copy is not None and copy.member is not None:
                copy.member.on_again(peer, again)
        raw = memoryview(data)
        for flow in frame.flows:
            self._take(peer, flow, raw[at : at + flow.size], now)
            at += flow.size
        for mark in frame.marks:
            copy = self.copies.get(mark.queue)
            if copy is not None and copy.member is not None and copy.member.view.master == peer:
                copy.member.on_mark(mark)

    def _hear(self, peer: str, item: Hello | Report) -> None:
        copy = self.copies.get(item.queue)
        if copy is None or copy.view is None or item.epoch > copy.view.epoch:
            # The peer has heard of this epoch first.
            by_peer = self._early.setdefault(item.queue, {})
            said = [old for old in by_peer.get(peer, []) if type(old) is not type(item)]
            by_peer[peer] = [*said, item]
            if len(self._early) > limits.mirror_early_max:
                self._early.pop(next(iter(self._early)))
        elif isinstance(item, Hello):
            copy.on_hello(peer, item)
        elif copy.master is not None:
            copy.master.on_report(peer, item)

    def _take(self, peer: str, flow: Flow, data: Data, now: Now) -> None:
        copy = self.copies.get(flow.queue)
        member = copy.member if copy is not None else None
        if member is None:
            return
        match flow:
            case Push():
                member.on_push(peer, flow, data, now)
            case Base():
                member.on_base(peer, flow, data, now)
            case Part():
                member.on_part(peer, flow, data, now)

    # --- the pass ---

    @property
    def has_more(self) -> bool:
        """Whether another pass is wanted soon: something was left for it."""
        return bool(
            self._changes
            or self.asked
            or (self.hasty and self.proposals < limits.mirror_proposals_max)
            or any(link.may_read for link in self._links.values())
        )

    def end_pass(self, now: Now, *, is_tick: bool = False) -> None:
        """Count, report and send."""
        self._note_time(now)
        self._tell_changes()
        asked, self.asked = self.asked, []
        for stream in asked:
            stream.answer()
        for copy in _taken(self.to_touch):
            if copy.master is not None:
                copy.master.touch(now)
        for copy in _taken(self.dirty_masters):
            if copy.master is not None:
                copy.master.recount(now)
        self._steps(_taken(self.urgent), now)
        if self.hasty:
            self._hurry(now)
        for copy in _taken(self.dirty_members):
            if copy.member is not None:
                copy.member.report()
        for link in self._links.values():
            link.pump()
            link.send(self.outside, with_marks=is_tick)

    def tick(self, now: Now) -> None:
        """Time has passed: at least every `mirror_tick_us`."""
        self._note_time(now)
        late = [copy for copy, until in self.unanswered.items() if until <= self.mono]
        for copy in late:
            if copy.member is not None:
                # The neighbour cannot answer: it is not matched itself, or behind. The master always can.
                copy.member.ask(copy.member.view.master)
        throttled, self.throttled = self.throttled, []
        for stream in throttled:
            stream.take_turn()
        for copy, reason in _next_of(self.hurt):
            if copy.master is not None:
                copy.master.mend(reason, now)
        for line in (self.pending, self.uneasy):
            self._steps([copy for copy, _ in _next_of(line)], now)
        self.end_pass(now, is_tick=True)

    def _hurry(self, now: Now) -> None:
        for _ in range(min(len(self.hasty), limits.mirror_slice_queues)):
            if self.proposals >= limits.mirror_proposals_max:
                return
            copy = next(iter(self.hasty))
            del self.hasty[copy]
            self._steps((copy,), now)

    def _tell_changes(self) -> None:
        left = limits.mirror_slice_queues
        while self._changes and left:
            copies, peer, is_there = self._changes[0]
            if not copies:
                self._changes.popleft()
                continue
            self._tell_change(copies.pop(), peer, is_there=is_there)
            left -= 1

    def _tell_change(self, copy: Copy, peer: str, *, is_there: bool) -> None:
        if self.copies.get(copy.id) is not copy or self.is_reachable(peer) != is_there:
            return
        if is_there:
            copy.peer_up(peer)
        elif not self.link(peer).is_up:
            copy.peer_down(peer)
        else:
            # Silent, but connected: what it reported stays true.
            if copy.master is not None:
                self.uneasy[copy] = self.hasty[copy] = None
            if copy.member is not None and copy.member.source == peer:
                copy.member.ask()

    def _steps(self, copies: "Iterable[Copy]", now: Now) -> None:
        for copy in copies:
            if copy.master is None or not copy.master.step(now):
                self.uneasy.pop(copy, None)
            else:
                self.uneasy[copy] = None


def _never(_: Copy) -> bool:
    """No mode of this node asks for it."""
    return False


def _next_of(line: dict[Copy, T]) -> list[tuple[Copy, T]]:
    """Whose turn it is; they go to the end of the line, or those behind them would never be looked at where
    nothing can be done about the first ones.
    """
    some = list(islice(line.items(), limits.mirror_slice_queues))
    for copy, value in some:
        del line[copy]
        line[copy] = value
    return some


def _taken(copies: set[Copy]) -> list[Copy]:
    """Empty a set; in a fixed order, so that the same inputs give the same outputs."""
    taken = sorted(copies, key=_id) if len(copies) > 1 else list(copies)
    copies.clear()
    return taken


def _id(copy: Copy) -> int:
    return copy.id
