"""A small key-value machine for the simulated group, and the history that clients see of it.

Every successful write raises its key's version by one, so a history is linearisable if no two writes were
given the same version, a version always stands for the same write, and no answer shows less than what had
been answered before it was asked.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from mirrormq.sim.model import Violation


def cas_command(key: str, version: int, writer: int) -> bytes:
    """Write, if the key has that version."""
    return json.dumps([key, version, writer]).encode()


class KvMachine:
    """Keys with versions and last writers; `chain` is a digest of everything applied, in order."""

    def __init__(self) -> None:
        """Empty."""
        self.keys: dict[str, tuple[int, int]] = {}
        self.chain = ""
        self.applied: list[tuple[int, str]] = []
        """(index, chain) of what was applied or restored since the checker last looked."""

    def apply(self, index: int, command: bytes) -> object:
        """Carry out a `cas_command`; the result is (done, version, writer)."""
        key, expected, writer = json.loads(command)
        version, last = self.keys.get(key, (0, 0))
        is_done = version == expected
        if is_done:
            version, last = version + 1, writer
            self.keys[key] = (version, last)
        self.chain = hashlib.blake2b(f"{self.chain} {index}".encode() + command, digest_size=8).hexdigest()
        self.applied.append((index, self.chain))
        return is_done, version, last

    def capture(self) -> Iterator[bytes]:
        """Some bytes per part."""
        data = json.dumps([self.chain, sorted(self.keys.items())]).encode()
        return iter([data[at : at + 40] for at in range(0, len(data), 40)])

    def restore(self, data: bytes) -> None:
        """What `capture` gave."""
        self.chain, items = json.loads(data)
        self.keys = {key: (version, writer) for key, (version, writer) in items}


@dataclass
class Op:
    """A client's request. `floor`: the version that had been answered for its key when it was asked."""

    number: int
    key: str
    expected: int
    is_read: bool
    floor: int
    tries: int = 0
    node: str = ""


@dataclass
class History:
    """What all clients together have seen."""

    writers: dict[tuple[str, int], int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    acked: int = 0
    reads: int = 0

    def begin(self, number: int, key: str, *, is_read: bool) -> Op:
        """A client asks."""
        version = self.known.get(key, 0)
        return Op(number, key, version, is_read, version)

    def answer(self, op: Op, version: int, writer: int, *, is_done: bool) -> None:
        """A client is answered."""
        least = op.floor + (1 if is_done and not op.is_read else 0)
        if version < least:
            raise Violation(f"{op} was answered with version {version}: older than what had been answered")
        if is_done and not op.is_read and writer != op.number:
            raise Violation(f"{op} was told it is done, but {writer} wrote version {version}")
        if version and self.writers.setdefault((op.key, version), writer) != writer:
            other = self.writers[op.key, version]
            raise Violation(f"version {version} of {op.key} was written by {other} and by {writer}")
        self.known[op.key] = max(self.known.get(op.key, 0), version)
        self.acked += is_done and not op.is_read
        self.reads += op.is_read
