"""How steady the machine is:  python -m bench.stalls [SECONDS]

One program per core does the same piece of work again and again, a look at so many scattered objects that it
takes about a millisecond, and notes how much CPU time each took. Nothing in it takes longer at one time than
at another, so whatever does is the machine's: on a guest what its host and its neighbours do looks like CPU
time of whoever had the core. A measurement of how long an event loop was held cannot be better than that.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

LONG_MS = 2.0
PIECE_MS = 1.0
WORK = "--work"


class Stalls(NamedTuple):
    """What pieces of work took that are all the same."""

    pieces: int
    median_ms: float
    longest_ms: float
    long: int
    """Pieces that took longer than `LONG_MS`."""
    spent_s: float
    """Of CPU time, in all of them."""

    def text(self) -> str:
        """A sentence."""
        return (
            f"of {self.pieces} equal pieces of work, {self.median_ms:.2f} ms of CPU each (median), "
            f"{self.long} took more than {LONG_MS:.0f} ms ({self.long / self.spent_s:.2f} per CPU second), "
            f"the longest {self.longest_ms:.1f} ms"
        )


def worked(seconds: float) -> list[float]:
    """Milliseconds of CPU of each piece."""
    scattered = [(number,) for number in range(200_000)]
    random.shuffle(scattered)
    piece = scattered[:10_000]
    looked = 0
    for _ in range(20):
        before = time.thread_time()
        looked += sum(one[0] < 0 for one in piece)
        took_ms = (time.thread_time() - before) * 1000
        piece = scattered[: int(len(piece) * min(2.0, PIECE_MS / took_ms))]
    end = before + seconds
    took = []
    while before < end:
        before = time.thread_time()
        looked += sum(one[0] < 0 for one in piece)
        took.append((time.thread_time() - before) * 1000)
    assert looked == 0
    return took


def measured(seconds: float) -> Stalls:
    """So many seconds of CPU per core, all cores at once."""
    words = [sys.executable, "-m", "bench.stalls", WORK, str(seconds)]
    made = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(os.cpu_count() or 1)]
    took = [ms for one in made for ms in json.loads(one.communicate()[0])]
    return Stalls(
        len(took), statistics.median(took), max(took), sum(ms > LONG_MS for ms in took), sum(took) / 1000
    )


if __name__ == "__main__":
    if sys.argv[1:2] == [WORK]:
        sys.stdout.write(json.dumps(worked(float(sys.argv[2]))))
    else:
        sys.stdout.write(measured(float(sys.argv[1]) if sys.argv[1:] else 10.0).text() + "\n")
