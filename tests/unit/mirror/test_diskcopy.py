"""The log of a copy on disk behind the interface of the replication protocol."""

import pytest

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log import cursors
from mirrormq.log.copylog import NotFollowing
from mirrormq.log.cursors import Cursor
from mirrormq.mirror.diskcopy import DiskCopy
from tests.support.copykit import QUEUE, CopyNode, Expected, Maker, collect, new_core, state_of


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    for name, value in {
        "journal_file_bytes": 4_000,
        "recycle_slice_bytes": 2_000,
        "recovery_slice_bytes": 2_000,
        "segment_bytes_min": 2_000,
        "segment_dead_bytes_max": 1_000,
        "place_bytes_min": 500,
        "index_mark_bytes": 1_000,
        "range_slice_bytes": 700,
        "copy_mark_bytes": 1_500,
        "recent_bytes_max": 2_000,
        "copy_read_bytes": 1_500,
    }.items():
        monkeypatch.setattr(limits, name, value)


def disk_copy(node: CopyNode) -> DiskCopy:
    node.copy.log.damage = node.damage[QUEUE]
    return DiskCopy(node.copy, node.read, node.recycler, lambda: node.now)


def filled(seed: int, count: int) -> tuple[CopyNode, DiskCopy, list[bytes]]:
    """A copy that has folded some batches, and those batches."""
    node, maker, batches = CopyNode(), Maker(seed), []
    log = disk_copy(node)
    for _ in range(count):
        batch = maker.batch(log.end + 1, 1, sorted(Expected(batches).live))
        log.adopt(memoryview(batch), node.now)
        batches.append(batch)
        if len(batches) % 10 == 0:
            log.fold(log.end)
            node.run()
    node.run()
    log.fold(log.end)
    return node, log, batches


def send(node: CopyNode, snapshot, to: DiskCopy, now, *, parts: int = 1 << 30, count: int = 4_096) -> None:
    """Carry parts of a full copy over."""
    while to.base and to.copied < snapshot.position and parts:
        parts -= 1
        answers: list = []
        snapshot.read(to.copied, (1_500, count), collect(answers))
        while not answers and node.answer_reads():
            pass
        [(batches, reach)] = answers
        assert sum(records.read_head(batch[16:], 0)[4] for batch in batches) <= count
        to.adopt_live(b"".join(batches), reach, now)


def begin(log: DiskCopy, to: DiskCopy, now, position: int = 0):
    snapshot = log.snapshot()
    to.load_base(snapshot.base, position, now)
    return snapshot


@pytest.mark.parametrize("seed", range(4))
def test_a_full_copy_counts_when_a_checkpoint_says_so_and_is_followed_by_what_came_later(seed):
    source, log, batches = filled(seed, 60)
    target = CopyNode()
    copy = disk_copy(target)
    told = []
    copy.on_flushed = lambda: told.append(copy.is_complete)
    snapshot = begin(log, copy, target.now)
    assert (copy.end, copy.base, copy.copied, copy.durable) == (log.end, log.end, 0, 0)
    assert [*copy.epochs()] == [*log.epochs()]
    send(source, snapshot, copy, target.now)
    assert not copy.is_complete
    target.run()
    assert told[-1]
    assert (copy.end, copy.durable, copy.base) == (log.end, log.end, 0)
    assert state_of(target.copy.committed) == Expected(batches).state()
    batch = Maker(99).publishes(copy.end + 1, 2, 3)
    copy.adopt(batch, target.now)
    target.run()
    again = CopyNode(target.disk.crash(lambda n: 0))
    assert disk_copy(again).end == copy.end
    assert again.damage == {QUEUE: None}


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_full_copy_goes_in_batches_of_as_many_messages_as_the_policy_says(count):
    source, log, batches = filled(5, 60)
    target = CopyNode()
    copy = disk_copy(target)
    send(source, begin(log, copy, target.now), copy, target.now, count=count)
    target.run()
    assert copy.is_complete
    assert state_of(target.copy.committed) == Expected(batches).state()
    again = CopyNode(target.disk.crash(lambda n: 0))
    assert disk_copy(again).end == log.end
    assert again.damage == {QUEUE: None}


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_goes_on_at_its_position_with_a_newer_state(seed):
    source, log, batches = filled(seed, 60)
    target = CopyNode()
    copy = disk_copy(target)
    snapshot = begin(log, copy, target.now)
    send(source, snapshot, copy, target.now, parts=1)
    snapshot.close()
    maker = Maker(seed + 50)
    maker.numbers.update(dict.fromkeys(maker.numbers, 1_000))
    for _ in range(5):
        batch = maker.publishes(log.end + 1, 1, 2)
        log.adopt(batch, source.now)
        batches.append(batch)
    source.run()
    log.fold(log.end)
    with pytest.raises(NotFollowing):
        begin(log, copy, target.now, copy.copied + 1)
    snapshot = begin(log, copy, target.now, copy.copied)
    send(source, snapshot, copy, target.now)
    # A base that comes while the checkpoint is being written changes nothing.
    begin(log, copy, target.now, copy.copied)
    target.run()
    assert copy.is_complete
    assert state_of(target.copy.committed) == Expected(batches).state()


def hollow(seed: int = 3):
    """A copy that follows without old records, and what it should have."""
    _, log, batches = filled(seed, 40)
    target = CopyNode()
    copy = disk_copy(target)
    begin(log, copy, target.now).close()
    return target, copy, batches


def follow(copy: DiskCopy, node: CopyNode, batches: list[bytes], maker: Maker) -> None:
    batch = maker.publishes(copy.end + 1, 1, 2)
    copy.adopt(batch, node.now)
    batches.append(batch)


@pytest.mark.parametrize("kept", [0, 1 << 30])
@pytest.mark.parametrize("passes", [0, 1, 2, 3, 50])
def test_a_hollow_copy_is_found_as_it_was_after_a_crash_or_as_an_empty_log(kept, passes):
    target, copy, batches = hollow()
    maker = Maker(8)
    k0 = copy.base
    for _ in range(4):
        follow(copy, target, batches, maker)
    assert (copy.base, copy.copied, copy.durable, copy.is_complete) == (k0, 0, 0, False)
    for _ in range(passes):
        target.end_pass()
        target.finish_one()
    again = CopyNode(target.disk.crash(lambda n: min(n, kept)))
    assert again.damage == {QUEUE: None}
    found = disk_copy(again)
    if found.end:
        assert found.base == k0
        assert k0 <= found.end <= copy.end
        assert again.read_all(k0 + 1) == batches[-4:][: len(again.read_all(k0 + 1))]
    else:
        assert found.base == 0
        assert passes < 50


def test_a_hollow_copy_is_complete_when_a_checkpoint_says_that_nothing_it_lacks_is_live():
    target, copy, batches = hollow()
    maker, k0 = Maker(9), copy.base
    for _ in range(60):
        follow(copy, target, batches, maker)
        if len(batches) % 9 == 0:
            copy.fold(copy.end - 2)
            target.run()
            target.tick()
    assert copy.copy.log.segments.all, "it was emptied into segments"
    live = [seq for seq in sorted(Expected(batches).live) if seq <= k0]
    assert live
    removal = maker.removal(copy.end + 1, 1, live)
    copy.adopt(removal, target.now)
    batches.append(removal)
    target.run()
    assert not copy.is_complete
    copy.fold(copy.end)
    target.run()
    assert not copy.is_complete, "a cursor holds what it lacks"
    payload = cursors.encode(Cursor("c", 0, 1, 0, 0), target.now)
    batches.append(maker.record(copy.end + 1, 1, records.CURSOR, payload, cursors.DROPPED))
    copy.adopt(batches[-1], target.now)
    expected = Expected(batches)
    copy.fold(copy.end)
    assert not copy.is_complete
    target.run()
    assert copy.is_complete
    assert copy.durable == copy.end
    again = CopyNode(target.disk.crash(lambda n: 0))
    found = disk_copy(again)
    assert again.damage == {QUEUE: None}
    assert found.is_complete
    assert found.end == copy.end
    found.fold(found.end)
    assert state_of(again.copy.committed) == expected.state()
    core = again.promote()
    assert [seq for seq, _, _ in again.messages(core)] == [
        seq for seq in sorted(expected.live) if seq not in {*expected.dying, *expected.counts}
    ]


def test_a_hollow_copy_that_gets_its_old_records_after_all_begins_anew():
    source, log, batches = filled(5, 40)
    target = CopyNode()
    copy = disk_copy(target)
    begin(log, copy, target.now).close()
    maker = Maker(10)
    for _ in range(3):
        batch = maker.publishes(copy.end + 1, 1, 2)
        for one, node in ((log, source), (copy, target)):
            one.adopt(batch, node.now)
        batches.append(batch)
    source.run()
    target.run()
    log.fold(log.end)
    snapshot = begin(log, copy, target.now)
    send(source, snapshot, copy, target.now)
    target.run()
    assert copy.is_complete
    assert state_of(target.copy.committed) == Expected(batches).state()
    again = CopyNode(target.disk.crash(lambda n: 0))
    assert state_of(again.copy.committed) == Expected(batches).state()
    assert again.damage == {QUEUE: None}


def test_a_damaged_log_can_be_given_up_and_begins_as_an_empty_one():
    node, log, _ = filled(2, 20)
    node.copy.log.damage = "a test says so"
    assert log.damage
    log.reset(node.now)
    assert (log.damage, log.end, log.base, log.is_complete) == (None, 0, 0, True)
    log.adopt(Maker(4).publishes(1, 5, 3), node.now)
    node.run()
    again = CopyNode(node.disk.crash(lambda n: 0))
    assert (again.copy.end, again.damage) == (3, {QUEUE: None})


def test_what_one_who_is_served_needs_is_kept_up_to_a_bound(monkeypatch):
    node, log, _ = filled(6, 10)
    log.held_from = lambda: 5
    assert node.copy.keep_from == 5
    monkeypatch.setattr(limits, "copy_hold_bytes_max", 100)
    assert node.copy.keep_from > log.end


def test_a_snapshot_that_holds_too_much_is_lost(monkeypatch):
    node, log, _ = filled(6, 10)
    snapshot = log.snapshot()
    log.adopt(Maker(3).publishes(log.end + 1, 1, 5), node.now)
    log.fold(log.end)
    assert not snapshot.is_lost
    monkeypatch.setattr(limits, "copy_hold_bytes_max", 100)
    log.adopt(Maker(3).publishes(log.end + 1, 1, 5), node.now)
    log.fold(log.end)
    assert snapshot.is_lost
    assert not node.copy.pins


def test_an_epoch_that_begins_before_the_queue_is_filled_is_written_when_it_is():
    node, log, _ = filled(7, 20)
    told = []
    log.on_batch = lambda batch, first, count: told.append((first, count))
    end = log.end
    log.begin_epoch(2, "a", node.now, drops_transient=True)
    assert log.end == end
    answers = []
    log.fill(new_core(), answers.append, is_restarted=True)
    log.begin_epoch(3, "a", node.now, drops_transient=True)
    while not answers:
        assert node.answer_reads()
    assert answers == [None]
    assert (log.end, log.epoch_at(log.end)) == (end + 1, 3)
    assert told == [(end + 1, 1)]


def test_a_filling_that_ends_after_the_mastership_changes_nothing():
    node, log, batches = filled(7, 20)
    answers = []
    log.begin_epoch(2, "a", node.now, drops_transient=True)
    log.fill(new_core(), answers.append, is_restarted=True)
    log.resign()
    while node.answer_reads():
        pass
    assert not answers
    assert state_of(node.copy.committed) == Expected(batches).state()
    log.adopt(Maker(1).publishes(log.end + 1, 3, 1), node.now)


@pytest.mark.parametrize("parts", [0, 1, 100])
def test_an_unfinished_copy_that_is_made_master_names_what_it_lacks(parts):
    """A promotion that may lose something."""
    source, log, batches = filled(21, 60)
    target = CopyNode()
    copy = disk_copy(target)
    snapshot = begin(log, copy, target.now)
    send(source, snapshot, copy, target.now, parts=parts)
    has = [seq for seq in sorted(Expected(batches).live) if seq <= copy.copied]
    core, answers = new_core(), []
    copy.begin_epoch(2, "b", target.now, drops_transient=False)
    copy.fill(core, answers.append, is_restarted=False)
    target.run()
    assert answers == [None]
    assert copy.durable == copy.end == log.end + 1
    target.run()
    told = target.read_all(log.end + 1)
    copy.fold(copy.end)
    target.run()
    assert copy.is_complete
    # Whoever follows comes to the same state.
    log.adopt(told[0], source.now)
    log.fold(log.end)
    assert state_of(source.copy.committed) == state_of(target.copy.committed)
    aside = {*Expected(batches).dying, *Expected(batches).counts}
    assert [seq for seq, _, _ in target.messages(core)] == [seq for seq in has if seq not in aside]
    again = CopyNode(target.disk.crash(lambda n: 0))
    assert again.damage == {QUEUE: None}
    assert disk_copy(again).is_complete
    assert state_of(again.copy.committed) == state_of(target.copy.committed)


def test_a_damaged_copy_fills_no_queue():
    node, log, _ = filled(2, 20)
    node.copy.log.damage = "a test says so"
    answers = []
    log.fill(new_core(), answers.append, is_restarted=False)
    assert answers == ["a test says so"]


@pytest.mark.parametrize("passes", [0, 1, 2, 3, 4, 5, 6, 50])
def test_what_follows_a_copy_before_a_checkpoint_tells_of_it_is_taken(passes):
    source, log, batches = filled(22, 60)
    target = CopyNode()
    copy = disk_copy(target)
    send(source, begin(log, copy, target.now), copy, target.now)
    k0 = copy.end
    for _ in range(passes):
        target.end_pass()
        target.finish_one()
    maker = Maker(23)
    maker.numbers.update(dict.fromkeys(maker.numbers, 1_000))
    follow(copy, target, batches, maker)
    crashed = [CopyNode(target.disk.crash(lambda n, most=most: min(n, most))) for most in (0, 1 << 30)]
    target.run()
    follow(copy, target, batches, maker)
    target.run()
    copy.fold(copy.end)
    target.run()
    crashed.append(CopyNode(target.disk.crash(lambda n: 0)))
    assert copy.is_complete
    assert copy.durable == copy.end
    assert state_of(target.copy.committed) == Expected(batches).state()
    for node in crashed:
        assert node.damage == {QUEUE: None}
        assert node.copy.end in {0, k0, k0 + 2, k0 + 4}
    again = crashed[-1]
    again.copy.fold(again.copy.end, again.now)
    assert state_of(again.copy.committed) == Expected(batches).state()
