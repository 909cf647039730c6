"""An AMQP connection within the process: what the API publishes and gets goes the way of any client.

Guarantees
- The user's permissions, limits and alarms count as over a socket; nothing is done that a client could not
  do. The API has checked who the user is, so no password is asked for again.
- Whatever becomes of a request, its connection is closed and forgotten.
- Every wait ends (`limits.http_session_ms`) with 503 and its reason.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from mirrormq.base import limits
from mirrormq.base.types import Peer
from mirrormq.http import answers
from mirrormq.http.answers import Fault, bad_request
from mirrormq.http.api import Call
from mirrormq.http.auth import peer_of
from mirrormq.node.steps import Problem
from mirrormq.wire import methods
from mirrormq.wire.methods import Method
from mirrormq.wire.spec import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    PROTOCOL_HEADER,
)

CHANNEL = 1
PRODUCT = "MirrorMQ management"
CAPABILITIES = {"basic.nack": True, "publisher_confirms": True, "authentication_failure_close": True}
FRAME_MAX = 131_072
ACCESS_REFUSED, NOT_FOUND = 403, 404

M = TypeVar("M", bound=Method)


class Content(NamedTuple):
    """Properties and body of a message, behind the method that brings it."""

    properties: bytes
    body: bytes


class Session:
    """One connection with one channel, as a context."""

    def __init__(self, call: Call, vhost: str) -> None:
        if call.who.name is None:
            raise bad_request("messages are published and got by a user: log in with a name and a password")
        self._user = call.who.name
        self._vhost = vhost
        self._driver = call.driver.entrance
        self._loop = asyncio.get_running_loop()
        self._peer = peer_of(call.request)
        self._raw = bytearray()
        self._inbox: deque[tuple[int, Method | Content]] = deque()
        self._expected: tuple[int, int, bytes, bytearray] | None = None
        self._frame_max = FRAME_MAX
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_gone = False
        self._is_lost = False
        self._conn = 0

    async def __aenter__(self) -> Self:
        peer = Peer(*self._peer[:4], tls=False, cert_name=self._user, is_inside=True)
        self._conn = self._driver.open(self, peer)
        try:
            await self._log_in()
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._is_gone = True
        if not self._is_lost:
            self._is_lost = True
            self._driver.lost(self._conn)

    async def _log_in(self) -> None:
        self._feed(PROTOCOL_HEADER)
        await self._expect(0, methods.ConnectionStart)
        properties = {"product": PRODUCT, "capabilities": CAPABILITIES, "connection_name": "management"}
        tune = await self._call(
            0,
            methods.ConnectionStartOk(client_properties=properties, mechanism="EXTERNAL"),
            methods.ConnectionTune,
        )
        self._frame_max = tune.frame_max or FRAME_MAX
        self._send(0, methods.ConnectionTuneOk(tune.channel_max, tune.frame_max, 0))
        await self._call(0, methods.ConnectionOpen(virtual_host=self._vhost), methods.ConnectionOpenOk)
        await self._call(CHANNEL, methods.ChannelOpen(), methods.ChannelOpenOk)

    # --- what is done with it ---

    async def publish(
        self, exchange: str, routing_key: str, properties: bytes, body: Sequence[bytes]
    ) -> bool:
        """Publish a message, given in pieces, with a confirm; whether it reached a queue that took it."""
        await self._call(CHANNEL, methods.ConfirmSelect(), methods.ConfirmSelectOk)
        method = methods.BasicPublish(exchange=exchange, routing_key=routing_key, mandatory=True)
        self._send(CHANNEL, method)
        size = sum(map(len, body))
        self._frame(FRAME_HEADER, CHANNEL, struct.pack(">HHQ", CLASS_BASIC, 0, size) + properties)
        step = self._frame_max - FRAME_OVERHEAD
        fed = 0
        for piece in body:
            for at in range(0, len(piece), step):
                while self._is_paused:
                    await self._wait()
                self._frame(FRAME_BODY, CHANNEL, piece[at : at + step])
            fed += len(piece)
            if fed >= limits.http_published_step_bytes:
                fed = 0
                await answers.next_turn()
        is_returned = False
        while True:
            found = await self._next(CHANNEL)
            if isinstance(found, methods.BasicReturn):
                is_returned = True
            elif isinstance(found, methods.BasicAck | methods.BasicNack):
                return isinstance(found, methods.BasicAck) and not is_returned

    async def get(self, queue: str, *, no_ack: bool) -> tuple[methods.BasicGetOk, Content] | None:
        """Take the message at the head of a queue; None if there is none."""
        self._send(CHANNEL, methods.BasicGet(queue=queue, no_ack=no_ack))
        while True:
            found = await self._next(CHANNEL)
            if isinstance(found, methods.BasicGetEmpty):
                return None
            if isinstance(found, methods.BasicGetOk):
                content = await self._next(CHANNEL)
                assert isinstance(content, Content), content
                return found, content

    def nack(self, tag: int, *, requeue: bool) -> None:
        """Give back, or throw away, everything up to a delivery."""
        self._send(CHANNEL, methods.BasicNack(tag, multiple=True, requeue=requeue))

    async def settled(self) -> None:
        """Wait until everything sent before has been dealt with."""
        await self._call(CHANNEL, methods.ChannelClose(reply_code=200), methods.ChannelCloseOk)

    # --- called by the driver ---

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Bytes of the node."""
        for piece in pieces:
            self._raw += piece
        while len(self._raw) >= FRAME_OVERHEAD:
            kind, channel, size = struct.unpack_from(">BHI", self._raw)
            if len(self._raw) < size + FRAME_OVERHEAD:
                break
            payload = bytes(self._raw[FRAME_OVERHEAD - 1 : FRAME_OVERHEAD - 1 + size])
            del self._raw[: size + FRAME_OVERHEAD]
            self._take(kind, channel, payload)
        self._wake()

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == FRAME_METHOD:
            self._inbox.append((channel, methods.decode(payload)))
            return
        if kind == FRAME_HEADER:
            (size,) = struct.unpack_from(">Q", payload, 4)
            self._expected = (channel, size, payload[12:], bytearray())
        elif kind == FRAME_BODY and self._expected is not None:
            self._expected[3].extend(payload)
        if self._expected is not None and len(self._expected[3]) == self._expected[1]:
            channel, _, properties, body = self._expected
            self._expected = None
            self._inbox.append((channel, Content(properties, bytes(body))))

    def pause_reading(self) -> None:
        """The node wants nothing more for now."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """It does again."""
        self._is_paused = False
        self._wake()

    def hang_up(self) -> None:
        """The node closes the connection."""
        self.abort()

    def abort(self) -> None:
        """At once. The driver is told that it is gone when it is ready to hear that."""
        self._is_gone = True
        self._wake()
        self._loop.call_soon(self._leave)

    # --- frames ---

    def _feed(self, data: bytes) -> None:
        if not self._is_lost:
            self._driver.bytes(self._conn, memoryview(data))

    def _send(self, channel: int, method: Method) -> None:
        self._frame(FRAME_METHOD, channel, methods.encode(method))

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        self._feed(struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((FRAME_END,)))

    async def _call(self, channel: int, method: Method, kind: type[M]) -> M:
        self._send(channel, method)
        return await self._expect(channel, kind)

    async def _expect(self, channel: int, kind: type[M]) -> M:
        while True:
            found = await self._next(channel)
            if isinstance(found, kind):
                return found

    async def _next(self, channel: int) -> Method | Content:
        """What comes next on a channel; an error of the node ends the request."""
        while True:
            while self._inbox:
                where, found = self._inbox.popleft()
                if isinstance(found, methods.ChannelClose | methods.ConnectionClose):
                    raise _refused(found.reply_code, found.reply_text)
                if where == channel:
                    return found
            if self._is_gone:
                raise Fault(503, "unavailable", "the node closed the connection")
            await self._wait()

    async def _wait(self) -> None:
        if self._is_gone:
            raise Fault(503, "unavailable", "the node closed the connection")
        self._waiter = self._loop.create_future()
        try:
            await asyncio.wait_for(self._waiter, limits.http_session_ms / 1000)
        except TimeoutError:
            reason = (
                "not answered in time: the master of the queue cannot be reached, or publishing is blocked"
            )
            raise Fault(503, "unavailable", reason) from None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _refused(code: int, text: str) -> Fault:
    if code == ACCESS_REFUSED:
        return answers.of_problem(Problem("access_refused", text))
    if code == NOT_FOUND:
        return answers.of_problem(Problem("not_found", text))
    return bad_request(f"{code} {text}")
