"""How much memory this process may and does use, and how much disk is left, as the kernel tells it.

The memory of the machine is the least of what is built in and what any control group above this process
allows (version 1 and 2), so that an alarm comes before the kernel kills a node in a container.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mirrormq.runtime.values import Share

PAGE = os.sysconf("SC_PAGE_SIZE")


class Gauges:
    """Reads the gauges of this process. `root` is / except in tests."""

    def __init__(self, data_dir: Path, root: Path = Path("/")) -> None:
        self.data_dir = data_dir
        self.root = root
        self._statm = root / "proc/self/statm"

    def memory_used(self) -> int:
        """Return the resident bytes of this process."""
        try:
            return int(self._statm.read_bytes().split()[1]) * PAGE
        except OSError:
            # Without /proc the peak is the best that is known.
            import resource

            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def disk_free(self) -> int:
        """Return the bytes this process may still write beside its data."""
        found = os.statvfs(self.data_dir)
        return found.f_bavail * found.f_frsize

    def memory_total(self) -> int:
        """Return the memory this process may count on."""
        return min([self._built_in(), *self._group_limits()])

    def _built_in(self) -> int:
        try:
            for line in (self.root / "proc/meminfo").read_text(encoding="ascii").splitlines():
                if line.startswith("MemTotal:"):
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        return os.sysconf("SC_PHYS_PAGES") * PAGE

    def _group_limits(self) -> Iterator[int]:
        for mount, path, file in self._groups():
            folder = mount.joinpath(*path)
            while True:
                limit = _read_limit(folder / file)
                if limit is not None:
                    yield limit
                if folder in {mount, folder.parent}:
                    break
                folder = folder.parent

    def _groups(self) -> Iterator[tuple[Path, tuple[str, ...], str]]:
        """Yield (mount point, path of this process below it, name of the limit's file) per hierarchy."""
        mine = self._own_groups()
        for kind, top, mount in self._mounts():
            path = mine.get(kind)
            if path is None:
                continue
            # In a container the mount shows only the subtree `top`; a path outside it is seen as its root.
            inside = path[len(top) :] if path == top or path.startswith(top.rstrip("/") + "/") else ""
            parts = tuple(part for part in inside.split("/") if part not in {"", ".", ".."})
            file = "memory.max" if kind == "v2" else "memory.limit_in_bytes"
            yield self.root / mount.lstrip("/"), parts, file

    def _own_groups(self) -> dict[str, str]:
        groups: dict[str, str] = {}
        for line in _lines(self.root / "proc/self/cgroup"):
            number, controllers, path = line.split(":", 2)
            if number == "0" and not controllers:
                groups["v2"] = path
            elif "memory" in controllers.split(","):
                groups["v1"] = path
        return groups

    def _mounts(self) -> Iterator[tuple[str, str, str]]:
        """Yield (version, subtree shown, mount point) of every control group mount with memory limits."""
        for line in _lines(self.root / "proc/self/mountinfo"):
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) < 5 or len(kind) < 3:
                continue
            if kind[0] == "cgroup2":
                yield "v2", fields[3], fields[4]
            elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
                yield "v1", fields[3], fields[4]


def limit_bytes(limit: int | Share, memory_total: int) -> int:
    """Turn a limit that may be a part of the memory into bytes."""
    return int(limit.of_memory * memory_total) if isinstance(limit, Share) else limit


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
