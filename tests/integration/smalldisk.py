"""A small disk of its own for a node: a tmpfs with a size, seen by the node and by who fills it from outside.

It is mounted in a private mount namespace, which a helper process keeps alive while nodes come and go.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.process import SERVE, Process, running

MIB = 1024 * 1024


class SmallDisk:
    """The disk under `folder`/data."""

    def __init__(self, folder: Path, holder: int, user: list[str]) -> None:
        self.folder = folder
        self.inside = Path(f"/proc/{holder}/root{folder}/data")
        """The disk as this process sees it."""
        self.enter = ["nsenter", "-t", str(holder), "-m", *user, "--"]
        """Words before a command that is to see the disk."""
        self._ballast = self.inside / "ballast"

    @property
    def free(self) -> int:
        found = os.statvfs(self.inside)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Take all that is left, as another program would."""
        with self._ballast.open("ab", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(MIB))
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))

    def relieve(self) -> None:
        """Give it back."""
        self._ballast.unlink()

    def node(self, *options: str) -> contextlib.AbstractContextManager[Process]:
        """A node with its data on this disk, and its log lines elsewhere."""
        return running(self.folder, "--no-admin", *options, command=[*self.enter, *SERVE])


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """Mount it; skips where the machine does not let us."""
    (folder / "data").mkdir(parents=True)
    flags, user = (["-m"], []) if os.geteuid() == 0 else (["-Urm"], ["-U", "--preserve-credentials"])
    script = f"mount -t tmpfs -o size={size} tmpfs {folder / 'data'} && echo mounted && exec cat"
    holder = subprocess.Popen(
        ["unshare", *flags, "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    try:
        if holder.stdout.readline() != "mounted\n":
            pytest.skip(f"no private file system here: {holder.stderr.read().strip()}")
        yield SmallDisk(folder, holder.pid, user)
    finally:
        holder.stdin.close()
        holder.wait(10)
        holder.stdout.close()
        holder.stderr.close()
