"""spark-submit: the jobs are files of the package. (A user's own program: test_standalone.py.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pq = pytest.importorskip("pyarrow.parquet")

from mirrormq.spark.jobs import archive  # noqa: E402
from tests.spark import servers  # noqa: E402
from tests.spark.kit import Queues  # noqa: E402

ROWS = 40


def test_a_job_is_a_file_that_can_be_submitted(queue: Queues, tmp_path: Path) -> None:
    queue.fill(ROWS)
    job = ["--url", queue.url, "--queue", queue.name, "--to", "archive", "--json", "--quiet"]
    words = servers.submit("--master", "local[2]", archive.__file__, *job)
    told = json.loads(servers.run(words, servers.source_environment(), tmp_path).splitlines()[-1])
    assert told["rows"] == ROWS
    found = [pq.read_table(path)["body"].to_pylist() for path in tmp_path.glob("archive/queue=*/*/*.parquet")]
    assert sorted(int(body) for bodies in found for body in bodies) == list(range(ROWS))
