"""Promises of the guided tour and of the cluster that `./run` starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import localrun

DEMO = [sys.executable, "-P", "-m", "mirrormq", "demo"]


@pytest.mark.timeout(180)
def test_the_tour_kills_the_master_loses_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--messages", "4000", "--no-pipeline"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Now: kill -9" in done.stdout
    shown = {
        line[:29].strip(): line[29:].split()[0] for line in done.stdout.splitlines() if line[29:].split()
    }
    assert shown["confirmed by the broker"] == shown["confirmed and received"] == "4,000"
    assert shown["confirmed and lost"] == "0"
    assert shown["in the order of publishing"] == "yes"
    assert "Nothing that was confirmed is lost." in done.stdout
    assert not any(tmp_path.iterdir())


def test_every_queue_of_a_local_cluster_is_mirrored_and_the_banner_says_so(tmp_path: Path) -> None:
    with localrun.running(tmp_path, "--port-base", str(localrun.some_base())) as up:
        assert "mirrored on all nodes by the policy ha-all" in up.text
        channel = up.connect(0).channel()
        channel.queue_declare("hello", durable=True)
        data = str(tmp_path / "data")
        words = ["ctl", "--data", data, "-n", "mirrormq-2", "list_queues", "name", "in_sync"]
        shown = subprocess.run(
            [*localrun.MIRRORMQ, *words], capture_output=True, text=True, check=True
        ).stdout
        assert all(f"mirrormq-{number}@localhost" in shown for number in (1, 2, 3)), shown
