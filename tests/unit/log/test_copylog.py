"""A copy of a mirrored queue is what its master wrote, whatever crashes, and gives up what it is told to."""

import random

import pytest

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log import copylog
from mirrormq.log.copylog import NotFollowing
from tests.support.copykit import QUEUE, CopyNode, Expected, Maker, state_of


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
    }.items():
        monkeypatch.setattr(limits, name, value)


def adopt_some(node, maker, count, epoch=1, batches=None):
    """Batches of one epoch that follow each other, adopted."""
    batches = [] if batches is None else batches
    for _ in range(count):
        batch = maker.batch(node.copy.end + 1, epoch, sorted(Expected(batches).live))
        node.copy.adopt(batch, node.now)
        batches.append(batch)
    return batches


def upto(batches, seq):
    return [batch for batch in batches if records.last_seq(batch, 0) <= seq]


def test_adopted_batches_are_read_back_byte_for_byte_from_memory_and_from_disk():
    node = CopyNode()
    batches = adopt_some(node, Maker(1), 60)
    node.run()
    assert len(node.copy.recent) < 60
    assert node.read_all(1, max_bytes=1_000) == batches
    assert node.read_all(records.read_head(batches[40], 0)[3]) == batches[40:]
    again = CopyNode(node.disk.restart())
    assert again.read_all(1) == batches
    assert again.copy.position == node.copy.position


def test_a_batch_is_durable_when_it_is_flushed_here():
    node = CopyNode()
    node.run()
    batches = adopt_some(node, Maker(2), 3)
    assert node.copy.durable == 0
    node.run()
    assert node.copy.durable == node.copy.end == records.last_seq(batches[-1], 0)


def test_what_does_not_follow_is_refused_and_changes_nothing():
    node, maker = CopyNode(), Maker(3)
    batches = adopt_some(node, maker, 5, epoch=4)
    end = node.copy.end
    for wrong in (
        batches[-1],
        maker.publishes(end + 2, 4, 1),
        maker.publishes(end + 1, 3, 1),
        Maker(3, queue_id=8).publishes(end + 1, 4, 1),
        b"nothing",
    ):
        with pytest.raises(NotFollowing):
            node.copy.adopt(wrong, node.now)
    assert node.copy.end == end
    assert node.copy.epoch_at(end) == 4


def test_the_committed_state_is_the_fold_of_exactly_the_committed_records():
    node = CopyNode()
    batches = adopt_some(node, Maker(4), 80)
    for mark in sorted(random.Random(4).sample(range(1, node.copy.end), 10)):
        node.copy.fold(mark, node.now)
        assert state_of(node.copy.committed) == Expected(upto(batches, mark)).state()
    node.copy.fold(node.copy.end, node.now)
    assert not node.copy.tail
    assert state_of(node.copy.committed) == Expected(batches).state()


def test_what_is_given_up_is_gone_and_what_takes_its_place_is_found_instead():
    node, maker = CopyNode(), Maker(5)
    old = adopt_some(node, maker, 30, epoch=1)
    node.copy.fold(records.last_seq(old[9], 0), node.now)
    node.run()
    cut = records.last_seq(old[14], 0)
    assert node.copy.truncate(cut, node.now) == cut
    assert node.copy.durable == cut
    new = adopt_some(node, maker, 25, epoch=3, batches=old[:15])
    assert node.read_all(1) == new
    node.run()
    for disk in (node.disk.restart(), node.disk.crash(lambda n: 0)):
        again = CopyNode(disk)
        assert again.damage == {QUEUE: None}
        assert again.read_all(1) == new
        assert again.copy.epochs == [(1, 1), (3, cut + 1)]
        again.copy.fold(again.copy.end, again.now)
        assert state_of(again.copy.committed) == Expected(new).state()


def test_a_truncation_alone_survives_a_crash_once_it_is_flushed():
    node = CopyNode()
    batches = adopt_some(node, Maker(6), 20)
    node.run()
    cut = records.last_seq(batches[7], 0)
    node.copy.truncate(cut, node.now)
    node.run()
    again = CopyNode(node.disk.crash(lambda n: 0))
    assert again.copy.end == cut
    assert again.read_all(1) == batches[:8]


def test_a_truncation_ends_with_a_whole_batch_and_never_below_what_is_committed():
    node, maker = CopyNode(), Maker(7)
    for _ in range(4):
        node.copy.adopt(maker.publishes(node.copy.end + 1, 1, 5), node.now)
    node.copy.fold(12, node.now)
    assert node.copy.folded == 10
    with pytest.raises(NotFollowing, match="records up to 10 are committed"):
        node.copy.truncate(9, node.now)
    assert node.copy.truncate(18, node.now) == 15
    assert node.copy.truncate(15, node.now) == 15
    assert node.copy.truncate(99, node.now) == 15


def test_a_flush_that_was_under_way_does_not_cover_what_took_the_place_of_its_records():
    node, maker = CopyNode(), Maker(8)
    node.run()
    node.copy.adopt(maker.publishes(1, 1, 5), node.now)
    node.copy.adopt(maker.publishes(6, 1, 5), node.now)
    node.end_pass()
    assert node.copy.truncate(5, node.now) == 5
    node.copy.adopt(maker.publishes(6, 2, 5), node.now)
    assert node.finish_one()
    assert node.copy.durable == 5
    node.run()
    assert node.copy.durable == 10


def test_promised_epochs_of_older_files_are_passed_over():
    node = CopyNode()
    adopt_some(node, Maker(6), 10)
    note = copylog.encode_note(records.PROMISE, 0, copylog.note_payload(QUEUE, 5))
    node.journal.add(node.log, note, flush=True, now=node.now)
    adopt_some(node, Maker(6), 10)
    node.run()
    again = CopyNode(node.disk.crash(lambda n: 0))
    assert again.damage == {QUEUE: None}
    assert (again.copy.end, again.read_all(1)) == (node.copy.end, node.read_all(1))


def test_the_noted_mark_tells_a_restart_what_is_committed():
    node = CopyNode()
    batches = adopt_some(node, Maker(9), 100)
    node.copy.fold(node.copy.end, node.now)
    node.run()
    again = CopyNode(node.disk.restart())
    assert 0 < again.copy.folded <= node.copy.end
    assert len(again.copy.tail) < 40
    assert state_of(again.copy.committed) == Expected(upto(batches, again.copy.folded)).state()


BOTH = (QUEUE, 8)


class World:
    """Random adopt, truncate, fold, flush and crash against the list of what should be there."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.maker = Maker(seed)
        self.node = CopyNode(mirrored=BOTH)
        self.noise = Maker(seed, queue_id=8)
        self.batches = []
        self.epoch = 1
        self.states = [[]]
        """The log after each change of the journal, oldest first; those before the last flush are dropped."""
        self.flushed = 0
        self.crashes = self.cuts = self.moved = self.kept = 0

    def run(self, steps):
        for _ in range(steps):
            choice = self.rng.random()
            if choice < 0.5:
                self.adopt()
            elif choice < 0.62:
                self.node.copy.fold(self.rng.randrange(self.node.copy.end + 1), self.node.now)
            elif choice < 0.70:
                self.truncate()
            elif choice < 0.78:
                self.make_noise()
            elif choice < 0.80:
                self.flush()
            elif choice < 0.96:
                for _ in range(self.rng.randrange(6)):
                    self.node.end_pass()
                    self.node.finish_one() or self.node.answer_reads()
            elif choice < 0.98:
                self.check()
            else:
                self.crash()
            self.moved = max(self.moved, self.node.log.segments.end)

    def adopt(self):
        for _ in range(self.rng.randrange(1, 8)):
            first = self.node.copy.end + 1
            batch = self.maker.batch(first, self.epoch, sorted(Expected(self.batches).live))
            self.node.copy.adopt(batch, self.node.now)
            self.batches = [*self.batches, batch]
            self.states.append(self.batches)

    def make_noise(self):
        """Another queue, all of which is committed at once, lets the journal go on."""
        other = self.node.copies[8]
        for _ in range(20):
            other.adopt(self.noise.publishes(other.end + 1, 1, 4), self.node.now)
        gone = list(range(max(other.end - 100, 1), other.end + 1))
        other.adopt(self.noise.removal(other.end + 1, 1, gone), self.node.now)
        other.fold(other.end, self.node.now)
        self.node.end_pass()
        self.kept += bool(self.node.recycler.kept)

    def truncate(self):
        copy = self.node.copy
        end = copy.truncate(self.rng.randrange(copy.folded, copy.end + 1), self.node.now)
        self.epoch += 1
        given_up = self.batches[len(upto(self.batches, end)) :]
        if given_up:
            self.cuts += 1
            self.batches = upto(self.batches, end)
            self.states.append(self.batches)
            self.maker.numbers = dict.fromkeys(self.maker.numbers, 10_000 * self.epoch)
        if given_up and self.rng.random() < 0.5:
            self.adopt_again(given_up)

    def adopt_again(self, batches):
        """The next master has some of what was given up, and sends it in its time."""
        for batch in batches[: self.rng.randrange(1, len(batches) + 1)]:
            if self.rng.random() < 0.2:
                self.make_noise()
            self.node.copy.adopt(batch, self.node.now)
            self.batches = [*self.batches, batch]
            self.states.append(self.batches)

    def flush(self):
        self.node.run()
        assert self.node.copy.durable == self.node.copy.end
        self.states = self.states[-1:]

    def check(self):
        copy = self.node.copy
        assert copy.end == sum(records.read_head(batch, 0)[4] for batch in self.batches)
        assert state_of(copy.committed) == Expected(upto(self.batches, copy.folded)).state()
        start = next(
            (head[3] for batch in self.batches if (head := records.read_head(batch, 0))[3] >= copy.low), None
        )
        if start is not None:
            pin = copy.hold(start)
            assert self.node.read_all(start, max_bytes=self.rng.choice((500, 5_000))) == [
                batch for batch in self.batches if records.read_head(batch, 0)[3] >= start
            ]
            pin.release()

    def crash(self):
        self.crashes += 1
        durable, folded = self.node.copy.durable, self.node.copy.folded
        if self.rng.random() < 0.3:
            disk = self.node.disk.restart()
        else:
            lose = self.rng.random() < 0.3
            disk = self.node.disk.crash(lambda n: self.rng.randrange(n + 1), lose_pages=lose)
        self.node = CopyNode(disk, mirrored=BOTH)
        assert self.node.damage == {QUEUE: None, 8: None}
        end = self.node.copy.end
        found = [state for state in self.states if sum(records.read_head(b, 0)[4] for b in state) == end]
        matching = [state for state in found if self.is_there(state)]
        assert matching, (end, durable, [len(state) for state in self.states])
        self.batches = matching[-1]
        self.states = [*self.states[: self.states.index(self.batches)], self.batches]
        assert end >= min(durable, *(sum(records.read_head(b, 0)[4] for b in s) for s in self.states), end)
        assert self.node.copy.folded <= max(folded, end)
        self.epoch += 1
        self.check()

    def is_there(self, state):
        """Is this what the node has?"""
        epochs = {}
        for batch in state:
            head = records.read_head(batch, 0)
            epochs.setdefault(head[2], head[3])
        return list(epochs.items()) == self.node.copy.epochs


@pytest.mark.parametrize("seed", range(8))
def test_random_adopting_truncating_folding_and_crashing_agrees_with_the_list(seed):
    world = World(seed)
    world.run(160)
    world.flush()
    world.check()
    assert world.cuts


def test_the_random_runs_pass_crashes_segments_and_files_kept_for_uncertain_records():
    world = World(5)
    world.run(400)
    assert world.crashes
    assert world.moved
    assert world.kept
