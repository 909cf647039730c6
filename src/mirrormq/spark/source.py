"""A batch read: what is live in queues now (browse), or what happened to them (changes).

Guarantee: the read is a snapshot up to the durable mark at its planning; nothing is held, removed or moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from mirrormq.spark.broker import Broker, SourceFailed
from mirrormq.spark.offsets import Facts, unknown_queues, wanted_seq
from mirrormq.spark.options import OptionRefused, ReadOptions
from mirrormq.spark.plan import Limits, Piece, Span, plan
from mirrormq.spark.reading import read_piece

if TYPE_CHECKING:
    import pyarrow as pa


def limits_of(options: ReadOptions) -> Limits:
    """What the options say about partitions."""
    return Limits(
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
        node=options.node,
        masters_only=options.masters_only,
    )


class BatchReader(DataSourceReader):
    """One read."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.mode in {"cursor", "consume"}:
            raise OptionRefused(
                f"mode {options.mode} is for streams: a batch cannot tell when its rows are safe; "
                "use readStream with trigger(availableNow=True)"
            )
        for name, value in (
            ("maxRecordsPerTrigger", options.max_records),
            ("maxBytesPerTrigger", options.max_bytes),
            ("minRecordsPerTrigger", options.min_records),
            ("cursor", options.cursor),
        ):
            if value is not None:
                raise OptionRefused(f"option '{name}' is for streams")
        self._options = options
        self._schema = schema
        self._broker = Broker(options.contact)
        self.bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the read."""
        options = self._options
        known = self._broker.facts(options.queues, options.pattern)
        for given in (options.starting, options.ending):
            if unknown := unknown_queues(given, known):
                raise OptionRefused(f"a position is given for '{unknown[0]}', which is not read")
        spans = [
            span
            for name in sorted(known)
            if self.bounds.has_queue(name[1]) and (span := self._span(known[name])) is not None
        ]
        self._broker.close()
        return plan(spans, limits_of(options))

    def _span(self, facts: Facts) -> Span | None:
        start = max(self._start(facts), self.bounds.first_seq)
        end = min(self._end(facts), self.bounds.end_seq)
        if self.bounds.first_us is not None:
            start = max(start, self._broker.seek(facts, self.bounds.first_us))
        if start >= end:
            return None
        held = end if self._options.mode != "changes" else facts.low
        return Span(facts, start, end, facts.epoch_at(end - 1), held)

    def _start(self, facts: Facts) -> int:
        options = self._options
        earliest = min(facts.first, facts.low)
        if options.starting_us is not None:
            return max(earliest, self._broker.seek(facts, options.starting_us))
        seq = self._given(options.starting, facts, "earliest")
        if seq == "earliest":
            return earliest
        return facts.next if seq == "latest" else int(seq)

    def _end(self, facts: Facts) -> int:
        options = self._options
        if options.ending_us is not None:
            return min(facts.next, self._broker.seek(facts, options.ending_us))
        seq = self._given(options.ending, facts, "latest")
        if seq == "earliest":
            raise OptionRefused("option 'endingOffsets' cannot be earliest")
        if seq != "latest" and int(seq) > facts.next and options.fail_on_data_loss:
            raise SourceFailed(
                f"queue '{facts.queue}' ends before seq {facts.next}, endingOffsets says {seq}; "
                "with failOnDataLoss=false the read ends there"
            )
        return facts.next if seq == "latest" else min(int(seq), facts.next)

    def _given(self, given: str | Mapping[str, object] | None, facts: Facts, default: str) -> int | str:
        seq, incarnation = wanted_seq(given, facts, default)
        if incarnation and incarnation != facts.id:
            if self._options.fail_on_data_loss:
                raise SourceFailed(
                    f"the offsets are for queue '{facts.queue}' with id {incarnation}; it was deleted and "
                    f"declared again, and has the id {facts.id} now"
                )
            return default
        return seq

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, on a worker."""
        if not isinstance(partition, Piece):  # Spark's own, for a read without partitions
            return iter(())
        return read_piece(partition, self._schema, self._options, changes=self._options.mode == "changes")


class Bounds:
    """What pushed filters say about seqs, queues and times."""

    def __init__(self) -> None:
        self.first_seq = 0
        self.end_seq = 1 << 62
        self.first_us: int | None = None
        self._queues: set[str] | None = None

    def has_queue(self, name: str) -> bool:
        """Whether rows of a queue can pass the filters."""
        return self._queues is None or name in self._queues

    def take(self, condition: Filter) -> None:
        """Narrow the read. Spark applies the filter again, so what is not understood is left alone."""
        if isinstance(condition, In) and condition.attribute == ("queue",):
            self._keep({str(value) for value in condition.value})
            return
        if not isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            return
        value: Any = condition.value
        if condition.attribute == ("queue",) and isinstance(condition, EqualTo):
            self._keep({str(value)})
        elif condition.attribute == ("seq",) and isinstance(value, int):
            self._take_seq(condition, value)
        elif (
            condition.attribute == ("timestamp",)
            and isinstance(value, datetime)
            and isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual)
        ):
            self.first_us = max(self.first_us or 0, int(value.timestamp() * 1_000_000))

    def _keep(self, names: set[str]) -> None:
        self._queues = names if self._queues is None else self._queues & names

    def _take_seq(self, condition: Filter, value: int) -> None:
        if isinstance(condition, EqualTo | GreaterThan | GreaterThanOrEqual):
            self.first_seq = max(self.first_seq, value + isinstance(condition, GreaterThan))
        if isinstance(condition, EqualTo | LessThan | LessThanOrEqual):
            self.end_seq = min(self.end_seq, value + (not isinstance(condition, LessThan)))


class FilteringReader(BatchReader):
    """A read with push-down: Spark refuses a reader that has it unless its own setting is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  (Spark's name)
        """Narrow the read by the filters; all of them are applied by Spark, too."""
        for condition in filters:
            if self._options.mode != "changes" or condition_is_safe(condition):
                self.bounds.take(condition)
            yield condition


def condition_is_safe(condition: Filter) -> bool:
    """Whether it may narrow a read of changes: there a row's seq and time are not those of its record."""
    return getattr(condition, "attribute", None) == ("queue",)
