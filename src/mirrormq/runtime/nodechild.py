"""A `mirrormq serve` that runs for this process: its output line by line, its readiness, its end.

Guarantee: it does not outlive this process. Its standard input is a pipe whose other end only this process
has, and it stops when that ends, however this process ended. It is the leader of its own session, so the keys
of a terminal reach this process alone, which then decides what its nodes are told.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mirrormq.base import limits


class NodeChild:
    """One node and its pipes."""

    def __init__(self, name: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it."""
        self.name = name
        self.announced: dict[str, Any] | None = None
        """What it said when it was ready."""
        self.code: int | None = None
        """How it ended: its exit code, or a signal's number as a negative one."""
        self._lines = Lines()
        self._said = b""
        self.ready, writing = os.pipe()
        command = [sys.executable, "-P", "-m", "mirrormq", "serve", *words]
        try:
            self._process = subprocess.Popen(
                [*command, "--stop-on-eof", "--ready-fd", str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[writing],
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            os.close(self.ready)
            raise
        finally:
            os.close(writing)
        assert self._process.stdout is not None
        self.output = self._process.stdout.fileno()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def read_ready(self) -> bool:
        """Take what it says about its readiness; True when that is complete."""
        data = os.read(self.ready, 65_536)
        self._said += data
        if data and b"\n" not in self._said:
            return False
        # Without a line the node has ended instead, which its output tells.
        self.announced = json.loads(self._said) if self._said else None
        return True

    def read_lines(self) -> list[bytes] | None:
        """Take the whole lines of its output; None when the process has ended."""
        data = os.read(self.output, 65_536)
        return self._lines.add(data) if data else None

    def bury(self) -> list[bytes]:
        """After the end of its output: wait for its end, and return what it left unfinished."""
        self.code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        os.close(self.ready)
        return self._lines.rest()

    def signal(self, number: signal.Signals) -> None:
        """Tell it something, if it is still there."""
        if self.code is None:
            self._process.send_signal(number)

    def end(self) -> str:
        """Say how it ended."""
        assert self.code is not None, self.name
        if self.code >= 0:
            return f"exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"signal {-self.code}, {signal.Signals(-self.code).name}"
        return f"signal {-self.code}"


class Lines:
    """Cuts a stream into lines of bounded length."""

    def __init__(self) -> None:
        self._held = b""

    def add(self, data: bytes) -> list[bytes]:
        """Take what has come; returns the lines that are whole now."""
        *whole, self._held = (self._held + data).split(b"\n")
        if len(self._held) > limits.local_line_bytes_max:
            whole.append(self._held)
            self._held = b""
        return whole

    def rest(self) -> list[bytes]:
        """Return what has no end."""
        held, self._held = self._held, b""
        return [held] if held else []
