"""What all jobs share: addresses are settled and checked before anything is written, runs that are done."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mirrormq.spark.jobs import frame
from mirrormq.spark.jobs.frame import Job, Work, main_of


class Noted:
    """A job that does nothing but note what it was given."""

    def __init__(self, **about: Any) -> None:
        self.works: list[tuple[str, dict[str, str]]] = []
        self.job = Job("replay", "A job.", self.arguments, self.run, **about)

    def arguments(self, made: argparse.ArgumentParser) -> None:
        made.add_argument("--to")
        made.add_argument("--dry-run", action="store_true")

    def run(self, work: Work) -> dict[str, Any]:
        self.works.append((work.vhost, work.contact))
        return {"count": len(self.works)}


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIRRORMQ_URL", raising=False)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--url", "amqp://ann:s3cret@host/"), "a password in the option 'url'"),
        (("--url", "amqp://ann:s3cret"), "no host:port"),
        (("--url", "amqp://host/?password=s3cret"), "an option of its own"),
        (("--to", "s3://key:s3cret@bucket/x"), "leave it to the environment"),
    ],
)
def test_a_password_in_an_address_is_refused_before_anything_is_written(
    words: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = Noted(identity=("to",))
    assert main_of(noted.job, [*words, "--state-dir", str(tmp_path)]) == frame.MISUSED
    said = capsys.readouterr().err
    assert complaint in said
    assert "s3cret" not in said
    assert not noted.works
    assert not list(tmp_path.rglob("*"))


def test_a_password_in_the_variable_is_refused_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRRORMQ_URL", "amqp://ann:s3cret@host/")
    assert main_of(Noted().job, ["--state-dir", str(tmp_path)]) == frame.MISUSED
    assert not list(tmp_path.rglob("*"))


def test_a_job_works_with_the_address_of_the_variable_unless_it_is_given_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, words = Noted(), ["--quiet", "--state-dir", str(tmp_path)]
    main_of(noted.job, words)
    monkeypatch.setenv("MIRRORMQ_URL", "amqp://guest@far/of%2Fwest")
    main_of(noted.job, words)
    main_of(noted.job, [*words, "--url", "amqp://near/east"])
    assert noted.works == [
        ("/", {}),
        ("of/west", {"url": "amqp://guest@far/of%2Fwest"}),
        ("east", {"url": "amqp://near/east"}),
    ]
    # Runs on different brokers remember in different folders.
    assert len(list(tmp_path.iterdir())) == 3


def test_a_run_that_is_done_is_not_done_again_and_a_dry_run_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = Noted(once=True, identity=("dry_run",))

    def result(*words: str) -> dict[str, Any]:
        main_of(noted.job, [*words, "--json", "--quiet", "--state-dir", str(tmp_path)])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    assert [result(), result()] == [{"count": 1}, {"count": 1, "already": True}]
    assert [result("--dry-run"), result("--dry-run")] == [{"count": 2}, {"count": 3}]


def test_a_folder_that_cannot_be_written_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    assert main_of(Noted().job, ["--state-dir", str(tmp_path / "file")]) == frame.FAILED
    assert "nothing can be remembered in" in capsys.readouterr().err


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock that is not UTC's."""
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "America/St_Johns")
    time.tzset()
    yield
    monkeypatch.undo()
    assert os.environ.get("TZ") == before
    time.tzset()


class Row(dict[str, Any]):
    """A row as Spark gives it."""

    def asDict(self) -> dict[str, Any]:
        return self


@pytest.mark.usefixtures("far_away")
def test_times_of_collected_rows_are_in_utc_wherever_the_machine_is() -> None:
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    local = datetime.fromtimestamp(noon.timestamp())  # as Spark makes it: without a zone
    (row,) = frame.told([Row(at=local, name="q", none=None)])  # type: ignore[list-item]
    assert row == {"at": noon, "name": "q", "none": None}
    assert f"{row['at']:%H:%M}" == "12:00"
