"""`mirrormqctl` against the recorded help of RabbitMQ 3.10.8: every command, every option, every argument."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import mirrormq.ctl.commands  # noqa: F401  (fills the tables)
from mirrormq.ctl.commands.absent import SENTENCES
from mirrormq.ctl.main import overview, parameters
from mirrormq.ctl.options import _FLAGS, _VALUES
from mirrormq.ctl.registry import COMMANDS, CTL, PLUGINS
from tests.unit.ctl.fakes import Terminal

RECORDED: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "rabbitmq-3.10.8.json").read_text(encoding="utf-8")
)
"""By tool and command: what `TOOL help COMMAND` says of its arguments."""

OURS = {
    name: usage for tool, of in RECORDED.items() if tool != "rabbitmq-plugins" for name, usage in of.items()
}


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def test_every_command_of_rabbitmqs_tools_is_there() -> None:
    assert len(RECORDED["rabbitmqctl"]) == 100
    assert set(OURS) <= set(COMMANDS)
    assert set(RECORDED["rabbitmq-plugins"]) <= set(PLUGINS.commands)


def test_the_help_names_every_command() -> None:
    text = overview(CTL)
    missing = [name for name in COMMANDS if not re.search(rf"\b{name}\b", text)]
    assert not missing


@pytest.mark.parametrize("name", sorted(set(OURS) - set(SENTENCES)))
def test_every_option_of_rabbitmqs_command_is_taken(name: str) -> None:
    check_options(COMMANDS[name], OURS[name])


@pytest.mark.parametrize("name", sorted(RECORDED["rabbitmq-plugins"]))
def test_every_option_of_a_plugins_command_is_taken(name: str) -> None:
    check_options(PLUGINS.commands[name], RECORDED["rabbitmq-plugins"][name])


def check_options(entry: Any, usage: str) -> None:
    taken = (
        {option for parameter in parameters(entry) for option in parameter.opts} | set(_VALUES) | set(_FLAGS)
    )
    wanted = set(re.findall(r"(?<![\w<])--?[A-Za-z][\w-]*", usage))
    assert wanted <= taken, (entry.name, wanted - taken)
    # As many words as RabbitMQ's form has at least, and as many as it has at most.
    words = re.sub(r"\[[^\]]*\]", "", usage).partition("|")[0]
    needed = len(re.findall(r"<[^>]*>", re.sub(r"--[\w-]+( <[^>]*>)?", "", words)))
    arguments = [parameter for parameter in parameters(entry) if parameter.param_type_name == "argument"]
    assert sum(parameter.required for parameter in arguments) <= max(needed, 1 if arguments else 0), (
        entry.name
    )
    is_open = any(parameter.nargs == -1 for parameter in arguments)
    assert is_open or len(arguments) >= needed, (entry.name, needed)


@pytest.mark.parametrize("name", sorted(SENTENCES))
def test_what_makes_no_sense_here_is_answered_with_a_sentence_and_64(ctl: Terminal, name: str) -> None:
    result = ctl.run(name, "--whatever", "x")
    assert (result.code, result.out) == (64, "")
    assert result.err == f"Error:\n{name}: {SENTENCES[name]}\n"
    as_json = ctl.run(name, "--json")
    assert (as_json.code, json.loads(as_json.err)["message"]) == (64, f"{name}: {SENTENCES[name]}")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_explains_itself_in_words_and_in_json(ctl: Terminal, name: str) -> None:
    shown = ctl.run(name, "--help")
    assert shown.code == 0, shown.err
    assert f"mirrormqctl [--node <node>] [--quiet] {name}" in shown.out
    assert "General options" in shown.out
    about = json.loads(ctl.run("help", name, "--json").out)
    assert about["command"] == name
    assert about["description"]


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - set(SENTENCES)))
def test_every_command_refuses_an_option_it_does_not_know_with_64(ctl: Terminal, name: str) -> None:
    result = ctl.run(name, "--no-such-option", "a", "b", "c", "d", "e")
    assert result.code == 64, name
    assert "mirrormqctl" in result.err
    as_json = ctl.run(name, "--no-such-option", "--json")
    assert as_json.code == 64
    assert json.loads(as_json.err)["result"] == "error"


def test_the_names_of_all_commands_can_be_listed(ctl: Terminal) -> None:
    assert ctl.run("help", "--list-commands").out.split() == sorted(COMMANDS)
    assert ctl.run("autocomplete", "list_u").out.split() == [
        "list_unresponsive_queues",
        "list_user_limits",
        "list_user_permissions",
        "list_user_topic_permissions",
        "list_users",
    ]


def test_mistyped_commands_and_options_get_the_nearest_one(ctl: Terminal) -> None:
    assert "Did you mean 'list_queues'?" in ctl.run("list_queus").err
    assert "Did you mean --online" in ctl.run("list_queues", "--onlin").err


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("rabbitmqctl"), reason="RabbitMQ is not installed")
@pytest.mark.parametrize("tool", sorted(RECORDED))
def test_the_recorded_help_is_that_of_the_installed_rabbitmq(tool: str) -> None:
    version = subprocess.run(
        ["rabbitmqctl", "version"], capture_output=True, text=True, timeout=60, check=False
    )
    if version.stdout.strip() != "3.10.8":
        pytest.skip(f"it is RabbitMQ {version.stdout.strip()}")
    shown = subprocess.run([tool, "help"], capture_output=True, text=True, timeout=60, check=True).stdout
    names = re.findall(r"^   ([a-z_]+)\b", shown, re.MULTILINE)
    assert sorted(names) == sorted(RECORDED[tool])
