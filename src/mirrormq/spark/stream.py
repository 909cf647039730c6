"""A stream over queues: every record once, in order per queue, from where the checkpoint stands.

Guarantees
- A micro-batch is a range of seqs per queue, and a cursor on the broker holds these records until Spark has
  finished the batch: a batch that is done again after a crash has the same rows, whatever ordinary consumers
  have done meanwhile. (Messages older than the low mark at the very beginning are the exception: they are
  read as they are then, because nothing holds them.)
- The cursor moves to `start` when Spark asks for what lies behind it: then `start` is in Spark's commit log.
  The last batch of a run is never committed to the source, but this question comes after it, and again after
  a restart. With asynchronous progress the log may be behind, and only `commit` counts.
- Nothing is skipped silently: what is missing is an error, or with failOnDataLoss=false a warning. A cursor
  that was dropped or lost is made anew if everything behind the position is still there, and no loss.
- A cursor has one reader: a second query is refused by the broker, which names the first.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from mirrormq.client.bulk import BulkError
from mirrormq.spark.broker import Broker, QueueGone, SourceFailed
from mirrormq.spark.offsets import (
    Facts,
    Loss,
    Offsets,
    Position,
    QueueName,
    beginning,
    loss_at,
    parted,
    read_offsets,
    unknown_queues,
    wanted_seq,
)
from mirrormq.spark.options import OptionRefused, ReadOptions
from mirrormq.spark.plan import Limits, Piece, Span, plan, shares
from mirrormq.spark.reading import has_rows, read_piece
from mirrormq.spark.source import limits_of
from mirrormq.wire import bulk

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger("mirrormq.spark")
LOOKED_AT = 64
"""So few new records are looked at before a batch is made of them."""

REST_S = 60.0
"""A cursor that does not move is asked to stay this often, so that it does not grow too old."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query. Lives in one Python process on the driver; `read` runs on workers in copies of it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.mode == "browse":
            raise OptionRefused("mode browse is for batches; a stream has mode cursor, consume or changes")
        if options.ending is not None or options.ending_us is not None:
            raise OptionRefused("endingOffsets and endingTimestamp are for batches")
        if options.node is not None:
            raise OptionRefused("readFrom=node=NAME is for batches")
        if options.pushdown:
            raise OptionRefused("option 'pushdown' is for batches: Spark pushes nothing into streams")
        self._options = options
        self._schema = schema
        self._broker = Broker(options.contact)
        self._reader = uuid.uuid4().hex
        self._initial: Offsets | None = None
        self._claimed: dict[QueueName, str] = {}
        self._advanced: dict[QueueName, tuple[int, float]] = {}
        self._target: dict[QueueName, int] | None = None
        self._known: dict[QueueName, Facts] = {}
        self._waits_since: float | None = None
        self._turn = 0
        self._missing: set[str] = set()

    # --- where to begin ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        """Where a new query begins. Spark asks twice: the cursors are made once."""
        if self._initial is None:
            # Here a queue that is not there is a mistake; later on it was deleted.
            known = self._broker.facts(self._options.queues, self._options.pattern)
            if unknown := unknown_queues(self._options.starting, known):
                raise OptionRefused(f"a position is given for '{unknown[0]}', which is not read")
            queues = {name: self._begin(name, known[name]) for name in sorted(known)}
            self._initial = Offsets(self._broker.cluster, queues)
        return self._initial.json()

    def _begin(self, name: QueueName, facts: Facts) -> Position:
        options = self._options
        if options.starting_us is not None:
            seq: int | str = max(beginning(facts).seq, self._broker.seek(facts, options.starting_us))
        else:
            seq, incarnation = wanted_seq(options.starting, facts, "earliest")
            if incarnation and incarnation != facts.id:
                why = f"it was deleted and declared again (id {incarnation} is now {facts.id})"
                self._on_loss(Loss(facts.vhost, facts.queue, why, None))
                seq = "earliest"
        if seq == "earliest":
            position = beginning(facts)
        else:
            wanted = facts.next if seq == "latest" else int(seq)
            held = facts.low if wanted < facts.low else None
            wanted = min(wanted, facts.next)
            position = Position(facts.id, facts.epoch_at(wanted - 1), wanted, held=held)
        return self._open(name, facts, position)

    def _open(self, name: QueueName, facts: Facts, position: Position) -> Position:
        """Have a cursor hold everything from a position on."""
        cursor = self._options.cursor or position.cursor or f"spark-{uuid.uuid4().hex}"
        answer = self._claim(name, cursor, max(position.seq, position.held or 0))
        at = int(answer["seq"])
        if at <= max(position.seq, position.held or 0):
            if self._options.mode == "consume":
                # Of what is there already only what is live: others took the rest before this query began.
                held = max(facts.next, position.held or 0)
                return replace(position, cursor=cursor, origin=position.seq, held=held)
            return replace(position, cursor=cursor, origin=None)
        # A cursor of this name was there: a query that has lost its checkpoint goes on where that one was.
        return Position(facts.id, int(answer.get("epoch") or 0), at, cursor)

    def _reopen(self, name: QueueName, facts: Facts, position: Position) -> Position:
        """The same where the query has stood: its old cursor goes on, unless it is lost and holds nothing."""
        try:
            return self._open(name, facts, position)
        except BulkError as error:
            if error.code != bulk.GONE:
                raise
        self._broker.drop_cursor(name, self._options.cursor or position.cursor or "")
        return self._open(name, facts, position)

    def _claim(self, name: QueueName, cursor: str, at: int | str) -> dict[str, Any]:
        kind = "consume" if self._options.mode == "consume" else "cursor"
        query = f"Spark query with cursor '{cursor}'"
        answer = self._broker.open_cursor(name, cursor, at, mode=kind, reader=self._reader, query=query)
        self._claimed[name] = cursor
        return answer

    # --- how far to go ---

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """The run ends with what is there now."""
        self._target = {name: facts.next for name, facts in self._facts().items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """What the options say."""
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself if there is nothing new."""
        offsets = self._checked(start)
        try:
            ends = self._next(offsets, limit)
        except QueueGone:
            # Deleted since it was looked for: now it is missing, which is a loss like any other.
            ends = self._next(offsets, limit)
        return start if ends is None else Offsets(offsets.cluster, ends).json()

    def _next(self, offsets: Offsets, limit: ReadLimit) -> dict[QueueName, Position] | None:
        known = self._known = self._facts()
        self._must_be_there(offsets, known)
        positions = self._positions(offsets, known)
        if not self._options.async_progress:
            positions = {name: self._settled(name, known, at) for name, at in positions.items()}
        fresh = self._fresh(known.keys() - positions.keys())
        positions |= fresh
        ends = self._ends(positions, known, limit)
        was = {name: (position.seq, position.held) for name, position in offsets.queues.items()}
        now = {name: (position.seq, position.held) for name, position in ends.items()}
        if was == now and not fresh:
            return None
        for name, position in positions.items():
            if self._is_new(name, offsets, position):
                # `start` does not say where this batch begins: the end does, so that it can be done again.
                ends[name] = replace(ends[name], begins=position.seq, held=position.held)
        return ends

    def _is_new(self, name: QueueName, offsets: Offsets, position: Position) -> bool:
        """Whether a batch does not begin where the last one ended: the queue is new, or something is lost."""
        before = offsets.queues.get(name)
        now = (position.id, position.seq, position.held)
        return before is None or (before.id, before.seq, before.held) != now

    def _ends(
        self, positions: dict[QueueName, Position], known: dict[QueueName, Facts], limit: ReadLimit
    ) -> dict[QueueName, Position]:
        lengths = {name: self._length(name, known[name], position) for name, position in positions.items()}
        if self._is_too_little(sum(lengths.values())):
            lengths = dict.fromkeys(lengths, 0)
        if isinstance(limit, ReadMaxRows):
            lengths = shares(lengths, limit.max_rows, self._turn)
            self._turn += 1
        elif isinstance(limit, ReadMaxBytes):
            lengths = self._within_bytes(positions, known, lengths, limit.max_bytes)
        return {
            name: self._moved(position, known[name], position.seq + lengths[name])
            for name, position in positions.items()
        }

    def _moved(self, position: Position, facts: Facts, seq: int) -> Position:
        """The position further on."""
        if seq == position.seq:
            return position
        held = position.held if position.held is not None and seq < position.held else None
        return replace(position, seq=seq, epoch=facts.epoch_at(seq - 1), held=held)

    def _length(self, name: QueueName, facts: Facts, position: Position) -> int:
        """Records that can be read. None of them may be a message: then there is nothing to do.

        The cursors of this and other queries write records, too. A batch for each of them would move this
        cursor again, and so on for ever.
        """
        end = facts.next
        if self._target is not None:
            end = min(end, self._target.get(name, 0))
        length = max(0, end - position.seq)
        if not 0 < length <= LOOKED_AT:
            return length
        span = Span(facts, position.seq, end, 0, position.held or 0)
        changes = self._options.mode == "changes"
        pieces = plan([span], Limits(masters_only=self._options.masters_only))
        return length if any(has_rows(piece, self._options, changes=changes) for piece in pieces) else 0

    def _is_too_little(self, records: int) -> bool:
        """minRecordsPerTrigger: wait for more, but not for ever, and not in a run that is to end."""
        least = self._options.min_records
        if least is None or records == 0 or self._target is not None:
            self._waits_since = None
            return False
        now = time.monotonic()
        if records < least:
            self._waits_since = self._waits_since or now
            if now - self._waits_since < self._options.max_delay:
                return True
        self._waits_since = None
        return False

    def _within_bytes(
        self,
        positions: dict[QueueName, Position],
        known: dict[QueueName, Facts],
        lengths: dict[QueueName, int],
        most: int,
    ) -> dict[QueueName, int]:
        busy = [name for name, length in lengths.items() if length]
        if not busy:
            return lengths
        share = max(1, most // len(busy))
        found = dict(lengths)
        for name in busy:
            found[name] = min(lengths[name], self._broker.records_in(known[name], positions[name].seq, share))
        return found

    # --- what is there ---

    def _facts(self) -> dict[QueueName, Facts]:
        """The queues that are there; one that was read and is not is found missing by `_positions`."""
        queues = self._options.queues
        try:
            return self._broker.facts(queues, self._options.pattern)
        except QueueGone:
            return {name: facts for queue in queues for name, facts in self._one(queue).items()}

    def _one(self, queue: str) -> dict[QueueName, Facts]:
        try:
            return self._broker.facts([queue], None)
        except QueueGone:
            return {}

    def _must_be_there(self, offsets: Offsets, known: dict[QueueName, Facts]) -> None:
        """A queue that is named, is not there and was not read either: a mistake, unless it was accepted."""
        there = {queue for _, queue in (*offsets.queues, *known)}
        missing = {queue for queue in self._options.queues if queue not in there}
        for queue in sorted(missing - self._missing):
            text = f"there is no queue '{queue}'"
            if self._options.fail_on_data_loss:
                raise QueueGone(text)
            LOG.warning("%s: it is read when it is declared", text)
        self._missing = missing

    def _checked(self, start: dict[str, Any]) -> Offsets:
        offsets = read_offsets(start)
        if offsets.cluster != self._broker.cluster:
            raise SourceFailed(
                f"the checkpoint is of cluster {offsets.cluster}, this is {self._broker.cluster}: "
                "its positions mean nothing here"
            )
        return offsets

    def _positions(self, offsets: Offsets, known: dict[QueueName, Facts]) -> dict[QueueName, Position]:
        """Where the query stands, moved if something is lost and that is accepted."""
        found: dict[QueueName, Position] = {}
        for name, position in offsets.queues.items():
            facts = known.get(name)
            if facts is None:
                self._on_loss(Loss(*name, "it was deleted", None))
                self._claimed.pop(name, None)
                continue
            loss = loss_at(position, facts)
            if loss is None:
                found[name] = replace(position, begins=None)
                continue
            self._on_loss(loss)
            assert loss.goes_on is not None
            found[name] = self._reopen(name, facts, loss.goes_on)
        return found

    def _fresh(self, names: set[QueueName]) -> dict[QueueName, Position]:
        """Queues that came while the query ran are read from their beginning."""
        if self._target is not None:
            names = names & self._target.keys()
        known = self._known
        return {name: self._open(name, known[name], beginning(known[name])) for name in sorted(names)}

    def _settled(self, name: QueueName, known: dict[QueueName, Facts], position: Position) -> Position:
        """Everything before the position is done: the cursor moves there."""
        at, when = self._advanced.get(name, (0, 0.0))
        now = time.monotonic()
        cursor = position.cursor
        if cursor is None or (at == position.seq and now - when < REST_S):
            return position
        try:
            if self._claimed.get(name) != cursor:
                self._claim(name, cursor, max(position.seq, position.held or 0))
            if position.seq >= (position.held or 0):
                self._advance(name, position)
        except BulkError as error:
            if error.code not in {bulk.GONE, bulk.DATA_LOSS}:
                raise SourceFailed(error.text) from None
            known |= self._broker.facts([name[1]], None)  # as the one sees it who has said so
            return self._on_cursor_error(name, known[name], position, error)
        self._advanced[name] = (position.seq, now)
        return position

    def _advance(self, name: QueueName, position: Position) -> None:
        more = {} if position.origin is None else {"first": position.origin}
        self._broker.advance_cursor(
            name,
            position.cursor or "",
            to=position.seq,
            epoch=position.epoch or None,
            reader=self._reader,
            remove=self._options.mode == "consume" and self._options.removes,
            **more,
        )

    def _on_cursor_error(
        self, name: QueueName, facts: Facts, position: Position, error: BulkError
    ) -> Position:
        """The cursor holds nothing any more, or its queue's history is another one now."""
        self._advanced.pop(name, None)
        loss = loss_at(position, facts)
        if loss is None and error.code == bulk.DATA_LOSS:
            loss = Loss(*name, f"(id {facts.id}, epoch {position.epoch})", parted(position, facts))
        elif loss is None and self._options.mode == "consume":
            # While nobody held the queue for this query others may have taken messages.
            loss = Loss(*name, f"(id {facts.id}, epoch {position.epoch})", position)
        if loss is None:
            LOG.warning("queue '%s': %s; nothing is missing, it is opened again", name[1], error.text)
            return self._reopen(name, facts, position)
        self._on_loss(replace(loss, why=f"{error.text}; {loss.why}"))
        assert loss.goes_on is not None
        return self._reopen(name, facts, loss.goes_on)

    def _on_loss(self, loss: Loss) -> None:
        if self._options.fail_on_data_loss:
            raise SourceFailed(f"data loss: {loss}; with failOnDataLoss=false the query goes on")
        LOG.warning("data loss: %s", loss)

    # --- what Spark does with it ---

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  (Spark's name)
        """The end of all queues, for the lag that Spark shows."""
        if not self._known:
            return None
        queues = {
            name: Position(facts.id, facts.epoch_at(facts.next - 1), facts.next)
            for name, facts in self._known.items()
        }
        return Offsets(self._broker.cluster, queues).json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        before, after = self._checked(start), read_offsets(end)
        known = self._known if after.queues.keys() <= self._known.keys() else self._facts()
        spans: list[Span] = []
        for name, to in after.queues.items():
            since = before.queues.get(name)
            first = to.begins if to.begins is not None else since.seq if since is not None else to.seq
            if first >= to.seq:
                continue
            facts = known.get(name)
            if facts is None or facts.id != to.id:
                self._on_loss(Loss(*name, "it was deleted before its records were read", None))
                continue
            origin = to if to.begins is not None or since is None else since
            spans.append(Span(facts, first, to.seq, to.epoch, min(origin.held or 0, to.seq)))
        return plan(spans, limits_of(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, on a worker."""
        if not isinstance(partition, Piece):
            return iter(())
        return read_piece(partition, self._schema, self._options, changes=self._options.mode == "changes")

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before `end` is done."""
        if not self._options.async_progress:
            return  # the next question for `latestOffset` says the same, and comes after the last batch, too
        known = self._facts()
        for name, position in read_offsets(end).queues.items():
            if name in known:
                with contextlib.suppress(QueueGone):  # deleted: whoever asks for the next batch is told
                    self._settled(name, known, position)

    def stop(self) -> None:
        """The query is over."""
        self._broker.close()
