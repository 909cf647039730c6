"""Each rule of mirroring on a schedule made for it: without the rule a promise breaks, with it none does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirrormq.mirror.ports import Options
from mirrormq.sim import mirrorplanted as planted
from mirrormq.sim.mirrornode import MirrorNode
from mirrormq.sim.mirrorworld import MS, SECOND, MirrorWorld
from mirrormq.sim.model import Violation
from tests.support.mirrorkit import Stage, World, bound, compact_all, use_logs

Schedule = Callable[[World], None]


@pytest.fixture(params=["disk", "memory"], autouse=True)
def _logs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both with the shipped logs, which empty their files often, and with their stand-ins in memory."""
    use_logs(monkeypatch, is_on_disk=request.param == "disk")


def late_flow_of_an_old_epoch(world: World) -> None:
    """F1: what a source sent in an older epoch arrives when another master has already replaced it."""
    stage = Stage(world, size=4)
    stage.cut("n2>n3", "n1>n3", "n1>n4", "n3>n4")
    stage.world.store.restate(1)
    stage.run(40)
    stage.send("n1")
    stage.promote("n4")
    stage.send("n4")
    stage.mend("n2>n3")
    stage.run(50)
    stage.end()


def late_report_of_an_old_epoch(world: World) -> None:
    """F2, F11: a report about a log that was replaced since comes back to the master of that time."""
    stage = Stage(world)
    stage.cut("n2>n1", "n1>n3", "n2>n3")
    for _ in range(6):
        stage.send("n1")
    stage.run(30)
    stage.world.deaf.add("n2")
    # Their publisher is gone, and nobody sends them again.
    stage.world.nodes["n1"].homes[1].unconfirmed.clear()
    stage.promote("n3")
    stage.mend("n1>n3")
    stage.send("n3")
    # n1, and later n3, stand behind n2 in the ring: they ask the master when they get no answer.
    stage.run(400)
    stage.promote("n1")
    stage.send("n3")
    stage.run(400)
    stage.mend("n2>n1")
    stage.run(60)
    stage.end()


def report_of_what_was_never_compared(world: World) -> None:
    """F4: a deposed master's own tail is as long as what its successor has written."""
    stage = Stage(world)
    stage.cut("n1>n2", "n1>n3")
    stage.send("n1")
    stage.send("n1")
    stage.cut("n2>n1", "n3>n1")
    stage.promote("n2")
    stage.mend("n1>n2")
    key = stage.send("n2")
    # n3 stands behind n1 in the ring, and asks the master when n1 does not answer.
    stage.run(600)
    assert not stage.has_confirmed(key)
    stage.end()


def neighbour_that_is_not_matched(world: World) -> None:
    """F5: a deposed master stands in the ring with a tail nobody knows, and is asked for it."""
    stage = Stage(world)
    stage.promote("n2")
    stage.publish("n2")
    stage.cut("n2>n1", "n2>n3")
    stage.send("n2")
    stage.cut("n1>n2", "n1>n3")
    stage.promote("n3")
    stage.promote("n1")
    stage.send("n1")
    stage.mend("n2>n3")
    stage.run(60)
    stage.end()


def neighbour_that_is_behind(world: World) -> None:
    """F6: a member that was fed by the master goes back to its neighbour, which has less."""
    stage = Stage(world)
    stage.cut("n2>n3", "n3>n2")
    stage.world.reset("n2", "n3")
    stage.run(60)
    stage.cut("n1>n2")
    stage.send("n1")
    stage.run(30)
    stage.cut("n3>n1")
    stage.mend("n2>n3", "n3>n2")
    stage.run(60)
    stage.cut("n2>n3")
    stage.mend("n1>n2")
    stage.run(60)
    stage.end()


def member_that_is_being_admitted(world: World) -> None:
    """F7: the view with the new member is made, and the master has not heard of it yet."""
    stage = Stage(world, members=2)
    stage.world.wanted[1] = 3
    stage.learn("n3")
    stage.until(lambda: bool(stage.world.nodes["n3"].logs[1].end))
    stage.world.deaf.add("n1")
    stage.until(lambda: stage.is_member("n3"))
    stage.cut("n1>n3")
    stage.send("n1")
    stage.run(100)
    stage.end()


def learner_admitted_by_a_new_master(world: World) -> None:
    """F8a: a new master does not know yet how much its predecessor had committed."""
    with bound(mirror_read_bytes=1, mirror_frame_bytes=1, journal_file_bytes=1 << 20):
        stage = Stage(world)
        stage.cut("n1>n3", "n2>n3")
        stage.remove("n3")
        for _ in range(4):
            stage.publish("n1")
        stage.learn("n3")
        stage.run(60)
        known = stage.world.nodes["n2"].logs[1].folded
        key = stage.begin("n1")
        stage.until(lambda: stage.has_confirmed(key))
        # The confirm is out, and no other node knows of it.
        stage.world.crash("n1")
        stage.world.deferring = 1.0
        stage.until(lambda: stage.view.master == "n2")
        stage.mend("n2>n3")
        copy = stage.world.nodes["n3"].logs[1]
        stage.until(lambda: copy.end >= known)
        stage.cut("n2>n3")
        stage.run(300)
        stage.end()


def learner_without_old_records(world: World) -> None:
    """F8b: a learner that has nothing yet reports that it is there."""
    stage = Stage(world, members=2)
    stage.world.wanted[1] = 3
    stage.cut("n1>n3")
    stage.learn("n3")
    stage.run(200)
    stage.end()


def learner_with_a_slow_disk(world: World) -> None:
    """F8c: a learner has received all that is committed and flushed none of it."""
    stage = Stage(world, members=2)
    stage.world.wanted[1] = 3
    stage.world.nodes["n3"].flush_us = 5 * SECOND
    stage.learn("n3")
    stage.run(300)
    stage.end()


def master_with_a_slow_disk(world: World) -> None:
    """F10: the others are faster than the master itself."""
    stage = Stage(world)
    stage.world.nodes["n1"].flush_us = 5 * SECOND
    stage.send("n1")
    stage.run(100)
    stage.end()


def member_with_a_slow_disk(world: World) -> None:
    """Flushed is what is flushed."""
    stage = Stage(world)
    stage.world.nodes["n3"].flush_us = 5 * SECOND
    stage.send("n1")
    stage.run(100)
    stage.end()


def restarted_member_beside_an_unchanged_one(world: World) -> None:
    """F11: a transient message is confirmed when it is received; a restarted member has forgotten it."""
    stage = Stage(world)
    for node in stage.world.nodes.values():
        node.flush_us = 5 * SECOND
    key = stage.publish("n3", persistent=False)
    stage.world.crash("n2", lose_all=True)
    stage.world.crash("n1", lose_all=True)
    stage.world.start("n2")
    stage.until(lambda: stage.view.master in {"n2", "n3"})
    stage.run(200)
    master = stage.world.nodes[stage.view.master]
    if key not in master.queues[1].state.keys:
        raise Violation("a confirmed message is lost although an unchanged member had it")
    stage.end()


def transient_message_flushed_by_all_and_dropped(world: World) -> None:
    """F11: a master without a lease hears that a message is flushed everywhere, which its successor, a
    restarted member, drops all the same.
    """
    stage = Stage(world, members=2)
    mirrors = stage.world.nodes["n2"]
    stage.world.crash("n2")
    stage.world.start("n2")
    stage.until(lambda: is_matched(mirrors))
    stage.cut("n2>n1")
    stage.world.storeless.add("n1")
    stage.send("n1", persistent=False)
    stage.until(lambda: stage.view.master == "n2")
    stage.mend("n2>n1")
    stage.run(100)
    stage.end()


def is_matched(node: MirrorNode) -> bool:
    copy = node.mirrors.copies.get(1) if node.mirrors is not None else None
    return copy is not None and copy.member is not None and copy.member.is_matched


def all_members_restart_one_after_the_other(world: World) -> None:
    """Ruling 12: the last member may be gone for good while the others hold everything."""
    stage = Stage(world, size=4, members=2)
    stage.world.crash("n1")
    stage.world.start("n1")
    stage.world.run_until(lambda: bool(stage.world.nodes["n1"].mirrors), SECOND)
    stage.world.crash("n2")
    stage.until(lambda: stage.view.master == "n1", 8_000)
    stage.end()


def learner_of_a_life_that_is_over(world: World) -> None:
    """A node restarts between the wish to make it a learner and the view."""
    stage = Stage(world, members=2)
    stage.world.crash("n3")
    stage.world.start("n3")
    stage.run(100)
    if stage.learn("n3", start=1):
        # An entry of a life that is over: nobody answers for it.
        stage.until(lambda: stage.is_member("n3"), 5_000)
    stage.end()


def delivered_and_forgotten(world: World) -> None:
    """F12: a message is delivered, the master dies, and the next one delivers it again."""
    stage = Stage(world)
    stage.world.clients.acks = False
    stage.publish("n2")
    stage.world.clients.consumes = True
    stage.run(60)
    stage.world.crash("n1", lose_all=True)
    stage.until(lambda: stage.view.master == "n2")
    stage.run(300)
    stage.end()


def deposed_master_with_a_consumer(world: World) -> None:
    """F12: a master that the others have given up still holds messages it could deliver."""
    stage = Stage(world)
    stage.world.clients.acks = False
    stage.world.clients.consumes = True
    stage.run(60)
    stage.world.clients.consumes = False
    stage.publish("n1")
    stage.publish("n1")
    stage.run(150)
    stage.world.storeless.add("n1")
    stage.until(lambda: stage.view.master != "n1")
    stage.run(30)
    # As its successor does when it hears that the old master is dead.
    stage.remove("n1")
    stage.world.clients.consumes = True
    stage.world.clients.only = stage.view.master
    stage.until(lambda: stage.world.checker.of(1).delivering == stage.view.since)
    stage.world.clients.only = "n1"
    stage.run(100)
    stage.world.clients.only = ""
    stage.end()


def learner_that_catches_up_slowly(world: World) -> None:
    """F14: without a hold the log is gone before a slow learner gets there, again and again."""
    with bound(mirror_read_bytes=64):
        stage = Stage(world, members=2, options=Options(sync_bytes_per_second=8_000))
        stage.world.wanted[1] = 3
        for _ in range(40):
            stage.publish("n1")
        compact_all(stage)
        # The log behind the copy has to last until the copy is flushed.
        stage.world.nodes["n3"].flush_us = 600 * MS
        stage.learn("n3")
        for turn in range(60):
            if stage.is_member("n3"):
                break
            # Now and then: a record of a removal is left out where nothing holds it.
            stage.world.clients.consumes = turn % 10 == 1
            stage.send("n1")
            stage.run(100)
            compact_all(stage)
        if not stage.is_member("n3"):
            raise Violation("no progress: the learner never catches up")
        stage.end()


def copy_that_is_not_flushed(world: World) -> None:
    """The last record of a full copy has come, and its node loses power before a checkpoint says so."""
    stage = Stage(world, members=2)
    stage.world.wanted[1] = 3
    for _ in range(30):
        stage.publish("n1")
    compact_all(stage)
    stage.world.nodes["n3"].flush_us = 5 * SECOND
    stage.learn("n3")
    stage.run(2_000)
    stage.world.crash("n3", lose_all=True)
    stage.world.checker.members(stage.view)
    stage.world.start("n3")
    stage.end()


def copy_without_old_records(world: World) -> None:
    """A learner follows the log behind K0 and has no old records."""
    stage = Stage(world, members=2, options=Options(is_manual=True))
    stage.world.wanted[1] = 3
    for _ in range(30):
        stage.publish("n1")
    compact_all(stage)
    stage.learn("n3")
    for _ in range(10):
        stage.publish("n1")
    stage.run(500)
    stage.end()


def flush_under_way_when_records_were_replaced(world: World) -> None:
    """A mirror flushes what a deposed master wrote while the next master's records take its place."""
    stage = Stage(world)
    stage.cut("n2>n3", "n3>n2")
    stage.world.reset("n2", "n3")
    stage.run(60)
    stage.cut("n1>n2")
    slow = stage.world.nodes["n3"]
    slow.flush_us = 2 * SECOND
    slow.paused_since, slow.paused_until = stage.world.now, stage.world.now + 50 * MS
    for _ in range(4):
        stage.send("n1")
    # All of it comes at once, so that one flush has all of it.
    stage.run(30)
    # Their publisher is gone, and nobody sends them again.
    stage.world.nodes["n1"].homes[1].unconfirmed.clear()
    stage.mend("n2>n3", "n3>n2")
    stage.promote("n2")
    stage.mend("n1>n2")
    key = stage.begin("n2")
    stage.until(lambda: stage.has_confirmed(key))
    stage.world.crash("n3", lose_all=True)
    stage.world.checker.members(stage.view)
    stage.world.start("n3")
    stage.end()


DISK_RULES: dict[str, tuple[Schedule, World]] = {
    "a full copy counts when it is flushed": (copy_that_is_not_flushed, planted.CopiesBeforeFlush),
    "a flush counts for what was there when it began": (
        flush_under_way_when_records_were_replaced,
        planted.CountsOldFlushes,
    ),
    "a hollow copy does not count": (copy_without_old_records, planted.CountsHollowCopies),
}
"""Of the logs on disk."""

RULES: dict[str, tuple[Schedule, World]] = {
    "F1 fence": (late_flow_of_an_old_epoch, planted.NoFence),
    "F2 reports have an epoch and a life": (late_report_of_an_old_epoch, planted.AgelessReports),
    "F4 match before report": (report_of_what_was_never_compared, planted.ReportsUnmatched),
    "F5 only matched records are served": (neighbour_that_is_not_matched, planted.ServesUnmatched),
    "F6 nothing matched is given up": (neighbour_that_is_behind, planted.TruncatesMatched),
    "F7 proposed members count": (member_that_is_being_admitted, planted.IgnoresProposed),
    "F3 F8a own epoch first": (learner_admitted_by_a_new_master, planted.AdmitsTooEarly),
    "F8b complete": (learner_without_old_records, planted.AdmitsIncomplete),
    "F8c caught up": (learner_with_a_slow_disk, planted.AdmitsBehind),
    "F10 own flush": (master_with_a_slow_disk, planted.IgnoresOwnFlush),
    "flushed is flushed": (member_with_a_slow_disk, planted.ReportsBeforeFlush),
    "F11 unchanged before restarted": (restarted_member_beside_an_unchanged_one, planted.PromotesRestarted),
    "F11 lease": (transient_message_flushed_by_all_and_dropped, planted.ConfirmsTransientByFlush),
    "12 restarted members stay": (all_members_restart_one_after_the_other, planted.RemovesRestarted),
    "12 lives are guarded": (learner_of_a_life_that_is_over, planted.AdmitsAnyLife),
    "F12 horizon": (delivered_and_forgotten, planted.DeliversAboveHorizon),
    "F12 received by all": (delivered_and_forgotten, planted.DeliversBeforeReceived),
    "F12 lease": (deposed_master_with_a_consumer, planted.DeliversWithoutLease),
    "F12 promotion waits": (deposed_master_with_a_consumer, planted.PromotesUnderLease),
    "F14 hold": (learner_that_catches_up_slowly, planted.HoldsNothing),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_schedule_passes_with_its_rule(rule: str) -> None:
    schedule, _ = RULES[rule]
    schedule(MirrorWorld)


@pytest.mark.parametrize("rule", RULES)
def test_the_same_schedule_breaks_a_promise_without_its_rule(rule: str) -> None:
    schedule, without = RULES[rule]
    with pytest.raises(Violation):
        schedule(without)


@pytest.mark.parametrize("rule", DISK_RULES)
def test_without_a_rule_of_the_logs_on_disk_a_promise_breaks(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, without = DISK_RULES[rule]
    use_logs(monkeypatch, is_on_disk=True)
    schedule(MirrorWorld)
    with pytest.raises(Violation):
        schedule(without)
