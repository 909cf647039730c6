"""The last step of the tour: Spark reads what was published from the mirrors, and reports on it.

The messages are out of their queue by then. A cursor that was opened before the first of them has kept their
records: that is what an archive of a queue with busy consumers is made by.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mirrormq.client.bulk import BulkClient, Target

RUN = "demo"
"""Name of the archive's run: its cursor is named after it."""
NOT_THERE = 69
"""Exit code of a job on a machine without Spark or Java."""


class Step(NamedTuple):
    """One job."""

    what: str
    words: tuple[str, ...]
    told: Callable[[dict[str, Any]], str]
    shown: str
    """What of its folder to look at."""


class Pipeline:
    """The jobs on the tour's queue."""

    def __init__(self, queue: str, ports: Sequence[int], out: Path, say: Callable[[str], None]) -> None:
        """What the jobs write stays in `out`."""
        self._queue = queue
        self._hosts = [("127.0.0.1", port) for port in ports]
        self._out = out
        self._say = say

    def hold(self) -> None:
        """Keep every record from now on until it is archived."""
        with BulkClient(Target(self._hosts)) as client:
            client.call("cursor_open", vhost="/", queue=self._queue, name=f"archive-{RUN}", at="earliest")

    def run(self, confirmed: int) -> int:
        """All jobs, one after the other; returns the exit code."""
        for step in self._steps():
            self._say(f"     mirrormq pipeline {' '.join(step.words)}")
            code, result, error = self._job(step)
            if code == NOT_THERE:
                self._say(f"     left out: {error}")
                return 0
            if code:
                self._say(f"     failed (exit code {code}): {error}")
                return 1
            self._say(f"       {step.told(result)}")
            self._say(f"       {self._out / step.shown}")
            if step.what == "archive" and result["rows"] < confirmed:
                self._say(f"LOST: {confirmed - result['rows']} confirmed messages are not in the archive")
                return 1
        return 0

    def _steps(self) -> list[Step]:
        out = self._out
        common = ("--queue", self._queue)
        return [
            Step(
                "archive",
                ("archive", *common, "--name", RUN, "--to", str(out / "archive")),
                lambda found: f"{found['rows']:,} messages in {found['files']} Parquet files",
                "archive",
            ),
            Step(
                "audit",
                ("audit", *common, "--out", str(out / "audit")),
                lambda found: f"all copies compared: {found['verdict']}",
                "audit/report.html",
            ),
            Step(
                "analytics",
                ("analytics", "--out", str(out / "analytics")),
                lambda _: "throughput, latencies and the fail-over on a time line",
                "analytics/report.html",
            ),
        ]

    def _job(self, step: Step) -> tuple[int, dict[str, Any], str]:
        hosts = ",".join(f"{host}:{port}" for host, port in self._hosts)
        words = [*step.words, "--url", f"amqp://guest@{hosts}/", "--state-dir", str(self._out / "runs")]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mirrormq", "pipeline", *words, "--json", "--quiet"],
            env={**os.environ, "MIRRORMQ_PASSWORD": "guest"},
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stderr.strip().splitlines()
        is_told = done.returncode == 0 and done.stdout.strip()
        return done.returncode, json.loads(done.stdout) if is_told else {}, said[-1] if said else ""
