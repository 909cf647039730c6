from typing import Self

from typing_extensions import disjoint_base

@disjoint_base
class Flusher:
    """Orders come from one thread, the loop's. `fileno()` is readable when `take` has something to give."""

    def __new__(cls, reserve_fd: int = -1) -> Self:
        """`reserve_fd`: a file that is emptied when a write finds the disk full; -1 = there is none."""

    def append(self, fd: int, data: bytes) -> None:
        """Write behind what the descriptor has written so far."""

    def flush(self, fd: int, token: int) -> None:
        """Make everything appended so far durable, then report `token` (0: report nothing but a failure)."""

    def flush_folder(self, fd: int) -> None:
        """Make the names in a folder durable before any later flush is reported."""

    def read(self, fd: int, offset: int, length: int, token: int) -> None:
        """Read a range, less if the file ends; reported with its data."""

    def reserve(self, fd: int, size: int) -> None:
        """Let the file have this size, zeros at the end, if the file system can."""

    def mark(self, token: int) -> None:
        """Report `token` when every earlier order is done."""

    def close_file(self, fd: int) -> None:
        """Close the descriptor after every earlier order, also after a failure."""

    def wake(self) -> None:
        """Make `fileno()` readable; any thread may call it."""

    def fileno(self) -> int: ...
    def counters(self) -> tuple[int, int, int]:
        """(flushes done, descriptor of the order that failed or -1, how often the reserve was given up)."""

    def take(self) -> list[tuple[int, int, bytes | None]]:
        """(token, errno, data of a read) of what was done since the last call; appends only if refused."""

    def close(self, timeout_s: float) -> bool:
        """Finish what was ordered and end the thread; False if it did not in time. Only `take` may follow."""
