"""`mirrormq up`: several nodes as one foreground process, with real nodes, signals and a real terminal."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrormq.wire import methods
from tests.integration import process
from tests.integration.localrun import MIRRORMQ, UP, failing, running, some_base, wait_until_gone
from tests.interop.waiting import until
from tests.support.raw import connect

pytestmark = pytest.mark.slow

INTERRUPT, SUSPEND = b"\x03", b"\x1a"


def test_three_nodes_come_up_serve_and_stop_as_one(tmp_path: Path) -> None:
    base = some_base()
    with running(tmp_path, "--port-base", str(base)) as up:
        assert [node["name"] for node in up.announced] == [f"mirrormq-{n}@localhost" for n in (1, 2, 3)]
        assert [node["amqp"] for node in up.announced] == [[f"amqp://127.0.0.1:{base + n}"] for n in range(3)]
        assert [node["http"] for node in up.announced] == [
            f"http://127.0.0.1:{base + 10_000 + n}" for n in range(3)
        ]
        for place in range(3):
            up.connect(place).close()
        assert "MirrorMQ is running with 3 nodes." in up.text
        assert f"kill -9 {up.pids[2]}" in up.text
        assert up.stop() == 0
        text = up.text
    for number in (1, 2, 3):
        assert f"mirrormq-{number} | " in text
        assert not (tmp_path / f"data/mirrormq-{number}@localhost/node.json").exists()
    assert "ended" not in text


def test_the_lines_to_paste_work(tmp_path: Path) -> None:
    with running(tmp_path, "--port-base", str(some_base())) as up:
        [ctl] = [line.strip() for line in up.text.splitlines() if " list_queues " in line]
        words = shlex.split(ctl)
        assert words[0] == "mirrormq"
        channel = up.connect(0).channel()
        channel.queue_declare("hello", durable=True)
        shown = subprocess.run([*MIRRORMQ, *words[1:]], capture_output=True, text=True, check=True)
        assert "hello" in shown.stdout


def test_data_is_kept_and_all_nodes_share_one_secret(tmp_path: Path) -> None:
    base = ["--port-base", str(some_base())]
    with running(tmp_path, *base) as up:
        up.connect(0).channel().queue_declare("kept", durable=True)
        assert up.stop() == 0
    secrets = [tmp_path / "data/cluster.secret", *sorted(tmp_path.glob("data/*/cluster.secret"))]
    assert len(secrets) == 4
    assert len({path.read_text() for path in secrets}) == 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    before = secrets[0].read_text()
    with running(tmp_path, *base) as up:
        up.connect(0).channel().queue_declare("kept", passive=True)
        assert secrets[0].read_text() == before
        assert before.strip() not in up.text
        assert not any(before.strip().encode() in command_line(pid) for pid in up.pids)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_node_that_dies_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    with running(tmp_path, "--port-base", str(some_base())) as up:
        os.kill(up.pids[2], signal.SIGKILL)
        up.wait_for("mirrormq: node mirrormq-3@localhost ended (signal 9, SIGKILL); 2 of 3 go on.")
        up.connect(0).close()
        up.connect(1).close()
        up.wait_for("mirrormq:   mirrormq serve ")
        line = next(line for line in up.text.splitlines() if line.startswith("mirrormq:   "))
        words = shlex.split(line.removeprefix("mirrormq:   "))
        with process.running(tmp_path / "again", *words[2:]) as node:
            assert node.announced["name"] == "mirrormq-3@localhost"
            assert node.announced["amqp"] == up.announced[2]["amqp"]
            node.connect().close()
            assert node.stop() == 0
        assert up.stop() == 1


def test_the_end_of_the_last_node_is_the_end(tmp_path: Path) -> None:
    with running(tmp_path, "--nodes", "2", "--port-base", str(some_base())) as up:
        assert "Two nodes stand the loss of none" in up.text
        for pid in up.pids:
            os.kill(pid, signal.SIGKILL)
        assert up.wait() == 1
        assert "mirrormq: no node is left." in up.text


def test_no_node_outlives_a_killed_parent(tmp_path: Path) -> None:
    with running(tmp_path, "--port-base", str(some_base())) as up:
        up.connect(1)
        up.popen.kill()
        up.popen.wait()
        for pid in up.pids:
            wait_until_gone(pid)


def test_a_second_signal_stops_all_nodes_at_once(tmp_path: Path) -> None:
    options = ["--port-base", str(some_base()), "--set", "shutdown_timeout=600s"]
    with running(tmp_path, *options) as up:
        port = int(up.announced[0]["amqp"][0].rpartition(":")[2])
        with connect("127.0.0.1", port) as client:
            client.handshake()
            up.signal(signal.SIGTERM)
            client.expect(0, methods.ConnectionClose)
            up.signal(signal.SIGTERM)
            assert up.wait() == 1
        assert "clients are cut off" in up.text


def test_a_reload_reaches_every_node(tmp_path: Path) -> None:
    with running(tmp_path, "--port-base", str(some_base())) as up:
        up.signal(signal.SIGHUP)
        for number in (1, 2, 3):
            up.wait_for(f"mirrormq-{number} | ", "certificates and log files reloaded")
        assert up.stop() == 0


def test_a_busy_port_names_its_owner_and_a_command_that_works(tmp_path: Path) -> None:
    base = some_base()
    with running(tmp_path, "--port-base", str(base)) as up:
        said = failing("--port-base", str(base - 2), "--data", str(tmp_path / "data"))
        assert f"Port {base} is used by process {up.pids[0]} (" in said
        cure = shlex.split(said.partition("run: ")[2])
        assert cure[:2] == ["mirrormq", "up"]
        # The data of the running nodes cannot be used a second time.
        assert cure[cure.index("--data") + 1].startswith(f"{tmp_path}/data-")
        with running(tmp_path, *cure[2:]) as second:
            second.connect(2).close()


def test_data_of_another_number_of_nodes_is_refused_and_can_be_removed(tmp_path: Path) -> None:
    data = ["--port-base", str(some_base()), "--data", str(tmp_path / "data")]
    with running(tmp_path, *data, "--nodes", "2") as up:
        in_use = failing("--fresh", "--port-base", str(some_base() + 100), *data[2:])
        assert f"is in use by process {up.pids[0]}" in in_use
        assert up.stop() == 0
    said = failing(*data, "--nodes", "3")
    assert "holds the data of 2 nodes (mirrormq-1@localhost ... mirrormq-2@localhost), not of 3 nodes" in said
    assert f"run 'mirrormq up --data {tmp_path}/data --nodes 2'" in said
    assert "not of one node" in failing(*data, "--nodes", "1")
    with running(tmp_path, *data, "--nodes", "1", "--fresh") as up:
        [node] = up.announced
        assert node["name"].startswith("mirrormq@")
        assert up.stop() == 0
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [node["name"]]
    assert f"holds the data of one node ({node['name']}), not of 3 nodes" in failing(*data)


def test_a_start_that_is_not_whole_fails_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "data/mirrormq-2@localhost"
    folder.mkdir(parents=True)
    (folder / "VERSION").write_text("999\n")
    options = ["--port-base", str(some_base()), "--data", str(tmp_path / "data")]
    said = failing(*options)
    assert "was written by a newer MirrorMQ" in said
    (folder / "VERSION").write_text("1\n")
    (folder / "meta").write_text("in the way")
    result = subprocess.run([*UP, *options], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "mirrormq: node mirrormq-2@localhost did not start (exit code 1)" in result.stderr
    assert "MirrorMQ is running" not in result.stdout


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal: the side a person sits at, and the side programs see."""
    person, program = pty.openpty()
    yield person, program
    os.close(person)
    os.close(program)


def test_the_keys_of_a_terminal_stop_suspend_and_continue_all_nodes(
    tmp_path: Path, terminal: tuple[int, int]
) -> None:
    person, program = terminal
    base = some_base()
    reading, writing = os.pipe()
    # `setsid -c` makes the terminal the controlling one, as a login does. Tests that run in the background
    # of a shell hand down an ignored SIGINT, which no person at a terminal has.
    words = [
        "env",
        "--default-signal=INT,QUIT",
        "setsid",
        "-c",
        "-w",
        *UP,
        "--port-base",
        str(base),
        "--data",
        str(tmp_path / "data"),
    ]
    with subprocess.Popen(
        [*words, "--ready-fd", str(writing)],
        stdin=program, stdout=program, stderr=program, pass_fds=[writing],
    ) as popen:  # fmt: skip
        os.close(writing)
        with os.fdopen(reading) as ready:
            pids = [json.loads(line)["pid"] for line in ready]
        assert len(pids) == 3
        assert b"MirrorMQ is running with 3 nodes." in read_until(person, b"kill -9")
        os.write(person, SUSPEND)
        stopped = os.waitid(os.P_PID, popen.pid, os.WSTOPPED)
        assert stopped is not None
        assert stopped.si_status == signal.SIGSTOP
        wait_until_suspended(pids)
        popen.send_signal(signal.SIGCONT)
        os.write(person, INTERRUPT)
        read_until(person, b"stopping 3 nodes")
        # A key pressed once is a signal once: the nodes drain and end in order.
        assert popen.wait(60) == 0


def wait_until_suspended(pids: list[int]) -> None:
    """A signal reaches a process when it is next scheduled, which nothing tells."""

    def states() -> set[str]:
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}

    until(lambda: states() == {"T"}, "all nodes are suspended")


def read_until(descriptor: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += os.read(descriptor, 65_536)
    return seen
