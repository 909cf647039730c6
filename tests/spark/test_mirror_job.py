"""The job `mirror` between real clusters: a vhost of one follows the queues of another, and takes over."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

pytest.importorskip("pyspark")

from mirrormq.spark.jobs import cli
from mirrormq.testing import Cluster, cluster
from tests.spark.mirrorkit import Place, wait_for

Run = Callable[..., dict[str, Any]]
_numbers = itertools.count(1)
STRATEGIES = ("full", "incremental")


@pytest.fixture(scope="module")
def west() -> Iterator[Cluster]:
    with cluster(nodes=1) as made:
        yield made


@pytest.fixture(scope="module")
def east() -> Iterator[Cluster]:
    with cluster(nodes=1) as made:
        yield made


@pytest.fixture
def source(west: Cluster) -> Iterator[Place]:
    name = f"s{next(_numbers)}"
    with west.fresh_vhost(name):
        made = Place(west, name)
        yield made
        made.close()


@pytest.fixture
def mirror(east: Cluster, source: Place) -> Iterator[Place]:
    made = Place(east, f"m-{source.vhost}")
    yield made
    made.close()


@pytest.fixture
def run(
    spark: Any,
    source: Place,
    mirror: Place,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs the job from the source to the mirror, unless it is told otherwise; its result."""

    def job(*words: str, code: int = 0, to: Place | None = mirror, of: str = "") -> dict[str, Any]:
        where = ["--source", of or source.url, "--state-dir", str(tmp_path / "state")]
        where += [] if to is None else ["--url", to.url]
        assert cli.pipeline(["mirror", *where, "--json", *words]) == code, capsys.readouterr().err
        told = capsys.readouterr()
        return {**(json.loads(told.out) if code == 0 else {}), "said": told.err}

    return job


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_mirror_holds_what_its_source_holds_and_loses_what_was_acknowledged(
    strategy: str, run: Run, spark: Any, source: Place, mirror: Place
) -> None:
    channel = source.open()
    source.declare("q", "empty")
    channel.exchange_declare("x", "topic", durable=True)
    channel.queue_bind("q", "x", "k.#")
    channel.basic_publish("x", "k.1", "0", pika.BasicProperties(delivery_mode=2))
    source.publish("q", *range(1, 40))
    told = run("--strategy", strategy)
    assert (told["queues"], told["copied"], told["messages"]) == (2, 40, 40)
    assert mirror.held(spark, "q") == [str(number) for number in range(40)]
    # Half of it goes at the source, and more comes.
    source.take("q", *range(1, 40, 2))
    source.publish("q", *range(40, 50))
    assert run("--strategy", strategy)["messages"] == 30
    assert mirror.held(spark, "q") == [str(number) for number in (*range(0, 40, 2), *range(40, 50))]
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="promote_mirror"):
        mirror.publish("q", "mine")
    channel.queue_purge("q")
    source.publish("q", "last")
    assert run("--strategy", strategy)["messages"] == 1
    mirror.promote()
    told = run("--strategy", strategy, code=1)
    assert "was promoted" in told["said"]
    channel = mirror.open()
    channel.basic_publish("x", "k.2", "new")
    assert [body for _, _, body in mirror.drain("q")] == [b"last", b"new"]


def test_properties_and_the_way_of_a_message_are_mirrored(
    run: Run, source: Place, mirror: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = source.open()
    source.declare("q")
    channel.exchange_declare("x", "headers", durable=True)
    channel.queue_bind("q", "x", "", {"x-match": "any", "n": 1})
    headers = {"n": 1, "deep": {"list": [1, "two"]}, "octets": b"\xff", "CC": ["elsewhere"]}
    said = {"headers": headers, "message_id": "m", "user_id": source.made.user, "expiration": "900000"}
    said |= {"type": "t", "app_id": "a", "reply_to": "r", "timestamp": 1_700_000_000, "priority": 3}
    channel.basic_publish("x", "key", "body", pika.BasicProperties(delivery_mode=2, **said))
    # The variable may name a vhost that is not there yet, as --url may.
    monkeypatch.setenv("MIRRORMQ_URL", mirror.url)
    run(to=None)
    mirror.promote()
    ((method, properties, body),) = mirror.drain("q")
    assert (method.exchange, method.routing_key, body) == ("x", "key", b"body")
    assert {name: value for name, value in vars(properties).items() if value is not None} == {
        **said,
        "delivery_mode": 2,
    }


def test_the_mirror_of_a_dead_cluster_takes_over(run: Run, mirror: Place) -> None:
    with cluster(nodes=1) as dying:
        doomed = Place(dying, "%2F")
        doomed.vhost = "/"
        doomed.declare("q")
        doomed.publish("q", *range(30))
        url = doomed.url[:-1] + "%2F"
        run(of=url)
        doomed.take("q", *range(10))
        doomed.publish("q", *range(30, 40))
        run(of=url)
        dying.nodes[0].kill()
        assert "no node answers" in run(of=url, code=1)["said"]
        doomed.close()
        mirror.promote()
        mirror.declare("q")
        mirror.publish("q", "mine")
        assert [body for _, _, body in mirror.drain("q")] == [b"%d" % n for n in range(10, 40)] + [b"mine"]


def test_queues_are_chosen_by_patterns_and_gone_ones_go(run: Run, source: Place, mirror: Place) -> None:
    source.declare("a.1", "a.2", "a.tmp", "b.1", "a,odd ")
    for name in ("a.1", "a.2", "a.tmp", "b.1", "a,odd "):
        source.publish(name, 1)
    chosen = ("--include", "a.*", "--exclude", ".*tmp")
    assert run(*chosen)["queues"] == 3
    source.open().queue_delete("a.2")
    source.publish("a.1", 2)
    assert run(*chosen)["messages"] == 3
    with mirror.bulk() as client:
        names = {row["queue"] for row in client.call("queues", pattern="[ab].*")["queues"]}
    assert names == {"a.1", "a,odd "}


def test_a_queue_that_was_declared_anew_or_whose_cursor_is_gone_is_copied_as_a_whole(
    run: Run, spark: Any, source: Place, mirror: Place
) -> None:
    source.declare("q", "r")
    source.publish("q", 1, 2, 3)
    source.publish("r", 1, 2, 3)
    assert run()["full"] == ["q", "r"]
    assert run()["full"] == []
    source.open().queue_delete("q")
    source.declare("q")
    source.publish("q", 7)
    with source.bulk() as client:
        (cursor,) = client.call("cursor_list", queue="r")["cursors"]
        client.call("cursor_drop", queue="r", name=cursor["name"])
    source.take("r", 0)
    told = run()
    assert told["full"] == ["q", "r"]
    assert "another one at the source" in told["said"]
    assert "cursor on queue 'r' is lost" in told["said"]
    source.publish("q", 8)
    source.publish("r", 8)
    assert run()["full"] == []
    assert mirror.held(spark, "q") == ["7", "8"]
    assert mirror.held(spark, "r") == ["2", "3", "8"]


def test_what_is_kept_for_good_is_not_removed(run: Run, spark: Any, source: Place, mirror: Place) -> None:
    source.declare("q")
    source.publish("q", 1, 2)
    run("--removals", "keep")
    source.publish("q", 3)
    source.open().queue_purge("q")
    source.publish("q", 4)
    run("--removals", "keep")
    run("--removals", "keep", "--strategy", "full")
    assert mirror.held(spark, "q") == ["1", "2", "3", "4"]
    source.open().queue_delete("q")
    source.declare("q")
    assert "declared anew" in run("--removals", "keep", code=1)["said"]


def test_messages_do_not_go_back_to_where_they_came_from(run: Run, source: Place, mirror: Place) -> None:
    source.declare("q")
    source.publish("q", 1)
    run()
    back = Place(source.made, f"back-{source.vhost}")
    told = run(of=mirror.url, to=back, code=1)
    assert "not forwarded to where it came from" in told["said"]
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        back.open()


def test_a_vhost_that_is_no_mirror_is_not_written_to(run: Run, source: Place, mirror: Place) -> None:
    source.declare("q")
    plain = Place(mirror.made, "%2F")
    assert "is no mirror" in run(to=plain, code=1)["said"]


@pytest.mark.slow
def test_the_next_source_is_asked_and_a_mirror_can_be_one(
    run: Run, spark: Any, source: Place, mirror: Place
) -> None:
    source.declare("q")
    source.publish("q", 1, 2)
    run()
    dead = "amqp://guest@127.0.0.1:1,127.0.0.1:2/x"
    told = run(of=f"{dead},{source.url}")
    assert "asking the next source" in told["said"]
    with cluster(nodes=1) as third:
        far = Place(third, "far")
        # A mirror of the mirror: both are mirrors of the same cluster.
        run(of=f"{dead},{mirror.url}", to=far)
        assert far.held(spark, "q") == ["1", "2"]
        source.take("q", 0)
        source.publish("q", 3)
        run()
        run(of=f"{dead},{mirror.url}", to=far)
        assert far.held(spark, "q") == ["2", "3"]
        # The source itself answers again: its queues are others, and copied as a whole.
        assert run(of=f"{source.url},{mirror.url}", to=far)["full"] == ["q"]
        assert far.held(spark, "q") == ["2", "3"]
        assert "not forwarded" in run(of=far.url, to=Place(source.made, "round"), code=1)["said"]


def test_an_event_driven_mirror_follows_until_it_is_promoted(run: Run, source: Place, mirror: Place) -> None:
    source.declare("q")
    source.publish("q", *range(10))
    problems: list[Exception] = []

    def client() -> None:
        try:
            wait_for(mirror, "q", 10)
            source.publish("q", *range(10, 20))
            wait_for(mirror, "q", 20)
            # Half of it goes at the source, and more comes.
            source.take("q", *range(0, 20, 2))
            wait_for(mirror, "q", 10)
            source.publish("q", *range(20, 25))
            wait_for(mirror, "q", 15)
            source.declare("late")
            source.publish("late", 1)
            wait_for(mirror, "late", 1)
        except Exception as error:  # noqa: BLE001  (told by the test)
            problems.append(error)
        mirror.promote()

    thread = threading.Thread(target=client)
    thread.start()
    told = run("--strategy", "event", "--sync-interval", "1s", code=1)
    thread.join()
    assert not problems, problems
    assert "was promoted" in told["said"]
    left = (*range(1, 20, 2), *range(20, 25))
    assert [body for _, _, body in mirror.drain("q")] == [b"%d" % number for number in left]
    # The source need not keep anything for it.
    with source.bulk() as bulk:
        assert bulk.call("cursor_list", queue="q")["cursors"] == []


@pytest.mark.slow
def test_a_cluster_is_followed_through_the_death_of_a_master(run: Run, spark: Any, mirror: Place) -> None:
    with cluster(nodes=3) as made:
        policy = {"name": "all", "pattern": ".*", "vhost": "/", "apply_to": "queues"}
        made.ask("set_policy", definition={"ha-mode": "all"}, **policy)
        source = Place(made, "/")
        source.declare("q")
        source.publish("q", *range(50))
        url = source.url[:-1] + "%2F"
        run(of=url)
        source.take("q", *range(0, 50, 2))
        with source.bulk() as client:
            master = client.call("queues", queue="q")["queues"][0]["master"]
        next(node for node in made.nodes if node.name == master).kill()
        source.close()
        again = Place(made, "/")
        again.publish("q", *range(50, 60))
        told = run(of=url)
        again.close()
        assert told["full"] == []
        assert mirror.held(spark, "q") == [str(n) for n in (*range(1, 50, 2), *range(50, 60))]
        with mirror.bulk() as client:
            found = json.loads(b"".join(client.stream("definitions", vhost=mirror.vhost)))
        assert [row["definition"] for row in found["policies"]] == [{"ha-mode": "all"}]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_that_is_killed_again_and_again_repeats_and_loses_nothing(
    run: Run, spark: Any, source: Place, mirror: Place, tmp_path: Path
) -> None:
    source.declare("q")
    source.publish("q", *range(20))
    run()
    done = 0
    for _ in range(2):
        source.publish("q", *range(20 + done, 120 + done))
        done += 100
        source.take("q", *range(15))
        before = mirror.count("q")
        words = ("--source", source.url, "--url", mirror.url, "--state-dir", str(tmp_path / "state"))
        more = ("--master", "local[2]", "--strategy", "event", "--max-records", "20")
        with (tmp_path / "job.log").open("ab") as log:
            command = [sys.executable, "-m", "mirrormq", "pipeline", "mirror", *words, *more]
            job = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        while mirror.count("q") == before:
            assert job.poll() is None, (tmp_path / "job.log").read_text()
            threading.Event().wait(0.02)
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    run("--max-records", "20")
    assert mirror.held(spark, "q") == [str(number) for number in range(30, 220)]


def test_the_job_is_shown_with_the_others(
    run: Run, source: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.declare("q")
    run("--name", "dr")
    assert cli.pipeline(["status", "--json", "--state-dir", str(tmp_path / "state")]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["name"], record["job"], record["state"], record["result"]["queues"]) == (
        "dr",
        "mirror",
        "done",
        1,
    )
