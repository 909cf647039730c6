"""Every log line says which event it is; docs/logging.md has what each means and what it asks for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
LEVELS = {"debug", "info", "notice", "warning", "error", "critical"}
WITHOUT = "note"
"""The event of a line that has none."""


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call by which a line is written with a level of its own."""
    for path in sorted((ROOT / "src" / "mirrormq").rglob("*.py")):
        if path.parent.name in ("sim", "spark", "jobs"):
            continue
        for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute):
                texts = {
                    one.value for arg in found.args for one in ast.walk(arg) if isinstance(one, ast.Constant)
                }
                if found.func.attr in ("note", "_note", "_add") and texts & LEVELS:
                    yield f"{path.name}:{found.lineno}", found


def event_of(call: ast.Call) -> str | None:
    """A keyword, an entry of the fields, or for lines about mirrors the first argument."""
    for keyword in call.keywords:
        if keyword.arg == "event" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    for arg in call.args:
        if isinstance(arg, ast.Dict):
            for key, value in zip(arg.keys, arg.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "event" and isinstance(value, ast.Constant):
                    return str(value.value)
    first = call.args[0]
    is_added = isinstance(call.func, ast.Attribute) and call.func.attr == "_add"
    return str(first.value) if is_added and isinstance(first, ast.Constant) else None


def named_in_docs() -> set[str]:
    """The first column of the table."""
    text = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([a-z._]+)`", row)}


def test_every_line_says_which_event_it_is() -> None:
    missing = [where for where, call in calls() if event_of(call) is None]
    assert not missing, missing


def test_every_event_stands_in_the_table_and_the_other_way_round() -> None:
    code = {event_of(call) for _, call in calls()}
    notes = (ROOT / "src" / "mirrormq" / "node" / "mirrornotes.py").read_text(encoding="utf-8")
    code |= set(re.findall(r'event = "([a-z._]+)"', notes))
    code |= {"library", "link.closed", "mirror.removed"}  # their levels depend on what happens
    docs = named_in_docs()
    assert len(code) > 60
    assert not code - docs, "without a row in docs/logging.md"
    assert not docs - code - {WITHOUT}, "rows for events that never come"
