"""RabbitMQ's commands as scripts that call ours, run as a script of an administrator would run them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrormq.__main__ import main
from mirrormq.ctl.shims import TARGETS
from mirrormq.testing import Broker, running

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running(admin=True) as found:
        found.ask("declare_queue", vhost="/", name="q")
        yield found


@pytest.fixture
def run(broker: Broker, tmp_path: Path) -> Run:
    assert main(["shims", str(tmp_path / "bin")]) == 0

    def shell(line: str) -> subprocess.CompletedProcess[str]:
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        named = {"PATH": path, "MIRRORMQ_DATA_DIR": str(broker.process.folder), "HOME": str(tmp_path)}
        environment = {**os.environ, **named}
        return subprocess.run(
            ["sh", "-c", line], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return shell


@pytest.mark.slow
def test_scripts_for_rabbitmq_find_mirrormq(run: Run, broker: Broker) -> None:
    port = str(broker.admin_url).rpartition(":")[2]
    for line, shown in {
        "rabbitmqctl -q list_queues name messages": "name\tmessages\nq\t0\n",
        "rabbitmqctl list_queues -s --formatter=json name": '[\n{"name":"q"}\n]\n',
        "rabbitmq-diagnostics -q ping": "Ping succeeded\n",
        "rabbitmq-queues -q check_if_node_is_mirror_sync_critical": "alone",
        "rabbitmq-plugins list -m prometheus": "rabbitmq_prometheus\n",
        f"rabbitmqadmin -H 127.0.0.1 -P {port} -f tsv list queues name": "name\nq\n",
        "rabbitmq-upgrade await_online_quorum_plus_one": "can stop",
    }.items():
        result = run(line)
        assert (result.returncode, result.stderr) == (0, ""), line
        assert shown in result.stdout
    assert run("rabbitmqctl eval 1").returncode == 64
    assert run("rabbitmq-plugins is_enabled rabbitmq_mqtt").returncode == 69


def test_all_scripts_are_there_and_can_be_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a folder"
    for _ in range(2):
        assert main(["shims", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == sorted(TARGETS)
    assert all(os.access(path, os.X_OK) for path in folder.iterdir())
    assert f"export PATH='{folder}'" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["file", "folder", "dangling"])
def test_what_is_not_ours_is_left_alone_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    foreign = tmp_path / "rabbitmqctl"
    if kind == "file":
        foreign.write_text("#!/bin/sh\nexec the real one\n")
    elif kind == "folder":
        foreign.mkdir()
    else:
        foreign.symlink_to("/no/such/file")
    assert main(["shims", str(tmp_path)]) == 73
    assert str(foreign) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["rabbitmqctl"]


def test_a_wrong_line_and_a_folder_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shims"]) == 64
    assert main(["shims", "a", "b"]) == 64
    assert main(["shims", "--help"]) == 0
    (tmp_path / "file").write_text("")
    assert main(["shims", str(tmp_path / "file" / "below")]) == 73
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "code", "shown"),
    [
        ("list", 0, "rabbitmq_management\t"),
        ("list -v consistent", 0, "x-consistent-hash"),
        ("list -m", 0, "rabbitmq_management_agent\n"),
        ("list (", 64, "no regular expression"),
        ("enable rabbitmq_management", 0, "Nothing to be done"),
        ("enable --all", 0, "Nothing to be done"),
        ("enable rabbitmq_mqtt", 64, "no such plugin here"),
        ("enable", 64, "not enough arguments"),
        ("set rabbitmq_prometheus", 0, "Nothing to be done"),
        ("set rabbitmq_shovel", 64, "no such plugin here"),
        ("disable rabbitmq_mqtt", 0, "Nothing to be done"),
        ("disable rabbitmq_management", 64, "cannot be taken away"),
        ("is_enabled rabbitmq_management", 0, "Enabled"),
        ("is_enabled rabbitmq_mqtt", 69, "not enabled: rabbitmq_mqtt"),
        ("directories", 0, "no plugin directories"),
        ("version", 0, "."),
        ("autocomplete dis", 0, "disable"),
        ("help", 0, "Plugin Management"),
        ("help enable", 0, "mirrormq plugins [--node"),
        ("enabel x", 64, "Did you mean 'enable'?"),
    ],
)
def test_plugins_are_built_in_or_not_there(
    capsys: pytest.CaptureFixture[str], line: str, code: int, shown: str
) -> None:
    assert main(["plugins", *line.split()]) == code
    result = capsys.readouterr()
    assert shown in result.out + result.err


def test_plugins_are_listed_as_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "list", "--json", "event"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["plugins"]] == ["rabbitmq_event_exchange"]
