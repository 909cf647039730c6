"""A disk in memory that keeps the promises of `mirrormq.log.disk`, and no more than those.

Nothing is durable until `finish_next` has carried out a flush or replace and returned its token. `crash`
gives the disk a restarted machine would find: of what was not durable, each file has lost an arbitrary end,
torn at any byte.
"""

from collections.abc import Callable
from typing import NamedTuple

Pick = Callable[[int], int]
"""Chooses a number between 0 and its argument, both included."""


class _Op(NamedTuple):
    kind: str
    data: bytes = b""
    token: int = 0


class MemoryDisk:
    """Both sides of the port: what recovery reads, and the outbox."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self._durable: dict[str, bytes] = dict(files or {})
        self._ops: dict[str, list[_Op]] = {}
        self._owed: list[tuple[str, int]] = []
        self.log: list[tuple[str, str]] = []
        """Every effect issued, as (kind, file)."""

    # --- Disk ---

    def list(self, prefix: str) -> list[str]:
        names = {*self._durable, *self._ops}
        return sorted(name for name in names if name.startswith(prefix) and self._now(name) is not None)

    def read(self, name: str) -> bytes:
        found = self._now(name)
        assert found is not None, name
        return found

    # --- DiskOutbox ---

    def append(self, file: str, data: bytes) -> None:
        self._issue(file, _Op("append", data))

    def flush(self, file: str, token: int) -> None:
        assert self._now(file) is not None, f"flush of {file}, which does not exist"
        self._issue(file, _Op("flush", token=token))
        self._owed.append((file, token))

    def replace(self, file: str, data: bytes, token: int) -> None:
        self._issue(file, _Op("replace", data, token))
        self._owed.append((file, token))

    def remove(self, file: str) -> None:
        self._issue(file, _Op("remove"))

    # --- what a test does to it ---

    @property
    def owed(self) -> int:
        """Flushes and replaces issued and not yet finished."""
        return len(self._owed)

    def finish_next(self) -> int | None:
        """Carry out the oldest flush or replace and return its token, or None if there is none."""
        if not self._owed:
            return None
        file, token = self._owed.pop(0)
        ops = self._ops[file]
        end = next(at for at, op in enumerate(ops) if op.token == token)
        self._settle(file, _play(self._durable.get(file), ops[: end + 1]))
        del ops[: end + 1]
        return token

    def crash(self, pick: Pick) -> "MemoryDisk":
        """The disk after a power failure; what was never durable survives in part, as `pick` says."""
        after = MemoryDisk()
        for file in sorted({*self._durable, *self._ops}):
            ops = self._ops.get(file, [])
            survived = pick(len(ops))
            kept = ops[:survived]
            if survived < len(ops) and ops[survived].kind == "append":
                data = ops[survived].data
                torn = data[: pick(len(data))]
                kept += [_Op("append", torn)] if torn else []
            after._settle(file, _play(self._durable.get(file), kept))
        return after

    def restart(self) -> "MemoryDisk":
        """The disk after only the process was killed: what was written can be read, but is not durable."""
        after = MemoryDisk(self._durable)
        for file, ops in self._ops.items():
            after._ops[file] = [op._replace(token=0) for op in ops if op.kind != "flush"]
        return after

    def damage(self, file: str, at: int, flip: int = 0xFF) -> None:
        """Change one durable byte, as a failing medium would."""
        data = bytearray(self.read(file))
        data[at] ^= flip
        self._ops.pop(file, None)
        self._durable[file] = bytes(data)

    def _issue(self, file: str, op: _Op) -> None:
        self.log.append((op.kind, file))
        self._ops.setdefault(file, []).append(op)

    def _now(self, file: str) -> bytes | None:
        return _play(self._durable.get(file), self._ops.get(file, []))

    def _settle(self, file: str, data: bytes | None) -> None:
        if data is None:
            self._durable.pop(file, None)
        else:
            self._durable[file] = data


def _play(data: bytes | None, ops: list[_Op]) -> bytes | None:
    for op in ops:
        if op.kind == "append":
            data = (data or b"") + op.data
        elif op.kind == "replace":
            data = op.data
        elif op.kind == "remove":
            data = None
    return data
