"""What STAGE and COMMIT_SET records say, and what checkpoints and copies keep of it."""

from mirrormq.kernel import records
from mirrormq.kernel.ranges import RangeSet
from mirrormq.log import origins, sinkstate
from mirrormq.log.cursors import Cursors
from mirrormq.log.fold import Fold
from mirrormq.log.origins import Origins, Run
from mirrormq.log.sinkstate import SinkState, Staged, Tx


def tx(number, partition, *blocks, batch=1):
    return Tx(number, batch, 100, 200, partition, tuple(Staged(*block) for block in blocks))


def staged(*txs):
    state = SinkState()
    for one in txs:
        state.stage(sinkstate.STAGED, sinkstate.encode_tx(one))
    return state


def test_numbers_are_dense_per_target_in_the_order_of_the_commit():
    state = staged(tx(1, 0, (10, 7, 3, 0), (11, 8, 2, 0)), tx(2, 1, (12, 7, 5, 0)))
    state.commit(sinkstate.encode_commit(150, 1, [2, 1]))
    assert [(one.seq, one.target, one.first, one.last) for one in state.sending.values()] == [
        (12, 7, 1, 5),
        (10, 7, 6, 8),
        (11, 8, 1, 2),
    ]
    assert (state.last, state.committed, state.txs) == (1, 10, {})


def test_what_is_dropped_or_skipped_is_told():
    state = staged(tx(1, 0, (10, 7, 3, 0)), tx(2, 1, (12, 7, 5, 0)))
    state.stage(sinkstate.DROPPED, sinkstate.encode_dropped(150, [1, 99]))
    state.stage(sinkstate.SKIPPED, sinkstate.encode_skipped(150, 4))
    assert (list(state.txs), state.skipped) == ([2], 4)


def test_a_state_that_was_kept_is_the_same_state():
    state = staged(tx(1, 0, (10, 7, 3, 1)), tx(2, 1, (12, 7, 5, 0)))
    state.commit(sinkstate.encode_commit(150, 1, [1]))
    again = SinkState.load(state.save())
    assert again.save() == state.save()
    again.commit(sinkstate.encode_commit(150, 2, [2]))
    assert list(state.txs) == [2]
    assert again.sending[12].first == 4


def test_a_block_that_was_removed_is_forgotten():
    state = staged(tx(1, 0, (10, 7, 3, 0), (11, 7, 3, 0)))
    state.commit(sinkstate.encode_commit(150, 1, [1]))
    state.forget(RangeSet([(1, 10)]))
    assert (list(state.sending), state.known()) == ([11], {11})


class _Log:
    end = 0


def test_the_fold_of_the_same_records_is_the_same_state():
    def fold():
        return Fold(5, Cursors(_Log()))

    one, other = fold(), fold()
    rows = [
        (records.STAGE, sinkstate.STAGED, sinkstate.encode_tx(tx(1, 0, (10, 7, 3, 0)))),
        (records.COMMIT_SET, 0, sinkstate.encode_commit(150, 1, [1])),
        (records.PUBNOTE, 1, origins.encode(20, [(100, 3), (110, 2)])),
    ]
    for kind, flags, payload in rows:
        one.apply(kind, flags, payload)
    other.take(one)
    assert other.sink.save() == one.sink.save()
    assert other.origins.save(RangeSet()) == one.origins.save(RangeSet())
    assert other.origins.find([(101, 111)]) == [(21, 22), (23, 24)]


def test_runs_without_anything_live_are_forgotten():
    found = Origins()
    dead = RangeSet()
    for at in range(5000):
        found.note(origins.encode(at + 1, [(2 * at + 1, 1)]))
        dead.add(at + 1, at + 1)
        found.tidy(dead)
    assert len(found._runs) < 5000
    assert found.high == 9999


def test_copies_are_found_by_where_they_come_from_until_they_are_dead():
    found = Origins(0, [])
    found.note(origins.encode(1, [(10, 5), (20, 5)]))
    found.note(origins.encode(50, [(25, 5)]))
    assert found.high == 29
    assert found.find([(1, 9)]) == []
    assert found.find([(12, 13)]) == [(3, 4)]
    assert found.find([(14, 26)]) == [(5, 5), (6, 10), (50, 51)]
    assert found.find([(30, 99)]) == []
    saved = found.save(RangeSet([(1, 5)]))
    assert saved.runs == [Run(20, 6, 5), Run(25, 50, 5)]
    again = origins.load(saved)
    assert (again.high, again.find([(10, 20)])) == (29, [(6, 6)])
