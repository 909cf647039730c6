"""Positions of a query in its queues: what Spark writes into its checkpoint.

The JSON is version 1: `{"v": 1, "c": cluster, "q": {"<vhost>/<queue>": {"id": ..., "e": ..., "s": ..., "cur":
...}}}`. `s` is the seq of the next record, `e` the epoch of the record before it (0: not known), `id` the
queue's incarnation, `cur` the cursor that holds the records. `h` stands while the position is below the first
record that the cursor holds: until there the messages are read that are live. `f` stands only where a batch
does not begin where the last one ended: its queue is met for the first time in a running query, or it goes on
elsewhere after a loss. `o` stands where a query that consumes has begun below `h`. A `/` in the name of a
virtual host is written %2F.

Guarantees
- What was written by this or an older version is read back as it was; a newer version is refused.
- A position is never moved silently: `Loss` says what is missing, and only `failOnDataLoss=false` goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote

VERSION = 1
EARLIEST, LATEST = -2, -1
"""As numbers in `startingOffsets`, as with Kafka."""

QueueName = tuple[str, str]
"""(vhost, queue)"""


class BadOffsets(ValueError):
    """Offsets that cannot be read."""


@dataclass(frozen=True)
class Position:
    """Where a query stands in one queue."""

    id: str
    epoch: int
    seq: int
    cursor: str | None = None
    held: int | None = None
    """Below this seq only what is live can be read; None when the position has passed it."""
    begins: int | None = None
    origin: int | None = None
    """Where a query that consumes has begun, if that was below what its cursor holds."""


@dataclass(frozen=True)
class Offsets:
    """Where a query stands in all of its queues."""

    cluster: str
    queues: Mapping[QueueName, Position] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        rows = {key_of(name): _row(self.queues[name]) for name in sorted(self.queues)}
        return {"v": VERSION, "c": self.cluster, "q": rows}

    def settled(self) -> Offsets:
        """Without the beginnings, which belong to one batch."""
        queues = {name: replace(position, begins=None) for name, position in self.queues.items()}
        return Offsets(self.cluster, queues)


@dataclass(frozen=True)
class Facts:
    """What the master says of a queue."""

    vhost: str
    queue: str
    id: str
    first: int
    """The first live message: below `low` only what is live is kept."""
    low: int
    """From here on every record is kept."""
    next: int
    """One behind the last record that may be read."""
    epochs: tuple[tuple[int, int], ...] = ()
    """(epoch, its first seq), ascending."""
    members: tuple[Member, ...] = ()

    def epoch_at(self, seq: int) -> int:
        """The epoch of a record; 0 if it is not known."""
        if not 1 <= seq < self.next:
            return 0
        return next((epoch for epoch, first in reversed(self.epochs) if first <= seq), 0)


@dataclass(frozen=True)
class Member:
    """A node that has the queue."""

    node: str
    host: str
    port: int
    is_master: bool
    may_serve: bool
    """In sync and alive."""


@dataclass(frozen=True)
class Loss:
    """Records that a query wants and nobody has."""

    vhost: str
    queue: str
    why: str
    goes_on: Position | None
    """Where to go on if that is accepted; None if there is no such queue."""

    def __str__(self) -> str:
        return f"records of queue '{self.queue}' in vhost '{self.vhost}' are lost: {self.why}"


def key_of(name: QueueName) -> str:
    """A queue as a key of the JSON."""
    return f"{quote(name[0], safe='')}/{name[1]}"


def name_of(key: str) -> QueueName:
    """The queue of a key."""
    vhost, slash, queue = key.partition("/")
    if not slash:
        raise BadOffsets(f"'{key}' is not <vhost>/<queue>")
    return unquote(vhost), queue


def read_offsets(given: Mapping[str, Any]) -> Offsets:
    """What a checkpoint holds."""
    version = given.get("v")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BadOffsets("the checkpoint holds no offsets of MirrorMQ")
    if version > VERSION:
        raise BadOffsets(
            f"the checkpoint was written by a newer version of MirrorMQ (offsets of version {version})"
        )
    try:
        queues = {name_of(key): _position(row) for key, row in given["q"].items()}
        return Offsets(str(given["c"]), queues)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadOffsets(f"the offsets in the checkpoint cannot be read: {error!r}") from None


def parse_given(text: str) -> str | Mapping[str, object]:
    """What a user gives: earliest, latest, offsets as a query shows them, or {queue: seq}."""
    if text.lower() in {"earliest", "latest"}:
        return text.lower()
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadOffsets(f"earliest, latest or JSON such as {{\"orders\": 1000}} is expected, not '{text}'")
    if "v" in value and "q" in value:
        read_offsets(value)
        return value
    for name, seq in value.items():
        if not isinstance(seq, int) or isinstance(seq, bool) or seq < EARLIEST:
            raise BadOffsets(
                f"the position of queue '{name}' is a seq, -2 (earliest) or -1 (latest), not {seq!r}"
            )
    return value


def wanted_seq(given: str | Mapping[str, object] | None, facts: Facts, default: str) -> tuple[int | str, str]:
    """(seq or word, the incarnation it is meant for or "") that a user wants for a queue."""
    if given is None:
        return default, ""
    if isinstance(given, str):
        return given, ""
    if "v" in given and "q" in given:
        position = read_offsets(given).queues.get((facts.vhost, facts.queue))
        return (default, "") if position is None else (position.seq, position.id)
    value = given.get(facts.queue, given.get(key_of((facts.vhost, facts.queue))))
    if value is None:
        return default, ""
    assert isinstance(value, int), value
    return {EARLIEST: "earliest", LATEST: "latest"}.get(value, value), ""


def unknown_queues(given: str | Mapping[str, object] | None, known: Mapping[QueueName, Facts]) -> list[str]:
    """Queues that a user gives a position for and does not read."""
    if given is None or isinstance(given, str):
        return []
    keys = {key_of(name) for name in known}
    if "v" in given and "q" in given:
        rows = given["q"]
        assert isinstance(rows, dict), rows
        return sorted(set(rows) - keys)
    return sorted(set(given) - keys - {queue for _, queue in known})


def loss_at(position: Position, facts: Facts) -> Loss | None:
    """What is missing for a query that stands at a position; None if nothing is.

    A position behind the end is no loss yet: a new master learns the durable mark from its mirrors, and only
    the comparison of epochs, which it makes when the cursor is moved, can tell.
    """
    if position.id != facts.id:
        why = f"it was deleted and declared again (id {position.id} is now {facts.id})"
        return Loss(facts.vhost, facts.queue, why, beginning(facts))
    needed = max(position.seq, position.held or 0)
    if needed < facts.low:
        why = f"{needed} to {facts.low - 1} are gone (id {facts.id}, epoch {position.epoch})"
        return Loss(facts.vhost, facts.queue, why, replace(position, seq=facts.low, held=None, epoch=0))
    return None


def parted(position: Position, facts: Facts) -> Position:
    """Where to go on in a history that lacks records before the position: at the first that is another."""
    later = (first for epoch, first in facts.epochs if position.epoch and epoch > position.epoch)
    seq = max(facts.low, min(position.seq, facts.next, *later))
    return replace(position, seq=seq, epoch=facts.epoch_at(seq - 1), held=None)


def beginning(facts: Facts) -> Position:
    """The earliest position: the oldest live message, and from the low mark on every record."""
    seq = min(facts.first, facts.low)
    epoch = facts.epoch_at(seq - 1)
    return Position(facts.id, epoch, seq, held=facts.low if seq < facts.low else None)


def _row(position: Position) -> dict[str, Any]:
    row: dict[str, Any] = {"id": position.id, "e": position.epoch, "s": position.seq}
    if position.cursor is not None:
        row["cur"] = position.cursor
    if position.held is not None:
        row["h"] = position.held
    if position.begins is not None:
        row["f"] = position.begins
    if position.origin is not None:
        row["o"] = position.origin
    return row


def _position(row: Mapping[str, Any]) -> Position:
    epoch, seq, held, begins, origin = row["e"], row["s"], row.get("h"), row.get("f"), row.get("o")
    for number in (epoch, seq, held or 0, begins or 0, origin or 0):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise BadOffsets(f"{number!r} is no position")
    cursor = row.get("cur")
    return Position(str(row["id"]), epoch, seq, None if cursor is None else str(cursor), held, begins, origin)
