"""The data folder as a whole: one process at a time, a known format, and who the node is for `ctl`.

`lock` is held as long as the process lives, so a crash leaves no stale lock. `VERSION` is the number of the
format. `node.key` makes whoever can read it an administrator of this node and is therefore readable by the
node's own user only, as is `cluster.secret`, by which the nodes of a cluster know each other. `node.json`
says where the running node answers; it is gone when the node is.

What an administrator decides while the application is stopped is kept for its next start: `cluster.join`
names the node whose cluster it joins, with `cluster.force_boot` it does not wait for others. `reset.begun` is
there while the folder is emptied, so that a reset that was cut short is finished before anything is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from mirrormq.base import limits
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.processes import describe_process

FORMAT = 1
"""Number of the data format this version writes. A newer one is refused, an older one will be upgraded."""

TEMPORARY = ".new"
JOIN = "cluster.join"
FORCE_BOOT = "cluster.force_boot"
LINKED = "cluster.linked"
ETCD = "cluster.etcd"
RESET = "reset.begun"

STAYING = frozenset({"lock", "VERSION", "node.key", "node.json", "reserve", "cluster.secret"})
"""What is no data: it survives a reset."""
OWN_FILES = STAYING | {JOIN, FORCE_BOOT, LINKED, RESET, ETCD}
FOREIGN = frozenset({"lost+found"})
"""What a file system puts into a folder that is one."""


class Contact(NamedTuple):
    """A node through which this one joins a cluster, and host:port at which it is reached."""

    node: str
    address: str


class DataFolder:
    """A data folder that this process owns."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self.key = ""

    def announce(self, content: bytes) -> None:
        """Write node.json, replacing it whole."""
        temporary = self.path / ("node.json" + TEMPORARY)
        temporary.write_bytes(content)
        temporary.replace(self.path / "node.json")

    def withdraw(self) -> None:
        """Nobody answers where node.json says."""
        for name in ("node.json", "node.json" + TEMPORARY):
            with contextlib.suppress(OSError):
                (self.path / name).unlink()

    def cluster_secret(self, setting: str) -> bytes:
        """Return the secret that the nodes of a cluster share: the setting, else the file `cluster.secret`.

        The file is made at the first call; to join nodes, copy it from one data folder to the others.
        """
        try:
            secret = setting or read_private(self.path / "cluster.secret")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise StartError(f"{self.path / 'cluster.secret'} cannot be used: {reason}.") from None
        if len(secret) < limits.peer_secret_chars_min:
            where = "cluster_secret" if setting else str(self.path / "cluster.secret")
            raise StartError(f"{where} must have at least {limits.peer_secret_chars_min} characters.")
        return secret.encode()

    def linked(self) -> list[str]:
        """Addresses of the other nodes of the cluster, as they were last known."""
        try:
            return msgspec.json.decode((self.path / LINKED).read_bytes(), type=list[str])
        except (OSError, msgspec.MsgspecError):
            return []

    def put_linked(self, addresses: list[str]) -> None:
        """Keep the addresses of the other nodes; raises OSError."""
        _write_durably(self.path / LINKED, msgspec.json.encode(addresses))

    def has_data(self) -> bool:
        """Whether a node has ever lived here, since the folder was made or reset."""
        names = {entry.name.removesuffix(TEMPORARY) for entry in self.path.iterdir()}
        return bool(names - OWN_FILES - FOREIGN)

    def reset(self) -> None:
        """Make it as new, but for the keys; raises OSError. Cut short, it is finished at the next start."""
        _write_durably(self.path / RESET, b"")
        _finish_reset(self.path)

    def contact(self) -> Contact | None:
        """Whom the next start asks to be let into its cluster."""
        path = self.path / JOIN
        try:
            found = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
            return Contact(found["node"], found["address"])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StartError(f"{path} cannot be read: {error.strerror}.") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
            raise StartError(f"{path} is damaged: run join_cluster again, or remove the file.") from None

    def put_contact(self, contact: Contact) -> None:
        """Let the next start join a cluster."""
        _write_durably(self.path / JOIN, msgspec.json.encode(contact._asdict()))

    def drop_contact(self) -> None:
        """The node has joined."""
        (self.path / JOIN).unlink(missing_ok=True)

    def agrees_by(self, coordinator: str) -> None:
        """Keep what the nodes agree by; raises StartError if it was something else before."""
        path = self.path / ETCD
        if coordinator == "etcd" and not path.exists():
            _write_durably(path, b"")
        elif coordinator != "etcd" and path.exists():
            raise StartError(
                f"Data folder {self.path} belongs to a cluster that agrees by etcd: set coordinator = etcd,"
                " or reset the node."
            )

    def is_boot_forced(self) -> bool:
        """Whether the next start must not wait for other nodes."""
        return (self.path / FORCE_BOOT).exists()

    def put_force_boot(self) -> None:
        """Let the next start not wait for other nodes."""
        put_force_boot(self.path)

    def drop_force_boot(self) -> None:
        """The node has started."""
        (self.path / FORCE_BOOT).unlink(missing_ok=True)

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
        if (path / RESET).exists():
            _finish_reset(path)
        folder.key = read_private(path / "node.key")
    except OSError as error:
        os.close(lock)
        raise StartError(
            f"Data folder {path} cannot be used: {error.strerror}; give another one with --data DIR."
        ) from None
    except StartError:
        os.close(lock)
        raise
    return folder


def put_force_boot(path: Path) -> None:
    """Let the next start of a locked folder's node not wait for others; raises OSError."""
    _write_durably(path / FORCE_BOOT, b"")


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


def _finish_reset(path: Path) -> None:
    """Remove all data, and at last the mark by which an interrupted reset is known."""
    for entry in path.iterdir():
        if entry.name in STAYING | FOREIGN or entry.name == RESET:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    # A mark that is gone before what it stands for would leave half a folder behind.
    _flush_folder(path)
    (path / RESET).unlink()
    _flush_folder(path)


def _write_durably(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _flush_folder(path.parent)


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def read_private(path: Path) -> str:
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
