"""Shell completion in real shells, with a real node: commands, options, and names that exist now."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrormq.ctl.complete import parted, proposals
from mirrormq.testing import Broker, running

SHELLS = {name: shutil.which(name) for name in ("bash", "zsh", "fish")}
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running(admin=True) as found:
        found.ask("add_vhost", name="shop", actor="guest")
        found.ask("add_user", name="annabel", password="pw")
        for name in ("orders.new", "orders.old", "two words", "a:b"):
            found.ask("declare_queue", vhost="shop", name=name)
        yield found


@pytest.fixture
def environment(broker: Broker, tmp_path: Path) -> dict[str, str]:
    """A shell's environment in which `mirrormq` is a command and finds the node."""
    program = tmp_path / "mirrormq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mirrormq "$@"\n')
    program.chmod(0o755)
    (tmp_path / "mirrormqctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m mirrormq ctl "$@"\n')
    (tmp_path / "mirrormqctl").chmod(0o755)
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "MIRRORMQ_DATA_DIR": str(broker.process.folder),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
    }


LINES = [
    ("mirrormq comp", ["completion"]),
    ("mirrormq completion ", ["bash", "fish", "zsh"]),
    ("mirrormq ctl list_que", ["list_queues"]),
    ("mirrormqctl list_que", ["list_queues"]),
    ("rabbitmqctl list_que", ["list_queues"]),
    ("rabbitmq-plugins is_", ["is_enabled"]),
    ("mirrormq plugins ena", ["enable"]),
    ("mirrormq ctl list_queues --o", ["--offline", "--online"]),
    ("mirrormq ctl -q list_queues message_bytes_r", ["message_bytes_ram", "message_bytes_ready"]),
    ("mirrormq ctl list_queues name messages_un", ["messages_unacknowledged", "messages_unacknowledged_ram"]),
    ("mirrormq ctl help list_que", ["list_queues"]),
    ("mirrormq ctl --formatter pre", ["pretty_table"]),
    ("mirrormq ctl set_policy --apply-to q", ["queues"]),
    ("mirrormq ctl -p sh", ["shop"]),
    ("mirrormq ctl list_queues --vhost sh", ["shop"]),
    ("mirrormq ctl -p shop delete_queue or", ["orders.new", "orders.old"]),
    ("mirrormq ctl delete_queue or", []),
    ("mirrormq ctl -p shop delete_queue orders.new or", []),
    ("mirrormq ctl delete_vhost s", ["shop"]),
    ("mirrormq ctl delete_user an", ["annabel"]),
    ("mirrormq ctl set_permissions -p shop an", ["annabel"]),
    ("mirrormq ctl -n mirr", ["mirrormq@localhost"]),
    ("mirrormq ctl -n mirrormq@l", ["mirrormq@localhost"]),
    ("mirrormq ctl move_master x mirrormq@", ["mirrormq@localhost"]),
    ("mirrormq ctl --data no", []),
    ("mirrormq ctl no_such_command x", []),
    ("mirrormq nothing x", []),
    ("mirrormq admin decl", ["declare"]),
    ("mirrormq admin -H host declare exch", ["exchange"]),
    ("mirrormq admin declare queue dur", ["durable="]),
    ("mirrormq admin list queues me", ["messages"]),
    ("mirrormq admin -f ra", ["raw_json"]),
    ("mirrormq admin help con", ["config"]),
    ("mirrormq admin --sort-", ["--sort-reverse"]),
    ("rabbitmqadmin publish rou", ["routing_key="]),
]


@pytest.mark.parametrize(("line", "wanted"), LINES, ids=[line for line, _ in LINES])
def test_what_may_come_next_is_proposed(broker: Broker, line: str, wanted: list[str]) -> None:
    folder = {"MIRRORMQ_DATA_DIR": str(broker.process.folder)}
    assert proposals(line, folder)[1] == wanted


def test_nothing_is_proposed_and_nothing_said_without_a_node(capfd: pytest.CaptureFixture[str]) -> None:
    for line in (
        "mirrormq ctl delete_queue x",
        "mirrormq ctl -n ",
        "mirrormq ctl -p ",
        "mirrormq ctl --url x -p ",
    ):
        assert proposals(line, {"MIRRORMQ_DATA_DIR": "/no/such/folder"})[1] == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a b", ["a", "b"]),
        ("a b ", ["a", "b", ""]),
        ("a 'b c", ["a", "b c"]),
        ('a "b c" d', ["a", "b c", "d"]),
        ("a b\\ c", ["a", "b c"]),
        ("", [""]),
        ("a #b", ["a", "#b"]),
    ],
)
def test_a_line_is_parted_as_a_shell_does(line: str, words: list[str]) -> None:
    assert parted(line) == words


BASH = """\
source <(mirrormq completion bash)
COMP_LINE=$1 COMP_POINT=${#1}
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_mirrormq_complete "${COMP_WORDS[0]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["mirrormq", "ctl", "list_que"], ["list_queues"]),
        # bash ends words at @ and : and wants what comes after them.
        (["mirrormq", "ctl", "-n", "mirrormq", "@", "lo"], ["localhost"]),
        (["mirrormq", "ctl", "-n", "mirrormq", "@"], ["localhost"]),
        (["mirrormq", "ctl", "-p", "shop", "purge_queue", "a", ":", "b"], ["b"]),
        (["mirrormq", "ctl", "-p", "shop", "purge_queue", "two"], ["two\\ words"]),
    ],
)
def test_bash_gets_the_part_of_a_word_it_asked_for(
    environment: dict[str, str], words: list[str], wanted: list[str]
) -> None:
    line = re.sub(r" ([@:]) ?", r"\1", " ".join(words))
    shown = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", line, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (shown.stdout.split("\n")[:-1], shown.stderr) == (wanted, "")


STARTS = {
    "bash": (["--norc", "--noprofile", "-i"], "source <(mirrormq completion bash)"),
    "zsh": (["-f", "-i"], "autoload -U compinit; compinit -u -D; source <(mirrormq completion zsh)"),
    "fish": (["--no-config", "-i"], "mirrormq completion fish | source"),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_person_presses_tab_and_the_line_is_completed(
    shell: str, broker: Broker, environment: dict[str, str]
) -> None:
    if SHELLS[shell] is None:
        pytest.skip(f"{shell} is not installed")
    broker.ask("declare_queue", vhost="shop", name=f"of.{shell}")
    words, setup = STARTS[shell]
    with terminal([str(SHELLS[shell]), *words], environment) as screen:
        screen.type(f"{setup}; echo rea''dy\n")
        screen.wait_for("ready\r")
        screen.type("mirrormq ctl -p sh\t")
        screen.wait_for("mirrormq ctl -p shop ")
        screen.type(f"delete_queue of.{shell[:2]}\t")
        screen.wait_for(f"of.{shell} ")
        screen.type("\n")
        screen.wait_for("Queue was successfully deleted")


class Screen:
    """A terminal with somebody before it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.shown = ""
        self._seen = 0

    def type(self, text: str) -> None:
        self._seen = len(self.shown)
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str) -> None:
        """Until the text is there, after what was last typed; terminals may colour and rewrite it."""
        until = time.monotonic() + DEADLINE_S
        while text not in re.sub(
            r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07", "", self.shown[self._seen :]
        ):
            left = until - time.monotonic()
            assert left > 0, (text, self.shown)
            if select.select([self._descriptor], [], [], left)[0]:
                self.shown += os.read(self._descriptor, 65_536).decode(errors="replace")


@contextlib.contextmanager
def terminal(command: list[str], environment: dict[str, str]) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        # A shell that no terminal belongs to has no jobs, and fish does not even start.
        ["setsid", "--ctty", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    try:
        yield Screen(ours)
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def test_the_scripts_are_printed_and_other_shells_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from mirrormq.__main__ import main

    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        assert "__complete" in capsys.readouterr().out
    assert main(["completion", "bash", "rabbitmqctl"]) == 0
    assert "mirrormq mirrormqctl rabbitmqctl" in capsys.readouterr().out
    assert main(["completion", "tcsh"]) == 64
    assert "bash, fish, zsh" in capsys.readouterr().err
    assert main(["completion"]) == 64
    assert main(["completion", "--help"]) == 0
