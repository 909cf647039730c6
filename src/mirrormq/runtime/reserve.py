"""Space kept back for the day the disk is full: the file `reserve` in the data folder.

Publishers are held when little space is left, long before this is touched. If the disk becomes full all the
same, because another program took the rest, the file is emptied, and what must go on (removals, checkpoints,
definitions) goes on in its space, so that consumers can drain the queues and nobody has to help. Publishers
wait until the file has been made again. If even that space is taken, writing waits until there is some: the
node stays up, and one that is started on such a disk comes up, tells what is wrong and holds its publishers.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mirrormq.base import limits

NAME = "reserve"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
FULL_WAIT_S = 0.02
"""Between two attempts to write to a full disk."""
T = TypeVar("T")


class Reserve:
    """The file and what is missing from it. Any thread may give it up; only the flusher makes it again."""

    def __init__(self, folder: Path, size: int, disk_free_limit: int) -> None:
        """`disk_free_limit`: what must be left beside the file when it is made. A size of 0 keeps nothing."""
        self.size = size
        self._limit = max(disk_free_limit, limits.journal_file_bytes)
        self.given = 0
        """How often it was given up here; the flusher counts for itself."""
        self.on_given: Callable[[], None] = _nothing
        self._is_closing = threading.Event()
        self.is_waiting = False
        """Somebody waits for space."""
        self._path = folder / NAME
        self.descriptor = -1
        if size:
            self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def missing(self) -> int:
        """Bytes of it that do not exist now."""
        return max(0, self.size - os.fstat(self.descriptor).st_size) if self.size else 0

    def has_room(self, disk_free: int) -> bool:
        """Is there so much space that what is missing can be taken from it?"""
        return disk_free >= self.missing() + self._limit

    def make(self, disk_free: int) -> str | None:
        """Make it before the node starts, if there is room; returns why there can be none here."""
        if not self.size:
            self._path.unlink(missing_ok=True)
            return None
        try:
            # Beyond its size it would take space from others for nothing.
            os.ftruncate(self.descriptor, min(self.size, os.fstat(self.descriptor).st_size))
            if self.missing() and self.has_room(disk_free):
                os.posix_fallocate(self.descriptor, 0, self.size)
        except OSError as error:
            if error.errno in FULL:
                return None
            os.ftruncate(self.descriptor, 0)
            self.size = 0
            return error.strerror
        return None

    def give(self) -> None:
        """The disk is full: let others have the space."""
        if self.size:
            os.ftruncate(self.descriptor, 0)
            os.fsync(self.descriptor)
            self.given += 1
            self.on_given()

    def retry(self, attempt: Callable[[], T]) -> T:
        """Do this; if the disk is too full for it give up the reserve and do it once more. Never a flush."""
        try:
            return attempt()
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.give()
            return attempt()

    def wait(self, attempt: Callable[[], T]) -> T:
        """The same off the loop: where a reserve is kept, wait for space if giving it up was not enough."""
        try:
            return self.retry(attempt)
        except OSError as error:
            if error.errno not in FULL or not self.size:
                raise
            full = error
        self.is_waiting = True
        while not self._is_closing.wait(FULL_WAIT_S):
            try:
                done = attempt()
            except OSError as error:
                if error.errno not in FULL:
                    raise
            else:
                self.is_waiting = False
                return done
        raise full

    def stop_waiting(self) -> None:
        """Who still waits for space has waited long enough."""
        self._is_closing.set()

    def close(self) -> None:
        """Let go of the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _nothing() -> None:
    """Nobody listens yet."""
