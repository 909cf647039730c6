"""DataFrames as a sink takes them: which columns there may be, and their rows as octets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from mirrormq.base.errors import AmqpError
from mirrormq.client.sink import encode_take
from mirrormq.spark.options import OptionRefused, WriteOptions
from mirrormq.spark.rows import NAMES, RowWriter
from mirrormq.spark.schema import CHANGES, MESSAGE, nearest
from mirrormq.wire.table import encode_table

TEXT, OCTETS = (StringType,), (BinaryType, StringType)
WHOLE = (ByteType, ShortType, IntegerType, LongType)
WRITTEN: dict[str, tuple[type[DataType], ...]] = {
    "body": OCTETS,
    "exchange": TEXT,
    "routing_key": TEXT,
    **dict.fromkeys(NAMES, TEXT),
    "app_timestamp": (TimestampType,),
    "delivery_mode": WHOLE,
    "priority": WHOLE,
    "headers": (MapType,),
    "headers_raw": (BinaryType,),
    "op": TEXT,
    "seq": WHOLE,
    "queue": TEXT,
}
"""Columns that say something about a message that is published. The others of a reader are left alone."""

CHUNK_ROWS = 16_384
"""Rows that are made octets at once."""


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """What a DataFrame must and may have."""
    known = list(MESSAGE | CHANGES)
    for field in schema.fields:
        if field.name not in known:
            raise OptionRefused(f"column '{field.name}' means nothing to a queue{nearest(field.name, known)}")
        kinds = WRITTEN.get(field.name)
        if kinds is not None and not isinstance(field.dataType, kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise OptionRefused(f"column '{field.name}' is {wanted}, not {field.dataType.simpleString()}")
    names = set(schema.fieldNames())
    if "body" not in names:
        raise OptionRefused("the column 'body' (binary or string) is needed; to_json(struct(*)) makes one")
    if "op" in names and not {"queue", "seq"} <= names:
        raise OptionRefused("with a column 'op' the columns 'queue' and 'seq' are needed, too")
    if ("op" in names) != (options.mirror_of is not None):
        raise OptionRefused(
            "a column 'op' (publish, remove or purge) and the option mirrorOf belong together"
        )
    if "op" in names and (options.routing_key is not None or options.delivery != "exactly-once"):
        raise OptionRefused("a column 'op' is for mirrors: each row goes to its queue, exactly once")
    if options.take_from is not None and not {"seq", "queue_id"} <= names:
        raise OptionRefused("with the option takeFrom the columns 'seq' and 'queue_id' are needed")
    if options.routing_key is None and not names & {"routing_key", "op"}:
        raise OptionRefused("where to? give the option queue or routingKey, or a column 'routing_key'")


class RowSource:
    """Makes rows of the batches of one task."""

    def __init__(self, schema: StructType, options: WriteOptions, name: str) -> None:
        self._fields = [(at, field.name) for at, field in enumerate(schema.fields) if field.name in WRITTEN]
        self._is_mirror = "op" in schema.fieldNames()
        self._names_messages = options.delivery == "at-least-once"
        self._name = name
        self._count = 0
        self._taken = Taken(schema, options.take_from) if options.take_from is not None else None
        exchange = "" if self._is_mirror or "exchange" not in schema.fieldNames() else None
        self._writer = RowWriter(
            _octets(options.exchange if options.exchange is not None else exchange),
            _octets(options.routing_key),
        )

    @property
    def taken_from(self) -> dict[str, str]:
        """The queue that rows are taken from and its id, once there was a row."""
        return {} if self._taken is None else self._taken.source

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        """Runs of rows as octets."""
        for batch in batches:
            for start in range(0, batch.num_rows, CHUNK_ROWS):
                part = batch.slice(start, CHUNK_ROWS)
                if part.num_rows:
                    taken = b"" if self._taken is None else self._taken.rows(part)
                    yield self._encode(part) + taken

    def _encode(self, batch: pa.RecordBatch) -> bytes:
        arrays = {name: batch.column(at) for at, name in self._fields}
        if not self._is_mirror:
            arrays.pop("queue", None)
            arrays.pop("seq", None)
        else:
            if {"exchange", "routing_key"} <= arrays.keys():
                arrays |= {"from_exchange": arrays.pop("exchange"), "from_key": arrays["routing_key"]}
            arrays["routing_key"] = arrays.pop("queue")
        if "headers" in arrays:
            arrays["headers_raw"] = _tables(arrays.pop("headers"), arrays.get("headers_raw"))
        if self._names_messages:
            arrays["message_id"] = self._message_ids(arrays.get("message_id"), batch.num_rows)
        held = {name: _plain(name, array) for name, array in arrays.items()}
        columns = {name: _addresses(array) for name, array in held.items()}
        self._count += batch.num_rows
        return self._writer.write(columns, batch.num_rows)

    def _message_ids(self, given: Any, rows: int) -> Any:
        """The same for a row whenever its task is run."""
        made = pa.array([f"{self._name}:{self._count + at}" for at in range(rows)])
        return made if given is None else pc.coalesce(given.cast(pa.string()), made)


class Taken:
    """Takes out of their queue what is published somewhere else, in the same transaction."""

    def __init__(self, schema: StructType, queue: str) -> None:
        names = schema.fieldNames()
        self._seq, self._id = names.index("seq"), names.index("queue_id")
        self._queue = queue
        self.source: dict[str, str] = {}

    def rows(self, batch: pa.RecordBatch) -> bytes:
        """A row per run of seqs."""
        ids = pc.unique(batch.column(self._id)).to_pylist()
        given = self.source.setdefault(self._queue, ids[0] or "")
        if ids != [given]:
            raise OptionRefused(f"the rows are not all of one queue '{self._queue}': it is taken from one")
        if batch.column(self._seq).null_count:
            raise OptionRefused("a row without a seq cannot be taken from its queue")
        seqs = np.unique(batch.column(self._seq).to_numpy(zero_copy_only=False))
        cuts = np.flatnonzero(np.diff(seqs) != 1) + 1
        firsts, lasts = seqs[np.concatenate(([0], cuts))], seqs[np.concatenate((cuts - 1, [len(seqs) - 1]))]
        queue = self._queue.encode()
        runs = zip(firsts.tolist(), lasts.tolist(), strict=True)
        return b"".join([encode_take(first, last, queue) for first, last in runs])


def _octets(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _plain(name: str, array: Any) -> Any:
    """Octets with short offsets, or numbers of the width that the writer expects."""
    if name == "app_timestamp":
        return array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64())
    if name == "seq":
        return array.cast(pa.int64())
    if name in {"delivery_mode", "priority"}:
        return array.cast(pa.int16())
    return array.cast(pa.binary()) if array.type != pa.binary() else array


def _addresses(array: Any) -> Any:
    buffers = array.buffers()
    return (*(0 if buffer is None else buffer.address for buffer in buffers), array.offset)


def _tables(headers: Any, raw: Any) -> Any:
    """Header tables as octets: those that are there, else made of the map's JSON texts."""
    given = [None] * len(headers) if raw is None else raw.to_pylist()
    made = [
        octets if octets is not None or pairs is None else table_of(pairs)
        for octets, pairs in zip(given, headers.to_pylist(), strict=True)
    ]
    return pa.array(made, pa.binary())


def table_of(pairs: Any) -> bytes:
    """A header table, without its length word, of names and JSON texts; what is no JSON is a text."""
    fields: dict[str, Any] = {}
    for name, text in pairs.items() if isinstance(pairs, dict) else pairs:
        try:
            fields[name] = None if text is None else json.loads(text)
        except ValueError:
            fields[name] = text
    try:
        return encode_table(fields)[4:]
    except AmqpError as error:
        raise OptionRefused(f"column 'headers': {error.reply_text}") from None
