"""A standalone cluster: a master and two workers, whose Python has our wheel and nothing of this clone.

In the group the packages that the wheel asks for are those of the tests, by a path file; `make spark-kill`
has pip install the wheel with its extra into a venv that has nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("pyspark")
pq = pytest.importorskip("pyarrow.parquet")

from mirrormq.spark.jobs.manifest import Archive  # noqa: E402
from tests.spark import anywhere, servers  # noqa: E402
from tests.spark.kit import Queues  # noqa: E402
from tests.spark.test_kills import ROWS as COPIED  # noqa: E402
from tests.spark.test_kills import run as copy  # noqa: E402

ROWS = 40
SETTINGS = {
    "spark.executor.memory": "512m",
    # Both workers have to be there before anything is given out.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "240s",
}


class Cluster(NamedTuple):
    """Where it is, and what its workers run."""

    master: str
    python: str
    folder: Path

    def executors(self) -> list[int]:
        """The processes that do the tasks: each is in a folder of its worker."""
        found = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [int(entry.name) for entry in found if self._is_executor(entry)]

    def _is_executor(self, process: Path) -> bool:
        try:
            is_ours = (process / "cwd").readlink().is_relative_to(self.folder)
            return is_ours and b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
        except OSError:
            return False  # it has ended, or is not ours


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("standalone")
    python = servers.worker_python(folder)
    with servers.standalone(folder) as master:
        yield Cluster(master, python, folder)


def test_both_workers_read_write_and_stream_with_the_wheel(
    cluster: Cluster, queue: Queues, tmp_path: Path
) -> None:
    check_program(cluster, queue, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(servers.INSTALL_SECONDS + 600)
def test_workers_from_a_venv_of_the_wheel_alone_do_the_same(
    cluster: Cluster, queue: Queues, tmp_path: Path
) -> None:
    python = servers.wheel_python(tmp_path / "alone")
    asked = "import pyspark, pyarrow, pandas; print(pyspark.__file__)"
    place = servers.run([python, "-c", asked], servers.environment(python), tmp_path)
    assert Path(place.strip()).is_relative_to(tmp_path / "alone/venv")
    check_program(cluster._replace(python=python), queue, tmp_path)


def check_program(cluster: Cluster, queue: Queues, tmp_path: Path) -> None:
    """A program reads, writes and streams; both workers do their part, with the package of their Python."""
    queue.fill(ROWS)
    target = f"{queue.name}.copy"
    queue.declare(target)
    program = [anywhere.__file__, queue.url, queue.name, target, str(tmp_path / "out")]
    words = servers.submit("--master", cluster.master, *servers.options(SETTINGS), *program)
    told = json.loads(servers.run(words, servers.environment(cluster.python), tmp_path).splitlines()[-1])
    assert sum(task["rows"] for task in told["tasks"]) == ROWS
    folders = {Path(task["folder"]).relative_to(cluster.folder).parts[0] for task in told["tasks"]}
    assert folders == {"worker0", "worker1"}
    home = Path(cluster.python).parents[1]
    assert all(Path(task["package"]).is_relative_to(home) for task in told["tasks"])
    assert told["streamed"] == [ROWS, ROWS]
    assert len(set(pq.read_table(tmp_path / "out/rows")["seq"].to_pylist())) == 2 * ROWS
    assert sorted(queue.bodies(target), key=int) == sorted([b"%d" % n for n in range(ROWS)] * 2, key=int)


@pytest.mark.slow
@pytest.mark.parametrize("window", ["executor-staging", "executor-task"])
def test_a_stream_into_two_queues_is_exact_although_an_executor_is_killed(
    cluster: Cluster, queue: Queues, tmp_path: Path, window: str
) -> None:
    targets = [f"{queue.name}-{number}" for number in range(2)]
    for target in targets:
        queue.declare(target)
    queue.fill(COPIED)
    done = copy(queue, tmp_path, window, cluster.master, PYSPARK_PYTHON=cluster.python)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "flag").exists()
    for number, target in enumerate(targets):
        assert queue.bodies(target) == [str(row).encode() for row in range(number, COPIED, 2)]


@pytest.mark.slow
def test_a_job_loses_nothing_when_executors_are_killed(
    cluster: Cluster, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(300)
    place = tmp_path / "archive"
    job = ["archive", "--url", queue.url, "--queue", queue.name, "--to", str(place), "--max-records", "20"]
    words = [sys.executable, "-m", "mirrormq", "pipeline", *job, "--master", cluster.master]
    env = {**servers.source_environment(), "PYSPARK_PYTHON": cluster.python}
    with (tmp_path / "log").open("wb") as log:
        settings = servers.options({**servers.SMALL, **SETTINGS})
        running = subprocess.Popen([*words, *settings], env=env, cwd=tmp_path, stdout=log, stderr=log)
    try:
        for batches in (1, 3):
            while len(list(place.glob("_mirror/*/*.json"))) < batches:
                assert running.poll() is None, (tmp_path / "log").read_text()
                queue.connection.process_data_events(0.02)
            os.kill(cluster.executors()[0], signal.SIGKILL)
        assert running.wait(servers.RUN_SECONDS) == 0, (tmp_path / "log").read_text()
    finally:
        running.kill()
        running.wait()
    archive = Archive(str(place))
    tables = [pq.read_table(archive.path_of(entry)) for entry in archive.files()]
    bodies = [int(body) for table in tables for body in table["body"].to_pylist()]
    assert sorted(bodies) == list(range(300))
