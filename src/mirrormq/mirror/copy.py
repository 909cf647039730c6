"""The copy of one queue's record stream on this node, and its part in the present view.

Guarantee: a node is master or mirror of an epoch only if the view names it in its present life (F2), and at
most one of both; what belonged to an earlier epoch has no effect on a later one.
"""

from typing import TYPE_CHECKING

from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.mirror import ring, views
from mirrormq.mirror.frames import Hello, Stop
from mirrormq.mirror.master import Master
from mirrormq.mirror.member import Member
from mirrormq.mirror.ports import CopyLog, Data, Options
from mirrormq.mirror.source import Stream
from mirrormq.mirror.views import View

if TYPE_CHECKING:
    from mirrormq.mirror.mirroredlog import Watcher
    from mirrormq.mirror.mirrors import Mirrors

DEFAULTS = Options()


class Copy:
    """One queue on this node."""

    __slots__ = ("id", "log", "master", "member", "mirrors", "nonce", "options", "streams", "view", "watcher")

    def __init__(self, mirrors: "Mirrors", queue: int, log: CopyLog) -> None:
        self.mirrors = mirrors
        self.id = queue
        self.log = log
        self.options = DEFAULTS
        self.view: View | None = None
        self.master: Master | None = None
        self.member: Member | None = None
        self.streams: dict[str, Stream] = {}
        """What peers get from here, by peer."""
        self.nonce = 0
        self.watcher: Watcher | None = None
        """Who wants to know when marks move."""
        log.on_batch = self.appended
        log.on_flushed = self.flushed
        log.held_from = self.held_from

    # --- views ---

    def enter(self, view: View, now: Now) -> None:
        """A view was made. An older one than the present changes nothing (F1)."""
        if self.view is not None and view.epoch <= self.view.epoch:
            return
        self.view = view
        for peer in [peer for peer, stream in self.streams.items() if stream.hello.epoch < view.epoch]:
            self.streams.pop(peer).end()
        mirrors = self.mirrors
        entry = views.entry_of(view, mirrors.me)
        if self.member is not None:
            self.member.leave_source()
            self.member = None
        self._index(view, entry)
        if entry is None or entry.start != mirrors.start:
            self._resign()
        elif views.acting_master(view) == mirrors.me:
            self._preside(view)
        else:
            self._resign()
            self.member = mirrors.member_class(self, view)
            self.member.ask()
            mirrors.dirty_members.add(self)
        self.answer_streams()
        if self.master is not None and self.log.end > self.master.durable:
            self.master.touch(now)

    def _preside(self, view: View) -> None:
        mirrors = self.mirrors
        if self.master is None:
            self.master = mirrors.master_class(self, view)
        else:
            self.master.enter(view)
        mirrors.uneasy[self] = None
        mirrors.dirty_masters.add(self)
        if self.master.lost_member() is not None:
            mirrors.hasty[self] = None

    def _resign(self) -> None:
        mirrors = self.mirrors
        if self.master is not None:
            hurt, self.master = self.master.hurt, None
            mirrors.hurt.pop(self, None)
            self.log.resign()
            if hurt:
                self.log.hurt(hurt)
            mirrors.pending.pop(self, None)
            mirrors.uneasy.pop(self, None)
            mirrors.hasty.pop(self, None)
            self.moved()

    def _index(self, view: View, entry: views.Entry | None) -> None:
        """Keep note of the queues a link matters for."""
        mirrors = self.mirrors
        nodes = {one.node for one in (*view.members, *view.learners)} if entry is not None else set()
        for peer, copies in mirrors.by_peer.items():
            if peer not in nodes:
                copies.pop(self, None)
        for peer in nodes - {mirrors.me}:
            mirrors.by_peer.setdefault(peer, {})[self] = None

    def leave(self) -> None:
        """This node has no part in the queue any more."""
        if self.member is not None:
            self.member.leave_source()
            self.member = None
        self._resign()
        for stream in self.streams.values():
            stream.end()
        self.streams.clear()
        for copies in self.mirrors.by_peer.values():
            copies.pop(self, None)

    def is_learner(self, node: str) -> bool:
        """Whether a node is not synchronised in the present view."""
        return self.view is not None and views.learner_of(self.view, node) is not None

    def is_unsynced(self, node: str) -> bool:
        """Whether a node is a learner, or a member that was restarted and has not been taken back."""
        entry = None if self.view is None else views.member_of(self.view, node)
        return entry.is_restarted if entry is not None else self.is_learner(node)

    # --- serving others ---

    def on_hello(self, peer: str, hello: Hello) -> None:
        """A peer wants this node to push. An answer may have to wait for a view, or for a match."""
        old = self.streams.pop(peer, None)
        if old is not None:
            old.end()
        if self.view is not None and hello.epoch < self.view.epoch:
            return
        stream = self.streams[peer] = self.mirrors.stream_class(self, self.mirrors.link(peer), hello)
        if self.view is not None and hello.epoch == self.view.epoch:
            stream.answer()

    def on_stop(self, peer: str, stop: Stop) -> None:
        """A peer has another source."""
        stream = self.streams.get(peer)
        if stream is not None and stream.hello.nonce <= stop.nonce:
            stream.end()
            del self.streams[peer]

    def matched_end(self) -> int | None:
        """Up to where this log is the master's in this epoch; None if that is not known, or if it is damaged:
        it may end before what it once had, and nobody should give up records for that.
        """
        if self.log.damage is not None:
            return None
        if self.master is not None:
            return self.log.end
        if self.member is None or not self.member.is_matched or not self.member.is_in_sync():
            return None
        return self.log.end if self.log.is_complete else None

    def answer_streams(self) -> None:
        """Peers that wait for an answer may get one by now."""
        assert self.view is not None
        for stream in list(self.streams.values()):
            if stream.hello.epoch == self.view.epoch:
                stream.answer()

    def forward(self, batch: Data, last: int) -> None:
        """A batch was appended here: pass it on, before it is flushed."""
        for stream in self.streams.values():
            stream.offer(batch, last)

    def appended(self, batch: Data, first: int, count: int) -> None:
        """The master has appended a batch."""
        self.forward(batch, first + count - 1)
        self.mirrors.dirty_masters.add(self)

    def flushed(self) -> None:
        """More of this log is flushed."""
        if self.master is not None:
            self.mirrors.dirty_masters.add(self)
        elif self.member is not None:
            self.mirrors.dirty_members.add(self)
            self.member.copied()

    def damaged(self) -> None:
        """The log was found to be damaged: a mirror leaves its part, and gets a full copy."""
        if self.member is not None:
            self.member.ask()

    def held_from(self) -> int:
        """The log is needed from this seq on by those who are served from it (F14)."""
        return min((stream.held_from for stream in self.streams.values()), default=self.log.end + 1)

    def moved(self) -> None:
        """Marks have moved, or this node is no master any more."""
        for stream in self.streams.values():
            stream.answer()
            stream.complete_by_itself()
        if self.watcher is not None:
            self.watcher.marks_moved()

    def last_seq(self, batch: Data) -> int:
        """The last seq of a dense batch."""
        head = records.read_head(batch, 0)
        assert head is not None
        return head[3] + head[4] - 1

    # --- links ---

    def peer_up(self, peer: str) -> None:
        """A connection was made: a member says hello and reports on it."""
        member = self.member
        if member is None:
            return
        wanted = ring.source_of(member.view, self.mirrors.me, self.mirrors.is_reachable)
        if wanted == peer or not member.source:
            member.ask()
        if member.view.master == peer:
            member.reported = None
            self.mirrors.dirty_members.add(self)

    def peer_down(self, peer: str) -> None:
        """A connection is gone."""
        stream = self.streams.pop(peer, None)
        if stream is not None:
            stream.end()
        if self.master is not None:
            self.master.forget(peer)
            self.mirrors.uneasy[self] = None
            self.mirrors.dirty_masters.add(self)
        elif self.member is not None and self.member.source == peer:
            self.member.ask()
