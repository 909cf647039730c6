"""The manual says of every line which test tries it, or that it is not built yet; and nothing else."""

from __future__ import annotations

import re

from tests.seeds.lines import LINES, OPEN
from tests.tidy.sources import CLONE

MANUAL = (CLONE / "docs" / "seeds.md").read_text(encoding="utf-8")


def rows() -> dict[str, list[str]]:
    """The rows of all tables, by their first column."""
    found = {}
    for line in MANUAL.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and re.match(r"\d{3}-", cells[0]):
            found[cells[0]] = cells
    return found


def test_every_line_is_in_the_manual_as_it_is_printed_with_its_test_or_as_open() -> None:
    listed = rows()
    assert list(listed) == [line.id for line in LINES]
    for line in LINES:
        _, row, text, where, _ = listed[line.id]
        assert row == line.row
        assert text.strip("`").replace("\\|", "|") == line.text
        assert where == ("open" if line.test == OPEN else f"`{line.test}`")


def test_an_open_line_says_what_there_is_instead() -> None:
    for cells in rows().values():
        assert cells[4], cells
