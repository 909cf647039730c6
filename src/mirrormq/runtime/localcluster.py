"""A cluster on one machine, as names, ports and files: what `mirrormq up` and `mirrormq.testing` start from.

Guarantee: the folders below a root are used by the nodes they were made for, or not at all. `nodes.json` in
the root lists those nodes and is written before the first of them starts; another number of nodes is refused
with one sentence, and `--fresh` removes only folders that are MirrorMQ's own and that nobody uses. All nodes
know one secret: it is made once, in the root, and copied to each node, so that a node can also be started by
hand.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mirrormq.runtime.faults import StartError
from mirrormq.runtime.folder import locked, open_folder, read_private
from mirrormq.runtime.ports import ADMIN_OFFSET, CLUSTER_OFFSET
from mirrormq.runtime.values import Address, PeerName

LISTING = "nodes.json"
SECRET = "cluster.secret"
LOOPBACK = "127.0.0.1"


class LocalNode(NamedTuple):
    """One node of a cluster on this machine."""

    name: str
    folder: Path
    port: int
    """Where it takes AMQP; the other two ports stand above it."""
    host: str = "localhost"

    @property
    def short(self) -> str:
        """The name as `ctl -n` takes it where all nodes are on one machine."""
        return self.name.partition("@")[0]

    @property
    def ports(self) -> tuple[int, int, int]:
        """AMQP, admin API, other nodes."""
        return self.port, self.port + ADMIN_OFFSET, self.port + CLUSTER_OFFSET

    @property
    def peer(self) -> PeerName:
        """How the node is listed."""
        return PeerName(self.name, self.host, self.port + CLUSTER_OFFSET)

    @property
    def cluster_listen(self) -> Address:
        """Where it listens for the others: never beyond this machine."""
        return Address(LOOPBACK if self.host == "localhost" else self.host, self.peer.port)


def local_nodes(count: int, base: int, root: Path, host: str = "localhost") -> list[LocalNode]:
    """Name the nodes of a cluster; the first takes AMQP on the base."""
    names = [f"mirrormq-{number}@{host}" for number in range(1, count + 1)]
    return [LocalNode(name, root / name, base + place, host) for place, name in enumerate(names)]


def listed(nodes: Sequence[LocalNode]) -> str:
    """Return the value of `cluster_nodes`."""
    return ",".join(str(node.peer) for node in nodes)


def words_of(node: LocalNode, nodes: Sequence[LocalNode]) -> list[str]:
    """Return the options of `mirrormq serve` that make a node this one."""
    words = ["--node-name", node.name, "--data", str(node.folder), "--port-base", str(node.port)]
    words += ["--set", f"cluster_listen={node.cluster_listen}"]
    return [*words, "--set", f"cluster_nodes={listed(nodes)}"]


POLICY = "ha-all"


def policy_words() -> list[str]:
    """Return the options of `mirrormq serve` by which a new cluster mirrors every queue to all its nodes."""
    fields = {"pattern": ".*", "definition.ha-mode": "all", "apply_to": "queues"}
    return [
        word
        for field, value in fields.items()
        for word in ("--set", f"mirroring_policy.{POLICY}.{field}={value}")
    ]


def held(root: Path, alone: str) -> list[str]:
    """Names of the nodes whose data is below a root; `alone` is the name of a node that is no cluster's."""
    try:
        names: object = json.loads((root / LISTING).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [alone] if (root / alone / "VERSION").exists() else []
    except (OSError, ValueError) as error:
        raise StartError(f"{root / LISTING} cannot be read ({error}): {_AWAY}.") from None
    if not isinstance(names, list) or not all(_is_plain(name) for name in names):
        raise StartError(f"{root / LISTING} does not list nodes: {_AWAY}.")
    return names


_AWAY = "remove it, or give another folder with --data DIR"


def _is_plain(name: object) -> bool:
    """Whether a name can be that of a folder below the root: the file may be anybody's."""
    return isinstance(name, str) and "@" in name and "/" not in name


def check_held(root: Path, names: Sequence[str], alone: str, command: Sequence[str]) -> None:
    """Refuse a root that holds other nodes than these, with the commands that work."""
    found = held(root, alone)
    if not found or found == list(names):
        return
    what = f"one node ({found[0]})" if len(found) == 1 else f"{len(found)} nodes ({found[0]} ... {found[-1]})"
    start = " ".join([*command, "--nodes", str(len(found))])
    asked = "one node" if len(names) == 1 else f"{len(names)} nodes"
    raise StartError(
        f"{root} holds the data of {what}, not of {asked}: run '{start}', or give another folder with"
        " --data DIR, or remove that data with --fresh."
    )


def check_unused(nodes: Sequence[LocalNode]) -> None:
    """Refuse folders that running nodes own, before anything is started."""
    for node in nodes:
        if (node.folder / "VERSION").exists():
            with locked(node.folder):
                pass


def remove_held(root: Path, alone: str, *, but: Sequence[str] = ()) -> None:
    """Remove the data of all nodes below a root, and what they share."""
    names = [name for name in dict.fromkeys([*held(root, alone), alone]) if name not in but]
    for folder in (root / name for name in names):
        if folder.exists():
            # Opening empties it under its lock, and refuses what is not ours or is in use.
            open_folder(folder, fresh=True).close()
            shutil.rmtree(folder)
    for name in (LISTING, SECRET):
        (root / name).unlink(missing_ok=True)


def prepare(root: Path, nodes: Sequence[LocalNode]) -> None:
    """Write down who belongs to this root, and give every node the secret that all of them share."""
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o750)
        temporary = root / f"{LISTING}.new"
        temporary.write_text(json.dumps([node.name for node in nodes]) + "\n", encoding="utf-8")
        temporary.replace(root / LISTING)
        secret = read_private(root / SECRET)
        for node in nodes:
            node.folder.mkdir(exist_ok=True, mode=0o750)
            _write_private(node.folder / SECRET, secret)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{SECRET} is not ASCII text"
        raise StartError(f"{root} cannot be used: {reason}; give another folder with --data DIR.") from None


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, also if it was another's before."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{text}\n")
