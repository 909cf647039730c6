"""Publishers and consumers of the mirror world, and the talk between home nodes and masters.

Guarantee: publishes keep their numbers and their order, and are sent again until they are answered; what is
said between nodes arrives in order or not at all.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mirrormq.sim.mirrorstore import SimView
from mirrormq.sim.mirrorstream import Key

if TYPE_CHECKING:
    from mirrormq.sim.mirrornode import MirrorNode, SimQueue
    from mirrormq.sim.mirrorworld import MirrorWorld

WINDOW = 6
MS = 1_000
ACK_WAITS_US = (1 * MS, 5 * MS, 20 * MS, 20 * MS, 100 * MS, 1_000 * MS)


class Home:
    """A publisher to one queue on one node: numbers, a window, and the same again until it is answered."""

    def __init__(self, pid: int, queue: int) -> None:
        self.pid = pid
        self.queue = queue
        self.next = 1
        self.unconfirmed: dict[int, tuple[bool, int]] = {}
        """By number: persistent, and the mastership it was sent to first (0: none)."""
        self.sent_to: tuple[str, int] = ("", 0)
        self.sent = 0

    def add(self, *, persistent: bool) -> Key:
        """A client publishes."""
        self.unconfirmed[self.next] = (persistent, 0)
        self.next += 1
        return self.pid, self.next - 1


class Clients:
    """All clients of a world."""

    def __init__(self, world: "MirrorWorld") -> None:
        self.world = world
        self._carried: dict[tuple[str, str], int] = {}
        self.consumes = True
        self.only = ""
        """Not empty: only this node has consumers."""
        self.acks = True

    def are_at(self, node: str) -> bool:
        """Whether a node has consumers."""
        return self.consumes and self.only in {"", node}

    def publish(self, node: "MirrorNode") -> None:
        """A tick of the publishers of a node."""
        for home in node.homes.values():
            is_new = self.world.rng.random() < (0.3 if not self.world.is_healed else 0.1)
            if self.world.is_loaded and len(home.unconfirmed) < WINDOW and is_new:
                home.add(persistent=self.world.rng.random() < 0.7)
            self.push_publishes(node, home)

    def push_publishes(self, node: "MirrorNode", home: Home) -> None:
        """Send what was not sent to the present master, and from time to time all of it again."""
        assert node.mirrors is not None
        copy = node.mirrors.copies.get(home.queue)
        view = copy.view if copy is not None else None
        if not isinstance(view, SimView) or not view.master:
            return
        to = (view.master, view.since)
        if home.sent_to != to or self.world.rng.random() < 0.05:
            home.sent_to, home.sent = to, 0
        for number, (persistent, first) in sorted(home.unconfirmed.items()):
            if number > home.sent:
                is_resent = first not in {0, view.since}
                home.unconfirmed[number] = (persistent, first or view.since)
                home.sent = number
                key = (home.pid, number)
                self.carry(node.name, view.master, partial(self._published, node.name, view, key,
                                                           persistent, is_resent))  # fmt: skip

    def _published(self, home: str, view: SimView, key: Key, persistent: bool, is_resent: bool) -> None:
        queue = self.world.nodes[view.master].queues.get(view.id)
        if queue is not None and queue.since == view.since:
            queue.publish(home, key, persistent=persistent, is_resent=is_resent)

    def answer(self, node: "MirrorNode", home: str, key: Key) -> None:
        """A publish is confirmed, or refused for good."""

        def take() -> None:
            for one in self.world.nodes[home].homes.values():
                if one.pid == key[0]:
                    one.unconfirmed.pop(key[1], None)

        self.carry(node.name, home, take)

    def need(self, queue: "SimQueue", home: str, key: Key) -> None:
        """A master lacks a publish; the home node sends it again, or says that it has it no more."""
        pid, first = key
        master, since = queue.node.name, queue.since

        def asked() -> None:
            for one in self.world.nodes[home].homes.values():
                if one.pid == pid:
                    one.sent = min(one.sent, first - 1)
                    later = [number for number in one.unconfirmed if number >= first]
                    last = min(later, default=one.next) - 1
                    if last >= first:
                        self.carry(home, master, partial(abandoned, last))

        def abandoned(last: int) -> None:
            found = self.world.nodes[master].queues.get(queue.id)
            if found is not None and found.since == since:
                found.abandoned(pid, first, last)

        self.carry(master, home, asked)

    def carry(self, sender: str, receiver: str, do: Callable[[], None]) -> None:
        """Something is said between nodes outside of mirroring; it may get lost."""
        start = self.world.nodes[receiver].start_no

        def arrive() -> None:
            node = self.world.nodes[receiver]
            if node.is_running and node.mirrors is not None and node.start_no == start:
                do()
                self.world.soon(node)

        if (sender, receiver) not in self.world.cut:
            when = max(
                self._carried.get((sender, receiver), 0),
                self.world.now + self.world.rng.randint(1, self.world.delay_us),
            )
            self._carried[sender, receiver] = when
            self.world.at(when, arrive)

    def consume(self, queue: "SimQueue", seq: int, key: Key) -> None:
        """A client got a message: it acknowledges it, sooner, later or never."""
        node, start = queue.node, queue.node.start_no
        wait = self.world.rng.choice(ACK_WAITS_US)

        def ack() -> None:
            if node.is_running and node.start_no == start and node.queues.get(queue.id) is queue:
                queue.ack(seq, key)
                self.world.soon(node)

        if self.acks:
            self.world.at(self.world.now + wait, ack)
