"""A MirrorMQ node in its own process on a free loopback port, configured like a RabbitMQ, without admin API.

For tests that play the same scripts against both brokers. `running()` returns when the node accepts AMQP and
leaves nothing behind; the tests of everything else use the pytest plugin `mirrormq.testing`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.rabbitmq import free_ports

STOP_TIMEOUT_S = 30.0


class MirrorNode(NamedTuple):
    """Where the node listens, and its process."""

    host: str
    port: int
    pid: int


@contextlib.contextmanager
def running(config: Sequence[str] = (), definitions: dict[str, Any] | None = None) -> Iterator[MirrorNode]:
    """Start a node with lines of rabbitmq.conf and the definitions of a RabbitMQ; stop it in the end."""
    with tempfile.TemporaryDirectory(prefix="mirrormq-") as folder:
        [port] = free_ports(1)
        lines = [f"listeners.tcp.1 = 127.0.0.1:{port}", *config]
        if definitions is not None:
            Path(folder, "definitions.json").write_text(json.dumps(definitions))
            lines.append(f"load_definitions = {folder}/definitions.json")
        Path(folder, "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        process = _start(Path(folder))
        try:
            yield MirrorNode("127.0.0.1", port, process.pid)
        finally:
            _stop(process)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "mirrormq", "serve", "--no-admin", "--ready-fd", str(writing)]
    command += ["--config", str(folder / "rabbitmq.conf"), "--data", str(folder / "data")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, pass_fds=[writing], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    os.close(writing)
    with os.fdopen(reading, "rb") as ready:
        announced = ready.readline()  # ends without a line if the process ends
    if not announced:
        _stop(process)
        raise RuntimeError(f"mirrormq serve did not start:\n{(folder / 'log').read_text(errors='replace')}")
    return process


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
