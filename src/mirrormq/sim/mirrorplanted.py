"""Mirroring with one rule switched off: a simulator that does not notice is broken.

Each is a subclass of the shipped code that gets one thing wrong; the shipped code has no switches. `PLANTED`
are gross bugs the random slice must find; the others belong to directed schedules (tests/sim).
"""

from mirrormq.base.types import Now, Seq
from mirrormq.log.copybase import Copying
from mirrormq.log.durable import DurableLog
from mirrormq.mirror.frames import COMPLETE, Report
from mirrormq.mirror.master import Master
from mirrormq.mirror.member import Member
from mirrormq.mirror.mirroredlog import MirroredLog
from mirrormq.mirror.mirrors import Mirrors
from mirrormq.mirror.source import Stream
from mirrormq.mirror.views import entry_of
from mirrormq.sim.memorylog import CopySnapshot, MemoryCopyLog
from mirrormq.sim.mirrordisk import SimDiskCopy
from mirrormq.sim.mirrorstore import ViewStore
from mirrormq.sim.mirrorworld import MirrorWorld


class _TrustingMember(Member):
    def is_wanted(self, peer: str, epoch: int, nonce: int) -> bool:  # noqa: ARG002
        return True


class _TrustingMirrors(Mirrors):
    member_class = _TrustingMember


class NoFence(MirrorWorld):
    """F1: takes flows of an older epoch, and of whoever sends them."""

    mirrors_class = _TrustingMirrors


class _AgelessMaster(Master):
    def is_current(self, peer: str, report: Report) -> bool:  # noqa: ARG002
        return entry_of(self.view, peer) is not None

    def report_of(self, node: str) -> Report | None:
        return self.reports.get(node)

    def forget(self, peer: str) -> None:
        """Keep what was said on another connection."""


class _AgelessMirrors(Mirrors):
    master_class = _AgelessMaster


class AgelessReports(MirrorWorld):
    """F2, F11: counts reports of an earlier epoch, connection or life of a member."""

    mirrors_class = _AgelessMirrors


class _EagerMaster(Master):
    def may_commit(self, seq: int) -> bool:  # noqa: ARG002
        return True


class _EagerMirrors(Mirrors):
    master_class = _EagerMaster


class CommitsOldEpochs(MirrorWorld):
    """F3, F8a: moves marks through records of an earlier epoch."""

    mirrors_class = _EagerMirrors


class _HastyMember(Member):
    def state(self) -> tuple[int, int, int]:
        log = self.copy.log
        return log.end, log.durable, COMPLETE


class _HastyMirrors(Mirrors):
    member_class = _HastyMember


class ReportsUnmatched(MirrorWorld):
    """F4: reports what was never compared with the master's log."""

    mirrors_class = _HastyMirrors


class _BoastingMember(Member):
    def state(self) -> tuple[int, int, int]:
        received, _, flags = super().state()
        return received, received, flags


class _BoastingMirrors(Mirrors):
    member_class = _BoastingMember


class ReportsBeforeFlush(MirrorWorld):
    """Says that records are flushed when they are received."""

    mirrors_class = _BoastingMirrors


class _LooseStream(Stream):
    def limit(self) -> int | None:
        return self.copy.log.end


class _LooseMirrors(Mirrors):
    stream_class = _LooseStream


class ServesUnmatched(MirrorWorld):
    """F5: a neighbour feeds others with what it does not know to be the master's."""

    mirrors_class = _LooseMirrors


class _RashStream(Stream):
    def must_wait(self) -> bool:
        return False


class _ObedientMember(Member):
    def match(self, after: int, now: Now) -> bool:
        log = self.copy.log
        if log.folded <= after < log.end:
            log.truncate(after, now)
        self.is_matched = True
        self.copy.mirrors.unanswered.pop(self.copy, None)
        self.copy.answer_streams()
        return after <= log.end


class _RashMirrors(Mirrors):
    stream_class = _RashStream
    member_class = _ObedientMember


class TruncatesMatched(MirrorWorld):
    """F6: a source that is behind answers, and whoever asked gives up what it had reported."""

    mirrors_class = _RashMirrors


class _NarrowMaster(Master):
    def required(self) -> list[str]:
        return [entry.node for entry in self.view.members if entry.node != self.copy.mirrors.me]


class _NarrowMirrors(Mirrors):
    master_class = _NarrowMaster


class IgnoresProposed(MirrorWorld):
    """F7: counts recorded members only, while another is being admitted."""

    mirrors_class = _NarrowMirrors


class _CarelessMaster(Master):
    def is_complete(self, report: Report) -> bool:  # noqa: ARG002
        return True

    def is_caught_up(self, report: Report) -> bool:  # noqa: ARG002
        return True


class _CarelessMirrors(Mirrors):
    master_class = _CarelessMaster


class AdmitsIncomplete(MirrorWorld):
    """F8b, F8c: admits whoever reports."""

    mirrors_class = _CarelessMirrors


class _ImpatientMaster(Master):
    def has_committed(self) -> bool:
        return True


class _ImpatientMirrors(Mirrors):
    master_class = _ImpatientMaster


class AdmitsTooEarly(MirrorWorld):
    """F8a: admits before anything of its own epoch is committed."""

    mirrors_class = _ImpatientMirrors


class _LateMaster(Master):
    def is_caught_up(self, report: Report) -> bool:  # noqa: ARG002
        return True


class _LateMirrors(Mirrors):
    master_class = _LateMaster


class AdmitsBehind(MirrorWorld):
    """F8c: admits a complete learner that has not flushed what is committed."""

    mirrors_class = _LateMirrors


class _ForgetfulMember(Member):
    def must_keep(self) -> bool:
        return False


class _ForgetfulMirrors(Mirrors):
    member_class = _ForgetfulMember


class DiscardsClaimed(MirrorWorld):
    """F9: begins a full copy after it has reported to be complete."""

    mirrors_class = _ForgetfulMirrors


class _BlindMaster(Master):
    def own_flushed(self) -> int:
        return self.copy.log.end


class _BlindMirrors(Mirrors):
    master_class = _BlindMaster


class IgnoresOwnFlush(MirrorWorld):
    """F10: does not wait for its own disk."""

    mirrors_class = _BlindMirrors


class _NaiveStore(ViewStore):
    prefers_unchanged = False


class PromotesRestarted(MirrorWorld):
    """F11: promotes a restarted member although an unchanged one is there."""

    store_class = _NaiveStore


class _OldStyleStore(ViewStore):
    keeps_restarted = False


class RemovesRestarted(MirrorWorld):
    """Ruling 12: a restart takes a member out of the view, though nobody else may have its records."""

    store_class = _OldStyleStore


class _UnguardedStore(ViewStore):
    guards_start = False


class AdmitsAnyLife(MirrorWorld):
    """A view change may name a life of a node that is over."""

    store_class = _UnguardedStore


class _NoHorizonLog(MirroredLog):
    @property
    def deliverable(self) -> int:
        return self.received if self.copy.master is not None else 0


class DeliversAboveHorizon(MirrorWorld):
    """F12: delivers what the horizon does not cover."""

    log_class = _NoHorizonLog


class _EarlyLog(MirroredLog):
    @property
    def deliverable(self) -> int:
        return self.end if self.copy.master is not None and self._has_lease() else 0


class DeliversBeforeReceived(MirrorWorld):
    """F12: delivers what members may not have, and without a horizon."""

    log_class = _EarlyLog


class _UnleasedLog(MirroredLog):
    @property
    def received(self) -> Seq:
        return Seq(max(super().received, self.durable))


class ConfirmsTransientByFlush(MirrorWorld):
    """F11: confirms what is not persistent by the durable mark, with or without a lease."""

    log_class = _UnleasedLog


class DeliversWithoutLease(MirrorWorld):
    """F12, F13: delivers although its lease is over."""

    needs_lease = False


class PromotesUnderLease(MirrorWorld):
    """F12: does not wait until the old master's lease is over."""

    waits_for_lease = False


class _UncommittedSnapshot(CopySnapshot):
    def __init__(self, log: MemoryCopyLog) -> None:
        folded, state = log.folded, log.state
        log.state, log.folded = log.whole_state(), log.end
        super().__init__(log)
        log.state, log.folded = state, folded


class _UncommittedLog(MemoryCopyLog):
    snapshot_class = _UncommittedSnapshot


class CopiesUncommitted(MirrorWorld):
    """Ruling 14: takes K0 at the end of the log instead of the durable mark."""

    copy_log_class = _UncommittedLog


class _UnpinnedLog(MemoryCopyLog):
    def compact(self, upto: int) -> None:
        self.held_from = lambda: self.end + 1
        super().compact(upto)


class _UnpinnedCopy(SimDiskCopy):
    def compact(self, upto: int) -> None:
        self.copy.held_from = lambda: 1 << 62
        self.lose_pins()
        super().compact(upto)


class HoldsNothing(MirrorWorld):
    """F14: gives up records that a learner has not got yet."""

    copy_log_class = _UnpinnedLog
    disk_copy_class = _UnpinnedCopy


class _HastyCopy(SimDiskCopy):
    """Waits for no checkpoint."""

    def _finish(self, copying: Copying) -> None:
        super()._finish(copying)
        self.copy.copying = None
        log = self.copy.log
        log.end = log.flushed = self.copy.committed.end
        log.epoch, log.published, log.written = (
            self.copy.committed.epoch,
            self.copy.committed.published,
            self.copy.committed.written,
        )
        self.on_flushed()


class CopiesBeforeFlush(MirrorWorld):
    """A full copy counts when its last record has come, not when it is flushed."""

    disk_copy_class = _HastyCopy


class _HollowCopy(SimDiskCopy):
    @property
    def is_complete(self) -> bool:
        return self.copy.copying is None

    @property
    def base(self) -> int:
        return self.copy.copying.k0 if self.copy.copying is not None else 0


class CountsHollowCopies(MirrorWorld):
    """A copy that follows the log without its old records says that it is complete."""

    disk_copy_class = _HollowCopy


class _TimelessLog(DurableLog):
    def cut(self, end: int, published: int, written: int) -> None:
        super().cut(end, published, written)
        self._life_ends.clear()


class CountsOldFlushes(MirrorWorld):
    """A flush that began before records were given up counts for those that took their place."""

    durable_log_class = _TimelessLog


PLANTED: dict[str, type[MirrorWorld]] = {
    "reports-before-flush": ReportsBeforeFlush,
    "own-flush-ignored": IgnoresOwnFlush,
    "incomplete-admitted": AdmitsIncomplete,
    "behind-admitted": AdmitsBehind,
    "delivered-before-received": DeliversBeforeReceived,
    "proposed-ignored": IgnoresProposed,
}
