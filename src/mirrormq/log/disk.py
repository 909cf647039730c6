"""The disk as the core sees it: reading at start-up, and four effects afterwards.

Promises of whoever carries out the effects (`runtime`, or a fake in tests):

- Effects on one file happen in the order they were issued. `append` creates a missing file.
- A `flush` or `replace` is reported by its token, once, when it is durable: a flush covers every append to
  that file issued before it, what an earlier process left in it, and the file's name in its folder; a crash
  after the report loses nothing of it.
- `replace` is atomic: after a crash the file has the old content or the new one, never a mixture. An append
  issued after it goes behind the new content. Temporary files are never listed.
- `remove` of a missing file does nothing. It is not reported: a file that comes back after a crash does no
  harm.
- An append that was not flushed may be lost or torn by a crash at any byte.
- An effect that fails ends the node. It is never reported as done.

Names are relative to the data folder and use `/`.
"""

from collections.abc import Callable
from typing import Protocol

QUIET = object()

ReadDone = Callable[[bytes | None, str | None], object]
"""Gets the bytes that were read, or None and why they could not be. Whoever returns `QUIET` has left nothing
to do for a pass: a stream of slices to one client would have one for each of them."""

Reader = Callable[[str, int, int, ReadDone], None]
"""Reads from a file at an offset so many bytes, and calls back."""


class LogRefused(Exception):
    """The queue data in the folder cannot be served: damaged as a whole, or written by a newer version."""


class Disk(Protocol):
    """What recovery may read. Used before the first effect is issued, never afterwards."""

    def list(self, prefix: str) -> list[str]:
        """Names of the files that begin with `prefix`, sorted."""
        ...

    def size(self, name: str) -> int:
        """Bytes of a file that was listed."""
        ...

    def read(self, name: str) -> bytes:
        """The whole content of a file that was listed."""
        ...

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes of it from `offset` on: fewer only at its end."""
        ...


class DiskOutbox(Protocol):
    """Where the core puts its disk effects."""

    def append(self, file: str, data: bytes) -> None:
        """Write `data` behind the end of `file`."""
        ...

    def flush(self, file: str, token: int) -> None:
        """Make everything appended to `file` so far durable, then report `token`."""
        ...

    def replace(self, file: str, data: bytes | bytearray, token: int) -> None:
        """Make `data` the whole content of `file`, atomically and durably, then report `token`."""
        ...

    def read(self, file: str, offset: int, length: int, token: int) -> None:
        """Read up to `length` bytes, everything appended before included, then report them under `token`."""
        ...

    def remove(self, file: str) -> None:
        """Delete `file`."""
        ...
