"""Spark sessions as the pipeline's jobs and tests want them.

A plain session works, too. This one takes care of four traps: workers use the interpreter of the driver
(which has this package), loopback addresses only unless a master is named, time stamps in Parquet that others
can read, and UTC, so that times look the same everywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
}
LOCAL = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": "false",
}


def make_session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session, or the one that is there."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    is_local = master is None or master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName(name)
    # Under spark-submit the master is given outside.
    if master is not None or "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master(master or "local[*]")
    for key, value in {**SETTINGS, **(LOCAL if is_local else {}), **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
