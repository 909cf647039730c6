"""The master of a mirrored queue: counts what every member has, and asks for other views.

Guarantees
- The durable mark is flushed by every recorded and every proposed member, this node included (F7, F10), and
  only moves through a record of this epoch (F3). The received mark likewise, without the flush.
- A learner is admitted only when it is complete and has flushed all that is committed, and after something of
  this epoch is (F8). The last in-sync member is never removed.
- Marks wait for a learner that lacks nothing but a flush, for a bounded time.
- A member that cannot be reached, or that holds everybody up for longer than the policy allows, is taken out
  of the view rather than out of the count.
"""

from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.mirror import views
from mirrormq.mirror.frames import COMPLETE, LEAVE, Mark, Report
from mirrormq.mirror.ports import Event
from mirrormq.mirror.views import Change, Entry, View

if TYPE_CHECKING:
    from mirrormq.mirror.copy import Copy


class Master:
    """One mastership, over as many epochs as it lasts."""

    __slots__ = ("awaited", "awaited_again", "awaited_until", "confirmed", "connections", "copy",
                 "drops_transient", "durable", "flushed", "hurt", "is_copying_stopped", "is_sync_wanted",
                 "not_before", "own_first", "proposed", "received", "refused", "reports", "stalled_at",
                 "told", "transfer_to", "transfer_until", "view")  # fmt: skip

    def __init__(self, copy: "Copy", view: View) -> None:
        self.copy = copy
        self.received = self.durable = copy.log.folded
        self.drops_transient = view.drops_transient
        """Still to be written, with the first record of this mastership whatever epoch that is in."""
        self.is_sync_wanted = self.is_copying_stopped = False
        """What operators want: full copies in manual mode, and none for now in any mode."""
        self.transfer_to = ""
        self.transfer_until = 0
        self.flushed = 0
        """With asynchronous replication: what this node had flushed when marks were last counted."""
        self.hurt = ""
        """Why something of this log cannot be read."""
        self.enter(view)
        self.confirmed = 0 if self.is_held else self.durable
        """The durable mark as long as there are enough members; it stands still while there are not."""

    def enter(self, view: View) -> None:
        """A new epoch of this mastership: what members said before counts no longer."""
        self.view = view
        self.own_first = 0
        """The first record of this epoch; 0 until there is one."""
        self.reports: dict[str, Report] = {}
        self.connections: dict[str, int] = {}
        """The connections that reports came on."""
        self.told: dict[str, int] = {}
        """The durable mark that members were told last."""
        self.refused: set[str] = set()
        """Members that could go on only with a full copy."""
        self.proposed: Change | None = None
        self.not_before = 0
        """When another change may be asked for, after a refusal."""
        self.awaited = ""
        """A learner that has received everything: marks wait for its flush, too, so that it can catch up."""
        self.awaited_until = self.awaited_again = 0
        self.stalled_at = self.copy.mirrors.mono
        if self.transfer_to and views.member_of(view, self.transfer_to) is None:
            self.transfer_to = ""

    # --- what is appended here ---

    @property
    def is_frozen(self) -> bool:
        """Nothing may be appended: another node is about to become the master."""
        proposed = self.proposed
        return bool(self.transfer_to) or (proposed is not None and proposed.kind == views.SURRENDER)

    @property
    def is_held(self) -> bool:
        """Publishes wait: too few in-sync members."""
        return len(self.view.members) < self.copy.options.min_in_sync

    def mend(self, reason: str, now: Now) -> bool:
        """Something of this log cannot be read: hand the queue over to a member that has it, and get all of
        it from there; whether there is one. A member that was restarted is in time only for what is flushed,
        so an unchanged one is asked first.
        """
        mirrors = self.copy.mirrors
        self.hurt = reason
        mirrors.hurt[self.copy] = reason
        if self.is_frozen:
            return True
        others = [entry for entry in self.view.members if mirrors.is_reachable(entry.node)]
        whole = next((entry for entry in others if not entry.is_restarted), None)
        if whole is not None:
            return mirrors.transfer(self.copy.id, whole.node, now)
        if others and self.proposed is None and now.mono >= self.not_before:
            self._propose(self._change(views.SURRENDER, others[0]))
        return bool(others)

    def touch(self, now: Now) -> None:
        """Something is about to be appended, delivered or admitted: begin the epoch (F2, F3)."""
        if not self.own_first:
            self.own_first = self.copy.log.end + 1
            drops, self.drops_transient = self.drops_transient, False
            self.copy.log.begin_epoch(self.view.epoch, self.copy.mirrors.me, now, drops_transient=drops)

    # --- marks ---

    def on_report(self, peer: str, report: Report) -> None:
        """How far a copy is, on this connection, in this epoch and in its present life."""
        mirrors = self.copy.mirrors
        if not self.is_current(peer, report):
            return
        connection = mirrors.link(peer).connection
        if self.connections.get(peer) != connection:
            self.connections[peer] = connection
            self.told.pop(peer, None)
        self.reports[peer] = report
        mirrors.dirty_masters.add(self.copy)
        if self._is_candidate(peer) or report.flags & LEAVE:
            mirrors.uneasy[self.copy] = None
            mirrors.urgent.add(self.copy)

    def is_current(self, peer: str, report: Report) -> bool:
        """Whether a report counts: reports of another life of the peer or of another epoch do not."""
        entry = views.entry_of(self.view, peer)
        start = self.copy.mirrors.link(peer).start
        return report.epoch == self.view.epoch and entry is not None and entry.start == start

    def report_of(self, node: str) -> Report | None:
        """What a copy said last, if the connection it said it on is still there."""
        report = self.reports.get(node)
        if report is None or self.connections[node] != self.copy.mirrors.link(node).connection:
            return None
        return report

    def forget(self, peer: str) -> None:
        """The connection to a peer is gone, and with it what it said."""
        self.reports.pop(peer, None)
        self.told.pop(peer, None)

    def required(self) -> list[str]:
        """Whose copy counts: all recorded members and those of the proposed view (F7)."""
        nodes = [entry.node for entry in self.view.members if entry.node != self.copy.mirrors.me]
        if self.proposed is not None and self.proposed.kind == views.ADMIT:
            nodes.append(self.proposed.node)
        elif self.awaited:
            nodes.append(self.awaited)
        return nodes

    def own_flushed(self) -> int:
        """What this node itself has flushed (F10)."""
        return self.copy.log.durable

    def may_commit(self, seq: int) -> bool:
        """A mark moves only through a record of this epoch: an older one may still be replaced (F3)."""
        return bool(self.own_first) and seq >= self.own_first

    def recount(self, now: Now) -> None:
        """Compute the marks anew."""
        log, mirrors = self.copy.log, self.copy.mirrors
        received, flushed = log.end, self.own_flushed()
        if self.awaited and self.report_of(self.awaited) is None:
            self.awaited = ""
        for node in self.required():
            report = self.report_of(node)
            if report is None:
                received = flushed = 0
                break
            received = min(received, report.received)
            flushed = min(flushed, report.flushed)
        has_moved = False
        if received > self.received and self.may_commit(received):
            self.received = received
            has_moved = True
        if flushed > self.durable and self.may_commit(flushed):
            self.durable = flushed
            self.received = max(self.received, flushed)
            self.stalled_at = mirrors.mono
            log.fold(flushed)
            has_moved = True
        if not self.is_held and self.confirmed != self.durable:
            self.confirmed = self.durable
            has_moved = True
        if self.copy.options.is_async and self.own_flushed() > self.flushed:
            self.flushed = self.own_flushed()
            has_moved = True
        if log.end > self.durable:
            if self.copy not in mirrors.pending:
                self.stalled_at = mirrors.mono
                mirrors.pending[self.copy] = None
            if not self.own_first:
                # Records of an earlier epoch wait for their confirm: they need one of this epoch behind them.
                self.touch(now)
        else:
            mirrors.pending.pop(self.copy, None)
        self.tell_marks()
        if has_moved:
            self.copy.moved()

    def tell_marks(self) -> None:
        """Let copies know what is committed; it travels with whatever goes to them next."""
        mirrors = self.copy.mirrors
        for node in self.reports:
            if self.told.get(node, -1) < self.durable and mirrors.link(node).is_up:
                self.told[node] = self.durable
                mirrors.link(node).marks[self.copy.id] = Mark(self.copy.id, self.view.epoch, self.durable)

    # --- full copies ---

    def may_copy_to(self, peer: str) -> bool:
        """Whether a peer whose log does not fit gets a full copy; a member has to leave the view first."""
        if views.learner_of(self.view, peer) is not None:
            return True
        self.refused.add(peer)
        self.copy.mirrors.uneasy[self.copy] = None
        return False

    def may_snapshot(self) -> bool:
        """Whether the committed state is known in full: something of this epoch is committed."""
        if not self.may_commit(self.durable):
            self.copy.mirrors.to_touch.add(self.copy)
            return False
        return True

    # --- views ---

    def step(self, now: Now) -> bool:
        """Ask for the next view, if another one is due; whether to look again later."""
        mirrors = self.copy.mirrors
        if self.proposed is not None or now.mono < self.not_before:
            return True
        if self.awaited and now.mono > self.awaited_until:
            self.awaited = ""
            mirrors.dirty_masters.add(self.copy)
        if mirrors.proposals >= limits.mirror_proposals_max:
            if self.lost_member() is not None:
                mirrors.hasty[self.copy] = None
            return True
        change = self._next_change(now)
        if change is not None:
            self._propose(change)
            return True
        return self._is_uneasy()

    def lost_member(self) -> Entry | None:
        """The first member that has to be taken for gone, and that nobody else takes out of the view."""
        mirrors = self.copy.mirrors
        for entry in self.view.members:
            if entry.node != mirrors.me and mirrors.is_lost(entry.node, entry.start):
                return None if entry.node in mirrors.removing else entry
        return None

    def _next_change(self, now: Now) -> Change | None:
        lost = self.lost_member()
        if lost is not None:
            return self._change(views.REMOVE, lost)
        for entry in self.view.members:
            if entry.node != self.copy.mirrors.me and self._is_slow(entry, now.mono):
                return self._change(views.DEMOTE, entry)
        for learner in self.view.learners:
            report = self.report_of(learner.node)
            if report is not None and report.flags & LEAVE:
                return self._change(views.REMOVE_LEARNER, learner)
        restarted = [entry for entry in self.view.members if entry.is_restarted]
        for candidate in (*restarted, *self.view.learners):
            if candidate.node != self.copy.mirrors.me and self.may_admit(candidate, now):
                return self._change(views.ADMIT, candidate)
        if self.transfer_to:
            return self._transfer(now)
        return None

    def _is_slow(self, entry: Entry, mono: int) -> bool:
        """Whether a member has to become a learner: it needs a full copy, or holds everybody up."""
        mirrors = self.copy.mirrors
        if entry.node in self.refused:
            return True
        report = self.report_of(entry.node)
        if report is not None and report.flags & LEAVE:
            return True
        if self.copy not in mirrors.pending or len(self.view.members) <= self.copy.options.min_in_sync:
            return False
        if mono - self.stalled_at <= self.copy.options.mirror_timeout_us:
            return False
        return report is None or report.flushed <= self.durable

    def may_admit(self, entry: Entry, now: Now) -> bool:
        """F8: complete, and all that is committed is flushed there, which this node knows only when something
        of its own epoch is.
        """
        report = self.report_of(entry.node)
        if report is None or not self.is_complete(report) or self.copy.mirrors.is_held(self.copy):
            return False
        if not self.has_committed():
            self.touch(now)
            return False
        if not self.is_caught_up(report):
            self._await(entry, report, now)
            return False
        return True

    def _await(self, entry: Entry, report: Report, now: Now) -> None:
        """A learner whose disk is slower than the others' would never catch up with a mark that moves on: let
        the mark wait for it, but not for long, and not over and over.
        """
        if not self.awaited and report.received >= self.received and now.mono >= self.awaited_again:
            self.awaited = entry.node
            self.awaited_until = now.mono + limits.mirror_await_us
            self.awaited_again = now.mono + 10 * limits.mirror_await_us

    def is_complete(self, report: Report) -> bool:
        """F8b."""
        return bool(report.flags & COMPLETE)

    def has_committed(self) -> bool:
        """F8a."""
        return self.may_commit(self.durable)

    def is_caught_up(self, report: Report) -> bool:
        """F8c."""
        return report.flushed >= self.durable and report.received >= self.received

    def _transfer(self, now: Now) -> Change | None:
        entry = views.member_of(self.view, self.transfer_to)
        if entry is None or entry.is_restarted or now.mono > self.transfer_until:
            self._end_transfer("transfer_failed")
            return None
        end = self.copy.log.end
        nodes = self.required()
        reports = [self.report_of(node) for node in nodes]
        if self.own_flushed() < end or any(one is None or one.flushed < end for one in reports):
            return None
        return self._change(views.TRANSFER, entry)

    def _end_transfer(self, event: str) -> None:
        self.copy.mirrors.events.append(Event(event, self.copy.id, self.transfer_to))
        self.transfer_to = ""
        self.copy.moved()

    def _change(self, kind: str, entry: Entry) -> Change:
        return Change(self.copy.id, self.view.epoch, kind, entry.node, entry.start)

    def _propose(self, change: Change) -> None:
        mirrors = self.copy.mirrors
        self.proposed = change
        mirrors.dirty_masters.add(self.copy)
        mirrors.proposals += 1
        mirrors.events.append(Event(change.kind, change.queue, change.node))

        def done(is_made: bool) -> None:
            mirrors.proposals -= 1
            if not is_made and self.proposed is change:
                self.proposed = None
                # What was refused in this epoch is likely to be refused again: the node may have died.
                self.not_before = mirrors.mono + limits.mirror_retry_us
                mirrors.uneasy[self.copy] = None
                mirrors.dirty_masters.add(self.copy)
                if change.kind == views.TRANSFER:
                    self._end_transfer("transfer_failed")
                elif change.kind == views.SURRENDER:
                    self.copy.moved()

        mirrors.outside.propose(change, done)

    def _is_candidate(self, peer: str) -> bool:
        report = self.report_of(peer)
        if report is None or not self.is_complete(report):
            return False
        entry = views.member_of(self.view, peer)
        return entry.is_restarted if entry is not None else views.learner_of(self.view, peer) is not None

    def _is_uneasy(self) -> bool:
        """Whether something may become due by time alone, or by what others report."""
        me, mirrors = self.copy.mirrors.me, self.copy.mirrors
        return (
            bool(self.transfer_to)
            or any(self._is_candidate(node) for node in self.reports)
            or any(entry.node != me and not mirrors.is_reachable(entry.node) for entry in self.view.members)
        )
