"""What Spark's workers do for the job `audit`: ask one member of a queue for digests, records and removals.

Guarantees
- What comes back was said by the named member itself, whoever relayed it, and is all of it; or there is one
  row that says why not (`code`, `error`). A connection that breaks, a fail-over, a member that catches up are
  waited for; a member that is no longer in sync is not.
- Bounded: of records a worker holds what identifies them, never the messages.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Self, TypeVar

import pyarrow as pa

from mirrormq.base import limits
from mirrormq.client.bulk import BulkClient, BulkError, Gone, Run
from mirrormq.kernel.crc32c import crc32c
from mirrormq.kernel.gather import Digest
from mirrormq.kernel.ranges import RangeSet
from mirrormq.spark.broker import target_of
from mirrormq.spark.options import Contact
from mirrormq.spark.scan import Removals

T = TypeVar("T")

STEP = 1_000
"""Seqs that one digest covers."""

PATIENCE_S = 30.0
"""How long a member is waited for: a fail-over fits into it several times."""

PAUSE_S = 0.2
SOON = frozenset(("unavailable", "elsewhere"))
LEFT = "left"
"""The member is not in sync any more: nothing is wrong with it, it cannot be judged."""

GIVEN_UP = "given-up"
"""Records were let go that a cursor should have held: it was lost by its bounds."""

QUERY = "mirrormq pipeline audit"
SPANS_AT_ONCE = 64
"""Ranges whose records a worker holds at a time."""

_HEAD = struct.Struct("<4sIIIQQQIIQ")
_RECORD = struct.Struct("<IIBBH")
_PUBLISH = struct.Struct("<32xIIHBB")
_ROW = struct.Struct("<QQQq")
_TAIL_BYTES = 24
_KIND_PUBLISH = 1

DIGESTS = pa.schema(
    [
        pa.field("number", pa.int32()),
        pa.field("member", pa.string()),
        pa.field("is_live", pa.bool_()),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("digest", pa.int64()),
        pa.field("code", pa.string()),
        pa.field("error", pa.string()),
    ]
)
DIGESTS_SQL = (
    "number INT, member STRING, is_live BOOLEAN, first LONG, last LONG, messages LONG, digest LONG, "
    "code STRING, error STRING"
)
VERSIONS = pa.schema(
    [
        pa.field("number", pa.int32()),
        pa.field("member", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("version", pa.string()),
        pa.field("body", pa.int64()),
        pa.field("code", pa.string()),
        pa.field("error", pa.string()),
    ]
)
VERSIONS_SQL = "number INT, member STRING, seq LONG, version STRING, body LONG, code STRING, error STRING"


class Unread(Exception):
    """A member does not give what it was asked for."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(frozen=True)
class Extent:
    """A range of a queue, of one member."""

    number: int
    """The queue's in its group."""
    vhost: str
    queue: str
    id: str
    member: str
    address: tuple[str, int] | None
    start: int
    end: int
    end_epoch: int
    upto: int
    """What is removed by records before this does not count."""
    is_live: bool = False
    """Below the low mark: only what is live there is kept."""
    is_only: bool = False
    """Nobody to compare with: everything is read, and must be there."""


class Clients:
    """Connections of one task, made when they are needed."""

    def __init__(self, contact: Contact) -> None:
        self.contact = contact
        self._made: dict[tuple[tuple[str, int], ...], BulkClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._made.values():
            client.close()

    def at(self, hosts: tuple[tuple[str, int], ...]) -> BulkClient:
        """A connection to the first of these hosts that answers."""
        if hosts not in self._made:
            self._made[hosts] = BulkClient(target_of(self.contact, hosts, QUERY), retry_s=0.0)
        return self._made[hosts]


class Tap:
    """One member, asked until it answers."""

    def __init__(self, clients: Clients, extent: Extent) -> None:
        self._clients = clients
        self._extent = extent
        hosts = tuple(clients.contact.hosts)
        self._ways = [hosts] if extent.address is None else [(extent.address,), hosts]

    def ask(self, take: Callable[[BulkClient], T]) -> T:
        """What `take` makes of a connection; again, from the beginning, while there is hope."""
        until = time.monotonic() + PATIENCE_S
        while True:
            is_over = time.monotonic() >= until
            client = self._clients.at(self._ways[0])
            try:
                return take(client)
            except Gone as error:
                client.close()
                self._ways.append(self._ways.pop(0))
                if is_over:
                    raise Unread("gone-away", str(error)) from None
            except BulkError as error:
                if is_over or error.code not in SOON:
                    is_given_up = int(error.more.get("low") or 0) > self._extent.start
                    code = GIVEN_UP if error.code == "data-loss" and is_given_up else error.code
                    raise Unread(code, error.text) from None
            self._check()
            threading.Event().wait(PAUSE_S)

    def _check(self) -> None:
        """Give up on a member that has left those in sync, and on a queue that is gone."""
        extent = self._extent
        client = self._clients.at(self._ways[-1])
        try:
            asked = {"vhost": extent.vhost, "queue": extent.queue, "partial": True}
            (row,) = client.call("queues", **asked)["queues"]
        except Gone:
            client.close()
            return
        except BulkError as error:
            if error.code in SOON:
                return
            raise Unread(error.code, error.text) from None
        if row["id"] != extent.id:
            raise Unread("gone", f"queue '{extent.queue}' was deleted and declared again")
        if not any(one["node"] == extent.member and one["in_sync"] for one in row["members"]):
            raise Unread(LEFT, "it left the members in sync meanwhile")

    def fields(self, **more: Any) -> dict[str, Any]:
        """A request for something of this member."""
        extent = self._extent
        known = {"vhost": extent.vhost, "queue": extent.queue, "id": extent.id, "node": extent.member}
        return {**known, **more}

    def read(self, client: BulkClient, start: int, end: int, **more: Any) -> Iterator[Run]:
        """Batches with the records of a range; gaps are what an audit looks for, unless it is told so."""
        asked = self.fields(start=start, end=end, relay=True, gaps=True)
        return client.read(**{**asked, **more})


# --- digests -----------------------------------------------------------------------------------------------


def digest_rows(
    batches: Iterator[pa.RecordBatch], *, work: Sequence[Sequence[Extent]], contact: Contact
) -> Iterator[pa.RecordBatch]:
    """Digests of the extents of these tasks."""
    with Clients(contact) as clients:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for extent in work[task]:
                    yield _digest_batch(Tap(clients, extent), extent)


def _digest_batch(tap: Tap, extent: Extent) -> pa.RecordBatch:
    how = _digested_here if extent.is_live else _digested_there
    rows: list[tuple[int, ...]] = []
    code = error = None
    try:
        if extent.is_only:
            tap.ask(lambda client: _read_through(tap, client, extent))
        rows = list(_ROW.iter_unpack(tap.ask(lambda client: how(tap, client, extent))))
    except Unread as unread:
        rows, code, error = [(extent.start, extent.end - 1, 0, 0)], unread.code, unread.text
    count = len(rows)
    known: list[list[Any]] = [[extent.number] * count, [extent.member] * count, [extent.is_live] * count]
    columns = [[row[at] for row in rows] for at in range(4)]
    return _batch([*known, *columns, [code] * count, [error] * count], DIGESTS)


def _digested_there(tap: Tap, client: BulkClient, extent: Extent) -> bytes:
    """The member adds up its own records."""
    asked = tap.fields(start=extent.start, end=extent.end, upto=extent.upto, end_epoch=extent.end_epoch)
    return b"".join(client.stream("digest", **asked, step=STEP))


def _digested_here(tap: Tap, client: BulkClient, extent: Extent) -> bytes:
    """Below the low mark there are no removals to go by: what is live is read and added up here."""
    digest = Digest(extent.start, extent.end, STEP, RangeSet())
    found = [digest.feed(data) for data in tap.read(client, extent.start, extent.end, live=True)]
    return b"".join([*found, digest.finish()])


def _read_through(tap: Tap, client: BulkClient, extent: Extent) -> None:
    """Whatever is missing or damaged ends the read."""
    asked: dict[str, Any] = {"gaps": False, "live": extent.is_live}
    if not extent.is_live:
        asked["end_epoch"] = extent.end_epoch
    for _ in tap.read(client, extent.start, extent.end, **asked):
        pass


# --- records -----------------------------------------------------------------------------------------------


def version_rows(
    batches: Iterator[pa.RecordBatch], *, extents: Mapping[tuple[int, str], Extent], contact: Contact
) -> Iterator[pa.RecordBatch]:
    """What members have in ranges of queues: rows `number`, `member`, `is_live`, `spans` (first, last)."""
    with Clients(contact) as clients:
        for batch in batches:
            for row in batch.to_pylist():
                extent = extents[row["number"], row["member"]]
                spans = sorted((span["first"], span["last"]) for span in row["spans"])
                yield from _version_batches(Tap(clients, extent), extent, spans, live=row["is_live"])


def _version_batches(
    tap: Tap, extent: Extent, spans: Sequence[tuple[int, int]], *, live: bool
) -> Iterator[pa.RecordBatch]:
    try:
        removed = None
        if not live:
            removed = tap.ask(lambda client: _removed(tap, client, (spans[0][0], extent.upto)))
        for at in range(0, len(spans), SPANS_AT_ONCE):
            some = spans[at : at + SPANS_AT_ONCE]
            rows = tap.ask(partial(_versions, tap, spans=some, live=live))
            yield _version_batch(
                extent, [row for row in rows if removed is None or not removed.reason(row[0])]
            )
    except Unread as unread:
        yield _version_batch(extent, [(spans[0][0], "", 0)], unread)


def _version_batch(
    extent: Extent, rows: Sequence[tuple[int, str, int]], unread: Unread | None = None
) -> pa.RecordBatch:
    count = len(rows)
    known: list[list[Any]] = [[extent.number] * count, [extent.member] * count]
    code, text = (None, None) if unread is None else (unread.code, unread.text)
    found = [[row[at] for row in rows] for at in range(3)]
    return _batch([*known, *found, [code] * count, [text] * count], VERSIONS)


def _versions(
    tap: Tap, client: BulkClient, spans: Sequence[tuple[int, int]], *, live: bool
) -> list[tuple[int, str, int]]:
    return [
        version_of(*one)
        for first, last in spans
        for data in tap.read(client, first, last + 1, live=live)
        for one in publishes(data)
    ]


def _removed(tap: Tap, client: BulkClient, span: tuple[int, int]) -> Removals:
    """What the records of a span say has left the queue."""
    found = Removals(limits.spark_removals_max, span[0])
    if span[0] < span[1]:
        for data in tap.read(client, span[0], span[0], upto=span[1]):
            found.feed(data, span[1])
    found.seal()
    return found


def publishes(data: Run) -> Iterator[tuple[int, int, int, memoryview]]:
    """(seq, epoch, flags, payload) of the messages in a run of whole batches (docs/format/batch.md)."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        _, _, size, _, _, epoch, first, count, _, _ = _HEAD.unpack_from(view, at)
        at += _HEAD.size
        end = at + size
        for _ in range(count):
            length, offset, kind, flags, _ = _RECORD.unpack_from(view, at)
            at += _RECORD.size
            if kind == _KIND_PUBLISH:
                yield first + offset, epoch, flags, view[at : at + length]
            at += length
        at = end + _TAIL_BYTES


def version_of(seq: int, epoch: int, flags: int, payload: memoryview) -> tuple[int, str, int]:
    """(seq, all that identifies a record, its body): epoch, flags, checksum and body, in this order."""
    _, properties, route, _, _ = _PUBLISH.unpack_from(payload)
    content = payload[_PUBLISH.size + route + properties :]
    body = int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True)
    return seq, f"{epoch}:{flags}:{crc32c(payload):08x}:{body}", body


# --- removals ----------------------------------------------------------------------------------------------


def still_there(
    batches: Iterator[pa.RecordBatch], *, extents: Mapping[int, Extent], contact: Contact
) -> Iterator[pa.RecordBatch]:
    """Findings without those in an extent whose record has left the queue by the time the extent knows of.

    If that cannot be told, the finding says so (`code`).
    """
    known: dict[int, Removals | Unread] = {}
    with Clients(contact) as clients:
        for batch in batches:
            kept, codes = [], batch.column("code").to_pylist()
            rows = zip(batch.column("number").to_pylist(), batch.column("seq").to_pylist(), strict=True)
            for at, (number, seq) in enumerate(rows):
                extent = extents.get(number)
                if extent is None or seq >= extent.end:
                    kept.append(True)
                    continue
                if number not in known:
                    known.clear()  # rows of a queue lie together: one set at a time is enough
                    known[number] = _removals_of(Tap(clients, extent), extent)
                found = known[number]
                kept.append(isinstance(found, Unread) or not found.reason(seq))
                if isinstance(found, Unread):
                    codes[at] = found.code
            at = batch.schema.get_field_index("code")
            told = batch.set_column(at, batch.schema.field(at), pa.array(codes, pa.string()))
            yield told.filter(pa.array(kept, pa.bool_()))


def _removals_of(tap: Tap, extent: Extent) -> Removals | Unread:
    try:
        return tap.ask(lambda client: _removed(tap, client, (extent.start, extent.upto)))
    except Unread as unread:
        return unread


def _batch(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(values, kind.type) for values, kind in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
