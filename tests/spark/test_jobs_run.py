"""The jobs as users run them: real nodes, a real Spark, the command line's words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pq = pytest.importorskip("pyarrow.parquet")

from mirrormq.spark.jobs import cli  # noqa: E402
from mirrormq.spark.jobs.manifest import Archive  # noqa: E402
from mirrormq.spark.jobs.messages import PROPERTIES  # noqa: E402
from tests.spark.kit import Queues  # noqa: E402

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(spark: Any, queue: Queues, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a job on the node of the queue; its result."""

    def job(name: str, *words: str, code: int = 0) -> dict[str, Any]:
        state = ("--state-dir", str(tmp_path / "state"))
        assert cli.pipeline([name, "--url", queue.url, *state, "--json", "--quiet", *words]) == code
        told = capsys.readouterr()
        return json.loads(told.out) if code == 0 else {"error": told.err}

    return job


SAID = {
    "headers": {"n": 7, "deep": {"list": [1, "two", None]}, "octets": b"\xff\x00", "empty": "", "CC": ["x"]},
    "message_id": "m",
    "correlation_id": "c",
    "content_type": "text/x",
    "content_encoding": "gzip",
    "reply_to": "r",
    "type": "t",
    "user_id": "guest",
    "app_id": "a",
    "expiration": "900000",
    "timestamp": 1_700_000_000,
    "delivery_mode": 2,
    "priority": 3,
}
"""All that a message can say of itself."""


def _everything(queue: Queues, name: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Take all messages out of a queue: bodies and properties."""
    found = []
    while True:
        method, properties, body = queue.channel.basic_get(name, auto_ack=True)
        if method is None:
            return found
        found.append((body, {key: value for key, value in vars(properties).items() if value is not None}))


def test_an_archive_is_made_exactly_once_and_replayed_into_an_empty_queue(
    run: Run, queue: Queues, tmp_path: Path
) -> None:
    assert len(SAID) == len(PROPERTIES)
    for number in range(30):
        queue.publish(f"{number}", **{**SAID, "message_id": f"m{number}"})
    place = str(tmp_path / "archive")
    words = ("--queue", queue.name, "--to", place, "--name", "a")
    assert run("archive", *words)["rows"] == 30
    assert run("archive", *words)["rows"] == 0
    queue.take(10)
    queue.fill(5, start=30)
    assert run("archive", *words)["rows"] == 5
    # A run that lost its state begins anew, and leaves out what is there.
    assert run("archive", "--queue", queue.name, "--to", place, "--name", "b")["rows"] == 0

    queue.declare("again")
    assert run("replay", "--from", place, "--to", "again", "--dry-run")["messages"] == 35
    assert run("replay", "--from", place, "--to", "again", "--name", "r")["messages"] == 35
    told = run("replay", "--from", place, "--to", "again", "--name", "r")
    assert (told["messages"], told["already"]) == (35, True)
    found = _everything(queue, "again")
    assert [body for body, _ in found] == [b"%d" % number for number in range(35)]
    assert [said for _, said in found[:30]] == [{**SAID, "message_id": f"m{number}"} for number in range(30)]
    assert [said for _, said in found[30:]] == [{"delivery_mode": 2}] * 5


def test_dead_letters_go_back_and_those_that_are_not_meant_stay(run: Run, queue: Queues) -> None:
    dead = f"{queue.name}.dead"
    origin = f"{queue.name}.work"
    queue.declare(dead)
    queue.declare(origin, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    for number in range(6):
        queue.publish(f"{number}", name=origin, app_id="even" if number % 2 == 0 else "odd")
    for _ in range(6):
        method, _, _ = queue.channel.basic_get(origin)
        queue.channel.basic_nack(method.delivery_tag, requeue=False)
    while queue.count(dead) < 6:
        queue.connection.process_data_events(0.05)
    queue.publish("no letter", name=dead)
    told = run("redrive", "--queue", dead, "--where", "app_id = 'even'", "--dry-run")
    assert (told["letters"], told["meant"]) == (7, 3)
    assert {(row["reason"], row["origin_queue"], row["letters"]) for row in told["groups"]} == {
        ("rejected", origin, 6),
        (None, None, 1),
    }
    # A condition on bodies means the same letters as when it is done.
    told = run("redrive", "--queue", dead, "--where", "cast(body as string) in ('1', '2')", "--dry-run")
    assert (told["letters"], told["meant"]) == (7, 2)
    assert (queue.count(origin), queue.count(dead)) == (0, 7)
    told = run("redrive", "--queue", dead, "--where", "app_id = 'even'")
    assert (told["moved"], told["stayed"]) == (3, 4)
    assert queue.bodies(origin) == [b"0", b"2", b"4"]
    assert queue.bodies(dead) == [b"1", b"3", b"5", b"no letter"]
    # Others may consume again, and another run finds what is new.
    method, _, _ = queue.channel.basic_get(origin)
    queue.channel.basic_nack(method.delivery_tag, requeue=False)
    while queue.count(dead) < 5:
        queue.connection.process_data_events(0.05)
    told = run("redrive", "--queue", dead, "--where", "app_id = 'even'")
    assert (told["moved"], told["stayed"]) == (1, 4)
    assert sorted(queue.bodies(origin)) == [b"0", b"2", b"4"]
    # They stay where they are: none of them was published again.
    assert queue.bodies(dead) == [b"1", b"3", b"5", b"no letter"]


def test_duplicates_are_found_in_a_queue(run: Run, queue: Queues, tmp_path: Path) -> None:
    for number in (1, 2, 3, 2, 3, 3):
        queue.publish(f"{number}", message_id=f"m{number}")
    told = run("duplicates", "--queue", queue.name, "--out", str(tmp_path / "out"))
    assert (told["messages"], told["extra"], told["across_failovers"]) == (6, 3, 0)
    assert [(row["message_id"], row["copies"]) for row in told["examples"]] == [("m3", 3), ("m2", 2)]
    assert "m3" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


def test_analytics_tell_what_the_cluster_told(run: Run, queue: Queues, tmp_path: Path) -> None:
    queue.fill(100)
    # Two samples later everything is told: one a second, and the first may have begun before.
    last = queue.count("mirrormq.samples")
    while queue.count("mirrormq.samples") < last + 2:
        queue.publish("tick")
        queue.connection.process_data_events(0.2)
    told = run("analytics", "--out", str(tmp_path / "out"), "--queues", f"/{queue.name}$")
    assert told["queues"] == 1
    assert told["publishes"] >= 100
    assert 0 < told["confirm_p50"] <= told["confirm_p99"]
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert queue.name in page
    assert "<svg" in page


def test_a_job_that_fails_says_why_and_status_shows_it(
    run: Run, queue: Queues, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = run("redrive", "--queue", "nowhere", "--dry-run", "--name", "lost", code=1)
    assert "nowhere" in told["error"]
    assert cli.pipeline(["status", "--state-dir", str(tmp_path / "state")]) == 0
    shown = capsys.readouterr().out
    assert "lost" in shown
    assert "failed" in shown


def _begin(queue: Queues, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A job in a process of its own."""
    shared = ("--url", queue.url, "--state-dir", str(folder / "state"), "--json", "--master", "local[2]")
    command = [sys.executable, "-m", "mirrormq", "pipeline", *words, *shared]
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _kill(job: subprocess.Popen[bytes]) -> None:
    """Kill -9 the driver, its JVM and its workers, all at once."""
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_archive_that_is_killed_again_and_again_holds_everything_once(
    run: Run, queue: Queues, tmp_path: Path
) -> None:
    queue.fill(300)
    place = tmp_path / "archive"
    words = ("archive", "--queue", queue.name, "--to", str(place), "--name", "a", "--max-records", "20")
    manifests = 0
    for pattern in ("_mirror/*/*.json", "queue=*/*/*.parquet"):
        # Once behind a commit, once between the files of a batch and their manifest, or close to it.
        found = len(list(place.glob(pattern)))
        job = _begin(queue, tmp_path, *words)
        while len(list(place.glob(pattern))) <= found:
            assert job.poll() is None, (tmp_path / "job.log").read_text()
            queue.connection.process_data_events(0.02)
        _kill(job)
        assert len(list(place.glob("_mirror/*/*.json"))) >= manifests
        manifests = len(list(place.glob("_mirror/*/*.json")))
    told = run(*words)
    assert told["rows"] < 300
    archive = Archive(str(place))
    seqs = [
        seq for entry in archive.files() for seq in pq.read_table(archive.path_of(entry))["seq"].to_pylist()
    ]
    bodies = [
        bytes(body)
        for entry in archive.files()
        for body in pq.read_table(archive.path_of(entry))["body"].to_pylist()
    ]
    assert len(seqs) == len(set(seqs))
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(300)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", ["", "CAST(CAST(body AS STRING) AS INT) % 3 > 0"])
def test_a_redrive_that_is_killed_moves_every_letter_once(
    run: Run, queue: Queues, tmp_path: Path, where: str
) -> None:
    dead, origin = f"{queue.name}.dead", f"{queue.name}.work"
    queue.declare(dead)
    queue.declare(origin, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    queue.fill(120, name=origin)
    for _ in range(120):
        method, _, _ = queue.channel.basic_get(origin)
        queue.channel.basic_nack(method.delivery_tag, requeue=False)
    while queue.count(dead) < 120:
        queue.connection.process_data_events(0.05)
    words = ("redrive", "--queue", dead, "--name", "r", "--max-records", "20")
    words += ("--where", where) if where else ()
    job = _begin(queue, tmp_path, *words)
    while not queue.count(origin):
        assert job.poll() is None, (tmp_path / "job.log").read_text()
        queue.connection.process_data_events(0.02)
    _kill(job)
    run(*words)
    stay = [number for number in range(120) if where and number % 3 == 0]
    gone = [number for number in range(120) if number not in stay]
    assert sorted(queue.bodies(origin), key=int) == [b"%d" % number for number in gone]
    assert queue.bodies(dead) == [b"%d" % number for number in stay]
