"""Questions to other nodes about what only they hold, and the answers to theirs (docs/protocol/inquiry.md).

Guarantees
- Whoever asks is answered once: with the rows of every node that gave all of its own, and with the names of
  those that did not and why. A node that sends nothing for `inquiry_silence_us` is waited for no longer.
- Half an answer is never shown: of a node whose answer broke off no row is passed on.
- Answers hold nobody up: a pass builds at most `inquiry_rows_per_pass` rows for all askers together, and none
  for a link that is full. They travel on the bulk lane, questions on the control lane.
- Bounded: questions open per link, rows and bytes per frame, bytes held of answers that are not complete.

Rows are a snapshot of no single moment: each is true when it is built. A question that closes connections may
have done so although its answer never came; so may one that changes a mirrored queue.

States of a question, per node asked: asked -> rows arrive -> complete | missing (its link is down, it is
silent, it refuses, its answer is too long).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from mirrormq.base import limits
from mirrormq.node import inquiryframes as frames
from mirrormq.node.inquiry_rows import KINDS, Answered, Answerer, Wait
from mirrormq.node.inquiryframes import BULK, CONTROL, FIRST, Ask, Rows, Stop
from mirrormq.node.membership import PAUSED, READY
from mirrormq.node.peerframes import BadFrame

if TYPE_CHECKING:
    from mirrormq.node.switch import PeerEffects

DOWN = "is down"
SILENT = "does not answer"
BROKEN = "went down while it answered"
BUSY = "has too many questions to answer"
LONG = "has more to show than this node can hold"

__all__ = ["DOWN", "FIRST", "SILENT", "Ask", "Inquiries", "Replies"]


class Source(Answerer, Protocol):
    """The node, as it is asked and asks."""

    def note(self, level: str, text: str, **fields: object) -> None:
        """Tell the operator."""
        ...


class Replies(NamedTuple):
    """What came of a question."""

    rows: Mapping[str, list[Raw]]
    """Of every node that answered."""
    missing: Mapping[str, str]
    """Nodes that did not, and why; reads after the node's name."""


class _Gathering:
    """A question under way to some nodes."""

    def __init__(self, done: Callable[[Replies], None]) -> None:
        self.done = done
        self.waits_for: set[str] = set()
        self.rows: dict[str, list[Raw]] = {}
        self.missing: dict[str, str] = {}


class _Open:
    """What one node was asked and has answered so far."""

    __slots__ = ("gathering", "heard_at", "patience", "peer", "rows", "size")

    def __init__(self, peer: str, gathering: _Gathering, now: int, patience: int) -> None:
        self.peer = peer
        self.gathering = gathering
        self.heard_at = now
        self.patience = patience
        self.rows: list[Raw] = []
        self.size = 0

    @property
    def until(self) -> int:
        """How long it is waited for."""
        return self.heard_at + self.patience


class _Answering:
    """A question of another node."""

    __slots__ = ("is_waiting", "kept", "number", "peer", "rows")

    def __init__(self, peer: str, number: int, rows: Answered) -> None:
        self.peer = peer
        self.number = number
        self.rows = rows
        self.kept: Raw | None = None
        """A row for which the last frame had no room."""
        self.is_waiting = False
        """Nothing can be built now."""

    def wake(self) -> None:
        """What it waited for is over."""
        self.is_waiting = False


class Inquiries:
    """All questions of this node and to it."""

    def __init__(self, node: Source, effects: "PeerEffects") -> None:
        self._node = node
        self._effects = effects
        self.describe: Callable[[], Mapping[str, Any]] = dict
        """What only the process knows of this node."""
        self._links: set[str] = set()
        self._full: set[str] = set()
        self._numbers = count(1)
        self._open: dict[int, _Open] = {}
        self._held = 0
        """Bytes of rows in `_open`."""
        self._answers: OrderedDict[tuple[str, int], _Answering] = OrderedDict()
        """In the order of their turns."""

    # --- asking ---------------------------------------------------------------------------------

    def others(self) -> list[str]:
        """The other members of the cluster, running or not."""
        members = self._node.membership.raft.config.members
        return sorted(member.name for member in members if member.name != self._node.node_name)

    def ask(
        self,
        ask: Ask,
        nodes: Iterable[str],
        done: Callable[[Replies], None],
        patience: int = limits.inquiry_silence_us,
    ) -> None:
        """Put a question, whose number is given here, to some nodes; `done` gets the answers, maybe now.

        `patience`: how long a silent node is waited for.
        """
        gathering = _Gathering(done)
        now = self._node.now.mono
        for peer in sorted(set(nodes)):
            problem = self._unasked(peer)
            if problem:
                gathering.missing[peer] = problem
                continue
            number = next(self._numbers)
            self._open[number] = _Open(peer, gathering, now, patience)
            gathering.waits_for.add(peer)
            self._effects.send(peer, CONTROL, frames.encode(msgspec.structs.replace(ask, number=number)))
        if not gathering.waits_for:
            done(Replies({}, gathering.missing))

    def _unasked(self, peer: str) -> str:
        """Why a node is not asked; nothing if it is."""
        if peer not in self._links or self._node.news.is_silent(peer):
            return DOWN
        if sum(found.peer == peer for found in self._open.values()) >= limits.inquiries_open_max:
            return BUSY
        return ""

    def _rows(self, peer: str, frame: Rows) -> None:
        found = self._open.get(frame.number)
        if found is None:
            return  # it was given up, and the node has not heard of that yet
        if found.peer != peer:
            raise BadFrame(f"an answer that {found.peer} was asked for")
        if not frame.rows and not frame.is_last:
            raise BadFrame("a part of an answer without rows")
        found.heard_at = self._node.now.mono
        size = sum(len(memoryview(row)) for row in frame.rows)
        found.rows += frame.rows
        found.size += size
        self._held += size
        if frame.problem:
            self._end(frame.number, frame.problem)
        elif self._held > limits.inquiry_bytes_max:
            self._give_up(frame.number, LONG)
        elif frame.is_last:
            self._end(frame.number)

    def _give_up(self, number: int, problem: str) -> None:
        """Wait for an answer no longer."""
        self._effects.send(self._open[number].peer, CONTROL, frames.encode(Stop(number)))
        self._end(number, problem)

    def _end(self, number: int, problem: str = "") -> None:
        found = self._open.pop(number)
        self._held -= found.size
        gathering = found.gathering
        gathering.waits_for.discard(found.peer)
        if problem:
            gathering.missing[found.peer] = problem
        else:
            gathering.rows[found.peer] = found.rows
        if not gathering.waits_for:
            gathering.done(Replies(gathering.rows, gathering.missing))

    # --- inputs ---------------------------------------------------------------------------------

    def link_change(self, peer: str, is_up: bool) -> None:
        """A link came up or went down: either way, nothing asked over it before is answered any more."""
        self._full.discard(peer)
        for key in [key for key in self._answers if key[0] == peer]:
            del self._answers[key]
        if is_up:
            self._links.add(peer)
        else:
            self._links.discard(peer)
        for number in [number for number, found in self._open.items() if found.peer == peer]:
            self._end(number, BROKEN)

    def link_full(self, peer: str, is_full: bool) -> None:
        """A link takes no more for now, or takes more again."""
        if is_full:
            self._full.add(peer)
        else:
            self._full.discard(peer)

    def peer_frame(self, peer: str, payload: bytes | memoryview) -> None:
        """A frame of this family arrived; a bad one costs its link, as a broken link would."""
        if peer not in self._links:
            return  # its link was cut a moment ago
        try:
            frame = frames.decode(payload)
            if isinstance(frame, Ask):
                self._asked(peer, frame)
            elif isinstance(frame, Rows):
                self._rows(peer, frame)
            else:
                self._answers.pop((peer, frame.number), None)
        except BadFrame as error:
            self._node.note(
                "error", f"node '{peer}' sent a bad inquiry: {error}", peer=peer, event="link.bad_frame"
            )
            self._effects.cut(peer, str(error))

    def on_timer(self) -> None:
        """Wait no longer for those that are silent."""
        now = self._node.now.mono
        for number in [number for number, found in self._open.items() if found.until <= now]:
            self._give_up(number, SILENT)

    def next_at(self) -> int:
        """When `on_timer` has something to do next (mono µs); 0 if never."""
        if not self._open:
            return 0
        return min(found.until for found in self._open.values())

    # --- answering ------------------------------------------------------------------------------

    def _asked(self, peer: str, ask: Ask) -> None:
        problem = self._refusal(peer, ask)
        if problem:
            self._effects.send(peer, BULK, frames.encode(Rows(ask.number, True, [], problem)))
            return
        if (peer, ask.number) in self._answers:
            raise BadFrame("a question with the number of another")
        rows = KINDS[ask.kind](self._node, ask)
        self._answers[peer, ask.number] = _Answering(peer, ask.number, rows)

    def _refusal(self, peer: str, ask: Ask) -> str:
        node = self._node
        if node.membership.raft.config.find(peer) is None and peer not in node.state.nodes:
            return "does not know this node as a member"
        if node.membership.phase not in (READY, PAUSED):
            return "is starting"
        if ask.kind not in KINDS:
            return "does not know this question"
        if sum(key[0] == peer for key in self._answers) >= limits.inquiries_open_max:
            return BUSY
        return ""

    @property
    def needs_pass(self) -> bool:
        """Is there an answer to go on with?"""
        return any(not found.is_waiting and found.peer not in self._full for found in self._answers.values())

    def step(self) -> None:
        """Build a part of the answers, and send it. Called at the end of every pass."""
        left = limits.inquiry_rows_per_pass * _ROW_COST
        for key in list(self._answers):
            found = self._answers[key]
            if found.is_waiting or found.peer in self._full:
                continue
            frame, cost = _part(found, left)
            left -= cost
            if frame.is_last:
                del self._answers[key]
            else:
                # Others have their turn before this one again.
                self._answers.move_to_end(key)
            if frame.rows or frame.is_last:
                self._effects.send(found.peer, BULK, frames.encode(frame))
            if left <= 0:
                return


_ROW_COST = 8
"""What a row costs, measured in steps that make none."""


def _part(found: _Answering, most: int) -> tuple[Rows, int]:
    """The next part of an answer, and what it cost; `most` is what it may cost."""
    rows: list[Raw] = []
    room = limits.inquiry_part_bytes
    cost = 0
    if found.kept is not None:
        rows.append(found.kept)
        room -= len(memoryview(found.kept))
        found.kept = None
    while cost < most and room > 0 and len(rows) < limits.inquiry_rows_per_pass:
        try:
            row = next(found.rows)
        except StopIteration:
            return Rows(found.number, True, rows), cost + 1
        if row is None:
            cost += 1
            continue
        if isinstance(row, Wait):
            found.is_waiting = True
            row.wake = found.wake
            return Rows(found.number, False, rows), cost + 1
        cost += _ROW_COST
        raw = frames.packed(row)
        size = len(memoryview(raw))
        if size > limits.inquiry_row_bytes_max:
            continue
        room -= size
        if room < 0 and rows:
            found.kept = raw
        else:
            rows.append(raw)
    return Rows(found.number, False, rows), cost
