"""Which task reads what, and from whom: pure functions of offsets and facts.

Guarantees
- The same offsets give the same partitions: ranges of seqs that touch and do not overlap, in order.
- A range that a cursor holds is never mixed with one below it, of which only the live messages are there.
- Neighbouring ranges are read from different mirrors, if there are several; the master is asked last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from mirrormq.spark.offsets import Facts, Member, QueueName

SMALL_PIECE = 200_000
"""Records per task while there are few tasks: less is not worth the start of one."""

LARGE_PIECE = 2_500_000
"""Records per task of a large read: a task that fails is done again as a whole."""

FEW_TASKS = 4


@dataclass(frozen=True)
class Limits:
    """What the options say about partitions."""

    min_partitions: int | None = None
    max_records: int | None = None
    node: str | None = None
    masters_only: bool = False


@dataclass(frozen=True, init=False, repr=True)
class Piece(InputPartition):
    """One task: the records start <= seq < end of a queue."""

    vhost: str
    queue: str
    id: str
    start: int
    end: int
    end_epoch: int
    upto: int
    """States are as of this record."""
    held: int
    """Removals are known from this record on."""
    is_live: bool
    members: tuple[Member, ...]
    node: str | None

    def __init__(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Span:
    """What is to be read of one queue."""

    facts: Facts
    start: int
    end: int
    end_epoch: int
    held: int
    """Below this only what is live; 0: everything is held, `end`: nothing is."""


def plan(spans: Sequence[Span], limits: Limits) -> list[Piece]:
    """The tasks of a read."""
    total = sum(span.end - span.start for span in spans)
    pieces: list[Piece] = []
    for span in spans:
        count = _tasks(span.end - span.start, total, limits)
        held = min(max(span.held, span.start), span.end)
        for start, end in _cut(span.start, span.end, held, count):
            pieces.append(_piece(span, (start, end), len(pieces), limits))
    return pieces


def _tasks(records: int, total: int, limits: Limits) -> int:
    if records <= 0:
        return 0
    wanted = -(-records // SMALL_PIECE)
    if wanted > FEW_TASKS:
        wanted = max(FEW_TASKS, -(-records // LARGE_PIECE))
    if limits.min_partitions is not None:
        wanted = max(wanted, -(-limits.min_partitions * records // total))
    if limits.max_records is not None:
        wanted = max(wanted, -(-records // limits.max_records))
    return min(wanted, records)


def _cut(start: int, end: int, held: int, count: int) -> list[tuple[int, int]]:
    """Ranges of about the same length, none of them across `held`."""
    edges = {start + (end - start) * i // count for i in range(count)} | {start, end}
    if start < held < end:
        edges.add(held)
    ordered = sorted(edges)
    return list(pairwise(ordered))


def _piece(span: Span, extent: tuple[int, int], number: int, limits: Limits) -> Piece:
    facts, (start, end) = span.facts, extent
    is_live = start < span.held
    end_epoch = span.end_epoch if end == span.end else facts.epoch_at(end - 1)
    return Piece(
        vhost=facts.vhost,
        queue=facts.queue,
        id=facts.id,
        start=start,
        end=end,
        end_epoch=0 if is_live else end_epoch,
        upto=span.end,
        held=min(max(span.held, start), span.end),
        is_live=is_live,
        members=order(facts.members, number, limits),
        node=limits.node,
    )


def order(members: Sequence[Member], number: int, limits: Limits) -> tuple[Member, ...]:
    """Whom to ask, best first."""
    if limits.node is not None:
        return tuple(member for member in members if member.node == limits.node)
    master = [member for member in members if member.is_master]
    mirrors = sorted(
        (member for member in members if member.may_serve and not member.is_master), key=lambda m: m.node
    )
    if limits.masters_only or not mirrors:
        return tuple(master)
    turn = number % len(mirrors)
    return tuple(mirrors[turn:] + mirrors[:turn] + master)


def shares(lengths: Mapping[QueueName, int], most: int, turn: int = 0) -> dict[QueueName, int]:
    """How much of each queue fits into a batch: one of each that has something, the rest in proportion.

    If there are more of them than records in a batch they take turns, so that nobody waits for ever.
    """
    total = sum(lengths.values())
    if total <= most:
        return dict(lengths)
    found = dict.fromkeys(lengths, 0)
    busy = sorted(name for name in lengths if lengths[name])
    if len(busy) > most:
        first = turn * most % len(busy)
        return found | dict.fromkeys((busy[first:] + busy[:first])[:most], 1)
    for name in busy:
        found[name] = 1 + (lengths[name] - 1) * (most - len(busy)) // (total - len(busy))
    return found
