"""Runs a printed command line with this broker's tools in place of those it names.

Where MIRRORMQ_TEST_SHIMS names a folder with programs of the names that people type, those are run. Otherwise
`rabbitmqctl`, `rabbitmq-queues` and the like are `mirrormq ctl`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.cluster.kit import Node

SHIMS = os.environ.get("MIRRORMQ_TEST_SHIMS", "")
CTL = ("rabbitmqctl", "rabbitmq-queues", "rabbitmq-upgrade", "rabbitmq-diagnostics")


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def typed(node: Node, line: str) -> Result:
    """Type a line on a node's machine; `sudo` is nothing to us."""
    words = shlex.split(line)
    if words[0] == "sudo":
        del words[0]
    program, *rest = words
    if SHIMS:
        command = [str(Path(SHIMS) / program), *rest]
    else:
        assert program in CTL, f"there is no {program} here"
        command = [sys.executable, "-P", "-m", "mirrormq", "ctl", *rest]
    environment = {**os.environ, "MIRRORMQ_DATA_DIR": str(node.folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return Result(done.returncode, done.stdout, done.stderr)
