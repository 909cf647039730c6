"""Transactions over mirrored queues: what has been committed is on every in-sync mirror."""

import pytest

from mirrormq.base import limits
from mirrormq.node import effects as fx
from mirrormq.node import peerframes
from mirrormq.wire import methods
from mirrormq.wire.methods import Method
from tests.support.kernelkit import PERSISTENT, publish, settle_method
from tests.support.scenariokit import Consumer, Site


def site(lead: str = "e") -> Site:
    """Queue q on a and b, which are not called dead for long when they do not hear each other."""
    group = Site("a", "b", "c", "d", "e")
    group.policy("^q$", "q", ha_mode="nodes", ha_params=["a", "b"], ha_mirror_timeout=60_000)
    group.declare("q", at="a")
    group.wait_copies("a", "b")
    [leader] = group.leaders
    if leader != lead:
        raft = group[leader].node.membership.raft  # type: ignore[attr-defined]
        raft.transfer(group.now.mono, lead)
        group[leader].node.membership.is_due = True  # type: ignore[attr-defined]
        group.wait(lambda: group.leaders == {lead}, f"{lead} leads")
        group.advance(1)
    return group


def holder(group: Site, at: str, count: int = 1) -> Consumer:
    """A transactional client that holds messages of q."""
    group.fill(count)
    taker = Consumer(group, group[at].client())
    taker.wait_taken(count)
    taker.client.ask(methods.TxSelect(), methods.TxSelectOk)
    return taker


def commit(taker: Consumer) -> None:
    """Commit an acknowledgement of the last message."""
    taker.client.send(methods.BasicAck(taker.unacked[-1][0], True))
    taker.client.send(methods.TxCommit())


def answer(group: Site, taker: Consumer) -> Method:
    group.wait(lambda: bool(taker.client.inbox), "the commit is answered")
    return taker.client.take()[0]  # type: ignore[return-value]


def left(group: Site, at: str = "c") -> list[tuple[int, bool]]:
    group.advance(12)
    return group.drain(at)


@pytest.mark.parametrize("at", ["a", "d"])
def test_a_commit_of_acknowledgements_waits_for_every_mirror_in_sync(at: str):
    group = site()
    taker = holder(group, at)
    group.cuts |= {frozenset(("a", "b"))}
    commit(taker)
    group.advance(0.5)
    assert taker.client.take() == []
    group.cuts.clear()
    assert answer(group, taker) == methods.TxCommitOk()
    group.kill("a")
    group.wait(lambda: group.master() == "b", "b is the master")
    assert left(group) == []


def test_a_commit_does_not_wait_until_mirrors_flush_removals_of_themselves():
    group = site()
    taker = holder(group, "d")
    commit(taker)
    group.advance(0.05)
    assert taker.client.take() == [methods.TxCommitOk()]


def test_a_commit_is_answered_by_the_next_master_when_the_one_that_was_told_dies():
    group = site()
    taker = holder(group, "d")
    group.cuts |= {frozenset(("a", "b"))}
    commit(taker)
    group.advance(0.2)
    group.kill("a")
    assert answer(group, taker) == methods.TxCommitOk()
    assert left(group) == []


def test_a_commit_whose_master_loses_the_queue_before_its_mirrors_have_heard_is_not_answered_with_ok():
    group = site()
    taker = holder(group, "a")
    group.cuts |= {frozenset(("a", other)) for other in "bcde"}
    commit(taker)
    group.wait(
        lambda: group.master() == "b" or not group["a"].node.membership.has_lease(), "a lost its lease"
    )
    group.advance(10)
    said = [one for one in taker.client.take() if isinstance(one, methods.TxCommitOk)]
    assert said == []
    group.cuts.clear()
    assert left(group, "c") == [(0, True)]


@pytest.mark.parametrize("at", ["a", "b", "d"])
def test_a_commit_goes_on_while_the_queue_is_handed_over(at: str):
    group = site()
    taker = holder(group, at)
    copies = group["a"].node.copies
    assert copies is not None
    view = group.view()
    assert view is not None
    assert copies.mirrors.transfer(view.id, "b", group.now)
    assert not group["a"].node.vhosts["/"].queues["q"].log.is_open
    commit(taker)
    assert answer(group, taker) == methods.TxCommitOk()
    group.wait(lambda: group.master() == "b", "b is the master")
    assert left(group) == []


def test_a_commit_to_a_queue_that_is_deleted_meanwhile_is_answered():
    group = site()
    taker = holder(group, "a")
    group.cuts |= {frozenset(("a", "b"))}
    commit(taker)
    group["c"].client().ask(methods.QueueDelete(0, "q", False, False, False), methods.QueueDeleteOk)
    group.wait(lambda: methods.TxCommitOk() in taker.client.take(), "the commit is answered")


def test_a_commit_whose_acknowledgements_the_master_may_never_have_heard_of_is_not_answered_with_ok():
    group = site()
    taker = holder(group, "d")
    group.cuts |= {frozenset(("a", "b"))}
    commit(taker)
    group["d"].node.vhosts["/"].queues["q"].subscriptions.forget_known()  # as when d was called dead
    group.cuts.clear()
    group.wait(lambda: bool(taker.client.inbox), "the commit is answered")
    assert "partial tx completion" in taker.client.take()[-1].reply_text


def test_a_commit_waits_on_though_the_queue_loses_its_mirrors_meanwhile():
    group = site()
    taker = holder(group, "a")
    group.cuts |= {frozenset(("a", "b"))}
    commit(taker)
    group.advance(0.2)
    group.policy("^q$", "q", ha_mode="exactly", ha_params=1)
    group.clear_policy("q")
    group.cuts.clear()
    assert answer(group, taker) == methods.TxCommitOk()
    assert left(group) == []


@pytest.mark.parametrize("at", ["a", "d"])
def test_a_commit_to_a_queue_that_is_found_damaged_meanwhile_says_that_it_may_be_partial(at: str):
    group = site()
    taker = holder(group, at)
    group.cuts |= {frozenset(("a", "b"))}
    commit(taker)
    group["a"].node.vhosts["/"].queues["q"].fail("its disk is gone")
    group.advance(0.3)
    closed = [one for one in taker.client.take() if isinstance(one, methods.ChannelClose)]
    assert [close.reply_text for close in closed] == ["PRECONDITION_FAILED - partial tx completion"]


def test_acknowledgements_in_a_mirrored_queue_wait_until_what_was_published_is_safe():
    """Else the mirrors of the one may have heard of its part, and those of the other have not."""
    group = site()
    group.policy("^out$", "out", ha_mode="nodes", ha_params=["a", "c"], ha_mirror_timeout=60_000)
    group.declare("out", at="a")
    group.wait_copies("a", "c", queue="out")
    taker = holder(group, "a")
    taker.client.feed(publish(b"out", b"0", PERSISTENT))
    group.cuts |= {frozenset(("a", "c"))}
    commit(taker)
    group.advance(0.5)
    group.kill("a")
    group.wait(lambda: group.master() == "b", "b is the master")
    group.wait(lambda: group.master("out") == "c", "c is the master")
    assert left(group, "d") == [(0, True)]


@pytest.mark.parametrize("at", ["a", "b", "d"])
def test_what_was_published_before_the_queue_got_another_master_is_committed_there(at: str):
    group = site()
    client = group[at].client()
    client.ask(methods.TxSelect(), methods.TxSelectOk)
    client.feed(publish(b"q", b"1", PERSISTENT))
    view, copies = group.view(), group["a"].node.copies
    assert view is not None
    assert copies is not None
    copies.transfer(view.id, "b", lambda _: None)
    group.wait(lambda: group.master() == "b", "b is the master")
    client.send(methods.TxCommit())
    group.wait(lambda: bool(client.inbox), "the commit is answered")
    assert client.take() == [methods.TxCommitOk()]
    assert group.drain("c") == [(1, False)]


@pytest.mark.parametrize("is_answered", [True, False])
def test_what_a_client_settled_while_the_queue_was_handed_over_is_told_though_the_client_is_gone(
    is_answered: bool,
):
    group = site()
    group.fill(2)
    taker = Consumer(group, group["a"].client())
    taker.wait_taken(2)
    node, view = group["a"].node, group.view()
    assert node.copies is not None
    assert view is not None
    assert node.copies.mirrors.transfer(view.id, "b", group.now)
    node.client_bytes(group.now, taker.client.conn, settle_method(80, 1, 0))
    node.client_closed(group.now, taker.client.conn)
    if not is_answered:
        group.cuts.add(frozenset(("a", "b")))  # the new master hears of it when the link is back
    group.wait(lambda: group.master() == "b", "b is the master")
    group.advance(1)
    group.cuts.clear()
    assert left(group) == [(1, True)]
    group.advance(2)
    assert not node.vhosts["/"].queues["q"].subscriptions


def test_a_process_is_not_told_what_became_of_acknowledgements_of_the_one_before_on_its_node(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(limits, "forward_settles_kept", 1)
    group = site()
    taker = holder(group, "d", 2)
    group.cuts |= {frozenset(("a", "b"))}
    taker.client.send(methods.BasicAck(1))
    taker.client.send(methods.TxCommit())
    group.run()
    group.kill("d")
    group.start("d", *group.names)
    group.wait(lambda: group["d"].is_open, "d serves clients")
    taker = Consumer(group, group["d"].client())
    taker.wait_taken(1)
    told = settled_frames(group, "a", "d")
    group.cuts.clear()
    group.advance(1)
    assert group.in_sync() == {"a", "b"}
    assert told == []
    taker.ack_all()
    group.advance(1)
    assert len(told) == 1


def settled_frames(group: Site, source: str, target: str) -> list[peerframes.Settled]:
    """What one node tells another from now on of deliveries that have ended."""
    found: list[peerframes.Settled] = []
    send = group[source].to_peer

    def listen(effect: fx.Send | fx.Cut) -> None:
        if isinstance(effect, fx.Send) and effect.peer == target and effect.payload[0] == peerframes.FAMILY:
            frame = peerframes.decode(effect.payload)
            found.extend([frame] if isinstance(frame, peerframes.Settled) else [])
        send(effect)

    group[source].to_peer = listen  # type: ignore[method-assign]
    return found
