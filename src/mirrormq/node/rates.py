"""What clients do on this node, looked at every five seconds: the past behind RabbitMQ's rates and charts.

Guarantees
- Counting is not done here: the kernel and the broker count, a round looks at what they have. A round sees
  every queue mastered here, every channel, connection, exchange and vhost of this node once, in slices.
- Rounds begin at multiples of the period in wall time, so that nodes whose clocks agree look at the same
  moments, and sums over nodes are sums of one moment. A clock that is set back begins the past anew.
- The past is bounded: per object by its levels, in all by `rates_bytes_max` and the minimum that every object
  may have.
"""

from collections.abc import Hashable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.base.walk import KeyWalk, let_go
from mirrormq.broker.census import CHURN
from mirrormq.kernel.cores import QUEUE_COUNTS
from mirrormq.kernel.tally import CHANNEL_COUNTS, EXCHANGE_COUNTS
from mirrormq.meta import system
from mirrormq.node.history import History, Levels

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.connection import Connection
    from mirrormq.broker.vhost import VHost
    from mirrormq.node.node import Node

QUEUE, CHANNEL, CONNECTION, EXCHANGE, VHOST, NODE = range(6)

CONNECTION_COUNTS = ("recv_oct", "send_oct", "recv_cnt")
VHOST_COUNTS = (*CHANNEL_COUNTS, "messages_ready", "messages_unacknowledged", "recv_oct", "send_oct")
NODE_COUNTS = (
    *CHURN,
    "mem_used",
    "disk_free",
    "sockets_used",
    "io_write_bytes",
    "io_sync_count",
    "io_sync_time",
)
COLUMNS = (QUEUE_COUNTS, CHANNEL_COUNTS, CONNECTION_COUNTS, EXCHANGE_COUNTS, VHOST_COUNTS, NODE_COUNTS)
"""What is kept of each kind of object."""

_BASIC, _GLOBAL = limits.rates_levels_basic, limits.rates_levels_global
_LEVELS: tuple[Levels, ...] = (_BASIC, _BASIC, _BASIC, _BASIC, _GLOBAL, _GLOBAL)
_READY, _UNACKED = QUEUE_COUNTS.index("messages_ready"), QUEUE_COUNTS.index("messages_unacknowledged")

Counts = tuple[int, ...]
Table = dict[Hashable, History]
_LET_GO = 16
"""Of the table of the round before, between two looks at the clock."""


class _Round:
    """One look at everything."""

    def __init__(self, time: int, mono: int, items: Iterator[bool]) -> None:
        self.time = time
        self.mono = mono
        self.items = items


class Rates:
    """The past of this node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._walk = KeyWalk(node.switch.masters)
        self._tables: list[Table] = [{} for _ in COLUMNS]
        self._round: _Round | None = None
        self._size = 0
        self._last = 0
        self._begun_at = 0
        """When the last round began (mono): a queue that had no turn since is as it was."""
        self._octets: dict[str, list[int]] = {}
        """Octets received and sent by connections that are gone, by vhost."""
        self._due_at = self._next_at()
        self.is_exact = False
        """Wake for rounds when they are due, and not up to a second later with a tick."""

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return self._size

    @property
    def shown(self) -> int:
        """The last moment that every node has looked at."""
        return (self._node.now.wall - limits.rates_settled_us) // limits.rates_period_us

    def of(self, kind: int, key: Hashable) -> History:
        """The past of an object; of one that has done nothing, an empty one."""
        return self._tables[kind].get(key) or _EMPTY[kind]

    def keys(self, kind: int) -> list[Hashable]:
        """Every object of a kind that has a past."""
        return list(self._tables[kind])

    def connection_ended(self, connection: "Connection") -> None:
        """What a connection moved stays counted for its vhost."""
        if connection.vhost is not None:
            moved = self._octets.setdefault(connection.vhost.name, [0, 0])
            moved[0] += connection.recv_oct
            moved[1] += connection.send_oct

    # --- rounds ---------------------------------------------------------------------------------

    @property
    def needs_pass(self) -> bool:
        """Is a round under way?"""
        return self._round is not None

    def next_at(self) -> int:
        """When to be woken for the next round (mono µs); 0: the next tick is soon enough."""
        return self._due_at if self.is_exact else 0

    def on_timer(self) -> None:
        """Begin a round if it is time."""
        now = self._node.now
        if now.mono < self._due_at or self._round is not None:
            return
        time = now.wall // limits.rates_period_us
        self._due_at = self._next_at()
        if time < self._last:
            self._tables = [{} for _ in COLUMNS]
            self._size = self._last = 0
        if time > self._last:
            self._round = _Round(time, now.mono, self._looks(time))

    def _next_at(self) -> int:
        now = self._node.now
        return now.mono + limits.rates_period_us - now.wall % limits.rates_period_us

    def step(self) -> None:
        """Look at some objects."""
        current = self._round
        if current is None:
            return
        rows = 0
        for _, has_changed in zip(range(limits.rates_slice_objects), current.items, strict=False):
            rows += has_changed
            if rows >= limits.rates_slice_rows:
                return
        if next(current.items, None) is None:
            self._last, self._begun_at = current.time, current.mono
            self._round = None

    def _looks(self, time: int) -> Iterator[bool]:
        """Look at one object after the other; has it changed?"""
        node = self._node
        depths: dict[str, list[int]] = {}
        octets: dict[str, list[int]] = {name: list(moved) for name, moved in self._octets.items()}
        yield from self._table(QUEUE, time, self._queues(depths))
        yield from self._table(CHANNEL, time, _channels(list(node.channels.values())))
        yield from self._table(CONNECTION, time, _connections(list(node.connections.values()), octets))
        vhosts = list(node.vhosts.values())
        places = chain.from_iterable(_exchanges(vhost) for vhost in vhosts)
        yield from self._table(EXCHANGE, time, places)
        yield from self._table(VHOST, time, _vhosts(vhosts, depths, octets))
        for gone in set(self._octets) - {vhost.name for vhost in vhosts}:
            del self._octets[gone]
        yield from self._table(NODE, time, [(node.node_name, _node_counts(node))])

    def _table(self, kind: int, time: int, found: Iterable[tuple[Hashable, Counts | None]]) -> Iterator[bool]:
        """Go through the objects of a kind; those that are no longer there are forgotten at the end."""
        before, after = self._tables[kind], Table()
        for key, counts in found:
            if key in after:
                continue  # a queue that went and came again: a walk may give it out twice
            past = before.get(key)
            if counts is None:
                counts = past.last if past is not None else None
            if counts is None or (past is None and not any(counts)):
                yield False
                continue
            if past is None:
                past = History(_LEVELS[kind], len(COLUMNS[kind]))
                self._size += past.size
            after[key] = past
            if counts == past.last:
                yield False
                continue
            self._size += past.put(time, counts, self._size < limits.rates_bytes_max)
            yield True
        self._tables[kind] = after
        while before:
            for key, past in let_go(before, _LET_GO):
                if key not in after:
                    self._size -= past.size
            yield False

    def _queues(self, depths: dict[str, list[int]]) -> Iterator[tuple[Hashable, Counts | None]]:
        table, masters = self._tables[QUEUE], self._node.switch.masters
        for number in self._walk.each():
            if number is None:
                yield None, None  # no queue, but time was spent
                continue
            queue = masters[number]
            record = queue.record
            if system.is_system(record.vhost, record.name):
                yield record.id, None
                continue
            past = table.get(record.id)
            is_same = past is not None and queue.pace.turned_at < self._begun_at
            counts = past.last if is_same and past is not None else queue.core.counts()
            depth = depths.get(record.vhost)
            if depth is None:
                depth = depths[record.vhost] = [0, 0]
            depth[0] += counts[_READY]
            depth[1] += counts[_UNACKED]
            yield record.id, counts


def _channels(channels: "list[Channel]") -> Iterator[tuple[Hashable, Counts]]:
    for channel in channels:
        yield channel.uid, channel.core.tally.of_channel()


def _connections(
    connections: "list[Connection]", octets: dict[str, list[int]]
) -> Iterator[tuple[Hashable, Counts]]:
    for found in connections:
        if found.vhost is not None:
            moved = octets.setdefault(found.vhost.name, [0, 0])
            moved[0] += found.recv_oct
            moved[1] += found.send_oct
        yield found.conn_id, (found.recv_oct, found.send_oct, found.recv_cnt)


def _exchanges(vhost: "VHost") -> Iterator[tuple[Hashable, Counts]]:
    for place in vhost.router.places():
        yield (vhost.name, place.record.name), place.tally.of_exchange()


def _vhosts(
    vhosts: "list[VHost]", depths: dict[str, list[int]], octets: dict[str, list[int]]
) -> Iterator[tuple[Hashable, Counts]]:
    for vhost in vhosts:
        depth, moved = depths.get(vhost.name, (0, 0)), octets.get(vhost.name, (0, 0))
        yield vhost.name, (*vhost.tally.of_channel(), *depth, *moved)


def _node_counts(node: "Node") -> Counts:
    journal = node.journal
    return (
        *node.census.churn.values(),
        node.memory_used,
        node.disk_free,
        len(node.connections),
        journal.added_bytes,
        journal.flush_count,
        journal.flush_times.total_us,
    )


_EMPTY = tuple(History(levels, len(names)) for levels, names in zip(_LEVELS, COLUMNS, strict=True))
