"""Runs several nodes as one foreground process: shows their lines, passes signals on, reports their ends.

| what happens | what is done |
|---|---|
| all nodes are ready | said once |
| a node ends before that | the others are stopped: a start is whole or fails |
| a node ends later | reported with the command that starts it again; the others go on |
| SIGTERM, SIGINT | passed on to all: they drain; the second one passes on too: they stop at once |
| SIGHUP | without a terminal passed on: they reload; with one it is gone, and they stop |
| SIGTSTP (Ctrl-Z) | the nodes stop and continue with this process, or they would block on their output |
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from mirrormq.base import limits
from mirrormq.runtime.nodechild import NodeChild

FAILED = 1
ENDING = (signal.SIGTERM, signal.SIGINT)
HEARD = (*ENDING, signal.SIGHUP, signal.SIGTSTP)


class Supervisor:
    """The nodes and what they were told."""

    def __init__(self, again: Callable[[str], str]) -> None:
        """Hear signals from now on; `again` says how a node of this name is started again."""
        self._again = again
        self._children: list[NodeChild] = []
        self._selector = selectors.DefaultSelector()
        self._is_ready = False
        self._is_stopping = False
        self._failures = 0
        self._width = 0
        # A signal is a byte on a socket: it is handled between two other things, never within one.
        self._signals, self._bell = socket.socketpair()
        self._bell.setblocking(False)
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)
        self._bell_before = signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        # What the parent had ignored (nohup) stays ignored.
        heard = [number for number in HEARD if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, _nothing) for number in heard}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing behind, however it ended."""
        for child in self._children:
            if child.code is None:
                child.signal(signal.SIGKILL)
                child.bury()
        signal.set_wakeup_fd(self._bell_before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._selector.close()
        self._signals.close()
        self._bell.close()

    def add(self, child: NodeChild) -> None:
        """Watch a node that was started."""
        self._children.append(child)
        self._width = max(self._width, len(_short(child)))
        self._selector.register(child.output, selectors.EVENT_READ, lambda: self._on_output(child))
        self._selector.register(child.ready, selectors.EVENT_READ, lambda: self._on_ready(child))

    def run(self, on_ready: Callable[[Sequence[NodeChild]], None]) -> int:
        """Work until no node is left; returns the exit code."""
        patience: float | None = limits.local_wait_ms / 1000
        while self._left():
            events = self._selector.select(None if self._is_ready or self._is_stopping else patience)
            if not events and patience is not None:
                patience = None
                names = ", ".join(child.name for child in self._left() if child.announced is None)
                self._say(f"still waiting for {names}.")
            for key, _ in events:
                key.data()
            if not self._is_ready and not self._is_stopping:
                self._is_ready = all(child.announced is not None for child in self._children)
                if self._is_ready:
                    on_ready(self._children)
        if not self._is_stopping:
            self._say("no node is left.")
        return FAILED if self._failures else 0

    def _left(self) -> list[NodeChild]:
        return [child for child in self._children if child.code is None]

    def _on_ready(self, child: NodeChild) -> None:
        if child.read_ready():
            self._selector.unregister(child.ready)

    def _on_output(self, child: NodeChild) -> None:
        lines = child.read_lines()
        if lines is not None:
            self._show(child, lines)
            return
        self._selector.unregister(child.output)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.ready)
        self._show(child, child.bury())
        self._on_end(child)

    def _on_end(self, child: NodeChild) -> None:
        if self._is_stopping:
            self._failures += child.code != 0
            return
        self._failures += 1
        if not self._is_ready:
            self._say(f"node {child.name} did not start ({child.end()}): the others are stopped.")
            self._stop()
            return
        left = len(self._left())
        others = f"{left} of {len(self._children)} go on" if left else "it was the last one"
        self._say(f"node {child.name} ended ({child.end()}); {others}. It starts again with:")
        self._say(f"  {self._again(child.name)}")

    def _on_signals(self) -> None:
        for number in self._signals.recv(64):
            if number in ENDING:
                self._stop()
            elif number == signal.SIGHUP:
                if os.isatty(2):
                    self._stop()
                else:
                    self._tell(signal.SIGHUP)
            elif number == signal.SIGTSTP:
                self._tell(signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGSTOP)
                self._tell(signal.SIGCONT)

    def _stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._say(f"stopping {len(self._left())} nodes; once more stops them at once.")
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for child in self._children:
            child.signal(number)

    def _show(self, child: NodeChild, lines: Sequence[bytes]) -> None:
        head = f"{_short(child):<{self._width}} | ".encode()
        _write(b"".join(head + line + b"\n" for line in lines))

    def _say(self, text: str) -> None:
        _write(f"mirrormq: {text}\n".encode())


def _short(child: NodeChild) -> str:
    return child.name.partition("@")[0]


def _write(data: bytes) -> None:
    """Write to standard error; who reads it may be gone, which must not take the nodes down."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]


def _nothing(_number: int, _frame: object) -> None:
    """The bell has rung already."""
