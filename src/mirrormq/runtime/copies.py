"""Copies of files with their checksums, and the manifest that lists them.

A backup is a folder with the files of a data folder and `manifest.json`, written last and flushed: a folder
without it is no backup. Its second line is the CRC32C of the first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from mirrormq.base import limits
from mirrormq.kernel.crc32c import crc32c

MANIFEST = "manifest.json"
FORMAT = 1

Told = Callable[[int], None]
"""Told of every slice that was copied; raises to give up."""


class Entry(msgspec.Struct, frozen=True):
    """One file of a backup."""

    name: str
    bytes: int
    crc32c: int


class Manifest(msgspec.Struct, frozen=True):
    """What a backup consists of."""

    format: int
    version: str
    """Of the MirrorMQ that made it."""
    node: str
    taken_at: int
    """Wall clock, µs."""
    files: list[Entry]


class ManifestUnreadable(Exception):
    """The manifest is missing, damaged or too new; its text is a sentence."""


class Copied(NamedTuple):
    """A file that was written and flushed."""

    size: int
    crc: int


def read_slices(path: Path, size: int | None = None) -> Iterator[bytes]:
    """The first `size` bytes of a file, or all of them, slice by slice."""
    left = size
    with path.open("rb") as file:
        while left is None or left > 0:
            data = file.read(limits.copy_slice_bytes if left is None else min(left, limits.copy_slice_bytes))
            if not data:
                return
            left = None if left is None else left - len(data)
            yield data


def write_file(path: Path, slices: Iterable[bytes], told: Told) -> Copied:
    """Write a new file and flush it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = crc = 0
    with open(path, "xb", opener=_private) as file:
        for data in slices:
            file.write(data)
            size += len(data)
            crc = crc32c(data, crc)
            told(len(data))
        file.flush()
        os.fsync(file.fileno())
    return Copied(size, crc)


def check_file(path: Path, told: Told) -> Copied:
    """Read a file for its checksum."""
    size = crc = 0
    for data in read_slices(path):
        size += len(data)
        crc = crc32c(data, crc)
        told(len(data))
    return Copied(size, crc)


def try_link(source: Path, target: Path) -> bool:
    """Give a file that is never written again a second name; False where the file system cannot."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def flush_folders(root: Path) -> None:
    """Make the names of everything below a folder durable."""
    for folder, _, _ in os.walk(root, topdown=False):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """The last file of a backup."""
    content = msgspec.json.encode(manifest)
    write_file(folder / MANIFEST, [content, f"\n{crc32c(content):08x}\n".encode()], lambda _: None)
    flush_folders(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read and check the list of a backup's files."""
    path = folder / MANIFEST
    try:
        content, _, check = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ManifestUnreadable(
            f"{folder} is no finished backup: {MANIFEST} cannot be read: {error.strerror}."
        ) from None
    if check.strip() != f"{crc32c(content):08x}".encode():
        raise ManifestUnreadable(f"{path} is damaged: its checksum does not match; use another backup.")
    try:
        found = msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ManifestUnreadable(f"{path} cannot be understood: {error}.") from None
    if found.format > FORMAT:
        raise ManifestUnreadable(
            f"{path} was written by a newer MirrorMQ (format {found.format}, known here: {FORMAT}): "
            "install that version."
        )
    return found


def is_empty(folder: Path) -> bool:
    """Whether a folder may be filled: it does not exist, or nothing is in it."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _private(path: str, flags: int) -> int:
    """Password hashes and messages are for the node's own user."""
    return os.open(path, flags | os.O_CLOEXEC, 0o640)
