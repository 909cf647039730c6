"""Starts a broker process for tests and talks to it over its pipes.

The pipes are the whole control: requests go to the child's standard input as lines of JSON, answers come
back on its standard output, and the end of the input is the end of the broker. Nobody but the parent can
reach them, so the admin API may stay off.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

START_SECONDS = 30.0
ANSWER_SECONDS = 30.0
STOP_SECONDS = 10.0
LOG_BYTES_SHOWN = 4_000


class BrokerError(Exception):
    """The broker did not start, did not answer, or refused a request."""


@dataclass(frozen=True)
class Broker:
    """A running broker, seen through one virtual host."""

    host: str
    port: int
    vhost: str
    user: str
    password: str
    admin_url: str | None
    """Address of the HTTP admin API, if it was asked for."""
    process: BrokerProcess = field(repr=False, compare=False)

    @property
    def url(self) -> str:
        """The address for clients: amqp://user:password@host:port/vhost."""
        user, password = quote(self.user, safe=""), quote(self.password, safe="")
        return f"amqp://{user}:{password}@{self.host}:{self.port}/{quote(self.vhost, safe='')}"

    def ask(self, command: str, **arguments: Any) -> Any:
        """Carry out an administrative request, such as add_user, set_permissions or set_policy."""
        return self.process.ask(command, **arguments)

    @contextlib.contextmanager
    def fresh_vhost(self, name: str) -> Iterator[Broker]:
        """A virtual host of this name that is gone afterwards, with everything in it."""
        self.ask("add_vhost", name=name, actor=self.user)
        try:
            yield Broker(self.host, self.port, name, self.user, self.password, self.admin_url, self.process)
        finally:
            self.ask("delete_vhost", name=name)


@contextlib.contextmanager
def running(config: Sequence[str] = (), *, admin: bool = False) -> Iterator[Broker]:
    """A broker of its own on a free port of this machine; `config` are lines of rabbitmq.conf."""
    process = BrokerProcess(config, admin=admin)
    try:
        yield process.broker()
    finally:
        process.stop()


@dataclass(frozen=True)
class Place:
    """Who and where a broker is that is not alone: its folder outlives it, until `root` is removed."""

    root: Path
    folder: Path
    node_name: str
    listen: str
    admin_listen: str

    def words(self) -> list[str]:
        """The options of the child that say so."""
        words = ["--root", str(self.root), "--node-name", self.node_name, "--listen", self.listen]
        return [*words, "--admin-listen", self.admin_listen]


class BrokerProcess:
    """The child process, its pipes and what it said when it was ready."""

    def __init__(
        self, config: Sequence[str] = (), *, admin: bool = False, place: Place | None = None
    ) -> None:
        """Start it. Without a place it is alone in a folder of its own, and what follows waits for it."""
        self._lock = threading.Lock()
        self._buffer = b""
        self._number = 0
        self._ready: Any = None
        self._folder = place.folder if place else Path(tempfile.mkdtemp(prefix="mirrormq-test-"))
        self._folder.mkdir(exist_ok=True, mode=0o700)
        self._log: IO[bytes] = (self._folder / "broker.log").open("ab")
        words = [sys.executable, "-P", "-m", "mirrormq.testing", str(self._folder)]
        words += ["--admin"] if admin else []
        words += place.words() if place else []
        if config:
            (self._folder / "mirrormq.conf").write_text("\n".join(config) + "\n", encoding="utf-8")
        try:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=_environment(os.environ),
                cwd=self._folder,
                # Ctrl-C goes to all processes of a terminal: the broker must outlive the tests' own clean-up.
                start_new_session=True,
            )
            if place is None:
                self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The broker's process."""
        return self._child.pid

    @property
    def folder(self) -> Path:
        """Where the broker keeps its data and its log while it runs."""
        return self._folder

    def wait_until_ready(self) -> None:
        """Wait until it accepts connections."""
        self._ready = self._read(START_SECONDS)

    def broker(self) -> Broker:
        """The broker through its default virtual host."""
        address = urlsplit(self._ready["amqp"][0])
        return Broker(
            host=str(address.hostname),
            port=int(address.port or 0),
            vhost="/",
            user=self._ready["user"],
            password=self._ready["password"],
            admin_url=self._ready["http"],
            process=self,
        )

    def ask(self, command: str, **arguments: Any) -> Any:
        """Carry out an administrative request."""
        with self._lock:
            self._number += 1
            line = json.dumps({"id": self._number, "do": command, "with": arguments})
            self._send(line.encode() + b"\n")
            answer = self._read(ANSWER_SECONDS)
            if answer["id"] != self._number:
                raise BrokerError(
                    f"answer {answer['id']} to request {self._number}: the pipes are out of step"
                )
        if "problem" in answer:
            raise BrokerError(f"{command}: {answer['problem']}")
        return answer["value"]

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._child.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Tell the process something."""
        self._child.send_signal(number)

    def bury(self) -> int:
        """Wait for the end of a process that was told to end, and leave its folder alone; its exit code."""
        try:
            code = self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout, self._log):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        return code

    def stop(self) -> None:
        """End the broker and remove its folder; safe to call again."""
        child = getattr(self, "_child", None)
        if child is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()
        self._log.close()
        # The child removes the folder itself; it could not if it was killed.
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, data: bytes) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(data)
            self._child.stdin.flush()
        except OSError as error:
            raise BrokerError(f"the broker is gone: {error}{self._last_words()}") from error

    def _read(self, seconds: float) -> Any:
        """One line from the child."""
        assert self._child.stdout is not None
        source = self._child.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([source], [], [], seconds)[0]:
                raise BrokerError(f"the broker did not answer within {seconds:g} s{self._last_words()}")
            data = os.read(source, 65_536)
            if not data:
                raise BrokerError(f"the broker ended{self._last_words()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            text = (self._folder / "broker.log").read_bytes()[-LOG_BYTES_SHOWN:].decode(errors="replace")
            return f"; its log ends with:\n{text}" if text.strip() else ""
        return ""


def _environment(source: Mapping[str, str]) -> dict[str, str]:
    """The parent's environment without settings of other nodes, able to import what the parent imported."""
    package = str(Path(__file__).resolve().parents[2])
    found = {name: value for name, value in source.items() if not name.startswith("MIRRORMQ_")}
    paths = [package, *filter(None, found.get("PYTHONPATH", "").split(os.pathsep))]
    found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return found
