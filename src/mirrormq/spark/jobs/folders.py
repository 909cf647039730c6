"""Folders that outlive a crash of the machine.

Guarantee: a file system may forget a new entry of a folder until that folder is flushed; whatever was made
here, and every folder that was named to `flush_between`, has its entry on the disk when the call returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Flush = Callable[[Path], None]


def flush(folder: Path) -> None:
    """Have the entries of a folder on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def make(folder: Path, flush: Flush = flush) -> None:
    """Make a folder and what is missing above it; each entry is flushed where it was made.

    Folders that were there are left alone: the first one may be nobody's to open.
    """
    missing = []
    above = folder
    while not above.is_dir():
        missing.append(above)
        above = above.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True)  # somebody else may have been faster: then it is flushed twice
        flush(one.parent)


def flush_between(folder: Path, root: Path, flush: Flush = flush) -> None:
    """Flush a folder and all above it up to the root, the root included, whoever has made them."""
    while True:
        flush(folder)
        if folder in {root, folder.parent}:
            return
        folder = folder.parent
