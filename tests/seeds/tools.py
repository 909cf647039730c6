"""Runs a printed command line with this broker's tools in place of those it names.

`rabbitmqctl`, `rabbitmq-queues` and the like are the programs that `mirrormq shims` writes.
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.cluster.kit import Node


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@functools.cache
def shims() -> Path:
    """A folder with programs of the names that people type."""
    folder = Path(tempfile.mkdtemp(prefix="mirrormq-shims-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-P", "-m", "mirrormq", "shims", str(folder)], check=True, capture_output=True
    )
    return folder


def typed(node: Node, line: str) -> Result:
    """Type a line on a node's machine; `sudo` is nothing to us."""
    words = shlex.split(line)
    if words[0] == "sudo":
        del words[0]
    program, *rest = words
    command = [str(shims() / program), *rest]
    environment = {**os.environ, "MIRRORMQ_DATA_DIR": str(node.folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return Result(done.returncode, done.stdout, done.stderr)
