"""The disk port over real files, and the data folder around it."""

from __future__ import annotations

import errno
import gc
import os
import select
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrormq.base import limits
from mirrormq.node.effects import Append, Flush, Read, Remove, Replace
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.files import Files, Hearer
from mirrormq.runtime.folder import is_locked, open_folder
from mirrormq.runtime.reserve import Reserve


class Reports:
    """What the files said, and the loop that hears it."""

    def __init__(self) -> None:
        self.files: Files | None = None
        self.tokens: list[int] = []
        self.reads: dict[int, tuple[bytes | None, str | None]] = {}
        self.failures: list[str] = []
        self.looks = 0

    def hearer(self) -> Hearer:
        return Hearer(
            self.tokens.extend,
            lambda token, data, error: self.reads.update({token: (data, error)}),
            self.failures.append,
            self._look,
        )

    def _look(self) -> None:
        self.looks += 1

    def until(self, is_done: Callable[[], bool]) -> None:
        assert self.files is not None
        while not is_done():
            assert select.select([self.files], [], [], 10)[0], "nothing came for ten seconds"
            self.files.collect()

    def wait(self, *tokens: int) -> None:
        self.until(lambda: len(self.tokens) >= len(tokens))
        assert self.tokens == list(tokens)

    def read(self, effect: Read) -> tuple[bytes | None, str | None]:
        assert self.files is not None
        self.files.order(effect)
        self.until(lambda: effect.token in self.reads)
        return self.reads[effect.token]


@pytest.fixture
def reports() -> Reports:
    return Reports()


def started(tmp_path: Path, reports: Reports, **more: int) -> Files:
    made = reports.files = Files(tmp_path, reports.hearer(), **more)
    made.start()
    return made


@pytest.fixture
def files(tmp_path: Path, reports: Reports) -> Iterator[Files]:
    made = started(tmp_path, reports)
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
    reports.until(lambda: len(reports.tokens) >= 49)
    seen = reports.tokens
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
    (tmp_path / "blocked").mkdir()
    files = started(tmp_path, reports)
    files.order(Append("blocked", b"x"))
    files.order(Flush("blocked", 1))
    files.order(Append("fine", b"x"))
    files.order(Flush("fine", 2))
    assert files.close(10)
    assert len(reports.failures) == 1
    assert "blocked failed: Is a directory" in reports.failures[0]
    assert not reports.tokens, "nothing is reported after a failure"
    assert not (tmp_path / "fine").exists(), "nothing is written after a failure"


def test_what_was_ordered_is_finished_before_the_thread_stops(tmp_path: Path, reports: Reports) -> None:
    files = started(tmp_path, reports)
    for _ in range(100):
        files.order(Append("log", b"x"))
    files.order(Flush("log", 1))
    files.order(Replace("other", b"new", 2))
    files.order(Append("other", b"er"))
    files.order(Replace("other", b"newest", 3))
    assert files.close(10)
    assert (tmp_path / "log").stat().st_size == 100
    assert (tmp_path / "other").read_bytes() == b"newest"
    assert reports.tokens == [1, 2, 3]


def test_a_read_sees_everything_appended_before_it(files: Files, reports: Reports) -> None:
    files.order(Append("log", b"hello "))
    files.order(Append("log", b"world"))
    assert reports.read(Read("log", 6, 100, 1)) == (b"world", None)
    assert reports.read(Read("log", 0, 5, 2)) == (b"hello", None)
    files.order(Replace("log", b"new", 3))
    assert reports.read(Read("log", 0, 100, 4)) == (b"new", None), "a read waits for the replace before it"


def test_a_read_that_fails_is_told_to_whoever_asked_and_nobody_else(files: Files, reports: Reports) -> None:
    assert reports.read(Read("missing", 0, 10, 1)) == (None, "No such file or directory")
    files.order(Append("log", b"x"))
    files.order(Flush("log", 2))
    reports.wait(2)
    assert not reports.failures


def test_journal_files_get_their_space_in_advance(files: Files, reports: Reports, tmp_path: Path) -> None:
    files.order(Append("journal/1", b"one"))
    files.order(Append("journal/1", b"two"))
    files.order(Flush("journal/1", 1))
    reports.wait(1)
    content = (tmp_path / "journal/1").read_bytes()
    assert len(content) == limits.journal_file_bytes
    assert content.rstrip(b"\0") == b"onetwo"
    files.order(Append("other/1", b"x"))
    files.order(Flush("other/1", 2))
    reports.wait(1, 2)
    assert (tmp_path / "other/1").stat().st_size == 1


def test_more_files_than_may_be_open_keep_their_order_and_end(tmp_path: Path, reports: Reports) -> None:
    gc.collect()
    before = open_descriptors()
    files = started(tmp_path, reports, open_max=3)
    names = ["journal/1", "journal/2", *(f"segments/{number}" for number in range(8))]
    for turn in range(5):
        for name in names:
            files.order(Append(name, b"%d" % turn))
    for token, name in enumerate(names, 1):
        files.order(Flush(name, token))
    reports.wait(*range(1, len(names) + 1))
    assert open_descriptors() - before <= 3 + 2, "two more wake the threads"
    assert files.close(10)
    for name in names:
        assert (tmp_path / name).read_bytes().rstrip(b"\0") == b"01234", name
    del files
    reports.files = None
    gc.collect()
    assert open_descriptors() == before, "no descriptor is left"


@pytest.mark.parametrize("open_max", [0, 2, 5])
def test_a_burst_over_many_files_needs_few_descriptors(
    tmp_path: Path, reports: Reports, open_max: int
) -> None:
    files = started(tmp_path, reports, open_max=open_max)
    before = open_descriptors()
    most = 0
    for token in range(1, 201):
        files.order(Append(f"segments/{token}", b"x"))
        files.order(Flush(f"segments/{token}", token))
        most = max(most, open_descriptors() - before)
    reports.wait(*range(1, 201))
    files.order(Remove("segments/7"))
    assert reports.read(Read("segments/200", 0, 10, 1000)) == (b"x", None)
    assert most <= 2 * max(open_max, 2) + 2
    assert files.close(10)
    assert len(files.list("segments/")) == 199


def test_a_full_disk_ends_the_files_and_says_which(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk; the limit is the child's own."""
    child = f"""
import resource
from pathlib import Path
from mirrormq.node.effects import Append, Flush, Read
from tests.unit.runtime.test_files import Reports, started
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
reports = Reports()
files = started(Path({str(tmp_path)!r}), reports)
files.order(Append("small", b"x"))
files.order(Flush("small", 1))
reports.wait(1)
files.order(Append("large", b"x" * 5000))
files.order(Flush("large", 2))
reports.until(lambda: bool(reports.failures))
files.order(Append("small", b"y"))
files.order(Flush("small", 3))
assert files.close(10)
assert reports.tokens == [1], reports.tokens
assert reports.failures[0].endswith("large failed: File too large"), reports.failures
assert len(reports.failures) == 1
assert (files.folder / "small").read_bytes() == b"x"
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", child], check=True, timeout=60, env=environment)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


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
    with pytest.raises(StartError, match="does not hold the number of a format"):
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
    folder.announce(b'{"name":"n@h"}')
    assert (tmp_path / "node.json").read_bytes() == b'{"name":"n@h"}'
    folder.close()
    assert not (tmp_path / "node.json").exists()


def test_a_full_disk_is_met_once_with_the_reserve(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, 10_000, 0)
    assert reserve.make(1 << 40) is None
    assert reserve.missing() == 0
    outcomes: list[object] = [OSError(errno.ENOSPC, "full"), "done", OSError(errno.EIO, "broken")]

    def attempt() -> object:
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    assert reserve.retry(attempt) == "done"
    assert reserve.missing() == 10_000
    with pytest.raises(OSError, match="broken"):
        reserve.retry(attempt)
    outcomes += [OSError(errno.EDQUOT, "full"), OSError(errno.ENOSPC, "still full")]
    with pytest.raises(OSError, match="still full"):
        reserve.retry(attempt)
    assert reserve.given == 2
    reserve.close()


def test_who_waits_for_space_gets_it_when_there_is_some_and_gives_up_at_the_end(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, 10_000, 0)
    reserve.make(1 << 40)
    full = [OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "full"), OSError(errno.ENOSPC, "full")]
    outcomes: list[object] = [*full, "done"]

    def attempt() -> object:
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    assert reserve.wait(attempt) == "done"
    assert reserve.given == 1, "what is gone is not given up again"
    outcomes += [OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")]
    with pytest.raises(OSError, match="broken"):
        reserve.wait(attempt)
    reserve.stop_waiting()
    outcomes += full[:2]
    with pytest.raises(OSError, match="full"):
        reserve.wait(attempt)
    reserve.close()


def test_the_reserve_is_made_only_where_enough_is_left_beside_it(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, 10_000, 1 << 30)
    reserve.make(1 << 30)
    assert reserve.missing() == 10_000
    assert not reserve.has_room((1 << 30) + 9_999)
    reserve.make((1 << 30) + 10_000)
    assert reserve.missing() == 0
    reserve.close()
    smaller = Reserve(tmp_path, 4_096, 0)
    smaller.make(0)
    assert (tmp_path / "reserve").stat().st_size == 4_096
    smaller.close()
    Reserve(tmp_path, 0, 0).make(0)
    assert not (tmp_path / "reserve").exists()


def test_whoever_watches_the_disk_is_told_to_look_after_so_many_bytes(files: Files, reports: Reports) -> None:
    files.order(Append("log", bytes(limits.disk_look_bytes)))
    files.order(Flush("log", 1))
    reports.wait(1)
    reports.until(lambda: reports.looks > 0)
    assert reports.looks == 1


def test_a_failure_is_told_by_its_own_reason_not_by_what_it_stopped(tmp_path: Path, reports: Reports) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    files = started(tmp_path, reports)
    for number in range(1, 50):
        files.order(Append("fine", b"x"))
        files.order(Flush("fine", number))
    files.order(Append("full", b"x"))
    files.order(Flush("full", 50))
    assert files.close(10)
    assert [line.rpartition(": ")[2] for line in reports.failures] == ["No space left on device"]


@pytest.mark.parametrize("count", [3, 3 * limits.flush_files_max], ids=["few", "many"])
def test_segments_are_flushed_together_and_each_is_reported(
    files: Files, reports: Reports, tmp_path: Path, count: int
) -> None:
    for number in range(count):
        files.order(Append(f"segments/{number}/1", b"%d" % number))
    for number in range(count):
        files.order(Flush(f"segments/{number}/1", number + 1))
    reports.until(lambda: len(reports.tokens) == count)
    assert sorted(reports.tokens) == list(range(1, count + 1))
    assert [(tmp_path / f"segments/{number}/1").read_bytes() for number in range(count)] == [
        b"%d" % number for number in range(count)
    ]


def test_a_segment_that_cannot_be_flushed_ends_the_node(
    files: Files, reports: Reports, tmp_path: Path
) -> None:
    files.order(Append("segments/1/1", b"x"))
    reports.read(Read("segments/1/1", 0, 1, 7))
    (tmp_path / "segments/1/1").unlink()
    files.order(Flush("segments/1/1", 1))
    reports.until(lambda: bool(reports.failures))
    assert "segments/1/1 failed: No such file" in reports.failures[0]
    assert not reports.tokens
