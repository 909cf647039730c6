"""`mirrormq ctl backup`: a copy of the data folder while the node goes on.

The node says what belongs to the copy (`node.backup.Image`) and leaves those files alone until it is told
that the copy is made; meanwhile the journal grows, because no file of it is emptied. Copying is done by a
thread of its own in slices. Files that are never written again get a second name if the target lies on the
same file system; the rest is copied. What was begun and not finished is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from mirrormq import __version__
from mirrormq.cluster.raft.recovery import SNAPSHOT
from mirrormq.log import checkpoint, journal, segments
from mirrormq.node.backup import Image
from mirrormq.node.node import Node
from mirrormq.node.steps import Refusal
from mirrormq.runtime import copies, folder
from mirrormq.runtime.copies import Entry, Manifest
from mirrormq.runtime.driver import Driver

POLL_SECONDS = 1.0


class Part(NamedTuple):
    """One file of a copy."""

    name: str
    size: int
    is_fixed: bool
    """It is never written again."""


class GivenUp(Exception):
    """The node stops."""


class Backups:
    """The one backup that may be under way."""

    def __init__(self, driver: Driver[Node], data: Path) -> None:
        self._driver = driver
        self._data = data
        self._pool = ThreadPoolExecutor(1, "backup")
        self._task: asyncio.Task[Manifest] | None = None
        self._held: asyncio.Future[Image] | None = None
        self._gives_up = False
        self._copied = 0
        self._total = 0
        self._linked = 0

    async def start(self, target: str) -> dict[str, Any]:
        """Begin a copy into an empty folder."""
        if self._task is not None and not self._task.done():
            raise Refusal("bad_request", "a backup is under way already; try again when it has finished")
        path = Path(target)
        self._check(path)
        self._copied = self._total = self._linked = 0
        self._task = self._driver.loop.create_task(self._run(path))
        return {"target": str(path)}

    async def progress(self) -> dict[str, Any]:
        """How far the copy is; waits a moment for its end."""
        task = self._task
        if task is None:
            raise Refusal("not_found", "no backup was begun since the node started")
        await asyncio.wait({task}, timeout=POLL_SECONDS)
        state: dict[str, Any] = {"finished": task.done(), "copied_bytes": self._copied}
        if not task.done():
            return {**state, "total_bytes": max(self._total, self._copied)}
        manifest = await task
        return {
            **state,
            "total_bytes": sum(entry.bytes for entry in manifest.files),
            "files": len(manifest.files),
            "linked_files": self._linked,
            "taken_at": manifest.taken_at,
        }

    async def close(self) -> None:
        """Give up what is under way."""
        self._gives_up = True
        if self._held is not None:
            self._held.cancel()
        if self._task is not None:
            await asyncio.wait({self._task})
        self._pool.shutdown()

    def _check(self, path: Path) -> None:
        if not path.is_absolute():
            raise Refusal("bad_request", f"'{path}' must be an absolute path of the node's machine")
        data = self._data.resolve()
        if path.resolve() == data or data in path.resolve().parents:
            raise Refusal("bad_request", f"{path} lies in the node's own data folder")
        try:
            if not copies.is_empty(path):
                raise Refusal("cannot_create", f"{path} is not empty: give a new or an empty directory")
            path.mkdir(parents=True, exist_ok=True, mode=0o750)
        except OSError as error:
            raise Refusal("cannot_create", f"{path} cannot be written: {error.strerror}") from None

    async def _run(self, target: Path) -> Manifest:
        began = self._driver.now()
        image = await self._hold()
        try:
            manifest = await self._driver.loop.run_in_executor(
                self._pool, self._copy, target, image, began.wall
            )
        except (OSError, GivenUp) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._note("error", "backup failed", target=target, reason=reason, event="backup.failed")
            raise Refusal("cannot_create", f"the backup to {target} failed: {reason}") from error
        finally:
            self._driver.call(self._driver.node.release_files)
        self._note(
            "info",
            "backup finished",
            target=target,
            files=len(manifest.files),
            bytes=self._copied,
            event="backup.finished",
        )
        return manifest

    async def _hold(self) -> Image:
        held: asyncio.Future[Image] = self._driver.loop.create_future()
        self._held = held

        def done(image: Image | None, error: str | None) -> None:
            if held.done():
                return  # the node stops
            if image is None:
                held.set_exception(Refusal("cannot_create", f"the journal cannot be read: {error}"))
            else:
                held.set_result(image)

        self._driver.call(lambda now: self._driver.node.hold_files(now, done))
        try:
            return await held
        except Refusal:
            self._driver.call(self._driver.node.release_files)
            raise
        finally:
            self._held = None

    def _note(self, level: str, text: str, **fields: object) -> None:
        self._driver.log.note(level, text, fields, self._driver.now().wall)

    # On the backup's own thread.

    def _copy(self, target: Path, image: Image, wall: int) -> Manifest:
        try:
            parts = plan(self._data, image)
            self._total = sum(part.size for part in parts)
            files = [
                self._written(target, "VERSION", [f"{folder.FORMAT}\n".encode()]),
                self._written(target, SNAPSHOT, image.meta),
                *(self._copy_part(target, part) for part in parts),
            ]
            manifest = Manifest(copies.FORMAT, __version__, self._driver.node.node_name, wall, files)
            copies.write_manifest(target, manifest)
        except BaseException:
            for entry in os.scandir(target):
                with contextlib.suppress(OSError):
                    shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
            raise
        return manifest

    def _copy_part(self, target: Path, part: Part) -> Entry:
        source, path = self._data / part.name, target / part.name
        if part.is_fixed and copies.try_link(source, path):
            self._linked += 1
            return Entry(part.name, *copies.check_file(path, self._told))
        return self._written(target, part.name, copies.read_slices(source, part.size))

    def _written(self, target: Path, name: str, slices: Iterable[bytes]) -> Entry:
        return Entry(name, *copies.write_file(target / name, slices, self._told))

    def _told(self, count: int) -> None:
        self._copied += count
        if self._gives_up:
            raise GivenUp("the node stops")


def plan(data: Path, image: Image) -> list[Part]:
    """The files of an image beside the metadata."""
    parts = []
    if (data / checkpoint.NAME).exists():
        parts.append(Part(checkpoint.NAME, (data / checkpoint.NAME).stat().st_size, is_fixed=False))
    for queue in sorted((data / segments.PREFIX).glob("*")):
        files = sorted(queue.iterdir())
        for path in files:
            name = path.relative_to(data).as_posix()
            # Only the newest is ever appended to.
            parts.append(Part(name, path.stat().st_size, is_fixed=path != files[-1]))
    for serial in image.serials[:-1]:
        name = journal.file_name(serial)
        parts.append(Part(name, (data / name).stat().st_size, is_fixed=True))
    if image.serials:
        parts.append(Part(journal.file_name(image.serials[-1]), image.last_size, is_fixed=False))
    return parts
