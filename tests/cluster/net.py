"""The network between the nodes of a cluster under test: every link goes through a fault proxy of ours.

Each node has a proxy in front of it, at the address under which all others know it. The proxy finds out which
node connects (by its process) and gives each its own path, so that any two nodes can be cut off from each
other, in one direction or in both, whichever of them dialled. A cut closes no socket.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support import faultproxy
from tests.support.faultproxy import FaultProxy

Pids = Callable[[], dict[str, int]]
"""The processes of the nodes, by name."""


class Net:
    """All proxies of a cluster."""

    def __init__(self, pids: Pids) -> None:
        self._pids = pids
        self._proxies: dict[str, FaultProxy] = {}
        self._paths: dict[tuple[str, str], faultproxy.Path] = {}

    def stand_before(self, name: str, front: tuple[str, int], target: tuple[str, int]) -> None:
        """Listen at `front` for whoever wants to reach this node."""

        def find_path(address: tuple[str, int]) -> faultproxy.Path | None:
            dialler = owner(address, front, self._pids())
            return self._path(dialler, name) if dialler else None

        self._proxies[name] = FaultProxy(target, front, find_path)

    def cut(self, one: str, other: str) -> None:
        """No byte passes between two nodes."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_one_way(self, source: str, target: str) -> None:
        """No byte passes from one node to another, over whichever connection; answers to nothing still do."""
        self._path(source, target).cut("forward")
        self._path(target, source).cut("back")

    def delay(self, one: str, other: str, seconds: float) -> None:
        """Bytes between two nodes arrive later, in each direction."""
        self._path(one, other).delay(seconds)
        self._path(other, one).delay(seconds)

    def lose(self, one: str, other: str) -> None:
        """No byte passes between two nodes, and what is on its way is lost with the connection."""
        self._path(one, other).cut(lose=True)
        self._path(other, one).cut(lose=True)

    def isolate(self, name: str) -> None:
        """Cut a node off from all others."""
        for other in self._proxies:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        """Everything passes again."""
        for path in list(self._paths.values()):
            path.heal()

    def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.close()

    def _path(self, dialler: str, target: str) -> faultproxy.Path:
        key = dialler, target
        if key not in self._paths:
            self._paths[key] = faultproxy.Path(self._proxies[target])
        return self._paths[key]


def owner(local: tuple[str, int], remote: tuple[str, int], pids: dict[str, int]) -> str | None:
    """Whose process holds the socket with these ends; None if none of these does any more."""
    ends = (_hex(local), _hex(remote))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if (words[1], words[2]) == ends:
            wanted = f"socket:[{words[9]}]"
            return next((name for name, pid in pids.items() if wanted in _open_files(pid)), None)
    return None


def _open_files(pid: int) -> Iterable[str]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield os.readlink(f"{folder}/{number}")


def _hex(address: tuple[str, int]) -> str:
    """An address as the kernel lists it: the host's bytes as a number of this machine."""
    number = int.from_bytes(socket.inet_aton(address[0]), "little")
    return f"{number:08X}:{address[1]:04X}"
