"""How long confirms are held for consumers that are busy."""

from types import SimpleNamespace
from typing import Any

from mirrormq.base import limits
from mirrormq.broker.pace import Pace

WINDOW = limits.pace_window_us


def paced(rate: int, ready: int) -> tuple[Pace, Any]:
    """A queue whose consumers take so many messages per second, with a backlog."""
    core: Any = SimpleNamespace(delivered=0, delivered_no_ack=0, ready=ready)
    pace = Pace(core, 0)
    core.delivered = rate * WINDOW // 1_000_000
    pace.measure(WINDOW)
    return pace, core


def test_a_confirm_is_held_for_as_long_as_consumers_need_for_the_backlog():
    pace, _ = paced(20_000, limits.pace_messages + 1_000)
    assert pace.hold_us(1_000) == 50_000


def test_nothing_is_held_without_a_backlog_or_busy_consumers():
    assert paced(20_000, limits.pace_messages)[0].hold_us(1_000) == 0
    assert paced(limits.pace_rate_min - 100, 100_000)[0].hold_us(1_000) == 0


def test_a_confirm_is_never_held_for_longer_than_the_bound():
    assert paced(limits.pace_rate_min, 1_000_000)[0].hold_us(100_000) == limits.pace_us_max


def test_who_waits_for_each_confirm_is_not_slowed_down_by_the_backlog_of_others():
    pace, _ = paced(20_000, 100_000)
    assert pace.hold_us(1) == limits.pace_publishers * 1_000_000 // 20_000 < 1_000


def test_consumers_that_pause_for_a_moment_are_not_overrun():
    pace, core = paced(20_000, 100_000)
    for number in range(2, 6):
        pace.measure(number * WINDOW)
        assert pace.hold_us(1_000) > 0
    for number in range(6, 20):
        pace.measure(number * WINDOW)
    assert pace.hold_us(1_000) == 0
    core.delivered += 20_000 * WINDOW // 1_000_000
    pace.measure(20 * WINDOW)
    assert pace.hold_us(1_000) > 0
