"""Rows of a DataFrame become messages: exactly once, or at least once where the broker cannot do better.

Exactly once: a task stages its rows in a transaction that nobody sees and returns when they are safe; the
driver commits all transactions of a batch with one request, which the broker remembers by (sink, batch). A
task that is run twice leaves a transaction that is never committed; a batch that is done again after a crash
is found committed and dropped. Rows keep their order: partition by partition, then row by row.

At least once: ordinary AMQP publishes with confirms, which any broker understands. A task returns when all is
confirmed. A task or batch that is done again publishes again; message ids are then the same, unless rows have
their own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mirrormq.client.bulk import BulkClient, BulkError, Gone
from mirrormq.client.sink import Sink
from mirrormq.spark.broker import RETRY_S, target_of
from mirrormq.spark.confirms import publish_rows
from mirrormq.spark.options import OptionRefused, WriteOptions
from mirrormq.spark.sinkrows import RowSource, check_columns

if TYPE_CHECKING:
    import pyarrow as pa

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"
"""Where a task finds which query and which batch it works for."""


class SinkFailed(RuntimeError):
    """What a user is told."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has done."""

    sink: str
    batch: int
    partition: int
    tx: str | None
    """None: there was nothing to do."""
    rows: int


class _Writer:
    """What batch and stream have in common."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionRefused("a queue cannot be overwritten: use mode append")
        check_columns(schema, options)
        self._options = options
        self._schema = schema

    def _write(self, batches: Iterator[pa.RecordBatch], sink: str, batch: int) -> Written:
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        source = RowSource(self._schema, self._options, f"{sink}:{batch}:{partition}")
        if self._options.delivery == "at-least-once":
            rows = publish_rows(source.rows(batches), self._options)
            return Written(sink, batch, partition, None, rows)
        with self._client(sink) as client:
            try:
                return self._stage(Sink(client, sink), source, batches, (batch, partition))
            except BulkError as error:
                raise SinkFailed(error.text) from None
            except Gone as error:
                raise SinkFailed(f"the rows could not be staged: {error}") from None

    def _stage(
        self, sink: Sink, source: RowSource, batches: Iterator[pa.RecordBatch], place: tuple[int, int]
    ) -> Written:
        batch, partition = place
        rows = source.rows(batches)
        last = sink.open()
        first = next(rows, None)
        if first is None or (last is not None and last >= batch):
            return Written(sink.name, batch, partition, None, 0)
        context = TaskContext.get()
        more: dict[str, Any] = {}
        if self._options.mirror_of is not None:
            more = {"origin": self._options.mirror_of, "sources": dict(self._options.sources)}
        elif source.taken_from:
            more = {"sources": source.taken_from}
        staged = sink.stage(
            _with_first(first, rows),
            batch=batch,
            partition=partition,
            attempt=0 if context is None else context.attemptNumber(),
            tx_timeout_s=self._options.tx_timeout,
            **more,
        )
        return Written(sink.name, batch, partition, staged.tx, staged.rows)  # those that take count, too

    def _commit(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        txs = [message.tx for message in sorted(written, key=lambda m: m.partition) if message.tx is not None]
        if not txs:
            return
        with self._client(written[0].sink) as client:
            try:
                Sink(client, written[0].sink).commit(batch, txs, wait_s=self._options.confirm_timeout)
            except BulkError as error:
                raise SinkFailed(f"batch {batch} is not committed: {error.text}") from None
            except Gone as error:
                raise SinkFailed(f"whether batch {batch} is committed is not known: {error}") from None

    def _abort(self, messages: list[WriterCommitMessage | None]) -> None:
        written = [message for message in messages if isinstance(message, Written) and message.tx is not None]
        if not written:
            return
        with self._client(written[0].sink) as client:
            try:
                Sink(client, written[0].sink).abort([message.tx for message in written if message.tx])
            except (BulkError, Gone):
                return  # they are dropped when their time is over

    def _client(self, sink: str) -> BulkClient:
        contact = self._options.contact
        return BulkClient(target_of(contact, contact.hosts, f"Spark sink {sink}"), retry_s=RETRY_S)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write`: one batch. With a sinkId a job that is started again writes its rows once."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._sink = options.sink or str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """The rows of one task."""
        return self._write(iterator, self._sink, self._options.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        self._commit(messages, self._options.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some task failed."""
        self._abort(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream`: the sink is the query, which keeps its id in the checkpoint."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """The rows of one task of a micro-batch."""
        sink, batch = _local(QUERY), _local(BATCH)
        return self._write(iterator, self._options.sink or sink, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks of a micro-batch are done."""
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Some task failed."""
        self._abort(messages)


def _local(name: str) -> str:
    context = TaskContext.get()
    value: Any = None if context is None else context.getLocalProperty(name)
    if not value:
        raise SinkFailed(
            f"Spark does not say which batch this is ({name}): this version of Spark is not supported"
        )
    return str(value)


def _with_first(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
