"""A log that forgets very many entries frees them a few at a time."""

import random

import pytest

from mirrormq.cluster.raft.entries import Entry
from mirrormq.cluster.raft.log import RaftLog


def test_what_a_snapshot_covers_is_forgotten_at_once_and_freed_in_portions():
    log = RaftLog()
    log.append([Entry(1, index, b"x" * 10) for index in range(1, 101)])
    log.compact(90, trailing_bytes=205)
    assert (log.base_index, log.base_term, log.last_index) == (70, 1, 100)
    assert log.term_at(70) == 1
    assert log.term_at(69) is None
    freed = 0
    while log.has_dropped:
        log.free(30)
        freed += 1
    assert freed == 3


def test_a_log_shorter_than_what_may_trail_forgets_nothing():
    log = RaftLog(5, 2)
    log.append([Entry(2, 6, b"x"), Entry(3, 7, b"y")])
    log.compact(7, trailing_bytes=1_000)
    assert (log.base_index, log.base_term, log.last_index, log.has_dropped) == (5, 2, 7, False)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_forgotten_and_freed_the_rest_is_as_a_list_would_have_it(seed: int) -> None:
    rng = random.Random(seed)
    log, entries = RaftLog(3, 1), dict[int, Entry]()
    base, base_term = 3, 1
    for _ in range(400):
        last = max(entries, default=base)
        match rng.randrange(5):
            case 0 | 1:
                term = log.last_term + rng.randrange(2)
                made = [
                    Entry(term, last + 1 + n, b"x" * rng.choice((0, 1, 9))) for n in range(rng.randrange(9))
                ]
                log.append(made)
                entries |= {entry.index: entry for entry in made}
            case 2 if last > base:
                first = rng.randrange(max(base + 1, last - 3), last + 1)
                log.truncate(first)
                entries = {index: entry for index, entry in entries.items() if index < first}
            case 3 if last > base:
                upto, trailing = rng.randrange(base + 1, last + 1), rng.choice((0, 5, 30, 1000))
                log.compact(upto, trailing)
                kept = [n for n in range(base + 1, upto + 1) if size(entries, n, upto) <= trailing]
                begin = min(kept, default=upto + 1)
                if begin > base + 1:
                    base, base_term = begin - 1, entries[begin - 1].term
                entries = {index: entry for index, entry in entries.items() if index > base}
            case _:
                log.free(rng.randrange(5))
        assert (log.base_index, log.base_term, log.last_index) == (
            base,
            base_term,
            max(entries, default=base),
        )
        assert [log.entry(index) for index in entries] == list(entries.values())
        assert log.batch(base + 1, 1 << 40) == list(entries.values())
        assert log.term_at(base) == base_term
        assert log.term_at(base - 1) is None


def size(entries: dict[int, Entry], first: int, last: int) -> int:
    """Bytes of the entries from one to another."""
    return sum(len(entries[index].data) for index in range(first, last + 1))
