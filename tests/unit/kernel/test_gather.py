"""Taking ranges out of slices of files: against a model, over all ways of cutting a file into slices."""

import random

import pytest

from mirrormq.kernel import gather, records
from mirrormq.kernel.cores import QueueCore, Worklist
from mirrormq.kernel.gather import Digest, Gather
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.message import Message
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log.scan import scan
from tests.support.bulkkit import unpacked

QUEUE, OTHER = 7, 8
Row = tuple[int, int, bytes]


def publishes(first: int, count: int, queue: int = QUEUE, epoch: int = 1) -> bytes:
    core = QueueCore(Worklist(), Graveyard(), None, 0)
    for number in range(first, first + count):
        core.push(Message(b"", b"q", b"\x00\x00", b"m%d" % number * (number % 5)))
    return records.encode_publishes(core, count, queue, epoch, first, 1)[0]


def others(first: int, count: int) -> bytes:
    return records.encode_batch(QUEUE, 1, first, 1, [(records.HORIZON, 0, b"12345678")] * count)


def made(rng: random.Random, upto: int = 120) -> tuple[bytes, list[Row]]:
    """A file of several queues, and the rows of the queue in it."""
    parts: list[bytes] = []
    seq = 1
    while seq < upto:
        count = rng.randint(1, 9)
        kind = rng.random()
        if kind < 0.2:
            parts.append(publishes(rng.randint(1, 50), count, OTHER))
            continue
        if kind < 0.3:
            parts.append(b"some bytes that are no batch, MQB1 among them")
            continue
        parts.append(others(seq, count) if kind < 0.5 else publishes(seq, count))
        seq += count
    data = b"".join(parts)
    heads = [(part, records.read_head(part, 0)) for part in parts]
    own = b"".join(part for part, head in heads if head is not None and head[1] == QUEUE)
    return data, unpacked(own)


def fed(gatherer: Gather, data: bytes, rng: random.Random) -> bytes:
    """What comes out when the file is read in slices of any size."""
    out: list[bytes] = []
    at = 0
    length = rng.randint(1, 3000)
    while at < len(data) and not gatherer.is_done and not gatherer.missing:
        piece = data[at : at + length]
        found, resume, need = gatherer.feed(piece)
        out.append(b"" if found is None else bytes(found))
        if resume == 0 and len(piece) < length:
            break
        at += resume
        length = max(need, rng.randint(1, 3000)) if resume or need else length * 2
    return b"".join(out)


@pytest.mark.parametrize("seed", range(40))
def test_a_dense_range_is_exactly_its_records(seed: int) -> None:
    rng = random.Random(seed)
    data, rows = made(rng)
    last = rows[-1][0]
    start = rng.randint(1, last)
    end = rng.randint(start, last + 1)
    upto = rng.randint(end, last + 1)
    gatherer = Gather(QUEUE, start, end, upto)
    wanted = [row for row in rows if start <= row[0] < (end if row[1] == records.PUBLISH else upto)]
    assert unpacked(fed(gatherer, data, rng)) == wanted
    assert gatherer.is_done
    assert gatherer.position == upto


@pytest.mark.parametrize("seed", range(40))
def test_a_live_range_is_exactly_what_is_not_dead(seed: int) -> None:
    rng = random.Random(seed)
    data, rows = made(rng)
    last = rows[-1][0]
    dead = RangeSet((seq, seq) for seq, kind, _ in rows if kind != records.PUBLISH or rng.random() < 0.5)
    start = rng.randint(1, last)
    end = rng.randint(start, last + 1)
    gatherer = Gather(QUEUE, start, end, end, dead)
    wanted = [row for row in rows if start <= row[0] < end and row[0] not in dead]
    assert unpacked(fed(gatherer, data, rng)) == wanted


def test_a_record_that_is_missing_is_named() -> None:
    data = publishes(1, 3) + publishes(5, 3)
    gatherer = Gather(QUEUE, 1, 8, 8)
    gatherer.feed(data)
    assert gatherer.missing == 4
    live = Gather(QUEUE, 1, 8, 8, RangeSet([(4, 4)]))
    found, _, _ = live.feed(data)
    assert found is not None
    assert [seq for seq, _, _ in unpacked(bytes(found))] == [1, 2, 3, 5, 6, 7]


def test_whoever_looks_for_gaps_gets_what_is_there() -> None:
    gatherer = Gather(QUEUE, 1, 8, 8)
    gatherer.lenient = True
    found, _, _ = gatherer.feed(publishes(1, 3) + publishes(5, 3))
    assert found is not None
    assert [seq for seq, _, _ in unpacked(bytes(found))] == [1, 2, 3, 5, 6, 7]


def test_a_slice_of_wanted_batches_is_handed_on_as_it_is() -> None:
    data = publishes(1, 3) + others(4, 1) + publishes(5, 2)
    found, resume, need = Gather(QUEUE, 1, 7, 7).feed(data)
    assert found is data
    assert (resume, need) == (len(data), 0)


def test_a_damaged_batch_counts_for_nothing() -> None:
    broken = bytearray(publishes(4, 3))
    broken[70] ^= 1
    gatherer = Gather(QUEUE, 1, 10, 10)
    gatherer.feed(publishes(1, 3) + bytes(broken) + publishes(7, 3))
    assert gatherer.missing == 4


def test_batches_of_an_epoch_that_was_given_up_are_passed_over() -> None:
    data = publishes(1, 3) + publishes(4, 3, epoch=1) + publishes(4, 2, epoch=2)
    found, _, _ = Gather(QUEUE, 1, 6, 6).feed(data, [(1, 1), (2, 4)])
    assert found is not None
    assert [head[2] for _, head in scan(bytes(found)).batches] == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_are_survived(seed: int) -> None:
    rng = random.Random(seed)
    data, _ = made(rng)
    noisy = bytearray(data)
    for _ in range(rng.randint(1, 40)):
        noisy[rng.randrange(len(noisy))] = rng.randrange(256)
    gatherer = Gather(QUEUE, 1, 200, 200)
    gatherer.lenient = True
    unpacked(fed(gatherer, bytes(noisy), rng))


def test_digests_do_not_depend_on_how_records_are_batched() -> None:
    rows = []
    for sizes in ([30], [10, 10, 10], [1] * 30):
        digest = Digest(1, 31, 8, RangeSet([(5, 6)]))
        seq = 1
        out = b""
        for size in sizes:
            out += digest.feed(publishes(seq, size))
            seq += size
        rows.append(out + digest.finish())
    assert rows[0] == rows[1] == rows[2]
    assert len(rows[0]) == 4 * 32


def test_removals_are_those_of_ranges_and_purges() -> None:
    span = b"".join(number.to_bytes(8, "little") for number in (0, 3, 5, 1))
    purge = b"".join(number.to_bytes(8, "little") for number in (0, 12, 8, 10))
    rows = [(records.REMOVE, 0, span), (records.REMOVE, 1, purge), (records.EPOCH, 1, b"x")]
    dead = RangeSet()
    left = gather.removals(records.encode_batch(QUEUE, 1, 20, 1, rows), dead)
    assert dead.spans_list() == [(1, 7), (9, 9), (11, 12)]
    assert left == [(records.EPOCH, 1, b"x")]
