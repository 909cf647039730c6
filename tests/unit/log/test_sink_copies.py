"""The state of a sink, and where copies come from, on mirrors: through journal, checkpoint and full copy."""

import random
import struct

import pytest

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log import origins, sinkstate
from mirrormq.log.copybase import Copying, Source
from mirrormq.log.sinkstate import Staged, Tx
from tests.support.copykit import QUEUE, WALL, CopyNode, Maker, collect


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    for name, value in {
        "journal_file_bytes": 4_000,
        "recycle_slice_bytes": 2_000,
        "recovery_slice_bytes": 2_000,
        "segment_bytes_min": 2_000,
        "segment_dead_bytes_max": 1_000,
        "place_bytes_min": 500,
        "copy_mark_bytes": 1_500,
        "recent_bytes_max": 2_000,
        "copy_read_bytes": 1_500,
    }.items():
        monkeypatch.setattr(limits, name, value)


class SinkMaker(Maker):
    """Makes the records of a staging queue, some of them nonsense in their order and sound in themselves."""

    def __init__(self, seed):
        super().__init__(seed)
        self.blocks = []
        self.txs = []
        self.sent = []
        self.origin = 0

    def next(self, first):
        rng = self.rng
        choice = rng.random()
        if choice < 0.4:
            self.blocks.append(first)
            return records.encode_staged(QUEUE, 1, first, WALL, b"%d " % first * rng.randrange(1, 60))
        if choice < 0.6 and self.blocks:
            seqs, self.blocks = self.blocks, []
            number = rng.getrandbits(60)
            blocks = tuple(Staged(seq, rng.choice((7, 8)), rng.randrange(1, 9), 0) for seq in seqs)
            self.txs.append((number, seqs))
            payload = sinkstate.encode_tx(Tx(number, 1, WALL, WALL, 0, blocks))
            return self.record(first, 1, records.STAGE, payload)
        if choice < 0.75 and self.txs:
            number, seqs = self.txs.pop(0)
            self.sent += seqs
            return self.record(first, 1, records.COMMIT_SET, sinkstate.encode_commit(WALL, first, [number]))
        if choice < 0.9 and self.sent:
            seq = self.sent.pop(rng.randrange(len(self.sent)))
            payload = struct.pack("<QQQQ", WALL, seq, seq, 7)
            return self.record(first, 1, records.REMOVE, payload)
        self.origin += rng.randrange(1, 4)
        return self.record(first, 1, records.PUBNOTE, origins.encode(first, [(self.origin, 1)]), flags=1)


def state_of(fold):
    fold.forget_buried()
    assert fold.sink is not None
    assert fold.origins is not None
    return fold.sink.save(), fold.origins.high


def filled(seed, count=150):
    node, maker = CopyNode(), SinkMaker(seed)
    rng = random.Random(seed)
    for at in range(count):
        node.copy.adopt(maker.next(node.copy.end + 1), node.now)
        if at % 10 == 9:
            node.copy.fold(node.copy.end - rng.randrange(5), node.now)
            node.run()
    node.run()
    return node


@pytest.mark.parametrize("seed", range(4))
def test_a_restart_finds_the_sink_as_it_was(seed):
    node = filled(seed)
    node.copy.fold(node.copy.end, node.now)
    node.run()
    node.tick()
    before = state_of(node.copy.committed)
    again = CopyNode(node.disk.crash(lambda n: 0))
    assert again.damage == {QUEUE: None}
    again.copy.fold(again.copy.end, again.now)
    assert state_of(again.copy.committed) == before


@pytest.mark.parametrize("seed", range(4))
def test_a_promoted_mirror_knows_the_sink_up_to_its_end(seed):
    node = filled(seed)
    node.promote()
    told = state_of(node.log)
    node.copy.from_queue()
    node.copy.fold(node.copy.end, node.now)
    assert state_of(node.copy.committed) == told


@pytest.mark.parametrize("seed", range(4))
def test_a_full_copy_brings_the_sink_with_its_blocks(seed):
    source, target = filled(seed), CopyNode()
    source.copy.fold(source.copy.end, source.now)
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
    again = CopyNode(target.disk.crash(lambda n: 0))
    assert state_of(again.copy.committed) == state_of(source.copy.committed)
