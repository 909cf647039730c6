"""A task reads its range: from the member it prefers, from another one if that fails, to the end.

Guarantees
- The rows of a range come once and in order, whatever happens to the nodes meanwhile: after a break the read
  goes on at the position reached, at a member that has the same history (the epoch of the range's last record
  is part of every request).
- Rows come only from checked batches (`scan`). What cannot be read ends the task; it is never left out,
  unless `failOnDataLoss` is false and the master itself says that it is lost, or the queue was deleted.
- The state of a message is that as of the end of the micro-batch: the removals up to there are read first.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from mirrormq.base import limits
from mirrormq.client.bulk import BulkClient, BulkError, Gone, Run
from mirrormq.spark.arrow import ROWS_MAX, Assembler
from mirrormq.spark.broker import Broker, QueueGone, SourceFailed, target_of
from mirrormq.spark.offsets import Facts, Member
from mirrormq.spark.options import Contact, ReadOptions
from mirrormq.spark.plan import Limits, Piece, order
from mirrormq.spark.scan import REASON_LOST, REASON_PURGED, Removals, Scanner

LOG = logging.getLogger("mirrormq.spark")
PATIENCE_S = 60.0
"""How long a task looks for a member that can go on: several fail-overs fit into it."""

PAUSE_S = 0.2

REASONS = {
    0: b"live",
    1: b"ack",
    2: b"auto",
    3: b"rejected",
    4: b"expired",
    5: b"maxlen",
    6: b"delivery_limit",
    REASON_LOST: b"lost",
    REASON_PURGED: b"purge",
}
"""States of messages, and reasons of removals (docs/format/batch.md); what a newer broker adds is `other`."""

LOOK_BYTES = 64 * 1024
"""So much is read to see whether some records hold a row: of records that hold none it is hundreds."""

_connections: dict[tuple[Contact, tuple[tuple[str, int], ...]], BulkClient] = {}
"""Python workers live for many tasks: a log-in per node is enough."""

_warned: set[str] = set()
"""So is a warning per address."""


def read_piece(
    piece: Piece, schema: StructType, options: ReadOptions, *, changes: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of a task."""
    _keep_modules()
    assembler = Assembler(schema, {"vhost": piece.vhost, "queue": piece.queue, "queue_id": piece.id})
    tap = Tap(piece, options)
    scanner = Scanner(
        _wanted(assembler.scanned, options),
        start=piece.start,
        end=piece.end,
        rows_max=ROWS_MAX,
        octets_max=options.arrow_bytes,
        reasons=REASONS,
        removals=_removals(tap) if "state" in assembler.scanned else None,
        changes=changes,
    )
    for data in tap.stream(tap.range_fields(), lambda: scanner.position):
        at = 0
        while at < len(data):
            at = scanner.scan(data, at)
            if scanner.is_full:
                yield assembler.batch(scanner)
            elif at < len(data):
                raise SourceFailed(f"{tap.name}: a part of a batch came instead of a whole one")
    if len(scanner):
        yield assembler.batch(scanner)


def has_rows(piece: Piece, options: ReadOptions, *, changes: bool) -> bool:
    """Whether a task would find any, without reading all of large bodies: more octets than that are rows."""
    tap = Tap(piece, options)
    scanner = Scanner(
        ["seq"],
        start=piece.start,
        end=piece.end,
        rows_max=ROWS_MAX,
        octets_max=LOOK_BYTES,
        reasons=REASONS,
        changes=changes,
    )
    for data in tap.stream({**tap.range_fields(), "max_bytes": LOOK_BYTES}, lambda: scanner.position):
        scanner.scan(data, 0)
    return len(scanner) > 0 or tap.ended_at < piece.end


@cache
def _keep_modules() -> None:
    """Once in a process: Spark's worker looks for garbage after each task, among all that was ever imported.

    That took longer than to read 100,000 rows. What is there by now stays anyway.
    """
    gc.freeze()


def _wanted(names: list[str], options: ReadOptions) -> list[str]:
    left_out = set() if options.include_body else {"body"}
    left_out |= set() if options.include_headers else {"headers", "headers_raw"}
    return [name for name in names if name not in left_out]


def _removals(tap: Tap) -> Removals:
    """What left the queue between the range's beginning and the end of the micro-batch."""
    piece = tap.piece
    found = Removals(limits.spark_removals_max, piece.held)
    if piece.held < piece.upto:
        for data in tap.stream(tap.removal_fields(), lambda: found.position):
            if found.feed(data, piece.upto) != len(data):
                raise SourceFailed(f"{tap.name}: a part of a batch came instead of a whole one")
    found.seal()
    return found


class Tap:
    """Streams of records of one range, from whoever can give them."""

    def __init__(self, piece: Piece, options: ReadOptions) -> None:
        self.piece = piece
        self.name = (
            f"queue '{piece.queue}' in vhost '{piece.vhost}', records {piece.start} to {piece.end - 1}"
        )
        self._options = options
        self._members = [member for member in piece.members if member.port]
        self._relays = False
        self._skip_to = 0
        self.ended_at = piece.upto
        """How far the last answer went: less far than asked for if that was limited."""

    def range_fields(self) -> dict[str, Any]:
        """What to ask for the rows."""
        piece = self.piece
        asked: dict[str, Any] = {"end": piece.end, "upto": piece.end, "live": piece.is_live}
        if not piece.is_live and piece.end_epoch:
            asked["end_epoch"] = piece.end_epoch
        return asked

    def removal_fields(self) -> dict[str, Any]:
        """What to ask for the removals alone. The node stops when it has told of all that are gone by now;
        below the cursor it cannot know, and everything up to the end of the micro-batch is gone through.
        """
        piece = self.piece
        asked: dict[str, Any] = {"end": None, "upto": piece.upto, "live": False}
        return asked if piece.held > piece.start else {**asked, "end": piece.end, "removals": piece.start}

    def stream(self, fields: dict[str, Any], position: Callable[[], int]) -> Iterator[Run]:
        """Runs of whole batches, each until the next one; `position` says where to go on."""
        until = time.monotonic() + PATIENCE_S
        last = fields["end"] if fields["upto"] == fields["end"] or fields["live"] else fields["upto"]
        while True:
            start = max(position(), self._skip_to)
            if start >= last:
                return
            try:
                for data in self._ask(fields, start):
                    until = time.monotonic() + PATIENCE_S
                    yield data
                return
            except (Gone, BulkError) as error:
                self._on_failure(error, start, is_over=time.monotonic() >= until)

    def _ask(self, fields: dict[str, Any], start: int) -> Iterator[Run]:
        piece = self.piece
        asked = {**fields, "vhost": piece.vhost, "queue": piece.queue, "id": piece.id, "start": start}
        if asked["end"] is None:
            asked["end"] = start
        if piece.node is not None:
            asked["node"] = piece.node
        if self._members:
            client = self._client(self._members[0])
        else:
            self._relays = True
            client = self._contact_client()
            asked["relay"] = True
        yield from client.read_over(**asked)
        self.ended_at = int(client.ended.get("position", piece.upto))

    def _client(self, member: Member) -> BulkClient:
        return _connection(self._options.contact, ((member.host, member.port),))

    def _contact_client(self) -> BulkClient:
        return _connection(self._options.contact, self._options.contact.hosts)

    def _on_failure(self, error: Gone | BulkError, start: int, *, is_over: bool) -> None:
        """Choose who is asked next; raise if nobody can help."""
        code = error.code if isinstance(error, BulkError) else "gone-away"
        text = error.text if isinstance(error, BulkError) else str(error)
        if code == "data-loss":
            assert isinstance(error, BulkError)
            self._on_loss(error, start)
            return
        if code == "not-found" and self._is_deleted():
            assert isinstance(error, BulkError)
            self._on_loss(error, start)
            return
        # A member that has never heard of the queue may be behind with its definitions.
        if is_over or code not in {"gone-away", "elsewhere", "unavailable", "not-found"}:
            raise SourceFailed(f"{self.name}: {text} ({code})") from None
        left = self._members[1:]
        if code == "gone-away" and self._members:
            self._warn_unreachable(self._members[0], text)
        if not left and not (code == "gone-away" and not self._relays):
            threading.Event().wait(PAUSE_S)
            left = self._ask_for_members()
        self._members = left

    def _warn_unreachable(self, member: Member, text: str) -> None:
        where = f"{member.host}:{member.port}"
        if where not in _warned:
            _warned.add(where)
            LOG.warning(
                "node '%s' cannot be read from at %s (%s): reading goes on elsewhere; if Spark's workers "
                "need another address for it, set 'cluster_advertise' or 'listeners.tcp' there",
                member.node, where, text,
            )  # fmt: skip

    def _ask_for_members(self) -> list[Member]:
        """Who has the queue now."""
        piece = self.piece
        self._relays = False
        try:
            found = self._facts()
        except (BulkError, SourceFailed) as error:
            LOG.info("%s: %s", self.name, error)
            return []
        wanted = Limits(node=piece.node, masters_only=self._options.masters_only)
        return [] if found is None else [member for member in order(found.members, 0, wanted) if member.port]

    def _is_deleted(self) -> bool:
        """Whether the contact does not know the queue either."""
        try:
            self._facts()
        except QueueGone:
            return True
        except (BulkError, SourceFailed) as error:
            LOG.info("%s: %s", self.name, error)
        return False

    def _facts(self) -> Facts | None:
        piece = self.piece
        broker = Broker(self._options.contact)
        try:
            return broker.facts([piece.queue], None).get((piece.vhost, piece.queue))
        finally:
            broker.close()

    def _on_loss(self, error: BulkError, start: int) -> None:
        if self._options.fail_on_data_loss:
            raise SourceFailed(
                f"data loss: {self.name} (id {self.piece.id}, epoch {self.piece.end_epoch}): {error.text}; "
                "with failOnDataLoss=false the query goes on with what there is"
            ) from None
        low = int(error.more.get("low") or 0)
        is_other = error.more.get("id") != self.piece.id
        # What is left of the range is read; if that is nothing, or of another queue, the task is over.
        self._skip_to = self.piece.upto if is_other or low <= start else low
        LOG.warning("data loss: %s: %s; going on at %s", self.name, error.text, self._skip_to)


def _connection(contact: Contact, hosts: tuple[tuple[str, int], ...]) -> BulkClient:
    key = (contact, hosts)
    found = _connections.get(key)
    if found is None:
        found = _connections[key] = BulkClient(target_of(contact, hosts, ""), retry_s=0.0)
    return found
