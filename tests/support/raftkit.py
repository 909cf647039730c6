"""One Raft node on a memory disk, its peers played by the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft.membership import NON_VOTER, VOTER, Change
from mirrormq.cluster.raft.raft import Myself, Options, Raft
from mirrormq.sim.disk import MemoryDisk
from mirrormq.sim.machine import SeededRng
from mirrormq.sim.metaworld import ReadingDisk

TOKEN = bytes(15)
SECOND = 1_000_000


class ListMachine:
    """Remembers commands."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []

    def apply(self, index: int, command: bytes) -> object:
        self.commands.append(command)
        return len(self.commands)

    def capture(self) -> Iterator[bytes]:
        return iter([b"|".join(self.commands)])

    def restore(self, data: bytes) -> None:
        self.commands = data.split(b"|") if data else []


class RaftKit:
    """A node and everything it did."""

    def __init__(self, disk: MemoryDisk | None = None, name: str = "n1", **more: Any) -> None:
        self.disk = ReadingDisk({one: disk.read(one) for one in disk.list("")} if disk else None)
        self.now = SECOND
        self.machine = ListMachine()
        self.events: list[ev.Event] = []
        self.sent: list[tuple[str, ms.Message]] = []
        self.start = more.pop("start", 1)
        may_form = more.pop("may_form", True)
        force_sole = more.pop("force_sole", False)
        me = Myself(name, name.encode(), self.start, (TOKEN + bytes((self.start,)),))
        self.raft = Raft(me, self.machine, self.disk, SeededRng(name), options=Options(**more))
        self.recovery = self.raft.start(self.now, self.disk, may_form=may_form, force_sole=force_sole)

    def turn(self) -> None:
        """One pass; what it sent and told is collected."""
        self.raft.end_pass(self.now)
        self.sent += [(peer, ms.decode(frame)) for peer, frame in self.raft.outgoing]
        self.events += self.raft.events
        self.raft.outgoing, self.raft.events = [], []

    def settle(self) -> None:
        """Passes until the disk owes nothing."""
        for _ in range(1_000):
            self.turn()
            if self.disk.reads:
                self.raft.disk_read(*self.disk.reads.pop(0))
            elif (token := self.disk.finish_next()) is not None:
                self.raft.disk_done(self.now, token)
            elif not self.raft.needs_pass:
                return
        raise AssertionError("never settles")

    def propose(self, command: bytes) -> None:
        self.raft.propose(command, command)

    def connect(self, peer: str) -> None:
        """A link to a peer that has said hello."""
        self.raft.link_up(self.now, peer)
        self.hear(peer, ms.Hello(peer.encode(), 1, (TOKEN + b"p",)))

    def hear(self, peer: str, message: ms.Message) -> None:
        self.raft.receive(self.now, peer, ms.encode(message))

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def said(self, kind: type) -> list[Any]:
        """Messages of a kind since the last call."""
        found = [message for _, message in self.sent if isinstance(message, kind)]
        self.sent = [one for one in self.sent if not isinstance(one[1], kind)]
        return found

    def add_voter(self, peer: str) -> None:
        """Join a peer; it and the others answer everything with yes."""
        self.settle()
        if peer not in self.raft.links:
            self.connect(peer)
        for role in (NON_VOTER, VOTER):
            self.raft.change(self.now, Change(peer, role, peer.encode()), role)
            for _ in range(4):
                self.settle()
                for one in sorted(self.raft.links):
                    self.agree(one)
        self.settle()

    def agree(self, peer: str) -> None:
        """The peer has flushed whatever the leader has."""
        self.hear(peer, ms.HeartbeatAnswer(self.raft.term, 1, 1))
        self.hear(peer, ms.AppendAnswer(self.raft.term, is_ok=True, index=self.raft.log.last_index))
        self.settle()
