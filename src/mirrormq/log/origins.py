"""Where the messages of a mirror's queue come from: which record of the source each of them is a copy of.

Guarantees
- Copies are taken in the order of their records at the source, each once: `high` is the last that was taken,
  and what is not above it is known. That holds across restarts, fail-overs and jobs that begin again.
- A removal names a record of the source; here it is found by that, in O(log n), as long as it is live.

Kept as runs of consecutive seqs, which is how messages are published.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from mirrormq.base import limits
from mirrormq.kernel.ranges import RangeSet

_HEAD = struct.Struct("<QI")
_RUN = struct.Struct("<QQ")


class Run(NamedTuple):
    """So many copies in a row."""

    origin: int
    """Seq at the source of the first."""
    seq: int
    """Its seq here."""
    length: int


class Saved(msgspec.Struct, frozen=True, array_like=True):
    """The same as checkpoints and full copies hold it."""

    high: int
    runs: list[Run]


class Origins:
    """The copies in one queue."""

    def __init__(self, high: int = 0, runs: Sequence[Run] = ()) -> None:
        self.high = high
        self._runs = list(runs)
        self._starts = [run.origin for run in self._runs]
        self._tidy_at = limits.fold_rows_min

    def save(self, dead: RangeSet) -> Saved:
        """What is to be kept."""
        self._prune(dead)
        return Saved(self.high, list(self._runs))

    def tidy(self, dead: RangeSet) -> None:
        """Forget runs with nothing live in them, when there may be many."""
        if len(self._runs) > self._tidy_at:
            self._prune(dead)
            self._tidy_at = 2 * len(self._runs) + limits.fold_rows_min

    def _prune(self, dead: RangeSet) -> None:
        self._runs = [run for run in self._runs if not dead.covers(run.seq, run.seq + run.length - 1)]
        self._starts = [run.origin for run in self._runs]

    def copy(self) -> "Origins":
        """The same, which changes on its own."""
        return Origins(self.high, self._runs)

    def note(self, payload: bytes) -> None:
        """Heed a PUBNOTE record with origins."""
        seq, count = _HEAD.unpack_from(payload)
        end = _HEAD.size + count * _RUN.size
        for origin, length in _RUN.iter_unpack(payload[_HEAD.size : end]):
            self._runs.append(Run(origin, seq, length))
            self._starts.append(origin)
            seq += length
            self.high = max(self.high, origin + length - 1)

    def find(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """The spans of seqs here that are copies of these spans of the source."""
        found = []
        for first, last in spans:
            at = max(bisect_right(self._starts, first) - 1, 0)
            while at < len(self._runs) and self._runs[at].origin <= last:
                origin, seq, length = self._runs[at]
                low, high = max(first, origin), min(last, origin + length - 1)
                if low <= high:
                    found.append((seq + low - origin, seq + high - origin))
                at += 1
        return found


def load(saved: Saved | None) -> Origins | None:
    """What was kept."""
    return None if saved is None else Origins(saved.high, saved.runs)


def encode(seq: int, runs: Sequence[tuple[int, int]]) -> bytes:
    """The payload of a PUBNOTE record: the publishes from `seq` on are copies of these runs (seq, length)."""
    return _HEAD.pack(seq, len(runs)) + b"".join([_RUN.pack(*run) for run in runs])
