"""`mirrormq restore FROM --data TO`: a data folder made of a backup, for a node with an identity of its own.

Guarantees: every file has the checksum of the manifest, or nothing is left behind; a node that is started
before the end refuses the folder. Who the node was is not part of a backup: its key, its addresses and its
identity are made anew at the first start, and the definitions name no members of a cluster. So the copy
starts as a node of its own, and a cluster that knows the original refuses it as a folder that is new.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from mirrormq.base.errors import FolderUnusable
from mirrormq.runtime import copies, folder
from mirrormq.runtime.copies import Entry, Manifest

DATA = 65
NO_INPUT = 66
CANNOT_CREATE = 73

CONTENT = ("meta/", "log/", "segments/", "journal/")
"""What is taken over. Beside it a data folder has `lock`, `node.key`, `node.json` and `identity`: never."""

UNFINISHED = "being restored\n"
"""Content of VERSION until the end: a node refuses a folder whose format is no number."""


def restore(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    options = parser().parse_args(argv)
    source, target = Path(options.source), Path(options.data)
    try:
        manifest = _manifest(source)
        _fill(source, target, manifest, is_quiet=options.quiet)
    except FolderUnusable as error:
        sys.stderr.write(f"mirrormq: {error.text}\n")
        return error.code
    if not options.quiet:
        size = sum(entry.bytes for entry in manifest.files)
        sys.stdout.write(
            f"{target} now holds {len(manifest.files)} files with {size} bytes of node {manifest.node}; "
            f"start it with: mirrormq serve --data {target}\n"
        )
    return 0


def parser() -> argparse.ArgumentParser:
    """The options of `mirrormq restore`."""
    made = argparse.ArgumentParser(
        prog="mirrormq restore", description="Make a data folder of a backup taken by `mirrormq ctl backup`."
    )
    made.add_argument("source", metavar="FROM", help="the backup")
    made.add_argument("--data", metavar="TO", required=True, help="a new or empty data folder")
    made.add_argument("-q", "--quiet", action="store_true", help="say nothing unless it fails")
    return made


def _manifest(source: Path) -> Manifest:
    if not source.is_dir():
        raise FolderUnusable(NO_INPUT, f"{source} is no directory.")
    try:
        manifest = copies.read_manifest(source)
    except copies.ManifestUnreadable as error:
        code = DATA if (source / copies.MANIFEST).exists() else NO_INPUT
        raise FolderUnusable(code, str(error)) from None
    for entry in manifest.files:
        is_known = entry.name == "VERSION" or entry.name.startswith(CONTENT)
        if not is_known or ".." in entry.name.split("/"):
            raise FolderUnusable(DATA, f"{source}: its manifest lists {entry.name}, as no backup does.")
    return manifest


def _fill(source: Path, target: Path, manifest: Manifest, *, is_quiet: bool) -> None:
    try:
        if not copies.is_empty(target):
            raise FolderUnusable(CANNOT_CREATE, f"{target} is not empty: give a new or an empty folder.")
        target.mkdir(parents=True, exist_ok=True, mode=0o750)
        (target / "VERSION").write_text(UNFINISHED, encoding="ascii")
    except OSError as error:
        raise FolderUnusable(CANNOT_CREATE, f"{target} cannot be written: {error.strerror}.") from None
    progress = Progress(sum(entry.bytes for entry in manifest.files), is_quiet=is_quiet)
    try:
        for entry in manifest.files:
            _copy(source, target, entry, progress)
        _finish(target)
    except BaseException as error:
        _empty(target)
        if isinstance(error, OSError):
            raise FolderUnusable(CANNOT_CREATE, f"{target} cannot be filled: {error}.") from None
        raise


def _copy(source: Path, target: Path, entry: Entry, progress: Progress) -> None:
    path = source / entry.name
    try:
        if entry.name == "VERSION":
            _check_version(path)
            found = copies.check_file(path, progress.told)
        else:
            found = copies.write_file(target / entry.name, copies.read_slices(path), progress.told)
    except FileNotFoundError:
        raise FolderUnusable(DATA, f"{path} is missing: the backup is not complete.") from None
    if found != (entry.bytes, entry.crc32c):
        raise FolderUnusable(DATA, f"{path} is not as it was when the backup was made: use another backup.")


def _check_version(path: Path) -> None:
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not text.isdigit() or int(text) > folder.FORMAT:
        raise FolderUnusable(
            DATA,
            f"The backup has data format {text}, known here is {folder.FORMAT}: install a newer MirrorMQ.",
        )


def _finish(target: Path) -> None:
    """Make everything durable, and only then let a node have it."""
    copies.flush_folders(target)
    version = target / "VERSION.new"
    copies.write_file(version, [f"{folder.FORMAT}\n".encode()], lambda _: None)
    version.replace(target / "VERSION")
    copies.flush_folders(target)


def _empty(target: Path) -> None:
    for entry in os.scandir(target):
        with contextlib.suppress(OSError):
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)


class Progress:
    """Tells every tenth part of the way."""

    def __init__(self, total: int, *, is_quiet: bool) -> None:
        self._total = max(total, 1)
        self._done = 0
        self._shown = 0
        self._is_quiet = is_quiet

    def told(self, count: int) -> None:
        """So many more bytes are done."""
        self._done += count
        tenths = self._done * 10 // self._total
        if tenths > self._shown and not self._is_quiet:
            self._shown = tenths
            sys.stdout.write(f"{self._done} of {self._total} bytes\n")
            sys.stdout.flush()
