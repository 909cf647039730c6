"""Notes become log lines, on standard error or in files rotated by size; a secret never becomes part of one.

A line is written with one system call, so lines of several processes never mix. A destination that cannot be
written to loses its line and is counted: a full log disk must not stop the broker.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from mirrormq.runtime.settings import LogSettings

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "none")
RANK = {level: rank for rank, level in enumerate(LEVELS)}
SECRET_NAMES = re.compile(
    r"passw|pass$|secret|credential|token|private|cookie|authorization|^key$", re.IGNORECASE
)
SECRET_IN_URL = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]*)@")
HIDDEN = "[hidden]"


class Target:
    """A file descriptor that takes lines of at least one level in one form."""

    def __init__(self, level: str, form: str) -> None:
        self.rank = RANK[level]
        self.json = form == "json"
        self.lost_lines = 0

    def write(self, line: bytes) -> None:
        """Write a whole line."""
        raise AssertionError(("a target says where it writes", line))

    def reopen(self) -> None:
        """Follow a file that was moved away; nothing to do unless the target is a file."""

    def close(self) -> None:
        """Release the descriptor."""


class Console(Target):
    """Standard error."""

    def write(self, line: bytes) -> None:
        """Write to descriptor 2."""
        try:
            os.write(2, line)
        except OSError:
            self.lost_lines += 1


class RotatedFile(Target):
    """A file that is renamed to name.0, name.1, … when it has reached its size."""

    def __init__(self, path: Path, settings: LogSettings) -> None:
        super().__init__(settings.file_level or settings.level, settings.file_format or settings.form)
        self.path = path
        self.bytes_max = settings.rotate_bytes
        self.count = settings.rotate_count
        self._open()

    def write(self, line: bytes) -> None:
        """Write a line; begin a new file first if this one is full."""
        try:
            if self.bytes_max and self.size and self.size + len(line) > self.bytes_max:
                self._rotate()
            self.size += os.write(self.descriptor, line)
        except OSError:
            self.lost_lines += 1

    def reopen(self) -> None:
        """Open the path again, so that a file moved by another program is let go."""
        self.close()
        self._open()

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self.size = os.fstat(self.descriptor).st_size

    def _rotate(self) -> None:
        names = [self.path.with_name(f"{self.path.name}.{number}") for number in range(self.count)]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            with contextlib.suppress(FileNotFoundError):
                newer.rename(older)
        if names:
            self.path.rename(names[0])
        else:
            self.path.unlink()
        self.reopen()


class Log:
    """All targets of a node."""

    def __init__(self, targets: list[Target]) -> None:
        self.targets = targets
        self.rank = min((target.rank for target in targets), default=RANK["none"])
        self.node = ""
        """The name of the node, in every line for programs."""

    def note(self, level: str, text: str, fields: Mapping[str, object], wall_us: int) -> None:
        """Write one line to every target that wants its level."""
        rank = RANK[level]
        if rank < self.rank:
            return
        shown = {name: HIDDEN if SECRET_NAMES.search(name) else hide(value) for name, value in fields.items()}
        for target in self.targets:
            if rank >= target.rank:
                line = str(hide(text))
                if target.json:
                    target.write(as_json(level, line, {"node": self.node, **shown}, wall_us))
                else:
                    target.write(as_text(level, line, shown, wall_us))

    def reopen(self) -> None:
        """Open files again (SIGHUP)."""
        for target in self.targets:
            target.reopen()

    def close(self) -> None:
        """Close files."""
        for target in self.targets:
            target.close()


def open_log(settings: LogSettings) -> Log:
    """Open what the settings name; raises OSError if a file cannot be opened."""
    targets: list[Target] = []
    if settings.file:
        targets.append(RotatedFile(Path(settings.folder) / settings.file, settings))
    if settings.console or (settings.console is None and not settings.file):
        form = settings.console_format or settings.form
        targets.append(Console(settings.console_level or settings.level, form))
    return Log(targets)


def as_text(level: str, text: str, fields: Mapping[str, object], wall_us: int) -> bytes:
    """A line for people: time, level, text, fields. Control characters cannot forge a second line."""
    words = "".join(f" {name}={_plain(value)}" for name, value in fields.items())
    line = f"{_time(wall_us)} [{level}] {text}{words}"
    return _escape(line).encode("utf-8", "backslashreplace") + b"\n"


def as_json(level: str, text: str, fields: Mapping[str, object], wall_us: int) -> bytes:
    """A line for programs, with RabbitMQ's names for time, level and message, and the event's name."""
    head = {"time": _time(wall_us), "level": level, "event": fields.get("event", "note"), "msg": text}
    line = head | {name: value for name, value in fields.items() if name not in head}
    return msgspec.json.encode(line, enc_hook=str) + b"\n"


def hide(value: object) -> object:
    """Take the password out of a URL inside a text."""
    return SECRET_IN_URL.sub(rf"\1:{HIDDEN}@", value) if isinstance(value, str) else value


def _plain(value: object) -> str:
    text = str(value)
    return f'"{text}"' if " " in text or not text else text


def _escape(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


def _time(wall_us: int) -> str:
    moment = datetime.datetime.fromtimestamp(wall_us / 1_000_000, datetime.UTC)
    return moment.isoformat(sep=" ", timespec="microseconds")


class Bridge(logging.Handler):
    """Lines of libraries that use the standard logging module (asyncio, aiohttp) become notes."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.INFO)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on under our names of levels."""
        level = {"WARNING": "warning", "ERROR": "error", "CRITICAL": "critical"}.get(record.levelname, "info")
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self.log.note(
            level, text, {"event": "library", "logger": record.name}, int(record.created * 1_000_000)
        )
