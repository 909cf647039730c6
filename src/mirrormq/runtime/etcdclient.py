"""Asks etcd by its JSON gateway: one HTTP request per question, and one that stays open for what changes.

Guarantee: every request is answered once, by what etcd said or by `Failed` with a reason, within
`limits.etcd_answer_s` or a little later; a watch tells changes in order until it tells that it is lost. After
a failure the next request goes to the next endpoint. Neither the password nor a token is ever in a reason.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from mirrormq.base import limits
from mirrormq.cluster.etcd import api
from mirrormq.runtime import etcdwire as wire
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.settings import EtcdSettings

if TYPE_CHECKING:
    import aiohttp

LEASE_NOT_FOUND = 5
UNAUTHENTICATED = (3, 16)
"""What etcd answers without a token, and with one it does not know any more."""
HEADERS = {"Grpc-Metadata-hasleader": "true"}
"""A member without a leader is to say so: it would otherwise let a watch wait in silence."""


class _Refused(Exception):
    """etcd answered, and said no."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class EtcdClient:
    """The requests of one node."""

    def __init__(self, settings: EtcdSettings, hear: Callable[[api.Answer | api.Tidings], None]) -> None:
        """`hear` gets every answer. Raises StartError if the certificates cannot be used."""
        self._settings = settings
        self._hear = hear
        self._at = 0
        """Which endpoint is asked."""
        self._token = ""
        self._tls = make_context(settings)
        self._made: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._made is None:
            # A start without etcd need not pay for it.
            import aiohttp

            connector = aiohttp.TCPConnector(limit=limits.etcd_requests_max, ssl=self._tls or True)
            self._made = aiohttp.ClientSession(connector=connector, headers=HEADERS)
        return self._made

    def order(self, request: api.Request) -> None:
        """Ask; the answer comes later."""
        loop = asyncio.get_running_loop()
        if isinstance(request, api.Watch):
            if self._watching is not None:
                self._watching.cancel()
            self._watching = self._keep(loop.create_task(self._watch(request)))
        elif len(self._tasks) >= limits.etcd_requests_max:
            reason = f"{len(self._tasks)} requests are on their way"
            loop.call_soon(self._hear, api.Failed(request.token, reason))
        else:
            self._keep(loop.create_task(self._ask(request)))

    async def close(self) -> None:
        """Give up what is on its way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._made is not None:
            await self._made.close()

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- one question ---

    async def _ask(self, request: api.Txn | api.Grant | api.Renew | api.Revoke) -> None:
        path, body = wire.encode(request)
        endpoint = self._endpoint
        try:
            async with asyncio.timeout(limits.etcd_answer_s):
                answer = wire.decode(request, await self._post(endpoint, path, body))
        except _Refused as error:
            if isinstance(request, api.Revoke) and error.code == LEASE_NOT_FOUND:
                answer = api.Revoked(request.token)
            else:
                answer = api.Failed(request.token, str(error))
        except _problems() as error:
            answer = api.Failed(request.token, self._turn(endpoint, error))
        self._hear(answer)

    async def _post(self, endpoint: str, path: str, body: bytes) -> bytes:
        """Ask an endpoint, as the user if there is one."""
        headers = await self._log_in(endpoint)
        async with self._session.post(endpoint + path, data=body, headers=headers) as response:
            content = await response.read()
            if response.status != 200:
                raise self._refusal(endpoint, content, response.status)
            return content

    async def _log_in(self, endpoint: str) -> dict[str, str]:
        settings = self._settings
        if settings.user and not self._token:
            body = msgspec.json.encode({"name": settings.user, "password": settings.password})
            async with self._session.post(endpoint + "/v3/auth/authenticate", data=body) as response:
                content = await response.read()
                if response.status != 200:
                    found = self._refusal(endpoint, content, response.status)
                    raise _Refused(found.code, f"{found} (user {settings.user})")
                self._token = msgspec.json.decode(content, type=wire.LoggedIn).token
        return {"Authorization": self._token} if self._token else {}

    def _refusal(self, endpoint: str, content: bytes, status: int) -> _Refused:
        try:
            found = msgspec.json.decode(content, type=wire.Refusal, strict=False)
        except msgspec.MsgspecError:
            found = wire.Refusal(f"HTTP status {status}", 0)
        if found.code in UNAUTHENTICATED:
            self._token = ""
        if found.code != LEASE_NOT_FOUND:
            self._leave(endpoint)
        return _Refused(found.code, f"{endpoint} says: {found.error or found.message}")

    @property
    def _endpoint(self) -> str:
        return self._settings.endpoints[self._at % len(self._settings.endpoints)]

    def _leave(self, endpoint: str) -> None:
        """Ask another endpoint from now on. Several requests may fail at once, and the next one is well."""
        if endpoint == self._endpoint:
            self._at += 1

    def _turn(self, endpoint: str, error: BaseException) -> str:
        """Leave an endpoint; says what was wrong with it."""
        self._leave(endpoint)
        what = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return f"{endpoint}: {what}"

    # --- what changes ---

    async def _watch(self, request: api.Watch) -> None:
        endpoint = self._endpoint
        try:
            reason = await self._follow(endpoint, request)
        except _Refused as error:
            reason = str(error)
        except _problems() as error:
            reason = self._turn(endpoint, error)
        self._hear(api.WatchLost(request.token, reason))

    async def _follow(self, endpoint: str, request: api.Watch) -> str:
        """Tell changes until the end; why it came."""
        import aiohttp

        path, body = wire.encode(request)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.etcd_answer_s)
        headers = await self._log_in(endpoint)
        async with self._session.post(
            endpoint + path, data=body, headers=headers, timeout=timeout
        ) as response:
            if response.status != 200:
                raise self._refusal(endpoint, await response.read(), response.status)
            async for line in _lines(response.content.iter_any()):
                seen, why = wire.decode_watch(request.token, line)
                if seen is not None:
                    self._hear(seen)
                if why:
                    return f"{endpoint}: {why}"
        return f"{endpoint}: the watch has ended"


def _problems() -> tuple[type[BaseException], ...]:
    import aiohttp

    return (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError, _TooLong)


class _TooLong(Exception):
    """A line that nobody can have meant."""


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Cut a stream into lines."""
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        for line in _cut(rest):
            yield line
        if len(rest) > limits.etcd_answer_bytes_max:
            raise _TooLong(f"a line of more than {limits.etcd_answer_bytes_max} bytes")


def _cut(rest: bytearray) -> Iterator[bytes]:
    while (end := rest.find(b"\n")) >= 0:
        line = bytes(rest[:end])
        del rest[: end + 1]
        if line.strip():
            yield line


def make_context(settings: EtcdSettings) -> ssl.SSLContext | None:
    """TLS to etcd, if any endpoint wants it; raises StartError."""
    if not any(endpoint.startswith("https:") for endpoint in settings.endpoints):
        return None
    context = ssl.create_default_context()
    try:
        if settings.cacertfile:
            context.load_verify_locations(settings.cacertfile)
        if settings.certfile:
            context.load_cert_chain(settings.certfile, settings.keyfile)
    except (OSError, ssl.SSLError) as error:
        names = "etcd.cacertfile, etcd.certfile, etcd.keyfile"
        raise StartError(f"The certificates for etcd ({names}) cannot be used: {error}.") from None
    return context
