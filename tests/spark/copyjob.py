"""A job that copies a queue to two others and dies on the way:
copyjob.py URL SOURCE CHECKPOINT WINDOW FLAG [MASTER]

WINDOW is where the first run ends: `staging` or `task` (a worker, while it stages its rows, or when it has),
`executor-staging` or `executor-task` (the same of a whole executor of the cluster MASTER),
`before` or `after` (the whole driver, before or after the commit of a batch is sent; `after` is before Spark
notes it in its commit log) or `logged` (the driver, when it has). FLAG is a file: this has happened.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from mirrormq.spark.datasource import MirrorMQSource
from mirrormq.spark.options import write_options
from mirrormq.spark.session import make_session
from mirrormq.spark.sink import BATCH, StreamWriter

WINDOW = "COPYJOB_WINDOW"
FLAG = "COPYJOB_FLAG"
CLONE = Path(__file__).resolve().parents[2]


def is_time(window: str) -> bool:
    """Whether to die here; only once."""
    flag = Path(os.environ[FLAG])
    if os.environ[WINDOW] != window or flag.exists():
        return False
    flag.write_text("dead")
    return True


def kill_java() -> None:
    """Kill the JVM that this process descends from: the driver, or on a cluster a task's executor."""
    pid = os.getpid()
    while b"java" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)


def dying(batches: Iterable[Any]) -> Iterator[Any]:
    """The rows of a task that ends before all of them are staged."""
    for batch in batches:
        for at in range(batch.num_rows):
            yield batch.slice(at, 1)
            if at and is_time("staging"):
                os.kill(os.getpid(), signal.SIGKILL)
            if at and is_time("executor-staging"):
                kill_java()


class MortalWriter(StreamWriter):
    """The writer of streams, with an end."""

    def write(self, iterator: Any) -> Any:
        if int(TaskContext.get().getLocalProperty(BATCH)) and is_time("logged"):
            kill_java()  # the batch before is in the commit log, or this one would not have begun
        written = super().write(dying(iterator))
        if is_time("task"):
            os.kill(os.getpid(), signal.SIGKILL)
        if is_time("executor-task"):
            kill_java()
        return written

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803  (Spark's name)
        if is_time("before"):
            kill_java()
        super().commit(messages, batchId)
        if batchId and is_time("after"):
            kill_java()


class MortalSource(MirrorMQSource):
    """The data source with that writer."""

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamWriter(self, schema: Any, overwrite: bool) -> MortalWriter:
        return MortalWriter(write_options(self.options), schema, overwrite=overwrite)


def main(url: str, source: str, checkpoint: str, window: str, flag: str, *master: str) -> None:
    os.environ.update({WINDOW: window, FLAG: flag})
    settings = {"spark.driver.memory": "512m"}
    for name, value in ((WINDOW, window), (FLAG, flag), ("PYTHONPATH", str(CLONE))):
        settings[f"spark.executorEnv.{name}"] = value
    if master:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings |= {"spark.executor.memory": "512m", "spark.ui.enabled": "false"}
    # Four attempts per task on this machine, as on a cluster.
    spark = make_session("copy job", master=master[0] if master else "local[2,4]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(MortalSource)
    stream = spark.readStream.format("mirrormq").option("url", url).option("queue", source)
    frame = stream.option("maxRecordsPerTrigger", 100).option("minPartitions", 2).load()
    target = f"concat('{source}-', CAST(CAST(body AS STRING) AS INT) % 2) AS routing_key"
    writer = frame.selectExpr("body", target).writeStream.format("mortal").option("url", url)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    from tests.spark import copyjob

    copyjob.main(*sys.argv[1:])
