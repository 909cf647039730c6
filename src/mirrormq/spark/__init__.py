"""Queues in Spark: the data source `mirrormq` (docs/spark.md). Needs the extra `mirrormq[spark]`."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`make_session`, made when it is asked for: the compiled parts of this package need no Spark."""
    if name == "make_session":
        from mirrormq.spark.session import make_session

        return make_session
    raise AttributeError(name)
