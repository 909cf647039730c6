"""Each rule of Raft on a schedule made for it: without the rule a promise breaks, with it none does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirrormq.cluster import identity as ids
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft.raft import Myself, Options, Raft
from mirrormq.sim import raftplanted as planted
from mirrormq.sim.disk import MemoryDisk, SlowDisk
from mirrormq.sim.machine import SeededRng
from mirrormq.sim.model import Violation
from mirrormq.sim.raftkv import KvMachine, cas_command
from mirrormq.sim.raftworld import SECOND, RaftWorld

Schedule = Callable[[type[Raft]], None]


def formed(make_raft: type[Raft], size: int = 3, **options: int) -> RaftWorld:
    """A group whose first node leads, some entries in its log."""
    world = RaftWorld(7, make_raft=make_raft, size=size)
    world.options = Options(**{"log_bytes_max": 1 << 20, **options})  # type: ignore[arg-type]
    world.net.delay_us = 1_000
    world.form()
    for node in world.nodes.values():
        node.disk.median_us = 200
    write(world, "n1")
    return world


def write(world: RaftWorld, name: str, *, wait: int = SECOND) -> bool:
    """Write through a node; was it answered in time?"""
    before = world.history.acked
    world.submit(name, is_read=False)
    return world.run_until(lambda: world.history.acked > before, wait, must=False)


def has_leader(world: RaftWorld) -> bool:
    leader = world.leader()
    return leader is not None and leader.raft is not None and leader.raft.commit_index > 0


class Bench:
    """One node of a formed group alone on the bench; its peers are played by the test."""

    def __init__(self, make_raft: type[Raft], world: RaftWorld, name: str, disk: MemoryDisk) -> None:
        self.disk = disk
        self.now = 10 * SECOND
        rng = SeededRng(f"bench {len(disk.log)}")
        mine = ids.begin_start(ids.decode_identity(disk.read(ids.FILE)), rng)
        me = Myself(name, mine.identity, mine.start, mine.tokens)
        self.raft = make_raft(me, KvMachine(), disk, rng)
        self.raft.start(self.now, disk)
        for node in world.nodes.values():
            if node.name != name:
                self.raft.link_up(self.now, node.name)
                known = node.identity
                self.hear(node.name, ms.Hello(known.identity, known.start, known.tokens))
        self.settle()

    def hear(self, peer: str, message: ms.Message) -> None:
        self.raft.receive(self.now, peer, ms.encode(message))
        self.raft.end_pass(self.now)

    def settle(self) -> None:
        """Let the disk do all it owes."""
        self.raft.end_pass(self.now)
        while (token := self.disk.finish_next()) is not None:
            self.raft.disk_done(self.now, token)
            self.raft.end_pass(self.now)

    def said(self) -> list[ms.Message]:
        told, self.raft.outgoing = self.raft.outgoing, []
        return [ms.decode(frame) for _, frame in told]


def votes_twice_after_a_crash(make_raft: type[Raft]) -> None:
    world = formed(Raft)
    bench = Bench(make_raft, world, "n3", world.nodes["n3"].disk.copy())
    bench.said()
    request = ms.VoteRequest(50, 10_000, 40, is_pre=False)
    bench.hear("n1", request)
    given = [m for m in bench.said() if isinstance(m, ms.VoteAnswer) and m.is_granted]
    # The power fails before the disk has reported anything.
    again = Bench(make_raft, world, "n3", bench.disk.crash(lambda _: 0))
    again.said()
    again.hear("n2", request)
    again.settle()
    given += [m for m in again.said() if isinstance(m, ms.VoteAnswer) and m.is_granted]
    assert len(given) == 1, "two votes in one term"


def replaces_an_old_terms_entry(make_raft: type[Raft]) -> None:
    """The well-known case: an entry of an old term reaches a majority and is then replaced."""
    world = formed(Raft)
    bench = Bench(make_raft, world, "n1", world.nodes["n1"].disk.copy())
    raft = bench.raft
    term, last, last_term = raft.term, raft.log.last_index, raft.log.last_term
    bench.hear("n2", ms.Append(term + 1, last, last_term, last, ((term + 1, cas_command("a", 0, 1)),)))
    bench.settle()
    bench.now += 5 * SECOND
    bench.hear("n3", ms.VoteRequest(term + 2, 0, 0, is_pre=False))
    bench.settle()
    bench.now += 5 * SECOND
    raft.on_timer(bench.now)
    bench.settle()
    assert raft.term == term + 2
    for is_pre in (True, False):
        bench.hear("n2", ms.VoteAnswer(term + 3, is_granted=True, is_pre=is_pre))
        bench.settle()
    assert raft.is_leader
    bench.hear("n2", ms.AppendAnswer(term + 3, is_ok=True, index=last + 1))
    bench.hear("n3", ms.Append(term + 4, last, last_term, last, ((term + 2, cas_command("a", 0, 2)),)))
    assert raft.log.entry(last + 1).term == term + 2


def deposes_a_leader_on_return(make_raft: type[Raft]) -> None:
    world = formed(make_raft)
    term = term_of(world, "n1")
    world.isolate("n3")
    world.run_for(4 * SECOND)
    world.mend()
    world.run_for(3 * SECOND)
    assert term_of(world, "n1") == term, "the leader was deposed by a node that was cut off"


def term_of(world: RaftWorld, name: str) -> int:
    raft = world.nodes[name].raft
    assert raft is not None
    return raft.term


def captures_what_is_not_committed(make_raft: type[Raft]) -> None:
    world = formed(make_raft, log_bytes_max=1)
    world.isolate("n1")
    write(world, "n1", wait=SECOND // 2)
    world.run_until(lambda: world.leader() not in (None, world.nodes["n1"]), 10 * SECOND)
    leader = world.leader()
    assert leader is not None
    for _ in range(3):
        assert write(world, leader.name)
    world.mend()
    world.run_for(5 * SECOND)
    world.checker.check_end()


def forgets_what_an_emptied_voter_had(make_raft: type[Raft]) -> None:
    world = formed(make_raft)
    world.isolate("n3")
    assert write(world, "n1")
    world.power_off("n1")
    world.power_off("n2")
    world.nodes["n2"].disk = SlowDisk(world.rng)
    world.mend()
    world.start("n2")
    world.run_for(8 * SECOND)
    world.start("n1")
    world.run_until(lambda: has_leader(world), 10 * SECOND)
    world.run_for(2 * SECOND)


def grants_for_longer_than_it_may(make_raft: type[Raft]) -> None:
    world = formed(make_raft, size=5)
    world.patience = 60 * SECOND
    for other in ("n2", "n3", "n4"):
        world.net.cut.update({("n5", other), (other, "n5")})
    world.net.clogged["n1", "n5"] = 3 * SECOND
    world.run_for(4 * SECOND)
    world.power_off("n1")
    world.run_for(12 * SECOND)


def answers_before_its_flush(make_raft: type[Raft]) -> None:
    world = formed(make_raft)
    world.isolate("n3")
    world.nodes["n2"].disk.stall(world.now + 10 * SECOND)
    write(world, "n1", wait=SECOND // 2)
    world.power_off("n1")
    world.power_off("n2", lose_all=True)
    world.mend()
    world.start("n2")
    world.run_until(lambda: has_leader(world), 10 * SECOND)
    world.start("n1")
    world.run_for(3 * SECOND)
    world.checker.check_end()


def leads_without_a_majority(make_raft: type[Raft]) -> None:
    world = formed(make_raft)
    world.isolate("n1")
    world.run_for(3 * SECOND)
    raft = world.nodes["n1"].raft
    assert raft is not None
    assert not raft.is_leader, "it leads nobody"


RULES: list[tuple[Schedule, type[Raft]]] = [
    (votes_twice_after_a_crash, planted.TellsVoteBeforeFlush),
    (replaces_an_old_terms_entry, planted.CommitsOldTerms),
    (deposes_a_leader_on_return, planted.NoPreVote),
    (captures_what_is_not_committed, planted.SnapshotsUncommitted),
    (forgets_what_an_emptied_voter_had, planted.AcceptsAnyDisk),
    (grants_for_longer_than_it_may, planted.GrantsFromArrival),
    (answers_before_its_flush, planted.AnswersBeforeFlush),
    (leads_without_a_majority, planted.NoCheckQuorum),
]
NAMES = [schedule.__name__ for schedule, _ in RULES]


@pytest.mark.parametrize(("schedule", "without"), RULES, ids=NAMES)
def test_with_the_rule_every_promise_is_kept(schedule: Schedule, without: type[Raft]) -> None:
    schedule(Raft)


@pytest.mark.parametrize(("schedule", "without"), RULES, ids=NAMES)
def test_without_the_rule_a_promise_breaks(schedule: Schedule, without: type[Raft]) -> None:
    with pytest.raises((Violation, AssertionError)):
        schedule(without)
