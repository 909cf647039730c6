"""The fake disk that other tests rely on is as unkind as the port allows, and no unkinder."""

from mirrormq.log.disk import Disk, DiskOutbox
from mirrormq.sim.disk import MemoryDisk


def lose_all(_: int) -> int:
    return 0


def keep_all(most: int) -> int:
    return most


def test_memory_disk_fits_both_sides_of_the_port() -> None:
    disk = MemoryDisk()
    reader: Disk = disk
    outbox: DiskOutbox = disk
    outbox.append("a/b", b"x")
    assert reader.list("a/") == ["a/b"]


def test_an_append_without_flush_may_be_lost_as_a_whole() -> None:
    disk = MemoryDisk()
    disk.append("f", b"one")
    assert disk.crash(lose_all).list("") == []


def test_an_append_without_flush_may_be_torn_at_any_byte() -> None:
    disk = MemoryDisk({"f": b"old"})
    disk.append("f", b"new")
    found = set()
    for torn in range(3):
        picks = iter([0, torn])
        found.add(disk.crash(lambda _, picks=picks: next(picks)).read("f"))
    assert found == {b"old", b"oldn", b"oldne"}


def test_a_flushed_append_survives_a_crash() -> None:
    disk = MemoryDisk()
    disk.append("f", b"one")
    disk.flush("f", 7)
    disk.append("f", b"two")
    assert disk.finish_next() == 7
    assert disk.crash(lose_all).read("f") == b"one"


def test_a_flush_is_not_durable_before_it_is_reported() -> None:
    disk = MemoryDisk()
    disk.append("f", b"one")
    disk.flush("f", 7)
    assert disk.crash(lose_all).list("") == []


def test_a_replace_leaves_the_old_or_the_new_content() -> None:
    disk = MemoryDisk({"f": b"old"})
    disk.replace("f", b"new", 1)
    assert disk.crash(lose_all).read("f") == b"old"
    assert disk.crash(keep_all).read("f") == b"new"


def test_an_append_after_a_replace_goes_behind_the_new_content() -> None:
    disk = MemoryDisk({"f": b"old"})
    disk.replace("f", b"new", 1)
    disk.append("f", b"er")
    assert disk.read("f") == b"newer"
    assert disk.finish_next() == 1
    assert disk.crash(lose_all).read("f") == b"new"


def test_a_removed_file_may_come_back_after_a_crash() -> None:
    disk = MemoryDisk({"f": b"old"})
    disk.remove("f")
    assert disk.list("") == []
    assert disk.crash(lose_all).read("f") == b"old"
    assert disk.crash(keep_all).list("") == []


def test_a_killed_process_loses_nothing_it_has_written_but_the_machine_still_may() -> None:
    disk = MemoryDisk()
    disk.append("f", b"one")
    again = disk.restart()
    assert again.read("f") == b"one"
    assert again.crash(lose_all).list("") == []
    again.flush("f", 1)
    again.finish_next()
    assert again.crash(lose_all).read("f") == b"one"
