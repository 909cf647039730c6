"""The benchmark programs keep working: they start a node, load it and print their tables."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the load generator"),
]


def measure(module: str, *options: str) -> str:
    command = [sys.executable, "-m", module, "--brokers", "mirrormq", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("row", ["single-16", "persistent-16"])
def test_the_comparison_receives_every_message_and_prints_a_row(row: str, tmp_path: Path) -> None:
    files = ["--out", str(tmp_path / "runs.jsonl"), "--table", str(tmp_path / "table.md")]
    out = measure(
        "bench.compare", "--rows", row, "--runs", "1", "--seconds", "0.3", "--max-other", "1", *files
    )
    [line] = [line for line in out.splitlines() if "| mirrormq |" in line]
    assert line.split(" | ")[2] == "1"


def test_the_footprint_shows_memory_and_the_curve_of_many_queues(tmp_path: Path) -> None:
    sizes = [
        "--connections",
        "20",
        "--queues",
        "60",
        "--step",
        "20",
        "--out",
        str(tmp_path / "footprint.json"),
    ]
    out = measure("bench.footprint", *sizes)
    [curve] = [line for line in out.splitlines() if line.startswith("| queues declared and bound")]
    assert len(curve.split("|")[2].split()) == 3
