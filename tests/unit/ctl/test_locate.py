"""The node is found by its data folder; what is in the way is said with its cure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirrormq.ctl import locate
from mirrormq.ctl.faults import Failure, Misuse


def add_node(root: Path, name: str, pid: int, http: str | None = "http://127.0.0.1:1") -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "node.json").write_text(json.dumps({"name": name, "pid": pid, "amqp": [], "http": http}))
    (folder / "node.key").write_text("secret\n")
    return folder


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_the_only_running_node_below_the_folder_is_found(tmp_path: Path) -> None:
    add_node(tmp_path, "dead@h", dead_pid())
    add_node(tmp_path, "alive@h", os.getpid())
    found = locate.find(None, str(tmp_path), {})
    assert (found.name, found.key()) == ("alive@h", "secret")


def test_the_folder_of_one_node_may_be_given_itself(tmp_path: Path) -> None:
    folder = add_node(tmp_path, "a@h", os.getpid())
    assert locate.find(None, str(folder), {}).name == "a@h"
    assert locate.find(None, None, {"MIRRORMQ_DATA_DIR": str(folder)}).name == "a@h"


def test_two_running_nodes_must_be_told_apart_by_name(tmp_path: Path) -> None:
    add_node(tmp_path, "a@h", os.getpid())
    add_node(tmp_path, "b@h", os.getpid())
    with pytest.raises(Misuse, match="a@h, b@h; choose one with -n"):
        locate.find(None, str(tmp_path), {})
    assert locate.find("b@h", str(tmp_path), {}).name == "b@h"
    assert locate.find("a", str(tmp_path), {}).name == "a@h"


def test_a_node_that_crashed_is_named_as_not_running(tmp_path: Path) -> None:
    add_node(tmp_path, "a@h", dead_pid())
    with pytest.raises(Failure, match="node a@h is not running"):
        locate.find(None, str(tmp_path), {})


def test_no_node_at_all_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="mirrormq serve") as caught:
        locate.find(None, str(tmp_path), {})
    assert caught.value.code == 69
    with pytest.raises(Failure, match="no node 'x' runs"):
        locate.find("x", str(tmp_path), {})


def test_a_half_written_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "node.json").write_text('{"name": "x"')
    add_node(tmp_path, "a@h", os.getpid())
    assert locate.find(None, str(tmp_path), {}).name == "a@h"


def test_a_key_that_is_gone_is_a_sentence_not_a_traceback(tmp_path: Path) -> None:
    folder = add_node(tmp_path, "a@h", os.getpid())
    (folder / "node.key").unlink()
    with pytest.raises(Failure, match="the key of node a@h"):
        locate.find(None, str(tmp_path), {}).key()
