"""Live data for people who watch: resources of the API, sent again whenever they have changed.

`GET mirrormq/stream?topics=PATH&topics=PATH` answers with an event stream. Every topic is the path of a GET
resource with its query; event `t0` has the answer to the first topic, `t1` to the second, `e0`, `e1` what
went wrong. What the viewer may not see, the resource refuses as always.

Guarantees: a snapshot is built once for all who may see the same, and its bytes are shared; nothing is built
while nobody looks; all building together takes at most one part in `limits.http_stream_share` of the loop's
time, since what is costly is built less often; a viewer who is slow gets the newest snapshot next and never
makes anything pile up; one user can take a part of all streams only; a stream ends with the password or the
session it was opened with, though not when that only idles.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from yarl import URL

from mirrormq.base import limits
from mirrormq.http import answers
from mirrormq.http.answers import WHOLE, Fault, bad_request
from mirrormq.http.api import Call
from mirrormq.http.auth import Gate, Identity, bearer_of
from mirrormq.http.describe import described
from mirrormq.http.ports import RUNNING, Process, Stopped
from mirrormq.meta import system

LISTS = {"queues": 3, "exchanges": 3, "connections": 2, "channels": 2, "vhosts": 4}
"""What is followed page by page only, with the parts that a path has at most if it is such a list."""

SINGLE = frozenset({"overview", "nodes", "mirrormq", "vhosts", *LISTS})
"""First parts of the paths that can be followed."""

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
IDLE = b": nothing new\n\n"
SYNCING = b'"state":"syncing"'

Build = Callable[[web.Request, Identity], Awaitable[web.StreamResponse]]
"""Answers a GET request as somebody."""


class Feed:
    """One resource as somebody sees it, with its newest snapshot."""

    def __init__(self, request: web.Request, who: Identity, path: URL) -> None:
        self.request = request
        self.who = who
        self.path = path
        self.viewers: set[Viewer] = set()
        self.version = 0
        self.body = b""
        self.is_error = False
        self.due = 0.0
        """When it is built again at the latest."""
        self.soon = 0.0
        """When it may be built again if something has changed."""
        self.sign: Any = None
        """What was looked at when it was built last."""
        self.task: asyncio.Task[None] | None = None
        """Builds it now. A node that does not answer holds up only what is asked of it."""
        parts = [unquote(part) for part in path.raw_path.split("/")]
        self.queue = (parts[4], parts[5]) if parts[2:4] == ["mirrormq", "queues"] and len(parts) > 5 else None
        self.is_history = parts[2:4] in (["mirrormq", "timeline"], ["mirrormq", "events"])

    @property
    def is_quick(self) -> bool:
        """Is it looked at more often than it is built?"""
        return self.queue is not None or self.is_history

    def built(self, at: float, cost: float) -> None:
        """It was built at the cost of so many seconds of CPU."""
        # Of one queue there is little to build; if it took long, others had the processor.
        longest = limits.http_stream_ms if self.queue is not None else limits.http_stream_slowest_ms
        self.soon = at + min(cost * limits.http_stream_share, longest / 1000)
        is_busy = self.queue is not None and SYNCING in self.body
        pause = limits.http_stream_busy_ms if is_busy else limits.http_stream_ms
        self.due = max(self.soon, at + pause / 1000)

    def take(self, body: bytes, *, is_error: bool) -> None:
        """A new snapshot; one like the last is none."""
        if body != self.body or is_error != self.is_error:
            self.body, self.is_error = body, is_error
            self.version += 1
            for viewer in self.viewers:
                viewer.wake.set()


class Viewer:
    """One open stream: which feeds, and which version of each was sent."""

    def __init__(self, who: Identity, token: str, proof: str) -> None:
        self.who = who
        self.token = token
        self.proof = proof
        self.wake = asyncio.Event()
        self.feeds: list[Feed] = []
        self.sent: list[int] = []

    def news(self) -> bytes:
        """Everything newer than what was sent, and no longer new then."""
        found: list[bytes] = []
        for place, feed in enumerate(self.feeds):
            if feed.version != self.sent[place]:
                self.sent[place] = feed.version
                kind = "e" if feed.is_error else "t"
                found.append(b"event: %b%d\ndata: %b\n\n" % (kind.encode(), place, feed.body))
        return b"".join(found)


class Hub:
    """All streams of the node."""

    def __init__(self, process: Process, gate: Gate, build: Build) -> None:
        self._process = process
        self._gate = gate
        self._build = build
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._is_closed = False

    @described(is_use=False)
    async def serve(self, call: Call) -> web.StreamResponse:
        """GET mirrormq/stream."""
        paths = _topics(call.request)
        if call.request.method == "HEAD":
            return web.Response(headers=HEADERS)
        self._need_room(call.who)
        found = web.StreamResponse(headers=HEADERS)
        # All of this before anything is waited for: what the password was when it was checked, and how many
        # there are with this one.
        viewer = Viewer(call.who, bearer_of(call.request), self._gate.proof_of(call.who))
        self._enter(viewer, call.request, paths)
        try:
            await found.prepare(call.request)
            await self._send(viewer, found)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # it has gone; nothing is owed to it
        finally:
            self._leave(viewer)
        return found

    def close(self) -> None:
        """The node stops: end all streams."""
        self._is_closed = True
        for viewer in self._viewers:
            viewer.wake.set()
        if self._task is not None:
            self._task.cancel()

    # --- viewers ---

    def _need_room(self, who: Identity) -> None:
        if len(self._viewers) >= limits.http_viewers_max or self._is_closed:
            raise Fault(503, "too_many_viewers", f"{limits.http_viewers_max} streams are open at this node")
        most = limits.http_viewers_of_user_max
        if sum(viewer.who.name == who.name for viewer in self._viewers) >= most:
            raise Fault(503, "too_many_viewers", f"{most} streams of one user are open at this node")

    def _enter(self, viewer: Viewer, request: web.Request, paths: list[URL]) -> None:
        # Administrators all see the same.
        view = "" if viewer.who.is_administrator else str(viewer.who.name)
        for path in paths:
            key = (view, str(path))
            feed = self._feeds.get(key)
            if feed is None:
                feed = self._feeds[key] = Feed(request, viewer.who, path)
            feed.viewers.add(viewer)
            viewer.feeds.append(feed)
            viewer.sent.append(0)
        viewer.wake.set()
        self._viewers.add(viewer)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        for key, feed in list(self._feeds.items()):
            feed.viewers.discard(viewer)
            if not feed.viewers:
                del self._feeds[key]
                if feed.task is not None:
                    feed.task.cancel()
            else:
                feed.who = next(iter(feed.viewers)).who
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _send(self, viewer: Viewer, to: web.StreamResponse) -> None:
        while not self._is_closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(viewer.wake.wait(), limits.http_stream_idle_s)
            viewer.wake.clear()
            if not self._may_stay(viewer):
                return
            # While this is written newer snapshots replace each other in their feeds.
            await asyncio.wait_for(to.write(viewer.news() or IDLE), limits.http_stream_stalled_s)

    def _may_stay(self, viewer: Viewer) -> bool:
        """Has the session neither ended nor lost its rights?"""
        return self._process.state == RUNNING and self._gate.stands(viewer.who, viewer.token, viewer.proof)

    # --- building ---

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        WHOLE.set(True)
        while True:
            now = loop.time()
            signs = {feed: self._sign(feed) for feed in self._feeds.values() if feed.is_quick}
            for feed in self._feeds.values():
                is_changed = feed in signs and signs[feed] != feed.sign and feed.soon <= now
                if feed.task is None and (feed.due <= now or is_changed):
                    feed.sign = signs.get(feed)
                    feed.task = loop.create_task(self._renewed(feed))
            await self._rest(loop)

    async def _renewed(self, feed: Feed) -> None:
        began = time.thread_time()
        try:
            await self._renew(feed)
        finally:
            feed.task = None
            now = asyncio.get_running_loop().time()
            feed.built(now, (time.thread_time() - began) * len(self._feeds))
            self._wake.set()

    async def _rest(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until the next feed is due, somebody comes, or it is time to look for changes."""
        self._wake.clear()
        idle = [feed for feed in self._feeds.values() if feed.task is None]
        pause = min((feed.due for feed in idle), default=loop.time() + 1) - loop.time()
        if any(feed.is_quick for feed in self._feeds.values()):
            pause = min(pause, limits.http_stream_quick_ms / 1000)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.01, pause))

    async def _renew(self, feed: Feed) -> None:
        try:
            request = feed.request.clone(rel_url=feed.path, method="GET")
            found = await self._build(request, feed.who)
            body = found.body if isinstance(found, web.Response) else None
            if not isinstance(body, bytes):
                raise bad_request("this resource cannot be followed")
            if len(body) > limits.http_stream_bytes_max:
                raise bad_request("the answer is too long to be followed; ask for a page of it")
            feed.take(body, is_error=found.status >= 400)
        except Fault as fault:
            row = {"status": fault.status, "error": fault.error, "reason": fault.reason}
            feed.take(answers.encoded(row), is_error=True)
        except Stopped as stopped:
            row = {"status": 503, "error": answers.APP_STOPPED, "reason": str(stopped)}
            feed.take(answers.encoded(row), is_error=True)
        except Exception as error:  # noqa: BLE001
            # One resource that fails must not silence the others.
            text = f"internal error in {feed.path}: {error!r}"
            self._process.note("error", text, event="internal_error")
            row = {"status": 500, "error": "internal_error", "reason": "the node's log has the details"}
            feed.take(answers.encoded(row), is_error=True)

    def _sign(self, feed: Feed) -> Any:
        """What tells of a change: the view of a queue and who is there, or the end of the events."""
        if self._process.state != RUNNING:
            return None
        node = self._process.driver.node
        if feed.queue is not None:
            return (node.state.views.get(feed.queue), tuple(node.state.nodes.values()))
        record = node.state.queues.get((system.VHOST, system.EVENTS))
        if record is None:
            return None
        live = node.switch.masters.get(record.id)
        copy = None if node.copies is None else node.copies.mirrors.copies.get(record.id)
        log = live.log if live is not None else None if copy is None else copy.log
        return None if log is None else log.durable


def _topics(request: web.Request) -> list[URL]:
    found = request.query.getall("topics", [])
    if not 1 <= len(found) <= limits.http_stream_topics_max:
        raise bad_request(f"name 1 to {limits.http_stream_topics_max} topics, e.g. topics=overview")
    paths: list[URL] = []
    for text in found:
        if len(text) > limits.http_stream_topic_chars_max:
            raise bad_request(f"a topic has at most {limits.http_stream_topic_chars_max} characters")
        try:
            path = URL(f"/api/{text}", encoded=True)
        except ValueError:
            raise bad_request(f"{text} is not the path of a resource") from None
        parts = path.raw_path.strip("/").split("/")
        if parts[1] not in SINGLE or ".." in parts or parts[1:] == ["mirrormq", "stream"]:
            raise bad_request(f"{text} cannot be followed; there are {', '.join(sorted(SINGLE))}")
        if len(parts) <= LISTS.get(parts[1], 0) and "page" not in path.query:
            raise bad_request(f"{text} can be followed page by page only: add page=1&page_size=100")
        paths.append(path)
    return paths
