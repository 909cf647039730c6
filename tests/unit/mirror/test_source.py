"""What a stream does with flows that its link did not take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrormq.mirror.copy import Copy
from mirrormq.mirror.frames import Hello
from mirrormq.mirror.links import Link
from mirrormq.mirror.ports import Data, Outside
from mirrormq.mirror.source import LIVE, READING, Stream
from mirrormq.mirror.views import Change

BASE = 2


class Road:
    """A link that takes so many frames."""

    def __init__(self, takes: int) -> None:
        self.takes = takes

    def send(self, _peer: str, _parts: tuple[Data, ...]) -> bool:
        self.takes -= 1
        return self.takes >= 0

    def propose(self, change: Change, done: Any) -> None:
        raise AssertionError(change)


def live_stream() -> tuple[Link, Stream]:
    """One that has sent everything up to 3, of which the peer lacks what was live up to 2."""
    log = SimpleNamespace(end=5, low=1, epoch_at=lambda _: 1, has_live_upto=lambda _: False)
    copy = SimpleNamespace(log=log, master=None, is_learner=lambda _: False)
    link = Link("peer", 0)
    link.is_up = True
    stream = Stream(cast("Copy", copy), link, Hello(1, 1, 1, 3, ((1, 1),), 0, 0))
    stream.state, stream.position, stream.base = LIVE, 3, BASE
    return link, stream


@pytest.mark.parametrize("is_start", [False, True])
def test_pushes_with_something_between_them_that_are_given_back_are_sent_again_from_the_first_on(
    is_start: bool,
) -> None:
    link, stream = live_stream()
    stream.is_start_due = is_start
    stream.offer(b"4", 4)
    stream.complete_by_itself()
    stream.offer(b"5", 5)
    assert (stream.position, len(link.flows)) == (5, 3)
    link.send(cast("Outside", Road(0)), with_marks=False)
    assert (stream.position, stream.state) == (3, READING)
    assert stream.is_start_due is is_start
    assert stream.base == BASE
    assert list(link.readers) == [stream]
