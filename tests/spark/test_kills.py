"""Exactly once, shown by kill -9 of a worker and of the driver between rows, commit and commit log.

Each window costs one or two starts of Spark: two of them are in the group, all are in `make spark-kill`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import SRC
from tests.spark.kit import Queues

ROWS = 250


def run(
    queue: Queues, folder: Path, window: str, *master: str, **more: str
) -> subprocess.CompletedProcess[str]:
    words = [queue.url, queue.name, str(folder / "checkpoint"), window, str(folder / "flag"), *master]
    path = os.pathsep.join([str(SRC), str(SRC.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "tests.spark.copyjob", *words],
        cwd=SRC.parent,
        env={**os.environ, "PYTHONPATH": path, **more},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.parametrize(
    "window",
    [
        "task",
        "after",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("staging", "before", "logged")),
    ],
)
def test_every_row_is_in_its_queue_once_whoever_is_killed(queue: Queues, tmp_path: Path, window: str) -> None:
    targets = [f"{queue.name}-{number}" for number in range(2)]
    for target in targets:
        queue.declare(target)
    queue.fill(ROWS)
    first = run(queue, tmp_path, window)
    assert (tmp_path / "flag").exists(), first.stderr[-3000:]
    if window in {"task", "staging"}:
        assert first.returncode == 0, first.stderr[-3000:]  # Spark has run the task again
    else:
        assert first.returncode != 0
        second = run(queue, tmp_path, window)
        assert second.returncode == 0, second.stderr[-3000:]
    for number, target in enumerate(targets):
        assert queue.bodies(target) == [str(row).encode() for row in range(number, ROWS, 2)]
