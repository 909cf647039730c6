"""The job `mirror` while its source dies under it: it waits, or says what is wrong, and goes on later, with
nothing lost and nothing twice; if there is another source, it goes on with that one. That the next source is
asked when a run begins is shown in `test_mirror_job.py`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from mirrormq.spark.jobs import cli
from mirrormq.testing import Cluster, cluster
from tests.spark.mirrorkit import Place, wait_for

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def west() -> Iterator[Cluster]:
    with cluster(nodes=1) as made:
        yield made


@pytest.fixture(scope="module")
def east() -> Iterator[Cluster]:
    with cluster(nodes=1) as made:
        yield made


@pytest.fixture
def run(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def job(source: str, to: Place, *words: str, code: int = 0) -> dict[str, Any]:
        where = ("--source", source, "--url", to.url, "--state-dir", str(tmp_path / "state"), "--name", "m")
        assert cli.pipeline(["mirror", *where, "--json", *words]) == code, capsys.readouterr().err
        told = capsys.readouterr()
        return {**(json.loads(told.out) if code == 0 else {}), "said": told.err}

    return job


class Meanwhile:
    """What happens beside a job that has no end of its own; the mirror is promoted last, which ends it."""

    def __init__(self, mirror: Place, do: Callable[[], None]) -> None:
        self._mirror = mirror
        self._do = do
        self.problems: list[Exception] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._do()
        except Exception as error:  # noqa: BLE001  (told by the test)
            self.problems.append(error)
        self._mirror.promote()

    def end(self) -> None:
        self._thread.join()
        assert not self.problems, self.problems


def root(made: Cluster) -> Place:
    """The vhost `/` of a cluster."""
    found = Place(made, "%2F")
    found.vhost = "/"
    return found


def url_of(place: Place) -> str:
    return place.url[:-1] + "%2F"


def wait_until_said(folder: Path, text: str) -> None:
    """Wait until the run remembers this."""
    record = folder / "state/m/run.json"
    for _ in range(600):
        if record.exists() and text in record.read_text(encoding="utf-8"):
            return
        threading.Event().wait(0.1)
    raise AssertionError(record.read_text(encoding="utf-8"))


def test_an_event_driven_mirror_waits_for_its_source_and_goes_on(
    run: Run, west: Cluster, east: Cluster, tmp_path: Path
) -> None:
    source, mirror = root(west), Place(east, "waits")
    source.declare("q")
    source.publish("q", *range(10))

    def outage() -> None:
        wait_for(mirror, "q", 10)
        source.publish("q", 10, 11)
        west.nodes[0].kill()
        source.close()
        wait_until_said(tmp_path, "waiting: no node answers")
        west.nodes[0].start()
        again = root(west)
        again.take("q", *range(5))
        again.publish("q", *range(12, 20))
        wait_for(mirror, "q", 15)
        again.close()

    beside = Meanwhile(mirror, outage)
    told = run(url_of(source), mirror, "--strategy", "event", "--sync-interval", "1s", code=1)
    beside.end()
    assert "was promoted" in told["said"]
    assert [body for _, _, body in mirror.drain("q")] == [b"%d" % number for number in range(5, 20)]
    mirror.close()


@pytest.mark.slow
def test_a_run_whose_source_dies_says_so_and_the_next_one_goes_on(
    run: Run, west: Cluster, east: Cluster
) -> None:
    source, mirror = root(west), Place(east, "later")
    source.declare("q")
    source.publish("q", 0)
    run(url_of(source), mirror)
    source.publish("q", *range(1, 120))
    source.take("q", *range(10))

    def death() -> None:
        while mirror.count("q") <= 1:
            threading.Event().wait(0.02)
        west.nodes[0].kill()
        source.close()

    beside = threading.Thread(target=death)
    beside.start()
    told = run(url_of(source), mirror, "--max-records", "5", code=1)
    beside.join()
    assert "no node answers" in told["said"]
    assert "run it again to go on" in told["said"]
    west.nodes[0].start()
    again = root(west)
    again.publish("q", *range(120, 125))
    told = run(url_of(source), mirror, "--max-records", "50")
    again.close()
    assert told["full"] == []
    mirror.promote()
    assert [body for _, _, body in mirror.drain("q")] == [b"%d" % number for number in range(10, 125)]
    mirror.close()


@pytest.mark.slow
def test_an_event_driven_mirror_goes_on_with_the_next_source_when_its_own_dies(
    run: Run, west: Cluster, east: Cluster
) -> None:
    source, mirror = root(west), Place(east, "second")
    source.declare("q")
    source.publish("q", *range(10))
    with cluster(nodes=1) as between:
        relay = Place(between, "relay")
        run(url_of(source), relay, "--name", "relay")

        def change() -> None:
            wait_for(mirror, "q", 10)
            between.nodes[0].kill()
            source.take("q", *range(5))
            source.publish("q", *range(10, 20))
            wait_for(mirror, "q", 15)
            # The other source is followed, too, not only copied.
            source.publish("q", 20, 21)
            source.take("q", 0)
            wait_for(mirror, "q", 16)

        beside = Meanwhile(mirror, change)
        sources = f"{relay.url},{url_of(source)}"
        told = run(sources, mirror, "--strategy", "event", "--sync-interval", "1s", code=1)
        beside.end()
    assert "asking the next source" in told["said"]
    assert "was promoted" in told["said"]
    assert [body for _, _, body in mirror.drain("q")] == [b"%d" % number for number in range(6, 22)]
    source.close()
    mirror.close()
