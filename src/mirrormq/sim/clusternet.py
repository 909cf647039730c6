"""Links between simulated nodes: like TCP with two lanes, dialled again and again, cut, clogged and closed.

Guarantee: frames of one lane arrive in their order, those of different lanes in any; nothing is lost while a
link is open. A direction that is cut holds everything until it is mended. Whoever closes a link is told at
once, the other end behind everything that is on its way; the end of a process loses what was still in its
memory; that of a machine tells nobody, and the other end gives up after a while. An end that has heard
nothing for as long as a detector waits is told so, in worlds where that matters: living ends always speak.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.node.node import Node
from mirrormq.sim.timeline import SECOND

if TYPE_CHECKING:
    from mirrormq.sim.clusternode import SimNode
    from mirrormq.sim.clusterworld import ClusterWorld

LANES = (0, 1)
BULK = 1
SILENCE_US = (2 * SECOND, 5 * SECOND, 10 * SECOND)
"""How long a node keeps a link whose other end is not heard; a failing network may end it earlier."""


@dataclass
class Lane:
    """Frames of one lane in one direction."""

    queue: deque[tuple[int, int, Callable[[], None]]] = field(default_factory=deque)
    """(earliest arrival, bytes, what happens then), in order."""
    size: int = 0
    is_scheduled: bool = False
    is_full: bool = False


@dataclass
class Line:
    """A link between two nodes; `ends` are the sides that have not closed it."""

    ends: set[str]
    lanes: dict[tuple[str, int], Lane]
    """By receiver and lane."""
    starts: dict[str, tuple[bytes, int]]
    """Identity and start of each end."""
    closing: dict[str, int] = field(default_factory=dict)
    """Lanes on which a receiver has found the end."""
    suspecting: set[str] = field(default_factory=set)
    """Ends that have been told that the other is silent."""
    left: dict[str, int] = field(default_factory=dict)
    """Ends that went without a word, and when."""

    def far(self, end: str) -> str:
        """The other side."""
        return next(name for name in self.starts if name != end)


class Links:
    """All links of a world."""

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._rng = world.rng
        self.delay_us = world.rng.choice([100, 1_000, 8_000])
        self.full_at = world.rng.choice([2_000, 20_000, 1 << 20])
        """Bytes that a bulk lane holds before it says that it is full."""
        self.open: dict[tuple[str, str], Line] = {}
        self.cut: dict[tuple[str, str], int] = {}
        """Directions (sender, receiver) that hold everything, and since when."""
        self.clogged: dict[tuple[str, str], int] = {}
        self.suspect_us = limits.peer_suspect_us
        """How long nothing may arrive before an end is told."""
        self.silences = 0
        """How often an end was told that it has heard nothing for long."""
        self._dialling: set[tuple[str, str]] = set()

    def line(self, one: str, other: str) -> Line | None:
        """The link between two nodes."""
        return self.open.get(_pair(one, other))

    # --- opening ---

    def dial(self, one: str, other: str, delay: int | None = None) -> None:
        """Keep trying to open a link while `one` wants it."""
        if (one, other) not in self._dialling and other in self._world.nodes:
            self._dialling.add((one, other))
            delay = self._rng.randrange(1_000, 60_000) if delay is None else delay
            self._world.after(delay, lambda: self._attempt(one, other))

    def _attempt(self, one: str, other: str) -> None:
        self._dialling.discard((one, other))
        a, b = self._world.nodes[one], self._world.nodes[other]
        old = self.line(one, other)
        if a.node is None or other not in a.dialled or (old is not None and old.ends == {one, other}):
            return
        if a.is_paused or b.is_paused or not self._may_link(a, b, old):
            self.dial(one, other, self._rng.randrange(20_000, 400_000))
            return
        if old is not None:
            for end in sorted(old.ends):
                self._lose(old, end, eof=False)
            if not (a.is_introduced and b.is_introduced):
                # It died over the loss of the old link: no new one was opened. Who wants one dials again.
                return
        shown = {one: a.card, other: b.card}
        line = Line(
            {one, other},
            {(end, lane): Lane() for end in (one, other) for lane in LANES},
            {name: card[:2] for name, card in shown.items()},
        )
        self.open[_pair(one, other)] = line
        # Either may die over the news, which leaves the other with a link that ends soon.
        self._tell_up(line, a, other, shown[other][2])
        self._tell_up(line, b, one, shown[one][2])

    def _may_link(self, a: "SimNode", b: "SimNode", old: Line | None) -> bool:
        """Would a handshake succeed?"""
        if not b.is_introduced or {(a.name, b.name), (b.name, a.name)} & self.cut.keys():
            return False
        clusters = {card[2] for card in (a.card, b.card) if any(card[2])}
        if len(clusters) > 1:
            return False
        if old is None or not old.ends:
            return True
        [end] = old.ends
        if self._rng.random() < 0.8 and any(old.lanes[end, lane].queue for lane in LANES):
            # What the dead end sent last, and its end, usually arrive before anything new does.
            return False
        far = self._world.nodes[old.far(end)]
        identity, start = old.starts[far.name]
        return identity == far.card[0] and start <= far.card[1]

    def _tell_up(self, line: Line, end: "SimNode", far: str, cluster: bytes) -> None:
        def up(node: Node, now: Now) -> None:
            if end.name in line.ends:
                node.link_change(now, far, True, cluster)

        end.input(up)

    # --- closing ---

    def close(self, name: str, other: str) -> None:
        """`name` ends its link to `other`."""
        line = self.line(name, other)
        if line is not None and name in line.ends:
            self._lose(line, name, eof=False)
            self._send_end(line, name)

    def process_ends(self, name: str) -> None:
        """The system closes the sockets of a process; what had not left its memory is gone."""
        for line in self._lines_of(name):
            line.ends.discard(name)
            other = line.far(name)
            for lane in LANES:
                self._forget_some(line.lanes[other, lane])
            self._send_end(line, name)

    def power_goes(self, name: str) -> None:
        """A machine is gone: the other ends give up after a while."""
        for line in self._lines_of(name):
            line.ends.discard(name)
            line.left[name] = self._world.now
            for lane in LANES:
                self._forget_some(line.lanes[line.far(name), lane])
            self._give_up_later(line, line.far(name))
            self._suspect_later(line, line.far(name))

    def _lines_of(self, name: str) -> list[Line]:
        return [line for pair, line in sorted(self.open.items()) if name in pair and name in line.ends]

    def _forget_some(self, lane: Lane) -> None:
        kept = self._rng.randint(0, len(lane.queue))
        while len(lane.queue) > kept:
            lane.size -= lane.queue.pop()[1]

    def _send_end(self, line: Line, name: str) -> None:
        other = line.far(name)
        if other not in line.ends:
            return

        def found_end() -> None:
            line.closing[other] = line.closing.get(other, 0) + 1
            if line.closing[other] == len(LANES) and other in line.ends:
                self._lose(line, other, eof=True)

        for lane in LANES:
            self._put(line, other, lane, (0, found_end))

    def _lose(self, line: Line, end: str, *, eof: bool) -> None:
        """A side closes its end, or sees that the other has."""
        line.ends.discard(end)
        far = line.far(end)
        node = self._world.nodes[end]
        if node.card[:2] == line.starts[end]:
            node.input(lambda core, now: core.link_change(now, far, False, eof=eof))
        for one, other in ((end, far), (far, end)):
            if other in self._world.nodes[one].dialled:
                self.dial(one, other)

    def _give_up_later(self, line: Line, end: str) -> None:
        def give_up() -> None:
            if end not in line.ends:
                return
            if self._world.nodes[end].is_paused:
                self._world.after(SECOND, give_up)
            else:
                self._lose(line, end, eof=False)

        self._world.after(self._rng.choice(SILENCE_US), give_up)

    def on_pause(self, name: str, until: int) -> None:
        """A process stands still: whoever does not hear from it for long closes the link."""
        for line in self._lines_of(name):
            other = line.far(name)
            self._suspect_later(line, other)

            def give_up(line: Line = line, other: str = other) -> None:
                paused = self._world.nodes[name].is_paused
                if paused and line.ends == {name, other} and not self._world.nodes[other].is_paused:
                    self.close(other, name)

            if until - self._world.now > max(SILENCE_US):
                self._world.after(max(SILENCE_US), give_up)

    # --- silence ---

    def _suspect_later(self, line: Line, end: str) -> None:
        """Nothing arrives at an end of a link from now on: tell it when that has lasted, and when it is over.
        Time in which the end itself stands still counts for nobody's silence.
        """
        if not self._world.tells_silence:
            return

        def look() -> None:
            if end not in line.ends:
                return
            is_silent = self._is_silent(line, end)
            if is_silent and self._world.nodes[end].is_paused:
                self._world.after(self.suspect_us, look)
                return
            if is_silent != (end in line.suspecting):
                (line.suspecting.add if is_silent else line.suspecting.discard)(end)
                self._tell_silence(line, end, is_silent=is_silent)
            if is_silent:
                self._world.after(limits.peer_keepalive_us, look)

        self._world.after(self.suspect_us, look)

    def _is_silent(self, line: Line, end: str) -> bool:
        far = line.far(end)
        node = self._world.nodes[far]
        paused = node.paused_since if node.is_paused else None
        times = [at for at in (self.cut.get((far, end)), line.left.get(far), paused) if at is not None]
        return bool(times) and self._world.now - min(times) >= self.suspect_us

    def _tell_silence(self, line: Line, end: str, *, is_silent: bool) -> None:
        far = line.far(end)
        self.silences += is_silent

        def tell(core: Node, now: Now) -> None:
            if end in line.ends:
                core.link_suspected(now, far, is_silent)

        self._world.nodes[end].input(tell)

    # --- carrying ---

    def send(self, sender: str, receiver: str, lane: int, payload: bytes) -> None:
        """A frame leaves a node."""
        line = self.line(sender, receiver)
        if line is None or sender not in line.ends:
            return
        node = self._world.nodes[receiver]

        def take(core: Node, now: Now) -> None:
            if receiver in line.ends:
                core.peer_frame(now, sender, memoryview(payload))

        def arrive() -> None:
            if receiver in line.ends:
                node.input(take)

        self._put(line, receiver, lane, (len(payload), arrive))
        held = line.lanes[receiver, lane]
        if lane == BULK and held.size > self.full_at and not held.is_full:
            held.is_full = True
            self._tell_room(line, sender, "link_full")

    def _tell_room(self, line: Line, sender: str, what: str) -> None:
        receiver = line.far(sender)

        def tell(core: Node, now: Now) -> None:
            if sender in line.ends:
                getattr(core, what)(now, receiver)

        self._world.after(0, lambda: self._world.nodes[sender].input(tell))

    def _put(self, line: Line, receiver: str, lane: int, frame: tuple[int, Callable[[], None]]) -> None:
        sender = line.far(receiver)
        delay = int(self._rng.expovariate(1 / self.delay_us)) + 20 + self.clogged.get((sender, receiver), 0)
        held = line.lanes[receiver, lane]
        held.queue.append((self._world.now + delay, *frame))
        held.size += frame[0]
        self._schedule(line, receiver, lane)

    def _schedule(self, line: Line, receiver: str, lane: int) -> None:
        held = line.lanes[receiver, lane]
        if held.queue and not held.is_scheduled and (line.far(receiver), receiver) not in self.cut:
            held.is_scheduled = True
            at = max(held.queue[0][0], self._world.now)
            self._world.at(at, lambda: self._arrive(line, receiver, lane))

    def _arrive(self, line: Line, receiver: str, lane: int) -> None:
        held = line.lanes[receiver, lane]
        held.is_scheduled = False
        sender = line.far(receiver)
        if (sender, receiver) in self.cut:
            return
        while held.queue and held.queue[0][0] <= self._world.now:
            _, size, happen = held.queue.popleft()
            held.size -= size
            happen()
        if held.is_full and held.size * 2 < self.full_at:
            held.is_full = False
            self._tell_room(line, sender, "link_writable")
        self._schedule(line, receiver, lane)

    # --- faults ---

    def cut_ways(self, ways: Iterable[tuple[str, str]]) -> None:
        """Let nothing pass from the first of each pair to the second."""
        for sender, receiver in ways:
            since = self.cut[sender, receiver] = self._world.now
            line = self.line(sender, receiver)
            if line is not None and receiver in line.ends:
                self._watch(line, receiver, since)
                self._suspect_later(line, receiver)

    def _watch(self, line: Line, receiver: str, since: int) -> None:
        """Whoever hears nothing for long closes the link."""
        sender = line.far(receiver)

        def look() -> None:
            if self.cut.get((sender, receiver)) != since or receiver not in line.ends:
                return
            if self._world.nodes[receiver].is_paused:
                self._world.after(SECOND, look)
            else:
                self._lose(line, receiver, eof=False)
                self._send_end(line, receiver)

        self._world.after(self._rng.choice(SILENCE_US), look)

    def mend(self, ways: Iterable[tuple[str, str]]) -> None:
        """Let everything pass again."""
        for sender, receiver in ways:
            self.cut.pop((sender, receiver), None)
            line = self.line(sender, receiver)
            for lane in LANES if line is not None else ():
                assert line is not None
                self._schedule(line, receiver, lane)


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
