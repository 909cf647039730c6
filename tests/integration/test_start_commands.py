"""`./run` and `./test` where something is missing: one sentence with the cure, and nothing half done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest


@pytest.fixture
def copy(tmp_path: Path, clone: Path) -> Path:
    """A clone with the two commands, one kernel source and an environment without anything installed."""
    for name in ("run", "test", "pyproject.toml", "setup.py"):
        shutil.copy(clone / name, tmp_path / name)
    shutil.copytree(clone / "tools", tmp_path / "tools")
    (tmp_path / "src/mirrormq/kernel").mkdir(parents=True)
    (tmp_path / "src/mirrormq/kernel/a.pyx").write_text("x = 1\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    return tmp_path


def command(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("which", ["./run", "./test"])
def test_a_missing_compiler_is_told_with_the_cure(copy: Path, which: str) -> None:
    result = command(copy, which, CC="/nonexistent")
    assert result.returncode == 1
    assert "No working C compiler ('/nonexistent'): 'sudo apt-get install build-essential'" in result.stderr


def test_missing_headers_of_python_are_told_with_the_cure(copy: Path) -> None:
    compiler = script(copy / "cc", "grep -q Python.h && exit 1; exit 0")
    result = command(copy, "./run", CC=compiler)
    assert result.returncode == 1
    assert "header files of Python 3" in result.stderr
    assert "sudo apt-get install python3-dev" in result.stderr


def test_an_old_python_is_told_with_the_cure(copy: Path) -> None:
    shutil.rmtree(copy / ".venv")
    old = script(copy / "oldpython", 'test "$1" = --version && echo "Python 3.9.2" && exit 0; exit 1')
    result = command(copy, "./run", PYTHON=old)
    assert result.returncode == 1
    assert "needs Python 3.11 or newer (found: Python 3.9.2)" in result.stderr
    assert not (copy / ".venv").exists()


def test_the_help_of_run_needs_nothing_installed_and_names_its_options(copy: Path) -> None:
    result = command(copy, "./run", "--help", CC="/nonexistent")
    assert result.returncode == 0
    assert "a cluster of three nodes" in result.stdout
    for option in ("--nodes", "--port-base", "--data", "--fresh", "--set", "--config", "./run ctl"):
        assert option in result.stdout
    assert "set -euo" not in result.stdout


@pytest.mark.parametrize(
    ("words", "passed_on"),
    [
        ([], ["up", "--invoked-as", "./run"]),
        (["--fresh", "--data", "a b"], ["up", "--invoked-as", "./run", "--fresh", "--data", "a b"]),
        (["ctl", "-n", "mirrormq-1", "status"], ["ctl", "-n", "mirrormq-1", "status"]),
        (["serve", "--port-base", "7"], ["serve", "--port-base", "7"]),
    ],
)  # fmt: skip
def test_run_starts_a_cluster_unless_it_is_told_a_command(
    copy: Path, words: list[str], passed_on: list[str]
) -> None:
    script(copy / ".venv/bin/mirrormq", 'printf "%s\\n" "$@"')
    # As after a first start: everything is installed and built.
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (copy / f"src/mirrormq/kernel/a{suffix}").touch()
    stamp = '. tools/setup.sh; printf %s "$({}_sum)" > .venv/.mirrormq-{}'
    for what, name in (("package", "run"), ("kernel", "kernel")):
        subprocess.run(["bash", "-c", stamp.format(what, name)], cwd=copy, check=True)
    result = command(copy, "./run", *words)
    assert result.stdout.splitlines() == passed_on, result


def test_an_unknown_group_names_those_there_are(copy: Path) -> None:
    result = command(copy, "./test", "nonsense")
    assert result.returncode == 1
    assert "no group 'nonsense'; there are: lint tidy unit" in result.stderr


def test_the_table_counts_what_passed_failed_and_was_not_run(tmp_path: Path, clone: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    cases = '<testcase name="a"/><testcase name="b"><skipped message="no rabbitmq-server"/></testcase>'
    (results / "unit.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    (results / "unit.status").write_text("0 12\n")
    (results / "fuzz.status").write_text("77 1\n")
    (results / "fuzz.log").write_text("building ...\ngcc has no libasan\n")
    summary = [sys.executable, str(clone / "tools/summary.py"), str(results)]
    here = command(tmp_path, *summary, CI="")
    assert here.returncode == 0
    assert "not run: 1 × no rabbitmq-server" in here.stdout
    assert "gcc has no libasan" in here.stdout
    assert "1 passed, 0 failed, 2 not run" in here.stdout
    in_ci = command(tmp_path, *summary, CI="true")
    assert in_ci.returncode == 1
    (results / "lint.status").write_text("1 3\n")
    assert command(tmp_path, *summary, CI="").returncode == 1
