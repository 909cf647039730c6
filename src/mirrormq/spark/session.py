"""Spark sessions as the pipeline's jobs and tests want them.

A plain session works, too. This one takes care of some traps: workers use the interpreter of the driver
(which has this package), loopback addresses only unless a master is named, time stamps in Parquet that others
can read, and UTC, so that times look the same everywhere. A session of a Spark Connect server takes only the
latter two: the rest was settled when the server was started.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
REMOTE = "SPARK_REMOTE"
"""Where Spark itself looks for the address of a Connect server."""

CONNECT_PORT = 15002
ANSWER_S = 10
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Where one of these is set, gRPC goes another way than a socket would."""

UNDER_SUBMIT = "PYSPARK_GATEWAY_PORT"
"""Set in a program that spark-submit has started: its JVM is there already, and has its settings."""

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""For every session; they can be set while it is there."""

STARTING = {"spark.ui.showConsoleProgress": "false"}
ARROW_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""For the JVM: no check of bounds at each value that comes from a Python worker, or goes to one. What comes
is made by Arrow itself, or by a scanner that is tested against models, and Spark asks only for rows that are
there."""

HOT_ONLY = (
    "-XX:+IgnoreUnrecognizedVMOptions "
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""For the JVM: ten times its own thresholds for compiling with all optimisations. What runs once per row gets
there within the first hundred thousand rows; much of Spark's planning, for which the compiler works through
the first minute of a job, does not."""

COMMON_TYPE = "-XX:TypeProfileMajorReceiverPercent=40"
"""For the JVM: where several types meet at one call, the code of the commonest is put there if it makes two
fifths of the calls, not nine tenths. Spark asks every column whether a value is null at one and the same
place, and most of our columns that may be null are texts."""

COLLECTOR = "-XX:+UseParallelGC"
"""For the JVM: the collector with the least work for the program. Of the one that Java chooses by itself a
read of rows has no use: it pauses for a shorter time, but a job waits for its end."""
CHOICE = re.compile(r"-XX:[+-]Use\w+GC\b")
CHOOSERS = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "SPARK_SUBMIT_OPTS",
    "PYSPARK_SUBMIT_ARGS",
)
"""Variables in which others may name a collector."""

LOCAL = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
}


class ServerMissing(Exception):
    """There is no Spark Connect server; the text is for the user."""


def make_session(
    name: str,
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session, or the one that is there: of a master, or of the Spark Connect server at `remote`."""
    remote = remote or (os.environ.get(REMOTE) if master is None else None)
    if remote is not None:
        return _remote_session(name, remote, settings or {})
    # Not PYSPARK_DRIVER_PYTHON: Spark would use it for tasks of data sources, too, on every worker.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is None and UNDER_SUBMIT in os.environ:
        return _submitted_session(name, settings or {})
    is_local = master is None or master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName(name).master(master or "local[*]")
    found = {
        **SETTINGS,
        **STARTING,
        **(_local_settings(settings or {}) if is_local else {}),
        **(settings or {}),
    }
    return builder.config(map=dict(found)).getOrCreate()


def _local_settings(settings: Mapping[str, str]) -> dict[str, str]:
    words = [ARROW_UNCHECKED, HOT_ONLY, COMMON_TYPE]
    if not any(CHOICE.search(text) for text in _java_options(settings)):
        words.append(COLLECTOR)
    return {"spark.driver.defaultJavaOptions": " ".join(words), **LOCAL}


def _java_options(settings: Mapping[str, str]) -> list[str]:
    """Wherever others may have named a collector: two of them, and Java would not start."""
    found = [*settings.values(), *(os.environ.get(name, "") for name in CHOOSERS)]
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    with contextlib.suppress(OSError):
        found.append(Path(folder, "spark-defaults.conf").read_text(errors="replace"))
    return found


def _submitted_session(name: str, settings: Mapping[str, str]) -> SparkSession:
    """The master and the network are those of spark-submit, and so is every setting that was given there."""
    session = SparkSession.builder.appName(name).config(map=dict(settings)).getOrCreate()
    given = session.sparkContext.getConf()
    for key, value in SETTINGS.items():
        if not given.contains(key):
            session.conf.set(key, value)
    return session


def _remote_session(name: str, remote: str, settings: Mapping[str, str]) -> SparkSession:
    _must_answer(remote)
    builder = SparkSession.builder.remote(remote).appName(name)
    return builder.config(map={**SETTINGS, **settings}).getOrCreate()


def _must_answer(remote: str) -> None:
    """Say at once that nobody is there: Spark itself would try for ten minutes."""
    found = urlsplit(remote)
    is_direct = not any(os.environ.get(name) for name in PROXIES)
    if found.scheme != "sc" or found.hostname is None or not is_direct:
        return
    try:
        with socket.create_connection((found.hostname, found.port or CONNECT_PORT), ANSWER_S):
            return
    except OSError as error:
        raise ServerMissing(f"no Spark Connect server answers at {remote} ({error})") from None


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is of a Spark Connect server: such a one has no context, no RDDs and no JVM here."""
    return not hasattr(spark, "sparkContext")
