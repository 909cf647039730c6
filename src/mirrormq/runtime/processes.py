"""Who occupies a port, and how a process is shown to a person. Reads /proc; elsewhere it knows less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

LISTENING = "0A"
"""State of a listening socket in /proc/net/tcp."""


def describe_process(pid: int) -> str:
    """Name a process by its number and its command."""
    command = _command(pid)
    return f"process {pid} ({command})" if command else f"process {pid}"


def port_owner(port: int) -> str:
    """Describe the process that listens on a port, as far as this user may see it."""
    inodes = set(_listening_inodes(port))
    for pid in _pids():
        if inodes & set(_socket_inodes(pid)):
            return describe_process(pid)
    return "another program" if not inodes else "a process of another user"


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    line = b" ".join(words).strip().decode("utf-8", "replace")
    return line if len(line) <= 80 else line[:77] + "..."


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _pids() -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:
        return []


def _socket_inodes(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    for entry in entries:
        try:
            target = os.readlink(f"{folder}/{entry}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]
