"""The durable metadata: who is told what and when, how many appends and flushes it takes, and snapshots."""

from typing import Any

import pytest

from mirrormq.meta import commands as c
from mirrormq.meta.layout import MetaDamaged
from mirrormq.meta.records import Queue, VHost
from mirrormq.meta.state import MetaState, Outcome
from mirrormq.meta.store import MetaStore
from mirrormq.sim.disk import MemoryDisk
from tests.support import metakit

FIRST_LOG = "meta/log-0000000000000001"


class Kit:
    """A store on a memory disk, with a record of who was told what."""

    def __init__(self, disk: MemoryDisk | None = None, **options: Any) -> None:
        self.disk = disk or MemoryDisk()
        self.state = MetaState()
        self.store = MetaStore(self.state, self.disk, **options)
        self.recovered = self.store.recover(self.disk)
        self.told: list[str] = []

    def propose(self, command: c.Command, label: str, wait: bool = True) -> Outcome:
        return self.store.propose(command, lambda _: self.told.append(label), wait)

    def put(self, name: str, wait: bool = True) -> None:
        assert self.propose(c.PutVHost(VHost(name)), name, wait).ok

    def finish(self) -> None:
        """Let the disk do the oldest thing it owes."""
        token = self.disk.finish_next()
        assert token is not None
        assert self.store.flushed(token)

    def settle(self) -> None:
        """Run passes until nothing is left to do."""
        for _ in range(1_000):
            self.store.commit()
            if not self.disk.owed:
                return
            self.finish()
        raise AssertionError("never settles")


def test_a_fresh_folder_is_recognised() -> None:
    kit = Kit()
    assert kit.recovered.fresh
    assert kit.disk.log == []


def test_a_command_is_applied_at_once_and_reported_when_it_is_flushed() -> None:
    kit = Kit()
    kit.put("a")
    assert "a" in kit.state.vhosts
    kit.store.commit()
    assert kit.told == []
    kit.finish()
    assert kit.told == ["a"]


def test_a_command_that_need_not_wait_is_reported_at_once_and_still_logged() -> None:
    kit = Kit()
    kit.put("a", wait=False)
    assert kit.told == ["a"]
    kit.settle()
    assert "a" in Kit(kit.disk.crash(lambda _: 0)).state.vhosts


def test_a_refused_command_is_reported_at_once_and_not_logged() -> None:
    kit = Kit()
    assert kit.propose(c.DeleteVHost("no"), "no").error == "no_vhost"
    assert kit.told == ["no"]
    kit.store.commit()
    assert kit.disk.log == []


def test_commands_of_one_pass_share_one_append_and_one_flush() -> None:
    kit = Kit()
    for name in "abc":
        kit.put(name)
    kit.store.commit()
    assert kit.disk.log == [("append", FIRST_LOG), ("flush", FIRST_LOG)]
    kit.finish()
    assert kit.told == ["a", "b", "c"]


def test_the_next_flush_starts_when_the_previous_one_is_reported() -> None:
    kit = Kit()
    for name in "abc":
        kit.put(name)
        kit.store.commit()
    assert kit.disk.owed == 1
    kit.finish()
    assert kit.told == ["a"]
    assert kit.disk.owed == 1
    kit.finish()
    assert kit.told == ["a", "b", "c"]
    assert kit.disk.owed == 0


def test_a_command_that_changes_nothing_waits_for_what_it_relies_on() -> None:
    kit = Kit()
    kit.put("a")
    kit.propose(c.PutVHost(VHost("a")), "again")
    kit.store.barrier(lambda _: kit.told.append("barrier"))
    kit.store.commit()
    assert kit.told == []
    kit.finish()
    assert kit.told == ["a", "again", "barrier"]
    kit.store.barrier(lambda _: kit.told.append("at once"))
    assert kit.told[-1] == "at once"


def test_a_foreign_token_is_not_taken() -> None:
    kit = Kit()
    kit.put("a")
    kit.store.commit()
    assert not kit.store.flushed(99)
    assert kit.told == []


def test_a_command_proposed_by_a_watcher_is_logged_after_the_one_it_reacts_to() -> None:
    kit = Kit()
    kit.put("/")

    def on_changes(changes: list[Any]) -> None:
        if any(change.record == VHost("a") for change in changes):
            kit.put("b")

    kit.state.watch(on_changes)
    kit.put("a")
    kit.settle()
    again = Kit(kit.disk.restart())
    assert list(again.state.vhosts) == ["/", "a", "b"]


def test_a_command_proposed_by_a_report_goes_into_the_next_pass() -> None:
    kit = Kit()
    kit.store.propose(c.PutVHost(VHost("a")), lambda _: kit.put("b"))
    kit.settle()
    assert kit.told == ["b"]


def test_what_cannot_be_stored_is_not_applied() -> None:
    kit = Kit()
    with pytest.raises(TypeError):
        kit.propose(c.SetGlobalParameter("n", object()), "n")
    assert not kit.state.global_parameters


def test_a_restart_gives_the_same_state_and_goes_on_in_the_same_file() -> None:
    kit = Kit()
    kit.put("a")
    kit.settle()
    again = Kit(kit.disk.restart())
    assert not again.recovered.fresh
    assert again.recovered.entries == 1
    assert metakit.contents(again.state) == metakit.contents(kit.state)
    again.put("b")
    again.settle()
    assert again.disk.list("meta/") == [FIRST_LOG]
    assert list(Kit(again.disk.restart()).state.vhosts) == ["a", "b"]


def test_recovered_commands_are_called_durable_only_after_a_flush_of_our_own() -> None:
    """A killed process leaves commands in the page cache; the machine may still lose them."""
    kit = Kit()
    kit.put("a")
    kit.store.commit()
    again = Kit(kit.disk.restart())
    again.store.barrier(lambda _: again.told.append("durable"))
    assert again.told == []
    again.finish()
    assert again.told == ["durable"]


def test_a_torn_end_is_cut_before_anything_is_appended() -> None:
    kit = Kit()
    kit.put("a")
    kit.settle()
    kit.put("b")
    kit.store.commit()
    picks = iter([0, 20])
    again = Kit(kit.disk.crash(lambda _: next(picks)))
    assert again.recovered.torn_bytes == 20
    assert list(again.state.vhosts) == ["a"]
    again.put("c")
    again.settle()
    assert list(Kit(again.disk.crash(lambda _: 0)).state.vhosts) == ["a", "c"]


@pytest.mark.parametrize("left", [0, 1, 31, 32, 40])
def test_a_first_write_torn_anywhere_leaves_a_fresh_folder(left: int) -> None:
    kit = Kit()
    kit.put("a")
    kit.store.commit()
    data = kit.disk.read(FIRST_LOG)[:left]
    again = Kit(MemoryDisk({FIRST_LOG: data}))
    assert again.recovered.fresh
    again.put("b")
    again.settle()
    assert list(Kit(again.disk.crash(lambda _: 0)).state.vhosts) == ["b"]


def grown(count: int = 12, **options: Any) -> Kit:
    """A store whose log is over its limit, at the end of a pass."""
    kit = Kit(log_bytes_max=400, slice_records=3, **options)
    for at in range(count):
        kit.put(f"v{at}")
        kit.store.commit()
        while kit.disk.owed:
            kit.finish()
    return kit


def test_a_long_log_is_replaced_by_a_snapshot_and_removed() -> None:
    kit = grown()
    kit.settle()
    for _ in range(60):
        kit.settle()
    kinds = [kind for kind, _ in kit.disk.log]
    assert "replace" in kinds
    assert kinds.index("remove") > kinds.index("replace")
    assert FIRST_LOG not in kit.disk.list("meta/")
    assert metakit.contents(Kit(kit.disk.crash(lambda _: 0)).state) == metakit.contents(kit.state)


def test_no_log_file_is_removed_before_the_snapshot_is_durable() -> None:
    kit = grown(4)
    for _ in range(200):
        kit.store.commit()
    assert ("replace", "meta/snapshot") in kit.disk.log
    assert ("remove", FIRST_LOG) not in kit.disk.log
    kit.finish()
    assert ("remove", FIRST_LOG) in kit.disk.log


def test_a_snapshot_is_encoded_in_slices_while_commands_go_on() -> None:
    kit = grown(4)
    passes = 0
    while ("replace", "meta/snapshot") not in kit.disk.log:
        passes += 1
        kit.put(f"later{passes}")
        kit.store.commit()
        while kit.disk.owed and ("replace", "meta/snapshot") not in kit.disk.log:
            kit.finish()
    assert passes >= 32 // 3
    assert metakit.contents(Kit(kit.disk.restart()).state) == metakit.contents(kit.state)
    kit.settle()
    assert metakit.contents(Kit(kit.disk.crash(lambda _: 0)).state) == metakit.contents(kit.state)


def test_a_new_log_file_begins_only_when_the_old_one_is_flushed_to_its_end() -> None:
    kit = Kit(log_bytes_max=100)
    kit.put("a")
    kit.store.commit()
    kit.put("b")
    kit.store.commit()
    assert [file for _, file in kit.disk.log] == [FIRST_LOG, FIRST_LOG]
    kit.finish()
    kit.store.commit()
    assert kit.told == ["a"]
    kit.finish()
    files = [file for kind, file in kit.disk.log if kind == "append"]
    assert files == [FIRST_LOG, "meta/log-0000000000000002"]
    assert kit.told == ["a", "b"]


def test_a_crash_between_snapshot_and_removal_leaves_redundant_files_that_go_at_start() -> None:
    kit = grown(4)
    while ("replace", "meta/snapshot") not in kit.disk.log:
        kit.store.commit()
    kit.put("after")
    kit.settle()
    again = Kit(kit.disk.crash(lambda _: 0))
    assert metakit.contents(again.state) == metakit.contents(kit.state)
    again.settle()
    assert FIRST_LOG not in again.disk.list("meta/")


def test_no_file_goes_at_start_before_the_snapshot_that_makes_it_redundant_is_flushed() -> None:
    """A process killed right after the rename leaves a snapshot that the machine may still lose."""
    kit = grown(4)
    while ("replace", "meta/snapshot") not in kit.disk.log:
        kit.store.commit()
    again = Kit(kit.disk.restart())
    assert again.recovered.snapshot_index == 4
    assert [kind for kind, _ in again.disk.log] == ["flush", "flush"]
    assert metakit.contents(Kit(again.disk.crash(lambda _: 0)).state) == metakit.contents(kit.state)


def test_a_snapshot_ahead_of_the_log_starts_a_new_log_file() -> None:
    """The snapshot covers commands whose own log entries were not flushed yet when the machine failed."""
    kit = Kit(log_bytes_max=100)
    kit.put("a")
    kit.settle()
    kit.put("b")
    kit.store.commit()
    files = {
        "meta/snapshot": _snapshot_of(kit),
        "meta/log-0000000000000002": b"",
    }
    again = Kit(MemoryDisk(files))
    assert list(again.state.vhosts) == ["a", "b"]
    again.put("c")
    again.settle()
    assert again.disk.list("meta/") == ["meta/log-0000000000000003", "meta/snapshot"]
    assert list(Kit(again.disk.crash(lambda _: 0)).state.vhosts) == ["a", "b", "c"]


def _snapshot_of(kit: Kit) -> bytes:
    from mirrormq.meta.codec import encode_records
    from mirrormq.meta.layout import pack_chunk, snapshot_header

    records = list(kit.state.records())
    head = snapshot_header(kit.store.last_index, 1, kit.state.last_id, len(records))
    return head + pack_chunk(encode_records(records))


def test_a_missing_log_file_is_refused_by_name() -> None:
    kit = Kit(log_bytes_max=10**9)
    kit.put("a")
    kit.settle()
    data = kit.disk.read(FIRST_LOG)
    with pytest.raises(MetaDamaged, match="entries 1 to 8 before it are missing"):
        Kit(MemoryDisk({"meta/log-0000000000000009": data}))


def test_damage_to_a_durable_entry_stops_the_start() -> None:
    kit = Kit()
    for name in "abc":
        kit.put(name)
        kit.settle()
    kit.disk.damage(FIRST_LOG, 60)
    with pytest.raises(MetaDamaged, match="checksum of entry 1"):
        Kit(kit.disk)


def test_a_log_that_ends_early_before_a_later_file_is_refused() -> None:
    kit = Kit(log_bytes_max=100)
    kit.put("a")
    kit.settle()
    kit.put("b")
    kit.store.commit()
    kit.settle()
    files = {name: kit.disk.read(name) for name in kit.disk.list("meta/log")}
    newest = max(files)
    files = {FIRST_LOG: b"", newest: files[newest]}
    with pytest.raises(MetaDamaged):
        Kit(MemoryDisk(files))


def test_a_file_with_a_strange_name_is_refused() -> None:
    with pytest.raises(MetaDamaged, match="its name does not say"):
        Kit(MemoryDisk({"meta/log-old": b""}))


def test_other_files_in_the_folder_are_left_alone() -> None:
    kit = Kit(MemoryDisk({"meta/vote": b"x"}))
    assert kit.recovered.fresh
    assert kit.disk.log == []


def test_exclusive_queues_of_a_former_run_are_recovered_and_go_when_the_node_says_it_restarted() -> None:
    kit = Kit()
    kit.put("/")
    kit.propose(c.DeclareQueue(Queue("/", "q", exclusive=True, owner=1)), "q", wait=False)
    kit.settle()
    again = Kit(kit.disk.restart())
    assert ("/", "q") in again.state.queues
    again.propose(c.NodeRestarted("n@h"), "restarted", wait=False)
    assert ("/", "q") not in again.state.queues
