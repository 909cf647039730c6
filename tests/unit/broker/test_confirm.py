"""Barriers of publisher confirms: what they wait for, and how often they look at it."""

from mirrormq.broker.confirm import Barrier


class Log:
    """A log that counts how often it is asked."""

    def __init__(self) -> None:
        self.at = 0
        self.is_over = False
        self.asked = 0

    @property
    def confirmable(self) -> int:
        self.asked += 1
        return self.at


def test_a_barrier_is_released_when_every_log_has_come_to_its_position():
    first, second = Log(), Log()
    barrier = Barrier(1, [(first, 5), (second, 7)])
    assert not barrier.is_released()
    second.at = 7
    assert not barrier.is_released()
    first.at = 5
    assert barrier.is_released()
    assert not barrier.is_missing


def test_a_log_that_is_over_is_not_waited_for_and_its_publishes_are_missing():
    first, second = Log(), Log()
    barrier = Barrier(1, [(first, 5), (second, 7)])
    second.is_over = True
    assert not barrier.is_released()
    first.at = 5
    assert barrier.is_released()
    assert barrier.is_missing


def test_what_was_reached_before_a_log_was_over_is_not_missing():
    first, second = Log(), Log()
    barrier = Barrier(1, [(first, 5), (second, 7)])
    second.at = 7
    assert not barrier.is_released()
    second.is_over, second.at = True, 3
    first.at = 5
    assert barrier.is_released()
    assert not barrier.is_missing


def test_a_barrier_of_thousands_of_logs_asks_one_of_them_in_each_pass():
    logs = [Log() for _ in range(1000)]
    barrier = Barrier(1, [(log, 1) for log in logs])
    for _ in range(1000):
        assert not barrier.is_released()
    assert sum(log.asked for log in logs) == 1000
    for log in logs:
        log.at = 1
    assert barrier.is_released()
