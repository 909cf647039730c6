"""Every command of `mirrormqctl` is tried in four ways: as lines, as JSON, what it refuses, its exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import mirrormq.ctl.commands  # noqa: F401  (fills the tables)
from mirrormq.ctl.commands.absent import SENTENCES
from mirrormq.ctl.registry import COMMANDS
from tests.integration import ctlcases
from tests.unit.ctl.fakecases import CASES, ELSEWHERE, IDS, Case
from tests.unit.ctl.fakes import FakeNode, Result, Terminal

CLONE = Path(__file__).resolve().parents[3]


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def test_every_command_is_in_one_table_of_cases_or_another() -> None:
    tables = (ctlcases.IDS, IDS, list(SENTENCES), list(ELSEWHERE))
    assert {name for table in tables for name in table} == set(COMMANDS)
    assert sum(map(len, tables)) == len(COMMANDS), "a command stands in two tables, or twice in one"
    for file, words in ELSEWHERE.values():
        assert words in (CLONE / file).read_text(encoding="utf-8")


def run(ctl: Terminal, case: Case, *more: str, is_bad: bool = False) -> Result:
    ctl.node = FakeNode(**(case.wrong if is_bad else case.answers))
    ctl.offline = case.wrong_folder if is_bad else case.folder
    return ctl.run(*(case.bad if is_bad else case.line).split(), *more)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_command_shows_its_result_as_lines(ctl: Terminal, case: Case) -> None:
    result = run(ctl, case)
    assert (result.code, result.err) == (0, ""), result
    assert re.search(case.shows, result.out, re.MULTILINE), result.out


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_command_shows_its_result_as_json_and_nothing_else(ctl: Terminal, case: Case) -> None:
    result = run(ctl, case, "--json")
    assert (result.code, result.err) == (0, ""), result
    assert case.has in json.dumps(json.loads(result.out)), result.out


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_command_refuses_with_its_code_and_a_reason(ctl: Terminal, case: Case) -> None:
    result = run(ctl, case, "-q", is_bad=True)
    assert result.code == case.code, result
    assert re.search(case.says, result.err), result.err
    assert "Traceback" not in result.err


AS_JSON = [case for case in CASES if case.name != "force_promote"]
"""Asked for JSON, a promotion by force is not asked about again."""


@pytest.mark.parametrize("case", AS_JSON, ids=[case.name for case in AS_JSON])
def test_a_command_refuses_as_json(ctl: Terminal, case: Case) -> None:
    result = run(ctl, case, "--json", is_bad=True)
    assert result.code == case.code, result
    shown = json.loads(result.err)
    assert shown["result"] == "error"
    assert re.search(case.says, shown["message"]), shown


def test_a_stopped_node_is_stopped_already_in_json_too(ctl: Terminal) -> None:
    result = ctl.run("stop", "--idempotent", "--data", "/no/such/folder", "--json")
    assert (result.code, json.loads(result.out)) == (0, {"result": "ok"})
