"""Found by Spark by its name: `format("mirrormq")` works without registering anything (docs/spark.md)."""

from mirrormq.spark.datasource import MirrorMQSource


class DefaultSource(MirrorMQSource):
    """What Spark looks for."""


__all__ = ["DefaultSource"]
