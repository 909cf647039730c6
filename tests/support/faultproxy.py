"""A TCP proxy between two nodes that misbehaves on command: cuts, delays, narrows and resets their links.

It runs in a thread of its own and needs no rights on the machine. A cut closes no socket: bytes stop, as on a
network that lost its path, and when it heals they go on where they stopped, as TCP goes on by sending again.
`cut(lose=True)` is the other thing that happens to a path: its connections stay open and dead for ever, while
new ones work once it has healed. When a command returns, it is in force. Where several nodes connect to one,
each of them can have a path with its own faults (`find_path`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal

Direction = Literal["forward", "back"]
"""forward: from who connects to the proxy to the target."""

BOTH: tuple[Direction, ...] = ("forward", "back")
READ_BYTES = 64 * 1024
HELD_BYTES_MAX = 4 * 1024 * 1024
"""Bytes a delayed direction of one connection keeps; beyond it the sender's socket fills up."""


class Path:
    """The faults of some of the connections through a proxy. Commands come from any thread."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self.wait_s = 0.0
        self.rate = 0.0
        self.pairs: set[_Pair] = set()
        self.gates = {direction: asyncio.Event() for direction in BOTH}
        for gate in self.gates.values():
            gate.set()

    def cut(self, *directions: Direction, lose: bool = False) -> None:
        """Let nothing pass, in one direction or in both; nobody can connect either."""

        def work() -> None:
            for direction in directions or BOTH:
                self.gates[direction].clear()
            for pair in self.pairs if lose else ():
                pair.is_lost = True

        self._proxy.do(work)

    def heal(self) -> None:
        """End all cuts, delays and limits of rate."""

        def work() -> None:
            self.wait_s = self.rate = 0.0
            for gate in self.gates.values():
                gate.set()

        self._proxy.do(work)

    def delay(self, seconds: float) -> None:
        """Let bytes arrive this much later, in each direction."""
        self._proxy.do(lambda: setattr(self, "wait_s", seconds))

    def throttle(self, bytes_per_second: float) -> None:
        """Let no more than this pass, per connection and direction; 0 = as much as comes."""
        self._proxy.do(lambda: setattr(self, "rate", bytes_per_second))

    def reset(self) -> None:
        """End every connection with a reset on both sides; new ones are accepted."""

        def work() -> None:
            for pair in list(self.pairs):
                pair.reset()

        self._proxy.do(work)


FindPath = Callable[[tuple[str, int]], Path | None]
"""Tells by the address of who connects which path that is; None refuses the connection."""


class FaultProxy:
    """Listens on loopback and connects to `target` for everybody who connects to it."""

    def __init__(
        self,
        target: tuple[str, int],
        listen: tuple[str, int] = ("127.0.0.1", 0),
        find_path: FindPath | None = None,
    ) -> None:
        self.target = target
        self.host, self.port = listen
        self.accepted = 0
        """Connections accepted so far."""
        self.path = Path(self)
        """The one of everybody, if no other is found for him."""
        self._find_path = find_path or (lambda _: self.path)
        self._pairs: set[_Pair] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self._thread.start()
        self.do(self._start)
        self.cut, self.heal, self.delay = self.path.cut, self.path.heal, self.path.delay
        self.throttle, self.reset = self.path.throttle, self.path.reset

    @property
    def address(self) -> tuple[str, int]:
        """Where to connect."""
        return self.host, self.port

    def close(self) -> None:
        """End everything."""

        async def work() -> None:
            self._server.close()
            for pair in list(self._pairs):
                pair.reset()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(work(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # In the proxy's thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def do(self, work: Callable[[], object]) -> None:
        """Do something in the proxy's thread; returns when it is done."""

        async def call() -> None:
            done = work()
            if asyncio.iscoroutine(done):
                await done

        asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, limit=READ_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        path = self._find_path(writer.get_extra_info("peername"))
        if path is None:
            writer.close()
            return
        pair = _Pair(path)
        pair.writers.append(writer)
        self._pairs.add(pair)
        path.pairs.add(pair)
        try:
            for gate in path.gates.values():
                await gate.wait()
            other_reader, other_writer = await asyncio.open_connection(*self.target, limit=READ_BYTES)
            pair.writers.append(other_writer)
            await asyncio.gather(
                self._carry(pair, "forward", reader, other_writer),
                self._carry(pair, "back", other_reader, writer),
            )
        except asyncio.CancelledError:
            # The proxy is closed; the streams would complain about a task that ended this way.
            return
        except OSError:
            # One side is gone without a goodbye: so be it for the other.
            pair.reset()
        finally:
            self._pairs.discard(pair)
            path.pairs.discard(pair)
            for used in pair.writers:
                used.close()

    async def _carry(
        self, pair: _Pair, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        held: deque[tuple[float, bytes]] = deque()
        changed = asyncio.Event()
        sending = asyncio.ensure_future(self._send(pair, direction, held, (changed, writer)))
        try:
            while True:
                await pair.path.gates[direction].wait()
                data = await self._read(pair, direction, reader)
                if not pair.is_lost:
                    held.append((self._loop.time() + pair.path.wait_s, data))
                    changed.set()
                if not data:
                    break
                while sum(len(waiting) for _, waiting in held) > HELD_BYTES_MAX and not sending.done():
                    await self._pause(0.01)
            await sending
        finally:
            sending.cancel()

    async def _read(self, pair: _Pair, direction: Direction, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.read(READ_BYTES)
        except OSError:
            # A reset does not get through a cut either.
            await pair.path.gates[direction].wait()
            raise

    async def _send(
        self,
        pair: _Pair,
        direction: Direction,
        held: deque[tuple[float, bytes]],
        end: tuple[asyncio.Event, asyncio.StreamWriter],
    ) -> None:
        changed, writer = end
        while True:
            while not held:
                changed.clear()
                await changed.wait()
            due, data = held[0]
            await self._pause(due - self._loop.time())
            # A cut may have come in the meantime: what it stops goes on when it has healed.
            await pair.path.gates[direction].wait()
            held.popleft()
            if pair.is_lost:
                continue
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            if pair.path.rate:
                await self._pause(len(data) / pair.path.rate)

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            over = self._loop.create_future()
            self._loop.call_later(seconds, lambda: over.done() or over.set_result(None))
            await over


class _Pair:
    """Both sides of one connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writers: list[asyncio.StreamWriter] = []
        self.is_lost = False

    def reset(self) -> None:
        for writer in self.writers:
            used = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                used.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


@contextlib.contextmanager
def fault_proxy(target: tuple[str, int]) -> Iterator[FaultProxy]:
    """A proxy for the length of a test."""
    proxy = FaultProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
