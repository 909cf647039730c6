"""The first ten minutes of docs/spark.md, as they stand there: this file has no text of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.process import Process


def blocks(clone: Path) -> list[str]:
    """The programs of the section, in order."""
    page = (clone / "docs" / "spark.md").read_text(encoding="utf-8")
    section = page.split("## The first ten minutes")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_first_ten_minutes_go_as_the_page_says(
    clone: Path, spark: Any, node: Process, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    # The page speaks of the port that ./run has; tests have another one (MIRRORMQ_URL says which).
    monkeypatch.setattr(pika.connection.Parameters, "DEFAULT_PORT", node.port)
    monkeypatch.setattr(pika.connection.Parameters, "DEFAULT_HOST", "127.0.0.1")
    programs = blocks(clone)
    assert len(programs) >= 9
    page: dict[str, Any] = {}
    for program in programs:
        exec(compile(program, "docs/spark.md", "exec"), page)
    shown = capfd.readouterr().out
    assert "message_id" in shown
    assert page["spark"] is spark
    assert re.search(r"password\S*guest", shown) is None
