"""A disk in memory that keeps the promises of `mirrormq.log.disk`, and no more than those.

Nothing is durable until a flush or replace has been carried out and its token returned. `crash` gives the
disk a restarted machine would find: of what was not durable, each file has lost an arbitrary end, torn at
any byte, or arbitrary pages, so that later ones are there and earlier ones are not. `restart` gives the
disk after only the process was killed: what was written can be read but is not durable yet.

Flushes of one file end in the order they were asked for, those of different files in any order: `SlowDisk`
draws how long each takes from a seed.
"""

import heapq
import random
from collections.abc import Callable
from typing import NamedTuple

Pick = Callable[[int], int]
"""Chooses a number between 0 and its argument, both included."""

PAGE_BYTES = 4096
SECTOR_BYTES = 512


class DiskFull(OSError):
    """There was no room for an append; part of it may have been written."""


class ReadFailed(OSError):
    """The medium could not be read."""


class _Op(NamedTuple):
    kind: str
    data: bytes = b""
    token: int = 0


# Inside the classes `list` is the port's method.
_Ops = list[_Op]
_Owed = list[tuple[str, int]]
_Tokens = list[int]
_Due = list[tuple[int, int, str, int]]
_Names = list[str]
_Issued = list[tuple[str, str]]


class MemoryDisk:
    """Both sides of the port: what recovery reads, and the outbox."""

    def __init__(self, files: dict[str, bytes] | None = None, *, capacity: int = 0) -> None:
        """`capacity`: bytes all files may have together; 0 = no limit."""
        self._durable: dict[str, bytes] = dict(files or {})
        self._ops: dict[str, _Ops] = {}
        self._owed: _Owed = []
        self.capacity = capacity
        self.used = sum(map(len, self._durable.values()))
        """Bytes of all files, roughly: space is given back only by `remove`."""
        self.unreadable: set[str] = set()
        """Files the medium cannot read any more."""
        self.log: _Issued = []
        """Every effect issued, as (kind, file)."""

    # --- Disk ---

    def list(self, prefix: str) -> _Names:
        """Names of the files that begin with `prefix`, sorted."""
        names = {*self._durable, *self._ops}
        return sorted(name for name in names if name.startswith(prefix) and self._now(name) is not None)

    def read(self, name: str) -> bytes:
        """The whole content of a file."""
        if name in self.unreadable:
            raise ReadFailed(5, "Input/output error", name)
        found = self._now(name)
        assert found is not None, name
        return found

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return len(self.read(name))

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """Part of a file's content."""
        return self.read(name)[offset : offset + length]

    # --- DiskOutbox ---

    def append(self, file: str, data: bytes) -> None:
        """Write behind the end of a file; raises `DiskFull` after writing what fits."""
        room = self.capacity - self.used if self.capacity else len(data)
        fits = data[: max(room, 0)]
        self.used += len(fits)
        self._issue(file, _Op("append", fits))
        if len(fits) < len(data):
            raise DiskFull(28, "No space left on device", file)

    def flush(self, file: str, token: int) -> None:
        """Owe a report that everything appended so far is durable."""
        assert self._now(file) is not None, f"flush of {file}, which does not exist"
        self._issue(file, _Op("flush", token=token))
        self._owe(file, token)

    def replace(self, file: str, data: bytes | bytearray, token: int) -> None:
        """Owe a report that the file has this content."""
        self._issue(file, _Op("replace", bytes(data), token))
        self._owe(file, token)

    def remove(self, file: str) -> None:
        """Delete a file."""
        self.used -= len(self._now(file) or b"")
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
        self._finish(file, token)
        return token

    def crash(self, pick: Pick, *, lose_pages: bool = False) -> "MemoryDisk":
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
            content = _play(self._durable.get(file), kept)
            after._settle(file, self._without_pages(file, kept, content, pick) if lose_pages else content)
        after.used = sum(map(len, after._durable.values()))
        return after

    def restart(self) -> "MemoryDisk":
        """The disk after only the process was killed: what was written can be read, but is not durable."""
        after = MemoryDisk(self._durable)
        for file, ops in self._ops.items():
            after._ops[file] = [op._replace(token=0) for op in ops if op.kind != "flush"]
        return after

    def copy(self) -> "MemoryDisk":
        """A disk that reads the same, all of it durable."""
        return MemoryDisk({name: self.read(name) for name in self.list("")})

    def damage(self, file: str, at: int, flip: int = 0xFF) -> None:
        """Change one durable byte, as a failing medium would."""
        data = bytearray(self.read(file))
        data[at] ^= flip
        self._ops.pop(file, None)
        self._durable[file] = bytes(data)

    def durable_size(self, file: str) -> int:
        """How much of a file no crash can take."""
        return len(self._durable.get(file, b""))

    def _owe(self, file: str, token: int) -> None:
        self._owed.append((file, token))

    def _finish(self, file: str, token: int) -> None:
        ops = self._ops[file]
        end = next(at for at, op in enumerate(ops) if op.token == token)
        self._settle(file, _play(self._durable.get(file), ops[: end + 1]))
        del ops[: end + 1]

    def _without_pages(self, file: str, kept: _Ops, content: bytes | None, pick: Pick) -> bytes | None:
        """The system writes pages in any order: some behind the durable part may have stayed zero."""
        start = len(self._durable.get(file, b""))
        only_appends = all(op.kind in ("append", "flush") for op in kept)
        if content is None or not only_appends or len(content) <= start or pick(1):
            return content
        page = (SECTOR_BYTES, PAGE_BYTES)[pick(1)]
        torn = bytearray(content)
        for low in range(start // page * page, len(torn), page):
            if pick(2) == 0:
                first, end = max(low, start), min(low + page, len(torn))
                torn[first:end] = bytes(end - first)
        return bytes(torn)

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


class SlowDisk(MemoryDisk):
    """A disk whose flushes take time, drawn from a seed: mostly short, sometimes very long."""

    def __init__(self, rng: random.Random, files: MemoryDisk | None = None, *, capacity: int = 0) -> None:
        super().__init__(files._durable if files else None, capacity=capacity)
        if files is not None:
            self._ops = {file: ops.copy() for file, ops in files._ops.items()}
        self._rng = rng
        self._due: _Due = []
        self._busy_until: dict[str, int] = {}
        self._count = 0
        self._stalled_until = 0
        self.now = 0
        """Time of the world (mono µs), set before effects are carried out."""
        self.median_us = rng.choice([200, 2_000, 20_000])

    @property
    def owed(self) -> int:
        """Flushes and replaces issued and not yet finished."""
        return len(self._due)

    def next_due(self) -> int | None:
        """When the next report is due."""
        return self._due[0][0] if self._due else None

    def finish_due(self, now: int) -> _Tokens:
        """Carry out what is due; the tokens in the order of their ends."""
        tokens: _Tokens = []
        while self._due and self._due[0][0] <= now:
            _, _, file, token = heapq.heappop(self._due)
            self._finish(file, token)
            tokens.append(token)
        return tokens

    def finish_next(self) -> int | None:
        """Carry out whatever is due first, however far in the future."""
        if not self._due:
            return None
        _, _, file, token = heapq.heappop(self._due)
        self._finish(file, token)
        return token

    def stall(self, until: int) -> None:
        """Nothing that is asked for from now on is done before `until`."""
        self._stalled_until = max(self._stalled_until, until)

    @property
    def stalled_us(self) -> int:
        """For how long nothing will be done."""
        return max(0, self._stalled_until - self.now)

    def _owe(self, file: str, token: int) -> None:
        latency = int(self._rng.expovariate(1 / self.median_us)) + 50
        if self._rng.random() < 0.02:
            latency *= 50
        at = max(self.now + latency, self._busy_until.get(file, 0), self._stalled_until)
        self._busy_until[file] = at
        self._count += 1
        heapq.heappush(self._due, (at, self._count, file, token))


def _play(data: bytes | None, ops: list[_Op]) -> bytes | None:
    for op in ops:
        if op.kind == "append":
            data = (data or b"") + op.data
        elif op.kind == "replace":
            data = op.data
        elif op.kind == "remove":
            data = None
    return data
