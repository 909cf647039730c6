"""The Disk port over real files: effects are done in the order given, by one thread; a failure is final.

Promises of `log/disk.py` kept here: a flush or replace is reported only when it is durable, folder entry
included; a replace is atomic; temporary files are never listed. After the first failure nothing more is
written or reported, because nobody can know what the disk still holds: the node ends with the reason.

Flushes that wait while another one runs are done together (group commit by completion, no timer).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from mirrormq.node.effects import Append, Flush, Remove, Replace
from mirrormq.runtime.folder import OWN_FILES

DiskEffect = Append | Flush | Replace | Remove
Batch = list[DiskEffect | None]
Names = list[str]
Tokens = list[int]
TEMPORARY = ".new"


class Files:
    """Reads files at start; then a thread writes them. `report` and `failed` are called on that thread."""

    def __init__(self, folder: Path, report: Callable[[Tokens], None], failed: Callable[[str], None]) -> None:
        self.folder = folder
        self._report = report
        self._failed = failed
        self._orders: SimpleQueue[DiskEffect | None] = SimpleQueue()
        self._descriptors: dict[str, int] = {}
        self._owed: dict[str, Tokens] = {}
        """Tokens of flushes not yet done, per file, in the order given."""
        self._unnamed: set[str] = set()
        """Files opened since their folder was last flushed: a crash could forget their names."""
        self._thread = threading.Thread(target=self._work, name="files", daemon=True)

    def list(self, prefix: str) -> Names:
        """Names of the files that begin with `prefix`, sorted."""
        names = [
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and not path.name.endswith(TEMPORARY)
        ]
        return sorted(name for name in names if name.startswith(prefix) and name not in OWN_FILES)

    def read(self, name: str) -> bytes:
        """The whole content of a file."""
        return self._path(name).read_bytes()

    def start(self) -> None:
        """Begin to carry out effects."""
        self._thread.start()

    def order(self, effect: DiskEffect) -> None:
        """Take an effect; it is carried out after all earlier ones."""
        self._orders.put(effect)

    def close(self, timeout_s: float) -> bool:
        """Finish what was ordered and stop; False if the disk did not finish in time."""
        self._orders.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        name = ""
        running = True
        reason = "the thread that writes files ended by a mistake of its own"
        try:
            while running:
                for effect in self._next_batch():
                    if effect is None:
                        running = False
                        break
                    name = effect.file
                    self._carry_out(effect)
                self._flush_owed()
        except OSError as error:
            running = True
            reason = f"writing {self.folder / name} failed: {error.strerror or error}"
        finally:
            if running:
                self._failed(reason)
            for descriptor in self._descriptors.values():
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def _next_batch(self) -> Batch:
        """Wait for one effect and take all that came with it."""
        batch = [self._orders.get()]
        with contextlib.suppress(Empty):
            while True:
                batch.append(self._orders.get_nowait())
        return batch

    def _carry_out(self, effect: DiskEffect) -> None:
        if isinstance(effect, Append):
            _write(self._descriptor(effect.file), effect.data)
        elif isinstance(effect, Flush):
            self._owed.setdefault(effect.file, []).append(effect.token)
        elif isinstance(effect, Replace):
            self._flush_owed()
            self._replace(effect)
        else:
            self._flush_owed()
            self._forget(effect.file)
            self._path(effect.file).unlink(missing_ok=True)

    def _flush_owed(self) -> None:
        done: Tokens = []
        for file, tokens in self._owed.items():
            os.fdatasync(self._descriptor(file))
            if file in self._unnamed:
                _flush_folder(self._path(file).parent)
                self._unnamed.discard(file)
            done += tokens
        self._owed.clear()
        if done:
            self._report(done)

    def _replace(self, effect: Replace) -> None:
        self._forget(effect.file)
        path = self._path(effect.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + TEMPORARY)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            _write(descriptor, effect.data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
        _flush_folder(path.parent)
        self._unnamed.discard(effect.file)
        self._report([effect.token])

    def _descriptor(self, file: str) -> int:
        found = self._descriptors.get(file)
        if found is not None:
            return found
        path = self._path(file)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            _flush_folder(path.parent.parent)
        # Also when it exists: a process killed right after creating or renaming it never flushed the folder.
        self._unnamed.add(file)
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._descriptors[file] = opened
        return opened

    def _forget(self, file: str) -> None:
        """Close a file whose name will mean another one."""
        descriptor = self._descriptors.pop(file, None)
        if descriptor is not None:
            os.close(descriptor)

    def _path(self, file: str) -> Path:
        assert file and not file.startswith("/") and ".." not in file.split("/"), file
        return self.folder / file


def _write(descriptor: int, data: bytes) -> None:
    """Write everything, however many calls the kernel makes of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
