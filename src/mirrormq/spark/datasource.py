"""`format("mirrormq")`: what Spark makes of the name, and which reader or writer that is.

Spark creates this object in a Python process of the driver and ships it. The options are checked when it is
known what they are for; a schema that a user gives is a choice of columns.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from mirrormq.spark.options import read_options, write_options
from mirrormq.spark.schema import check_schema, schema_of

NAME = "mirrormq"


class MirrorMQSource(DataSource):
    """Queues of MirrorMQ."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return NAME

    def __repr__(self) -> str:
        return f"{NAME} data source"

    def schema(self) -> StructType:
        """The columns of the mode that was given; without one there is no column `state`."""
        options = read_options(self.options)
        return schema_of(options.mode, has_body=options.include_body)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Batch reads."""
        from mirrormq.spark.source import BatchReader, FilteringReader

        options = read_options(self.options)
        check_schema(schema, options.mode)
        return FilteringReader(options, schema) if options.pushdown else BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Streams."""
        from mirrormq.spark.stream import StreamReader

        options = read_options(self.options)
        check_schema(schema, options.mode)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Batch writes."""
        from mirrormq.spark.sink import BatchWriter

        return BatchWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802  (Spark's name)
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Streaming writes."""
        from mirrormq.spark.sink import StreamWriter

        return StreamWriter(write_options(self.options), schema, overwrite=overwrite)
