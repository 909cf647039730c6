"""The clone as the tidy tests see it: its source files, parsed once, and small rules over them.

Every rule is a function from a source to complaints, so that a planted offence can show that it bites.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]

LINE_MAX = 110
FILE_MAX = 600
ONE_TABLE = "base/limits.py"
"""All limits stand in one file, however many there are."""
FUNCTION_MAX = 60
POSITIONAL_MAX = 5

LAYERS = (
    "base",
    "kernel",
    "log|wire",
    "meta",
    "broker|mirror|peer|cluster",
    "node",
    "http",
    "runtime",
    "testing",
)
"""From the bottom up; an entry may import what stands before it. The same table as import-linter's."""

MACHINE = frozenset(
    [
        "asyncio",
        "socket",
        "ssl",
        "select",
        "selectors",
        "threading",
        "time",
        "datetime",
        "random",
        "secrets",
        "uuid",
        "os",
        "pathlib",
        "subprocess",
        "logging",
        "multiprocessing",
    ]
)
"""What the core may not import: time, randomness, threads, files and sockets come in as arguments."""

BANNED_WORDS = ("slave", "replica", "follower", "primary", "watermark")
REMINDERS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")


@dataclass(frozen=True)
class Source:
    """One source file."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file; only for Python."""
        return ast.parse(self.text, self.path)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")


def read(*patterns: str) -> list[Source]:
    """Read the files of the clone that fit, in order."""
    found = {path for pattern in patterns for path in CLONE.glob(pattern) if path.is_file()}
    return [
        Source(path.relative_to(CLONE).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(found)
        if not {"node_modules", "__pycache__"} & set(path.parts)
    ]


def long_lines(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.lines, 1):
        if len(line) > LINE_MAX:
            yield f"{source.path}:{number}: {len(line)} columns"


def long_file(source: Source) -> Iterator[str]:
    if len(source.lines) > FILE_MAX and not source.path.endswith(ONE_TABLE):
        yield f"{source.path}: {len(source.lines)} lines"


def long_functions(source: Source) -> Iterator[str]:
    for name, first, last in functions(source):
        if last - first + 1 > FUNCTION_MAX:
            yield f"{source.path}:{first}: {name} has {last - first + 1} lines"


def functions(source: Source) -> Iterator[tuple[str, int, int]]:
    """Name, first and last line of every function."""
    if not source.is_python:
        yield from _cython_functions(source)
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.lineno, node.end_lineno


def _cython_functions(source: Source) -> Iterator[tuple[str, int, int]]:
    """Cython is not Python: a function ends where its indentation does."""
    lines = source.lines
    for number, line in enumerate(lines):
        found = re.match(r"( *)(?:def|cdef|cpdef)\b(?! class)[^=]*?(\w+)\(.*", line)
        if found is None:
            continue
        start = number
        while not lines[start].split("#")[0].rstrip().endswith(":") and start < number + 15:
            start += 1
            if start == len(lines):
                break
        if start == len(lines) or start == number + 15:
            continue
        last = start
        for later in range(start + 1, len(lines)):
            text = lines[later]
            if text.strip() and len(text) - len(text.lstrip()) <= len(found[1]):
                break
            if text.strip():
                last = later
        yield found[2], number + 1, last + 1


def many_parameters(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            positional = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            count = len([name for name in positional if name not in {"self", "cls"}])
            if count > POSITIONAL_MAX:
                yield f"{source.path}:{node.lineno}: {node.name} takes {count} positional parameters"


def missing_docstring(source: Source) -> Iterator[str]:
    if source.is_python:
        if source.text.strip() and not ast.get_docstring(source.tree):
            yield f"{source.path}: no module docstring"
    elif source.path.endswith(".pyx") and not re.match(r'(\s*#[^\n]*\n)*\s*"""', source.text):
        yield f"{source.path}: no module docstring"


def banned_calls(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{source.path}:{node.lineno}: bare except"
        if isinstance(node, ast.Call):
            name, method = getattr(node.func, "id", None), getattr(node.func, "attr", None)
            if name == "print" or "sleep" in {name, method}:
                yield f"{source.path}:{node.lineno}: {name or method}()"
        if isinstance(node, ast.ImportFrom | ast.Import):
            modules = [getattr(node, "module", None), *(alias.name for alias in node.names)]
            if any(module in {"unittest.mock", "mock"} for module in modules):
                yield f"{source.path}:{node.lineno}: patches instead of a fake"


def reminders(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.lines, 1):
        if REMINDERS.search(line):
            yield f"{source.path}:{number}: {line.strip()}"


def banned_words(source: Source) -> Iterator[str]:
    for number, name in identifiers(source):
        if any(word in name.lower() for word in BANNED_WORDS):
            yield f"{source.path}:{number}: {name}"


def identifiers(source: Source) -> Iterator[tuple[int, str]]:
    """Every name in the code; words inside strings and comments are no identifiers."""
    if not source.is_python:
        text = re.sub(r'"""[\s\S]*?"""', lambda found: "\n" * found[0].count("\n"), source.text)
        for number, line in enumerate(text.splitlines(), 1):
            code = re.sub(r"\"[^\"]*\"|'[^']*'|#.*", "", line)
            for name in re.findall(r"[A-Za-z_]\w*", code):
                yield number, name
        return
    for node in ast.walk(source.tree):
        line = getattr(node, "lineno", 0)
        for attribute in ("id", "attr", "arg", "name", "asname"):
            found = getattr(node, attribute, None)
            if isinstance(found, str):
                yield line, found


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """Every module that a file imports or cimports."""
    if source.path.endswith((".py", ".pyi")):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.lineno, node.module
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"
        return
    for number, line in enumerate(source.lines, 1):
        found = re.match(r"\s*from\s+([\w.]+)\s+c?import\s+(.*)", line)
        if found:
            yield number, found[1]
            for name in re.findall(r"\w+", found[2]):
                yield number, f"{found[1]}.{name}"
        found = re.match(r"\s*c?import\s+([\w.]+)", line)
        if found:
            yield number, found[1]


def broken_layers(source: Source) -> Iterator[str]:
    """Imports upwards or sideways, and the machine inside the core."""
    package = source.path.split("/")[2]
    rank = _rank(package)
    for number, module in imports(source):
        top = module.split(".")[0]
        if rank is not None and rank < _must(_rank("http")) and top in MACHINE:
            yield f"{source.path}:{number}: the core imports {module}"
        if top != "mirrormq" or "." not in module:
            continue
        other = module.split(".")[1]
        other_rank = _rank(other)
        if rank is None or other_rank is None or other == package:
            continue
        if other_rank >= rank:
            yield f"{source.path}:{number}: {package} imports {module}"


def _rank(package: str) -> int | None:
    return next((at for at, layer in enumerate(LAYERS) if package in layer.split("|")), None)


def _must(rank: int | None) -> int:
    assert rank is not None
    return rank
