"""The broker process of a test run: one node on a free loopback port, controlled by the pipes of its
parent.

It ends when its standard input does, or when its parent is gone (a pipe may live on in a forked relative),
without waiting for clients, and removes its folder. Passwords are hashed as cheaply as allowed: nothing
here is worth protecting, and tests log in a lot.
"""

from __future__ import annotations

import argparse
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

from mirrormq.node import report_cluster
from mirrormq.node.requests import named_requests
from mirrormq.node.steps import Answer
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.logs import open_log
from mirrormq.runtime.main import leave, load_settings, new_loop, parser
from mirrormq.runtime.server import Ready, Server

SETTINGS = (
    "shutdown_timeout=0",
    "password_hashing.argon2.memory=8",
    "password_hashing.argon2.passes=1",
    "disk_free_limit=0",
    "disk_reserve=0",
    # A test that looks at everything there is must find only what it has made.
    "events=off",
    "samples=off",
)
PARENT_CHECK_SECONDS = 1.0


class Control:
    """Answers the parent's requests, and ends the node when the parent is done or gone."""

    def __init__(self, server: Server) -> None:
        """Listen to the parent; it may be gone before the node is ready."""
        self.is_parent_done = False
        self._server = server
        self._parent = os.getppid()
        self._requests = named_requests()
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def on_ready(self, ready: Ready) -> None:
        """Tell the parent, which asks for nothing before."""
        user = self._server.settings.default_user
        self._say({"amqp": ready.amqp, "http": ready.http, "user": user.name, "password": user.password})
        self._watch_parent()

    def _listen(self) -> None:
        # A thread, because standard input may be of a kind that an event loop cannot wait for.
        with open(0, "rb", closefd=False) as source:
            for line in source:
                self._server.loop.call_soon_threadsafe(self._answer, line)
        self._end()

    def _answer(self, line: bytes) -> None:
        asked: dict[str, Any] = json.loads(line)
        number = asked["id"]

        def done(answer: Answer) -> None:
            if answer.problem is not None:
                self._say({"id": number, "problem": f"{answer.problem.kind}: {answer.problem.text}"})
            else:
                self._say({"id": number, "value": answer.value})

        if asked["do"] == "cluster_status" and self._server.control.app is not None:
            view = report_cluster.view_of(self._server.control.app.driver.node, [])
            self._say({"id": number, "value": report_cluster.cluster_status(view)})
            return
        kind = self._requests.get(asked["do"])
        if kind is None:
            self._say({"id": number, "problem": f"unknown_command: {asked['do']}"})
            return
        try:
            request = msgspec.convert(asked["with"], kind)
        except msgspec.ValidationError as error:
            self._say({"id": number, "problem": f"bad_request: {error}"})
            return
        self._server.control.admin(request, done)

    def _say(self, message: dict[str, Any]) -> None:
        data = msgspec.json.encode(message) + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(1, data) :]

    def _watch_parent(self) -> None:
        if os.getppid() != self._parent:
            self._end()
        else:
            self._server.loop.call_later(PARENT_CHECK_SECONDS, self._watch_parent)

    def _end(self) -> None:
        self.is_parent_done = True
        os.kill(os.getpid(), signal.SIGTERM)


def main(argv: list[str]) -> int:
    """Run the node in a folder until the parent is done."""
    # Until the server has its own handler: the way out must lead past the folder.
    signal.signal(signal.SIGTERM, leave)
    options = _parser().parse_args(argv)
    try:
        settings = load_settings(parser().parse_args(_words(options))).settings
        server = Server(settings, open_log(settings.log), fresh=False, cure=lambda: "the tests again")
        control = Control(server)
        code = _run(server, control)
    except StartError as error:
        # The folder stays: the parent is there and shows the log.
        sys.stderr.write(f"mirrormq: {error}\n")
        return 1
    # A node of several is started again in its folder, unless there is nobody left who could do that.
    if control.is_parent_done or not options.root:
        shutil.rmtree(options.root or options.folder, ignore_errors=True)
    return code


def _run(server: Server, control: Control) -> int:
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(server.run(control.on_ready))
    except SystemExit:
        return 1


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m mirrormq.testing")
    option = made.add_argument
    option("folder", type=Path, help="where the node keeps its data")
    option("--root", type=Path, help="what to remove in the end, if the folder is to be kept until then")
    option("--node-name", default="mirrormq@localhost")
    option("--listen", default="127.0.0.1:0")
    option("--admin", action="store_true", help="serve the admin API")
    option("--admin-listen", default="127.0.0.1:0")
    return made


def _words(options: argparse.Namespace) -> list[str]:
    """Return the options of `mirrormq serve` that belong to those of this process."""
    folder: Path = options.folder
    words = ["--data", str(folder / "data"), "--node-name", options.node_name, "--listen", options.listen]
    # A file, and the first one: what a test asks for itself comes later and wins.
    (folder / "defaults.conf").write_text("\n".join(SETTINGS) + "\n", encoding="utf-8")
    words += ["--config", str(folder / "defaults.conf")]
    if (folder / "mirrormq.conf").exists():
        words += ["--config", str(folder / "mirrormq.conf")]
    if not options.admin:
        return [*words, "--no-admin"]
    host, _, port = options.admin_listen.rpartition(":")
    return [*words, "--set", f"management.tcp.ip={host}", "--set", f"management.tcp.port={port}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
