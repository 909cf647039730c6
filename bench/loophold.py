"""How long the event loops of processes are held, in CPU: from the return of epoll_wait to its next call.

perf (Debian: linux-perf) records these calls and when the thread was on a core, so nothing in the processes
has to be changed, time in which others had the core is not counted, and everything between two looks at the
sockets is: callbacks, answers of the disk, the end of the pass.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAITS = "id==281||id==232"  # epoll_pwait and epoll_wait of x86-64
HOLD_MAX_US = 2_000
LINE = re.compile(r"^\s*(\d+)\s+(\d+)\.(\d{6}):\s+(.*)$")


class Holds:
    """What was found, by process."""

    def __init__(self) -> None:
        self.by_pid: dict[int, dict[str, float]] = {}


@contextmanager
def watching(pids: Sequence[int]) -> Iterator[Holds]:
    """Watch the main threads of processes while the block runs."""
    holds = Holds()
    with tempfile.TemporaryDirectory(prefix="mirrormq-bench-") as folder:
        record = Path(folder) / "perf.data"
        command = [
            "perf",
            "record",
            "-q",
            "--switch-events",
            "-t",
            ",".join(map(str, pids)),
            "-o",
            str(record),
        ]
        for event in ("sys_enter", "sys_exit"):
            command += ["-e", f"raw_syscalls:{event}", "--filter", WAITS]
        perf = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            yield holds
        finally:
            perf.terminate()
            perf.wait()
        show = ["perf", "script", "-i", str(record), "--show-switch-events", "-F", "tid,time,event,trace"]
        text = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    for pid in pids:
        holds.by_pid[pid] = summary(list(turns(text, pid)))


def turns(text: str, pid: int) -> Iterator[tuple[int, int]]:
    """(CPU, wall) in microseconds of each turn of a loop."""
    began = running_since = None
    cpu = 0
    for line in text.splitlines():
        found = LINE.match(line)
        if found is None or int(found[1]) != pid:
            continue
        now, what = int(found[2]) * 1_000_000 + int(found[3]), found[4]
        if "sys_exit" in what:
            began, running_since, cpu = now, now, 0
        elif began is None:
            continue
        elif "SWITCH OUT" in what and running_since is not None:
            cpu += now - running_since
            running_since = None
        elif "SWITCH IN" in what:
            running_since = now
        elif "sys_enter" in what:
            yield cpu + (now - running_since if running_since is not None else 0), now - began
            began = None


def summary(found: list[tuple[int, int]]) -> dict[str, Any]:
    """The distribution of what was found."""
    cpu = sorted(one for one, _ in found)
    if not cpu:
        return {"turns": 0}
    at = {f"p{str(share).replace('.', '')}_us": cpu[min(len(cpu) - 1, int(len(cpu) * share / 100))]
          for share in (50, 99, 99.9)}  # fmt: skip
    return {
        "turns": len(cpu),
        **at,
        "max_us": cpu[-1],
        "over_2ms": sum(one > HOLD_MAX_US for one in cpu),
        "wall_max_us": max(wall for _, wall in found),
    }
