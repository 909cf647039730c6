"""One Raft node: what it says, when, and what it makes of what it hears."""

from __future__ import annotations

import pytest

from mirrormq.base import limits
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft.membership import NON_VOTER, VOTER, Change
from mirrormq.meta import commands as c
from mirrormq.meta.records import VHost
from mirrormq.sim.disk import MemoryDisk
from tests.support import version1
from tests.support.raftkit import SECOND, TOKEN, RaftKit


def test_a_sole_voter_leads_at_once_and_applies_before_the_flush() -> None:
    kit = RaftKit()
    assert kit.raft.is_leader
    kit.propose(b"a")
    kit.turn()
    assert kit.machine.commands == [b"a"]
    index = kit.told(ev.Applied)[0].index
    assert kit.raft.applied_index == index > kit.raft.durable_index
    kit.settle()
    assert kit.raft.durable_index == index


def test_proposals_of_one_pass_share_an_append_a_flush_and_a_message_per_peer() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.sent.clear()
    before = len(kit.disk.log)
    for at in range(20):
        kit.propose(b"c%d" % at)
    kit.turn()
    assert [kind for kind, _ in kit.disk.log[before:]] == ["append", "flush"]
    assert [len(append.entries) for append in kit.said(ms.Append)] == [20]


def test_an_entry_is_applied_when_a_majority_has_flushed_it_and_not_before() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.propose(b"a")
    kit.settle()
    assert kit.machine.commands == []
    kit.agree("n2")
    assert kit.machine.commands == [b"a"]
    assert [event.ref for event in kit.told(ev.Applied)][-1] == b"a"


def test_a_second_voter_is_added_only_when_everything_is_durable() -> None:
    kit = RaftKit()
    kit.settle()
    kit.connect("n2")
    kit.raft.change(kit.now, Change("n2", NON_VOTER, b"n2"), "join")
    kit.settle()
    kit.agree("n2")
    kit.propose(b"a")
    kit.turn()
    kit.raft.change(kit.now, Change("n2", VOTER), "promote")
    kit.propose(b"b")
    kit.turn()
    assert kit.raft.config.voters == ("n1",)
    assert kit.machine.commands == [b"a"], "b waits for the change"
    kit.settle()
    assert kit.raft.config.voters == ("n1", "n2")
    assert kit.machine.commands == [b"a"], "and now for n2"


def test_a_non_voter_that_lags_is_not_promoted() -> None:
    kit = RaftKit()
    kit.settle()
    kit.raft.change(kit.now, Change("n2", NON_VOTER, b"n2"), "join")
    kit.settle()
    kit.raft.change(kit.now, Change("n2", VOTER), "promote")
    kit.turn()
    assert "caught up" in kit.told(ev.Refused)[-1].reason


def test_a_change_that_would_leave_too_few_voters_that_answer_is_refused() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.add_voter("n3")
    kit.raft.link_down(kit.now, "n3", eof=False)
    kit.raft.change(kit.now, Change("n2", NON_VOTER), "demote")
    kit.turn()
    assert "only 1 would answer" in kit.told(ev.Refused)[-1].reason
    kit.raft.change(kit.now, Change("n3", None), "remove")
    kit.settle()
    assert kit.raft.config.voters == ("n1", "n2")


def test_a_voter_that_only_its_own_log_demotes_still_stands_without_counting_itself() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.raft.change(kit.now, Change("n1", NON_VOTER), "demote")
    kit.settle()
    wait_for_successor(kit, "n2")
    assert kit.raft.config.voters == ("n2",)
    kit.hear("n2", ms.AppendAnswer(kit.raft.term + 1, is_ok=False, index=0))
    kit.settle()
    kit.now += 5 * SECOND
    kit.raft.on_timer(kit.now)
    kit.settle()
    term = kit.raft.term + 1
    for is_pre in (True, False):
        assert not kit.raft.is_leader
        kit.hear("n2", ms.VoteAnswer(term, is_granted=True, is_pre=is_pre))
        kit.settle()
    assert kit.raft.is_leader
    kit.agree("n2")
    assert not kit.raft.is_leader, "it leaves when the entry is committed"


def wait_for_successor(kit: RaftKit, peer: str) -> None:
    """The peer was asked to lead, does not stand, and goes on answering."""
    assert kit.said(ms.TimeoutNow)
    for _ in range(12):
        kit.now += SECOND // 10
        kit.hear(peer, ms.HeartbeatAnswer(kit.raft.term, kit.said(ms.Heartbeat)[-1].round, 1))
        kit.raft.on_timer(kit.now)
        kit.settle()


def test_proposals_that_may_or_may_not_take_effect_are_told_so_when_leadership_is_lost() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.propose(b"a")
    kit.settle()
    kit.hear("n2", ms.AppendAnswer(kit.raft.term + 1, is_ok=False, index=0))
    kit.settle()
    assert [event.ref for event in kit.told(ev.Lost)] == [b"a"]
    kit.propose(b"b")
    kit.turn()
    assert kit.told(ev.Refused)[-1].ref == b"b"


def test_a_node_that_does_not_lead_names_the_leader() -> None:
    kit = RaftKit(may_form=False)
    kit.settle()
    kit.connect("n2")
    kit.hear("n2", ms.Heartbeat(4, 1, 0))
    kit.propose(b"a")
    kit.raft.change(kit.now, Change("n3", NON_VOTER), "c")
    kit.turn()
    assert [event.leader for event in kit.told(ev.Refused)] == ["n2", "n2"]


def test_a_read_on_a_node_that_follows_asks_the_leader_and_waits_until_as_much_is_applied() -> None:
    kit = RaftKit(may_form=False)
    kit.settle()
    kit.connect("n2")
    kit.hear("n2", ms.Append(4, 0, 0, 1, ((4, b"a"), (4, b"b"))))
    kit.settle()
    kit.raft.read("r")
    kit.raft.read("s")
    kit.turn()
    numbers = [request.number for request in kit.said(ms.ReadRequest)]
    assert len(numbers) == 1, "reads of a pass share a request"
    kit.hear("n2", ms.ReadAnswer(4, numbers[0], 2))
    kit.settle()
    assert not kit.told(ev.ReadReady), "entry 2 is not applied here"
    kit.hear("n2", ms.Heartbeat(4, 1, 2))
    kit.settle()
    assert [event.ref for event in kit.told(ev.ReadReady)] == ["r", "s"]


def test_a_late_answer_is_not_taken_for_one_to_a_later_read() -> None:
    kit = RaftKit(may_form=False)
    kit.settle()
    kit.connect("n2")
    kit.hear("n2", ms.Heartbeat(4, 1, 0))
    kit.settle()
    kit.raft.read("r")
    kit.turn()
    number = kit.said(ms.ReadRequest)[0].number
    kit.raft.link_down(kit.now, "n2", eof=False)
    kit.turn()
    assert [event.ref for event in kit.told(ev.Refused)] == ["r"]
    kit.connect("n2")
    kit.raft.read("s")
    kit.hear("n2", ms.ReadAnswer(4, number, 0))
    kit.settle()
    assert not kit.told(ev.ReadReady)


def test_a_node_that_was_removed_is_told_when_it_comes_back_and_stops_standing() -> None:
    leader, other = RaftKit(), RaftKit(name="n2", may_form=False)
    leader.settle()
    leader.raft.change(leader.now, Change("n2", NON_VOTER, b"n2"), "join")
    connect(leader, other)
    for _ in range(20):
        exchange(leader, other)
    for kit, peer in ((leader, "n2"), (other, "n1")):
        kit.raft.link_down(kit.now, peer, eof=False)
    leader.raft.change(leader.now, Change("n2", None), "forget")
    leader.settle()
    connect(leader, other)
    for _ in range(200):
        exchange(leader, other)
    assert [event.index for event in other.told(ev.Removed)] == [leader.raft.config.index]
    assert other.raft.is_removed
    assert not leader.told(ev.Removed)


def test_a_fresh_node_does_not_take_itself_for_a_removed_one() -> None:
    leader, other = RaftKit(), RaftKit(name="n2", may_form=False)
    leader.settle()
    connect(leader, other)
    for _ in range(200):
        exchange(leader, other)
    assert not other.told(ev.Removed)


def test_a_mute_node_is_sent_nothing_until_it_speaks_up() -> None:
    leader, other = RaftKit(), RaftKit(name="n2", may_form=False)
    other.raft.is_mute = True
    leader.settle()
    connect(leader, other)
    leader.raft.change(leader.now, Change("n2", NON_VOTER, b"n2"), "join")
    for _ in range(200):
        exchange(leader, other)
    assert not other.raft.log.last_index
    assert leader.raft.config.find("n2").start == 0
    other.raft.speak_up()
    for _ in range(200):
        exchange(leader, other)
    assert other.raft.log.last_index == leader.raft.log.last_index
    assert leader.raft.config.find("n2").start == 1
    assert other.told(ev.Registered)


def test_a_leader_that_is_to_be_removed_hands_over_first() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.add_voter("n3")
    kit.raft.change(kit.now, Change("n1", None), "leave")
    kit.settle()
    assert len(kit.said(ms.TimeoutNow)) == 1
    assert "n1" in kit.raft.config.voters
    kit.hear("n2", ms.VoteRequest(kit.raft.term + 1, 1 << 40, 1 << 40, is_pre=False, is_transfer=True))
    kit.settle()
    assert (kit.told(ev.Refused)[-1].ref, kit.told(ev.Refused)[-1].reason) == ("leave", "leadership was lost")


def test_a_leader_that_nobody_relieves_removes_itself_and_knows_it() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.raft.change(kit.now, Change("n1", None), "leave")
    kit.settle()
    wait_for_successor(kit, "n2")
    assert kit.raft.config.voters == ("n2",)
    kit.agree("n2")
    assert not kit.raft.is_leader
    assert len(kit.told(ev.Removed)) == 1


def test_the_only_survivor_goes_on_alone_if_an_operator_says_so() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.propose(b"committed")
    kit.settle()
    kit.agree("n2")
    kit.propose(b"only here")
    kit.settle()
    waiting = RaftKit(kit.disk, start=2)
    assert not waiting.raft.is_leader
    forced = RaftKit(kit.disk, start=2, force_sole=True)
    assert forced.raft.is_leader
    assert forced.raft.term > kit.raft.term
    assert forced.raft.config.names == ("n1",)
    assert forced.machine.commands == [b"committed", b"only here"]
    forced.propose(b"more")
    forced.settle()
    again = RaftKit(forced.disk, start=3)
    assert again.raft.is_leader, "it stays alone"
    assert again.machine.commands[-1] == b"more"


def test_a_read_waits_for_a_round_of_heartbeats_that_began_after_it() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.sent.clear()
    kit.raft.read("r")
    kit.raft.read("s")
    kit.turn()
    rounds = [heartbeat.round for heartbeat in kit.said(ms.Heartbeat)]
    assert len(rounds) == 1, "reads share a round"
    kit.hear("n2", ms.HeartbeatAnswer(kit.raft.term, rounds[0] - 1, 1))
    kit.turn()
    assert not kit.told(ev.ReadReady)
    kit.hear("n2", ms.HeartbeatAnswer(kit.raft.term, rounds[0], 2))
    kit.turn()
    assert [event.ref for event in kit.told(ev.ReadReady)] == ["r", "s"]


def test_an_answer_to_entries_leaves_when_they_are_flushed() -> None:
    kit = RaftKit(may_form=False)
    kit.settle()
    kit.connect("n2")
    kit.hear("n2", ms.Append(4, 0, 0, 0, ((4, b"a"), (4, b"b"))))
    kit.turn()
    assert not kit.said(ms.AppendAnswer)
    kit.settle()
    assert [(answer.is_ok, answer.index) for answer in kit.said(ms.AppendAnswer)] == [(True, 2)]


def test_entries_that_arrive_again_are_not_given_up() -> None:
    kit = RaftKit(may_form=False)
    kit.settle()
    kit.connect("n2")
    kit.hear("n2", ms.Append(4, 0, 0, 0, ((4, b"a"), (4, b"b"))))
    kit.settle()
    kit.hear("n2", ms.Append(4, 0, 0, 2, ((4, b"a"),)))
    kit.settle()
    assert kit.raft.log.last_index == 2


def test_a_stalled_disk_ends_leadership_and_keeps_a_node_from_standing() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.propose(b"a")
    kit.turn()
    kit.now += limits.raft_disk_stall_us + 1
    kit.raft.on_timer(kit.now)
    kit.turn()
    assert not kit.raft.is_leader
    kit.now += 10 * SECOND
    kit.raft.on_timer(kit.now)
    kit.turn()
    assert not kit.said(ms.VoteRequest)


def test_the_end_of_the_leaders_link_lets_a_voter_stand_at_once() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.add_voter("n3")
    term = kit.raft.term
    kit.hear("n2", ms.Heartbeat(term + 1, 1, 0))
    kit.settle()
    request = ms.VoteRequest(term + 2, 1 << 40, 1 << 40, is_pre=True)
    kit.hear("n3", request)
    kit.turn()
    assert [answer.is_granted for answer in kit.said(ms.VoteAnswer)] == [False]
    kit.raft.link_down(kit.now, "n2", eof=True)
    kit.hear("n3", request)
    kit.turn()
    answers = kit.said(ms.VoteAnswer)
    assert [(answer.is_granted, answer.leader, answer.left) for answer in answers] == [(True, "n2", 0)]
    assert kit.raft.timer_at <= kit.now + limits.raft_election_eof_us


def test_a_split_vote_is_tried_again_soon_but_not_for_ever() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.add_voter("n3")
    kit.hear("n2", ms.Heartbeat(kit.raft.term + 1, 1, 0))
    kit.settle()
    kit.raft.link_down(kit.now, "n2", eof=True)
    waits = []
    for _ in range(limits.raft_split_votes_max + 1):
        kit.now = kit.raft.timer_at
        kit.raft.on_timer(kit.now)
        kit.settle()
        term = kit.raft.term + 1
        kit.hear("n3", ms.VoteAnswer(term, True, True, "", 0, 0, 0))
        kit.settle()
        assert (kit.raft.term, kit.raft.vote) == (term, "n1")
        kit.hear("n3", ms.VoteRequest(term, 1 << 40, 1 << 40, is_pre=False))
        kit.settle()
        assert kit.raft.vote == "n1", "one vote per term"
        waits.append(kit.raft.timer_at - kit.now)
    *soon, late = waits
    assert all(limits.raft_election_eof_us <= wait < limits.raft_election_us_min for wait in soon)
    assert late >= limits.raft_election_us_min


def test_a_candidate_that_is_not_voted_for_keeps_nobody_from_standing() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.add_voter("n3")
    kit.hear("n2", ms.Heartbeat(kit.raft.term + 1, 1, 0))
    kit.settle()
    kit.raft.link_down(kit.now, "n2", eof=True)
    due = kit.raft.timer_at
    kit.hear("n3", ms.VoteRequest(kit.raft.term + 1, 0, 0, is_pre=False))
    kit.settle()
    assert [answer.is_granted for answer in kit.said(ms.VoteAnswer)] == [False], "its log lacks entries"
    assert kit.raft.timer_at == due
    kit.hear("n3", ms.VoteRequest(kit.raft.term + 1, 1 << 40, 1 << 40, is_pre=False))
    kit.settle()
    assert [answer.is_granted for answer in kit.said(ms.VoteAnswer)] == [True]
    assert kit.raft.timer_at > due, "it is given time to win"


def test_a_voter_encourages_nobody_else_while_its_candidate_may_win() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.add_voter("n3")
    kit.add_voter("n4")
    kit.hear("n2", ms.Heartbeat(kit.raft.term + 1, 1, 0))
    kit.settle()
    kit.raft.link_down(kit.now, "n2", eof=True)
    term = kit.raft.term + 1
    kit.hear("n3", ms.VoteRequest(term, 1 << 40, 1 << 40, is_pre=False))
    kit.settle()
    assert kit.raft.vote == "n3"

    def granted(peer: str) -> list[bool]:
        kit.said(ms.VoteAnswer)
        kit.hear(peer, ms.VoteRequest(term + 1, 1 << 40, 1 << 40, is_pre=True))
        kit.settle()
        return [answer.is_granted for answer in kit.said(ms.VoteAnswer)]

    assert granted("n4") == [False]
    assert granted("n3") == [True], "it may try again"
    kit.now += limits.raft_vote_us
    assert granted("n4") == [True]


def test_a_peer_with_another_identity_is_ignored_and_noted_once() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.raft.link_down(kit.now, "n2", eof=False)
    kit.raft.link_up(kit.now, "n2")
    kit.hear("n2", ms.Hello(b"other", 1, (TOKEN + b"p",)))
    for _ in range(3):
        kit.hear("n2", ms.AppendAnswer(kit.raft.term + 9, is_ok=False, index=0))
    kit.turn()
    assert kit.raft.is_leader
    assert len([note for note in kit.told(ev.Note) if "refused" in note.text]) == 1


def test_a_folder_that_is_refused_is_told_so() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.add_voter("n3")
    kit.raft.link_down(kit.now, "n3", eof=False)
    kit.raft.link_up(kit.now, "n3")
    kit.hear("n3", ms.Hello(b"other", 1, (TOKEN + b"p",)))
    for _ in range(3):
        kit.now += SECOND // 10
        kit.raft.on_timer(kit.now)
        kit.settle()
        kit.hear("n2", ms.HeartbeatAnswer(kit.raft.term, kit.said(ms.Heartbeat)[-1].round, 1))
    assert [(told.index, told.is_folder) for told in kit.said(ms.Removed)] == [(kit.raft.config.index, True)]


def test_a_node_that_hears_its_leader_does_not_believe_another_that_it_was_removed() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.add_voter("n3")
    kit.hear("n2", ms.Heartbeat(kit.raft.term + 1, 1, 0))
    kit.settle()
    kit.hear("n3", ms.Removed(99, 99))
    kit.turn()
    assert not kit.told(ev.Removed)
    kit.now += SECOND
    kit.hear("n3", ms.Removed(99, 99))
    kit.turn()
    assert [event.index for event in kit.told(ev.Removed)] == [99]


def test_an_emptied_folder_hears_that_it_is_refused() -> None:
    kit = RaftKit(may_form=False)
    kit.settle()
    kit.connect("n2")
    kit.hear("n2", ms.Removed(4, 9, is_folder=True))
    kit.turn()
    assert [event.leader for event in kit.told(ev.FolderRefused)] == ["n2"]
    assert not kit.told(ev.Removed)


def test_a_node_that_is_behind_follows_a_leader_it_knows_with_an_older_folder() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.raft.link_down(kit.now, "n2", eof=False)
    kit.raft.link_up(kit.now, "n2")
    kit.hear("n2", ms.Hello(b"joined anew", 1, (TOKEN + b"q",)))
    kit.hear("n2", ms.Heartbeat(kit.raft.term + 1, 1, 0))
    kit.settle()
    assert kit.raft.leader == "n2"


def test_a_folder_put_back_is_not_voted_for() -> None:
    kit = RaftKit()
    kit.add_voter("n2")
    kit.hear("n2", ms.Heartbeat(kit.raft.term + 1, 1, 0))
    kit.raft.link_down(kit.now, "n2", eof=True)
    kit.raft.link_up(kit.now, "n2")
    kit.hear("n2", ms.Hello(b"n2", 1, (TOKEN + b"o",)))
    kit.settle()
    kit.sent.clear()
    kit.hear("n2", ms.VoteRequest(kit.raft.term + 5, 1 << 40, 1 << 40, is_pre=False))
    kit.settle()
    assert not kit.said(ms.VoteAnswer)


def test_an_unreadable_message_is_noted_and_changes_nothing() -> None:
    kit = RaftKit()
    kit.connect("n2")
    kit.raft.receive(kit.now, "n2", b"\x01junk")
    kit.turn()
    assert kit.raft.is_leader
    assert "cannot be read" in kit.told(ev.Note)[0].text


def test_a_snapshot_travels_in_parts_and_goes_on_where_a_link_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "raft_snapshot_part_bytes", 50)
    monkeypatch.setattr(limits, "raft_trailing_bytes_max", 0)
    leader = RaftKit(log_bytes_max=300)
    for at in range(40):
        leader.propose(b"command %d" % at)
        leader.settle()
    assert leader.raft.log.base_index > 1
    other = RaftKit(name="n2", may_form=False)
    leader.raft.change(leader.now, Change("n2", NON_VOTER, b"n2"), "join")
    sizes: list[int] = []
    connect(leader, other)
    for step in range(400):
        if step == 8:
            for kit, peer in ((leader, "n2"), (other, "n1")):
                kit.raft.link_down(kit.now, peer, eof=False)
            connect(leader, other)
        sizes += exchange(leader, other)
    assert other.machine.commands == leader.machine.commands
    assert len(other.told(ev.Restored)) == 1
    size = leader.raft.storage.mark.size
    assert max(sizes) <= 50
    assert size <= sum(sizes) <= size + 100, "no part was sent again but the one that was lost"


def connect(one: RaftKit, other: RaftKit) -> None:
    one.sent.clear()
    other.sent.clear()
    for kit, far in ((one, other), (other, one)):
        kit.raft.link_up(kit.now, far.raft.me.name)


def exchange(one: RaftKit, other: RaftKit) -> list[int]:
    """Let both talk once; returns the sizes of snapshot parts."""
    sizes: list[int] = []
    for kit, far in ((one, other), (other, one)):
        kit.now += 1_000
        kit.raft.on_timer(kit.now)
        kit.settle()
        for _, message in kit.sent:
            far.hear(kit.raft.me.name, message)
            if isinstance(message, ms.SnapshotPart) and message.data:
                sizes.append(len(message.data))
        kit.sent.clear()
    return sizes


def test_the_folder_of_a_single_node_opens_as_a_group_with_one_voter() -> None:
    files = {
        "meta/snapshot": version1.snapshot((9, 1), 9, [VHost("old")]),
        "meta/log-000000000000000a": version1.log_file(10, [c.PutVHost(VHost(f"v{at}")) for at in range(3)]),
    }
    kit = RaftKit(MemoryDisk(files))
    assert kit.recovery.term == 1
    assert kit.raft.config.voters == ("n1",)
    assert kit.raft.is_leader
    kit.propose(b"new")
    kit.settle()
    assert kit.raft.durable_index == kit.raft.log.last_index > 12
    again = RaftKit(kit.disk, start=2)
    assert again.raft.term == kit.raft.term + 1
    assert again.machine.commands[-1] == b"new"


def test_a_fresh_node_that_may_not_form_a_group_waits() -> None:
    kit = RaftKit(may_form=False)
    kit.now += 60 * SECOND
    kit.raft.on_timer(kit.now)
    kit.settle()
    assert not kit.raft.is_leader
    assert not kit.disk.list("meta/")


def test_a_node_that_was_joined_does_not_take_itself_for_a_single_one() -> None:
    kit = RaftKit(name="n2", may_form=False)
    kit.settle()
    kit.connect("n1")
    kit.hear("n1", ms.Append(4, 0, 0, 0, ((4, b"a"),)))
    kit.settle()
    again = RaftKit(kit.disk, name="n2", may_form=False, start=2)
    assert not again.raft.is_leader
