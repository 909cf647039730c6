"""What a person sees of a job: one line that changes on a real terminal, few lines elsewhere, or nothing."""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import re
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from mirrormq.spark.jobs import frame
from mirrormq.spark.jobs.frame import Job, Work, main_of
from mirrormq.spark.jobs.progress import Progress

WIDE = 40


class Terminal:
    """A terminal of 40 columns, and what has come out of it."""

    def __init__(self) -> None:
        self._screen, end = os.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDE, 0, 0))
        self.out: TextIO = os.fdopen(end, "w", encoding="utf-8")

    def seen(self) -> str:
        """What was written since the last look; something has to be."""
        return os.read(self._screen, 65_536).decode()

    def close(self) -> str:
        """What was written in the end."""
        self.out.write("$")
        self.out.close()
        found = self.seen()
        os.close(self._screen)
        return found.removesuffix("$")


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.out.close()


def _progress(out: Any, **how: Any) -> tuple[Progress, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    return Progress("archive", told.append, out, **how), told


def test_a_terminal_shows_one_line_that_is_written_over_and_goes_in_the_end(terminal: Terminal) -> None:
    progress, _ = _progress(terminal.out)
    progress.show("10 rows in 1 batches")
    first = terminal.seen()
    assert re.fullmatch(r"\rarchive: 10 rows in 1 batches \(\d+ s\)", first)
    progress.show("20 rows")
    second = terminal.seen()
    assert re.fullmatch(r"\rarchive: 20 rows \(\d+ s\) +", second)
    assert len(second) == len(first), "the longer line before is written over as a whole"
    progress.say("a line that stays")
    stays = terminal.seen()
    assert re.fullmatch(r"\r +\rarchive: a line that stays\r\n", stays)
    progress.show("more")
    terminal.seen()
    progress.end()
    assert re.fullmatch(r"\r +\r", terminal.seen())


def test_a_line_that_is_wider_than_the_terminal_does_not_begin_a_new_one(terminal: Terminal) -> None:
    progress, _ = _progress(terminal.out)
    progress.show("waiting: no node answers at " + ", ".join(f"127.0.0.{n}:5672" for n in range(20)))
    shown = terminal.seen()
    assert shown.startswith("\rarchive: waiting: no node answers")
    assert len(shown) <= WIDE


def test_a_quiet_job_shows_nothing_on_a_terminal_and_remembers_all_the_same(terminal: Terminal) -> None:
    progress, told = _progress(terminal.out, is_quiet=True)
    progress.show("archiving", rows=3)
    progress.say("a line")
    progress.end()
    assert told == [{"text": "archiving", "rows": 3}]
    assert terminal.close() == ""


def test_where_nothing_can_be_written_over_there_are_few_lines_and_no_control_characters() -> None:
    out = io.StringIO()
    progress, told = _progress(out)
    for number in range(50):
        progress.show(f"{number} rows")
    progress.end()
    assert re.fullmatch(r"archive: 0 rows \(\d+ s\)\n", out.getvalue())
    assert len(told) == 50


@pytest.mark.parametrize("quiet", [True, False])
def test_a_job_shows_its_progress_on_the_terminal_and_its_result_elsewhere(
    *,
    quiet: bool,
    terminal: Terminal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(work: Work) -> dict[str, Any]:
        work.progress.show("half of it", rows=5)
        return {"rows": 10}

    def no_arguments(made: argparse.ArgumentParser) -> None:
        """It has none of its own."""

    monkeypatch.setattr("sys.stderr", terminal.out)
    words = ["--state-dir", str(tmp_path), "--json", *(["--quiet"] if quiet else [])]
    assert main_of(Job("archive", "A job.", no_arguments, run), words) == frame.DONE
    assert capsys.readouterr().out == '{"rows": 10}\n'
    seen = terminal.close()
    assert seen == "" if quiet else re.fullmatch(r"\rarchive: half of it \(0 s\)\r +\r", seen)
