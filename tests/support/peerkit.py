"""Two nodes' ends of a link without sockets: bytes go from one to the other in pieces a test chooses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from mirrormq.base.types import NodeName, Now
from mirrormq.peer.card import FRESH, Card
from mirrormq.peer.framing import Lane, Payload
from mirrormq.peer.handshake import SharedSecret
from mirrormq.peer.link import Down, Event, Link, Opened, Received, Refused
from mirrormq.peer.table import LinkTable

SECRET = SharedSecret(b"a secret of the cluster")
CLUSTER = b"C" * 16
START = Now(1_000_000, 1_700_000_000_000_000)


class SeededRng:
    """Randomness that a seed repeats."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def token(self, nbytes: int) -> bytes:
        return self._random.randbytes(nbytes)

    def below(self, n: int) -> int:
        return self._random.randrange(n)


def card(name: str, *, identity: bytes = b"", counter: int = 1, cluster: bytes = FRESH) -> Card:
    return Card(NodeName(name), identity or name.encode().ljust(16, b".")[:16], counter, cluster, "h:25672")


def later(now: Now, micros: int) -> Now:
    return Now(now.mono + micros, now.wall + micros)


def welcome_all(peer: Card, other: Card | None) -> str | None:
    """A layer above that wants everybody."""


class End:
    """One end: a link, its table, and everything that happened to it."""

    def __init__(
        self,
        me: Card,
        *,
        is_dialler: bool,
        secret: SharedSecret = SECRET,
        verdict: Callable[[Card, Card | None], str | None] = welcome_all,
        seed: int = 0,
    ) -> None:
        self.table = LinkTable(me, verdict)
        rng = SeededRng(seed * 2 + is_dialler)
        self.link = Link(1, me, START, is_dialler=is_dialler, secret=secret, judge=self.table, rng=rng)
        self.now = START
        self.events: list[Event] = []
        self.waiting = bytearray()
        """Bytes this end has written and the other has not read."""

    def collect(self) -> None:
        while pieces := self.link.take_output():
            for piece in pieces:
                self.waiting += piece
        self.events += self.link.take_events()

    def hear(self, data: bytes | bytearray) -> None:
        scratch = bytearray(data)
        self.link.receive(self.now, memoryview(scratch))
        # Whoever kept a reference into the read buffer would see this.
        scratch[:] = b"\xaa" * len(scratch)
        self.collect()

    def tick(self, now: Now) -> None:
        self.now = now
        self.link.tick(now)
        self.collect()

    def received(self, lane: Lane) -> list[Payload]:
        batches = [event.frames for event in self.events if isinstance(event, Received)]
        return [payload for frames in batches for found, payload in frames if found is lane]

    @property
    def opened(self) -> Opened | None:
        return next((event for event in self.events if isinstance(event, Opened)), None)

    @property
    def refused(self) -> Refused | None:
        return next((event for event in self.events if isinstance(event, Refused)), None)

    @property
    def down(self) -> Down | None:
        return next((event for event in self.events if isinstance(event, Down)), None)


class Wire:
    """A dialler and an acceptor, and the bytes between them."""

    def __init__(self, dialler: End, acceptor: End) -> None:
        self.dialler = dialler
        self.acceptor = acceptor
        for end in (dialler, acceptor):
            end.collect()

    def move(self, source: End, most: int = 1 << 30) -> int:
        """Carry some bytes to the other end; how many."""
        target = self.acceptor if source is self.dialler else self.dialler
        data, source.waiting = source.waiting[:most], source.waiting[most:]
        if data:
            target.hear(data)
        return len(data)

    def settle(self, sizes: Iterable[int] = ()) -> None:
        """Carry everything, in pieces of these sizes first, until both ends are silent."""
        for size in sizes:
            self.move(self.dialler, size)
            self.move(self.acceptor, size)
        while self.dialler.waiting or self.acceptor.waiting:
            self.move(self.dialler)
            self.move(self.acceptor)


def joined() -> Wire:
    """Two ends that have agreed."""
    wire = Wire(
        End(card("a@h", cluster=CLUSTER), is_dialler=True),
        End(card("b@h", cluster=CLUSTER), is_dialler=False),
    )
    wire.settle()
    assert wire.dialler.opened
    assert wire.acceptor.opened
    return wire
