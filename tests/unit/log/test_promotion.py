"""A copy becomes a queue that is what recovery would have made of the same records, and back again."""

import msgspec
import pytest

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.kernel.message import Message
from mirrormq.log import checkpoint, journal
from mirrormq.log.copybase import Base, Copying, Source
from mirrormq.log.copylog import CopyLog, NotFollowing
from mirrormq.log.copyread import Scan
from mirrormq.log.scan import Head
from tests.support.copykit import HOME, QUEUE, CopyNode, Expected, Maker, collect, new_core, state_of
from tests.support.kernelkit import NO_PROPERTIES, PERSISTENT


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
        "read_back_bytes": 900,
        "copy_read_bytes": 1_500,
    }.items():
        monkeypatch.setattr(limits, name, value)


def copied(seed, count, *, folded=0.5, epoch=1):
    """A copy with some batches, and those batches."""
    node, maker, batches = CopyNode(), Maker(seed), []
    for _ in range(count):
        batch = maker.batch(node.copy.end + 1, epoch, sorted(Expected(batches).live))
        node.copy.adopt(batch, node.now)
        batches.append(batch)
        if len(batches) % 10 == 0:
            node.copy.fold(int(node.copy.end * folded), node.now)
            node.run()
    node.run()
    return node, batches


def ready_of(expected):
    """(seq, body, redelivered) of what a new master has ready: what is neither dying nor counted."""
    upto = min(expected.horizon, expected.end)
    aside = {*expected.dying, *expected.counts}
    return [(seq, body, seq <= upto) for seq, body in sorted(expected.live.items()) if seq not in aside]


@pytest.mark.parametrize("seed", range(6))
def test_a_promoted_copy_has_ready_what_its_records_say(seed):
    node, batches = copied(seed, 90)
    expected = Expected(batches)
    core = node.promote()
    assert state_of(node.log) == expected.state()
    assert len(core.take_dying(settle=False)) + len(core.take_coming_back()) == len(
        {*expected.dying, *expected.counts} & set(expected.live)
    )
    assert node.messages(core) == ready_of(expected)


def test_a_promotion_of_a_plain_queue_reads_nothing_up_front():
    node, maker = CopyNode(), Maker(1)
    for _ in range(60):
        node.copy.adopt(maker.publishes(node.copy.end + 1, 1, 4), node.now)
    node.run()
    core, answers = new_core(), []
    node.copy.become_master()
    node.copy.fill_queue(core, lambda *_: pytest.fail("it was read"), answers.append)
    assert answers == [None]
    assert core.ready == 240
    assert core.resident == 0
    assert [seq for seq, _, _ in node.messages(core)] == list(range(1, 241))


def test_a_promoted_queue_with_priorities_delivers_the_highest_first():
    node, batches = copied(3, 40)
    expected = Expected(batches)
    core = node.promote(new_core(5))
    aside = {*expected.dying, *expected.counts}
    core.take_dying(settle=False), core.take_coming_back()
    assert sorted(seq for seq, _, _ in node.messages(core)) == sorted(set(expected.live) - aside)


@pytest.mark.parametrize("steps", range(30))
def test_a_queue_with_priorities_has_each_message_once_if_it_is_filled_while_the_journal_is_emptied(steps):
    node, maker = CopyNode(), Maker(5)
    for round_ in range(60):
        first = node.copy.end + 1
        node.copy.adopt(maker.publishes(first, 1, 3), node.now)
        node.copy.adopt(maker.removal(first + 3, 1, [first + 2]), node.now)
        node.copy.fold(node.copy.end, node.now)
        if round_ == 30:
            node.run()  # so that there is a segment
    live = [first + at for first in range(1, node.copy.end, 4) for at in (0, 1)]
    for _ in range(steps):
        node.end_pass()
        if not node.finish_one():
            node.answer_reads()
    core = node.promote(new_core(5))
    assert core.ready == len(live)
    assert sorted(seq for seq, _, _ in node.messages(core)) == live


def test_a_master_writes_on_in_its_own_epoch_and_what_it_wrote_can_be_given_up_after_it_is_deposed():
    node, batches = copied(4, 30)
    end, before = node.copy.end, Expected(batches)
    sent = []
    core = node.promote()
    core.take_dying(settle=False), core.take_coming_back()
    node.copy.on_batch = lambda batch, first, count: sent.append((batch, first, count))
    node.copy.begin_epoch(9, "mirrormq@b", node.now)
    for number in range(5):
        core.push(Message(b"", b"q", PERSISTENT, b"new %d" % number))
    core.admit(5, node.log.append(core, 5, node.now), node.log.last_wall)
    core.leave(min(before.live), 1)
    node.log.settle(core, node.now)
    assert [(first, count) for _, first, count in sent] == [(end + 1, 1), (end + 2, 5), (end + 7, 1)]
    assert node.read_all(end + 1) == [batch for batch, _, _ in sent]
    assert state_of(node.log) == Expected([*batches, *(batch for batch, _, _ in sent)]).state()
    node.run()
    node.copy.from_queue()
    assert node.copy.truncate(end, node.now) == end
    node.run()
    again = CopyNode(node.disk.crash(lambda n: 0))
    assert again.copy.position == (end, 1)
    assert [seq for seq, _, _ in ready_of(before)] == [seq for seq, *_ in again.messages(again.promote())]


def test_a_mirrored_queue_is_durable_and_deliverable_when_its_protocol_says_so():
    node = CopyNode()
    core, told = node.promote(), []
    node.run()
    node.log.on_flushed = lambda: told.append(node.log.flushed)
    core.push(Message(b"", b"q", PERSISTENT, b"x"))
    core.admit(1, node.log.append(core, 1, node.now), node.log.last_wall)
    node.log.reach(1, 10, node.now)
    done = []
    node.log.when_durable(1, lambda: done.append("durable"))
    node.run()
    assert told[-1] == 2
    assert (node.log.durable, node.log.deliverable, done) == (0, 0, [])
    node.log.raise_durable(1)
    node.log.raise_deliverable(1)
    assert (node.log.durable, node.log.deliverable, done) == (1, 1, ["durable"])


def test_a_restarted_master_drops_transient_messages_and_every_copy_remembers_which():
    node, maker = CopyNode(), Maker(5)
    batches = []
    for _ in range(40):
        batches.append(maker.publishes(node.copy.end + 1, 1, 3))
        node.copy.adopt(batches[-1], node.now)
    node.copy.fold(60, node.now)
    node.run()
    expected = Expected(batches)
    again, other = CopyNode(node.disk.restart()), node
    sent = []
    core = again.promote(is_restarted=True)
    again.copy.on_batch = lambda batch, *_: sent.append(batch)
    again.copy.begin_epoch(2, "mirrormq@b", again.now)
    for batch in sent:
        other.copy.adopt(batch, other.now)
    other.copy.fold(other.copy.end, other.now)
    kept = set(expected.live) - set(expected.transient)
    lost = {number for pid, number in expected.transient.values() if pid == HOME}
    assert lost
    for fold in (again.log, other.copy.committed):
        seq_state = state_of(fold)
        assert set(seq_state[1]) == kept
        assert set(seq_state[6]) == expected.gaps | lost
    assert [seq for seq, _, _ in again.messages(core)] == sorted(kept)


def test_a_queue_that_has_lost_its_mirrors_recovers_as_any_other_without_what_it_gave_up():
    node, maker = CopyNode(), Maker(6)
    for _ in range(20):
        node.copy.adopt(maker.publishes(node.copy.end + 1, 1, 3), node.now)
    node.run()
    node.copy.truncate(30, node.now)
    new = [maker.publishes(31, 4, 3), maker.removal(34, 4, [2, 3, 31])]
    for batch in new:
        node.copy.adopt(batch, node.now)
    node.run()
    expected = Expected([*node.read_all(1)])
    plain = CopyNode(node.disk.restart(), mirrored=(), plain=(QUEUE,))
    assert plain.damage == {QUEUE: None}
    assert plain.log.end == 34
    persistent = sorted(set(expected.live) - set(expected.transient))
    found = plain.messages(plain.cores[QUEUE])
    assert [(seq, body) for seq, body, _ in found] == [(seq, expected.live[seq]) for seq in persistent]


def test_a_queue_gets_mirrors_and_loses_them_without_a_change_of_its_log():
    node = CopyNode(mirrored=(), plain=(QUEUE,))
    core, log = node.cores[QUEUE], node.log
    for _ in range(3):
        core.push(Message(b"", b"q", PERSISTENT, b"x"))
    core.admit(3, log.append(core, 3, node.now), log.last_wall)
    node.run()
    copy = CopyLog(log, node.pool, is_master=True)
    assert copy.folded == log.durable == 3
    core.push(Message(b"", b"q", PERSISTENT, b"y"))
    core.admit(1, log.append(core, 1, node.now), log.last_wall)
    log.reach(1, 10, node.now)
    node.run()
    assert (log.flushed, log.durable, log.deliverable) == (5, 3, 0)
    copy.detach()
    assert (log.durable, log.deliverable, log.copy) == (5, 11, None)
    again = CopyNode(node.disk.restart(), mirrored=(), plain=(QUEUE,))
    assert [seq for seq, *_ in again.messages(again.cores[QUEUE])] == [1, 2, 3, 4]


# --- what recycling does with copies ---


def parts(disk):
    return checkpoint.decode(disk.read(checkpoint.NAME)).parts


def test_nothing_above_the_durable_mark_goes_into_a_checkpoint_or_a_segment():
    node, maker = CopyNode(mirrored=(QUEUE, 8)), Maker(7)
    for _ in range(10):
        node.copy.adopt(maker.publishes(node.copy.end + 1, 1, 3), node.now)
    node.copy.adopt(maker.removal(31, 1, list(range(1, 20))), node.now)
    node.copy.fold(12, node.now)
    other, noise = node.copies[8], Maker(8, queue_id=8)
    for _ in range(120):
        other.adopt(noise.publishes(other.end + 1, 1, 4), node.now)
        other.fold(other.end, node.now)
        node.run()
    part = parts(node.disk)[QUEUE]
    assert part.end == 12
    assert part.segments_end <= 12
    assert part.since == 1, "the file with its uncertain records is kept for it"
    again = CopyNode(node.disk.crash(lambda n: 0), mirrored=(QUEUE, 8))
    assert again.damage == {QUEUE: None, 8: None}
    assert again.copy.position == node.copy.position
    assert again.copy.folded == 12
    assert again.read_all(13) == node.read_all(13)
    again.copy.truncate(12, again.now)
    assert sorted(state_of(again.copy.committed)[1]) == list(range(1, 13))


def test_a_file_kept_for_uncertain_records_goes_when_they_are_committed():
    node, maker = CopyNode(mirrored=(QUEUE, 8)), Maker(9)
    batches = [maker.publishes(first, 1, 3) for first in range(1, 31, 3)]
    for batch in batches:
        node.copy.adopt(batch, node.now)
    node.copy.fold(12, node.now)
    other, noise = node.copies[8], Maker(10, queue_id=8)

    def flow():
        for _ in range(120):
            other.adopt(noise.publishes(other.end + 1, 1, 4), node.now)
            other.adopt(noise.removal(other.end + 1, 1, list(range(other.end - 3, other.end + 1))), node.now)
            other.fold(other.end, node.now)
            node.run()

    flow()
    assert node.recycler.kept
    node.copy.fold(30, node.now)
    node.tick()
    flow()
    assert not node.recycler.kept
    assert node.log.segments.end == 30
    assert journal.file_name(1) not in node.disk.list(journal.PREFIX)
    again = CopyNode(node.disk.crash(lambda n: 0), mirrored=(QUEUE, 8))
    assert again.damage == {QUEUE: None, 8: None}
    expected = Expected(batches)
    assert [(seq, body) for seq, body, _ in again.messages(again.promote())] == sorted(expected.live.items())


def test_a_damaged_copy_is_named_and_a_full_copy_makes_it_whole():
    source, batches = copied(11, 60, folded=1.0)
    source.copy.fold(source.copy.end, source.now)
    node = CopyNode(source.disk.copy())
    [name, *_] = node.disk.list("journal/")
    node.disk.damage(name, journal.HEAD_BYTES + 60)
    broken = CopyNode(node.disk.copy())
    if broken.damage[QUEUE] is None:
        pytest.skip("the damaged batch was dead")
    assert broken.copy.damage is not None
    copy_all(source, broken)
    assert broken.copy.damage is None
    assert state_of(broken.copy.committed) == Expected(batches).state()


# --- full copies ---


def copy_all(source, target, *, repin_at=None, between=None, on_step=None):
    """Run a full copy from one node to another."""
    pinned = Source(source.copy)
    copying = Copying(target.copy, target.recycler, target.now)
    copying.load_base(pinned.base)
    rounds = 0
    while copying.position < copying.k0:
        rounds += 1
        if between is not None:
            between(rounds)
        if rounds == repin_at:
            pinned.release()
            pinned = Source(source.copy)
            copying.load_base(pinned.base)
        answers = []
        pinned.read(copying.position, (1_500, 4_096), collect(answers), read=source.read)
        while not answers and source.answer_reads():
            pass
        [(pieces, position, error)] = answers
        assert error is None, error
        assert position > copying.position
        copying.take(pieces, position)
    done = []
    copying.finish(done.append)
    assert not done
    if on_step is None:
        target.run()
    else:
        finish_stepwise(target, done, on_step)
    assert done == [None]
    pinned.release()
    return copying


def finish_stepwise(node, done, on_step):
    """Let the disk do one thing after the other, with a look at each."""
    for _ in range(1_000):
        node.end_pass()
        on_step(bool(done))
        if not node.finish_one() and not node.answer_reads():
            return
    pytest.fail("it never ends")


@pytest.mark.parametrize("seed", range(4))
def test_a_full_copy_shows_one_committed_moment_and_goes_on_from_there(seed):
    source, batches = copied(seed + 20, 80)
    k0 = source.copy.folded
    target = CopyNode()
    target.copy.adopt(Maker(1).publishes(1, 1, 4), target.now)
    target.run()
    copy_all(source, target)
    head = [batch for batch in batches if records.last_seq(batch, 0) <= k0]
    assert target.copy.position == (k0, 1)
    assert target.copy.durable == k0
    assert state_of(target.copy.committed) == Expected(head).state()
    for batch in batches[len(head) :]:
        target.copy.adopt(batch, target.now)
    target.run()
    again = CopyNode(target.disk.crash(lambda n: 0))
    assert again.damage == {QUEUE: None}
    core = again.promote()
    core.take_dying(settle=False), core.take_coming_back()
    assert again.messages(core) == ready_of(Expected(batches))


def test_what_dies_at_the_source_during_a_copy_is_copied_as_it_was_and_dies_by_its_own_record():
    source, maker = CopyNode(), Maker(30)
    batches = [maker.publishes(first, 1, 4) for first in range(1, 161, 4)]
    for batch in batches:
        source.copy.adopt(batch, source.now)
    source.copy.fold(160, source.now)
    source.run()

    def between(rounds):
        first = source.copy.end + 1
        gone = list(range(rounds * 8, rounds * 8 + 8))
        for batch in (maker.removal(first, 1, gone), maker.publishes(first + 1, 1, 3)):
            source.copy.adopt(batch, source.now)
            batches.append(batch)
        source.copy.fold(source.copy.end, source.now)
        source.tick()

    target = CopyNode()
    copying = copy_all(source, target, between=between)
    assert copying.k0 == 160
    for batch in source.read_all(161):
        target.copy.adopt(batch, target.now)
    target.copy.fold(target.copy.end, target.now)
    assert state_of(target.copy.committed) == Expected(batches).state()
    second = CopyNode()
    assert copy_all(source, second, repin_at=2, between=between).k0 > 160
    second.copy.fold(second.copy.end, second.now)
    core = second.promote()
    assert second.messages(core)


def test_a_crash_before_a_full_copy_is_durable_leaves_an_empty_log_and_no_old_records():
    source, _ = copied(40, 60, folded=1.0)
    target = CopyNode()
    for first in range(1, 40, 3):
        target.copy.adopt(Maker(first).publishes(first, 1, 3), target.now)
    target.run()
    pinned = Source(source.copy)
    copying = Copying(target.copy, target.recycler, target.now)
    copying.load_base(pinned.base)
    assert not target.copy.is_complete
    with pytest.raises(NotFollowing):
        target.copy.adopt(Maker(1).publishes(1, 1, 1), target.now)
    target.run()
    target.tick()
    again = CopyNode(target.disk.crash(lambda n: 0))
    assert again.damage == {QUEUE: None}
    assert again.copy.end == 0
    assert again.copy.is_complete
    again.copy.adopt(Maker(2).publishes(1, 3, 2), again.now)
    again.run()
    assert CopyNode(again.disk.crash(lambda n: 0)).copy.position == (2, 3)


def test_a_crash_at_any_step_of_a_full_copy_leaves_all_of_it_or_an_empty_log():
    source, batches = copied(41, 70, folded=1.0)
    source.copy.fold(source.copy.end, source.now)
    expected, target, seen = Expected(batches).state(), CopyNode(), set()
    for first in range(1, 40, 3):
        target.copy.adopt(Maker(first).publishes(first, 1, 3), target.now)
    target.run()

    def look(is_done):
        for pick in (lambda n: 0, lambda n: n, lambda n: n // 2):
            again = CopyNode(target.disk.crash(pick))
            assert again.damage == {QUEUE: None}
            assert again.copy.end in ((len_of(batches),) if is_done else (0, 39, len_of(batches)))
            seen.add(int(again.copy.end))
            if again.copy.end == len_of(batches):
                again.copy.fold(again.copy.end, again.now)
                assert state_of(again.copy.committed) == expected

    copy_all(source, target, on_step=look)
    assert {0, len_of(batches)} <= seen


def len_of(batches):
    return records.last_seq(batches[-1], 0)


def test_transient_and_persistent_messages_of_a_copy_are_both_served_by_an_unchanged_member():
    node = CopyNode()
    core = new_core()
    for properties in (PERSISTENT, NO_PROPERTIES):
        core.push(Message(b"", b"q", properties, b"x"))
    batch, _ = records.encode_publishes(core, 2, QUEUE, 1, 1, 1)
    node.copy.adopt(batch, node.now)
    node.run()
    assert [seq for seq, _, _ in node.messages(node.promote())] == [1, 2]


def test_a_note_of_a_full_copy_in_a_file_that_is_kept_for_another_queue_counts_once():
    source, batches = copied(12, 60, folded=1.0)
    source.copy.fold(source.copy.end, source.now)
    other = QUEUE + 1
    target = CopyNode(mirrored=(QUEUE, other))
    target.copies[other].adopt(Maker(3, other).publishes(1, 1, 3), target.now)
    copy_all(source, target)
    maker = Maker(13)
    maker.numbers[HOME] = 10_000
    for _ in range(150):
        batches.append(maker.publishes(target.copy.end + 1, 1, 3))
        target.copy.adopt(batches[-1], target.now)
        target.run()
        target.copy.fold(target.copy.end, target.now)
        target.tick()
    assert target.recycler.kept, "uncertain records of the other queue lie where the copy began"
    assert target.log.begins == (0, 0)
    again = CopyNode(target.disk.crash(lambda n: 0), mirrored=(QUEUE, other))
    assert again.damage == {QUEUE: None, other: None}
    again.copy.fold(again.copy.end, again.now)
    assert state_of(again.copy.committed) == Expected(batches).state()


def test_a_file_of_a_copy_that_was_given_up_is_not_flushed_after_it_is_gone():
    source, _ = copied(14, 60, folded=1.0)
    source.copy.fold(source.copy.end, source.now)
    target = CopyNode()
    # The step that flushes the first takes the files of the second away when the third has begun.
    for _ in range(3):
        pinned = Source(source.copy)
        copying = Copying(target.copy, target.recycler, target.now)
        copying.load_base(pinned.base)
        while copying.position < copying.k0:
            answers = []
            pinned.read(copying.position, (1_500, 4_096), collect(answers), read=source.read)
            while not answers and source.answer_reads():
                pass
            copying.take(*answers[0][:2])
        done = []
        copying.finish(done.append)
    target.run()
    assert done == [None]
    assert state_of(target.copy.committed) == state_of(source.copy.committed)


def test_a_copy_does_not_go_on_with_a_base_that_wants_records_it_has_passed():
    source, _ = copied(15, 60, folded=1.0)
    source.copy.fold(source.copy.end, source.now)
    target = CopyNode()
    pinned = Source(source.copy)
    copying = Copying(target.copy, target.recycler, target.now)
    copying.load_base(pinned.base)
    answers = []
    pinned.read(0, (500, 4_096), collect(answers), read=source.read)
    while not answers and source.answer_reads():
        pass
    copying.take(*answers[0][:2])
    base = msgspec.msgpack.decode(pinned.base, type=Base)
    low = min(base.low, copying.position + 1)
    copying.load_base(msgspec.msgpack.encode(msgspec.structs.replace(base, low=low)))
    with pytest.raises(NotFollowing):
        copying.load_base(msgspec.msgpack.encode(msgspec.structs.replace(base, low=low - 1)))


def test_what_a_power_failure_has_orphaned_is_not_read_once_its_file_is_kept_for_uncertain_records():
    other = QUEUE + 1
    node, maker = CopyNode(mirrored=(QUEUE, other)), Maker(14)
    written = [maker.publishes(first, 1, 3) for first in range(1, 31, 3)]
    for batch in written:
        node.copy.adopt(batch, node.now)
    node.end_pass()
    disk = node.disk.crash(lambda n: n)
    # A page that never came to the disk: 13 to 15 are gone, and what lies behind them with them.
    name = disk.list(journal.PREFIX)[-1]
    disk.damage(name, disk.read(name).index(written[4]) + len(written[4]) // 2)
    again = CopyNode(disk, mirrored=(QUEUE, other))
    assert again.copy.end == 12
    follow = [maker.publishes(first, 2, 3) for first in range(13, 25, 3)]
    for batch in follow:
        again.copy.adopt(batch, again.now)
    again.copy.fold(10, again.now)
    busy, noise = again.copies[other], Maker(15, queue_id=other)
    for _ in range(120):
        busy.adopt(noise.publishes(busy.end + 1, 1, 4), again.now)
        busy.fold(busy.end, again.now)
        again.run()
    assert journal.serial_of(name) in again.recycler.kept
    assert scanned(again) == [*written[:4], *follow]
    last = CopyNode(again.disk.crash(lambda n: 0), mirrored=(QUEUE, other))
    assert last.damage == {QUEUE: None, other: None}
    assert scanned(last) == [*written[:4], *follow]


def scanned(node: CopyNode) -> list[bytes]:
    """All batches that are part of a log, as a promotion reads them."""
    found: list[bytes] = []
    errors: list[str | None] = []

    def visit(data: bytes, at: int, head: Head) -> bool:
        found.append(data[at : at + head[0]])
        return True

    Scan(node.log, node.read, (1, node.copy.end), visit).start(errors.append)
    while node.answer_reads():
        pass
    assert errors == [None]
    return found
