"""What the HTTP layer needs of the process it runs in, and of the node behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mirrormq.base.durations import Durations
from mirrormq.base.types import Peer
from mirrormq.broker.census import Census
from mirrormq.broker.channel import Channel
from mirrormq.log.journal import Journal
from mirrormq.log.recycler import Recycler
from mirrormq.meta.authenticator import Authenticator
from mirrormq.node.admin import AdminHost
from mirrormq.node.logins import Logins
from mirrormq.node.membership import Membership
from mirrormq.node.news import News
from mirrormq.node.rates import Rates
from mirrormq.node.requests import Request
from mirrormq.node.steps import Done
from mirrormq.node.switch import Switch


@dataclass(frozen=True)
class WebSettings:
    """What browsers are told; empty means nothing."""

    origins: tuple[str, ...] = ()
    """Origins that may read answers, or `*`."""
    max_age: int = 1800
    """Seconds for which a browser may remember what it may do."""
    content_policy: str = ""
    transport_policy: str = ""


class Node(AdminHost, Protocol):
    """The node, as the API reads it."""

    memory_used: int
    disk_free: int
    news: News
    """What is known of the other nodes."""
    membership: Membership
    switch: Switch
    rates: Rates
    channels: dict[int, Channel]
    census: Census
    journal: Journal
    recycler: Recycler
    logins: Logins
    authenticator: Authenticator


class Client(Protocol):
    """The other end of a connection within the process."""

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Bytes of the node."""
        ...

    def pause_reading(self) -> None:
        """The node wants no more bytes for now."""
        ...

    def resume_reading(self) -> None:
        """It does again."""
        ...

    def hang_up(self) -> None:
        """The node closes the connection, after what it has written."""
        ...

    def abort(self) -> None:
        """At once."""
        ...


class Entrance(Protocol):
    """Where connections come in, those within the process, too."""

    def open(self, client: Client, peer: Peer) -> int:
        """Take in a client; returns the number it is known by."""
        ...

    def bytes(self, conn: int, data: memoryview) -> None:
        """Bytes of a client; nothing refers to `data` after this."""
        ...

    def lost(self, conn: int) -> None:
        """A client is gone. Called once per client, whoever closed it."""
        ...


class Driver(Protocol):
    """Runs the node in this loop."""

    @property
    def entrance(self) -> Entrance:
        """Where connections come in, as long as the application runs."""
        ...

    @property
    def node(self) -> Node:
        """The node."""
        ...

    @property
    def passes(self) -> Durations:
        """How long passes of the loop take."""
        ...

    def admin(self, request: Request, done: Done) -> None:
        """Ask the node for a change; `done` gets the answer, now or later, on the loop."""
        ...


class Backups(Protocol):
    """Copies the node's data folder while the node runs. What it refuses is a `node.steps.Refusal`."""

    async def start(self, target: str) -> dict[str, Any]:
        """Begin a copy into an empty folder of the node's machine."""
        ...

    async def progress(self) -> dict[str, Any]:
        """How far the copy is; waits a moment for its end. A copy that failed is refused with the reason."""
        ...


STOPPED, STARTING, RUNNING, STOPPING = "stopped", "starting", "running", "stopping"
"""What the application of a process may be."""


class Process(Protocol):
    """The process around the node, which goes on while its application is stopped."""

    name: str
    """Of the node."""
    state: str
    """Of its application."""

    @property
    def detail(self) -> str:
        """What the application waits for, or why it does not run; maybe nothing."""
        ...

    def note(self, level: str, text: str, **fields: object) -> None:
        """Tell the operator."""
        ...

    @property
    def driver(self) -> Driver:
        """Runs the node; raises `Stopped` unless the application runs."""
        ...

    @property
    def backups(self) -> Backups:
        """Copies the node's data folder; raises `Stopped` unless the application runs."""
        ...

    async def command(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """Carry out one of `PROCESS_COMMANDS`. What it refuses is a `node.steps.Refusal`."""
        ...


PROCESS_COMMANDS = (
    "stop_app",
    "start_app",
    "reset",
    "force_reset",
    "join_cluster",
    "leave_cluster",
    "force_boot",
    "set_vm_memory_high_watermark",
    "set_disk_free_limit",
    "set_log_level",
    "suspend_listeners",
    "resume_listeners",
    "rotate_logs",
)
"""What an administrator asks of the process and not of the node in it."""


class Stopped(Exception):
    """The application that should have answered does not run; the text says what to do."""


Facts = Callable[[], Mapping[str, Any]]
"""What only the process knows: pid, folders, files, listeners; `settings` (no secrets) and `certificates`
are functions, since they take a while.
"""
