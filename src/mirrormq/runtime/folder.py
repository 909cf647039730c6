"""The data folder as a whole: one process at a time, a known format, and who the node is for `ctl`.

`lock` is held as long as the process lives, so a crash leaves no stale lock. `VERSION` is the number of the
format. `node.key` makes whoever can read it an administrator of this node and is therefore readable by the
node's own user only, as is `cluster.secret`, by which the nodes of a cluster know each other. `node.json`
says where the running node answers; it is gone when the node is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from mirrormq.base import limits
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.processes import describe_process

FORMAT = 1
"""Number of the data format this version writes. A newer one is refused, an older one will be upgraded."""

OWN_FILES = frozenset({"lock", "VERSION", "node.key", "node.json", "reserve", "cluster.secret"})


class DataFolder:
    """A data folder that this process owns."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self.key = ""

    def announce(self, content: bytes) -> None:
        """Write node.json, replacing it whole."""
        temporary = self.path / "node.json.new"
        temporary.write_bytes(content)
        temporary.replace(self.path / "node.json")

    def withdraw(self) -> None:
        """Nobody answers where node.json says."""
        for name in ("node.json", "node.json.new"):
            with contextlib.suppress(OSError):
                (self.path / name).unlink()

    def cluster_secret(self, setting: str) -> bytes:
        """Return the secret that the nodes of a cluster share: the setting, else the file `cluster.secret`.

        The file is made at the first call; to join nodes, copy it from one data folder to the others.
        """
        try:
            secret = setting or _read_private(self.path / "cluster.secret")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise StartError(f"{self.path / 'cluster.secret'} cannot be used: {reason}.") from None
        if len(secret) < limits.peer_secret_chars_min:
            where = "cluster_secret" if setting else str(self.path / "cluster.secret")
            raise StartError(f"{where} must have at least {limits.peer_secret_chars_min} characters.")
        return secret.encode()

    def close(self) -> None:
        """Give the folder up."""
        self.withdraw()
        os.close(self._lock)


def open_folder(path: Path, *, fresh: bool) -> DataFolder:
    """Create or take over a data folder. Raises StartError with one sentence if it cannot be used."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o750)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise StartError(
            f"Data folder {path} cannot be written: {error.strerror}; give another one with --data DIR."
        ) from None
    folder = DataFolder(path, lock)
    try:
        _take_lock(path, lock)
        if fresh:
            _empty(path)
        _check_format(path)
        folder.key = _read_private(path / "node.key")
    except OSError as error:
        os.close(lock)
        raise StartError(
            f"Data folder {path} cannot be used: {error.strerror}; give another one with --data DIR."
        ) from None
    except StartError:
        os.close(lock)
        raise
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Own a folder that exists, to look at it: nothing but the lock is touched."""
    if not (path / "VERSION").is_file():
        raise StartError(f"{path} is no MirrorMQ data folder (it has no VERSION file).")
    lock = -1
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        _take_lock(path, lock)
        _check_format(path)
    except OSError as error:
        if lock >= 0:
            os.close(lock)
        raise StartError(f"Data folder {path} cannot be opened: {error.strerror}.") from None
    except StartError:
        os.close(lock)
        raise
    try:
        yield
    finally:
        os.close(lock)


def is_locked(path: Path) -> bool:
    """Whether another process owns the folder."""
    try:
        lock = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _take_lock(path: Path, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(lock, 32).decode("ascii", "replace").strip()
        by = describe_process(int(owner)) if owner.isdigit() else "another process"
        raise StartError(
            f"Data folder {path} is in use by {by}: stop it, or give another folder with --data DIR."
        ) from None
    # Written before it is cut: a full disk must not take away the space of the number before.
    os.ftruncate(lock, os.pwrite(lock, f"{os.getpid()}\n".encode(), 0))


def _empty(path: Path) -> None:
    """Empty the folder, but only one that is ours: --fresh on somebody's home must not be the end of it."""
    names = {entry.name for entry in path.iterdir()}
    if "VERSION" not in names and names - OWN_FILES:
        raise StartError(
            f"{path} is no MirrorMQ data folder (it has no VERSION file): --fresh does not empty it."
        )
    for entry in path.iterdir():
        if entry.name == "lock":
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _check_format(path: Path) -> None:
    version = path / "VERSION"
    try:
        written = version.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        # Written before anything else, so that a folder with data always has it.
        version.write_text(f"{FORMAT}\n", encoding="ascii")
        return
    if not written.isdigit() or int(written) < 1:
        raise StartError(
            f"{version} does not hold the number of a format: {path} is damaged or no MirrorMQ data folder."
        )
    if int(written) > FORMAT:
        raise StartError(
            f"Data folder {path} was written by a newer MirrorMQ (format {written}, known here: {FORMAT}):"
            " install that version, or give another folder with --data DIR."
        )


def _read_private(path: Path) -> str:
    """Read a random key, made when it is first asked for. Others cannot read it, not even for a moment."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        key = path.read_text(encoding="ascii").strip()
        if key:
            return key
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    key = secrets.token_hex(32)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(key + "\n")
    return key
