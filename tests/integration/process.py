"""Real node processes for the integration tests: started with any options, watched, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika

SERVE = [sys.executable, "-m", "mirrormq", "serve"]
STOP_SECONDS = 60
QUIET = ("--set", "events=off", "--set", "samples=off")
"""For tests that look at every record there is: the node adds none of its own."""


@dataclass
class Process:
    """A running `mirrormq serve`."""

    popen: subprocess.Popen[bytes]
    folder: Path
    log_path: Path
    announced: dict[str, Any]
    clients: list[Any] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def port(self) -> int:
        return urlsplit(self.announced["amqp"][0]).port or 0

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def connect(self, port: int = 0, user: str = "guest", password: str = "guest", **options: Any) -> Any:
        """Log in with pika; closed with the node at the latest."""
        options.setdefault("credentials", pika.PlainCredentials(user, password))
        parameters = pika.ConnectionParameters(
            "127.0.0.1", port or self.port, connection_attempts=1, **options
        )
        made = pika.BlockingConnection(parameters)
        self.clients.append(made)
        return made

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the process; its exit code."""
        return self.popen.wait(STOP_SECONDS)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()


@contextlib.contextmanager
def running(
    folder: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
    command: list[str] = SERVE,
) -> Iterator[Process]:
    """Start a node on a free port with its data in `folder`, wait until it is ready, kill it in the end."""
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / "stderr.log"
    reading, writing = os.pipe()
    words = [*command, "--data", str(folder / "data"), "--ready-fd", str(writing), *options]
    if not any(option in words for option in ("--listen", "--port-base", "--config")):
        words += ["--listen", "127.0.0.1:0"]
    if "--no-admin" not in words and "--port-base" not in words:
        words += ["--set", "management.tcp.port=0", "--set", "management.tcp.ip=127.0.0.1"]
    with log_path.open("ab") as log:
        popen = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writing],
            env={**os.environ, **(environment or {})},
            preexec_fn=before,  # noqa: PLW1509  (sets limits in the child, nothing else)
        )
    os.close(writing)
    try:
        with os.fdopen(reading) as ready:
            line = ready.readline()
        assert line, f"the node did not start:\n{log_path.read_text()}"
        process = Process(popen, folder, log_path, json.loads(line))
        try:
            yield process
        except BaseException as error:
            error.add_note(f"the node said:\n{process.log[-4000:]}")
            raise
        finally:
            for client in process.clients:
                with contextlib.suppress(Exception):
                    client.close()
    finally:
        popen.kill()
        popen.wait()


def failing(*options: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `mirrormq serve` where it cannot start."""
    return subprocess.run(
        [*SERVE, *options],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=STOP_SECONDS,
        check=False,
    )


def sentence(result: subprocess.CompletedProcess[str]) -> str:
    """The one sentence a failed start leaves on standard error, below its log lines."""
    said = [line for line in result.stderr.splitlines() if line.startswith("mirrormq: ")]
    assert result.returncode == 1, result
    assert len(said) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return said[0].removeprefix("mirrormq: ")
