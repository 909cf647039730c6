"""A program of a user, which knows nothing of where Spark runs: anywhere.py URL SOURCE TARGET FOLDER

Reads the queue SOURCE, writes it into TARGET, streams that into Parquet files below FOLDER, writes and
streams once more, from where the first stream ended. Its last line is JSON: what it found, and who did the
tasks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession


def who(batches: Iterable[Any]) -> Iterator[Any]:
    """Who does this task, with which package."""
    from pathlib import Path

    import pyarrow as pa

    import mirrormq

    count = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict(
        {"rows": [count], "folder": [str(Path.cwd())], "package": [str(mirrormq.__file__)]}
    )


def main(url: str, source: str, target: str, folder: str) -> dict[str, Any]:
    spark = SparkSession.builder.appName("anywhere").getOrCreate()
    queue = spark.read.format("mirrormq").option("url", url).option("minPartitions", 4)
    rows = queue.option("queue", source).load()
    tasks = rows.mapInArrow(who, "rows BIGINT, folder STRING, package STRING").collect()
    told: dict[str, Any] = {"tasks": [row.asDict() for row in tasks], "streamed": []}

    for _ in range(2):
        written = rows.select("message_id", "body").write.format("mirrormq").option("url", url)
        written.option("queue", target).mode("append").save()
        stream = spark.readStream.format("mirrormq").option("url", url).option("queue", target).load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.trigger(availableNow=True).start(f"{folder}/rows")
        query.awaitTermination()
        sources = [source for one in query.recentProgress for source in one["sources"]]
        told["streamed"].append(sum(source["numInputRows"] for source in sources))
    spark.stop()
    return told


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
