"""The native thread under the files: order, group commit, failures, and nothing left behind."""

from __future__ import annotations

import errno
import gc
import os
import select
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrormq.runtime.flusher import Flusher

Done = tuple[int, int, bytes | None]


@pytest.fixture
def flusher() -> Iterator[Flusher]:
    made = Flusher()
    yield made
    assert made.close(10)


def opened(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | flags, 0o600)


def wait(flusher: Flusher, count: int) -> list[Done]:
    done: list[Done] = []
    while len(done) < count:
        assert select.select([flusher], [], [], 10)[0], done
        done += flusher.take()
    return done


def test_orders_are_carried_out_in_the_order_given(flusher: Flusher, tmp_path: Path) -> None:
    fd = opened(tmp_path / "a")
    parts = [b"%d," % number * (number % 50 + 1) for number in range(2000)]
    for part in parts:
        flusher.append(fd, part)
    flusher.read(fd, 0, 1 << 20, 7)
    flusher.flush(fd, 8)
    flusher.close_file(fd)
    assert wait(flusher, 2) == [(7, 0, b"".join(parts)), (8, 0, None)]
    assert (tmp_path / "a").read_bytes() == b"".join(parts)


def test_flushes_that_wait_together_cost_one_flush_per_file(flusher: Flusher, tmp_path: Path) -> None:
    blocker, feeder = os.pipe()
    fds = [opened(tmp_path / str(number)) for number in range(3)]
    fill(feeder)
    flusher.append(feeder, b"x")  # the thread waits here until all has been ordered: two batches at most
    for token in range(1, 31):
        flusher.append(fds[token % 3], b"%d " % token)
        flusher.flush(fds[token % 3], token)
    drain(blocker)
    assert [token for token, _, _ in wait(flusher, 30)] == list(range(1, 31))
    assert 3 <= flusher.counters()[0] <= 2 * 3
    for fd in (*fds, blocker, feeder):
        os.close(fd)


def test_a_failing_write_refuses_everything_behind_it_on_any_file(flusher: Flusher, tmp_path: Path) -> None:
    full, fine = os.open("/dev/full", os.O_WRONLY), opened(tmp_path / "fine")
    flusher.append(fine, b"before")
    flusher.flush(fine, 1)
    assert wait(flusher, 1) == [(1, 0, None)]
    flusher.append(full, b"x")
    assert wait(flusher, 1) == [(0, errno.ENOSPC, None)]
    assert flusher.counters() == (1, full, 0)
    flusher.append(fine, b"behind")
    flusher.flush(fine, 2)
    flusher.read(fine, 0, 10, 3)
    flusher.mark(4)
    refused = wait(flusher, 4)
    assert {error for _, error, _ in refused} == {errno.ECANCELED}
    assert [token for token, _, _ in refused if token] == [2, 3, 4]
    assert (tmp_path / "fine").read_bytes() == b"before"
    assert flusher.counters()[0] == 1, "a flush is not tried after a failure"
    os.close(full)
    os.close(fine)


def test_a_failing_flush_is_final_and_reported_by_its_token(flusher: Flusher, tmp_path: Path) -> None:
    pipe = os.pipe()
    fine = opened(tmp_path / "fine")
    flusher.flush(pipe[1], 1)  # a pipe cannot be flushed
    flusher.flush(pipe[1], 2)
    flusher.flush(fine, 3)
    done = wait(flusher, 3)
    assert done[0] == (1, errno.EINVAL, None)
    assert [error for _, error, _ in done[1:]] == [errno.ECANCELED] * 2
    assert flusher.counters() == (1, pipe[1], 0), "neither again nor on another file"
    for fd in (*pipe, fine):
        os.close(fd)


def test_a_failing_read_is_the_business_of_that_read_only(flusher: Flusher, tmp_path: Path) -> None:
    fd, write_only = opened(tmp_path / "a"), os.open(tmp_path / "b", os.O_WRONLY | os.O_CREAT)
    flusher.append(fd, b"content")
    flusher.read(write_only, 0, 10, 1)
    flusher.read(fd, 3, 2, 2)
    flusher.read(fd, 5, 100, 3)
    flusher.read(fd, 100, 100, 4)
    flusher.flush(fd, 5)
    assert wait(flusher, 5) == [
        (1, errno.EBADF, None),
        (2, 0, b"te"),
        (3, 0, b"nt"),
        (4, 0, b""),
        (5, 0, None),
    ]
    os.close(fd)
    os.close(write_only)


def test_a_short_write_goes_on_where_it_ended(flusher: Flusher) -> None:
    reader, writer = os.pipe()
    parts = [os.urandom(10_000) for _ in range(100)]
    for part in parts:
        flusher.append(writer, part)
    flusher.close_file(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"".join(parts)


def test_closing_carries_out_what_was_ordered(tmp_path: Path) -> None:
    flusher = Flusher()
    fd = opened(tmp_path / "a")
    for token in range(1, 101):
        flusher.append(fd, b"x")
        flusher.flush(fd, token)
    flusher.close_file(fd)
    assert flusher.close(10)
    assert flusher.take() == [(token, 0, None) for token in range(1, 101)]
    assert (tmp_path / "a").stat().st_size == 100


def test_objects_are_kept_until_they_are_written_and_no_longer(flusher: Flusher, tmp_path: Path) -> None:
    fd = opened(tmp_path / "a")
    data = os.urandom(100)
    before = sys.getrefcount(data)
    flusher.append(fd, data)
    assert sys.getrefcount(data) == before + 1
    flusher.flush(fd, 1)
    wait(flusher, 1)
    assert sys.getrefcount(data) == before
    os.close(fd)


def test_nothing_is_left_of_a_flusher_that_was_closed(tmp_path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        flusher = Flusher()
        flusher.append(fd := opened(tmp_path / str(number)), b"x")
        flusher.close_file(fd)
        assert flusher.close(10)
    del flusher
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "flusher"]


def fill(pipe: int) -> None:
    """Write to a pipe until it takes no more."""
    os.set_blocking(pipe, False)
    try:
        while True:
            os.write(pipe, bytes(4096))
    except BlockingIOError:
        os.set_blocking(pipe, True)


def drain(pipe: int) -> None:
    os.set_blocking(pipe, False)
    try:
        while os.read(pipe, 65536):
            pass
    except BlockingIOError:
        pass


def test_a_write_on_a_full_disk_gives_up_the_reserve_once_and_waits_until_the_end(tmp_path: Path) -> None:
    reserve = opened(tmp_path / "reserve")
    flusher = Flusher(reserve)
    flusher.reserve(reserve, 10_000)
    flusher.mark(-1)
    assert wait(flusher, 1) == [(-1, 0, None)]
    assert os.fstat(reserve).st_size == 10_000
    full = os.open("/dev/full", os.O_WRONLY)
    flusher.append(full, b"x")
    flusher.flush(reserve, 1)
    while not flusher.counters()[2]:
        assert select.select([flusher], [], [], 10)[0]
    assert os.fstat(reserve).st_size == 0
    assert flusher.take() == [], "what waits has neither failed nor been done"
    assert flusher.close(10)
    assert wait(flusher, 3)[:2] == [(0, errno.ENOSPC, None), (1, errno.ECANCELED, None)]
    assert flusher.counters() == (0, full, 1)
    for fd in (reserve, full):
        os.close(fd)
