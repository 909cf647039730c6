"""A log that forgets very many entries frees them a few at a time."""

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
