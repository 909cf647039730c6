"""A file of batches is gone through once, in steps that stay short whatever follows what."""

import random

import pytest

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log.disk import ReadDone
from mirrormq.log.scan import Head
from mirrormq.log.slices import Gap, Slices

QUEUE = 7


class Reader:
    """Notes which batches it was shown, and how many at once."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.seqs: list[int] = []
        self.most = 0
        self.gaps: list[Gap] = []
        self.ended = 0
        self._wanted: list[tuple[int, int, ReadDone]] = []

    def read(self, _file: str, offset: int, length: int, done: ReadDone) -> None:
        self._wanted.append((offset, length, done))

    def batches(self, _data: bytes, found: list[tuple[int, Head]]) -> bool:
        self.most = max(self.most, len(found))
        self.seqs += [head[3] for _, head in found]
        return True

    def gap(self, gap: Gap) -> None:
        self.gaps.append(gap)

    def end(self, error: str | None) -> None:
        assert error is None
        self.ended += 1

    def run(self) -> None:
        Slices(self.read, "file", (0, len(self.data)), self).start()
        while self._wanted:
            offset, length, done = self._wanted.pop()
            done(self.data[offset : offset + length], None)


def batch(seq: int, size: int) -> bytes:
    return records.encode_batch(QUEUE, 1, seq, 1, [(records.HORIZON, 0, b"x" * size)])


@pytest.mark.parametrize("seed", range(5))
def test_every_batch_is_shown_once_and_few_at_a_time(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [size for _ in range(6) for size in [rng.choice((8, 500, 40_000))] * rng.randrange(1, 500)]
    reader = Reader(b"".join(batch(seq, size) for seq, size in enumerate(sizes, 1)))
    reader.run()
    assert reader.seqs == [*range(1, len(sizes) + 1)]
    assert (reader.ended, reader.gaps) == (1, [])
    assert reader.most <= 2 * limits.recycle_slice_batches


def test_what_is_damaged_between_very_small_batches_is_told_once() -> None:
    made = [batch(seq, 60_000 if seq < 60 else 8) for seq in range(1, 3000)]
    spoilt = bytearray(made[1500])
    spoilt[-1] ^= 1
    made[1500] = bytes(spoilt)
    reader = Reader(b"".join(made))
    reader.run()
    assert reader.seqs == [seq for seq in range(1, 3000) if seq != 1501]
    assert [(gap.queue_id, gap.first) for gap in reader.gaps] == [(QUEUE, 1501)]
    assert reader.most <= 2 * limits.recycle_slice_batches
