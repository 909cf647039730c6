"""Which masters move where, so that all nodes have their share: a pure function of where they are.

Guarantees
- A queue moves only to a node that it may have its master on, and once. What that is is for the caller: the
  in-sync mirrors of a mirrored queue, so no plan goes through fewer copies in sync than there were.
- No strategy makes the spread worse. All but `messages` are stable: after the moves there is nothing to move,
  so a cluster that is even is left alone however often it is looked at.
- The same placement gives the same moves, apart from what `random` draws.
- Of the queues that could move the smallest do, and the biggest of those that do come last.

| strategy | evens out | surplus masters go to |
|---|---|---|
| masters | masters | the node with the fewest |
| connections | masters and clients' connections together | the node with the fewest |
| messages | messages, each queue counting as one more | the node with the fewest |
| random | masters | any node that has too few, drawn |
| round-robin | masters | the nodes that have too few, by turns |
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from mirrormq.base import limits
from mirrormq.base.rng import Rng

MASTERS, CONNECTIONS, MESSAGES, RANDOM, ROUND_ROBIN = (
    "masters",
    "connections",
    "messages",
    "random",
    "round-robin",
)
STRATEGIES = (MASTERS, CONNECTIONS, MESSAGES, RANDOM, ROUND_ROBIN)
_TOLERATED = 10
"""Of `messages`: a difference below the mean divided by this is none."""


class Placed(NamedTuple):
    """A queue and where its master may be; `is_alone`: it has no mirror and would have to be copied."""

    vhost: str
    name: str
    id: int
    master: str
    able: tuple[str, ...]
    messages: int = 0
    is_alone: bool = False


class Move(NamedTuple):
    """A queue that is to have another master."""

    queue: Placed
    target: str


def plan(placed: Sequence[Placed], sites: Mapping[str, int], strategy: str, rng: Rng) -> list[Move]:
    """The moves that even queues out over `sites`, which are nodes with their clients' connections."""
    found = Plan(placed, sites, strategy, rng)
    for _ in found.slices():
        pass
    return found.moves()


Entry = tuple[int, str, str, int]
"""A queue that could go: its size or weight, its vhost and name, its place."""
Offers = dict[tuple[str, str], list[Entry]]
"""What could go from one node to another."""
Chooser = Callable[[Sequence[str], Mapping[str, int]], str]


def _chooser(strategy: str, rng: Rng) -> Chooser:
    """How one of several nodes is chosen that have too few."""
    turn = 0

    def fewest(names: Sequence[str], loads: Mapping[str, int]) -> str:
        return min(names, key=lambda name: (loads[name], name))

    def drawn(names: Sequence[str], _: Mapping[str, int]) -> str:
        return names[rng.below(len(names))]

    def next_one(names: Sequence[str], _: Mapping[str, int]) -> str:
        nonlocal turn
        turn += 1
        return names[(turn - 1) % len(names)]

    return {RANDOM: drawn, ROUND_ROBIN: next_one}.get(strategy, fewest)


class Plan:
    """A placement that is being improved: `moves` are known when `slices` is at its end."""

    def __init__(self, placed: Sequence[Placed], sites: Mapping[str, int], strategy: str, rng: Rng) -> None:
        self._choose = _chooser(strategy, rng)
        self._placed = placed
        self._sites = sorted(sites)
        self._is_weighted = strategy == MESSAGES
        self._at = [queue.master for queue in placed]
        """Where the masters are by now, by place in `placed`."""
        self._loads = {name: sites[name] if strategy == CONNECTIONS else 0 for name in self._sites}

    def slices(self) -> Iterator[None]:
        """Improve it, in steps that hold nobody up."""
        yield from self._weigh()
        yield from self._leave_closed()
        yield from self._even_weights() if self._is_weighted else self._even_counts()

    def _weight(self, queue: Placed) -> int:
        return queue.messages + 1 if self._is_weighted else 1

    def _entry(self, place: int) -> Entry:
        queue = self._placed[place]
        size = self._weight(queue) if self._is_weighted else queue.messages
        return size, queue.vhost, queue.name, place

    def moves(self) -> list[Move]:
        """What has changed, the biggest queues last."""
        found = [
            Move(queue, self._at[place])
            for place, queue in enumerate(self._placed)
            if self._at[place] != queue.master
        ]
        return sorted(found, key=lambda move: (move.queue.messages, move.queue.vhost, move.queue.name))

    def _targets(self, place: int) -> list[str]:
        here, able = self._at[place], self._placed[place].able
        return [name for name in self._sites if name != here and name in able]

    def _move(self, place: int, to: str) -> None:
        weight = self._weight(self._placed[place])
        here = self._at[place]
        if here in self._loads:
            self._loads[here] -= weight
        self._loads[to] += weight
        self._at[place] = to

    def _weigh(self) -> Iterator[None]:
        for place, queue in enumerate(self._placed):
            if queue.master in self._loads:
                self._loads[queue.master] += self._weight(queue)
            if place % limits.balance_slice_queues == 0:
                yield

    def _leave_closed(self) -> Iterator[None]:
        """Nodes that are no site (they are in maintenance) are left by whatever can leave."""
        for place, queue in enumerate(self._placed):
            if queue.master not in self._loads and (targets := self._targets(place)):
                self._move(place, min(targets, key=lambda name: (self._loads[name], name)))
            if place % limits.balance_slice_queues == 0:
                yield

    # --- every queue counts the same ------------------------------------------------------------

    def _even_counts(self) -> Iterator[None]:
        """Move queues, if need be through nodes between, until nobody has two more than who could take one.

        A queue that cannot go from a full node to an empty one may make room on a third for one that can:
        ways are looked for in the graph of nodes, which is small.
        """
        ways: Offers = {}

        def offer(place: int) -> None:
            for to in self._targets(place):
                heapq.heappush(ways.setdefault((self._at[place], to), []), self._entry(place))

        for place in range(len(self._placed)):
            offer(place)
            if place % limits.balance_slice_queues == 0:
                yield
        for steps in range(len(self._placed) * len(self._sites)):
            way = self._way(ways)
            if not way:
                return
            for here, to in pairwise(way):
                place = heapq.heappop(ways[here, to])[3]
                self._move(place, to)
                offer(place)
            if steps % limits.balance_slice_queues == 0:
                yield

    def _way(self, ways: Offers) -> list[str]:
        """From the fullest node that can give a queue, the nodes up to one that should get one."""
        for source in sorted(self._sites, key=lambda name: (-self._loads[name], name)):
            came_from = {source: ""}
            reached = [source]
            for here in reached:
                for to in self._sites:
                    if to not in came_from and self._has_any(ways, here, to):
                        came_from[to] = here
                        reached.append(to)
            wanting = [name for name in sorted(reached) if self._loads[name] <= self._loads[source] - 2]
            if wanting:
                way = [self._choose(wanting, self._loads)]
                while came_from[way[-1]]:
                    way.append(came_from[way[-1]])
                return way[::-1]
        return []

    def _has_any(self, ways: Offers, here: str, to: str) -> bool:
        """Can a queue go this way? Entries of queues that have left are dropped meanwhile."""
        entries = ways.get((here, to), [])
        while entries and self._at[entries[0][3]] != here:
            heapq.heappop(entries)
        return bool(entries)

    # --- queues have weights --------------------------------------------------------------------

    def _even_weights(self) -> Iterator[None]:
        """Move from the fullest node to the emptiest it can, what comes closest to half the difference."""
        offers: Offers = {}
        for place, queue in enumerate(self._placed):
            for to in self._targets(place) if self._at[place] == queue.master else ():
                offers.setdefault((queue.master, to), []).append(self._entry(place))
            if place % limits.balance_slice_queues == 0:
                yield
        for entries in offers.values():
            entries.sort()
        tolerated = sum(self._loads.values()) // max(1, len(self._sites)) // _TOLERATED
        for steps in range(len(self._placed)):
            found = self._next_weight(offers, tolerated)
            if found is None:
                return
            self._withdraw(offers, found[0])
            self._move(*found)
            if steps % limits.balance_slice_queues == 0:
                yield

    def _next_weight(self, offers: Offers, tolerated: int) -> tuple[int, str] | None:
        for source in sorted(self._sites, key=lambda name: (-self._loads[name], name)):
            for to in sorted(self._sites, key=lambda name: (self._loads[name], name)):
                difference = self._loads[source] - self._loads[to]
                if difference <= max(1, tolerated):
                    break
                place = _closest(offers.get((source, to), []), difference)
                if place is not None:
                    return place, to
        return None

    def _withdraw(self, offers: Offers, place: int) -> None:
        """A queue moves once."""
        entry, here = self._entry(place), self._at[place]
        for to in self._targets(place):
            entries = offers[here, to]
            del entries[bisect_left(entries, entry)]


def _closest(entries: list[Entry], difference: int) -> int | None:
    """The place of the queue whose weight is closest to half the difference, and below all of it."""
    at = bisect_left(entries, (difference // 2, "", "", 0))
    near = [entry for entry in entries[max(0, at - 1) : at + 1] if entry[0] < difference]
    return min(near, key=lambda entry: abs(2 * entry[0] - difference))[3] if near else None


def spread(placed: Iterable[Placed], moves: Iterable[Move]) -> dict[str, int]:
    """How many of these queues every node is the master of after these moves."""
    targets = {move.queue.id: move.target for move in moves}
    found: dict[str, int] = {}
    for queue in placed:
        node = targets.get(queue.id, queue.master)
        found[node] = found.get(node, 0) + 1
    return found
