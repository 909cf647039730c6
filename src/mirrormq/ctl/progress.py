"""Bars for long work, where a person looks at them; a pipe, a script or `-q` sees nothing of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mirrormq.ctl.session import Session

Show = Callable[[str, float, float], None]
"""(what, done, of how much): moves the bar of that name, which appears with its first call."""


@contextmanager
def bars(session: Session) -> Iterator[Show]:
    """Bars as long as the block lasts."""
    if not session.is_watched:
        yield _unseen
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, console=Console(file=session.out)) as progress:
        tasks: dict[str, Any] = {}

        def show(what: str, done: float, total: float) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=min(done, total), total=total)

        yield show


def _unseen(_what: str, _done: float, _total: float) -> None:
    """Nobody looks."""
