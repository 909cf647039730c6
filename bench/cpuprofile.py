"""Where the broker's CPU goes, in percent:  python -m bench.cpuprofile

Runs MirrorMQ under load (1 KiB published, delivered and acknowledged one by one) and samples its process with
perf (Debian: linux-perf). Kernel time is split by system call, compiled code by module, the rest by library.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench import brokers, generator, machine
from bench.compare import WARM_UP_S
from bench.generator import Result

TEN = "--publishers 10 --consumers 10 --queues 10"
# The number in flight keeps the queue short: the profile shows messages passing, not piling up.
LOADS = {
    "acked-1k": "--size 1024 --prefetch 1000 --ack-every 1 --in-flight 4000",
    "auto-1k": "--size 1024 --auto-ack --in-flight 4000",
    "auto-16": "--size 16 --auto-ack --in-flight 50000",
    "single-16": f"--size 16 --auto-ack --single-send --in-flight 1000 {TEN}",
}
SAMPLES_PER_S = 997
SYSTEM_CALLS = [
    (re.compile(r"send(to|msg)|writev?$|_write$"), "kernel: sending"),
    (re.compile(r"recv(from|msg)|readv?$|_read$"), "kernel: receiving"),
    (re.compile(r"epoll|poll|select"), "kernel: waiting for events"),
    (re.compile(r"fdatasync|fsync|pwrite|io_uring"), "kernel: disk"),
    (re.compile(r"futex"), "kernel: threads"),
    (re.compile(r"page_fault|mmap|munmap|brk|madvise"), "kernel: memory"),
]
LIBRARIES = [
    (re.compile(r"mirrormq/kernel/"), "compiled"),
    (re.compile(r"uvloop|libuv"), "event loop (uvloop)"),
    (re.compile(r"python"), "Python interpreter"),
]
COPY = re.compile(r"mem(cpy|move|set|cmp)|bcmp")
ALLOCATE = re.compile(r"malloc|free|realloc|calloc|_int_|arena|tcache|unlink_chunk")


class Sample:
    """One stack: (symbol, library) from the innermost frame outwards."""

    def __init__(self, frames: list[tuple[str, str]]) -> None:
        self.frames = frames

    def kind(self) -> str:
        symbol, library = self.frames[0]
        if ("kernel" in library and "mirrormq" not in library) or library.startswith("[k"):
            return self._system_call()
        if COPY.search(symbol):
            return "copying (memcpy)"
        if ALLOCATE.search(symbol) and "libc" in library:
            return "allocating (malloc)"
        file = Path(library).name
        for pattern, name in LIBRARIES:
            if pattern.search(library):
                return f"compiled: {file.partition('.')[0]}" if name == "compiled" else name
        return f"library: {file}"

    def _system_call(self) -> str:
        for symbol, _ in reversed(self.frames):
            for pattern, name in SYSTEM_CALLS:
                if pattern.search(symbol):
                    return name
        return "kernel: other"


def samples(text: str) -> Iterator[Sample]:
    """Read the output of perf script: stacks separated by empty lines."""
    frames: list[tuple[str, str]] = []
    for line in [*text.splitlines(), ""]:
        found = re.match(r"\s+[0-9a-f]+ (.+?)(?:\+0x[0-9a-f]+)? \((.+)\)$", line)
        if found:
            frames.append((found[1], found[2]))
        elif not line.strip() and frames:
            yield Sample(frames)
            frames = []


def record(pid: int, seconds: float) -> str:
    """Sample the process and return what perf script says."""
    perf = shutil.which("perf")
    if perf is None:
        raise SystemExit("The profile needs perf (Debian: apt install linux-perf).")
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder, "perf.data"))
        subprocess.run(
            [
                perf,
                "record",
                "-q",
                "-e",
                "cpu-clock",
                "-F",
                str(SAMPLES_PER_S),
                "-g",
                "-p",
                str(pid),
                "-o",
                data,
                "--",
                "sleep",
                str(seconds),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        done = subprocess.run(
            [perf, "script", "-i", data, "-F", "ip,sym,dso"], check=True, capture_output=True, text=True
        )
    return done.stdout


def table(found: list[Sample], run: Result) -> str:
    """Shares by kind, and the symbols that lead."""
    total = len(found)
    kinds = Counter(sample.kind() for sample in found)
    symbols = Counter(f"`{sample.frames[0][0]}` in {Path(sample.frames[0][1]).name}" for sample in found)
    per_message = 1e6 / run["msgs_per_broker_cpu_s"]
    lines = [
        f"{total:,} samples; {run['consumed_per_s']:,.0f} msgs/s, {per_message:.2f} µs of broker CPU each.",
        "",
        "| where | % | µs per message |",
        "|---|---|---|",
    ]
    for kind, count in kinds.most_common():
        if count / total >= 0.005:
            lines.append(f"| {kind} | {count / total:.1%} | {per_message * count / total:.3f} |")
    lines += ["", "| symbol | % |", "|---|---|"]
    lines += [f"| {symbol} | {count / total:.1%} |" for symbol, count in symbols.most_common(15)]
    return "\n".join(lines)


def profile(load: str, seconds: float, kind: str) -> str:
    with brokers.running([kind]) as [broker]:
        results: list[Result] = []
        timing = ["--seconds", str(seconds + 2 * WARM_UP_S), "--warmup", str(WARM_UP_S), "--queue", "profile"]
        options = [*LOADS[load].split(), *timing, "--purge", "--delete"]
        thread = threading.Thread(
            target=lambda: results.append(generator.load(options, broker.port, broker.pid))
        )
        thread.start()
        thread.join(WARM_UP_S)
        text = record(broker.pid, seconds)
        thread.join()
    if "error" in results[0]:
        raise SystemExit(results[0]["error"])
    return table(list(samples(text)), results[0])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cpuprofile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--load", default="acked-1k", choices=list(LOADS))
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--broker", default="mirrormq", choices=list(brokers.KINDS))
    options = parser.parse_args(argv)
    machine.enter_private_network("bench.cpuprofile")
    brokers.prepare()
    generator.program()
    sys.stdout.write(f"{options.load}: {profile(options.load, options.seconds, options.broker)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
