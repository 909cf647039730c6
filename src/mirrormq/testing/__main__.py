"""The broker process of a test run: one node on a free loopback port, controlled by the pipes of its
parent.

It ends when its standard input does, or when its parent is gone (a pipe may live on in a forked relative),
without waiting for clients, and removes its folder. Passwords are hashed as cheaply as allowed: nothing
here is worth protecting, and tests log in a lot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from mirrormq.node.requests import named_requests
from mirrormq.node.steps import Answer
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.logs import open_log
from mirrormq.runtime.main import load_settings, parser
from mirrormq.runtime.server import Ready, Server

SETTINGS = (
    "shutdown_timeout=0",
    "password_hashing.argon2.memory=8",
    "password_hashing.argon2.passes=1",
    "disk_free_limit=0",
    "disk_reserve=0",
)
PARENT_CHECK_SECONDS = 1.0


class Control:
    """Answers the parent's requests, and ends the node when the parent is done or gone."""

    def __init__(self, server: Server, ready: Ready) -> None:
        self._server = server
        self._loop = server.loop
        self._parent = os.getppid()
        self._requests = named_requests()
        user = server.settings.default_user
        self._say({"amqp": ready.amqp, "http": ready.http, "user": user.name, "password": user.password})

    def start(self) -> None:
        """Listen to the parent."""
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        self._watch_parent()

    def _listen(self) -> None:
        # A thread, because standard input may be of a kind that an event loop cannot wait for.
        with open(0, "rb", closefd=False) as source:
            for line in source:
                self._loop.call_soon_threadsafe(self._answer, line)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end)

    def _answer(self, line: bytes) -> None:
        asked: dict[str, Any] = json.loads(line)
        number = asked["id"]

        def done(answer: Answer) -> None:
            if answer.problem is not None:
                self._say({"id": number, "problem": f"{answer.problem.kind}: {answer.problem.text}"})
            else:
                self._say({"id": number, "value": answer.value})

        kind = self._requests.get(asked["do"])
        if kind is None:
            self._say({"id": number, "problem": f"unknown_command: {asked['do']}"})
            return
        try:
            request = msgspec.convert(asked["with"], kind)
        except msgspec.ValidationError as error:
            self._say({"id": number, "problem": f"bad_request: {error}"})
            return
        self._server.driver.admin(request, done)

    def _say(self, message: dict[str, Any]) -> None:
        data = msgspec.json.encode(message) + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(1, data) :]

    def _watch_parent(self) -> None:
        if os.getppid() != self._parent:
            self._end()
        else:
            self._loop.call_later(PARENT_CHECK_SECONDS, self._watch_parent)

    def _end(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def main(argv: list[str]) -> int:
    """Run the node in a folder until the parent is done."""
    folder = Path(argv[0])
    words = ["--data", str(folder / "data"), "--node-name", "mirrormq@localhost", "--listen", "127.0.0.1:0"]
    # A file, and the first one: what a test asks for itself comes later and wins.
    (folder / "defaults.conf").write_text("\n".join(SETTINGS) + "\n", encoding="utf-8")
    words += ["--config", str(folder / "defaults.conf")]
    if (folder / "mirrormq.conf").exists():
        words += ["--config", str(folder / "mirrormq.conf")]
    if "--admin" in argv:
        words += ["--set", "management.tcp.ip=127.0.0.1", "--set", "management.tcp.port=0"]
    else:
        words.append("--no-admin")
    try:
        code = _run(words)
    except StartError as error:
        # The folder stays: the parent is there and shows the log.
        sys.stderr.write(f"mirrormq: {error}\n")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return code


def _run(words: list[str]) -> int:
    settings = load_settings(parser().parse_args(words)).settings
    log = open_log(settings.log)
    server = Server(settings, log, fresh=False, cure=lambda: "the tests again")
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(server.run(lambda ready: Control(server, ready).start()))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
