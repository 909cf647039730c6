"""A blocking client of the bulk protocol, for Spark's workers and our own tools (docs/protocol/bulk.md).

Guarantees
- A call is answered, or raises: `BulkError` with a code if the server said no, `Gone` if the connection broke
  before the answer came. An operation that may be done twice is asked again over a new connection, of the
  next of the given hosts, within `retry_s`; others are not.
- A read that was not finished has raised; what it gave before is right as far as it goes.
- Nothing of a password is in an error's text.

Needs no Spark and nothing of the broker.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from mirrormq.wire import bulk
from mirrormq.wire.bulk import BulkError, Fields

__all__ = ["BulkClient", "BulkError", "Gone", "Run", "Target"]

Run = bytes | bytearray | memoryview
"""Octets as they came, of whole batches where records were asked for."""

RECV_BYTES = 64 * 1024
AGAIN = frozenset(
    ("login", "queues", "seek", "cursor_list", "cursor_open", "sink_state", "definitions", "define",
     "undefine", "vhost", "mirror_vhost")
)  # fmt: skip
"""Operations that change nothing when they are done once more."""


class Received(NamedTuple):
    """A frame of the server."""

    kind: int
    request: int
    body: Run


class Gone(ConnectionError):
    """The connection could not be made, or broke."""


@dataclass(frozen=True)
class Target:
    """Where to connect, and as whom."""

    hosts: Sequence[tuple[str, int]]
    """Tried one after the other."""
    user: str = "guest"
    password: str | None = field(default="guest", repr=False)
    vhost: str = "/"
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    product: str = "mirrormq"
    query: str = ""
    timeout_s: float = 30.0
    """Longest silence; the server says something at least every ten seconds."""


class BulkClient:
    """One connection at a time, to one of some hosts."""

    def __init__(self, target: Target, *, retry_s: float = 15.0) -> None:
        self.target = target
        self.retry_s = retry_s
        """How long unfinished calls are tried again, and a host that answers is looked for."""
        self.welcome: Fields = {}
        """What the server said of itself: cluster, node, version, vhost."""
        self.ended: Fields = {}
        """What the end of the last stream said."""
        self.host: tuple[str, int] | None = None
        self._socket: socket.socket | None = None
        self._buffer = memoryview(bytearray(RECV_BYTES))
        self._run = bytearray()
        """Memory of the last run of records, if it may be used again."""
        self._reuses = False
        self._first = self._last = 0
        self._request = 0
        self._at = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- calls ---

    def call(self, op: str, /, **fields: Any) -> Fields:
        """Ask, and wait for the answer."""
        until = time.monotonic() + self.retry_s
        while True:
            try:
                self.connect(until)
                return self._ask(op, fields)
            except Gone:
                self.close()
                if op not in AGAIN or time.monotonic() >= until:
                    raise
            except BulkError as error:
                if error.code != bulk.UNAVAILABLE or op not in AGAIN or time.monotonic() >= until:
                    raise
                _pause(until)

    def _ask(self, op: str, fields: Fields) -> Fields:
        request = self.send_call(op, fields)
        while True:
            frame = self.receive()
            if frame.request == request and frame.kind in (bulk.ANSWER, bulk.END):
                return bulk.decode(frame.body)
            if frame.request == request and frame.kind == bulk.ERROR:
                raise error_of(frame.body)

    def read(self, **fields: Any) -> Iterator[Run]:
        """Stream records: runs of whole batches. Closing the iterator early ends the connection."""
        return self.stream("read", **fields)

    def read_over(self, **fields: Any) -> Iterator[Run]:
        """The same; but a run is there only until the next one is asked for, which takes its place."""
        self._reuses = True
        try:
            yield from self.stream("read", **fields)
        finally:
            self._reuses = False

    def stream(self, op: str, /, **fields: Any) -> Iterator[Run]:
        """Ask for something that is answered by DATA frames; yields their bytes. Not tried again."""
        self.connect(time.monotonic() + self.retry_s)
        request = self.send_call(op, fields)
        is_over = False
        parts: list[Run] = []
        try:
            while True:
                frame = self.receive()
                if frame.request != request:
                    continue
                if frame.kind == bulk.PART:
                    parts.append(frame.body)
                elif frame.kind == bulk.DATA and parts:
                    whole, parts = b"".join([*parts, frame.body]), []
                    yield whole
                elif frame.kind == bulk.DATA:
                    yield frame.body
                elif frame.kind == bulk.END:
                    is_over = True
                    self.ended = bulk.decode(frame.body)
                    return
                elif frame.kind == bulk.ERROR:
                    is_over = True
                    raise error_of(frame.body)
        finally:
            if not is_over:
                # What is on its way would be read for nothing; a new connection is cheaper.
                self.close()

    # --- the connection ---

    @property
    def is_connected(self) -> bool:
        """Was a connection made that has not been found broken?"""
        return self._socket is not None

    def connect(self, until: float | None = None) -> None:
        """Make a connection if there is none, to the first host that answers."""
        if self._socket is not None:
            return
        until = time.monotonic() + self.retry_s if until is None else until
        hosts = list(self.target.hosts)
        problems: list[str] = []
        while True:
            problems.clear()
            for _ in hosts:
                host = hosts[self._at % len(hosts)]
                try:
                    self._open(host)
                    return
                except (OSError, Gone) as error:
                    problems.append(f"{host[0]}:{host[1]}: {error}")
                    self.close()
                    self._at += 1
                except BulkError:
                    self.close()
                    raise
            if time.monotonic() >= until:
                raise Gone("no host answers: " + "; ".join(problems))
            _pause(until)

    def _open(self, host: tuple[str, int]) -> None:
        target = self.target
        made = socket.create_connection(host, target.timeout_s)
        self._socket = made
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls is not None:
            self._socket = target.tls.wrap_socket(made, server_hostname=host[0])
        self._first = self._last = 0
        self._send(bulk.HEADER)
        fields: Fields = {"user": target.user, "vhost": target.vhost}
        fields |= {"product": target.product, "query": target.query}
        if target.password is not None:
            fields["password"] = target.password
        self.welcome = self._ask("login", fields)
        self.host = host

    def close(self) -> None:
        """Close the socket; the next call makes another."""
        found, self._socket = self._socket, None
        if found is not None:
            found.close()

    # --- frames ---

    def send_call(self, op: str, fields: Fields) -> int:
        """Send a call; returns its number."""
        self._request += 1
        self._send(bulk.encode(bulk.CALL, self._request, {"op": op, **fields}))
        return self._request

    def send_frame(self, kind: int, request: int, body: bytes | memoryview = b"") -> None:
        """Send a frame of a stream."""
        self._send(bulk.head(kind, request, len(body)))
        if body:
            self._send(body)

    def receive(self) -> Received:
        """The next frame that is an answer to something; an error about the connection is raised."""
        while True:
            frame = self._heed(self._next())
            if frame is not None:
                return frame

    def poll(self) -> Received | None:
        """The same, of what is here already; None if that is nothing."""
        while self.has_input():
            frame = self._heed(self._next())
            if frame is not None:
                return frame
        return None

    def _heed(self, frame: Received) -> Received | None:
        """Serve what is about the connection itself."""
        if frame.kind == bulk.PING:
            self._send(bulk.encode(bulk.PONG, frame.request))
        elif frame.kind == bulk.ERROR and frame.request == 0:
            raise Gone(error_of(frame.body).text)
        elif frame.kind != bulk.PONG:
            return frame
        return None

    def has_input(self) -> bool:
        """Has the server said something that was not read?"""
        made = self._socket
        if made is None or self._first < self._last:
            return made is not None
        if isinstance(made, ssl.SSLSocket) and made.pending():
            return True
        return bool(select.select([made], [], [], 0)[0])

    def _next(self) -> Received:
        head = bytearray(bulk.HEAD_BYTES)
        got = self._take(memoryview(head)[:4])
        if not got:
            raise Gone("the server closed the connection")
        _check_greeting(head)
        got += self._take(memoryview(head)[4:])
        if got < len(head):
            raise Gone("the server closed the connection within a frame")
        try:
            kind, request, size = bulk.read_head(head)
        except bulk.BadFrame as error:
            raise Gone(str(error)) from None
        # Straight into its place: records come by the gigabyte.
        body = self._place(size) if self._reuses and kind == bulk.DATA else bytearray(size)
        if self._take(memoryview(body)) < size:
            raise Gone("the server closed the connection within a frame")
        return Received(kind, request, body)

    def _place(self, size: int) -> memoryview:
        """Where a run of records goes. New memory is zeroed first, and comes page by page."""
        if len(self._run) < size:
            self._run = bytearray(size)
        return memoryview(self._run)[:size]

    def _take(self, view: memoryview) -> int:
        """Fill `view` with what comes; how much, which is less only if the server has closed."""
        wanted = len(view)
        at = 0
        while at < wanted:
            kept = min(self._last - self._first, wanted - at)
            if kept:
                view[at : at + kept] = self._buffer[self._first : self._first + kept]
                self._first += kept
                at += kept
            elif wanted - at >= RECV_BYTES:
                count = self._receive(view[at:])
                at += count
                if not count:
                    break
            else:
                self._first, self._last = 0, self._receive(self._buffer)
                if not self._last:
                    break
        return at

    def _receive(self, view: memoryview) -> int:
        if self._socket is None:
            raise Gone("the connection is closed")
        try:
            return self._socket.recv_into(view)
        except OSError as error:
            raise Gone(str(error) or type(error).__name__) from None

    def _send(self, data: bytes | memoryview) -> None:
        if self._socket is None:
            raise Gone("the connection is closed")
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Gone(str(error) or type(error).__name__) from None


def _check_greeting(start: bytearray) -> None:
    """A server that does not know this protocol answers with the name of its own, which is no length."""
    if start[:4] == b"AMQP":
        raise BulkError(bulk.REFUSED, "that server is no MirrorMQ: it speaks AMQP only")
    if start[:4] == bulk.MAGIC:
        raise BulkError(bulk.REFUSED, "that server speaks another version of the bulk protocol")


def error_of(body: Run) -> BulkError:
    """The error in a frame."""
    fields = bulk.decode(body)
    return BulkError(str(fields.pop("code", "")), str(fields.pop("text", "")), **fields)


def _pause(until: float) -> None:
    """Wait a moment before another try."""
    import threading

    threading.Event().wait(min(0.2, max(0.0, until - time.monotonic())))
