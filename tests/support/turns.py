"""How long the loop was held while something ran in slices."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Turns:
    """Seconds of processor time: what others on the machine do is not what a slice does."""

    longest: float = 0.0


@contextlib.contextmanager
def watched() -> Iterator[Turns]:
    """Look at every turn of the running loop until the block ends."""
    loop = asyncio.get_running_loop()
    found = Turns()
    is_over = False
    seen = 0.0

    def beat() -> None:
        nonlocal seen
        now = time.thread_time()
        found.longest, seen = max(found.longest, now - seen), now
        if not is_over:
            loop.call_soon(beat)

    gc.collect()
    gc.freeze()  # as a node does when it has started
    seen = time.thread_time()
    loop.call_soon(beat)
    try:
        yield found
    finally:
        is_over = True
        gc.unfreeze()
