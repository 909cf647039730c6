"""A private RabbitMQ from the system's packages, for tests that compare MirrorMQ with the original.

`RabbitMQ.start()` runs one node on free loopback ports with its own epmd, cookie, home and data in a
temporary folder; `stop()` ends exactly the processes it started and removes the folder, so nothing is left
behind and a RabbitMQ of the machine's owner is never touched. `cluster()` runs several that know each other,
by the epmd of the first. `installed()` says why it cannot run, if so.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
CTL_TIMEOUT_S = 60.0
PORTS = 5
"""Ports of a node."""
READY_MARK = b"completed with"
COOKIE = "MIRRORMQTESTS"


def binaries() -> Path | None:
    """Folder of the plain scripts (Debian's commands in the path are wrappers that want another user)."""
    chosen = os.environ.get("RABBITMQ_BIN")
    if chosen:
        return Path(chosen) if Path(chosen, "rabbitmq-server").exists() else None
    search = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which("rabbitmq-server", path=search)
    return Path(found).resolve().parent if found else None


def installed() -> bool:
    return binaries() is not None and shutil.which("epmd") is not None


def version() -> str:
    """Version of the installed RabbitMQ, read from the name of its program folder (no node is asked)."""
    folder = binaries()
    if folder is None:
        return ""
    home = (folder / "rabbitmq-server").resolve().parent.parent.name
    return home.rpartition("-")[2]


def free_ports(count: int) -> list[int]:
    """Ports that were free together a moment ago, below the range from which outgoing connections draw."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        candidate = 20000 + (os.getpid() * 37) % 8000
        while len(ports) < count:
            candidate += 1
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", candidate))
                ports.append(candidate)
        return ports


class RabbitMQ:
    """One running node. Use `start()` or the `running()` context, not the constructor."""

    def __init__(
        self,
        folder: Path,
        plugins: Sequence[str],
        config: Sequence[str],
        *,
        ports: Sequence[int] = (),
        beside: RabbitMQ | None = None,
    ) -> None:
        """`beside`: the node by whose epmd this one is found."""
        self.folder = folder
        self.plugins = list(plugins)
        self.config = list(config)
        own = ports or free_ports(PORTS)
        self.port, self.dist_port, self._epmd_port, self._ctl_port, self.management_port = own
        self._beside = beside
        if beside is not None:
            self._epmd_port = beside._epmd_port
        self.host = "127.0.0.1"
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, plugins: Sequence[str] = (), config: Sequence[str] = ()) -> RabbitMQ:
        """Start a node and return when it accepts AMQP. `config` are further lines of rabbitmq.conf."""
        node = cls.launch(plugins, config)
        try:
            node.wait()
        except BaseException:
            node.stop()
            raise
        return node

    @classmethod
    def launch(cls, plugins: Sequence[str] = (), config: Sequence[str] = ()) -> RabbitMQ:
        """Start a node without waiting for it."""
        node = cls(Path(tempfile.mkdtemp(prefix="rabbitmq-")), plugins, config)
        try:
            node.write_files()
            node.spawn()
        except BaseException:
            node.stop()
            raise
        return node

    def wait(self, seconds: float = START_TIMEOUT_S) -> None:
        """Return when the node says it is up; RuntimeError with its words if it gives up."""
        assert self._server is not None
        _wait_for_mark(self._server.stdout, time.monotonic() + seconds)

    @property
    def name(self) -> str:
        """Its name among Erlang's nodes."""
        return f"r{self.port}@localhost"

    @property
    def pid(self) -> int:
        """Process id of the Erlang machine (the script that was started only watches it)."""
        return int((self.folder / "pid").read_text())

    def stop(self) -> None:
        """End the node and its epmd, whatever state they are in, and remove the folder."""
        self.end(signal.SIGTERM, STOP_TIMEOUT_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self, number: signal.Signals, timeout_s: float) -> None:
        """Send the signal, wait for the end, end what is left; `spawn` starts it again on its data."""
        self.end_server(number, timeout_s)
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def end_server(self, number: signal.Signals, timeout_s: float) -> None:
        """As `end`, while epmd goes on for the others; `spawn_server` starts it again."""
        if self._server is not None:
            if number == signal.SIGKILL:
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(timeout_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
            if self._server.stdout is not None:
                self._server.stdout.close()
            self._server = None

    def ctl(self, *arguments: str) -> str:
        """rabbitmqctl on this node; its output, or RuntimeError with what it said."""
        folder = binaries()
        assert folder is not None
        done = subprocess.run(
            [str(folder / "rabbitmqctl"), "--quiet", *arguments],
            env=self._environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=CTL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done.stdout

    def import_definitions(self, definitions: dict[str, Any]) -> None:
        file = self.folder / "definitions.json"
        file.write_text(json.dumps(definitions))
        self.ctl("import_definitions", str(file))

    def _environment(self) -> dict[str, str]:
        own = {
            "HOME": str(self.folder / "home"),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self._ctl_port),
            "RABBITMQ_CTL_DIST_PORT_MAX": str(self._ctl_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "env.conf"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))
        }
        kept.pop("NOTIFY_SOCKET", None)
        return {**kept, **own}

    def write_files(self) -> None:
        for name in ("home", "mnesia", "log"):
            (self.folder / name).mkdir()
        cookie = self.folder / "home" / ".erlang.cookie"
        cookie.write_text(COOKIE)
        cookie.chmod(0o400)
        (self.folder / "env.conf").touch()
        (self.folder / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        lines = [f"listeners.tcp.1 = {self.host}:{self.port}", *self.config]
        if "rabbitmq_management" in self.plugins:
            lines += [f"management.tcp.ip = {self.host}", f"management.tcp.port = {self.management_port}"]
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")

    def spawn(self) -> None:
        epmd = shutil.which("epmd")
        if not installed() or epmd is None:
            raise RuntimeError("rabbitmq-server is not installed")
        if self._beside is None:
            self._epmd = subprocess.Popen(
                [epmd, "-port", str(self._epmd_port), "-address", "127.0.0.1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self.spawn_server()

    def spawn_server(self) -> None:
        """Start the node, whose epmd runs."""
        folder = binaries()
        assert folder is not None
        self._server = subprocess.Popen(
            [str(folder / "rabbitmq-server")],
            env=self._environment(),
            cwd=self.folder,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


def _wait_for_mark(stream: Any, deadline: float) -> None:
    """Read the node's start-up lines until it says it is up (it prints nothing more afterwards)."""
    seen = b""
    while READY_MARK not in seen:
        left = deadline - time.monotonic()
        readable, _, _ = select.select([stream], [], [], max(left, 0))
        chunk = os.read(stream.fileno(), 4096) if readable else b""
        if not chunk:
            raise RuntimeError(f"RabbitMQ did not start:\n{seen.decode(errors='replace')}")
        seen += chunk


@contextlib.contextmanager
def running(plugins: Sequence[str] = (), config: Sequence[str] = ()) -> Iterator[RabbitMQ]:
    node = RabbitMQ.start(plugins, config)
    try:
        yield node
    finally:
        node.stop()


@contextlib.contextmanager
def cluster(count: int, config: Sequence[str] = ()) -> Iterator[list[RabbitMQ]]:
    """Nodes joined to the first of them, in folders of their own."""
    nodes: list[RabbitMQ] = []
    # At once for all: some of a node's ports are bound only now and then.
    ports = free_ports(PORTS * count)
    with contextlib.ExitStack() as stack:
        for place in range(count):
            folder = Path(tempfile.mkdtemp(prefix="rabbitmq-"))
            own = ports[PORTS * place : PORTS * (place + 1)]
            node = RabbitMQ(folder, (), config, ports=own, beside=nodes[0] if place else None)
            stack.callback(node.stop)
            node.write_files()
            node.spawn()
            node.wait()
            nodes.append(node)
        for node in nodes[1:]:
            node.ctl("stop_app")
            node.ctl("reset")
            node.ctl("join_cluster", nodes[0].name)
            node.ctl("start_app")
        yield nodes
