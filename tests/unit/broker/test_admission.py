"""What confirms of a queue wait for when its master moves in the pass of the publish."""

from types import SimpleNamespace
from typing import Any

from mirrormq.broker.admission import Admissions
from mirrormq.broker.confirm import Barrier
from tests.support.fakehost import NotCutOff


def log(end: int, confirmable: int, *, is_over: bool = False) -> Any:
    return SimpleNamespace(end=end, confirmable=confirmable, is_over=is_over)


def queue(own: Any, pending: int = 0) -> Any:
    host = SimpleNamespace(partition=NotCutOff())
    return SimpleNamespace(log=own, core=SimpleNamespace(pending=pending, gone=False), host=host)


def successor(own: Any) -> Any:
    return SimpleNamespace(positions=[(own, own.end)])


def test_what_a_master_took_in_the_pass_in_which_it_lost_the_queue_is_refused():
    own, far = log(5, 3), log(7, 7)
    admissions = Admissions(queue(own))
    admissions.hand_over(successor(far))
    own.is_over = True
    barrier = Barrier(1, admissions.positions)
    assert barrier.is_released()
    assert barrier.is_missing


def test_what_still_waited_then_is_confirmed_by_the_next_master_and_not_before():
    own, far = log(5, 5, is_over=True), log(7, 6)
    admissions = Admissions(queue(own, pending=2))
    admissions.hand_over(successor(far))
    barrier = Barrier(1, admissions.positions)
    assert not barrier.is_released()
    far.confirmable = 7
    assert barrier.is_released()
    assert not barrier.is_missing


def test_positions_asked_for_before_the_move_follow_it():
    own, far = log(5, 5), log(7, 6)
    admissions = Admissions(queue(own, pending=1))
    barrier = Barrier(1, admissions.positions)
    admissions.hand_over(successor(far))
    own.is_over = True
    assert not barrier.is_released()
    far.confirmable = 7
    assert barrier.is_released()
    assert not barrier.is_missing


def test_a_deleted_queue_holds_nobody_up():
    own = queue(log(5, 3), pending=1)
    admissions = Admissions(own)
    own.core.gone = True
    assert admissions.positions == []
