"""House rules that a machine can check: numbers, words, calls, layers, dead files and dead limits."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator

import pytest

from tests.tidy import sources
from tests.tidy.sources import CLONE, Source, read

PACKAGE = read("src/mirrormq/**/*.py", "src/pyspark_mirrormq/*.py")
NOT_RAFT = [source for source in PACKAGE if "/raft" not in source.path]
"""Raft keeps its own words: it has followers."""
KERNEL = read("src/mirrormq/**/*.pyx", "src/mirrormq/**/*.pxd")
STUBS = read("src/mirrormq/**/*.pyi")
TESTS = read("tests/**/*.py")
TOOLS = read("tools/*.py", "bench/**/*.py", "examples/**/*.py", "setup.py")
WEB = [
    source
    for source in read(*(f"src/mirrormq/http/static/**/*.{kind}" for kind in ("js", "css", "html")))
    if "/vendor/" not in source.path
]
"""The web UI, but for what was made elsewhere."""
PROSE = read("*.md", *(f"{top}/**/*.md" for top in ("docs", "bench", "changes", "examples", "packaging")))
SCRIPTS = read("run", "test", ".ci/run", "tools/*.sh", "bench/*.sh")

Rule = Callable[[Source], Iterator[str]]

RULES: list[tuple[Rule, list[Source]]] = [
    (sources.long_lines, [*PACKAGE, *KERNEL, *STUBS, *TESTS, *TOOLS, *WEB]),
    (sources.long_file, [*PACKAGE, *KERNEL, *TESTS, *TOOLS, *WEB]),
    (sources.long_functions, [*PACKAGE, *KERNEL, *TESTS, *TOOLS]),
    (sources.many_parameters, [*PACKAGE, *TOOLS]),
    (sources.missing_docstring, [*PACKAGE, *KERNEL, *TESTS, *TOOLS]),
    (sources.banned_calls, [*PACKAGE, *TESTS]),
    (sources.reminders, [*PACKAGE, *KERNEL, *STUBS, *TESTS, *TOOLS, *SCRIPTS, *PROSE, *WEB]),
    (sources.banned_words, [*NOT_RAFT, *KERNEL, *STUBS]),
    (sources.broken_layers, [*PACKAGE, *KERNEL, *STUBS]),
]


@pytest.mark.parametrize(("rule", "files"), RULES, ids=[rule.__name__ for rule, _ in RULES])
def test_no_file_breaks_a_house_rule(rule: Rule, files: list[Source]) -> None:
    assert files, "the rule looks at no file at all"
    complaints = [complaint for source in files for complaint in rule(source)]
    assert not complaints, "\n".join(complaints)


PLANTED: list[tuple[Rule, Source]] = [
    (sources.long_lines, Source("src/mirrormq/base/x.py", "x" * 111)),
    (sources.long_file, Source("x.py", "\n" * 601)),
    (sources.long_functions, Source("x.py", "def f():\n" + "    a = 1\n" * 60)),
    (sources.long_functions, Source("x.pyx", "cdef int f(int a) except -1:\n" + "    a = 1\n" * 60)),
    (sources.many_parameters, Source("x.py", "def f(a, b, c, d, e, g): pass")),
    (sources.missing_docstring, Source("x.py", "a = 1")),
    (sources.missing_docstring, Source("x.pyx", "cdef int a = 1")),
    (sources.banned_calls, Source("x.py", "import time\ntime.sleep(1)")),
    (sources.banned_calls, Source("x.py", "try:\n    pass\nexcept:\n    pass")),
    (sources.banned_calls, Source("x.py", "from unittest.mock import patch")),
    (sources.reminders, Source("x.py", "# TO" + "DO later")),
    (sources.banned_words, Source("x.py", "slave_pids = 1")),
    (sources.banned_words, Source("x.pyx", "cdef int high_watermark")),
    (sources.broken_layers, Source("src/mirrormq/broker/x.py", "from mirrormq.node import node")),
    (sources.broken_layers, Source("src/mirrormq/wire/x.py", "from mirrormq.log import disk")),
    (sources.broken_layers, Source("src/mirrormq/kernel/x.pyx", "from mirrormq.wire cimport table")),
    (sources.broken_layers, Source("src/mirrormq/kernel/x.pyx", "import time")),
    (sources.broken_layers, Source("src/mirrormq/meta/x.py", "import random")),
]


@pytest.mark.parametrize(("rule", "offence"), PLANTED)
def test_a_planted_offence_is_found(rule: Rule, offence: Source) -> None:
    assert list(rule(offence))


def test_words_in_strings_and_comments_are_no_identifiers() -> None:
    assert not list(sources.banned_words(Source("x.py", 'key = "slave_pids"  # watermark')))
    assert not list(sources.banned_words(Source("x.pyx", 'a = "replica"  # follower')))


def test_every_source_file_is_imported_by_another() -> None:
    imported = {module for source in (*PACKAGE, *KERNEL) for _, module in sources.imports(source)}
    entries = entry_points()
    dead = [
        source.path
        for source in (*PACKAGE, *KERNEL)
        if not source.path.endswith(("__init__.py", "__main__.py", ".pxd"))
        and module_name(source) not in imported | entries
    ]
    assert not dead, dead


def test_every_limit_is_used() -> None:
    limits = next(source for source in PACKAGE if source.path.endswith("base/limits.py"))
    names = re.findall(r"^(\w+)(?:\s*:\s*\w+)?\s*=", limits.text, re.MULTILINE)
    others = "\n".join(source.text for source in (*PACKAGE, *KERNEL) if source is not limits)
    asserted = "\n".join(line for line in limits.lines if not re.match(r"^\w+\s*(:.*)?=", line))
    unused = [
        name
        for name in names
        if not re.search(rf"\blimits\.{name}\b", others) and not re.search(rf"\b{name}\b", asserted)
    ]
    assert not unused, unused
    assert len(set(names)) == len(names), "a limit has one value"


def test_every_compiled_module_has_a_stub() -> None:
    stubs = {source.path.removesuffix(".pyi") for source in STUBS}
    missing = [
        source.path
        for source in KERNEL
        if source.path.endswith(".pyx") and source.path.removesuffix(".pyx") not in stubs
    ]
    assert not missing, missing


def test_the_layers_are_the_same_for_python_and_for_cython() -> None:
    project = tomllib.loads((CLONE / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(
        entry for entry in project["tool"]["importlinter"]["contracts"] if entry["id"] == "layers"
    )
    listed = [re.sub(r"[() ]", "", layer) for layer in contract["layers"] if layer != "__main__"]
    assert tuple(reversed(listed)) == sources.LAYERS


def test_test_names_are_promises() -> None:
    vague = [
        f"{source.path}:{first}: {name}"
        for source in TESTS
        for name, first, _ in sources.functions(source)
        if name.startswith("test_") and name.count("_") < 3
    ]
    assert not vague, "\n".join(vague)


def test_nothing_names_the_machine_it_was_written_on() -> None:
    paths = re.compile(r"(?<![\w.])/(root|work|home/\w+)/")
    everything = [
        *PACKAGE,
        *KERNEL,
        *STUBS,
        *TESTS,
        *TOOLS,
        *SCRIPTS,
        *PROSE,
        *WEB,
        *read("pyproject.toml", "Makefile", "packaging/*/*"),
    ]
    found = [
        f"{source.path}:{number}: {line.strip()}"
        for source in everything
        for number, line in enumerate(source.lines, 1)
        if paths.search(line)
    ]
    assert not found, "\n".join(found)


def test_every_script_is_valid_and_executable() -> None:
    for source in SCRIPTS:
        subprocess.run(["bash", "-n", str(CLONE / source.path)], check=True)
        if not source.path.startswith("tools/"):
            assert (CLONE / source.path).stat().st_mode & 0o111, source.path


def module_name(source: Source) -> str:
    path = source.path.removeprefix("src/").rpartition(".")[0]
    return path.replace("/", ".")


def entry_points() -> set[str]:
    """Modules that are started from outside, by pip's scripts or by pytest."""
    project = tomllib.loads((CLONE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    targets = [*project.get("scripts", {}).values()]
    for group in project.get("entry-points", {}).values():
        targets += group.values()
    return {target.partition(":")[0] for target in targets}
