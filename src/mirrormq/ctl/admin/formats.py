"""Rows in rabbitmqadmin's formats. Scripts read them, so each looks as rabbitmqadmin's does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
FIRST = ("vhost", "name", "routing_key")
"""Columns that come first when all are shown."""
RULE = "-" * 80


def columns_of(rows: Sequence[Row], *, depth: int, whole: Sequence[str] = ()) -> tuple[list[str], list[Row]]:
    """All columns of rows, columns within columns as `outer.inner`; `whole` are kept as JSON."""
    flat: list[Row] = [_flat(row, depth, whole) for row in rows]
    names = sorted({name for row in flat for name in row})
    first = [name for name in FIRST if name in names]
    return first + [name for name in names if name not in first], flat


def picked(rows: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    """The named columns; `outer.inner` looks into a column."""
    return [{name: _at(row, name) for name in columns} for row in rows]


def _at(row: Row, name: str) -> Any:
    value: Any = row
    if name in row:
        return row[name]
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _flat(row: Row, depth: int, whole: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and name not in whole:
            if depth > 1:
                inner = _flat(value, depth - 1, ())
                found.update({f"{name}.{key}": item for key, item in inner.items()})
        else:
            found[name] = value
    return found


def text(value: Any) -> str:
    """A cell."""
    if value is None:
        return ""
    if isinstance(value, list | tuple) and not any(isinstance(item, Mapping | list) for item in value):
        return " ".join(map(text, value))
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return "".join(
        c if c.isprintable() or c in "\t\n" else c.encode("unicode_escape").decode() for c in str(value)
    )


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A drawn table."""
    cells = [[text(row.get(name)) for name in columns] for row in rows]
    widths = [
        max([len(name), *(len(line) for row in cells for line in row[at].split("\n"))])
        for at, name in enumerate(columns)
    ]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    head = "|" + "|".join(f" {name:^{width}} " for name, width in zip(columns, widths, strict=True)) + "|"
    body = [
        "|" + "|".join(f" {cell:<{width}} " for cell, width in zip(row, widths, strict=True)) + "|"
        for row in cells
    ]
    return "\n".join([rule, head, rule, *body, rule])


def tsv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Lines separated by tabs."""
    lines = ["\t".join(columns), *("\t".join(text(row.get(name)) for name in columns) for row in rows)]
    return "\n".join(lines)


def kvp(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """name="value" pairs, a line for each row."""
    return "\n".join(" ".join(f'{name}="{text(row.get(name))}"' for name in columns) for row in rows)


def long(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A line for each column, a rule between rows."""
    width = max(map(len, columns), default=0)
    parts = [f"\n{RULE}\n"]
    for row in rows:
        parts += [f"{name:>{width}}: {text(row.get(name))}" for name in columns]
        parts.append(f"\n{RULE}\n")
    return "\n".join(parts)


def bash(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Names in one line, for completion."""
    name = "name" if "name" in columns or not columns else columns[0]
    return " ".join(text(row.get(name)) for row in rows)


LISTED: dict[str, Callable[[Sequence[Row], Sequence[str]], str]] = {
    "table": table,
    "tsv": tsv,
    "kvp": kvp,
    "long": long,
    "bash": bash,
}


def as_json(value: Any, form: str) -> str:
    """JSON on one line, or for people."""
    if form == "pretty_json":
        return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
