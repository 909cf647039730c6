"""Runs of jobs remember what they are, one process at a time, and can be looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mirrormq.spark.jobs import cli
from mirrormq.spark.jobs import state as states
from mirrormq.spark.jobs.state import StateRefused


def _record(folder: Path) -> dict[str, object]:
    found = states.read_record(folder)
    assert found is not None
    return found


def test_the_id_of_a_folder_stays_and_the_former_end_is_known(tmp_path: Path) -> None:
    with states.opened(tmp_path / "one", "replay", {"to": "q"}) as state:
        first = state.id
        assert state.former == {}
        state.update(state=states.DONE, result={"messages": 3})
    with states.opened(tmp_path / "one", "replay", {"to": "q"}) as state:
        assert state.id == first
        assert state.former == {"state": "done", "result": {"messages": 3}}


def test_a_folder_is_opened_once_at_a_time(tmp_path: Path) -> None:
    with (
        states.opened(tmp_path / "one", "archive", {}),
        pytest.raises(StateRefused, match="another process works in"),
        states.opened(tmp_path / "one", "archive", {}),
    ):
        pass


def test_a_folder_of_another_job_or_of_other_arguments_is_refused_by_name(tmp_path: Path) -> None:
    with states.opened(tmp_path / "one", "archive", {"queue": "a", "to": "x"}):
        pass
    with (
        pytest.raises(StateRefused, match="belongs to the job archive"),
        states.opened(tmp_path / "one", "replay", {}),
    ):
        pass
    with (
        pytest.raises(StateRefused, match="other values of queue"),
        states.opened(tmp_path / "one", "archive", {"queue": "b", "to": "x"}),
    ):
        pass


def test_a_record_that_cannot_be_read_is_refused_for_the_run_would_be_another_one(tmp_path: Path) -> None:
    with states.opened(tmp_path / "one", "replay", {}):
        pass
    (tmp_path / "one" / states.RECORD).write_text("{")
    with (
        pytest.raises(StateRefused, match=r"run\.json cannot be read"),
        states.opened(tmp_path / "one", "replay", {}),
    ):
        pass


def test_a_run_whose_process_is_gone_shows_as_interrupted(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from mirrormq.spark.jobs import state\n"
        "with state.opened(pathlib.Path(sys.argv[1]), 'archive', {}): os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "dead")], check=False)
    assert _record(tmp_path / "dead")["state"] == states.RUNNING
    with states.opened(tmp_path / "alive", "archive", {}):
        assert {record["name"]: record["state"] for record in states.runs(tmp_path)} == {
            "dead": states.LOST,
            "alive": states.RUNNING,
        }


def test_status_shows_runs_and_how_they_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with states.opened(tmp_path / "one", "archive", {}) as state:
        state.update(state=states.FAILED, error="the disk is full")
    assert cli.pipeline(["status", "--state-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "one" in shown
    assert "failed" in shown
    assert "the disk is full" in shown
    assert cli.pipeline(["status", "--json", "--state-dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["error"] == "the disk is full"
    assert cli.pipeline(["status", "--state-dir", str(tmp_path / "nowhere")]) == 0


def test_an_unknown_job_is_a_misuse_and_the_help_needs_no_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.pipeline(["anlytics"]) == 2
    assert "there is no job 'anlytics'" in capsys.readouterr().err
    assert cli.pipeline(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*cli.JOBS, "status"))
    code = "import sys\nfrom mirrormq.spark.jobs import cli\ncli.pipeline(['help'])\n"
    code += "assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
