"""One Spark session for the whole run, and real nodes beside it."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.process import Process, running
from tests.spark.kit import Queues
from tests.spark.servers import LOOPBACK, connect_server

# For every JVM of these tests: in their short lives the better translation costs more than all their queries.
os.environ.setdefault("JAVA_TOOL_OPTIONS", LOOPBACK["JAVA_TOOL_OPTIONS"])
SRC = Path(__file__).resolve().parents[2] / "src"
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A query takes seconds, the first one of a run a dozen: the JVM has to start."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, node: Process) -> Iterator[Any]:
    """A plain session, as a user would make it, but for the folder it leaves things in.

    Its Python processes inherit the environment that the JVM was started with.
    """
    os.environ["MIRRORMQ_URL"] = f"amqp://guest@127.0.0.1:{node.port}/"
    os.environ["MIRRORMQ_PASSWORD"] = "guest"  # for guest no other than without it; others need one
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(SRC), *(path for path in (os.environ.get("PYTHONPATH"),) if path)]
    )
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("mirrormq tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        # A handful of rows is not worth plans that are made anew and classes that are compiled per query.
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One node for all tests that need no more."""
    with running(tmp_path_factory.mktemp("node")) as process:
        yield process


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A Spark Connect server: its address, and the folder of its tables."""
    folder = tmp_path_factory.mktemp("connect")
    with connect_server(folder) as address:
        yield address, folder / "warehouse"


@pytest.fixture
def queue(node: Process) -> Iterator[Queues]:
    """A fresh queue on the node, with what tests do to it."""
    made = Queues(node.port, f"q{next(_numbers)}")
    yield made
    made.close()
