"""Nodes of a cluster that get one thing wrong: a simulator that does not notice is broken.

Each is a subclass of the shipped node; the shipped code has no switches. Parts get another class once they
are made, so that everything else about them stays as it is. `PLANTED` are gross bugs the random slice must
find; the others belong to directed schedules (tests/sim).
"""

from collections.abc import Callable
from typing import Any

from mirrormq.base.types import Now
from mirrormq.cluster.metadata import Metadata
from mirrormq.cluster.raft import events as ev
from mirrormq.log.disk import Disk
from mirrormq.meta.commands import Command
from mirrormq.node import peerframes
from mirrormq.node.memberport import Started
from mirrormq.node.membership import ENTERING, WAITING, Membership
from mirrormq.node.node import Node
from mirrormq.node.peerlink import PeerLink
from mirrormq.node.switch import Switch
from mirrormq.sim.raftplanted import AcceptsAnyDisk


class _HastyMembership(Membership):
    def _enter(self) -> None:
        self.phase = ENTERING
        self.propose(self._restarted(), lambda _: None, False)
        self._node.enter()
        self._dial_known()
        self._effects.doors(is_open=True)
        self.phase = "ready"


class EntersEarly(Node):
    """Serves clients before it has everything that was agreed on while it was away."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.membership.__class__ = _HastyMembership


class _BoldMembership(Membership):
    def _on_event(self, event: ev.Event) -> None:
        super()._on_event(event)
        if isinstance(event, ev.LeaderChanged) and event.leader and self.phase == WAITING:
            self._enter()


class EntersUnrecorded(Node):
    """Takes a leader for the permission to enter."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.membership.__class__ = _BoldMembership


class _StubbornMembership(Membership):
    def _lapse_at(self) -> int:
        return 1 << 62


class NeverPauses(Node):
    """Goes on serving clients although nobody hears it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.membership.__class__ = _StubbornMembership


class _CarelessMetadata(Metadata):
    def begin_alone(self) -> int:
        self.is_held = False
        return self._start


class ProposesBeforeIdentity(Node):
    """Uses the number of a start that is not on disk, without a look at the commands that are."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.membership.metadata_class = _CarelessMetadata


class TakesAnyFolder(Node):
    """Takes a name for a proof."""

    def start(self, now: Now, disk: Disk, fresh: list[Command] | Callable[[], list[Command]]) -> Started:
        """Trust whoever says hello."""
        self.now, self._disk = now, disk
        first = fresh if callable(fresh) else fresh.copy
        return self.membership.start(now, disk, first, raft_class=AcceptsAnyDisk)


class _ForgetfulSwitch(Switch):
    def _serve(self, link: PeerLink, payload: bytes | memoryview) -> None:
        frame = peerframes.decode(payload)
        if isinstance(frame, peerframes.Publish):
            stream = link.streams.get(frame.queue)
            if stream is not None and frame.first <= stream.taken:
                stream.taken = frame.first - 1
        super()._serve(link, payload)


class TakesTwice(Node):
    """Takes publishes of other nodes again when they are sent again."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.switch.__class__ = _ForgetfulSwitch


PLANTED: dict[str, type[Node]] = {
    "entered-early": EntersEarly,
    "entered-unrecorded": EntersUnrecorded,
    "never-paused": NeverPauses,
    "any-folder-taken": TakesAnyFolder,
    "publish-taken-twice": TakesTwice,
}
