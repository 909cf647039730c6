"""Nodes that get one thing about mirrored queues wrong: a simulator that does not notice is broken.

Each is a subclass of the shipped node; the shipped code has no switches. All of them are gross bugs that the
random slice must find.
"""

from collections.abc import Callable
from typing import Any

from mirrormq.base.types import Seq
from mirrormq.broker.queue import Queue
from mirrormq.mirror.copy import Copy
from mirrormq.mirror.master import Master
from mirrormq.mirror.mirroredlog import MirroredLog
from mirrormq.mirror.mirrors import Mirrors
from mirrormq.node.membership import Membership
from mirrormq.node.node import Node
from mirrormq.node.settling import Settling
from mirrormq.node.waivers import Waivers
from mirrormq.sim import clusterplanted, mirrorplanted
from mirrormq.sim.haworld import WatchedCopies, WatchedNode


def _with_mirrors(mirrors: type[Mirrors]) -> type[Node]:
    """A node whose replication is wrong."""

    class WrongCopies(WatchedCopies):
        mirrors_class = mirrors

    class WrongNode(WatchedNode):
        copies_class = WrongCopies

    return WrongNode


def _with_log(log: type[MirroredLog]) -> type[Node]:
    """A node whose masters read their marks wrongly."""

    class WrongCopies(WatchedCopies):
        mirrored_class = log

    class WrongNode(WatchedNode):
        copies_class = WrongCopies

    return WrongNode


class _LonelyMaster(Master):
    def required(self) -> list[str]:
        return []


class _LonelyMirrors(Mirrors):
    master_class = _LonelyMaster


class _EarlyLog(MirroredLog):
    @property
    def deliverable(self) -> int:
        return self.end if self.copy.master is not None and self._has_lease() else 0


class _ProudLog(MirroredLog):
    @property
    def durable(self) -> Seq:
        return super().durable if self._final is None else self.own.end


class _BoldMembership(Membership):
    def holds_lease(self) -> bool:
        return True


class _IgnoresLease(WatchedNode):
    """Acts as a master although its lease is over."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.membership.__class__ = _BoldMembership


class _TakesTwice(clusterplanted.TakesTwice, WatchedNode):
    """Takes publishes of other nodes again when they are sent again."""


class _NeedsNoGrants(Waivers):
    """A master cut off goes on although others may be masters by now."""

    def _is_granted(self, peer: str, now: int) -> bool:  # noqa: ARG002
        return True


class _HoldsNobody(Waivers):
    """A new master acts although it has let the one before act without a lease."""

    def is_held(self, copy: Copy) -> bool:  # noqa: ARG002
        return False


class _CommitsAlone(Settling):
    """A commit does not wait until what it acknowledged has left the mirrors, too."""

    def when_durable(self, queue: Queue, done: Callable[[bool], None]) -> None:  # noqa: ARG002
        self._switch.node.after_local_flush(lambda: done(True))


class _CommitsAloneNode(WatchedNode):
    """Its commits wait for this node's disk only."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.switch.settling.__class__ = _CommitsAlone


def _with_waivers(waivers: type[Waivers]) -> type[Node]:
    """A node that grants and takes waivers wrongly."""

    class WrongCopies(WatchedCopies):
        waivers_class = waivers

    class WrongNode(WatchedNode):
        copies_class = WrongCopies

    return WrongNode


WAIVED: dict[str, type[Node]] = {
    "waiver-without-grants": _with_waivers(_NeedsNoGrants),
    "waiver-not-waited-for": _with_waivers(_HoldsNobody),
}
"""Those that show in partition mode `ignore` only."""

PLANTED: dict[str, type[Node]] = {
    "confirmed-without-mirrors": _with_mirrors(_LonelyMirrors),
    "flush-not-awaited": _with_mirrors(mirrorplanted.ReportsBeforeFlush.mirrors_class),
    "tail-not-truncated": _with_mirrors(mirrorplanted.ReportsUnmatched.mirrors_class),
    "unsynchronised-admitted": _with_mirrors(mirrorplanted.AdmitsIncomplete.mirrors_class),
    "delivered-too-early": _with_log(_EarlyLog),
    "deposed-master-confirms": _with_log(_ProudLog),
    "lease-not-needed": _IgnoresLease,
    "resend-taken-twice": _TakesTwice,
    "committed-without-mirrors": _CommitsAloneNode,
    **WAIVED,
}
