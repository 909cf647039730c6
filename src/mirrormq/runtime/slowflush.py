"""Flushing many files at once, off the thread that flushes the journal.

Guarantee: when `flush_files` returns, the content and the names of these files are durable; it raises
OSError otherwise.

A thousand queues have a thousand segments. Flushing them one by one takes seconds (each is a commit of the
file system's own journal), so beyond a few the whole file system is flushed in one call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from mirrormq.base import limits

_libc = ctypes.CDLL(None, use_errno=True)


def flush_files(folder: Path, names: Sequence[str]) -> None:
    """Make these files of a data folder durable."""
    if len(names) > limits.flush_files_max and hasattr(_libc, "syncfs"):
        _flush_file_system(folder)
        return
    for name in names:
        _flush(folder / name, os.O_RDWR, os.fdatasync)
    for parent in sorted({(folder / name).parent for name in names}):
        # Nothing tells whether an earlier process got as far as flushing the name, or that of the folder.
        _flush(parent, os.O_RDONLY | os.O_DIRECTORY, os.fsync)
        _flush(parent.parent, os.O_RDONLY | os.O_DIRECTORY, os.fsync)


def _flush_file_system(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(descriptor) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(folder))
    finally:
        os.close(descriptor)


def _flush(path: Path, flags: int, how: Callable[[int], None]) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        how(descriptor)
    finally:
        os.close(descriptor)
