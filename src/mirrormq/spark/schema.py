"""The columns of a queue in Spark, by mode, and the check of schemas that a user gives.

Guarantee: a column has one name and one type in every mode; what is asked for under another name or type is
refused with the nearest name, never read as null.
"""

from __future__ import annotations

import difflib
from typing import Literal

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

Mode = Literal["browse", "cursor", "consume", "changes"]

_TEXT, _TIME, _OCTETS = StringType(), TimestampType(), BinaryType()

MESSAGE: dict[str, DataType] = {
    "vhost": _TEXT,
    "queue": _TEXT,
    "queue_id": _TEXT,
    "epoch": IntegerType(),
    "seq": LongType(),
    "timestamp": _TIME,
    "exchange": _TEXT,
    "routing_key": _TEXT,
    "message_id": _TEXT,
    "correlation_id": _TEXT,
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "reply_to": _TEXT,
    "type": _TEXT,
    "user_id": _TEXT,
    "app_id": _TEXT,
    "expiration": _TEXT,
    "app_timestamp": _TIME,
    "delivery_mode": ShortType(),
    "priority": ShortType(),
    "redelivered": BooleanType(),
    "headers": MapType(_TEXT, _TEXT),
    "headers_raw": _OCTETS,
    "body": _OCTETS,
    "body_crc": IntegerType(),
}
"""Octets of AMQP go up to 255: delivery_mode and priority are smallint, because Spark has no unsigned
types."""

CHANGES: dict[str, DataType] = {"op": _TEXT, "reason": _TEXT, "changed_at": _TIME, "state": _TEXT}
STATE: dict[str, DataType] = {"state": _TEXT}

CONSTANT = ("vhost", "queue", "queue_id")
"""One value per partition."""

PRESENT = frozenset((*CONSTANT, "epoch", "seq", "op"))
"""What every row has. Spark looks for null in every value of a column that may have it, twice per row."""

PRESENT_IN_MESSAGES = PRESENT | {
    "timestamp", "exchange", "routing_key", "redelivered", "body", "body_crc", "state"
}  # fmt: skip
"""The same where rows are messages only."""


def columns_of(mode: Mode | None) -> dict[str, DataType]:
    """The columns of a mode; None: a reader whose mode was not given (no column `state`)."""
    if mode == "changes":
        return MESSAGE | CHANGES
    return MESSAGE | STATE if mode == "cursor" else MESSAGE


def schema_of(mode: Mode | None, *, has_body: bool = True) -> StructType:
    """The schema of a mode; without `has_body` bodies are null."""
    present = PRESENT if mode == "changes" else PRESENT_IN_MESSAGES
    never_null = present if has_body else present - {"body"}
    return StructType(
        [StructField(name, kind, name not in never_null) for name, kind in columns_of(mode).items()]
    )


class SchemaRefused(ValueError):
    """A schema that does not fit."""


def check_schema(schema: StructType, mode: Mode | None) -> None:
    """A schema given by a user is a choice of our columns, each with its type, in any order."""
    known = columns_of(mode)
    for field in schema.fields:
        if field.name not in known:
            raise SchemaRefused(f"there is no column '{field.name}'{nearest(field.name, known)}")
        if not _is_same(field.dataType, known[field.name]):
            raise SchemaRefused(
                f"column '{field.name}' is {known[field.name].simpleString()}, "
                f"not {field.dataType.simpleString()}: cast it after reading"
            )
    names = schema.fieldNames()
    if len(set(names)) != len(names):
        raise SchemaRefused("a column is named twice in the schema")


def nearest(name: str, known: dict[str, DataType] | list[str]) -> str:
    """Which one was meant, as the rest of a sentence."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.5)
    return f"; did you mean '{by_lower[found[0]]}'?" if found else f"; there are {', '.join(known)}"


def _is_same(given: DataType, ours: DataType) -> bool:
    """Whether the types are the same, whatever may be null in them."""
    return given.simpleString() == ours.simpleString()
