"""Feeds the node with what happens on the machine and carries out its effects, in order, on one event loop.

After every input the effects are drained, and once per pass of the loop the node gets `end_pass`, in which it
delivers, confirms and hands out its output: per-message work is done in batches as large as the pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from mirrormq.base import limits
from mirrormq.base.durations import PASS_BOUNDS_US, Durations
from mirrormq.base.types import Now, Peer
from mirrormq.node import effects as fx
from mirrormq.node.requests import Request
from mirrormq.node.steps import Answer, Done
from mirrormq.runtime import clock, heap, hygiene
from mirrormq.runtime.hashing import hash_work
from mirrormq.runtime.logs import Log

DiskEffect = fx.Append | fx.Flush | fx.Read | fx.Replace | fx.Remove
Data = bytes | None
Frame = bytes | memoryview
Bytes = bytes
"""For the class below, which has a method of that name."""
NEVER = 1 << 62
"""Later than any timer."""


class NodeInputs(Protocol):
    """The node, as the driver uses it."""

    effects: fx.Effects

    @property
    def needs_pass(self) -> bool: ...  # noqa: D102

    def client_open(self, now: Now, conn: int, peer: Peer) -> None: ...  # noqa: D102
    def client_bytes(self, now: Now, conn: int, data: memoryview) -> None: ...  # noqa: D102
    def client_writable(self, now: Now, conn: int) -> None: ...  # noqa: D102
    def client_paused(self, now: Now, conn: int) -> None: ...  # noqa: D102
    def client_closed(self, now: Now, conn: int) -> None: ...  # noqa: D102
    def disk_done(self, now: Now, token: int) -> None: ...  # noqa: D102
    def disk_read(self, now: Now, token: int, data: Data, error: str | None) -> bool: ...  # noqa: D102
    def work_done(self, now: Now, token: int, result: Any) -> None: ...  # noqa: D102
    def gauges(self, now: Now, memory: int, disk_free: int, *, is_full: bool) -> None: ...  # noqa: D102
    def tick(self, now: Now) -> None: ...  # noqa: D102
    def on_timer(self, now: Now) -> None: ...  # noqa: D102
    def end_pass(self, now: Now) -> None: ...  # noqa: D102
    def next_timer(self) -> int | None: ...  # noqa: D102
    def take_output(self, conn: int) -> Sequence[bytes | memoryview]: ...  # noqa: D102
    def admin(self, now: Now, request: Request, done: Done) -> None: ...  # noqa: D102
    def link_change(  # noqa: D102
        self, now: Now, peer: str, is_up: bool, cluster: bytes, *, eof: bool
    ) -> None: ...
    def peer_frame(self, now: Now, peer: str, payload: Frame) -> None: ...  # noqa: D102
    def link_full(self, now: Now, peer: str) -> None: ...  # noqa: D102
    def link_writable(self, now: Now, peer: str) -> None: ...  # noqa: D102
    def link_suspected(self, now: Now, peer: str, is_silent: bool) -> None: ...  # noqa: D102
    def drain(self, now: Now, reason: str) -> None: ...  # noqa: D102
    def hand_over(self, now: Now, done: Callable[[], None]) -> None: ...  # noqa: D102


class Client(Protocol):
    """A client's socket, as the driver uses it."""

    def write(self, pieces: Sequence[bytes | memoryview]) -> None: ...  # noqa: D102
    def pause_reading(self) -> None: ...  # noqa: D102
    def resume_reading(self) -> None: ...  # noqa: D102
    def hang_up(self) -> None: ...  # noqa: D102
    def abort(self) -> None: ...  # noqa: D102


class Disk(Protocol):
    """Where disk effects go."""

    def order(self, effect: DiskEffect) -> None: ...  # noqa: D102


class Courier(Protocol):
    """Where effects on links go."""

    def introduce(self, effect: fx.Introduce) -> None: ...  # noqa: D102
    def dial(self, effect: fx.Dial) -> None: ...  # noqa: D102
    def undial(self, effect: fx.Undial) -> None: ...  # noqa: D102
    def send(self, effect: fx.Send) -> None: ...  # noqa: D102
    def cut(self, effect: fx.Cut) -> None: ...  # noqa: D102


NodeT = TypeVar("NodeT", bound=NodeInputs)


class Driver(Generic[NodeT]):
    """The node and the event loop it lives in."""

    def __init__(self, node: NodeT, loop: asyncio.AbstractEventLoop, log: Log) -> None:
        self.node = node
        self.loop = loop
        self.log = log
        self.disk: Disk | None = None
        self.clients: dict[int, Client] = {}
        self.failed: asyncio.Future[str] = loop.create_future()
        """Done with a reason when the node cannot go on."""
        self.asked_to_stop: asyncio.Future[str] = loop.create_future()
        """Done with a reason when an administrator wants the node to stop."""
        self.on_doors: Callable[[bool], None] = _ignore
        """Called when the node wants clients to be let in, or no more."""
        self._emptied: asyncio.Future[None] | None = None
        self.now: Callable[[], Now] = clock.now
        self.passes = Durations(PASS_BOUNDS_US)
        self._young, self.heap = hygiene.Young(), heap.WarmHeap(heap.library())
        self._conn = 0
        self._is_pass_due = False
        self._is_left = False
        self._ticker: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._hashing = ThreadPoolExecutor(1, "hashing")
        self._carry_out: dict[type, Callable[[Any], None]] = {
            fx.Write: self._write,
            fx.Close: self._close,
            fx.Pause: self._pause,
            fx.Resume: self._resume,
            fx.Append: self._order,
            fx.Flush: self._order,
            fx.Read: self._order,
            fx.Replace: self._order,
            fx.Remove: self._order,
            fx.Work: self._work,
            fx.Note: self._note,
            fx.Stop: self._stop,
            fx.Doors: self._doors,
        }

    # Inputs from the listener. `client_bytes` is the hot one.

    def open(self, client: Client, peer: Peer) -> int:
        """Take in a client; returns the number it is known by."""
        self._conn += 1
        conn = self._conn
        self.clients[conn] = client
        try:
            self.node.client_open(self.now(), conn, peer)
        except Exception as error:  # noqa: BLE001
            self._blame(conn, error)
        self._after()
        return conn

    def bytes(self, conn: int, data: memoryview) -> None:
        """Bytes of a client; nothing refers to `data` after this."""
        try:
            self.node.client_bytes(self.now(), conn, data)
        except Exception as error:  # noqa: BLE001
            # A mistake of ours while serving one client must not take the others down with it.
            self._blame(conn, error)
        if self.node.effects:
            self._drain()
        if not self._is_pass_due:
            self._is_pass_due = True
            self.loop.call_soon(self._end_pass)

    def paused(self, conn: int) -> None:
        """A client reads more slowly than the node writes."""
        self.node.client_paused(self.now(), conn)
        self._after()

    def writable(self, conn: int) -> None:
        """A client has caught up."""
        self.node.client_writable(self.now(), conn)
        self._after()

    def lost(self, conn: int) -> None:
        """A client's socket is closed. Called once per client, whoever closed it."""
        del self.clients[conn]
        if self._emptied is not None and not self.clients and not self._emptied.done():
            self._emptied.set_result(None)
        self.node.client_closed(self.now(), conn)
        self._after()

    # Inputs from the links.

    def serve_links(self, courier: Courier) -> None:
        """Let the node have links to other nodes."""
        self._carry_out |= {
            fx.Introduce: courier.introduce,
            fx.Dial: courier.dial,
            fx.Undial: courier.undial,
            fx.Send: courier.send,
            fx.Cut: courier.cut,
        }

    def serve_etcd(self, ask: Callable[[Any], None]) -> None:
        """Let the node ask etcd; `ask` takes requests."""
        self._carry_out[fx.AskEtcd] = lambda effect: ask(effect.request)

    def link_change(self, peer: str, cluster: Bytes, *, is_up: bool, eof: bool = False) -> None:
        """A link came up or went down."""
        self.node.link_change(self.now(), peer, is_up, cluster, eof=eof)
        self._after()

    def peer_frame(self, peer: str, payload: Frame) -> None:
        """A frame arrived; nothing refers to it after this."""
        self.node.peer_frame(self.now(), peer, payload)
        self._after()

    def link_full(self, peer: str) -> None:
        """A link takes no more for now."""
        self.node.link_full(self.now(), peer)
        self._after()

    def link_suspected(self, peer: str, *, is_silent: bool) -> None:
        """Nothing has come over a link for long, or something has again."""
        self.node.link_suspected(self.now(), peer, is_silent)
        self._after()

    def link_writable(self, peer: str) -> None:
        """A link takes more again."""
        self.node.link_writable(self.now(), peer)
        self._after()

    # Inputs from the rest of the machine.

    def disk_done(self, tokens: Iterable[int]) -> None:
        """Flushes are done."""
        now = self.now()
        for token in tokens:
            self.node.disk_done(now, token)
        self._after()

    def disk_read(self, token: int, data: Data, error: str | None) -> None:
        """A part of a file was read, or could not be."""
        if self.node.disk_read(self.now(), token, data, error):
            self._after()
        elif self.node.effects:
            self._drain()

    def gauges(self, memory_used: int, disk_free: int, *, is_full: bool = False) -> None:
        """The machine's gauges; `is_full`: the disk was full and its reserve is not back yet."""
        self.node.gauges(self.now(), memory_used, disk_free, is_full=is_full)
        self._after()

    def admin(self, request: Request, done: Done) -> None:
        """Carry out an administrator's request; `done` is called once, now or later."""
        self.node.admin(self.now(), request, done)
        self._after()

    async def ask(self, request: Request) -> Answer:
        """Carry out an administrator's request and wait for its answer."""
        answered: asyncio.Future[Answer] = self.loop.create_future()

        def done(answer: Answer) -> None:
            # Whoever waited may have gone away in the meantime (an HTTP client that hung up).
            if not answered.done():
                answered.set_result(answer)

        self.admin(request, done)
        return await answered

    def call(self, work: Callable[[Now], None]) -> None:
        """Let the node do something that neither a client nor the disk asked for."""
        work(self.now())
        self._after()

    def start(self) -> None:
        """Begin to tick, and carry out what the node wanted while it was made."""
        self._tick()

    async def drain(self, reason: str) -> None:
        """Tell every client that the node stops, wait until the last one has gone, then give queues away."""
        self.node.drain(self.now(), reason)
        self._after()
        if self.clients:
            self._emptied = self.loop.create_future()
            await self._emptied
        handed_over: asyncio.Future[None] = self.loop.create_future()

        def done() -> None:
            if not handed_over.done():
                handed_over.set_result(None)

        self.node.hand_over(self.now(), done)
        if not handed_over.done():
            self._after()
            await handed_over

    def fail(self, reason: str) -> None:
        """The node cannot go on."""
        if not self.failed.done():
            self.failed.set_result(reason)

    def close(self) -> None:
        """Give up the timer, the clients and the hashing thread."""
        for timer in (self._ticker, self._timer):
            if timer is not None:
                timer.cancel()
        for client in list(self.clients.values()):
            client.abort()
        self._hashing.shutdown(wait=False, cancel_futures=True)

    def leave(self) -> None:
        """The disk is closed: what late sockets still make the node want is carried out no more."""
        self._is_left = True

    # The pass.

    def _after(self) -> None:
        if self.node.effects:
            self._drain()
        if not self._is_pass_due:
            self._is_pass_due = True
            self.loop.call_soon(self._end_pass)

    def _die_of(self, error: Exception) -> None:
        import traceback

        text = "".join(traceback.format_exception(error))
        self.log.note(
            "critical", f"internal error in a pass: {text}", {"event": "internal_error"}, self.now().wall
        )
        self._is_left = True
        self.fail("internal error in a pass")

    def _blame(self, conn: int, error: Exception) -> None:
        import traceback

        text = "".join(traceback.format_exception(error))
        self.log.note(
            "error",
            f"internal error, connection closed: {text}",
            {"event": "internal_error", "conn": conn},
            self.now().wall,
        )
        self.clients[conn].abort()

    def _end_pass(self) -> None:
        self._is_pass_due = False
        if self._is_left:
            return
        now = self.now()
        try:
            self.node.end_pass(now)
        except Exception as error:  # noqa: BLE001
            # Half a pass was done, for everybody: what the disk holds is whole, what memory holds is not.
            self._die_of(error)
            return
        if self.node.effects:
            self._drain()
        self.passes.add(self.now().mono - now.mono)
        self._young.look(now.mono)
        self.heap.look(now.mono)
        if self.node.needs_pass:
            # What this pass left over (freeing in slices, a cycle of letters) goes on after other inputs.
            self._is_pass_due = True
            self.loop.call_soon(self._end_pass)
        due = self.node.next_timer()
        if due is not None and due < self._timer_at:
            self._arm(due)

    def _drain(self) -> None:
        carry_out = self._carry_out
        effects = self.node.effects
        while effects:
            for effect in effects.take():
                if self._is_left:
                    break
                carry_out[type(effect)](effect)

    def _tick(self) -> None:
        self._ticker = self.loop.call_later(limits.tick_us / 1_000_000, self._tick)
        self.node.tick(self.now())
        self._after()

    def _arm(self, at: int) -> None:
        """Wake the node's timers at this time instead of a later one."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay_s = max(0, at - self.now().mono) / 1_000_000
        self._timer = self.loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer_at = NEVER
        self.node.on_timer(self.now())
        self._after()

    # Effects.

    def _write(self, effect: fx.Write) -> None:
        client = self.clients.get(effect.conn)
        # A client may be lost between the node's wish and this line; its output goes with it.
        if client is not None:
            pieces = self.node.take_output(effect.conn)
            if pieces:
                client.write(pieces)

    def _close(self, effect: fx.Close) -> None:
        client = self.clients.get(effect.conn)
        if client is not None:
            # What was written before the close may still wait for the end of this pass.
            pieces = self.node.take_output(effect.conn)
            if pieces:
                client.write(pieces)
            client.hang_up()

    def _pause(self, effect: fx.Pause) -> None:
        client = self.clients.get(effect.conn)
        if client is not None:
            client.pause_reading()

    def _resume(self, effect: fx.Resume) -> None:
        client = self.clients.get(effect.conn)
        if client is not None:
            client.resume_reading()

    def _order(self, effect: DiskEffect) -> None:
        assert self.disk is not None, effect.file
        self.disk.order(effect)

    def _note(self, effect: fx.Note) -> None:
        self.log.note(effect.level, effect.text, effect.fields, self.now().wall)

    def _stop(self, effect: fx.Stop) -> None:
        if not self.asked_to_stop.done():
            self.asked_to_stop.set_result(effect.reason)

    def _doors(self, effect: fx.Doors) -> None:
        self.on_doors(effect.is_open)

    def _work(self, effect: fx.Work) -> None:
        """Hash off the loop, one at a time: a hash takes tens of milliseconds and 19 MiB."""
        future = self._hashing.submit(hash_work, effect.kind, effect.args)

        def done(finished: Future[Any]) -> None:
            if not finished.cancelled():
                self.loop.call_soon_threadsafe(self._work_done, effect.token, finished)

        future.add_done_callback(done)

    def _work_done(self, token: int, finished: Future[Any]) -> None:
        self.node.work_done(self.now(), token, finished.result())
        self._after()


def _ignore(_: bool) -> None:
    """Nobody listens yet."""
