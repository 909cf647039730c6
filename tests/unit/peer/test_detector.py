"""Silence becomes a suspicion in time, but never because this node itself stood still."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.peer.detector import Detector
from mirrormq.peer.dialling import dial_delay_us
from tests.support.peerkit import SeededRng

TICK = limits.peer_tick_us
SUSPECT = limits.peer_suspect_us


def watch(*peers: str) -> Detector:
    detector = Detector(0)
    for peer in peers:
        detector.add(peer, 0)
    return detector


def test_a_peer_is_suspected_after_two_seconds_of_silence_and_no_longer_when_heard() -> None:
    detector = watch("b@h", "c@h")
    for at in range(TICK, SUSPECT, TICK):
        detector.heard("c@h", at)
        assert detector.suspects(at) == []
    assert detector.suspects(SUSPECT) == ["b@h"]
    detector.heard("b@h", SUSPECT)
    assert detector.suspects(SUSPECT + TICK) == []


def test_a_standstill_of_this_node_makes_nobody_suspect() -> None:
    detector = watch("b@h")
    assert detector.suspects(TICK) == []
    frozen = TICK + 60 * SUSPECT
    assert detector.suspects(frozen) == []
    # The peer really is gone: it gets the ordinary time again, less what it had used before.
    late = [at for at in range(frozen, frozen + 2 * SUSPECT, TICK) if detector.suspects(at)]
    assert late[0] == frozen + SUSPECT - TICK


@given(st.lists(st.integers(1, TICK * 3), min_size=1, max_size=80), st.data())
def test_a_peer_heard_in_time_is_never_suspected(gaps: list[int], data: st.DataObject) -> None:
    detector = watch("b@h")
    now = heard = 0
    for gap in gaps:
        now += gap
        if now - heard >= SUSPECT // 2 or data.draw(st.booleans()):
            detector.heard("b@h", now)
            heard = now
        assert detector.suspects(now) == []


def test_a_peer_that_is_not_watched_is_nobodys_business() -> None:
    detector = watch("b@h")
    detector.remove("b@h")
    detector.heard("b@h", 5)
    detector.measured("b@h", 10**9, 0)
    assert detector.suspects(100 * SUSPECT) == []
    assert detector.skewed() == {}


def test_a_clock_is_called_wrong_only_if_the_round_trip_cannot_explain_it() -> None:
    detector = watch("b@h", "c@h")
    detector.measured("c@h", -2_000_000, 1000)
    detector.measured("b@h", 1_400_000, 900_000)
    assert detector.skewed() == {"c@h": -2_000_000}
    detector.measured("b@h", 1_400_000, 500_000)
    detector.measured("c@h", 10, 1000)
    assert detector.skewed() == {"b@h": 1_400_000}


def test_attempts_come_further_apart_up_to_a_limit_and_differ_between_nodes() -> None:
    rng = SeededRng(3)
    assert dial_delay_us(0, rng) < limits.peer_dial_us_min
    for failures in range(1, 2000):
        longest = min(limits.peer_dial_us_max, limits.peer_dial_us_min << min(failures, 30))
        assert longest // 2 <= dial_delay_us(failures, rng) <= longest
    assert len({dial_delay_us(9, SeededRng(seed)) for seed in range(20)}) > 15
