"""What a good process does: stop in order, respect limits, tell systemd, rotate and reopen, keep secrets."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrormq.runtime import hygiene
from mirrormq.wire import methods
from tests.integration.process import SERVE, Process, running
from tests.support.raw import Closed, RawClient, connect


def test_sigterm_tells_every_client_and_ends_in_order(tmp_path: Path) -> None:
    with running(tmp_path) as node, connect("127.0.0.1", node.port) as client:
        client.handshake()
        node.signal(signal.SIGTERM)
        close = client.expect(0, methods.ConnectionClose)
        assert (close.reply_code, close.reply_text[:17]) == (320, "CONNECTION_FORCED")
        client.send_method(0, methods.ConnectionCloseOk())
        with pytest.raises(Closed):
            client.next_frame()
        assert node.wait() == 0
        assert "stopping: SIGTERM connections=1" in node.log
        assert node.log.rstrip().endswith("[info] stopped event=node.stopped")


def test_a_client_that_does_not_answer_is_cut_off_after_shutdown_timeout(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--set", "shutdown_timeout=300ms") as node,
        connect("127.0.0.1", node.port) as client,
    ):
        client.handshake()
        began = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - began < 5
        assert "clients are cut off" in node.log


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--set", "shutdown_timeout=600s") as node,
        connect("127.0.0.1", node.port) as client,
    ):
        client.handshake()
        node.signal(signal.SIGTERM)
        client.expect(0, methods.ConnectionClose)
        node.signal(signal.SIGINT)
        assert node.wait() == 1


def test_no_new_client_is_accepted_while_the_node_stops(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--set", "shutdown_timeout=600s") as node,
        connect("127.0.0.1", node.port) as client,
    ):
        client.handshake()
        node.signal(signal.SIGTERM)
        client.expect(0, methods.ConnectionClose)
        with pytest.raises(ConnectionRefusedError):
            connect("127.0.0.1", node.port)


def test_the_node_may_open_as_many_files_as_the_machine_allows(tmp_path: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))

    with running(tmp_path, before=few) as node:
        limits = Path(f"/proc/{node.pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
    assert line.split()[3:5] == ["512", "512"]


def test_connections_are_refused_before_files_run_out_and_others_go_on(tmp_path: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    opened: list[RawClient] = []
    with running(tmp_path, "--no-admin", before=few) as node:
        try:
            refused = 0
            while not refused and len(opened) < 120:
                client = connect("127.0.0.1", node.port)
                opened.append(client)
                try:
                    client.handshake()
                except (Closed, ConnectionError):
                    refused += 1
            assert refused
            assert 50 < len(opened) < 100
            opened[0].open_channel(1)
            assert "new connections are refused: 90 %" in node.log
            opened[1].close_cleanly()
            opened[2].close_cleanly()
        finally:
            for client in opened:
                client.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket such as systemd's."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(tmp_path / "notify"))
    listening.settimeout(10)
    yield listening
    listening.close()


def test_systemd_is_told_of_readiness_life_reload_and_end(tmp_path: Path, manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    with running(tmp_path / "node", environment=environment) as node:
        expect_message(manager, b"READY=1\nSTATUS=accepting AMQP on amqp://127.0.0.1:")
        assert manager.recv(4096) == b"WATCHDOG=1"
        assert manager.recv(4096) == b"WATCHDOG=1"
        node.signal(signal.SIGHUP)
        assert expect_message(manager, b"RELOADING=1").startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        expect_message(manager, b"READY=1")
        node.signal(signal.SIGTERM)
        expect_message(manager, b"STOPPING=1")
        assert node.wait() == 0


def expect_message(manager: socket.socket, start: bytes) -> bytes:
    while True:
        message = manager.recv(4096)
        if message.startswith(start):
            return message


def test_sighup_opens_log_files_again(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "node.log"
    options = ["--set", f"log.file={log}", "--set", "log.console=true"]
    with running(tmp_path, *options) as node:
        assert "accepting connections" in log.read_text()
        log.rename(tmp_path / "moved.log")
        node.signal(signal.SIGHUP)
        wait_for_line(node, "certificates and log files reloaded")
        assert "reloaded" in log.read_text()
        assert "reloaded" not in (tmp_path / "moved.log").read_text()


def wait_for_line(node: Process, text: str) -> None:
    """Follow the log until a line has come; the pipe of `tail` blocks instead of a loop that polls."""
    command = ["tail", "-n", "+1", "-F", "--pid", str(node.pid), str(node.log_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tail:
        assert tail.stdout is not None
        try:
            assert any(text in line for line in tail.stdout), f"{text!r} is not in the log:\n{node.log}"
        finally:
            tail.kill()


def test_a_node_is_a_good_process_1(tmp_path: Path) -> None:
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *SERVE]
    if os.getuid() != 0:
        command[1:1] = ["--map-root-user"]
    if subprocess.run([*command[: -len(SERVE)], "true"], check=False).returncode != 0:
        pytest.skip("this machine does not allow new process namespaces")
    with running(tmp_path, command=command) as node:
        assert node.announced["pid"] == 1
        node.connect().close()
        [inner] = children(node.pid)
        os.kill(inner, signal.SIGTERM)
        assert node.wait() == 0
        assert "stopping: SIGTERM" in node.log


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_orphans_are_buried() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    hygiene.reap_children()
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
    child.returncode = 0


def test_a_node_for_one_program_ends_with_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    words = ["--listen", "127.0.0.1:0", "--no-admin", "--data", str(tmp_path), "--ready-fd", str(writing)]
    with subprocess.Popen(
        [*SERVE, *words, "--stop-on-eof"],
        stdin=subprocess.PIPE,
        pass_fds=[writing],
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(writing)
        with os.fdopen(reading) as ready:
            assert ready.readline()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def test_a_node_ends_with_its_program_even_before_it_is_ready(tmp_path: Path) -> None:
    words = ["--listen", "127.0.0.1:0", "--no-admin", "--data", str(tmp_path), "--stop-on-eof"]
    # Nobody has the other end of its input any more when it starts.
    ended = subprocess.run(
        [*SERVE, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False
    )
    assert b"Traceback" not in ended.stderr
    assert ended.returncode in {0, 128 + signal.SIGTERM}


SIGNALLED_WHILE_THE_LOOP_STARTS = """
import os, signal, socket, sys
make = socket.socketpair
def made(*args, **more):  # the loop makes one for signals
    os.kill(os.getpid(), signal.SIGTERM)
    return make(*args, **more)
socket.socketpair = made
from mirrormq.runtime.main import serve
sys.exit(serve(sys.argv[1:]))
"""


def test_a_signal_in_the_middle_of_the_loops_start_is_served_behind_it(tmp_path: Path) -> None:
    words = ["--listen", "127.0.0.1:0", "--no-admin", "--data", str(tmp_path)]
    command = [sys.executable, "-c", SIGNALLED_WHILE_THE_LOOP_STARTS, *words]
    ended = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert b"Traceback" not in ended.stderr
    assert ended.returncode == 0


def test_secrets_never_reach_the_log(tmp_path: Path) -> None:
    environment = {"MIRRORMQ_DEFAULT_PASS": "swordfish-one", "MIRRORMQ_LOG_DEFAULT_LEVEL": "debug"}
    with running(tmp_path, environment=environment) as node:
        node.connect(password="swordfish-one").close()
        with connect("127.0.0.1", node.port) as client, pytest.raises((Closed, AssertionError)):
            client.handshake(password="swordfish-two")
        key = (tmp_path / "data/node.key").read_text().strip()
        assert node.stop() == 0
        assert "swordfish" not in node.log
        assert key not in node.log


def test_the_loop_is_not_busy_when_nothing_happens(tmp_path: Path) -> None:
    with running(tmp_path) as node, connect("127.0.0.1", node.port) as client:
        client.handshake()
        before = cpu_seconds(node.pid)
        client.sock.settimeout(2)
        with pytest.raises(TimeoutError):
            client.sock.recv(1)
        assert cpu_seconds(node.pid) - before < 0.2


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
