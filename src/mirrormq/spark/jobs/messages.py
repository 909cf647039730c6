"""Messages on their way through a job: which queues and times are read, which columns are published again."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from mirrormq.spark.jobs.frame import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PROPERTIES = (
    "message_id", "correlation_id", "content_type", "content_encoding", "reply_to", "type", "user_id",
    "app_id", "expiration", "app_timestamp", "delivery_mode", "priority", "headers_raw",
)  # fmt: skip
"""What a message keeps when it is published again; headers as they came, octet by octet."""


def queue_arguments(made: argparse.ArgumentParser, *, is_needed: bool) -> None:
    """Which queues to read."""
    group = made.add_mutually_exclusive_group(required=is_needed)
    group.add_argument("--queue", help="a queue")
    group.add_argument("--queues", help="several queues, separated by commas")
    group.add_argument("--pattern", metavar="REGEX", help="all queues whose whole name matches")


def queue_options(given: argparse.Namespace) -> dict[str, str]:
    """The same as options of the connector."""
    found = {"queue": given.queue, "queues": given.queues, "queuePattern": given.pattern}
    return {name: value for name, value in found.items() if value}


def micros(text: str | None) -> int | None:
    """A time of the command line (µs since 1970); UTC unless it says otherwise."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise JobFailed(f"'{text}' is no time in ISO 8601, such as 2026-11-16T12:00:00") from None
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    # In whole numbers: seconds with a fraction would be a microsecond off now and then.
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def to_publish(rows: DataFrame, exchange: Column, routing_key: Column, *more: str) -> DataFrame:
    """Rows as the sink takes them: where they go, their properties, their bodies, and further columns."""
    names = (*PROPERTIES, "body", *more)
    return rows.select(exchange.alias("exchange"), routing_key.alias("routing_key"), *map(f.col, names))
