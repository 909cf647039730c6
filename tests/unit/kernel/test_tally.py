"""Counters of channels and exchanges: what is counted below is counted above, and stays there."""

from __future__ import annotations

import pytest

from mirrormq.kernel.tally import CHANNEL_COUNTS, EXCHANGE_COUNTS, Tally


def test_what_is_counted_is_counted_above_and_stays_when_the_lower_one_is_gone() -> None:
    above = Tally()
    for _ in range(2):
        own = Tally()
        own.above = above
        own.add(CHANNEL_COUNTS.index("publish"), 3)
        own.add(CHANNEL_COUNTS.index("ack"))
        assert dict(zip(CHANNEL_COUNTS, own.of_channel(), strict=True))["publish"] == 3
    counts = dict(zip(CHANNEL_COUNTS, above.of_channel(), strict=True))
    assert {name: count for name, count in counts.items() if count} == {"publish": 6, "ack": 2}


def test_an_exchange_has_two_counters_of_its_own() -> None:
    tally = Tally()
    tally.add(EXCHANGE_COUNTS.index("publish_in"))
    tally.add(EXCHANGE_COUNTS.index("publish_out"), 2)
    assert tally.of_exchange() == (1, 2)


@pytest.mark.parametrize("what", [-1, len(CHANNEL_COUNTS)])
def test_there_are_no_other_counters(what: int) -> None:
    with pytest.raises(IndexError):
        Tally().add(what)
