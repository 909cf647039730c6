"""A node that answers `mirrormqctl` from a table, and a way to run commands against it."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import pytest

from mirrormq.client.admin import AdminClient, Refused
from mirrormq.ctl.main import main
from mirrormq.ctl.options import Options
from mirrormq.ctl.session import Session


class FakeNode(AdminClient):
    """Answers commands from a table and remembers what it was asked."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("http://fake:1")
        self.answers: dict[str, Any] = {"ping": {"node": "mirrormq@here"}, **answers}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def ctl(self, command: str, **arguments: Any) -> Any:
        self.asked.append((command, arguments))
        answer = self.answers.get(command, {})
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class Result:
    """What a run left behind."""

    code: int
    out: str
    err: str


@dataclass
class Terminal:
    """Runs commands against a fake node."""

    capsys: pytest.CaptureFixture[str]
    node: FakeNode = field(default_factory=FakeNode)
    stdin: str = ""
    offline: Any = None
    """What looks into the data folder of a node that does not run."""

    def run(self, *words: str) -> Result:
        out = io.StringIO()
        session = Session(Options(), out=out, stdin=io.StringIO(self.stdin), environment={})
        session._client = self.node
        session.offline_tools = lambda: self.offline
        code = main(words, session=session)
        captured = self.capsys.readouterr()
        return Result(code, out.getvalue() + captured.out, captured.err)


def refused(kind: str, reason: str, status: int = 400) -> Refused:
    return Refused(status, kind, reason)
