"""A mirror: takes what its source pushes, forwards it on receipt, and tells the master how far it is.

Guarantees
- Nothing is reported, and nothing is served to others, before this log is matched in this epoch (F4, F5);
  from then on it is a part of the master's log, byte for byte, and nothing of it is given up in this epoch.
- What is reported as flushed is flushed; what is reported as complete is not discarded in this epoch (F9).
- Frames of another epoch, of another source than the present one, or asked for in vain are ignored (F1).
"""

from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.kernel import records
from mirrormq.log.copylog import NotFollowing
from mirrormq.mirror import ring
from mirrormq.mirror.frames import COMPLETE, LEAVE, Again, Base, Hello, Mark, Part, Push, Report, Stop
from mirrormq.mirror.ports import Data, Event
from mirrormq.mirror.views import View, learner_of, member_of

if TYPE_CHECKING:
    from mirrormq.mirror.copy import Copy


class Member:
    """The part of this node in one epoch of a queue that it does not master."""

    __slots__ = (
        "copy",
        "is_claimed",
        "is_copying",
        "is_learner",
        "is_leaving",
        "is_matched",
        "marked",
        "reported",
        "source",
        "tries",
        "view",
        "wants_copy",
        "window",
    )  # fmt: skip

    def __init__(self, copy: "Copy", view: View) -> None:
        self.copy = copy
        self.view = view
        self.is_learner = learner_of(view, copy.mirrors.me) is not None
        self.is_matched = False
        self.marked = 0
        """What the master has said to be committed in this epoch: once, and maybe before this log had it."""
        self.is_claimed = False
        """Reported as complete in this epoch."""
        self.is_leaving = False
        self.wants_copy = False
        """This log has parted from the master's below what it had taken for committed: a lossy promotion."""
        self.is_copying = False
        self.tries = 0
        self.window = 0
        """Not 0: the source has none of the epochs that begin at or behind this seq."""
        self.source = ""
        self.reported: Report | None = None

    # --- who pushes ---

    def ask(self, source: str = "") -> None:
        """Say hello to the source: the neighbour, or a given one."""
        copy, mirrors = self.copy, self.copy.mirrors
        mirrors.unanswered.pop(copy, None)
        if copy.log.damage is not None and not self._leaves_damaged():
            return
        source = source or ring.source_of(self.view, mirrors.me, mirrors.is_reachable)
        if self.source != source:
            self.leave_source()
            self.source = source
        if not source or not mirrors.is_reachable(source):
            return
        copy.nonce += 1
        link = mirrors.link(source)
        link.stops.pop(copy.id, None)
        link.hellos[copy.id] = self.hello()
        # Longer each time: on a slow link an answer may be on its way, and a new hello would undo it.
        mirrors.unanswered[copy] = mirrors.mono + (limits.mirror_answer_us << min(self.tries, 5))
        self.tries += 1
        self.reported = None
        mirrors.dirty_members.add(copy)

    def _leaves_damaged(self) -> bool:
        """What cannot be read is given up, but not before this copy is out of the view: nobody else may have
        it. Whether to go on.
        """
        copy, mirrors = self.copy, self.copy.mirrors
        if self.is_learner and not self.must_keep():
            mirrors.events.append(Event("damaged", copy.id, mirrors.me))
            copy.log.reset(mirrors.now)
            self.window = 0
            return True
        self.leave_source()
        self.is_leaving = True
        mirrors.dirty_members.add(copy)
        return False

    def hello(self) -> Hello:
        """What this log is, as far as its source has to know."""
        copy, log = self.copy, self.copy.log
        if self.wants_copy:
            return Hello(copy.id, self.view.epoch, copy.nonce, 0, (), 0, 0)
        epochs = log.epochs()
        end = log.end
        if self.window:
            end = min(end, self.window - 1)
            epochs = [one for one in epochs if one[1] <= end]
        told = tuple(epochs[-limits.mirror_epochs_max :])
        return Hello(copy.id, self.view.epoch, copy.nonce, end, told, log.copied, log.base)

    def on_again(self, peer: str, again: Again) -> None:
        """The source has none of the epochs it was told: tell the ones before."""
        if self.is_wanted(peer, again.epoch, again.nonce):
            told = self.hello().epochs
            self.window = told[0][1] if told else 1
            self.ask(peer)

    def leave_source(self) -> None:
        """Take nothing more from the present source."""
        mirrors = self.copy.mirrors
        mirrors.unanswered.pop(self.copy, None)
        if self.source:
            link = mirrors.link(self.source)
            link.hellos.pop(self.copy.id, None)
            if link.is_up:
                link.stops[self.copy.id] = Stop(self.copy.id, self.copy.nonce)
            self.source = ""

    def is_wanted(self, peer: str, epoch: int, nonce: int) -> bool:
        """Whether a flow is the one that was asked for last, in the present epoch (F1)."""
        return epoch == self.view.epoch and nonce == self.copy.nonce and peer == self.source

    # --- what is pushed ---

    def on_push(self, peer: str, push: Push, data: Data, now: Now) -> None:
        """Batches that follow this log, or the point where it parts from the source's."""
        if not self.is_wanted(peer, push.epoch, push.nonce):
            return
        log = self.copy.log
        if push.is_start:
            if not self.match(push.after, now):
                return
        elif not self.is_matched:
            return
        if push.after != log.end or log.epoch_at(log.end) != push.after_epoch:
            # No source that follows the protocol does so; the log is matched and stays as it is.
            self.copy.mirrors.events.append(Event("misplaced", self.copy.id, peer))
            self.ask(self.view.master)
            return
        if not self._adopt(data, now):
            self.copy.mirrors.events.append(Event("damaged", self.copy.id, peer))
            self.ask(self.view.master)
        self._fold()
        self.copy.mirrors.dirty_members.add(self.copy)

    def match(self, after: int, now: Now) -> bool:
        """Everything up to `after` is also in the source's log: give up the rest. Never below what was
        matched in this epoch, nor below what is committed.
        """
        log, mirrors = self.copy.log, self.copy.mirrors
        mirrors.unanswered.pop(self.copy, None)
        if after > log.end or (self.is_matched and after < log.end):
            mirrors.events.append(Event("misplaced", self.copy.id, self.source))
            return False
        if after < log.folded:
            mirrors.events.append(Event("parted", self.copy.id, self.source))
            if not self.is_learner:
                # Only a promotion that was allowed to lose something leads here: out of the view first.
                self.is_leaving = True
                mirrors.dirty_members.add(self.copy)
            elif not self.wants_copy:
                self.wants_copy = True
                self.ask()
            return False
        if after < log.end:
            log.truncate(after, now)
            if log.end != after:
                # Whole batches only: the source took another batch for the last common one.
                mirrors.events.append(Event("misplaced", self.copy.id, self.source))
                self.ask(self.view.master)
                return False
        self.window = 0
        self.is_copying = False
        self.is_matched = True
        self.copy.answer_streams()
        return True

    def _adopt(self, data: Data, now: Now) -> bool:
        """Append whole, undamaged batches and forward them; whether they all were."""
        copy, log, at = self.copy, self.copy.log, 0
        whole, data = len(data), memoryview(data)
        while at < whole:
            head = records.read_head(data, at)
            if head is None or not records.is_whole(data, at):
                return False
            size, queue, epoch, first, count = head[:5]
            if queue != log.stream_id or first != log.end + 1 or not epoch <= self.view.epoch:
                return False
            batch = data[at : at + size]
            log.adopt(batch, now)
            copy.forward(batch, first + count - 1)
            at += size
        copy.answer_streams()
        return True

    def on_base(self, peer: str, flow: Base, data: Data, now: Now) -> None:
        """A full copy begins. It must not take away what was reported as complete (F9)."""
        if not self.is_wanted(peer, flow.epoch, flow.nonce) or not self.is_learner:
            return
        mirrors = self.copy.mirrors
        mirrors.unanswered.pop(self.copy, None)
        mirrors.dirty_members.add(self.copy)
        if self.must_keep():
            self.is_leaving = True
            return
        self.wants_copy = False
        self.is_matched = False
        self.is_copying = True
        # Left as it was it would hide the new log from the source, who would send copies for ever.
        self.window = 0
        try:
            self.copy.log.load_base(data[: flow.base_size], flow.position, now)
        except NotFollowing:
            self._start_over(now)

    def _start_over(self, now: Now) -> None:
        """What came of a full copy does not fit what is here."""
        self.copy.mirrors.events.append(Event("misplaced", self.copy.id, self.source))
        self.copy.log.reset(now)
        self.window = 0
        self.ask()

    def copied(self) -> None:
        """A full copy that is complete and flushed is a log like any other: ask for what follows it."""
        if self.is_copying and self.copy.log.is_complete:
            self.is_copying = False
            self.ask()

    def must_keep(self) -> bool:
        """Whether the master may count on this copy by now."""
        return self.is_claimed

    def on_part(self, peer: str, part: Part, data: Data, now: Now) -> None:
        """Live records of a full copy."""
        log = self.copy.log
        if self.is_wanted(peer, part.epoch, part.nonce) and log.base and part.position <= log.base:
            try:
                log.adopt_live(data, part.position, now)
            except NotFollowing:
                self._start_over(now)
            self.copy.mirrors.dirty_members.add(self.copy)

    def on_mark(self, mark: Mark) -> None:
        """What the master knows to be committed; here it counts for what is matched."""
        if mark.epoch == self.view.epoch:
            self.marked = max(self.marked, mark.durable)
            self._fold()

    def _fold(self) -> None:
        log = self.copy.log
        upto = min(self.marked, log.end)
        if self.is_matched and upto > log.folded:
            log.fold(upto)

    # --- what the master is told ---

    def report(self) -> None:
        """Tell the master if there is something new."""
        copy = self.copy
        link = copy.mirrors.link(self.view.master)
        if not link.is_up:
            self.reported = None
            return
        received, flushed, flags = self.state()
        if self.is_leaving:
            flags = LEAVE
        elif flags & COMPLETE:
            self.is_claimed = True
        report = Report(copy.id, self.view.epoch, received, flushed, flags)
        if report != self.reported:
            self.reported = report
            link.reports[copy.id] = report

    def state(self) -> tuple[int, int, int]:
        """(received, flushed, flags): zero until matched, and while a copy is unfinished."""
        log = self.copy.log
        if not self.is_matched or not log.is_complete:
            return 0, 0, 0
        return log.end, min(log.durable, log.end), COMPLETE

    def is_in_sync(self) -> bool:
        """Whether this node may serve others at all."""
        return member_of(self.view, self.copy.mirrors.me) is not None
