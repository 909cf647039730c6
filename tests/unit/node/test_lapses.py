"""Nodes that were without a lease, or are on their way out: others may act for them, and they act no more."""

import pytest

from mirrormq.cluster.raft import messages as ms
from mirrormq.meta import commands as c
from mirrormq.meta.records import Node as NodeRecord
from mirrormq.node import masterside
from mirrormq.node.memberframes import RAFT, Answer, Forget
from mirrormq.node.peerframes import Limit, Ready, Renew
from mirrormq.wire import methods
from tests.support.groupkit import STEP_US
from tests.support.kernelkit import publish
from tests.support.scenariokit import Site
from tests.unit.node.test_failover import ack, consumer, mastered


def site(**policy: object) -> Site:
    """Three nodes with a mirrored queue whose master, `a`, does not lead."""
    made = Site()
    made.policy(**({"ha_mode": "all"} | policy))
    made.declare("q", at="a")
    made.wait_copies(*made.names)
    (leader,) = made.leaders
    if leader == "a":
        made["a"].node.membership.raft.transfer(made.now.mono, "b")
        made["a"].node.membership.is_due = True
        made.wait(lambda: made.leaders == {"b"}, "b leads")
    made.advance(1)
    return made


def is_heartbeat(payload: bytes) -> bool:
    return payload[0] == RAFT and isinstance(ms.decode(payload[1:]), ms.Heartbeat)


def serve_one_by_one(at: Site, name: str, look) -> None:
    """Let a node take its frames one at a time, with a look at it after each; heartbeats overtake the rest
    for a second, as they may on another lane.
    """
    member = at[name]
    held: list[tuple[str, bytes]] = []
    for step in range(100):
        at.now = at.now._replace(mono=at.now.mono + STEP_US, wall=at.now.wall + STEP_US)
        at._link()
        for other in at.members.values():
            other.now = at.now
            other.node.on_timer(at.now)
            other.step()
        for source, target in list(at.wires):
            wire = at.wires[source, target]
            while wire:
                payload = wire.popleft()
                if target == name and step < 50 and not is_heartbeat(payload):
                    held.append((source, payload))
                    continue
                at[target].node.peer_frame(at.now, source, memoryview(payload))
                if target == name:
                    look(member)
                    member.step()
                    look(member)
        while held and step >= 49:
            source, payload = held.pop(0)
            member.node.peer_frame(at.now, source, memoryview(payload))
            look(member)


def test_a_master_that_was_without_a_lease_acts_only_when_it_has_applied_what_was_agreed_on_meanwhile():
    at = site()
    at.cut("a")
    at.advance(8)
    assert at["b"].node.meta.views["/", "q"].master != "a"
    seen = []

    def look(member) -> None:
        acts = member.node.membership.has_lease()
        is_known = member.node.meta.views["/", "q"].master != "a"
        seen.append(acts)
        assert is_known or not acts

    at.heal()
    serve_one_by_one(at, "a", look)
    assert not seen[0]
    assert seen[-1]


def test_a_mirror_that_was_called_dead_and_is_back_in_the_same_life_stays_in_the_view():
    at = site()
    at.cut("c")
    at.advance(8)
    assert not at["b"].node.meta.nodes["c"].is_live
    at.heal()
    at.wait_copies("a", "b", "c")
    at.advance(1)
    epoch = at.view().epoch
    at.advance(5)
    assert at.view().epoch == epoch


def test_a_word_of_death_that_comes_after_the_return_is_refused():
    state = site()["b"].node.meta
    before = state.nodes["a"]
    late = c.NodeDead("a", before.start, returns=before.returns)
    assert state.execute(c.NodeReturned("a", before.start)).ok
    assert state.execute(late).error == "guard"
    assert state.nodes["a"].is_live


def test_the_queues_of_a_node_that_leaves_go_to_others_when_its_lease_is_over_and_not_before():
    at = site()
    answers: list[Answer] = []
    leaving = at["a"].node
    leaving.membership.prepare_to_leave()
    leaving.membership.council.wish(Forget("a", "a"), answers.append)
    for _ in range(400):
        at.advance(STEP_US / 1_000_000)
        view = at["b"].node.meta.views["/", "q"]
        if view.master != "a":
            break
        assert view.members[0].node == "a"
    assert view.master != "a"
    assert not leaving.membership.has_lease()
    assert answers
    assert not answers[0].problem


def test_a_transient_publish_of_the_masters_own_client_waits_for_the_mirrors():
    at = site()
    client = at["a"].client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    client.inbox.clear()
    at.cut("a")
    client.feed(publish(b"q", b"1"))
    at.advance(0.2)
    assert not client.inbox
    at.heal()
    at.advance(0.2)
    client.expect(methods.BasicAck)


def test_a_client_of_a_witness_gets_its_queue_on_another_node():
    at = Site()
    for member in at.members.values():
        record = member.node.meta.nodes["a"]
        assert isinstance(record, NodeRecord)
        assert member.node.meta.apply(c.PutNode(NodeRecord("a", record.address, "witness"))).ok
    at.advance(1)
    at.declare("q", at="a")
    assert at["b"].node.meta.queues["/", "q"].node != "a"


def test_what_the_new_master_owes_to_itself_is_confirmed_when_the_queue_is_deleted():
    at = site(ha_min_in_sync=3)
    at.cut("a")
    publisher = at.publisher("b")
    publisher.publish(1)
    at.wait(lambda: at["b"].node.meta.views["/", "q"].master == "b", "b is the master")
    at.advance(0.2)  # the publish, which was meant for another master, waits for a third copy
    assert at["b"].node.switch.link("b").queues
    record = at["b"].node.meta.queues["/", "q"]
    at["b"].node.propose(c.DeleteQueue(record.vhost, record.name, record.id), lambda _: None, False)
    at.heal()
    at.wait(lambda: ("/", "q") not in at["b"].node.meta.queues, "the queue is gone")
    publisher.wait_confirmed(1)
    assert not at["b"].node.switch.link("b").queues


def test_a_node_that_was_called_dead_is_told_until_it_has_registered_anew():
    switch = site()["a"].node.switch
    link = switch.link("c")
    link.is_dropped, link.drops = True, 1
    masterside.on_renew(switch, link, Renew(1))
    assert link.is_dropped  # the answer may find it without a lease once more: it asks again
    link.drops = 2
    masterside.on_ready(switch, link, Ready())
    assert link.is_dropped  # it was called dead again since it asked
    masterside.on_renew(switch, link, Renew(2))
    masterside.on_ready(switch, link, Ready())
    assert not link.is_dropped


def test_what_a_master_gave_up_while_it_was_called_dead_is_not_taken_up_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = site()
    at.fill(10)
    taker = consumer(at, "c", prefetch=4)
    assert taker.wait_taken(4) == [(n, False) for n in range(4)]
    remote = at["c"].node.vhosts["/"].queues["q"]
    at.unlink("a", "c", eof=False)
    # A frozen node is called dead, and nobody can take its place.
    monkeypatch.setattr(at["c"].node.switch, "master_of", lambda _: "")
    remote.follow()
    at.wait(lambda: remote.link.is_open, "the link is back")
    at.wait(lambda: not at["a"].node.switch.link("c").outlets, "the master gives up what nobody asks for")
    session = remote.link.session
    monkeypatch.undo()
    remote.follow()
    taker.unacked.clear()
    assert taker.wait_taken(4) == [(n, True) for n in range(4)]
    assert remote.link.session == session
    ack(taker, 3)
    at.advance(0.2)
    assert at["a"].node.vhosts["/"].queues["q"].core.unacked == 4
    assert taker.take() == [(4, False)]


def test_a_publisher_held_by_what_is_owed_goes_on_when_this_node_has_become_the_master():
    at = site(ha_min_in_sync=3)
    at.cut("a")
    publisher = at.publisher("b")
    publisher.publish(1)
    at.wait(lambda: at["b"].node.meta.views["/", "q"].master == "b", "b is the master")
    at.advance(0.2)  # what was meant for another master waits for a third copy
    (retired,) = at["b"].node.switch.link("b").queues.values()
    (connection,) = at["b"].node.connections.values()
    retired.park(connection)  # as at the end of the pass in which this node became the master
    assert connection.parked
    at.heal()
    publisher.wait_confirmed(1)
    assert not connection.parked


def lapsed(at: Site, name: str) -> None:
    """The lease of a node ran out and is back; the master has not heard of it yet."""
    at.cuts.add(frozenset((name, "a")))
    at[name].node.switch.lapse()
    at[name].node.switch.begin_pass()
    assert at[name].node.switch.link("a").is_stale


def test_who_begins_to_consume_while_a_lapse_is_told_to_the_master_is_registered_once():
    at = site()
    at.fill(3)
    home = at["c"]
    early = consumer(at, "c", prefetch=1)
    early.wait_taken(1)
    late, getter = home.client(), home.client()
    session = home.node.switch.link("a").session
    lapsed(at, "c")
    late.send(methods.BasicConsume(queue="q", consumer_tag="c"))
    getter.send(methods.BasicGet(queue="q"))
    at.heal()
    at.advance(1)
    assert home.node.switch.link("a").session == session, "the link did not break"
    late.expect(methods.BasicConsumeOk)
    found = late.deliveries() + [body for _, body in getter.deliveries()]
    assert early.take() == []
    assert mastered(at, "a").core.unacked == 3, found


def test_clients_of_a_master_that_was_cut_off_are_registered_once_at_the_next_one():
    at = site()
    early = consumer(at, "a", prefetch=0)
    at.cut("a")
    at.wait(lambda: at["b"].node.meta.views["/", "q"].master == "b", "b is the master")
    session = at["b"].node.switch.link("a").session
    at.fill(4, at="b")
    # One more begins in the very pass in which the old master hears of all this.
    late = at["a"].client()
    late.send(methods.BasicConsume(queue="q", consumer_tag="c"))
    at.heal()
    at.advance(1)
    assert at["b"].node.switch.link("a").session == session, "the link did not break"
    found = [number for number, _ in early.take()] + [int(body) for body in late.deliveries()]
    assert sorted(found) == [0, 1, 2, 3], "each once"
    assert mastered(at).core.unacked == 4


def test_limits_that_change_while_a_lapse_is_told_wait_for_the_registration():
    at = site()
    consumer(at, "c", prefetch=5)
    switch = at["a"].node.switch
    link = switch.link("c")
    (outlet,) = link.outlets.values()
    masterside.on_renew(switch, link, Renew(1))
    masterside.on_limit(switch, link, Limit(2, outlet.number, 7, True))
    # What it was sent now the home node would be given once more when it resumes.
    assert not outlet.channel.flow
