"""Memory and disk as the kernel tells them, with control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrormq.runtime.gauges import Gauges, limit_bytes
from mirrormq.runtime.values import Share

GIB = 1024**3


class Machine:
    """A fake /proc and /sys."""

    def __init__(self, root: Path, memory_gib: int = 16) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal:       {memory_gib * 1024 * 1024} kB\nMemFree: 1 kB\n")
        self.write("proc/self/statm", "100 42 3 4 5 6 7\n")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def total(self) -> int:
        return Gauges(self.root, self.root).memory_total()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def v2(root: str = "/") -> str:
    return f"30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def v1(root: str = "/") -> str:
    return f"33 25 0:29 {root} /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"


def test_without_control_groups_all_memory_counts(machine: Machine) -> None:
    assert machine.total() == 16 * GIB


def test_a_limit_of_version_2_counts(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/system.slice/mirrormq.service\n")
    machine.write("proc/self/mountinfo", v2())
    machine.write("sys/fs/cgroup/system.slice/mirrormq.service/memory.max", f"{2 * GIB}\n")
    assert machine.total() == 2 * GIB


def test_a_limit_of_a_parent_group_counts(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/kubepods/pod1/container1\n")
    machine.write("proc/self/mountinfo", v2())
    machine.write("sys/fs/cgroup/kubepods/pod1/container1/memory.max", "max\n")
    machine.write("sys/fs/cgroup/kubepods/pod1/memory.max", f"{3 * GIB}\n")
    assert machine.total() == 3 * GIB


def test_a_limit_of_version_1_counts(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/docker/abc\n1:cpu:/\n0::/\n")
    machine.write("proc/self/mountinfo", v1())
    machine.write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", f"{GIB}\n")
    assert machine.total() == GIB


def test_a_container_sees_its_own_subtree_of_version_1(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/docker/abc\n")
    machine.write("proc/self/mountinfo", v1("/docker/abc"))
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB}\n")
    assert machine.total() == GIB


def test_no_limit_of_version_1_is_a_huge_number_and_does_not_count(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/\n")
    machine.write("proc/self/mountinfo", v1())
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert machine.total() == 16 * GIB


def test_memory_used_is_what_is_resident(machine: Machine) -> None:
    import os

    assert Gauges(machine.root, machine.root).memory_used() == 42 * os.sysconf("SC_PAGE_SIZE")


def test_this_machine_has_memory_and_disk(tmp_path: Path) -> None:
    gauges = Gauges(tmp_path)
    assert 0 < gauges.memory_used() < gauges.memory_total()
    assert gauges.disk_free() > 0


def test_limits_are_bytes_or_parts_of_the_memory() -> None:
    assert limit_bytes(Share(0.5), 1000) == 500
    assert limit_bytes(7, 1000) == 7
