"""Finding the node to talk to: `node.json` and the key file in its data folder, or an address given by hand.

The node writes both; the key is readable by the node's own user only, which is what makes that user an
administrator. A `node.json` whose process is gone is left from a crash and is never used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirrormq.ctl.faults import NO_PERMISSION, UNAVAILABLE, Failure, Misuse

NODE_FILE = "node.json"
KEY_FILE = "node.key"
DEFAULT_ROOT = "data"

START = "start one with `mirrormq serve`"
ELSEWHERE = (
    "say where its data is with --data DIR, or for another machine --url http://host:15672 --user NAME"
)


@dataclass(frozen=True)
class Node:
    """A running node of this machine, as its `node.json` describes it."""

    name: str
    pid: int
    folder: Path
    http: str | None
    amqp: tuple[str, ...]

    def key(self) -> str:
        """The key that makes its reader an administrator."""
        path = self.folder / KEY_FILE
        try:
            return path.read_text(encoding="ascii").strip()
        except PermissionError:
            raise Failure(
                f"the key of node {self.name} can be read only by the user it runs as ({path}); "
                "run this as that user, or log in with --url and --user",
                NO_PERMISSION,
            ) from None
        except OSError as error:
            raise Failure(f"the key of node {self.name} cannot be read: {error}; restart the node") from None


def find(node: str | None, data: str | None, environment: Mapping[str, str]) -> Node:
    """The one running node that fits, or a `Failure` that says what to do."""
    root = Path(data or environment.get("MIRRORMQ_DATA_DIR") or DEFAULT_ROOT)
    found = [entry for entry in (_read(path) for path in _candidates(root)) if entry is not None]
    fitting = [entry for entry in found if node is None or _fits(node, entry.name)]
    running = [entry for entry in fitting if is_alive(entry.pid)]
    if len(running) == 1:
        return running[0]
    if len(running) > 1:
        names = ", ".join(sorted(entry.name for entry in running))
        raise Misuse(f"{len(running)} nodes run below {root}: {names}; choose one with -n NODE.")
    if fitting:
        gone = fitting[0]
        raise Failure(
            f"node {gone.name} is not running (its process {gone.pid} is gone); {START}", UNAVAILABLE
        )
    if node is not None:
        known = ", ".join(sorted(entry.name for entry in found if is_alive(entry.pid)))
        others = f"; running there: {known}" if known else ""
        raise Failure(f"no node '{node}' runs below {root}{others}; {START}, or {ELSEWHERE}", UNAVAILABLE)
    raise Failure(f"no node runs below {root}; {START}, or {ELSEWHERE}", UNAVAILABLE)


def running(data: str | None, environment: Mapping[str, str]) -> list[str]:
    """The names of all nodes that run below the folder."""
    root = Path(data or environment.get("MIRRORMQ_DATA_DIR") or DEFAULT_ROOT)
    found = (_read(path) for path in _candidates(root))
    return sorted(entry.name for entry in found if entry is not None and is_alive(entry.pid))


def _candidates(root: Path) -> list[Path]:
    """The folder itself, or the folders of nodes directly below it."""
    own = root / NODE_FILE
    if own.is_file():
        return [own]
    return sorted(root.glob(f"*/{NODE_FILE}"))


def _read(path: Path) -> Node | None:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        return Node(
            name=str(found["name"]),
            pid=int(found["pid"]),
            folder=path.parent,
            http=found.get("http") or None,
            amqp=tuple(found.get("amqp") or ()),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Half-written or foreign: a node that starts just now replaces it in a moment.
        return None


def _fits(wanted: str, name: str) -> bool:
    return wanted == name or ("@" not in wanted and name.partition("@")[0] == wanted)


def is_alive(pid: int) -> bool:
    """Is there such a process?"""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
