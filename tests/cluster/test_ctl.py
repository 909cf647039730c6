"""Commands of `mirrormqctl` about clusters and mirrored queues, against three real nodes.

Each as lines and as JSON, with what it refuses and its exit code.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from mirrormq.__main__ import main_ctl
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until

pytestmark = pytest.mark.slow


class Result(NamedTuple):
    """What a run left behind."""

    code: int
    out: str
    err: str


class Ctl:
    """Runs lines against a node."""

    def __init__(self, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster = cluster
        self._capsys = capsys

    def run(self, line: str, *more: str, at: int = 0) -> Result:
        names = {f"n{number + 1}": node.name for number, node in enumerate(self.cluster)}
        words = [word.format(**names) for word in line.split()]
        code = main_ctl(["--data", str(self.cluster[at].folder), *words, *more])
        return Result(code, *self._capsys.readouterr())

    def json(self, line: str, *more: str, at: int = 0) -> Any:
        result = self.run(line, "--json", *more, at=at)
        assert (result.code, result.err) == (0, ""), result
        return json.loads(result.out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ctl")
    with kit.cluster(folder, settings=[f"log.dir={folder}"]) as cluster:
        policy = {"vhost": "/", "name": "all", "pattern": "^m", "definition": {"ha-mode": "all"}}
        cluster[0].ctl("set_policy", **policy)
        for name in ("m1", "m2", "alone"):
            cluster[0].ctl("declare_queue", vhost="/", name=name, durable=True)
        yield cluster


@pytest.fixture
def ctl(whole: Cluster, capsys: pytest.CaptureFixture[str]) -> Ctl:
    return Ctl(whole, capsys)


REFUSED = [
    ("sync_queue never", 69, "never"),
    ("sync_queue alone", 69, "alone|not mirrored"),
    ("cancel_sync_queue never", 69, "never"),
    ("move_master m1 nobody@nowhere", 69, "nobody@nowhere"),
    ("move_master m1", 64, "not enough arguments"),
    ("force_promote never", 69, "never"),
    ("quorum_status never", 69, "never"),
    ("list_cursors colour", 64, "colour"),
    ("drop_cursor m1 never", 69, "never"),
    ("forget_cluster_node nobody@nowhere", 69, "not in the cluster"),
    ("forget_cluster_node --offline {n2}", 64, "force_boot"),
    ("change_cluster_node_type king", 64, "king"),
    ("join_cluster {n2}", 64, "stop_app"),
    ("reset", 64, "stop_app"),
    ("force_reset", 64, "stop_app"),
    ("force_boot", 64, "stop_app"),
    ("set_feature_level 0", 65, "level"),
    ("set_feature_level much", 64, "level"),
    ("haproxy_config --bind-amqp nowhere", 64, "nowhere"),
    ("haproxy_config --proxy-protocol perhaps", 64, "perhaps"),
    ("backup /proc/no/such/folder", 73, "/proc/no/such/folder"),
    ("promote_mirror /", 65, "mirror"),
    ("inspect_log", 69, "is in use by process"),
    ("verify_log", 69, "is in use by process"),
    ("wait", 64, "either"),
    ("wait --pid 999999999", 69, "not running"),
    ("log_tail_stream --duration soon", 64, "--duration"),
    ("consume_event_stream --pattern (", 64, "--pattern"),
]


@pytest.mark.parametrize(("line", "code", "says"), REFUSED, ids=[line for line, _, _ in REFUSED])
def test_a_refusal_has_its_code_and_a_reason_in_words_and_in_json(
    ctl: Ctl, line: str, code: int, says: str
) -> None:
    result = ctl.run(line, "-q")
    assert (result.code, result.out) == (code, ""), result
    assert re.search(says, result.err)
    as_json = ctl.run(line, "--json")
    assert as_json.code == code
    assert re.search(says, json.loads(as_json.err)["message"])


def synchronised(ctl: Ctl) -> None:
    ctl.cluster.wait_whole()
    until(
        lambda: len(ctl.cluster[0].ctl("sync_status", vhost="/", name="m1")["in_sync"]) == 3, "m1 is in sync"
    )


def test_the_copies_of_a_queue_are_shown(ctl: Ctl) -> None:
    synchronised(ctl)
    names = sorted(node.name for node in ctl.cluster)
    rows = ctl.json("quorum_status m1")
    assert sorted(row["node"] for row in rows) == names
    assert [row["role"] for row in rows] == ["master", "mirror", "mirror"]
    assert {row["state"] for row in rows} == {"in-sync"}
    assert re.search(r"\tmaster\tin-sync", ctl.run("quorum_status m1").out)


def test_a_master_is_moved_and_a_queue_in_sync_needs_no_copying(ctl: Ctl) -> None:
    synchronised(ctl)
    assert ctl.run("move_master m1 {n2}").code == 0
    assert ctl.json("move_master m1 {n3}")["master"] == ctl.cluster[2].name
    until(lambda: ctl.json("quorum_status m1")[0]["node"] == ctl.cluster[2].name, "the master has moved")
    synchronised(ctl)
    assert "in sync already" in ctl.run("sync_queue m1").out
    assert ctl.json("sync_queue m1")["unsynchronised"] == []
    assert ctl.run("cancel_sync_queue m1").code == 0
    assert ctl.json("cancel_sync_queue m1")["result"] == "ok"


def test_nodes_of_a_healthy_cluster_can_be_stopped(ctl: Ctl) -> None:
    synchronised(ctl)
    for line in ("await_online_quorum_plus_one", "await_online_synchronized_mirror"):
        assert f"Node {ctl.cluster[0].name} can stop" in ctl.run(line).out
    assert ctl.run("await_online_nodes 3").code == 0
    assert ctl.run("check_if_node_is_mirror_sync_critical").code == 0
    assert ctl.run("discover_peers").out.count("n") >= 3


def test_cursors_are_listed_when_there_are_none(ctl: Ctl) -> None:
    assert ctl.json("list_cursors") == []
    assert ctl.run("list_cursors").code == 0


def test_haproxys_file_names_all_nodes_and_warns_that_clients_look_local(ctl: Ctl) -> None:
    result = ctl.run("haproxy_config", "--bind-stats", "127.0.0.1:8404", "--bind-management", "off")
    assert result.code == 0
    assert result.out.count("check addr 127.") == 3
    assert "send-proxy-v2" not in result.out
    assert "listen management" not in result.out
    assert "bind 127.0.0.1:8404" in result.out
    assert result.err.startswith("Warning: the nodes expect no PROXY header")
    found = json.loads(ctl.run("haproxy_config", "--proxy-protocol", "on", "--json").out)
    assert found["config"].count("send-proxy-v2") == 3
    assert found["warnings"] == []


def test_an_application_is_stopped_and_started_and_may_be_waited_for(ctl: Ctl, tmp_path: Path) -> None:
    node = ctl.cluster[1]
    assert ctl.json("stop_app", at=1)["result"] == "ok"
    assert "not running" in ctl.run("is_running", at=1).out
    assert ctl.run("check_running", at=1).code == 69
    assert ctl.run("list_queues", at=1).code == 64
    assert ctl.run("join_cluster {n1}", at=1).code == 69
    refused = ctl.run("wait --pid", str(node.pid), "-t", "0.2", at=1)
    assert (refused.code, "stopped" in refused.err) == (70, True)
    assert "Starting node" in ctl.run("start_app", at=1).out
    file = tmp_path / "pid"
    file.write_text(f"{node.pid}\n")
    assert ctl.run("wait", str(file), at=1).code == 0
    assert ctl.json("await_startup", at=1)["result"] == "ok"
    ctl.cluster.wait_whole()


def test_a_role_is_changed_and_changed_back(ctl: Ctl) -> None:
    assert ctl.run("change_cluster_node_type non-voter", at=2).code == 0
    until(lambda: roles(ctl)[ctl.cluster[2].name] == "non-voter", "n3 has no vote")
    assert ctl.json("change_cluster_node_type disc", at=2)["result"] == "ok"
    ctl.cluster.wait_whole()


def roles(ctl: Ctl) -> dict[str, str]:
    return {member["name"]: member["role"] for member in ctl.cluster[0].status().get("members", ())}


def test_a_backup_is_taken_and_described(ctl: Ctl, tmp_path: Path) -> None:
    assert re.search(r"\d+ files with \d+ bytes", ctl.run("backup", str(tmp_path / "one")).out)
    assert ctl.json("backup", str(tmp_path / "two"))["files"] > 0
    assert ctl.run("backup", str(tmp_path / "two")).code == 73


class Following:
    """A command that goes on, read line by line."""

    def __init__(self, node: Node, *words: str) -> None:
        line = [sys.executable, "-u", "-m", "mirrormq", "ctl", "--data", str(node.folder), *words]
        self.child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        self.lines.extend(iter(self.child.stdout.readline, ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.child.kill()
        self.child.wait()
        self._thread.join()
        assert self.child.stdout is not None
        self.child.stdout.close()


def test_events_of_the_whole_cluster_are_streamed_as_json(ctl: Ctl) -> None:
    with Following(ctl.cluster[0], "consume_event_stream", "--pattern", "^vhost[.]") as stream:
        numbers = iter(range(1000))

        def told() -> list[str]:
            # The subscription comes at its own time: something happens until it is heard of.
            ctl.cluster[1].ctl("add_vhost", name=f"heard{next(numbers)}")
            return [line for line in stream.lines if "vhost.created" in line]

        event = json.loads(until(told, lambda: f"an event: {stream.lines}")[0])
    assert event["event"] == "vhost.created"
    assert event["name"].startswith("heard")
    assert "node" in event


def test_a_stream_of_events_needs_a_user_who_may_log_in(ctl: Ctl, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    result = ctl.run("consume_event_stream -d 1 --user guest --password-file", str(secret))
    assert (result.code, result.out) == (77, "")


def test_the_log_is_followed_while_it_grows(tmp_path: Path) -> None:
    settings = ["log.file=node.log", f"log.dir={tmp_path}"]
    with kit.cluster(tmp_path, 1, settings=settings, start=False) as cluster:
        node = cluster[0]
        node.start()
        until(lambda: node.asked("ping"), "it answers")
        with Following(node, "log_tail_stream") as stream:
            until(lambda: stream.lines, "it has begun")

            def told() -> bool:
                node.asked("set_disk_free_limit", size="1MB")
                return any("disk alarm" in line for line in stream.lines)

            until(told, lambda: f"a line of the log: {stream.lines}")
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "mirrormq",
                "ctl",
                "--data",
                str(node.folder),
                "log_tail_stream",
                "-d",
                "0.1",
            ],
            capture_output=True,
            timeout=60,
            check=False,
            env=os.environ,
        )
        assert ended.returncode == 0, ended.stderr
