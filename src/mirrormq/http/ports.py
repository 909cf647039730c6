"""What the HTTP layer needs of the process it runs in, and of the node behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mirrormq.node.admin import AdminHost
from mirrormq.node.requests import Request
from mirrormq.node.steps import Done


class Node(AdminHost, Protocol):
    """The node, as the API reads it."""

    memory_used: int
    disk_free: int

    def note(self, level: str, text: str, **fields: object) -> None:
        """Tell the operator."""
        ...


class Driver(Protocol):
    """Runs the node in this loop."""

    @property
    def node(self) -> Node:
        """The node."""
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


Facts = Callable[[], Mapping[str, Any]]
"""What only the process knows: pid, folders, files, listeners, settings without secrets."""
