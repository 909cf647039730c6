"""`mirrormq up` as a process of the tests: started with free ports, watched, and never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika

from mirrormq.runtime.localcluster import local_nodes
from mirrormq.runtime.ports import free_base

MIRRORMQ = [sys.executable, "-P", "-m", "mirrormq"]
UP = [*MIRRORMQ, "up", "--set", "management.tcp.ip=127.0.0.1", "--set", "shutdown_timeout=2s"]
SECONDS = 60


@dataclass
class Up:
    """A running `mirrormq up`."""

    popen: subprocess.Popen[bytes]
    output: Path
    announced: list[dict[str, Any]]
    clients: list[Any] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [node["pid"] for node in self.announced]

    @property
    def text(self) -> str:
        """What it has shown so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def connect(self, place: int) -> Any:
        """Log in with pika; closed at the latest when the nodes are stopped by `stop` or in the end."""
        url = self.announced[place]["amqp"][0]
        self.clients.append(pika.BlockingConnection(pika.URLParameters(f"{url}/%2F")))
        return self.clients[-1]

    def hang_up(self) -> None:
        for client in self.clients:
            with contextlib.suppress(Exception):
                client.close()

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self) -> int:
        return self.popen.wait(SECONDS)

    def stop(self) -> int:
        self.hang_up()
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait_for(self, *parts: str) -> None:
        """Follow the output until a line with all these parts has come."""
        command = ["tail", "-n", "+1", "-F", "--pid", str(self.popen.pid), str(self.output)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tail:
            assert tail.stdout is not None
            try:
                found = any(all(part in line for part in parts) for line in tail.stdout)
                assert found, f"{parts} was not said:\n{self.text}"
            finally:
                tail.kill()


def some_base(count: int = 3) -> int:
    """A base all of whose ports are free, below those the kernel hands out, another one in each process."""
    wanted = 2_000 + os.getpid() % 1_000 * 10
    return free_base(
        wanted, lambda base: [port for node in local_nodes(count, base, Path()) for port in node.ports]
    )


@contextlib.contextmanager
def running(folder: Path, *options: str, command: Sequence[str] = UP) -> Iterator[Up]:
    """Start it with its data below `folder`, wait until all nodes are ready; killed in the end."""
    output = folder / "output.log"
    reading, writing = os.pipe()
    with output.open("ab") as log:
        popen = subprocess.Popen(
            [*command, "--data", str(folder / "data"), "--ready-fd", str(writing), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writing],
        )
    os.close(writing)
    pids: list[int] = []
    try:
        with os.fdopen(reading) as ready:
            announced = [json.loads(line) for line in ready]
        assert announced, f"the nodes did not start:\n{output.read_text()}"
        pids = [node["pid"] for node in announced]
        up = Up(popen, output, announced)
        try:
            yield up
        finally:
            up.hang_up()
    except BaseException as error:
        error.add_note(f"it said:\n{output.read_text()[-6000:]}")
        raise
    finally:
        popen.kill()
        popen.wait()
        for pid in pids:
            wait_until_gone(pid)


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            assert select.select([handle], [], [], SECONDS)[0], f"process {pid} still runs"
        finally:
            os.close(handle)


def failing(*options: str) -> str:
    """Run it where it cannot start; its one sentence."""
    result = subprocess.run([*UP, *options], capture_output=True, text=True, timeout=SECONDS, check=False)
    said = [line for line in result.stderr.splitlines() if line.startswith("mirrormq: ")]
    assert result.returncode == 1, result
    assert len(said) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return said[0].removeprefix("mirrormq: ")
