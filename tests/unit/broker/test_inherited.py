"""What a new master keeps aside of its log while clients may still hold it."""

from types import SimpleNamespace
from typing import Any

from mirrormq.broker.inherited import REJECT, Inherited


def test_a_rejected_message_stays_withheld_until_the_log_has_its_end():
    thrown: list[int] = []
    core: Any = SimpleNamespace(
        gone=False, touch=lambda: None, throw_away=lambda _message, seq, _reason: thrown.append(seq)
    )
    log: Any = SimpleNamespace(withheld=set(), end=5, counts={}, dead=set(), dying={})
    queue: Any = SimpleNamespace(core=core, host=SimpleNamespace(now=SimpleNamespace(mono=10)))
    inherited = Inherited(queue, log)
    log.withheld.add(3)
    inherited.settle(3, REJECT, 0)
    inherited.is_waiting = False
    message: Any = object()
    inherited._return(message, 3, 0)
    assert thrown == [3]
    # Whoever reads that part of the log now must not find it ready: its end is not written yet.
    assert log.withheld == {3}
    assert not inherited.is_over
    log.dead.add(3)
    inherited._look_at = 0
    assert inherited.is_over
    assert log.withheld == set()
