"""What measuring needs of the machine: a private network, a share of the cores, CPU and memory figures."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

IN_NAMESPACE = "MIRRORMQ_BENCH_NAMESPACE"
SHARE = -15
LEAST_SHARE = 19
SPINNER = f"""
import os
os.setsid()
try:
    with open("/proc/self/autogroup", "w") as share:
        share.write("{LEAST_SHARE}")
except OSError:
    pass
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True: pass
"""
"""The idle class counts only among the processes of a session: without a session of its own, with the least
share, a spinner would take what belongs to the session of the bench, which has a large one."""


def may_make_namespaces() -> bool:
    tried = ["unshare", "-n", "true"]
    return os.geteuid() == 0 and not subprocess.run(tried, check=False, stderr=subprocess.DEVNULL).returncode


def enter_private_network(module: str) -> bool:
    """Run this program again in a network namespace of its own: no port clashes, the same TCP settings.

    Returns whether the process is in one; without root or the permission to make one, it goes on outside.
    """
    if os.environ.get(IN_NAMESPACE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(
            ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"], check=False, stderr=subprocess.DEVNULL
        )
        return True
    if may_make_namespaces():
        os.environ[IN_NAMESPACE] = "1"
        os.execvp("unshare", ["unshare", "-n", sys.executable, "-m", module, *sys.argv[1:]])
    return False


def boost(pid: int) -> None:
    """Give the session of `pid` a large share of the cores; the same for every broker and the generator."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(SHARE))


def boost_self() -> None:
    with contextlib.suppress(OSError):
        os.setsid()
    boost(os.getpid())


@contextlib.contextmanager
def cores_kept_awake(wanted: bool) -> Iterator[None]:
    """One spinner of the idle class per core, so that sleep states do not blur latencies."""
    spinners = [
        subprocess.Popen([sys.executable, "-c", SPINNER]) for _ in range(os.cpu_count() or 1) if wanted
    ]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def memory_mb(pid: int) -> float:
    """Resident memory of one process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stolen() -> int:
    """Ticks in which the host of a virtual machine had something else to do."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])


def wait_until_quiet(pid: int, seconds: float, limit_s: float = 30.0) -> None:
    """Wait until the process used under 5 % of a core for `seconds`."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = cpu_s(pid)
        time.sleep(seconds)
        if cpu_s(pid) - before < 0.05 * seconds:
            return


def description() -> str:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown processor",
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") >> 30
    kernel, python = os.uname().release, sys.version.split()[0]
    return f"{os.cpu_count()} cores ({cpu}), {memory} GiB, Linux {kernel}, Python {python}"
