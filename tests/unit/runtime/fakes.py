"""A small node without AMQP: it echoes lines, so that driver and listener can be tested without a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirrormq.base.types import Now, Peer
from mirrormq.node.effects import Effects
from mirrormq.runtime.logs import Log, Target


class EchoNode:
    """Answers every byte with itself; some words have an effect.

    `pause` stops reading, `close` hangs up, `boom` is a mistake of ours, `flush` waits for the disk.
    """

    def __init__(self) -> None:
        self.effects = Effects()
        self.peers: dict[int, Peer] = {}
        self.inputs: list[tuple[Any, ...]] = []
        self.passes = 0
        self.left_over = 0
        self.reads_quietly = False
        self.timer: int | None = None
        self.heard = asyncio_free_signal()
        self._output: dict[int, bytearray] = {}
        self._dirty: set[int] = set()

    @property
    def needs_pass(self) -> bool:
        return self.left_over > 0

    def client_open(self, now: Now, conn: int, peer: Peer) -> None:
        self.peers[conn] = peer
        self._output[conn] = bytearray()
        self._hear("open", conn)

    def client_bytes(self, now: Now, conn: int, data: memoryview) -> None:
        taken = bytes(data)
        if b"boom" in taken:
            raise RuntimeError("boom")
        if b"flush" in taken:
            self.effects.append("log", taken)
            self.effects.flush("log", conn)
            return
        self.say(conn, taken)
        if b"pause" in taken:
            self.effects.pause(conn)
        if b"close" in taken:
            self.effects.close(conn)
        self._hear("bytes", conn, taken)

    def client_writable(self, now: Now, conn: int) -> None:
        self._hear("writable", conn)

    def client_paused(self, now: Now, conn: int) -> None:
        self._hear("paused", conn)

    def client_closed(self, now: Now, conn: int) -> None:
        self._output.pop(conn)
        self._hear("closed", conn)

    def disk_done(self, now: Now, token: int) -> None:
        self.say(token, b"flushed")
        self._hear("disk", token)

    def disk_read(self, now: Now, token: int, data: bytes | None, error: str | None) -> bool:
        self._hear("read", token, data, error)
        return not self.reads_quietly

    def work_done(self, now: Now, token: int, result: Any) -> None:
        self._hear("work", token, result)

    def gauges(self, now: Now, memory: int, disk_free: int, *, is_full: bool) -> None:
        self._hear("gauges", memory, disk_free)

    def tick(self, now: Now) -> None:
        self._hear("tick")

    def on_timer(self, now: Now) -> None:
        self.timer = None
        self._hear("timer")

    def next_timer(self) -> int | None:
        return self.timer

    def end_pass(self, now: Now) -> None:
        self.passes += 1
        self.left_over = max(0, self.left_over - 1)
        for conn in sorted(self._dirty & self._output.keys()):
            self.effects.write(conn)
        self._dirty.clear()

    def take_output(self, conn: int) -> list[bytes]:
        data = bytes(self._output[conn])
        self._output[conn].clear()
        return [data] if data else []

    def admin(self, now: Now, request: Any, done: Callable[[Any], None]) -> None:
        done(request)

    def hand_over(self, now: Now, done: Callable[[], None]) -> None:
        done()

    def drain(self, now: Now, reason: str) -> None:
        for conn in self._output:
            self.say(conn, reason.encode())
            self.effects.write(conn)
            self.effects.close(conn)

    def say(self, conn: int, data: bytes) -> None:
        self._output[conn] += data
        self._dirty.add(conn)

    def _hear(self, *what: Any) -> None:
        self.inputs.append(what)
        self.heard(what)


def asyncio_free_signal() -> Callable[[tuple[Any, ...]], None]:
    """A hook that does nothing until a test replaces it."""
    return lambda _what: None


class Lines(Target):
    """Keeps log lines in memory."""

    def __init__(self) -> None:
        super().__init__("debug", "plaintext")
        self.written: list[str] = []

    def write(self, line: bytes) -> None:
        self.written.append(line.decode())


def memory_log() -> tuple[Log, list[str]]:
    lines = Lines()
    return Log([lines]), lines.written
