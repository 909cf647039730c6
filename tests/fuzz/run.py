"""Fuzzes the compiled kernel under AddressSanitizer: no crash, no hang, no leak, no wrong result.

    python tests/fuzz/run.py --seconds 60              what CI runs
    python tests/fuzz/run.py --seconds 28800 --seed 7  a campaign over night; other seeds are other cases
    python tests/fuzz/run.py --target reader --seed 12345 --cases 1     one case again

Time is shared among the targets in slices, each in a fresh process. Before anything counts, the harness must
catch mistakes planted on purpose. A failing case is named by target and seed, with the line to repeat it.
Exit: 0 fine, 1 something was found, 77 this machine lacks the tools (the last line says which).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz import build

TARGETS = ("reader", "message", "queue", "outbuffer", "topic", "forward", "rows")
SLICE_S = 5.0
HANG_S = 30.0
UNLIMITED = 1 << 62
SEEDS_PER_SLICE = 1 << 24
REPORT_CHARS = 6000

# What each planted mistake must be reported as; "nothing" must pass.
PLANTED = {
    "nothing": None,
    "over_read": "heap-buffer-overflow",
    "use_after_free": "heap-use-after-free",
    "leak_memory": "detected memory leaks",
    "leak_bytes": "detected memory leaks",
    "leak_thing": "objects that outlived their case: Thing",
    "hang": "hang",
}


@dataclass(frozen=True)
class Outcome:
    """How one sanitized process ended."""

    cases: int
    problem: str
    last_seed: int
    report: str


def environment(progress: str) -> dict[str, str]:
    """Every allocation of Python's goes through malloc, where the sanitizer sees its bounds."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {
        "LD_PRELOAD": str(build.runtime()),
        "PYTHONMALLOC": "malloc",
        "PYTHONHASHSEED": "0",
        "ASAN_OPTIONS": "detect_leaks=1:leak_check_at_exit=0:abort_on_error=0:allocator_may_return_null=1",
        "FUZZ_PROGRESS": progress,
    }


def child(library: Path, arguments: list[str], allowed_s: float) -> Outcome:
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(bytes(8))
        progress.flush()
        command = [sys.executable, str(Path(__file__).with_name("child.py")), str(library), *arguments]
        try:
            done = subprocess.run(
                command,
                env=environment(progress.name),
                capture_output=True,
                text=True,
                timeout=allowed_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(0, "hang", read_seed(progress.name), f"no end within {allowed_s:g} s")
        seed = read_seed(progress.name)
        cases = int(done.stdout.split()[-1]) if done.stdout.split() else 0
        if done.returncode == 0:
            return Outcome(cases, "", seed, "")
        return Outcome(cases, f"exit {done.returncode}", seed, done.stderr[-REPORT_CHARS:])


def read_seed(path: str) -> int:
    return int.from_bytes(Path(path).read_bytes()[:8], "big")


def check_planted(library: Path, names: tuple[str, ...] = tuple(PLANTED)) -> Iterator[tuple[str, str]]:
    """(name, what is wrong) of each planted mistake that the harness did not treat as it should."""
    for name in names:
        wanted = PLANTED[name]
        outcome = child(library, ["planted", name], 5.0 if name == "hang" else HANG_S)
        said = f"{outcome.problem}\n{outcome.report}"
        if wanted is None and outcome.problem:
            yield name, f"a clean process is reported: {said}"
        elif wanted is not None and (not outcome.problem or wanted not in said):
            yield name, f"not caught as {wanted!r}: {said}"


def campaign(library: Path, targets: tuple[str, ...], seconds: float, seed: int, cases: int) -> int:
    """Slices of all targets in turn until the time is up; the number of problems found."""
    deadline = time.monotonic() + seconds
    counts = dict.fromkeys(targets, 0)
    number = 0
    while time.monotonic() < deadline or number < len(targets):
        target = targets[number % len(targets)]
        first = seed + (number // len(targets)) * SEEDS_PER_SLICE
        length = min(SLICE_S, max(seconds / len(targets), 0.5))
        outcome = child(library, [target, str(first), str(length), str(cases)], length + HANG_S)
        counts[target] += outcome.cases
        if outcome.problem:
            bad = outcome.last_seed
            say(f"{target}: {outcome.problem} at or before seed {bad}\n{outcome.report}")
            leak = "leak: " in outcome.report  # found at the end: any of the cases may be the one
            start = first if leak else bad
            say(f"again: python tests/fuzz/run.py --target {target} --seed {start} --cases {bad - start + 1}")
            return 1
        number += 1
        if cases != UNLIMITED and number >= len(targets):
            break
    for target, count in counts.items():
        say(f"{target:10} {count:10,} cases")
    return 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the kernel under AddressSanitizer.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, all targets together")
    parser.add_argument(
        "--seed", type=int, default=1, help="first seed; a day's campaign should take another one"
    )
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one (may be repeated)")
    parser.add_argument("--cases", type=int, default=UNLIMITED, help="at most this many cases per target")
    chosen = parser.parse_args()
    try:
        library = build.build()
    except build.MissingTools as missing:
        say(f"not run: {missing}")
        return 77
    missed = list(check_planted(library))
    for name, text in missed:
        say(f"planted {name}: {text}")
    if missed:
        return 1
    say(f"planted mistakes caught: {', '.join(name for name, wanted in PLANTED.items() if wanted)}")
    return campaign(library, tuple(chosen.target or TARGETS), chosen.seconds, chosen.seed, chosen.cases)


if __name__ == "__main__":
    sys.exit(main())
