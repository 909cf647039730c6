"""The bulk protocol in a cluster: any in-sync member gives records, and the master alone tells marks."""

import pytest

from mirrormq.node import inquiryframes as frames
from mirrormq.wire import bulk, methods
from mirrormq.wire.bulk import BulkError
from tests.support.bulkkit import BulkUser, bodies
from tests.support.mirroredkit import MirroredKit

NUMBERS = [b"%d" % number for number in range(20)]


def filled(count: int = 20) -> MirroredKit:
    kit = MirroredKit()
    kit.policy()
    kit.confirm(kit.declare(), count)
    return kit


def span(facts: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "queue": facts["queue"],
        "id": facts["id"],
        "start": facts["low"],
        "end": facts["next"],
        "end_epoch": facts["end_epoch"],
        **more,
    }


def asked(kit: MirroredKit, at: str, **fields: object) -> dict[str, object]:
    user = BulkUser.logged_in(kit[at])
    request = user.send("queues", **fields)
    kit.advance(0.2)
    return user.answer(request)["queues"][0]


@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_any_node_tells_the_marks_of_the_master(at: str) -> None:
    kit = filled()
    facts = asked(kit, at, queue="q")
    assert facts == {**asked(kit, "a", queue="q"), "members": facts["members"]}
    assert facts["next"] == kit.master().node.switch.masters[kit.view().id].log.durable + 1
    assert [row["node"] for row in facts["members"] if row["in_sync"]] == ["a", "b", "c"]
    assert [row["node"] for row in facts["members"] if row["is_master"]] == [kit.view().master]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_any_in_sync_member_gives_the_same_records(at: str, live: bool) -> None:
    kit = filled()
    facts = asked(kit, "a", queue="q")
    user = BulkUser.logged_in(kit[at])
    assert bodies(user.read(**span(facts, live=live))) == NUMBERS


def test_all_members_give_the_same_bytes_after_a_fail_over() -> None:
    kit = filled()
    kit.kill("a")
    kit.advance(8)
    facts = asked(kit, "b", queue="q")
    assert facts["epoch"] > 1
    data = {at: BulkUser.logged_in(kit[at]).read(**span(facts)) for at in ("b", "c")}
    assert bodies(data["b"]) == NUMBERS
    assert data["b"] == data["c"]


def test_a_node_without_a_copy_names_those_that_have_one() -> None:
    kit = MirroredKit()
    kit.confirm(kit.declare("plain", "a"), 20, "plain")
    facts = asked(kit, "b", queue="plain")
    user = BulkUser.logged_in(kit["b"])
    with pytest.raises(BulkError) as error:
        user.read(**span(facts))
    assert error.value.code == bulk.ELSEWHERE
    assert error.value.more["members"] == ["a"]


def test_a_node_without_a_copy_relays_if_it_is_asked_to() -> None:
    kit = MirroredKit()
    kit.confirm(kit.declare("plain", "a"), 20, "plain")
    facts = asked(kit, "b", queue="plain")
    user = BulkUser.logged_in(kit["b"])
    request = user.send("read", **span(facts, relay=True))
    kit.advance(0.3)
    assert user.answer(request)["position"] == facts["next"]
    assert bodies(b"".join(frame.body for frame in user.inbox if frame.request == request)) == NUMBERS


def test_a_named_member_that_is_not_the_asked_one_is_relayed() -> None:
    kit = filled()
    facts = asked(kit, "a", queue="q")
    user = BulkUser.logged_in(kit["a"])
    request = user.send("read", **span(facts, relay=True, node="c"))
    kit.advance(0.3)
    user.answer(request)
    assert bodies(b"".join(frame.body for frame in user.inbox if frame.request == request)) == NUMBERS


def test_a_mirror_that_does_not_have_the_last_record_sends_its_reader_elsewhere() -> None:
    kit = filled()
    facts = asked(kit, "a", queue="q")
    user = BulkUser.logged_in(kit["b"])
    for wrong in ({"end": facts["next"] + 5, "end_epoch": None}, {"end_epoch": 77}, {"id": "other"}):
        with pytest.raises(BulkError) as error:
            user.read(**span(facts, **wrong))
        assert error.value.code == bulk.ELSEWHERE
        assert "a" in error.value.more["members"]


def test_only_the_master_says_that_records_are_lost() -> None:
    kit = filled()
    facts = asked(kit, "a", queue="q")
    user = BulkUser.logged_in(kit["a"])
    for wrong in ({"end": facts["next"] + 5, "end_epoch": None}, {"end_epoch": 77}, {"id": "other"}):
        with pytest.raises(BulkError) as error:
            user.read(**span(facts, **wrong))
        assert error.value.code == bulk.DATA_LOSS
        assert error.value.more["next"] == facts["next"]


def test_epochs_are_told_and_a_loss_says_from_where_on_the_history_is_another() -> None:
    kit = filled()
    before = asked(kit, "a", queue="q")
    assert before["epochs"] == [[1, 1]]
    kit.kill("a")
    kit.advance(8)
    kit.confirm(kit["c"].client(), 1)
    facts = asked(kit, "b", queue="q")
    (first, second) = facts["epochs"]
    assert (first, second[1]) == ([1, 1], before["next"])
    user = BulkUser.logged_in(kit[facts["master"]])
    with pytest.raises(BulkError) as error:
        user.read(**span(facts, end=second[1] + 1, end_epoch=1))
    assert error.value.code == bulk.DATA_LOSS
    assert error.value.more["from"] == second[1]


def test_each_member_tells_what_it_has() -> None:
    kit = filled()
    user = BulkUser.logged_in(kit["b"])
    request = user.send("copies", queue="q")
    kit.advance(0.3)
    found = user.answer(request)
    assert sorted(row["node"] for row in found["copies"]) == ["a", "b", "c"]
    assert {row["low"] for row in found["copies"]} == {1}
    assert found["missing"] == {}


def test_a_queue_whose_master_is_away_is_unavailable_for_now() -> None:
    kit = MirroredKit()
    kit.confirm(kit.declare("plain", "a"), 3, "plain")
    kit.kill("a")
    kit.advance(3)
    user = BulkUser.logged_in(kit["b"])
    request = user.send("queues", queue="plain")
    kit.advance(6)
    with pytest.raises(BulkError) as error:
        user.answer(request)
    assert error.value.code == bulk.UNAVAILABLE


def test_who_asks_for_what_is_known_gets_the_others_when_a_master_is_away() -> None:
    kit = MirroredKit()
    kit.confirm(kit.declare("plain", "a"), 3, "plain")
    kit.confirm(kit.declare("there", "b"), 2, "there")
    kit.kill("a")
    kit.advance(3)
    user = BulkUser.logged_in(kit["b"])
    request = user.send("queues", pattern=".*", partial=True)
    kit.advance(6)
    rows = {row["queue"]: row for row in user.answer(request)["queues"]}
    away, there = rows["plain"], rows["there"]
    assert (away["next"], away["code"], away["members"][0]["is_live"]) == (None, bulk.UNAVAILABLE, False)
    assert away["why"]
    assert there["next"] > 2
    assert "code" not in there


def test_browsing_a_mirror_shows_what_is_live_at_its_durable_mark() -> None:
    kit = filled()
    client = kit["c"].client()
    client.send(methods.BasicGet(queue="q", no_ack=True))
    kit.advance(1)
    facts = asked(kit, "b", queue="q")
    user = BulkUser.logged_in(kit["b"])
    assert bodies(user.read(**span(facts, live=True, end_epoch=None))) == NUMBERS[1:]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"id": "x"},
        {"data": 5},
        {"position": "here"},
        {"answer": [1]},
        {"error": 5},
        {"error": None},
        {"error": ["unavailable", "no"]},
        {"error": ["unavailable", "no", {"code": 1, "text": 2, "self": 3}]},
    ],
    ids=repr,
)
@pytest.mark.parametrize("op", ["read", "queues", "digest"])
def test_an_answer_of_another_node_that_is_none_is_an_error_of_the_call(
    op: str, row: dict[str, object]
) -> None:
    kit = MirroredKit()
    kit.confirm(kit.declare("plain", "a"), 20, "plain")
    facts = asked(kit, "b", queue="plain")
    user = BulkUser.logged_in(kit["b"])
    kit.cuts.add(frozenset(("a", "b")))
    fields = {"read": span(facts, relay=True), "queues": {"queue": "plain"}}
    request = user.send(op, **fields.get(op, {**span(facts), "node": "a", "step": 5, "upto": 30}))
    [number] = kit["b"].node.inquiries._open
    bad = frames.encode(frames.Rows(number, True, [frames.packed({"data": b"x"}), frames.packed(row)]))
    kit["b"].node.peer_frame(kit.now, "a", bad)
    kit.run()
    with pytest.raises(BulkError) as error:
        user.answer(request)
    assert error.value.code == bulk.UNAVAILABLE
