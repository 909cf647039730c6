"""Spark Connect: clients without a JVM, on a server that was started by itself."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc")
pq = pytest.importorskip("pyarrow.parquet")

from pyspark.sql import Row  # noqa: E402

from mirrormq.spark.jobs import frame, progress  # noqa: E402
from mirrormq.spark.jobs.archive import JOB  # noqa: E402
from tests.spark import anywhere, servers  # noqa: E402
from tests.spark.kit import Queues  # noqa: E402

ROWS = 40


def test_a_program_of_a_user_reads_writes_and_streams_by_connect(
    connect: tuple[str, Path], queue: Queues, tmp_path: Path
) -> None:
    queue.fill(ROWS)
    target = f"{queue.name}.copy"
    queue.declare(target)
    words = [sys.executable, anywhere.__file__, queue.url, queue.name, target, str(tmp_path)]
    env = {**servers.source_environment(), "SPARK_REMOTE": connect[0]}
    told = json.loads(servers.run(words, env, tmp_path).splitlines()[-1])
    assert sum(task["rows"] for task in told["tasks"]) == ROWS
    assert len([task for task in told["tasks"] if task["rows"]]) > 1
    assert told["streamed"] == [ROWS, ROWS]
    assert len(set(pq.read_table(tmp_path / "rows")["seq"].to_pylist())) == 2 * ROWS
    assert sorted(queue.bodies(target), key=int) == sorted([b"%d" % n for n in range(ROWS)] * 2, key=int)


def test_a_job_runs_by_connect_and_goes_on_where_it_was(
    connect: tuple[str, Path], queue: Queues, tmp_path: Path
) -> None:
    queue.fill(ROWS)

    def archive() -> int:
        # The folder is named as seen from where the user is; the server is somewhere else.
        words = ["archive", "--url", queue.url, "--queue", queue.name, "--to", "archive", "--json"]
        program = [sys.executable, "-m", "mirrormq", "pipeline", *words, "--remote", connect[0], "--quiet"]
        return int(json.loads(servers.run(program, servers.source_environment(), tmp_path))["rows"])

    assert archive() == ROWS
    queue.take(10)
    queue.fill(5, start=ROWS)
    assert archive() == 5
    found = [pq.read_table(path)["body"].to_pylist() for path in tmp_path.glob("archive/queue=*/*/*.parquet")]
    assert sorted(int(body) for bodies in found for body in bodies) == list(range(ROWS + 5))


def test_a_job_has_a_master_or_a_server_but_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--queue", "q", "--to", "x", "--master", "local[1]", "--remote", "sc://127.0.0.1"]
    with pytest.raises(SystemExit) as ended:
        frame.main_of(JOB, words)
    assert ended.value.code == frame.MISUSED
    assert "--master" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_missed_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"sc://127.0.0.1:{nobody.getsockname()[1]}"
        words = ["--queue", "q", "--to", str(tmp_path / "a"), "--state-dir", str(tmp_path / "state")]
        assert frame.main_of(JOB, [*words, "--quiet", "--remote", address]) == frame.FAILED
    assert f"no Spark Connect server answers at {address}" in capsys.readouterr().err


def test_what_spark_tells_of_a_batch_is_the_same_from_all_sessions() -> None:
    same = {"batchId": 3, "sources": [{"numInputRows": 2}, {"numInputRows": 5}]}
    ours = {**same, "numInputRows": 7, "observedMetrics": {"m": Row(moved=4, stayed=None)}}
    schema = {"type": "struct", "fields": [{"name": "moved"}, {"name": "stayed"}]}
    theirs = {
        **same,
        "numInputRows": None,
        "observedMetrics": {"m": Row(values=[4, None], schema=schema)},
    }
    plain = {**same, "numInputRows": 7, "observedMetrics": {"m": {"moved": 4, "stayed": None}}}
    assert progress.plain(ours) == progress.plain(theirs) == plain


@pytest.mark.slow
def test_the_declarative_example_makes_its_tables_and_adds_what_is_new(
    connect: tuple[str, Path], queue: Queues, clone: Path, tmp_path: Path
) -> None:
    pytest.importorskip("yaml")
    address, warehouse = connect
    project = shutil.copytree(clone / "examples/declarative", tmp_path / "project")
    spec = project / "spark-pipeline.yml"
    text = spec.read_text(encoding="utf-8")
    assert "file:///tmp/mirrormq-declarative" in text
    spec.write_text(text.replace("file:///tmp/mirrormq-declarative", (tmp_path / "storage").as_uri()))
    env = {**servers.source_environment(), "MIRRORMQ_URL": queue.url, "ORDERS_QUEUE": queue.name}
    words = [str(servers.spark_home() / "bin/spark-pipelines"), "run", "--remote", address]
    for first, last in ((0, 30), (30, 50)):
        for number in range(first, last):
            order = {"number": number, "customer": f"c{number % 3}", "price": 2}
            queue.publish(json.dumps(order), message_id=str(number))
        servers.run([*words, "--spec", str(spec)], env, project)
        assert sorted(pq.read_table(warehouse / "orders")["number"].to_pylist()) == list(range(last))
        counts = [len(range(customer, last, 3)) for customer in range(3)]
        found = pq.read_table(warehouse / "orders_by_customer").sort_by("customer").to_pylist()
        assert found == [
            {"customer": f"c{number}", "orders": count, "price": 2 * count}
            for number, count in enumerate(counts)
        ]
