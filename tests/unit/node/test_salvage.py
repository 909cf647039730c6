"""A copy that was in sync comes back after a promotion with a loss: what only it has is moved, once."""

from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.kernel.message import Message
from mirrormq.meta.records import View
from mirrormq.node import salvage
from mirrormq.wire import methods
from mirrormq.wire.properties import decode_properties
from tests.support.scenariokit import Site

BEFORE, AFTER = 20, 5


def lossy(**policy: Any) -> Site:
    """a had everything; b, which got no old messages, is the master since a died. BEFORE are lost, and then
    come AFTER new ones.
    """
    site = Site()
    site.policy(ha_mode="nodes", ha_params=["a"])
    site.declare(at="a")
    for first in range(0, BEFORE, 2):  # each pair is a batch
        site.fill(2, first=first)
    rules = {"ha_sync_mode": "manual", "ha_promote_on_failure": "always"} | policy
    site.policy(ha_mode="nodes", ha_params=["a", "b"], **rules)
    site.wait(lambda: site.learners() == {"b"}, "b has no old messages")
    site.advance(1)
    site.kill("a")
    site.wait(lambda: site.master() == "b", "b is the master")
    site.advance(1)
    site.fill(AFTER, at="b", first=BEFORE)
    return site


def view(site: Site) -> View:
    found = site.view()
    assert found is not None
    return found


def salvaged(site: Site) -> bool:
    return not view(site).partings


def numbers(site: Site, queue: str = "q") -> list[int]:
    return [number for number, _ in site.drain("b", queue)]


def got(site: Site, queue: str, at: str = "b") -> list[tuple[Any, bytes, methods.BasicGetOk]]:
    """Everything in a queue by basic.get: properties, body, and how it came."""
    client = site[at].client()
    found = []
    while True:
        client.send(methods.BasicGet(queue=queue, no_ack=True))
        site.wait(lambda: bool(client.inbox), "basic.get is answered")
        answer, *content = client.take()
        if not isinstance(answer, methods.BasicGetOk):
            client.close_socket()
            return found
        raw, body = content[0]
        found.append((decode_properties(raw), bytes(body), answer))


def test_what_the_promoted_copy_never_had_comes_to_the_salvage_queue_when_the_old_master_is_back():
    site = lossy()
    assert view(site).losses == 1
    (parting,) = view(site).partings
    assert (parting.nodes, parting.is_known) == (("a",), True)
    assert parting.missing == ((1, parting.end),) or parting.missing[-1][1] <= parting.end
    site.restart("a")
    site.wait(lambda: salvaged(site), "a has been salvaged")
    found = got(site, "q.salvage")
    assert [int(body) for _, body, _ in found] == list(range(BEFORE))
    headers = [properties.headers["x-salvaged-from"] for properties, _, _ in found]
    assert headers == [{"queue": "q", "node": "a", "epoch": parting.epoch}] * BEFORE
    assert {answer.routing_key for _, _, answer in found} == {"q"}
    assert (view(site).salvaged, view(site).dropped) == (BEFORE, 0)
    assert site["a"].node.copies.counters.salvaged == BEFORE
    site.policy(ha_mode="nodes", ha_params=["a", "b"])
    site.wait_copies("a", "b")
    assert numbers(site) == list(range(BEFORE, BEFORE + AFTER))
    assert site.any.node.meta.queues["/", "q.salvage"].durable


def test_what_lies_behind_the_end_of_the_promoted_copy_is_salvaged_too():
    """b was away and catches up very slowly when a dies: the rest is in a's log only."""
    site = Site()
    policy = {"ha_mode": "nodes", "ha_params": ["a", "b"], "ha_promote_on_failure": "always"}
    site.policy(**policy)
    site.declare(at="a")
    site.wait_copies("a", "b")
    site.fill(BEFORE)
    site.kill("b")
    site.wait(lambda: site.in_sync() == {"a"}, "b is out")
    for number in range(BEFORE, BEFORE + AFTER):
        site.fill(1, first=number)
    site.policy(**policy, ha_sync_max_throughput=20)
    site.restart("b")
    site.wait(lambda: site.learners() == {"b"}, "b is to come back")
    site.advance(2)
    site.kill("a")
    site.wait(lambda: site.master() == "b", "b is the master")
    site.advance(1)
    first = site.depth()
    assert BEFORE <= first < BEFORE + AFTER
    site.fill(AFTER, at="b", first=BEFORE + AFTER)
    site.restart("a")
    site.wait(lambda: salvaged(site), "a has been salvaged")
    site.policy(**policy)
    site.wait_copies("a", "b")
    assert [int(body) for _, body, _ in got(site, "q.salvage")] == list(range(first, BEFORE + AFTER))
    assert numbers(site) == [*range(first), *range(BEFORE + AFTER, BEFORE + 2 * AFTER)]


def test_with_requeue_the_messages_come_back_into_their_queue():
    site = lossy(ha_salvage="requeue")
    site.restart("a")
    site.wait(lambda: salvaged(site), "a has been salvaged")
    assert sorted(numbers(site)) == list(range(BEFORE + AFTER))
    assert ("/", "q.salvage") not in site.any.node.meta.queues


def test_with_drop_they_are_given_up_and_counted():
    site = lossy(ha_salvage="drop")
    site.restart("a")
    site.wait(lambda: salvaged(site), "a has been salvaged")
    assert (view(site).salvaged, view(site).dropped) == (0, BEFORE)
    assert numbers(site) == list(range(BEFORE, BEFORE + AFTER))
    assert ("/", "q.salvage") not in site.any.node.meta.queues


@pytest.mark.parametrize("after", [0, 1, 5, 10])
def test_a_crash_of_the_returning_node_in_the_middle_neither_loses_nor_doubles(
    after: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "salvage_slice_bytes", 1)
    site = lossy()
    sent = []
    send = salvage._Run._send

    def counted(run: Any, found: list[Any]) -> None:
        if len(sent) == after:
            return  # it dies before the next slice
        sent.append(found)
        send(run, found)

    monkeypatch.setattr(salvage._Run, "_send", counted)
    site.restart("a")
    site.wait(lambda: len(sent) == after, "some of it is on its way")
    site.advance(1.2)
    site.kill("a")
    monkeypatch.setattr(salvage._Run, "_send", send)
    site.advance(1)
    site.restart("a")
    site.wait(lambda: salvaged(site), "a has been salvaged")
    assert [int(body) for _, body, _ in got(site, "q.salvage")] == list(range(BEFORE))
    assert view(site).salvaged == BEFORE


def test_what_two_nodes_had_is_salvaged_once():
    site = Site("a", "b", "c", "d", "e")
    site.policy(ha_mode="nodes", ha_params=["a", "b"])
    site.declare(at="a")
    site.wait_copies("a", "b")
    site.fill(BEFORE)
    rules = {"ha_sync_mode": "manual", "ha_promote_on_failure": "always"}
    site.policy(ha_mode="nodes", ha_params=["a", "b", "c"], **rules)
    site.wait(lambda: site.learners() == {"c"}, "c has no old messages")
    site.advance(1)
    site.kill("a")
    site.kill("b")
    site.wait(lambda: site.master() == "c", "c is the master")
    site.advance(2)
    for name in ("a", "b"):
        site.start(name, *site.names)
    site.wait(lambda: salvaged(site), "both have been salvaged")
    assert sorted(int(body) for _, body, _ in got(site, "q.salvage", "c")) == list(range(BEFORE))
    assert view(site).salvaged == BEFORE


def test_messages_that_were_consumed_before_the_loss_are_not_salvaged():
    site = Site()
    site.policy(ha_mode="nodes", ha_params=["a"])
    site.declare(at="a")
    site.fill(BEFORE)
    assert len(site.drain("a")) == BEFORE
    site.fill(3, first=BEFORE)
    rules = {"ha_sync_mode": "manual", "ha_promote_on_failure": "always"}
    site.policy(ha_mode="nodes", ha_params=["a", "b"], **rules)
    site.wait(lambda: site.learners() == {"b"}, "b has no old messages")
    site.advance(1)
    site.kill("a")
    site.wait(lambda: site.master() == "b", "b is the master")
    site.restart("a")
    site.wait(lambda: salvaged(site), "a has been salvaged")
    assert [int(body) for _, body, _ in got(site, "q.salvage")] == [BEFORE, BEFORE + 1, BEFORE + 2]


def test_a_master_that_was_cut_off_and_never_died_is_salvaged_when_the_cut_heals():
    site = Site("a", "b", "c", "d", "e")
    site.policy(ha_mode="nodes", ha_params=["a"])
    site.declare(at="a")
    site.fill(BEFORE)
    rules = {"ha_sync_mode": "manual", "ha_promote_on_failure": "always"}
    site.policy(ha_mode="nodes", ha_params=["a", "b"], **rules)
    site.wait(lambda: site.learners() == {"b"}, "b has no old messages")
    site.advance(1)
    site.cut("a")
    site.wait(lambda: site["b"].node.meta.views["/", "q"].master == "b", "b is the master")
    site.advance(3)
    site.heal()
    site.wait(lambda: not site["b"].node.meta.views["/", "q"].partings, "a has been salvaged")
    assert [int(body) for _, body, _ in got(site, "q.salvage")] == list(range(BEFORE))


def test_a_copy_that_cannot_be_read_is_kept_and_said_so_until_the_policy_gives_it_up():
    site = lossy()
    site.restart("a")
    copy = site["a"].node.copies.copy_log(view(site).log_id)
    copy.log.damage = "a test"
    site.advance(5)
    assert not salvaged(site)
    said = [note.text for note in site["a"].notes if "cannot be salvaged: the copy is damaged" in note.text]
    assert len(said) == 1
    assert view(site).learner("a") is None
    site.policy(ha_mode="nodes", ha_params=["a", "b"], ha_sync_mode="manual", ha_salvage="drop")
    site.wait(lambda: salvaged(site), "it is given up")


def test_the_message_keeps_its_bytes_but_for_the_header_and_the_expiration():
    from mirrormq.broker.salvaged import make_salvaged, queue_name
    from mirrormq.wire.properties import Properties, encode_properties

    raw = encode_properties(
        Properties(content_type="t", headers={"a": 1}, delivery_mode=2, expiration="50", message_id="m")
    )
    for may_expire in (False, True):
        made = make_salvaged(Message(b"x", b"k", raw, b"body"), ("q", "n", 7), may_expire=may_expire)
        found = decode_properties(made.properties)
        assert (made.exchange, made.routing_key, made.body) == (b"x", b"k", b"body")
        assert found.headers == {"a": 1, "x-salvaged-from": {"queue": "q", "node": "n", "epoch": 7}}
        assert (found.content_type, found.delivery_mode, found.message_id) == ("t", 2, "m")
        assert found.expiration == ("50" if may_expire else None)
    assert queue_name("q") == "q.salvage"
    assert len(queue_name("é" * 127).encode()) <= 255
