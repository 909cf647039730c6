"""Term, vote, log and snapshot on disk: what was flushed is found again, what is damaged is refused."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.cluster.raft import layout
from mirrormq.cluster.raft.entries import Entry
from mirrormq.cluster.raft.layout import RaftDamaged, RaftTooNew
from mirrormq.cluster.raft.recovery import SNAPSHOT, VOTE, Recovery, read_all
from mirrormq.cluster.raft.storage import Storage
from mirrormq.meta.codec import encode_command
from mirrormq.meta.commands import DeleteVHost
from mirrormq.sim.disk import MemoryDisk
from tests.support import version1

LOG = "meta/log-0000000000000001"


def snapshot(index: int, term: int) -> bytes:
    """A whole snapshot."""
    return b"".join(layout.snapshot_chunks(index, term, b"", [b"state"]))


class Kit:
    """A storage with the log it should have."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.storage = Storage(self.disk, count(1).__next__)
        self.found = self.storage.recover(0, self.disk)
        self.log = list(self.found.entries)
        self.base = self.found.mark

    def write(self, first: int, term: int, amount: int = 1) -> None:
        del self.log[first - self.base.index - 1 :]
        before = self.log[-1].term if self.log else self.base.term
        new = [Entry(term, first + at, b"x%d" % (first + at)) for at in range(amount)]
        self.storage.append(new, before)
        self.log += new
        self.storage.end_pass(0)

    def settle(self) -> None:
        self.storage.end_pass(0)
        while (token := self.disk.finish_next()) is not None:
            self.storage.done(0, token)
            self.storage.end_pass(0)

    def snapshot(self, index: int) -> None:
        """Roll, and cover the log up to `index`."""
        self.storage.roll()
        self.settle()
        term = self.log[index - self.base.index - 1].term
        data = snapshot(index, term)
        self.storage.write_snapshot(data, index, term)
        self.settle()
        self.storage.drop_covered()
        self.log = self.log[index - self.base.index :]
        self.base = self.storage.mark

    def install(self, index: int, term: int) -> None:
        """Take a leader's snapshot that contradicts the log."""
        data = snapshot(index, term)
        wanted = self.storage.write_snapshot(data, index, term)
        while (token := self.disk.finish_next()) != wanted:
            assert token is not None
            self.storage.done(0, token)
        self.storage.restart_log(0, index)
        self.log, self.base = [], self.storage.mark


def read_after_power_failure(kit: Kit) -> Recovery:
    return read_all(kit.disk.crash(lambda _: 0))


def test_entries_term_and_vote_are_found_after_a_power_failure() -> None:
    kit = Kit()
    kit.storage.save_vote(0, 3, "n2")
    kit.write(1, 3, 4)
    assert not kit.storage.is_vote_durable
    kit.settle()
    assert kit.storage.is_vote_durable
    assert kit.storage.durable_index == 4
    found = read_after_power_failure(kit)
    assert (found.term, found.vote, found.entries) == (3, "n2", kit.log)


def test_entries_of_one_pass_share_an_append_and_a_flush() -> None:
    kit = Kit()
    kit.write(1, 1, 50)
    assert [kind for kind, _ in kit.disk.log] == ["append", "flush"]
    kit.write(51, 1, 50)
    kit.write(101, 1, 50)
    assert [kind for kind, _ in kit.disk.log].count("flush") == 1


def test_a_conflict_gives_up_the_end_of_the_log_and_what_was_durable_of_it() -> None:
    kit = Kit()
    kit.write(1, 1, 5)
    kit.settle()
    kit.write(3, 2, 1)
    assert kit.storage.durable_index == 2
    assert [entry.index for entry in read_after_power_failure(kit).entries] == [1, 2, 3, 4, 5]
    kit.settle()
    assert kit.storage.durable_index == 3
    assert read_after_power_failure(kit).entries == kit.log


def test_a_flush_under_way_does_not_count_for_entries_written_over_those_it_covers() -> None:
    kit = Kit()
    kit.write(1, 1, 5)
    kit.write(3, 2, 2)
    token = kit.disk.finish_next()
    assert token is not None
    kit.storage.done(0, token)
    assert kit.storage.durable_index == 2


def test_a_vote_of_an_older_term_than_the_log_is_not_a_vote_of_this_term() -> None:
    kit = Kit()
    kit.storage.save_vote(0, 3, "n2")
    kit.write(1, 5)
    kit.settle()
    found = read_after_power_failure(kit)
    assert (found.term, found.vote) == (5, "")


def test_a_torn_end_is_cut_and_the_log_goes_on_behind_it() -> None:
    kit = Kit()
    kit.write(1, 1, 3)
    kit.settle()
    kit.write(4, 1, 3)
    after = Kit(MemoryDisk({LOG: kit.disk.read(LOG)[:-5]}))
    assert after.found.torn_bytes
    assert [entry.index for entry in after.log] == [1, 2, 3, 4, 5]
    after.settle()
    after.write(6, 2, 2)
    after.settle()
    assert read_after_power_failure(after).entries == after.log


def test_a_broken_entry_that_had_been_flushed_is_damage() -> None:
    kit = Kit()
    kit.write(1, 1, 3)
    kit.settle()
    kit.write(4, 1, 1)
    kit.settle()
    kit.disk.damage(LOG, 70)
    with pytest.raises(RaftDamaged, match="does not check"):
        read_all(kit.disk)


@pytest.mark.parametrize("file", [VOTE, SNAPSHOT])
def test_a_changed_byte_in_a_file_that_is_replaced_as_a_whole_is_damage(file: str) -> None:
    kit = Kit()
    kit.storage.save_vote(0, 3, "n2")
    kit.write(1, 1, 3)
    kit.snapshot(3)
    for at in range(len(kit.disk.read(file))):
        disk = kit.disk.copy()
        disk.damage(file, at, 1)
        with pytest.raises((RaftDamaged, RaftTooNew)):
            read_all(disk)


def test_files_of_a_later_format_are_refused_by_name() -> None:
    kit = Kit()
    kit.write(1, 1, 1)
    kit.settle()
    kit.disk.damage(LOG, 11, 2 ^ 9)
    with pytest.raises(RaftTooNew, match="format is 9"):
        read_all(kit.disk)


def test_a_missing_log_file_is_noticed() -> None:
    kit = Kit()
    for first in (1, 4, 7):
        kit.write(first, 1, 3)
        kit.storage.roll()
        kit.settle()
    middle = kit.disk.list("meta/log-")[1]
    kit.disk.remove(middle)
    with pytest.raises(RaftDamaged, match="missing"):
        read_all(kit.disk)


def test_log_files_go_only_when_all_of_their_entries_are_in_the_snapshot() -> None:
    kit = Kit()
    kit.write(1, 1, 5)
    kit.snapshot(3)
    assert kit.disk.list("meta/log-") == [LOG]
    kit.write(6, 1, 2)
    kit.snapshot(6)
    assert LOG not in kit.disk.list("meta/log-")
    assert read_after_power_failure(kit).entries == kit.log


def test_a_leaders_snapshot_voids_a_log_that_contradicts_it_even_if_its_file_comes_back() -> None:
    kit = Kit()
    kit.write(1, 1, 6)
    kit.settle()
    old = kit.disk.read(LOG)
    data = snapshot(4, 3)
    kit.storage.write_snapshot(data, 4, 3)
    kit.settle()
    assert read_after_power_failure(kit).entries == []
    kit.storage.restart_log(0, 4)
    kit.storage.append([Entry(3, 5, b"new")], 3)
    kit.settle()
    files = {name: kit.disk.read(name) for name in kit.disk.list("")}
    for disk in (MemoryDisk(files), MemoryDisk({**files, LOG: old}), MemoryDisk({**files, LOG: old[:-9]})):
        assert read_all(disk).entries == [Entry(3, 5, b"new")]


def test_a_file_begun_for_a_conflict_and_lost_does_not_spoil_the_log_that_is_back() -> None:
    kit = Kit()
    kit.write(1, 1, 5)
    kit.storage.roll()
    kit.settle()
    kit.write(3, 2, 1)
    name = kit.disk.list("meta/log-")[-1]
    files = {one: kit.disk.read(one) for one in kit.disk.list("")}
    after = Kit(MemoryDisk({**files, name: files[name][:32]}))
    assert [entry.index for entry in after.log] == [1, 2, 3, 4, 5]
    after.settle()
    after.write(6, 3, 1)
    after.settle()
    assert read_after_power_failure(after).entries == after.log


def test_some_files_of_a_log_that_was_given_up_may_come_back_and_say_nothing() -> None:
    kit = Kit()
    for first in (1, 4, 7, 10):
        kit.write(first, 1, 3)
        kit.storage.roll()
        kit.settle()
    old = {name: kit.disk.read(name) for name in kit.disk.list("meta/log-")}
    kit.storage.write_snapshot(snapshot(2, 3), 2, 3)
    kit.settle()
    kit.storage.restart_log(0, 2)
    assert kit.disk.list("meta/log-") == sorted(old), "nothing goes before it is void"
    kit.settle()
    assert not kit.disk.list("meta/log-")
    files = {name: kit.disk.read(name) for name in kit.disk.list("")}
    back = sorted(old)
    for some in (back[:1], back[2:], [back[0], back[3]]):
        found = Kit(MemoryDisk({**files, **{name: old[name] for name in some}}))
        assert found.log == []
        found.write(3, 4)
        found.settle()
        assert [entry.index for entry in read_after_power_failure(found).entries] == [3]


def test_what_a_killed_process_left_is_not_durable_before_it_is_flushed_again() -> None:
    kit = Kit()
    kit.storage.save_vote(0, 2, "n1")
    kit.write(1, 2, 3)
    after = Kit(kit.disk.restart())
    assert after.log == kit.log
    assert after.storage.durable_index == 0
    assert not after.storage.is_vote_durable
    after.settle()
    assert after.storage.durable_index == 3
    assert read_after_power_failure(after).entries == kit.log


@given(st.integers(0, 1 << 32))
def test_whatever_is_written_and_whenever_the_power_fails_flushed_entries_are_found(seed: int) -> None:
    rng = random.Random(seed)
    kit = Kit()
    term = 1
    for _ in range(rng.randrange(5, 25)):
        last = kit.log[-1].index if kit.log else kit.base.index
        action = rng.random()
        if action < 0.5:
            term = rng.choice([term, term, term + 1])
            lowest = kit.base.index + 1
            first = last + 1 if rng.random() < 0.7 else rng.randint(lowest, last + 1)
            term = max(term, term + (first <= last))
            kit.write(first, term, rng.randrange(1, 4))
        elif action < 0.7:
            token = kit.disk.finish_next()
            if token is not None:
                kit.storage.done(0, token)
        elif action < 0.8 and kit.log:
            kit.snapshot(rng.choice(kit.log).index)
        elif action < 0.82:
            kit.storage.roll()
        elif action < 0.88:
            term += 1
            kit.install(rng.randint(kit.base.index + 1, last + 3), term)
        else:
            durable = [entry for entry in kit.log if entry.index <= kit.storage.durable_index]
            lose_pages = rng.random() < 0.3
            disk = kit.disk.crash(lambda most: rng.randint(0, most), lose_pages=lose_pages)
            kit = Kit(disk)
            known = {entry.index: entry for entry in kit.log}
            for entry in durable:
                # A flushed entry may only be gone because a later term's was written over it.
                found = known.get(entry.index)
                assert entry.index <= kit.base.index or (found is not None and found.term >= entry.term)


VERSION_1_LOG = bytes.fromhex(
    "4d4d514d4c4f47000000000100000000000000050000000000000001ba65dd60"
    "f54d516596f1883f0000001900000000000000010000000000000005000000000000000482a2646fac64656c65"
    "74652d76686f7374a46e616d65a27635"
)


def test_the_bytes_of_version_one_are_read_for_ever() -> None:
    """Files written by released versions look like this."""
    found = layout.read_log("meta/log-0000000000000005", VERSION_1_LOG)
    assert (found.format, found.first, found.previous_term, found.torn_bytes) == (1, 5, 1, 0)
    assert found.entries == [Entry(1, 5, encode_command(DeleteVHost("v5")))]
    assert version1.log_file(5, [DeleteVHost("v5")]) == VERSION_1_LOG
