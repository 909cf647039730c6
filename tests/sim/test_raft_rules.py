"""Each rule of Raft on a schedule made for it: without the rule a promise breaks, with it none does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mirrormq.base import limits
from mirrormq.cluster import identity as ids
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft.follower import Follower
from mirrormq.cluster.raft.membership import NON_VOTER, Change, changed
from mirrormq.cluster.raft.raft import Myself, Options, Raft
from mirrormq.sim import raftplanted as planted
from mirrormq.sim.disk import MemoryDisk, SlowDisk
from mirrormq.sim.machine import SeededRng
from mirrormq.sim.model import Violation
from mirrormq.sim.raftkv import KvMachine, cas_command
from mirrormq.sim.raftnode import RaftNode
from mirrormq.sim.raftworld import KEYS, SECOND, RaftWorld

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
    world.check_end()


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
    world.check_end()


def leads_without_a_majority(make_raft: type[Raft]) -> None:
    world = formed(make_raft)
    world.isolate("n1")
    world.run_for(3 * SECOND)
    raft = world.nodes["n1"].raft
    assert raft is not None
    assert not raft.is_leader, "it leads nobody"


def forgets_what_a_rolled_back_voter_had(make_raft: type[Raft]) -> None:
    world = formed(make_raft)
    old = world.nodes["n2"].disk.crash(lambda _: 0)
    world.kill("n2")
    world.start("n2")
    world.run_for(2 * SECOND)
    world.isolate("n3")
    assert write(world, "n1")
    world.power_off("n1")
    world.power_off("n2")
    world.nodes["n2"].disk = SlowDisk(world.rng, old)
    world.mend()
    world.start("n2")
    world.run_for(8 * SECOND)
    world.start("n1")
    world.run_until(lambda: has_leader(world), 10 * SECOND)
    world.run_for(2 * SECOND)
    assert world.nodes["n2"].is_refused, "it was not told"


def votes_for_a_node_that_was_away(make_raft: type[Raft]) -> None:
    """Only its own leader is out of its sight, and its log is as long as any."""
    world = formed(make_raft)
    world.net.cut.update({("n1", "n3"), ("n3", "n1")})
    term = term_of(world, "n1")
    world.run_for(4 * SECOND)
    assert term_of(world, "n1") == term, "the leader was deposed though a majority hears it"


def says_too_early_that_a_lease_is_over(make_raft: type[Raft]) -> None:
    world = formed(make_raft, size=5)
    world.patience = 60 * SECOND
    world.run_for(SECOND)
    world.isolate("n5")
    world.power_off("n1")
    world.run_for(12 * SECOND)


def stands_still_with_its_disk(make_raft: type[Raft]) -> None:
    """The leader's disk answers nothing: it cannot flush, nor read the snapshot that n3 needs."""
    with small(raft_trailing_bytes_max=0):
        world = formed(make_raft, log_bytes_max=1)
        world.power_off("n3")
        for _ in range(5):
            assert write(world, "n1")
        world.nodes["n1"].disk.stall(world.now + 60 * SECOND)
        write(world, "n1", wait=SECOND // 10)
        world.start("n3")
        world.run_for(10 * SECOND)
        leader = world.leader()
        assert leader is not None
        # The first may find that one before it was carried out after all.
        assert any(write(world, leader.name) for _ in range(4)), "two of three disks are well"


@contextmanager
def small(**bounds: int) -> Iterator[None]:
    """Run with other limits."""
    before = {name: getattr(limits, name) for name in bounds}
    try:
        for name, value in bounds.items():
            setattr(limits, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(limits, name, value)


def removes_two_voters_at_once(make_raft: type[Raft]) -> None:
    world = formed(make_raft)
    world.isolate("n1")
    for name in ("n2", "n3"):
        change(world, "n1", Change(name, None))
        world.run_for(10_000)
    write(world, "n1", wait=SECOND // 2)
    world.run_until(lambda: leads_besides(world, "n1"), 10 * SECOND)
    leader = world.leader()
    assert leader is not None
    write(world, leader.name)
    world.mend()
    world.run_for(5 * SECOND)


def leads_besides(world: RaftWorld, name: str) -> bool:
    return any(node.raft and node.raft.is_leader for node in world.nodes.values() if node.name != name)


def change(world: RaftWorld, leader: str, wanted: Change) -> None:
    node = world.nodes[leader]
    node.soon(lambda raft: raft.change(node.mono, wanted, "test"))


def leaves_too_few_that_answer(make_raft: type[Raft]) -> None:
    world = formed(make_raft)
    world.power_off("n3")
    world.run_for(3 * SECOND)
    world.desired["n2"] = None
    world.run_for(SECOND)
    assert write(world, "n1"), "a majority is well"


def stands_no_more_because_of_what_only_it_has(make_raft: type[Raft]) -> None:
    world = formed(make_raft, size=2)
    world.isolate("n1")
    node = world.nodes["n1"]
    raft = node.raft
    assert raft is not None
    demoted = changed(raft.config, Change("n1", NON_VOTER))
    node.soon(lambda raft: raft.role._append_configuration(node.mono, demoted))  # type: ignore[union-attr]
    world.run_for(SECOND // 10)
    world.power_off("n1")
    world.mend()
    world.start("n1")
    world.run_until(lambda: has_leader(world), 20 * SECOND)


def answers_reads_after_it_was_deposed(make_raft: type[Raft]) -> None:
    world = formed(make_raft)
    world.net.delay_us = 50
    world.isolate("n1")
    world.run_until(lambda: leads_besides(world, "n1"), 10 * SECOND)
    leader = world.leader()
    assert leader is not None
    assert leader.name != "n1"
    while not all(world.history.known.get(key, 0) > 1 for key in KEYS):
        write(world, leader.name)
    raft = world.nodes["n1"].raft
    assert raft is not None
    assert raft.is_leader, "too late for this schedule"
    for _ in range(3):
        world.submit("n1", is_read=True)
    world.run_for(SECOND)


def sends_entries_again_that_were_overtaken(make_raft: type[Raft]) -> None:
    """Small and large messages with entries in turn, and bulk is slow: nothing is sent twice."""
    with small(peer_chunk_bytes=150):
        world = formed(make_raft)
        world.net.bulk_delay_us = 20_000
        sent = count_entries(world)
        for at in range(60):
            for _ in range(12 if at % 3 == 0 else 1):
                world.submit("n1", is_read=False)
            world.run_for(8_000)
        world.run_for(SECOND)
    assert sent
    assert max(sent.values()) == 1, "entries travelled more than once over an open link"


def count_entries(world: RaftWorld) -> Counter[tuple[str, int]]:
    """How often each entry is sent to each node from now on."""
    sent: Counter[tuple[str, int]] = Counter()
    transmit = world.transmit

    def counting(sender: RaftNode, receiver: str, frame: bytes) -> None:
        message = ms.decode(frame)
        if isinstance(message, ms.Append):
            first = message.prev_index + 1
            sent.update((receiver, index) for index in range(first, first + len(message.entries)))
        transmit(sender, receiver, frame)

    world.transmit = counting  # type: ignore[method-assign]
    return sent


def sends_parts_again_that_are_on_their_way(make_raft: type[Raft]) -> None:
    """Each part of a snapshot takes longer than an election timeout."""
    with small(peer_chunk_bytes=90, raft_snapshot_part_bytes=100, raft_trailing_bytes_max=0):
        world = formed(make_raft, log_bytes_max=1)
        world.power_off("n3")
        for _ in range(5):
            assert write(world, "n1")
        world.run_for(SECOND)
        world.net.bulk_delay_us = 2 * SECOND
        sent: Counter[tuple[int, int]] = Counter()
        transmit = world.transmit

        def counting(sender: RaftNode, receiver: str, frame: bytes) -> None:
            message = ms.decode(frame)
            if isinstance(message, ms.SnapshotPart) and message.data:
                sent[message.index, message.offset] += 1
            transmit(sender, receiver, frame)

        world.transmit = counting  # type: ignore[method-assign]
        world.start("n3")
        world.run_for(40 * SECOND)
        assert len(sent) > 2, "it needed a snapshot of several parts"
        assert max(sent.values()) == 1, "parts were sent that were on their way already"


def campaigns_although_it_was_removed(make_raft: type[Raft]) -> None:
    world = formed(make_raft)
    world.power_off("n3")
    world.desired["n3"] = None
    world.run_until(world.is_as_desired, 10 * SECOND)
    world.start("n3")
    world.run_for(5 * SECOND)
    node = world.nodes["n3"]
    assert node.removed, "it was not told"
    raft = node.raft
    assert raft is not None
    assert isinstance(raft.role, Follower), "it stands for election for ever"


RULES: list[tuple[Schedule, type[Raft]]] = [
    (votes_twice_after_a_crash, planted.TellsVoteBeforeFlush),
    (replaces_an_old_terms_entry, planted.CommitsOldTerms),
    (deposes_a_leader_on_return, planted.NoPreVote),
    (captures_what_is_not_committed, planted.SnapshotsUncommitted),
    (forgets_what_an_emptied_voter_had, planted.AcceptsAnyDisk),
    (grants_for_longer_than_it_may, planted.GrantsFromArrival),
    (answers_before_its_flush, planted.AnswersBeforeFlush),
    (leads_without_a_majority, planted.NoCheckQuorum),
    (forgets_what_a_rolled_back_voter_had, planted.AcceptsOlderDisks),
    (votes_for_a_node_that_was_away, planted.VotesWhileLed),
    (says_too_early_that_a_lease_is_over, planted.ForgetsOldGrants),
    (stands_still_with_its_disk, planted.LeadsOnStalledDisk),
    (removes_two_voters_at_once, planted.ChangesAtOnce),
    (leaves_too_few_that_answer, planted.ChangesBlindly),
    (stands_no_more_because_of_what_only_it_has, planted.ObeysUncommitted),
    (answers_reads_after_it_was_deposed, planted.ReadsWithoutProof),
    (sends_entries_again_that_were_overtaken, planted.MixesLanes),
    (sends_parts_again_that_are_on_their_way, planted.RepeatsParts),
    (campaigns_although_it_was_removed, planted.CampaignsAfterRemoval),
]
NAMES = [schedule.__name__ for schedule, _ in RULES]


@pytest.mark.parametrize(("schedule", "without"), RULES, ids=NAMES)
def test_with_the_rule_every_promise_is_kept(schedule: Schedule, without: type[Raft]) -> None:
    schedule(Raft)


@pytest.mark.parametrize(("schedule", "without"), RULES, ids=NAMES)
def test_without_the_rule_a_promise_breaks(schedule: Schedule, without: type[Raft]) -> None:
    with pytest.raises((Violation, AssertionError)):
        schedule(without)


def test_a_node_that_is_forced_to_go_on_alone_leads_and_tells_the_others_that_they_are_out() -> None:
    world = formed(Raft)
    world.run_for(SECOND)
    for name in ("n1", "n2", "n3"):
        world.power_off(name)
    world.desired.update(n2=None, n3=None)
    world.start("n1", force_sole=True)
    assert write(world, "n1")
    world.start("n2")
    world.run_for(8 * SECOND)
    assert write(world, "n1")
    raft = world.nodes["n1"].raft
    assert raft is not None
    assert raft.config.names == ("n1",)
    assert world.nodes["n2"].removed, "it waits for the rest of a group that is gone"


def test_a_node_that_is_forced_by_mistake_does_not_disturb_a_cluster_that_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = formed(Raft)
    # There are two groups from now on, and each has its own entries.
    monkeypatch.setattr(world.checker, "check", lambda _: None)
    world.kill("n1")
    world.run_until(lambda: leads_besides(world, "n1"), 10 * SECOND)
    # The operator sees the group of n1 only, and wants nobody else in it.
    world.desired.update(n2=None, n3=None)
    world.start("n1", force_sole=True)
    world.run_for(10 * SECOND)
    assert not world.nodes["n2"].removed
    assert not world.nodes["n3"].removed
    names = [name for name in ("n2", "n3") if (raft := world.nodes[name].raft) and raft.is_leader]
    assert len(names) == 1
    assert any(write(world, names[0]) for _ in range(4))
