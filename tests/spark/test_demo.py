"""The end of the guided tour: what was published, and is consumed by then, is archived and audited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirrormq.spark.jobs.manifest import Archive

DEMO = [sys.executable, "-P", "-m", "mirrormq", "demo"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_tour_ends_with_an_archive_of_everything_an_audit_and_a_report(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [*DEMO, "--messages", "2000", "--out", str(tmp_path / "out")],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing that was confirmed is lost." in done.stdout
    assert "all copies compared: agreement" in done.stdout
    (out,) = (tmp_path / "out").iterdir()
    for shown in ("archive", "audit/report.html", "analytics/report.html"):
        assert str(out / shown) in done.stdout
        assert (out / shown).exists()
    assert sum(entry.rows for entry in Archive(str(out / "archive")).files()) >= 2000
    assert not [left for left in temporary.iterdir() if left.name.startswith("mirrormq")]
