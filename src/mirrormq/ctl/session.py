"""One run of `mirrormqctl`: the node it talks to, and what it prints.

Banners ("Listing queues ...") are for people: `-q`, `-s` and machine formats drop them, as with rabbitmqctl.
Results go to stdout, errors to stderr, and every way of failing ends as a `Failure` with its exit code.
"""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from mirrormq.client.admin import AdminClient, Refused, Unreachable
from mirrormq.ctl import locate, render
from mirrormq.ctl.faults import (
    CANNOT_CREATE,
    DATA,
    NO_INPUT,
    NO_PERMISSION,
    NO_USER,
    SOFTWARE,
    UNAVAILABLE,
    USAGE,
    Failure,
    Misuse,
)
from mirrormq.ctl.options import Options

TIMEOUT_SECONDS = 60.0
UNREACHABLE = "unreachable"
"""The kind of failure when nothing answered, or not in time."""

_CODES = {
    "no_such_user": NO_USER,
    "no_such_vhost": DATA,
    "bad_request": DATA,
    "authentication_failed": DATA,
    "user_exists": SOFTWARE,
    "not_authorised": NO_PERMISSION,
    "not_authorized": NO_PERMISSION,
    "unknown_command": USAGE,
    "cannot_create": CANNOT_CREATE,
    "app_stopped": USAGE,
    "app_running": USAGE,
    "unsupported": USAGE,
}


class Offline(Protocol):
    """Looks into a data folder that no node uses. Raises `FolderUnusable`."""

    def inspect(self, data: str, node: str | None, queue: tuple[str, str] | None) -> list[dict[str, Any]]:
        """What the log of every durable queue says, or of the one given by vhost and name."""
        ...

    def records(self, data: str, node: str | None, queue: tuple[str, str] | None) -> Iterator[dict[str, Any]]:
        """Their records."""
        ...

    def definitions(self, data: str, node: str | None) -> dict[str, Any]:
        """Term, vote and members of the definitions, and their `log`."""
        ...

    def verify(self, data: str, node: str | None) -> dict[str, Any]:
        """A summary of everything in the folder, with `faults`."""
        ...

    def force_boot(self, data: str, node: str | None) -> None:
        """Let the next start of the node not wait for others."""
        ...


class Session:
    """What a command needs: options, a connection to the node, and a way to answer."""

    def __init__(
        self,
        options: Options,
        *,
        out: TextIO | None = None,
        stdin: TextIO | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Connect lazily: `help` and misuse need no node."""
        self.options = options
        self.out = out or sys.stdout
        self.stdin = stdin or sys.stdin
        self.environment = os.environ if environment is None else environment
        self.offline_tools: Callable[[], Offline] | None = None
        """Whoever starts the command line gives them: this package knows nothing of files."""
        self._client: AdminClient | None = None
        self._name: str | None = None
        self._patience = TIMEOUT_SECONDS

    # -- the node -------------------------------------------------------------------------------------------

    @property
    def timeout(self) -> float:
        """Seconds to wait for an answer."""
        return self.options.timeout or self._patience

    def be_patient(self, seconds: float) -> None:
        """Wait so long for answers from now on, unless a time was given on the line."""
        self._patience = seconds

    @property
    def node_name(self) -> str:
        """The name of the node, asked of the node itself when it was given by address."""
        if self._name is None:
            self._name = str(self.call("ping")["node"])
        return self._name

    @property
    def url(self) -> str | None:
        """The address of a node given by hand; a folder or node named on the line wins over MIRRORMQ_URL."""
        options = self.options
        if options.url is not None or options.node is not None or options.data is not None:
            return options.url
        return self.environment.get("MIRRORMQ_URL") or None

    def local_node(self) -> locate.Node:
        """The node of this machine that the options name."""
        return locate.find(self.options.node, self.options.data, self.environment)

    def is_local_node_running(self) -> bool:
        """Does a node run below the folder that the options name?"""
        try:
            self.local_node()
        except Misuse:
            raise
        except Failure:
            return False
        return True

    @property
    def client(self) -> AdminClient:
        """The connection to the node's admin API."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    def call(self, command: str, **arguments: Any) -> Any:
        """Run an administrative command on the node; say of which other nodes the answer lacks something."""
        try:
            answer = self.client.ctl(command, **arguments)
        except Unreachable as error:
            raise Failure(
                f"{error}; is the node still running, and is its management listener on?", kind=UNREACHABLE
            ) from error
        except Refused as error:
            raise self._failure(error) from error
        self.warn_missing(self.client.missing)
        return answer

    def warn_missing(self, missing: Mapping[str, str], so: str = "what only it knows is not shown") -> None:
        """Say on stderr, where no script looks for rows, which nodes took no part and what that means."""
        if self.options.silent:
            return
        for node, reason in sorted(missing.items()):
            sys.stderr.write(f"Warning: node {node} {reason}; {so}\n")

    @property
    def offline(self) -> Offline:
        """The tools for a folder without a node."""
        if self.offline_tools is None:
            raise Failure("this command reads files: run it as `mirrormq ctl`", USAGE)
        return self.offline_tools()

    @property
    def data(self) -> str:
        """The data folder of commands that need no node."""
        return self.options.data or self.environment.get("MIRRORMQ_DATA_DIR") or locate.DEFAULT_ROOT

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()

    def _connect(self) -> AdminClient:
        options = self.options
        if self.url is not None:
            user = options.user or self.environment.get("MIRRORMQ_USER") or "guest"
            try:
                return AdminClient(
                    self.url,
                    user=user,
                    password=self._password_of(user),
                    timeout=self.timeout,
                    cafile=options.cafile,
                )
            except ValueError as error:
                raise Misuse(f"--url: {error}") from error
        node = self.local_node()
        self._name = node.name
        if node.http is None:
            raise Failure(
                f"node {node.name} runs without its admin API, so nothing can administer it; "
                "restart it with management.tcp.port set"
            )
        if options.user is not None:
            password = self._password_of(options.user)
            return AdminClient(node.http, user=options.user, password=password, timeout=self.timeout)
        return AdminClient(node.http, key=node.key(), timeout=self.timeout)

    def amqp_login(self) -> tuple[str, str]:
        """User and password for AMQP, which knows no key: as given, else the default of a fresh node."""
        user = self.options.user or self.environment.get("MIRRORMQ_USER")
        return (user, self._password_of(user)) if user else ("guest", "guest")

    def _password_of(self, user: str) -> str:
        """The log-in password from a file, the environment or a prompt; never from the command line."""
        path = self.options.password_file
        if path is not None:
            try:
                return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
            except OSError as error:
                raise Failure(f"--password-file: {error}", NO_INPUT) from error
        if "MIRRORMQ_PASSWORD" in self.environment:
            return self.environment["MIRRORMQ_PASSWORD"]
        if not self.stdin.isatty():
            raise Failure(
                f"no password for user {user}: set MIRRORMQ_PASSWORD, or give --password-file FILE",
                NO_PERMISSION,
            )
        return getpass.getpass(f"Password of {user}: ")

    def _failure(self, error: Refused) -> Failure:
        if error.status == 401 and self.url is None and self.options.user is None:
            return Failure(
                f"the node does not accept the key in its data folder ({error.reason}); restart the node",
                NO_PERMISSION,
            )
        return Failure(error.reason, _CODES.get(error.error, UNAVAILABLE), error.error)

    # -- answering ------------------------------------------------------------------------------------------

    @property
    def formatter(self) -> str:
        """The chosen format; drawn tables are the default only where a person looks at them."""
        return self.options.formatter or ("pretty_table" if self.out.isatty() else "table")

    @property
    def is_for_machines(self) -> bool:
        """JSON and CSV carry nothing but the result."""
        return self.formatter in ("json", "json_stream", "csv", "erlang")

    @property
    def is_json(self) -> bool:
        """JSON was asked for."""
        return self.formatter in ("json", "json_stream")

    @property
    def is_watched(self) -> bool:
        """A person looks at a terminal, and wants to see more than the result."""
        is_wanted = not (self.is_for_machines or self.options.quiet or self.options.silent)
        return is_wanted and self.out.isatty()

    def say(self, text: str) -> None:
        """A banner: what is about to happen."""
        if not (self.options.quiet or self.options.silent or self.is_for_machines):
            self.out.write(text + "\n")
            self.out.flush()

    def write(self, text: str) -> None:
        """A result, whatever the options."""
        self.out.write(text + "\n")

    def write_json(self, value: Any) -> None:
        """A JSON result on one line."""
        self.out.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")

    def finish(self, message: str | None = None, **facts: Any) -> None:
        """End a command that has no table: its message, or {"result": "ok"} in JSON."""
        if self.is_json:
            shown: dict[str, Any] = {"result": "ok", "node": self.node_name, **facts}
            if message is not None:
                shown["message"] = message
            self.write_json(shown)
        elif message is not None:
            self.write(message)

    def table(
        self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, headers: bool = True
    ) -> None:
        """Rows in the chosen format."""
        headers = headers and self.options.headers and not self.options.silent
        formatter = self.formatter
        if formatter == "json":
            render.as_json(rows, columns, self.out)
        elif formatter == "json_stream":
            render.as_json_lines(rows, columns, self.out)
        elif formatter == "csv":
            render.as_csv(rows, columns, self.out, headers=headers)
        elif formatter == "erlang":
            render.as_erlang(rows, columns, self.out)
        elif formatter == "pretty_table":
            render.drawn(rows, columns, self.out, headers=headers)
        else:
            render.tab_separated(rows, columns, self.out, headers=headers)

    def read_secret(self, label: str = "Password: ") -> str:
        """A password that was left out of the command line: typed without echo, or one line of stdin."""
        if self.stdin.isatty():
            return getpass.getpass(label)
        line = self.stdin.readline()
        if not line:
            raise Failure("Password is not provided via argument or stdin", DATA)
        return line.rstrip("\r\n")
