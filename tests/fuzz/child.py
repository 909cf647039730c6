"""One sanitized process: runs cases of a target from a seed on, or one planted mistake.

Started by `run.py` with AddressSanitizer loaded first. Leaks are looked for while the interpreter is still
alive, so everything it keeps for itself is reachable and nothing of it has to be suppressed; objects the
garbage collector tracks are counted instead, because its own lists make them reachable.

Arguments: LIBRARY TARGET SEED SECONDS CASES, or LIBRARY planted NAME. The seed of the case under way stands
in the shared file named by FUZZ_PROGRESS, so that the parent can name the case of a crash or a hang.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CASES_PER_COLLECTION = 200


def prepare(library: str) -> None:
    """Import the sanitized kernel under its ordinary name."""
    sys.path[:0] = [str(ROOT), str(ROOT / "src"), library]
    kernel = importlib.import_module("mirrormq.kernel")
    kernel.__path__.insert(0, f"{library}/mirrormq/kernel")
    frames = importlib.import_module("mirrormq.kernel.frames")
    if not str(frames.__file__).startswith(library):
        raise SystemExit(f"not the sanitized kernel: {frames.__file__}")


def leaked_memory() -> bool:
    """Ask the leak checker now; it writes its report to standard error."""
    gc.collect()
    check = ctypes.CDLL(None).__lsan_do_recoverable_leak_check
    check.restype = ctypes.c_int
    return bool(check())


def leaked_objects() -> list[str]:
    gc.collect()
    modules = ("mirrormq.kernel", "planted")
    found = {type(row) for row in gc.get_objects()}
    found = {kind for kind in found if kind.__qualname__ != "Enum"}  # Cython's constants for its buffers
    return sorted(kind.__qualname__ for kind in found if str(kind.__module__).startswith(modules))


def finish(problem: str | None) -> None:
    """Leave without finalizing: the end of the interpreter would be reported as leaks."""
    if problem:
        sys.stderr.write(f"{problem}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2 if problem else 0)


def verdict() -> str | None:
    if leaked_memory():
        return "leak: memory nobody refers to (see the report above)"
    if objects := leaked_objects():
        return f"leak: objects that outlived their case: {', '.join(objects)}"
    return None


def plant(name: str) -> None:
    planted: Any = importlib.import_module("planted")
    if name == "over_read":
        planted.over_read(b"x" * 100)
    elif name != "nothing":
        for _ in range(4):  # a stray copy of a pointer on the stack may hide one
            getattr(planted, name)()


def run(target: str, seed: int, seconds: float, cases: int) -> None:
    targets: Any = importlib.import_module("tests.fuzz.targets")
    act = targets.TARGETS[target]
    progress = open_progress()
    deadline = time.monotonic() + seconds
    done = 0
    while done < cases and time.monotonic() < deadline:
        progress[:8] = (seed + done).to_bytes(8, "big")
        act(random.Random(f"{target} {seed + done}"))
        done += 1
        if done % CASES_PER_COLLECTION == 0:
            gc.collect()
    sys.stdout.write(f"{done}\n")


def open_progress() -> Any:
    path = os.environ.get("FUZZ_PROGRESS")
    if path is None:
        return bytearray(8)
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 8)


if __name__ == "__main__":
    prepare(sys.argv[1])
    if sys.argv[2] == "planted":
        plant(sys.argv[3])
    else:
        run(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
    # Only now: the checker does not look into the memory of Python's frames, so what a local variable alone
    # holds would count as lost. Here all variables are globals.
    finish(verdict())
