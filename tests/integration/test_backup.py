"""A node is copied while it works; the copy, restored elsewhere, has everything confirmed before it began."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mirrormq.wire import methods
from tests.integration import killrun
from tests.integration.killrun import CHANNEL, Promises
from tests.integration.process import QUIET, Process, running
from tests.support.raw import Closed, connect

MESSAGES_BEFORE = 2_000
DECLARING = CHANNEL + 1


def mirrormq(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mirrormq", *words], capture_output=True, text=True, timeout=60, check=False
    )


def ctl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return mirrormq("ctl", "--data", str(folder), *words)


def verified(folder: Path) -> dict[str, Any]:
    result = ctl(folder, "verify_log", "--json")
    assert result.returncode == 0, result
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["faults"] == []
    return found


class Watched(Promises):
    """Promises that tell when there are enough of them."""

    def __init__(self) -> None:
        super().__init__()
        self.enough = threading.Event()

    def next(self, sender: str) -> killrun.Name:
        if len(self.confirmed[sender]) >= MESSAGES_BEFORE:
            self.enough.set()
        return super().next(sender)


class Publisher:
    """Publishes with confirms until the node is gone."""

    def __init__(self, node: Process) -> None:
        self.promises = Watched()
        self._port = node.port
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self.promises.enough.wait(30)

    def confirmed(self) -> set[killrun.Name]:
        return set(self.promises.confirmed["confirm"])

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            with connect("127.0.0.1", self._port) as client:
                client.handshake()
                client.open_channel(DECLARING)
                queue = methods.QueueDeclare(queue=killrun.QUEUE, durable=True)
                client.call(DECLARING, queue, methods.QueueDeclareOk)
                killrun.publish_with_confirms(client, self.promises)
        except (Closed, ConnectionError):
            return


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A backup made under load, and what was confirmed before it."""
    folder = tmp_path_factory.mktemp("original")
    target = tmp_path_factory.mktemp("copies") / "backup"
    with running(folder, *QUIET) as node:
        publisher = Publisher(node)
        before = publisher.confirmed()
        result = ctl(folder / "data", "backup", str(target))
        again = ctl(folder / "data", "backup", str(target))
        inside = ctl(folder / "data", "backup", str(folder / "data" / "copy"))
        running_there = ctl(folder / "data", "verify_log")
        node.popen.kill()
        publisher.join()
    return {
        "before": before,
        "after": publisher.confirmed(),
        "target": target,
        "result": result,
        "again": again,
        "inside": inside,
        "running": running_there,
        "original": folder / "data",
    }


def names_in(node: Process) -> set[killrun.Name]:
    with connect("127.0.0.1", node.port) as client:
        client.handshake()
        worker = killrun.Worker(client, Promises(), keeps=None)
        worker.take(worker.count)
        assert not worker.promises.broken
        client.close_cleanly()
        return set(worker.taken[: worker.count])


@pytest.mark.slow
def test_a_restored_backup_has_everything_confirmed_before_it_began(
    made: dict[str, Any], tmp_path: Path
) -> None:
    assert made["result"].returncode == 0, made["result"]
    assert len(made["before"]) >= MESSAGES_BEFORE
    assert made["after"] > made["before"], "the node went on while it was copied"
    restored = mirrormq("restore", str(made["target"]), "--data", str(tmp_path / "data"))
    assert restored.returncode == 0, restored
    found = verified(tmp_path / "data")
    assert found["live"] >= len(made["before"])
    with running(tmp_path, "--no-admin") as node:
        assert made["before"] <= names_in(node)
        assert "damaged" not in node.log
        assert node.stop() == 0
    verified(tmp_path / "data")


@pytest.mark.slow
def test_a_backup_says_nothing_of_who_the_node_was(made: dict[str, Any], tmp_path: Path) -> None:
    names = {path.name for path in made["target"].iterdir()}
    assert not names & {"lock", "node.key", "node.json", "identity"}
    assert mirrormq("restore", str(made["target"]), "--data", str(tmp_path / "data"), "-q").stdout == ""
    assert not {path.name for path in (tmp_path / "data").iterdir()} & {"node.key", "node.json", "identity"}


@pytest.mark.slow
def test_only_an_empty_folder_elsewhere_takes_a_backup(made: dict[str, Any]) -> None:
    assert made["again"].returncode == 73
    assert "is not empty" in made["again"].stderr
    assert made["inside"].returncode == 65
    assert "own data folder" in made["inside"].stderr


@pytest.mark.slow
def test_a_folder_whose_node_runs_is_not_inspected(made: dict[str, Any]) -> None:
    assert made["running"].returncode == 69
    assert "is in use by process" in made["running"].stderr
    assert len(made["running"].stderr.strip().splitlines()) == 2


@pytest.mark.slow
def test_a_backup_that_was_changed_is_refused_and_leaves_nothing(
    made: dict[str, Any], tmp_path: Path
) -> None:
    listed = json.loads((made["target"] / "manifest.json").read_text().splitlines()[0])["files"]
    assert {"VERSION", "meta/snapshot"} < {entry["name"] for entry in listed}
    copy = tmp_path / "copy"
    for entry in listed:
        path = copy / entry["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((made["target"] / entry["name"]).read_bytes())
    data = str(tmp_path / "data")
    assert mirrormq("restore", str(copy), "--data", data).returncode == 66, "there is no manifest"
    (copy / "manifest.json").write_bytes((made["target"] / "manifest.json").read_bytes())
    journal = copy / listed[-1]["name"]
    changed = bytearray(journal.read_bytes())
    changed[len(changed) // 2] ^= 1
    journal.write_bytes(changed)
    refused = mirrormq("restore", str(copy), "--data", data)
    assert (refused.returncode, list(Path(data).iterdir())) == (65, [])
    assert "is not as it was" in refused.stderr
    manifest = copy / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"VERSION", b"VARSION"))
    assert mirrormq("restore", str(copy), "--data", data).returncode == 65
    (Path(data) / "something").touch()
    assert mirrormq("restore", str(made["target"]), "--data", data).returncode == 73


@pytest.mark.slow
def test_a_crashed_folder_is_shown_queue_by_queue_and_record_by_record(made: dict[str, Any]) -> None:
    folder = made["original"]
    shown = ctl(folder, "inspect_log", "--json")
    assert shown.returncode == 0, shown
    (queue,) = json.loads(shown.stdout)
    assert (queue["vhost"], queue["name"], queue["damage"]) == ("/", killrun.QUEUE, None)
    assert queue["live"] >= len(made["after"])
    assert queue["last_seq"] == queue["live"] + queue["dead"]
    lines = ctl(folder, "inspect_log", "--queue", killrun.QUEUE, "--records").stdout.splitlines()
    assert lines[0].split("\t")[:3] == ["file", "offset", "queue"]
    assert sum("\tPUBLISH\t" in line for line in lines) == queue["live"]
    assert killrun.QUEUE in ctl(folder, "inspect_log").stdout
    assert ctl(folder, "inspect_log", "--queue", "none").returncode == 65
    assert ctl(folder / "nowhere", "inspect_log").returncode == 66


@pytest.mark.slow
def test_damage_is_told_with_file_and_offset_and_an_exit_code(made: dict[str, Any], tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert mirrormq("restore", str(made["target"]), "--data", str(data)).returncode == 0
    file = min((data / "journal").iterdir())
    with file.open("r+b") as opened:
        opened.seek(500)
        byte = os.read(opened.fileno(), 1)
        os.pwrite(opened.fileno(), bytes((byte[0] ^ 1,)), 500)
    result = ctl(data, "verify_log", "--json")
    assert result.returncode == 65
    faults = json.loads(result.stdout)["faults"]
    assert any(
        fault["file"] == f"journal/{file.name}" and 0 < (fault["offset"] or 0) <= 500 for fault in faults
    )
