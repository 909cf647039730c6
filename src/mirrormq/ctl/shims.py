"""`mirrormq shims DIR` writes RabbitMQ's command names as small scripts that call ours.

Guarantee: nothing is overwritten that this command did not write; if one file is in the way, none is written.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

MARK = "# Written by `mirrormq shims`: may be overwritten by it."
TARGETS = {
    "rabbitmqctl": "ctl",
    "rabbitmq-diagnostics": "ctl",
    "rabbitmq-queues": "ctl",
    "rabbitmq-upgrade": "ctl",
    "rabbitmq-plugins": "plugins",
    "rabbitmqadmin": "admin",
}
USAGE = f"""\
usage: mirrormq shims DIR

Write {", ".join(TARGETS)} into a directory, as scripts that call MirrorMQ's commands. Put the
directory first in PATH, and what calls RabbitMQ's commands finds these. A file that is not one of these
scripts is never overwritten.
"""
OK, MISUSED, CANNOT_CREATE = 0, 64, 73


def main(argv: Sequence[str]) -> int:
    """Write the scripts and return the exit code."""
    words = list(argv)
    if words and words[0] in ("--help", "-h"):
        sys.stdout.write(USAGE)
        return OK
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(f"mirrormq shims: give one directory.\n{USAGE}")
        return MISUSED
    folder = Path(words[0])
    foreign = [name for name in TARGETS if not _is_ours(folder / name)]
    if foreign:
        listed = ", ".join(str(folder / name) for name in foreign)
        sys.stderr.write(
            f"mirrormq shims: not written by MirrorMQ, and not overwritten: {listed}. Move them away, or "
            "give another directory. Nothing was written.\n"
        )
        return CANNOT_CREATE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, command in TARGETS.items():
            _write(folder / name, command)
    except OSError as error:
        sys.stderr.write(f"mirrormq shims: {folder} cannot be written: {error.strerror}.\n")
        return CANNOT_CREATE
    sys.stdout.write(f"Written to {folder}: {', '.join(TARGETS)}.\n")
    sys.stdout.write(f'To use them: export PATH={shlex.quote(str(folder.absolute()))}:"$PATH"\n')
    return OK


def _is_ours(path: Path) -> bool:
    """May it be written: not there, or written by us?"""
    if not path.exists() and not path.is_symlink():
        return True
    try:
        return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")[:400]
    except OSError:
        return False


def _write(path: Path, command: str) -> None:
    # A new file in place of the old one: whoever runs the old one right now goes on with it.
    made = path.with_name(f".{path.name}.new")
    python = shlex.quote(sys.executable)
    made.write_text(f'#!/bin/sh\n{MARK}\nexec {python} -m mirrormq {command} "$@"\n', encoding="utf-8")
    made.chmod(0o755)
    made.replace(path)
