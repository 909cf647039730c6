"""The application of a real node stopped and started within its process: what ctl, HTTP and clients see."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from mirrormq.cluster.raft.recovery import SNAPSHOT
from tests.integration.process import Process, running

Ctl = Callable[..., subprocess.CompletedProcess[str]]
SETTINGS = ("password_hashing.argon2.memory=8", "password_hashing.argon2.passes=1", "shutdown_timeout=500")
"""Nothing here is worth protecting, and clients that do not listen are not worth waiting for."""


def options() -> list[str]:
    return [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Process]:
    with running(tmp_path, *options()) as found:
        yield found


def ctl_of(folder: Path) -> Ctl:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mirrormq", "ctl", "--data", str(folder / "data"), *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def ctl(node: Process) -> Ctl:
    return ctl_of(node.folder)


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(result: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    assert result.returncode, result.stdout
    return result.returncode, result.stderr.removeprefix("Error:\n").strip()


def node_json(node: Process) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((node.folder / "data/node.json").read_text())
    return found


def data_files(node: Process) -> set[str]:
    return {path.name for path in (node.folder / "data").iterdir()}


def http(node: Process, path: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"{node.announced['http']}/api/{path}")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def post_ctl(node: Process, command: str, **given: Any) -> tuple[int, Any]:
    """What `mirrormqctl` does, without the time it takes to start."""
    url = f"{node.announced['http']}/api/ctl/{command}"
    key = (node.folder / "data/node.key").read_text().strip()
    request = urllib.request.Request(url, json.dumps(given).encode(), method="POST")
    request.add_header("Authorization", f"MirrorMQ-Key {key}")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


# --- stopping and starting ---


def test_stop_app_sends_clients_away_and_start_app_brings_their_messages_back(
    node: Process, ctl: Ctl
) -> None:
    connection = node.connect()
    channel = connection.channel()
    channel.queue_declare("kept", durable=True)
    channel.confirm_delivery()
    for number in range(10):
        body = str(number).encode()
        channel.basic_publish("", "kept", body, pika.BasicProperties(delivery_mode=2))
    with ThreadPoolExecutor(1) as client:
        told = client.submit(connection.process_data_events, 20)
        done(ctl("stop_app"))
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="CONNECTION_FORCED") as closed:
            told.result()
    assert closed.value.reply_code == 320
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", node.port), 5)
    assert node.popen.poll() is None
    done(ctl("start_app"))
    channel = node.connect().channel()
    assert [channel.basic_get("kept", auto_ack=True)[2] for _ in range(10)] == [
        str(number).encode() for number in range(10)
    ]
    assert node.stop() == 0


def test_stop_app_and_start_app_may_be_repeated(node: Process, ctl: Ctl) -> None:
    done(ctl("start_app"))
    done(ctl("stop_app"))
    done(ctl("stop_app"))
    assert json.loads(done(ctl("start_app", "--json")))["result"] == "ok"
    done(ctl("check_running"))


def test_node_json_tells_whether_the_application_runs(node: Process, ctl: Ctl) -> None:
    before = node_json(node)
    assert before == node.announced
    assert before["app"] == "running"
    done(ctl("stop_app"))
    assert node_json(node) == {**before, "app": "stopped", "amqp": []}
    done(ctl("start_app"))
    assert node_json(node) == before


def test_the_service_manager_is_told_what_the_application_does(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)

        def expect(text: bytes) -> None:
            while text not in manager.recv(4096):
                pass

        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with running(tmp_path / "node", *options(), environment=environment) as node:
            expect(b"READY=1\nSTATUS=accepting AMQP on")
            assert post_ctl(node, "stop_app")[0] == 200
            expect(b"STATUS=the application is stopped")
            assert post_ctl(node, "start_app")[0] == 200
            expect(b"READY=1\nSTATUS=accepting AMQP on")


def test_a_stopped_node_answers_what_it_can_and_names_the_cure_for_the_rest(node: Process, ctl: Ctl) -> None:
    done(ctl("stop_app"))
    done(ctl("ping"))
    assert "listeners.tcp" in done(ctl("environment"))
    status = json.loads(done(ctl("status", "--json")))
    assert status["app"] == "stopped"
    assert [entry["protocol"] for entry in status["listeners"]] == ["http"]
    assert "Application: stopped" in done(ctl("status"))
    sentence = "this node's application is stopped; run start_app"
    for line in ("list_queues", "add_user a b", "cluster_status", "check_alarms", "check_local_alarms",
                 "listeners", "backup somewhere", "await_online_nodes 1"):  # fmt: skip
        assert refused(ctl(*line.split())) == (64, sentence), line
    assert refused(ctl("check_running"))[0] == 69
    code, text = refused(ctl("await_startup", "--timeout", "1"))
    assert code == 69
    assert "application is stopped" in text


def test_the_management_api_of_a_stopped_node_answers_503(node: Process) -> None:
    assert http(node, "overview")[0] == 200
    assert post_ctl(node, "stop_app")[0] == 200
    for path in ("overview", "queues", "healthchecks/node", "nodes"):
        status, answer = http(node, path)
        assert status == 503
        assert answer["reason"] == "this node's application is stopped; run start_app"
    assert post_ctl(node, "start_app")[0] == 200
    assert http(node, "overview")[0] == 200


def test_await_startup_waits_for_the_application(node: Process, ctl: Ctl) -> None:
    assert post_ctl(node, "stop_app")[0] == 200
    words = [sys.executable, "-m", "mirrormq", "ctl", "--data", str(node.folder / "data"), "await_startup"]
    with subprocess.Popen(words) as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1)
        assert post_ctl(node, "start_app")[0] == 200
        assert waiting.wait(20) == 0


def test_a_stopped_node_stops_as_any_other(node: Process, ctl: Ctl) -> None:
    done(ctl("stop_app"))
    done(ctl("stop"))
    assert node.wait() == 0
    assert not (node.folder / "data/node.json").exists()


def test_sigterm_ends_a_stopped_node_in_order(node: Process) -> None:
    assert post_ctl(node, "stop_app")[0] == 200
    node.signal(signal.SIGHUP)
    assert node.stop() == 0


def test_start_app_tells_why_it_cannot_start_and_may_be_tried_again(node: Process, ctl: Ctl) -> None:
    done(ctl("stop_app"))
    with socket.create_server(("127.0.0.1", node.port)):
        code, text = refused(ctl("start_app"))
        assert code == 69
        assert text.startswith(f"Port {node.port} is used by ")
        assert "Port" in json.loads(done(ctl("status", "--json")))["app_detail"]
    done(ctl("start_app"))
    assert node.connect().is_open


def test_a_damaged_folder_is_told_by_start_app_and_leaves_the_process_alone(node: Process, ctl: Ctl) -> None:
    done(ctl("stop_app"))
    snapshot = node.folder / "data" / SNAPSHOT
    kept = snapshot.read_bytes() if snapshot.exists() else None
    snapshot.write_bytes(b"nonsense")
    code, text = refused(ctl("start_app"))
    assert (code, text.startswith("Data folder ")) == (69, True), text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", node.port), 5)
    snapshot.unlink() if kept is None else snapshot.write_bytes(kept)
    done(ctl("start_app"))


@pytest.mark.slow
def test_many_starts_of_the_application_leave_no_threads_files_or_memory_behind(node: Process) -> None:
    def used() -> tuple[int, int, int]:
        process = Path(f"/proc/{node.pid}")
        resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return len(list((process / "task").iterdir())), len(list((process / "fd").iterdir())), resident

    def restart() -> None:
        channel = node.connect().channel()
        channel.queue_declare("", exclusive=True)
        channel.basic_publish("", "nowhere", bytes(1000))
        assert post_ctl(node, "stop_app")[0] == 200
        assert post_ctl(node, "start_app")[0] == 200

    for _ in range(5):
        restart()
    before = used()
    for _ in range(15):
        restart()
    after = used()
    # One left behind by each start would be fifteen; a file may be open for a moment while we count.
    assert after[0] < before[0] + 15
    assert after[1] < before[1] + 15
    assert after[2] - before[2] < 15 * 1_000_000, (before, after)


# --- reset ---


def test_reset_makes_a_fresh_node_and_keeps_its_keys(node: Process, ctl: Ctl) -> None:
    assert refused(ctl("reset")) == (
        64,
        "this node's application must be stopped for this; run stop_app first",
    )
    channel = node.connect().channel()
    channel.queue_declare("gone", durable=True)
    channel.basic_publish("", "gone", b"1", pika.BasicProperties(delivery_mode=2))
    done(ctl("add_user", "ann", "secret"))
    key = (node.folder / "data/node.key").read_bytes()
    done(ctl("stop_app"))
    done(ctl("force_boot"))
    done(ctl("reset"))
    assert data_files(node) <= {"lock", "VERSION", "node.key", "node.json", "reserve", "cluster.secret"}
    assert (node.folder / "data/node.key").read_bytes() == key
    done(ctl("start_app"))
    assert json.loads(done(ctl("list_queues", "--json"))) == []
    assert [row["user"] for row in json.loads(done(ctl("list_users", "--json")))] == ["guest"]


def test_a_reset_that_was_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    with running(tmp_path, *options()) as node:
        node.connect().channel().queue_declare("gone", durable=True)
        assert post_ctl(node, "stop_app")[0] == 200
        (node.folder / "data/reset.begun").touch()
        node.signal(signal.SIGKILL)
        node.wait()
    with running(tmp_path, *options()) as node:
        assert not (node.folder / "data/reset.begun").exists()
        assert post_ctl(node, "list_queues") == (200, [])


def test_force_reset_needs_a_stopped_application(node: Process, ctl: Ctl) -> None:
    assert refused(ctl("force_reset"))[0] == 64
    done(ctl("stop_app"))
    done(ctl("force_reset"))
    done(ctl("start_app"))


# --- joining ---


def test_join_cluster_is_remembered_for_the_next_start_of_an_empty_node(node: Process, ctl: Ctl) -> None:
    assert refused(ctl("join_cluster", "mirrormq@other"))[0] == 64
    done(ctl("stop_app"))
    code, text = refused(ctl("join_cluster", "mirrormq@other"))
    assert code == 69
    assert "stop_app, reset, join_cluster and start_app" in text
    done(ctl("reset"))
    done(ctl("join_cluster", "mirrormq@other"))
    join = node.folder / "data/cluster.join"
    assert json.loads(join.read_text()) == {"node": "mirrormq@other", "address": "other:25672"}
    said = done(ctl("join_cluster", "--ram", "mirrormq@other", "--address", "[::1]:7000"))
    assert "Warning: every MirrorMQ node keeps its data on disk" in said
    assert json.loads(join.read_text()) == {"node": "mirrormq@other", "address": "[::1]:7000"}
    assert refused(ctl("join_cluster", "nonsense"))[0] == 65
    assert refused(ctl("join_cluster", node.announced["name"]))[0] == 65
    assert refused(ctl("join_cluster", "a@b", "--address", "::1"))[0] == 65
    done(ctl("reset"))
    assert not join.exists()


def test_force_boot_is_remembered_until_the_application_has_started(node: Process, ctl: Ctl) -> None:
    mark = node.folder / "data/cluster.force_boot"
    assert refused(ctl("force_boot"))[0] == 64
    done(ctl("stop_app"))
    done(ctl("force_boot"))
    assert mark.exists()
    done(ctl("start_app"))
    assert not mark.exists()


def test_force_boot_works_on_a_node_that_does_not_run(tmp_path: Path) -> None:
    with running(tmp_path, *options()) as node:
        assert node.stop() == 0
    done(ctl_of(tmp_path)("force_boot"))
    assert (tmp_path / "data/cluster.force_boot").exists()


# --- the cluster, as one node has it ---


def test_a_single_node_is_shown_as_a_cluster_of_one(node: Process, ctl: Ctl) -> None:
    found = json.loads(done(ctl("cluster_status", "--json")))
    name = node.announced["name"]
    assert (found["disk_nodes"], found["running_nodes"], found["leader"]) == ([name], [name], name)
    assert found["listeners"][name][0]["port"] == node.port
    text = done(ctl("cluster_status"))
    assert "The cluster tolerates 0 failures: it is one node" in text
    assert f"{name}: voter, running, leader" in text
    done(ctl("await_online_nodes", "1"))
    code, said = refused(ctl("await_online_nodes", "2", "--timeout", "0.5"))
    assert (code, "Not enough nodes" in said) == (70, True)


def test_what_concerns_other_nodes_is_refused_by_a_single_one(node: Process, ctl: Ctl) -> None:
    name = node.announced["name"]
    assert refused(ctl("forget_cluster_node", "a@b")) == (69, "The node selected is not in the cluster.")
    assert refused(ctl("forget_cluster_node", name))[0] == 65
    assert refused(ctl("forget_cluster_node", "a@b", "--offline"))[0] == 64
    assert refused(ctl("leave_cluster"))[0] == 69
    assert refused(ctl("change_cluster_node_type", "witness"))[0] == 69
    assert refused(ctl("change_cluster_node_type", "nonsense"))[0] == 64
    done(ctl("change_cluster_node_type", "disc"))
    done(ctl("enable_feature_flag", "all"))
    assert refused(ctl("enable_feature_flag", "nonsense"))[0] == 64
    assert {"name": "quorum_queue", "state": "enabled"} in json.loads(
        done(ctl("list_feature_flags", "--json"))
    )
    done(ctl("set_feature_level", "1"))
    assert refused(ctl("set_feature_level", "9"))[0] == 64
