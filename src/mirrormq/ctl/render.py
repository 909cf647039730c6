"""Results as text: tab-separated like rabbitmqctl, a drawn table on a terminal, JSON or CSV for programs.

Cells look as rabbitmqctl shows them (`[{"x-max-length",10}]` for arguments), because scripts parse them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

Row = Mapping[str, Any]


def tab_separated(rows: Iterable[Row], columns: Sequence[str], out: TextIO, *, headers: bool) -> None:
    """rabbitmqctl's table: one line per row; the header only if there is a row, as rabbitmqctl does."""
    for number, row in enumerate(rows):
        if number == 0 and headers:
            out.write("\t".join(columns) + "\n")
        out.write("\t".join(printable(cell(row.get(name))) for name in columns) + "\n")


def drawn(rows: Iterable[Row], columns: Sequence[str], out: TextIO, *, headers: bool) -> None:
    """A table with lines, for people."""
    from rich.box import SQUARE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SQUARE, show_header=headers)
    for name in columns:
        table.add_column(name, overflow="fold")
    count = 0
    for row in rows:
        # Names come from clients: as Text they can neither style the terminal nor inject markup.
        table.add_row(*(Text(printable(cell(row.get(name)))) for name in columns))
        count += 1
    if count:
        Console(file=out, highlight=False).print(table)


def as_json(rows: Iterable[Row], columns: Sequence[str], out: TextIO) -> None:
    """A JSON array with one object per line."""
    out.write("[\n")
    for number, row in enumerate(rows):
        picked = {name: json_cell(name, row.get(name)) for name in columns}
        out.write(
            ("," if number else "") + json.dumps(picked, ensure_ascii=False, separators=(",", ":")) + "\n"
        )
    out.write("]\n")


def as_json_lines(rows: Iterable[Row], columns: Sequence[str], out: TextIO) -> None:
    """One JSON object per line and nothing else, as tools that read streams want it."""
    for row in rows:
        picked = {name: json_cell(name, row.get(name)) for name in columns}
        out.write(json.dumps(picked, ensure_ascii=False, separators=(",", ":")) + "\n")


def as_csv(rows: Iterable[Row], columns: Sequence[str], out: TextIO, *, headers: bool) -> None:
    """Comma-separated values, every cell quoted."""
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    if headers:
        writer.writerow(columns)
    for row in rows:
        writer.writerow([cell(row.get(name)) for name in columns])


def as_erlang(rows: Iterable[Row], columns: Sequence[str], out: TextIO) -> None:
    """A list of property lists, as `--formatter erlang` prints it."""
    items = []
    for row in rows:
        pairs = ",".join(f"{{{name},{term(row.get(name))}}}" for name in columns)
        items.append(f"[{pairs}]")
    out.write("[" + ",\n ".join(items) + "]\n")


def cell(value: Any) -> str:
    """One value as rabbitmqctl's table shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return term(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(cell(item) for item in value) + "]"
    return str(value)


def term(value: Any) -> str:
    """An Erlang term: tables as property lists."""
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "[" + ",".join(f"{{{term(name)},{term(item)}}}" for name, item in value.items()) + "]"
    if isinstance(value, list | tuple):
        return "[" + ",".join(term(item) for item in value) + "]"
    return str(value)


def json_cell(name: str, value: Any) -> Any:
    """A value in JSON output; argument tables are lists of [name, type, value], as rabbitmqctl has them."""
    if name == "arguments" and isinstance(value, dict):
        return typed(value)
    return value


def typed(table: Mapping[str, Any]) -> list[list[Any]]:
    """An argument table as rabbitmqctl's JSON has it."""
    return [[name, kind, shown] for name, (kind, shown) in ((n, _typed(v)) for n, v in table.items())]


def _typed(value: Any) -> tuple[str, Any]:
    if value is None:
        return "void", "undefined"
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, int):
        return ("signedint" if -(1 << 31) <= value < 1 << 31 else "long"), value
    if isinstance(value, float):
        return "double", value
    if isinstance(value, dict):
        return "table", typed(value)
    if isinstance(value, list):
        return "array", [list(_typed(item)) for item in value]
    return "longstr", value


def printable(text: str) -> str:
    """Control characters as escapes: a queue may be named with an escape sequence."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
