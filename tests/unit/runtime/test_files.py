"""The disk port over real files, and the data folder around it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from mirrormq.node.effects import Append, Flush, Remove, Replace
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.files import Files
from mirrormq.runtime.folder import is_locked, open_folder


class Reports:
    """What the file thread said."""

    def __init__(self) -> None:
        self.tokens: SimpleQueue[list[int]] = SimpleQueue()
        self.failures: SimpleQueue[str] = SimpleQueue()

    def wait(self, *tokens: int) -> None:
        seen: list[int] = []
        while len(seen) < len(tokens):
            seen += self.tokens.get(timeout=10)
        assert seen == list(tokens)


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def files(tmp_path: Path, reports: Reports) -> Iterator[Files]:
    made = Files(tmp_path, reports.tokens.put, reports.failures.put)
    made.start()
    yield made
    assert made.close(10)


def test_a_flush_covers_every_append_before_it(files: Files, reports: Reports, tmp_path: Path) -> None:
    files.order(Append("meta/log", b"one"))
    files.order(Append("meta/log", b"two"))
    files.order(Flush("meta/log", 1))
    reports.wait(1)
    assert (tmp_path / "meta/log").read_bytes() == b"onetwo"


def test_flushes_are_reported_once_each_and_in_order(files: Files, reports: Reports) -> None:
    for number in range(1, 50):
        files.order(Append(f"f{number % 3}", b"x"))
        files.order(Flush(f"f{number % 3}", number))
    seen: list[int] = []
    while len(seen) < 49:
        seen += reports.tokens.get(timeout=10)
    assert sorted(seen) == list(range(1, 50))
    for third in range(3):
        own = [token for token in seen if token % 3 == third]
        assert own == sorted(own)


def test_a_replace_is_whole_and_later_appends_go_behind_it(
    files: Files, reports: Reports, tmp_path: Path
) -> None:
    files.order(Append("log", b"old"))
    files.order(Replace("log", b"new", 1))
    files.order(Append("log", b"+more"))
    files.order(Flush("log", 2))
    reports.wait(1, 2)
    assert (tmp_path / "log").read_bytes() == b"new+more"
    assert files.list("") == ["log"], "no temporary file is left or listed"


def test_removing_a_missing_file_does_nothing(files: Files, reports: Reports, tmp_path: Path) -> None:
    files.order(Append("a", b"x"))
    files.order(Remove("a"))
    files.order(Remove("never"))
    files.order(Append("a", b"y"))
    files.order(Flush("a", 1))
    reports.wait(1)
    assert (tmp_path / "a").read_bytes() == b"y"


def test_files_are_listed_by_prefix_without_those_of_the_folder_itself(tmp_path: Path, files: Files) -> None:
    folder = open_folder(tmp_path, fresh=False)
    for name in ("meta/b", "meta/a", "queue/x", "meta/half.new"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert files.list("meta/") == ["meta/a", "meta/b"]
    assert files.list("") == ["meta/a", "meta/b", "queue/x"]
    assert files.read("meta/a") == b""
    folder.close()


def test_a_failing_write_is_final_and_names_its_reason(tmp_path: Path, reports: Reports) -> None:
    files = Files(tmp_path, reports.tokens.put, reports.failures.put)
    (tmp_path / "blocked").mkdir()
    files.start()
    files.order(Append("blocked", b"x"))
    files.order(Flush("blocked", 1))
    files.order(Append("fine", b"x"))
    files.order(Flush("fine", 2))
    assert "blocked failed: Is a directory" in reports.failures.get(timeout=10)
    assert files.close(10)
    assert reports.tokens.empty(), "nothing is reported after a failure"
    assert not (tmp_path / "fine").exists(), "nothing is written after a failure"


def test_what_was_ordered_is_finished_before_the_thread_stops(tmp_path: Path, reports: Reports) -> None:
    files = Files(tmp_path, reports.tokens.put, reports.failures.put)
    files.start()
    for _ in range(100):
        files.order(Append("log", b"x"))
    files.order(Flush("log", 1))
    assert files.close(10)
    assert (tmp_path / "log").stat().st_size == 100
    reports.wait(1)


def test_a_new_folder_gets_a_version_and_a_key_only_its_owner_can_read(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "data", fresh=False)
    key = tmp_path / "data/node.key"
    assert (tmp_path / "data/VERSION").read_text() == "1\n"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text().strip() == folder.key
    assert len(folder.key) == 64
    folder.close()
    again = open_folder(tmp_path / "data", fresh=False)
    assert again.key == folder.key, "the key outlives a restart"
    again.close()


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, fresh=False)
    assert is_locked(tmp_path)
    with pytest.raises(
        StartError, match=rf"in use by process {os.getpid()} \(.*\): stop it, or give another"
    ):
        open_folder(tmp_path, fresh=False)
    folder.close()
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "missing")
    open_folder(tmp_path, fresh=False).close()


def test_a_newer_format_is_refused_and_a_damaged_one_too(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_text("99\n")
    with pytest.raises(StartError, match="written by a newer MirrorMQ \\(format 99"):
        open_folder(tmp_path, fresh=False)
    (tmp_path / "VERSION").write_text("what\n")
    with pytest.raises(StartError, match="does not hold a number"):
        open_folder(tmp_path, fresh=False)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="cannot be written: Not a directory; give another one with --data"):
        open_folder(tmp_path / "file" / "data", fresh=False)


def test_fresh_empties_a_data_folder_but_never_a_foreign_one(tmp_path: Path) -> None:
    own, foreign = tmp_path / "own", tmp_path / "foreign"
    open_folder(own, fresh=False).close()
    (own / "meta").mkdir()
    (own / "meta/log").write_bytes(b"old")
    open_folder(own, fresh=True).close()
    assert not (own / "meta").exists()
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(StartError, match="--fresh does not empty it"):
        open_folder(foreign, fresh=True)
    assert (foreign / "thesis.txt").exists()


def test_the_node_is_announced_while_it_runs(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, fresh=False)
    content = folder.announce("n@h", ["amqp://127.0.0.1:5672"], None)
    assert (tmp_path / "node.json").read_bytes() == content
    assert b'"amqp":["amqp://127.0.0.1:5672"],"http":null' in content
    folder.close()
    assert not (tmp_path / "node.json").exists()
