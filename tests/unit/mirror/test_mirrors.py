"""What a mirrored queue does when nothing is drawn by lot: views, slow members, transfers, full copies."""

from __future__ import annotations

import pytest

from mirrormq.base import limits
from mirrormq.base.types import Now
from mirrormq.mirror import frames
from mirrormq.mirror.mirrors import Mirrors
from mirrormq.mirror.ports import Options
from mirrormq.mirror.source import Stream
from mirrormq.sim.mirrordisk import DiskStore
from mirrormq.sim.mirrorstream import Key
from mirrormq.sim.mirrorworld import SECOND, MirrorWorld
from tests.support.mirrorkit import Stage, bound, compact_all, use_logs


@pytest.fixture(params=["disk", "memory"], autouse=True)
def _logs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both with the shipped logs, which empty their files often, and with their stand-ins in memory."""
    use_logs(monkeypatch, is_on_disk=request.param == "disk")


def folded(stage: Stage, name: str) -> int:
    return stage.world.nodes[name].logs[1].folded


def mirrors_of(stage: Stage, name: str) -> Mirrors:
    mirrors = stage.world.nodes[name].mirrors
    assert mirrors is not None
    return mirrors


def test_every_member_has_the_masters_bytes_and_learns_what_is_committed() -> None:
    stage = Stage(MirrorWorld)
    for _ in range(5):
        stage.publish("n2")
    stage.run(300)
    logs = [node.logs[1] for node in stage.world.nodes.values()]
    assert logs[0].batches == logs[1].batches == logs[2].batches
    assert [log.folded for log in logs] == [logs[0].end] * 3


def test_a_member_whose_neighbour_cannot_be_reached_is_fed_by_the_master_and_stays_in_sync() -> None:
    stage = Stage(MirrorWorld)
    epoch = stage.view.epoch
    stage.cut("n2>n3", "n3>n2")
    stage.world.reset("n2", "n3")
    stage.publish("n1")
    stage.run(5_000)
    stage.publish("n1")
    assert stage.view.epoch == epoch
    assert mirrors_of(stage, "n3").copies[1].member.source == "n1"  # type: ignore[union-attr]
    stage.mend("n2>n3", "n3>n2")
    stage.run(100)
    assert mirrors_of(stage, "n3").copies[1].member.source == "n2"  # type: ignore[union-attr]
    stage.end()


def test_a_member_that_nobody_reaches_is_removed_after_the_suspicion_and_confirms_go_on() -> None:
    stage = Stage(MirrorWorld)
    stage.world.crash("n3")
    key = stage.send("n1")
    stage.run(1_000)
    assert not stage.has_confirmed(key)
    stage.until(lambda: stage.has_confirmed(key), 2_000)
    assert not stage.is_member("n3")


def test_a_member_whose_node_is_known_to_be_dead_is_removed_at_once() -> None:
    stage = Stage(MirrorWorld)
    stage.world.crash("n3")
    mirrors_of(stage, "n1").node_dead("n3", 1)
    key = stage.send("n1")
    stage.until(lambda: stage.has_confirmed(key), 200)


def test_a_suspected_member_is_not_given_the_time_again_when_its_connection_ends_too() -> None:
    stage = Stage(MirrorWorld)
    master = mirrors_of(stage, "n1")
    master.suspect("n3", stage.world.nodes["n1"].now, is_silent=True)
    master.link_down("n3", stage.world.nodes["n1"].now)
    assert master.is_lost("n3", 1)
    master.link_up("n3", 1, stage.world.nodes["n1"].now)
    assert not master.is_lost("n3", 1)
    master.link_down("n3", stage.world.nodes["n1"].now)
    master.suspect("n3", stage.world.nodes["n1"].now, is_silent=True)
    assert not master.is_lost("n3", 1), "silence of a connection that has ended says nothing"


def test_a_member_that_holds_up_confirms_for_too_long_is_removed() -> None:
    stage = Stage(MirrorWorld, options=Options(mirror_timeout_us=SECOND))
    stage.world.nodes["n2"].flush_us = 60 * SECOND
    key = stage.send("n1")
    stage.run(700)
    assert stage.is_member("n2")
    assert not stage.has_confirmed(key)
    stage.until(lambda: stage.has_confirmed(key), 1_500)
    assert not stage.is_member("n2")
    assert stage.is_member("n3")


class Waiting:
    """A queue mastered here about which nothing can be done for now."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.looks = 0
        self.master = self

    def step(self, _: Now) -> bool:
        self.looks += 1
        return False

    def mend(self, _: str, __: Now) -> bool:
        self.looks += 1
        return False


@pytest.mark.parametrize("line", ["pending", "uneasy", "hurt"])
def test_queues_behind_those_that_cannot_be_helped_are_looked_at_in_their_turn(line: str) -> None:
    mirrors = Mirrors("n1", 1, None, Now(0, 0))  # type: ignore[arg-type]
    copies = [Waiting(number) for number in range(3 * limits.mirror_slice_queues)]
    for copy in copies:
        getattr(mirrors, line)[copy] = "it is damaged" if line == "hurt" else None
    for _ in range(3):
        mirrors.tick(Now(0, 0))
    assert {copy.looks for copy in copies} == {1}


def test_a_slow_member_stays_if_too_few_would_be_left() -> None:
    stage = Stage(MirrorWorld, members=2, options=Options(min_in_sync=2, mirror_timeout_us=SECOND))
    stage.world.nodes["n2"].flush_us = 4 * SECOND
    key = stage.send("n1")
    stage.until(lambda: stage.has_confirmed(key))
    assert stage.is_member("n2")


def test_nothing_is_confirmed_with_fewer_members_than_the_policy_asks_for() -> None:
    stage = Stage(MirrorWorld, members=2, options=Options(min_in_sync=2))
    stage.world.crash("n2")
    stage.until(lambda: not stage.is_member("n2"))
    key = stage.send("n1")
    stage.run(1_000)
    assert not stage.has_confirmed(key)
    assert stage.learn("n3")
    stage.until(lambda: stage.has_confirmed(key))


def test_a_planned_transfer_loses_nothing_and_takes_less_than_200_ms() -> None:
    stage = Stage(MirrorWorld)
    before = [stage.publish("n3") for _ in range(5)]
    began = stage.world.now
    assert mirrors_of(stage, "n1").transfer(1, "n2", stage.world.nodes["n1"].now)
    stage.until(lambda: 1 in stage.world.nodes["n2"].queues, 200)
    stage.publish("n2")
    assert stage.world.now - began < SECOND // 5
    assert set(before) <= set(stage.world.nodes["n2"].queues[1].state.keys)
    stage.end()


def test_a_transfer_to_a_member_that_does_not_answer_is_given_up() -> None:
    stage = Stage(MirrorWorld)
    stage.cut("n2>n1")
    stage.send("n1")
    assert mirrors_of(stage, "n1").transfer(1, "n2", stage.world.nodes["n1"].now)
    key = stage.send("n3")
    stage.run(1_000)
    assert not stage.has_confirmed(key)
    stage.until(lambda: stage.has_confirmed(key), 12_000)
    assert stage.view.master == "n1"


def test_a_returning_member_catches_up_with_what_it_missed_and_keeps_the_rest() -> None:
    with bound(journal_file_bytes=1 << 20):
        stage = Stage(MirrorWorld)
        for _ in range(20):
            stage.publish("n1")
        stage.world.crash("n3")
        stage.until(lambda: not stage.is_member("n3"))
        for _ in range(3):
            stage.publish("n1")
        stage.world.wanted[1] = 3
        stage.world.start("n3")
        stage.run(100)
        assert stage.learn("n3")
        stage.until(lambda: stage.is_member("n3"))
        assert stage.world.stats.copies == 0
        stage.end()


def test_a_returning_member_learns_what_is_committed_although_nothing_more_happens() -> None:
    """The master says it once, maybe before that member has told where its log parts from the others'."""
    stage = Stage(MirrorWorld)
    stage.world.crash("n3")
    for _ in range(20):
        stage.send("n1")
        stage.run(200)
    stage.world.start("n3")
    stage.until(lambda: stage.is_member("n3"), 20_000)
    stage.run(1_000)
    assert folded(stage, "n3") == folded(stage, "n1") == stage.world.nodes["n1"].logs[1].end


def test_a_new_mirror_gets_a_full_copy_while_publishing_goes_on() -> None:
    with bound(mirror_read_bytes=200, mirror_frame_bytes=300):
        stage = Stage(MirrorWorld, members=2)
        for _ in range(30):
            stage.publish("n1")
        stage.run(100)
        compact_all(stage)
        stage.world.wanted[1] = 3
        assert stage.learn("n3")
        for _ in range(5):
            stage.publish("n1")
        stage.until(lambda: stage.is_member("n3"))
        assert stage.world.stats.copies == 1
        stage.end()


def test_a_full_copy_whose_pin_was_given_up_goes_on_where_it_was() -> None:
    with bound(mirror_read_bytes=200, mirror_frame_bytes=300):
        stage = Stage(MirrorWorld, members=2, options=Options(sync_bytes_per_second=20_000))
        for _ in range(40):
            stage.publish("n1")
        stage.run(100)
        compact_all(stage)
        stage.world.wanted[1] = 3
        assert stage.learn("n3")
        learner = stage.world.nodes["n3"].logs
        stage.until(lambda: 1 in learner and learner[1].copied > 15)
        reached = learner[1].copied
        stage.world.nodes["n1"].logs[1].lose_pins()
        lowest = [reached]

        def is_done() -> bool:
            if learner[1].base:
                lowest.append(learner[1].copied)
            return stage.is_member("n3")

        stage.until(is_done)
        assert min(lowest) >= reached
        stage.end()


def test_a_full_copy_ends_although_its_pin_is_given_up_again_and_again() -> None:
    with bound(mirror_read_bytes=200, mirror_frame_bytes=300):
        stage = Stage(MirrorWorld, members=2)
        for _ in range(40):
            stage.publish("n1")
        stage.run(100)
        compact_all(stage)
        stage.world.wanted[1] = 3
        stage.world.deferring = 1.0
        assert stage.learn("n3")

        def is_done() -> bool:
            stage.world.nodes["n1"].logs[1].lose_pins()
            return stage.is_member("n3")

        stage.until(is_done)
        assert stage.world.stats.copies == 1
        stage.end()


def test_manual_mode_copies_nothing_until_the_old_records_are_gone() -> None:
    stage = Stage(MirrorWorld, members=2, options=Options(is_manual=True))
    keys = [stage.publish("n1") for _ in range(5)]
    stage.run(100)
    compact_all(stage)
    stage.world.wanted[1] = 3
    assert stage.learn("n3")
    stage.run(2_000)
    assert not stage.is_member("n3")
    stage.world.clients.consumes = True
    stage.until(lambda: stage.is_member("n3"))
    assert not set(keys) & set(stage.world.nodes["n3"].logs[1].state.keys)
    stage.end()


def test_manual_mode_copies_when_it_is_asked_to() -> None:
    stage = Stage(MirrorWorld, members=2, options=Options(is_manual=True))
    for _ in range(5):
        stage.publish("n1")
    stage.run(100)
    compact_all(stage)
    stage.world.wanted[1] = 3
    assert stage.learn("n3")
    stage.run(500)
    assert not stage.is_member("n3")
    mirrors_of(stage, "n1").synchronise(1)
    stage.until(lambda: stage.is_member("n3"), 1_000)
    stage.end()


def test_a_copy_that_is_cancelled_stops_where_it_is_and_goes_on_from_there() -> None:
    stage = Stage(MirrorWorld, members=2, options=Options(sync_bytes_per_second=400))
    for _ in range(40):
        stage.publish("n1")
    stage.run(100)
    compact_all(stage)
    stage.world.wanted[1] = 3
    assert stage.learn("n3")
    mirrors = mirrors_of(stage, "n1")

    def stream() -> Stream:
        return mirrors.copies[1].streams["n3"]

    stage.until(lambda: "n3" in mirrors.copies[1].streams and 0 < stream().percent < 50)
    mirrors.synchronise(1, wanted=False)
    stage.run(200)
    reached = stream().position
    stage.run(3_000)
    assert (stream().position, stream().phase) == (reached, "stopped")
    assert not stage.is_member("n3")
    mirrors.set_options(1, Options())
    mirrors.synchronise(1)
    assert stream().position == reached
    stage.until(lambda: stage.is_member("n3"))
    stage.end()


def test_all_queues_of_a_pass_share_one_frame_per_link() -> None:
    world = MirrorWorld(1, size=2, queues=3)
    world.wanted = dict.fromkeys(world.queue_ids, 2)
    world.delay_us = 500
    world.clients.consumes = False
    world.form()
    for queue in world.queue_ids:
        world.store.promote(queue, next(one for one in world.store.views[queue].members if one.node == "n1"))
    world.run_for(SECOND)
    sent: list[tuple[str, str, frames.Frame]] = []
    transmit = world.transmit

    def record(sender: object, receiver: str, frame: bytes) -> bool:
        sent.append((sender.name, receiver, frames.decode(frame)[0]))  # type: ignore[attr-defined]
        return transmit(sender, receiver, frame)  # type: ignore[arg-type]

    world.transmit = record  # type: ignore[method-assign]
    node = world.nodes["n1"]
    for queue in world.queue_ids:
        key = node.homes[queue].add(persistent=True)
        node.queues[queue].publish("n1", key, persistent=True, is_resent=False)
    node.end_pass()
    pushes = [frame for sender, _, frame in sent if sender == "n1"]
    assert [len(frame.flows) for frame in pushes] == [3]


def test_bytes_that_were_damaged_on_the_way_are_asked_for_again() -> None:
    stage = Stage(MirrorWorld)
    transmit = stage.world.transmit
    flipped = []

    def flip(sender: object, receiver: str, frame: bytes) -> bool:
        if receiver == "n3" and not flipped and frames.decode(frame)[0].flows:
            frame = frame[:-30] + bytes([frame[-30] ^ 1]) + frame[-29:]
            flipped.append(receiver)
        return transmit(sender, receiver, frame)  # type: ignore[arg-type]

    stage.world.transmit = flip  # type: ignore[method-assign]
    stage.publish("n1")
    assert flipped
    stage.end()


def test_a_learner_whose_disk_is_slower_than_the_others_is_admitted_although_publishing_goes_on() -> None:
    stage = Stage(MirrorWorld, members=2)
    stage.world.wanted[1] = 3
    stage.world.nodes["n3"].flush_us = SECOND // 2
    assert stage.learn("n3")
    for _ in range(400):
        if stage.is_member("n3"):
            break
        stage.begin("n1")
        stage.run(10)
    assert stage.is_member("n3")
    stage.end()


def test_marks_do_not_wait_for_long_for_a_learner_that_does_not_flush() -> None:
    stage = Stage(MirrorWorld, members=2)
    stage.world.nodes["n3"].flush_us = 3 * SECOND
    assert stage.learn("n3")
    held = 0
    for _ in range(20):
        key = stage.send("n1")
        began = stage.world.now
        stage.until(lambda key=key: stage.has_confirmed(key), 1_500)  # type: ignore[misc]
        held += stage.world.now - began > SECOND // 5
        stage.run(50)
    assert held <= 1
    assert not stage.is_member("n3")


def test_a_mirror_whose_log_is_damaged_leaves_the_view_and_gets_a_full_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_logs(monkeypatch, is_on_disk=True)
    stage = Stage(MirrorWorld)
    keys = [stage.publish("n1") for _ in range(12)]
    stage.run(300)
    store = stage.world.nodes["n3"].store
    assert isinstance(store, DiskStore)
    store.logs[1].copy.log.damage = "a test says so"
    mirrors_of(stage, "n3").copies[1].damaged()
    stage.world.soon(stage.world.nodes["n3"])
    stage.until(lambda: not stage.is_member("n3"))
    # Nothing is given up before it is out of the view: nobody else may have it.
    stage.until(lambda: stage.is_member("n3"))
    assert store.logs[1].damage is None
    assert stage.world.stats.copies == 1
    stage.world.crash("n3", lose_all=True)
    assert all(stage.world.nodes["n3"].logs[1].has(key, seq) for key, seq in seqs_of(stage, keys))
    stage.world.start("n3")
    stage.end()


def seqs_of(stage: Stage, keys: list[Key]) -> list[tuple[Key, int]]:
    return [(key, stage.world.checker.of(1).seq_of[key]) for key in keys]
