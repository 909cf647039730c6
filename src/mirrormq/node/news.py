"""What nodes tell each other about themselves: loads, alarms, counts for limits (docs/protocol/news.md).

Guarantees
- What is known of another node was true there a moment ago: it is told when a link opens, at most
  `news_pause_us` after a change that others act on, and every `news_period_us` in any case.
- Nothing is known of a node to which no link is open: what it reported, its alarms included, goes with the
  link. A node counts as live when its link is open and its first report is here.
- A report is one control frame. Names that do not fit are left out, those furthest from their limit first;
  memory is bounded by one report per link.

Nothing is decided here and nothing is promised between nodes: who acts on a report must be right even if it
is a second old. What has to be exact goes through the metadata.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec

from mirrormq import __version__
from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.broker.census import Census
from mirrormq.broker.host import BrokerSettings
from mirrormq.meta import system
from mirrormq.meta.state import MetaState
from mirrormq.node.peerframes import BadFrame
from mirrormq.peer.handshake import VERSIONS

if TYPE_CHECKING:
    from mirrormq.broker.connection import Connection
    from mirrormq.broker.queue import Queue
    from mirrormq.node.switch import PeerEffects

FAMILY = 0xF5
"""News, version 1."""

CONTROL = 0
"""The lane of these frames: an alarm must not wait behind messages."""

FIRST = bytes((FAMILY,))
"""How all of them begin."""

_REPORT = 1
_HEAD = bytes((FAMILY, _REPORT))
_ENTRY_BYTES = 16
"""What a name costs beyond its own bytes, at most."""
_NUMBER_MAX = (1 << 63) - 1
_ALARMS = ("disk", "memory")
"""Those that hold publishers; a later version may report others."""

Natural = Annotated[int, msgspec.Meta(ge=0)]
Word = Annotated[str, msgspec.Meta(max_length=limits.short_string_bytes_max)]


class Listener(msgspec.Struct, frozen=True, array_like=True):
    """Where a node listens for clients."""

    protocol: Word
    interface: Word
    port: Natural


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What a node reports; later versions append fields."""

    connections: Natural
    messages: Natural
    """Ready and unacknowledged ones of the queues mastered there."""
    alarms: Annotated[list[Word], msgspec.Meta(max_length=limits.news_alarms_max)]
    version: Word
    protocols: tuple[Natural, Natural]
    """Lowest and highest version of the protocol between nodes that it speaks."""
    listeners: list[Listener]
    memory_used: Natural
    memory_limit: Natural
    disk_free: Natural
    disk_free_limit: Natural
    started_at: Natural
    """Wall time of its start (µs)."""
    takes_queues: bool
    """May new queues have their master there?"""
    vhosts: dict[str, Natural]
    """Connections by vhost, of those that have a limit, or of all if they are few."""
    users: dict[str, Natural]
    """Connections by user."""
    channels: dict[str, Natural]
    """Channels by user."""


class Source(Protocol):
    """The node, as it reports itself."""

    now: Now
    node_name: str
    started_at: Now
    settings: BrokerSettings
    census: Census
    alarms: set[str]
    connections: "dict[int, Connection]"
    memory_used: int
    disk_free: int

    @property
    def state(self) -> MetaState:
        """The metadata."""
        ...

    def note(self, level: str, text: str, **fields: object) -> None:
        """Tell the operator."""
        ...


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Facts)


def encode(facts: Facts) -> bytes:
    """A report as bytes."""
    return _HEAD + _encoder.encode(facts)


def decode(payload: bytes | memoryview) -> Facts:
    """Read a report; anything else is a `BadFrame`, which costs its sender the link."""
    if len(payload) > limits.peer_chunk_bytes or bytes(payload[: len(_HEAD)]) != _HEAD:
        raise BadFrame("no report of this version")
    try:
        return _decoder.decode(memoryview(payload)[len(_HEAD) :])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"report: {error}") from None


class News:
    """What this node reports, and what it has heard."""

    def __init__(self, node: Source, effects: "PeerEffects", masters: "Mapping[int, Queue]") -> None:
        """`masters`: the queues mastered here, by id."""
        self._node = node
        self._effects = effects
        self._masters = masters
        self._heard: dict[str, Facts | None] = {}
        """The last report of every node to which a link is open."""
        self._heard_at: dict[str, int] = {}
        """When that came (mono µs)."""
        self._told = 0
        """When all were told last (mono µs)."""
        self._is_due = False
        self._own_alarms: set[str] = set()
        self._shortages: list[str] = []
        self._listeners: list[Listener] = []
        self._takes_queues = True
        self._messages = 0
        self._counted_at = -limits.news_pause_us
        self._walk: Iterator[Queue] | None = None
        self._walked = 0
        node.census.elsewhere = self._reports

    # --- inputs ---------------------------------------------------------------------------------

    def link_change(self, peer: str, is_up: bool) -> None:
        """A link came up or went down: either way, what its other end said before is over."""
        self._heard.pop(peer, None)
        self._heard_at.pop(peer, None)
        if is_up:
            if not self._heard:
                self._told = self._node.now.mono
            self._heard[peer] = None
            self._effects.send(peer, CONTROL, encode(self.own()))
        self.on_alarm()

    def peer_frame(self, peer: str, payload: bytes | memoryview) -> None:
        """A frame of this family arrived; a bad one costs its link, as a broken link would."""
        try:
            self.frame(peer, payload)
        except BadFrame as error:
            self._node.note(
                "error", f"node '{peer}' sent a bad report: {error}", peer=peer, event="link.bad_frame"
            )
            self._effects.cut(peer, str(error))

    def frame(self, peer: str, payload: bytes | memoryview) -> None:
        """A report arrived; raises `BadFrame` if it is none."""
        if peer not in self._heard:
            return  # its link was cut a moment ago
        before, facts = self._heard[peer], decode(payload)
        self._heard[peer] = facts
        self._heard_at[peer] = self._node.now.mono
        if before is None or before.alarms != facts.alarms:
            for alarm in _held_by(facts):
                self._node.note(
                    "warning",
                    f"{alarm} alarm on node '{peer}': publishers are held",
                    alarm=alarm,
                    event="alarm.elsewhere",
                )
            self.on_alarm()

    def on_alarm(self) -> None:
        """Alarms of this node or of another may have changed: hold or release publishers."""
        is_own = self._own_alarms != self._node.alarms
        if is_own:
            self._own_alarms = set(self._node.alarms)
            self._is_due = True
        shortages = self.shortages()
        if shortages == self._shortages:
            return
        self._shortages = shortages
        if not shortages and not is_own:
            self._node.note("info", "no node has an alarm: publishers go on", event="alarm.all_cleared")
        for connection in list(self._node.connections.values()):
            connection.flow.on_alarm()

    def set_listeners(self, listeners: Iterable[tuple[str, str, int]]) -> None:
        """Where this node listens for clients: (protocol, interface, port)."""
        kept = islice(listeners, limits.news_listeners_max)
        self._listeners = [Listener(_word(name), _word(host), port) for name, host, port in kept]
        self._is_due = True

    def set_takes_queues(self, takes_queues: bool) -> None:
        """May new queues have their master here? Not while the node is being emptied."""
        self._takes_queues = takes_queues
        self._is_due = True

    def step(self) -> None:
        """Tell the others, if it is time. Called at the end of every pass."""
        if self._heard and self._node.now.mono >= self.next_at():
            report = encode(self.own())
            for peer in self._heard:
                self._effects.send(peer, CONTROL, report)
            self._told = self._node.now.mono
            self._is_due = self._node.census.is_changed = False

    def next_at(self) -> int:
        """When `step` has something to do next (mono µs); 0 if there is nobody to tell."""
        if not self._heard:
            return 0
        is_due = self._is_due or self._node.census.is_changed
        return self._told + (limits.news_pause_us if is_due else limits.news_period_us)

    # --- questions ------------------------------------------------------------------------------

    def of(self, node: str) -> Facts | None:
        """What is known of a node."""
        return self.own() if node == self._node.node_name else self._heard.get(node)

    def is_silent(self, node: str) -> bool:
        """Has another node not reported itself for too long, or never? Its link may still be open."""
        heard_at = self._heard_at.get(node)
        return heard_at is None or heard_at + limits.peer_suspect_us < self._node.now.mono

    def live(self) -> list[str]:
        """This node and those it has heard from, in order of their names."""
        heard = [node for node, facts in self._heard.items() if facts is not None]
        return sorted([self._node.node_name, *heard])

    def alarms(self) -> dict[str, list[str]]:
        """The alarms of every node that has some."""
        found = {node: _held_by(facts) for node, facts in self._heard.items() if facts is not None}
        found[self._node.node_name] = sorted(self._node.alarms)
        return {node: names for node, names in sorted(found.items()) if names}

    def shortages(self) -> list[str]:
        """Names of the resources that some node is short of."""
        names = set(self._node.alarms)
        for facts in self._reports():
            names.update(_held_by(facts))
        return sorted(names)

    def loads(self) -> list[tuple[str, int, int]]:
        """(node, connections, messages) of the live nodes that take queues, in order of their names."""
        found = [
            (node, facts.connections, facts.messages)
            for node, facts in self._heard.items()
            if facts is not None and facts.takes_queues
        ]
        if self._takes_queues:
            self._count_messages()
            found.append((self._node.node_name, self._node.census.connections, self._messages))
        return sorted(found)

    def totals(self) -> tuple[int, int]:
        """Connections and messages of all live nodes."""
        facts = [self.own(), *self._reports()]
        return sum(one.connections for one in facts), sum(one.messages for one in facts)

    def _reports(self) -> list[Facts]:
        return [facts for facts in self._heard.values() if facts is not None]

    # --- the own report -------------------------------------------------------------------------

    def own(self) -> Facts:
        """What this node reports now."""
        node = self._node
        state, census, settings = node.state, node.census, node.settings
        vhosts = [(record.vhost, record.limits) for record in state.vhost_limits.values()]
        users = [(record.name, record.limits) for record in state.limited_users()]
        room = limits.news_names_bytes_max // 3
        self._count_messages()
        return Facts(
            connections=census.connections,
            messages=self._messages,
            alarms=sorted(node.alarms),
            version=__version__,
            protocols=VERSIONS,
            listeners=self._listeners,
            memory_used=_number(node.memory_used),
            memory_limit=_number(settings.memory_limit),
            disk_free=_number(node.disk_free),
            disk_free_limit=_number(settings.disk_free_limit),
            started_at=_number(node.started_at.wall),
            takes_queues=self._takes_queues,
            vhosts=_told(census.vhosts, vhosts, "max-connections", room),
            users=_told(census.users, users, "max-connections", room),
            channels=_told(census.channels, users, "max-channels", room),
        )

    def _count_messages(self) -> None:
        """Walk some of the queues, not too often; the sum is new when the walk has seen all of them."""
        now = self._node.now.mono
        if self._walk is None:
            if now < self._counted_at + limits.news_pause_us:
                return
            self._walk, self._walked = iter(list(self._masters.values())), 0
        left = limits.news_queues_walked
        for queue in islice(self._walk, left):
            if not system.is_system(queue.record.vhost, queue.name):
                self._walked += queue.core.ready + queue.core.unacked
            left -= 1
        if left:
            self._messages, self._walk, self._counted_at = self._walked, None, now


def _held_by(facts: Facts) -> list[str]:
    """The alarms of a node for which publishers are held."""
    return [name for name in _ALARMS if name in facts.alarms]


Limited = Iterable[tuple[str, Mapping[str, int]]]
"""Names that have limits, with their limits."""


def _told(counts: dict[str, int], limited: Limited, limit: str, room: int) -> dict[str, int]:
    """The counts to report in `room` bytes: all if they are few, else those with this limit."""
    wanted = [
        (most - counts[name], name)
        for name, limits_of in limited
        if name in counts and (most := limits_of.get(limit, -1)) >= 0
    ]
    # Those closest to their limit first: they are the ones a connection elsewhere may be refused for.
    wanted.sort(key=itemgetter(0))
    names = [name for _, name in wanted]
    if len(counts) <= limits.news_names_max:
        names = list(dict.fromkeys([*names, *counts]))
    told: dict[str, int] = {}
    for name in names:
        room -= len(name.encode()) + _ENTRY_BYTES
        if room < 0:
            break
        told[name] = counts[name]
    return told


def _number(value: int) -> int:
    return max(0, min(value, _NUMBER_MAX))


def _word(text: str) -> str:
    return text.encode("ascii", "replace")[: limits.short_string_bytes_max].decode()
