"""A node without a machine, administered: requests, HTTP and passwords work, time stands still."""

from __future__ import annotations

import base64
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from mirrormq import http
from mirrormq.base.durations import PASS_BOUNDS_US, Durations
from mirrormq.base.types import Peer
from mirrormq.http.ports import Backups, Stopped, WebSettings
from mirrormq.node import effects as fx
from mirrormq.node import requests
from mirrormq.node.node import Node
from mirrormq.node.steps import Answer, Done
from tests.support.nodekit import NodeKit

KEY = "0123456789abcdef" * 4
FACTS: Mapping[str, Any] = {
    "pid": 4711,
    "data_dir": "/data/n1",
    "config_files": [],
    "log_files": ["<stderr>"],
    "listeners": [{"protocol": "amqp", "interface": "[::]", "port": 5672}],
    "settings": lambda: {"heartbeat": 60, "default_pass": "[hidden]"},
    "fd_used": 10,
    "fd_limit": 1024,
}


class AdminKit(NodeKit):
    """A started node that also hashes passwords (in a form nobody should use) and answers administrators."""

    def __init__(self, **settings: Any) -> None:
        self.hashes_due: list[fx.Work] = []
        self.hold_hashes = False
        self.stop_reasons: list[str] = []
        super().__init__(**settings)

    def ask(self, request: requests.Request) -> Any:
        """Carry out a request that must succeed."""
        answer = self.answer(request)
        assert answer.problem is None, answer.problem
        return answer.value

    def refusal(self, request: requests.Request) -> tuple[str, str]:
        """Carry out a request that must be refused: kind and text."""
        answer = self.answer(request)
        assert answer.problem is not None, answer.value
        return answer.problem

    def answer(self, request: requests.Request) -> Answer:
        answers = self.begin(request)
        assert len(answers) == 1, answers
        return answers[0]

    def begin(self, request: requests.Request) -> list[Answer]:
        """Hand in a request; the list gets the answer when there is one."""
        answers: list[Answer] = []
        self.node.admin(self.now, request, answers.append)
        self.run()
        return answers

    def hash(self) -> None:
        """The hashing thread finishes what it was given."""
        due, self.hashes_due = self.hashes_due, []
        for work in due:
            if work.kind == "argon2_hash":
                result: object = _poor_hash(work.args[0])
            else:
                stored, password = work.args
                result = stored == _poor_hash(password)
            self.node.work_done(self.now, work.token, result)

    def _drain(self) -> bool:
        effects = self.node.effects.take()
        for effect in effects:
            if isinstance(effect, fx.Work):
                self.hashes_due.append(effect)
            elif isinstance(effect, fx.Stop):
                self.stop_reasons.append(effect.reason)
            else:
                self._put_back(effect)
        done = super()._drain()
        if self.hashes_due and not self.hold_hashes:
            self.hash()
            return True
        return done or bool(effects)

    def _put_back(self, effect: fx.Effect) -> None:
        self.node.effects._items.append(effect)


def _poor_hash(password: str | bytes) -> str:
    raw = password.encode() if isinstance(password, str) else password
    return "$argon2id$" + base64.b64encode(raw).decode()


class KitDriver:
    """Runs the kit's node for the HTTP layer."""

    def __init__(self, kit: AdminKit) -> None:
        self.kit = kit
        self.passes = Durations(PASS_BOUNDS_US)

    @property
    def node(self) -> Node:
        return self.kit.node

    def admin(self, request: requests.Request, done: Done) -> None:
        self.node.admin(self.kit.now, request, done)
        self.kit.run()

    @property
    def entrance(self) -> KitDriver:
        return self

    def open(self, client: Any, peer: Peer) -> int:
        """Take in a client of the API's own."""
        self.kit._conn += 1
        conn = self.kit._conn
        self.kit.clients[conn] = Inside(client)  # type: ignore[assignment]
        self.node.client_open(self.kit.now, conn, peer)
        self.kit.run()
        return conn

    def bytes(self, conn: int, data: memoryview) -> None:
        self.node.client_bytes(self.kit.now, conn, data)
        self.kit.run()

    def lost(self, conn: int) -> None:
        self.node.client_closed(self.kit.now, conn)
        self.kit.run()


class Inside:
    """Hands what the node writes to a client of the API's own."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def received(self, data: bytes) -> None:
        self._client.write([data])


class KitProcess:
    """A process whose application is the kit's node, and runs until a test says otherwise."""

    detail = ""

    def __init__(self, kit: AdminKit) -> None:
        self.kit = kit
        self.name = kit.node.node_name
        self.state = "running"
        self.commands: list[tuple[str, dict[str, Any]]] = []

    def note(self, level: str, text: str, **fields: object) -> None:
        self.kit.node.note(level, text, **fields)
        self.kit.run()

    @property
    def driver(self) -> KitDriver:
        if self.state != "running":
            raise Stopped(f"this node's application is {self.state}; run start_app")
        return KitDriver(self.kit)

    @property
    def backups(self) -> Backups:
        raise Stopped("a kit has no data folder")

    async def command(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        self.commands.append((name, given))
        return {}


class Api:
    """Speaks HTTP to a kit's node."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def call(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        user: str | None = "guest",
        password: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and decoded answer; users of tests have their name as password."""
        extra = dict(headers or {})
        if user is not None:
            token = base64.b64encode(f"{user}:{user if password is None else password}".encode()).decode()
            extra["Authorization"] = f"Basic {token}"
        options: dict[str, Any] = {"data": body} if isinstance(body, str | bytes) else {"json": body}
        target = aiohttp.client.URL(f"{self.url}/api/{path}", encoded=True)
        async with self._session.request(verb, target, headers=extra, **options) as response:
            data = await response.read()
            return response.status, await response.json() if data else None

    async def get(self, path: str, **who: Any) -> Any:
        status, found = await self.call("GET", path, **who)
        assert status == 200, (status, found)
        return found

    async def put(self, path: str, body: Any = None, **who: Any) -> tuple[int, Any]:
        return await self.call("PUT", path, {} if body is None else body, **who)

    async def ctl(self, command: str, **arguments: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"MirrorMQ-Key {KEY}"}
        return await self.call("POST", f"ctl/{command}", arguments, user=None, headers=headers)


@contextlib.asynccontextmanager
async def serving(
    kit: AdminKit, process: KitProcess | None = None, web: WebSettings | None = None
) -> AsyncIterator[Api]:
    """The admin API of a kit's node on a free port."""
    listening = socket.create_server(("127.0.0.1", 0))
    used = process or KitProcess(kit)
    api = await http.start(used, listening, key=KEY, facts=lambda: FACTS, settings=web)
    async with aiohttp.ClientSession() as session:
        yield Api(session, api.url)
    await api.stop()
