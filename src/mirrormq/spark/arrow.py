"""What the scanner found becomes Arrow batches of exactly the schema that Spark expects.

Spark compares schemas to the letter (types, time zone, what may be null), so the one it makes itself is used.
The memory of the scanner's columns is handed over as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mirrormq.spark.scan import Scanner
from mirrormq.spark.schema import CONSTANT

ROWS_MAX = 65_536
"""Rows of one Arrow batch: with small messages that is about what moves best between Python and the JVM."""

_EMPTY = pa.py_buffer(b"")


class Assembler:
    """Makes batches of one schema for one queue."""

    def __init__(self, schema: StructType, constants: Mapping[str, str]) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self.scanned = [name for name in self._schema.names if name not in CONSTANT]
        self._constants = constants
        self._repeated: dict[str, Any] = {}

    def batch(self, scanner: Scanner) -> pa.RecordBatch:
        """The rows that a scanner holds; it begins anew."""
        rows = len(scanner)
        columns = scanner.take()
        arrays = [self._array(field, columns.get(field.name), rows) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: Any, column: tuple[Any, ...] | None, rows: int) -> Any:
        if column is None:
            return self._same(field, rows)
        if pa.types.is_map(field.type):
            return _map_array(field.type, column, rows)
        return _array(field.type, column, rows)

    def _same(self, field: Any, rows: int) -> Any:
        """A column with one value, or with none; made once and cut to length."""
        made = self._repeated.get(field.name)
        if made is None or len(made) < rows:
            value = self._constants.get(field.name)
            count = max(rows, ROWS_MAX)
            made = pa.nulls(count, field.type) if value is None else pa.repeat(pa.scalar(value), count)
            self._repeated[field.name] = made
        return made.slice(0, rows)


def _array(kind: Any, column: tuple[Any, ...], rows: int) -> Any:
    valid, offsets, data, nulls = column
    buffers = [_buffer(valid)] if offsets is None else [_buffer(valid), _buffer(offsets)]
    return pa.Array.from_buffers(kind, rows, [*buffers, _buffer(data)], nulls)


def _map_array(kind: Any, column: tuple[Any, ...], rows: int) -> Any:
    valid, offsets, entries, nulls, names, values = column
    fields = [kind.key_field, kind.item_field]
    children = [
        pa.array([], field.type) if child is None else _array(field.type, child, entries)
        for field, child in zip(fields, (names, values), strict=True)
    ]
    struct = pa.StructArray.from_arrays(children, fields=fields)
    return pa.Array.from_buffers(kind, rows, [_buffer(valid), _buffer(offsets)], nulls, children=[struct])


def _buffer(memory: tuple[bytes, int] | None) -> Any:
    if memory is None:
        return None
    held, size = memory
    return pa.py_buffer(held).slice(0, size) if size else _EMPTY
