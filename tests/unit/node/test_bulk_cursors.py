"""Cursors over the network: on one node, from any node of a cluster, over fail-overs, with bounds."""

from typing import Any

import pytest

from mirrormq.kernel import records
from mirrormq.node import requests
from mirrormq.wire import bulk, methods
from mirrormq.wire.bulk import BulkError
from tests.support.bulkkit import BulkUser, bodies, unpacked
from tests.support.mirroredkit import MirroredKit
from tests.support.nodekit import Client, NodeKit

PERSISTENT = b"\x10\x00\x02"


def filled(kit: NodeKit, count: int = 10, **more: Any) -> Client:
    client = kit.client()
    client.declare("q", durable=True, **more)
    for number in range(count):
        client.publish("q", b"m%d" % number, properties=PERSISTENT)
    return client


def get(client: Client) -> None:
    client.ask(methods.BasicGet(queue="q", no_ack=True), methods.BasicGetOk)
    client.take()


def code_of(user: BulkUser, op: str, **fields: Any) -> str:
    with pytest.raises(BulkError) as error:
        user.call(op, **fields)
    return error.value.code


def test_a_cursor_keeps_what_is_behind_it_readable() -> None:
    kit = NodeKit()
    client = filled(kit)
    user = BulkUser.logged_in(kit)
    opened = user.call("cursor_open", queue="q", name="c", at="earliest", reader="r1", query="job")
    assert (opened["seq"], opened["low"], opened["next"]) == (1, 1, 12)
    for _ in range(10):
        get(client)
    kit.advance(1)
    facts = user.facts("q")
    data = user.read(queue="q", id=opened["id"], start=1, end=11, end_epoch=1, upto=facts["next"])
    assert len(bodies(data)) == 10
    assert records.REMOVE in [kind for _, kind, _ in unpacked(data)]
    (row,) = user.call("cursor_list", queue="q")["cursors"]
    assert (row["seq"], row["mode"], row["reader"], row["lost"]) == (1, "cursor", "job", None)
    assert row["lag"] == facts["next"] - 1


def test_an_existing_cursor_is_returned_as_it_stands() -> None:
    kit = NodeKit()
    filled(kit)
    user = BulkUser.logged_in(kit)
    user.call("cursor_open", queue="q", name="c", at=3)
    assert user.call("cursor_open", queue="q", name="c", at="latest")["seq"] == 3
    assert user.call("cursor_advance", queue="q", name="c", to=6, epoch=1) == {"seq": 6}
    assert user.call("cursor_advance", queue="q", name="c", to=4) == {"seq": 6}
    assert user.call("cursor_open", queue="q", name="c", at="earliest")["seq"] == 6


def test_latest_is_behind_what_is_durable() -> None:
    kit = NodeKit()
    filled(kit)
    user = BulkUser.logged_in(kit)
    assert user.call("cursor_open", queue="q", name="c", at="latest")["seq"] == 11


def test_a_second_live_reader_is_refused_by_name_and_may_come_when_the_first_is_gone() -> None:
    kit = NodeKit()
    filled(kit)
    first, second = BulkUser.logged_in(kit), BulkUser.logged_in(kit)
    first.call("cursor_open", queue="q", name="c", reader="r1", query="job one")
    with pytest.raises(BulkError, match="job one") as error:
        second.call("cursor_open", queue="q", name="c", reader="r2", query="job two")
    assert (error.value.code, error.value.more["holder"]) == (bulk.BUSY, "job one")
    assert code_of(second, "cursor_advance", queue="q", name="c", to=11, reader="r2") == bulk.BUSY
    first.close_socket()
    second.call("cursor_open", queue="q", name="c", reader="r2", query="job two")


def test_a_cursor_that_is_not_there_is_gone() -> None:
    kit = NodeKit()
    filled(kit)
    user = BulkUser.logged_in(kit)
    assert code_of(user, "cursor_advance", queue="q", name="c", to=2) == bulk.GONE
    assert code_of(user, "cursor_drop", queue="q", name="c") == bulk.NOT_FOUND
    user.call("cursor_open", queue="q", name="c")
    user.call("cursor_drop", queue="q", name="c")
    assert code_of(user, "cursor_advance", queue="q", name="c", to=11) == bulk.GONE


def test_a_queue_without_a_log_has_no_cursors() -> None:
    kit = NodeKit()
    kit.client().declare("t")
    user = BulkUser.logged_in(kit)
    assert code_of(user, "cursor_open", queue="t", name="c") == bulk.REFUSED
    assert user.call("cursor_list", queue="t") == {"cursors": []}


def test_a_cursor_that_holds_too_much_is_lost_and_says_so() -> None:
    kit = NodeKit()
    client = filled(kit, arguments={"x-cursor-max-bytes": 500})
    user = BulkUser.logged_in(kit)
    user.call("cursor_open", queue="q", name="c", at="earliest")
    for _ in range(10):
        get(client)
    kit.advance(1)
    with pytest.raises(BulkError, match="500 are allowed") as error:
        user.call("cursor_advance", queue="q", name="c", to=5)
    assert error.value.code == bulk.GONE
    assert code_of(user, "cursor_open", queue="q", name="c") == bulk.GONE
    assert "500 are allowed" in user.call("cursor_list", queue="q")["cursors"][0]["lost"]
    assert any("cursor 'c' of queue 'q' in vhost '/' is lost" in note.text for note in kit.notes)


def test_a_cursor_nobody_moves_is_lost_by_its_age() -> None:
    kit = NodeKit()
    filled(kit, arguments={"x-cursor-max-age": "5s"})
    user = BulkUser.logged_in(kit)
    user.call("cursor_open", queue="q", name="c", at="earliest")
    kit.advance(6)
    assert code_of(user, "cursor_advance", queue="q", name="c", to=5) == bulk.GONE


def test_publishers_wait_for_a_cursor_if_the_queue_says_so() -> None:
    kit = NodeKit()
    arguments = {"x-cursor-max-bytes": 300_000, "x-cursor-overflow": "block-publish"}
    client = filled(kit, 1, arguments=arguments)
    user = BulkUser.logged_in(kit)
    user.call("cursor_open", queue="q", name="c", at="earliest")
    for _ in range(5):
        client.publish("q", b"x" * 100_000, properties=PERSISTENT)
        get(client)
    kit.advance(1)
    client.publish("q", b"late", properties=PERSISTENT)
    assert client.conn in kit.paused
    following = user.facts("q")["next"]
    user.call("cursor_advance", queue="q", name="c", to=following)
    kit.advance(2)
    assert client.conn not in kit.paused


@pytest.mark.parametrize("wrong", [{"x-cursor-overflow": "explode"}, {"x-cursor-max-age": "soon"}])
def test_wrong_cursor_arguments_are_refused_at_declaration(wrong: dict[str, Any]) -> None:
    kit = NodeKit()
    client = kit.client()
    client.send(methods.QueueDeclare(queue="q", durable=True, arguments=wrong))
    assert client.expect(methods.ChannelClose).reply_code == 406


def test_a_place_is_found_by_time() -> None:
    kit = NodeKit()
    client = filled(kit, 3)
    kit.advance(10)
    between = kit.now.wall - 5_000_000
    client.publish("q", b"late", properties=PERSISTENT)
    user = BulkUser.logged_in(kit)
    assert user.call("seek", queue="q", time=between) == {"seq": 4}
    assert user.call("seek", queue="q", time=0) == {"seq": 1}
    assert user.call("seek", queue="q", time=kit.now.wall + 1) == {"seq": 5}


def test_a_place_is_found_by_bytes_to_an_entry_of_the_index() -> None:
    kit = NodeKit()
    client = filled(kit, 0)
    for _ in range(20):
        client.publish("q", b"x" * 100_000, properties=PERSISTENT)
    user = BulkUser.logged_in(kit)
    assert user.call("seek", queue="q", **{"from": 1, "bytes": 1_000_000}) == {"seq": 10}
    assert user.call("seek", queue="q", **{"from": 10, "bytes": 10}) == {"seq": 11}
    assert user.call("seek", queue="q", **{"from": 15, "bytes": 10_000_000}) == {"seq": 21}
    assert code_of(user, "seek", queue="q") == bulk.REFUSED


# --- consume ------------------------------------------------------------------------------------------------


def consuming(kit: NodeKit, count: int = 10) -> tuple[Client, BulkUser]:
    client = filled(kit, count)
    user = BulkUser.logged_in(kit)
    user.call(
        "cursor_open", queue="q", name="c", at="earliest", mode="consume", reader="r", query="orders to lake"
    )
    return client, user


def test_a_consuming_query_is_alone() -> None:
    kit = NodeKit()
    client, user = consuming(kit)
    for method in (methods.BasicConsume(queue="q"), methods.BasicGet(queue="q")):
        client.send(method)
        closed = client.expect(methods.ChannelClose)
        assert closed.reply_code == 403
        assert "orders to lake" in closed.reply_text
        client.send(methods.ChannelCloseOk())
        client.open(1)
    user.call("cursor_drop", queue="q", name="c")
    get(client)


def test_a_query_does_not_begin_to_consume_beside_others() -> None:
    kit = NodeKit()
    client = filled(kit)
    client.consume("q")
    user = BulkUser.logged_in(kit)
    assert code_of(user, "cursor_open", queue="q", name="c", mode="consume") == bulk.BUSY
    client.close_socket()
    user.call("cursor_open", queue="q", name="c", mode="consume", query="one")
    assert code_of(user, "cursor_open", queue="q", name="d", mode="consume") == bulk.BUSY
    user.call("cursor_open", queue="q", name="beside", mode="cursor")


def test_what_a_query_has_consumed_leaves_the_queue_as_acknowledged() -> None:
    kit = NodeKit()
    client, user = consuming(kit)
    user.call("cursor_advance", queue="q", name="c", to=5, epoch=1, reader="r", remove=True)
    assert user.facts("q")["messages"] == 6
    client.publish("q", b"new", properties=PERSISTENT)
    assert user.facts("q")["messages"] == 7
    kit.advance(1)
    log = next(iter(kit.node.logs.values()))
    assert [seq for seq in range(1, 11) if seq in log.dead] == [1, 2, 3, 4]
    user.call("cursor_drop", queue="q", name="c")
    client.consume("q", no_ack=True)
    kit.advance(1)
    assert client.deliveries() == [*(b"m%d" % number for number in range(4, 10)), b"new"]


def test_a_consumed_queue_is_the_same_after_a_restart() -> None:
    kit = NodeKit()
    _, user = consuming(kit)
    user.call("cursor_advance", queue="q", name="c", to=5, epoch=1, reader="r", remove=True)
    kit.advance(1)
    again = NodeKit(kit.disk.crash(lambda most: most))
    client = again.client()
    client.send(methods.BasicConsume(queue="q"))
    assert "orders to lake" in client.expect(methods.ChannelClose).reply_text
    user = BulkUser.logged_in(again)
    assert user.facts("q")["messages"] == 6
    assert user.call("cursor_list", queue="q")["cursors"][0]["seq"] == 5


def test_counted_returns_are_not_left_behind_by_a_consuming_query() -> None:
    kit = NodeKit()
    client = filled(kit, 3, arguments={"x-delivery-limit": 5})
    got = client.ask(methods.BasicGet(queue="q"), methods.BasicGetOk)
    client.take()
    client.send(methods.BasicNack(got.delivery_tag, False, True))
    user = BulkUser.logged_in(kit)
    assert code_of(user, "cursor_open", queue="q", name="c", mode="consume") == bulk.REFUSED


def test_a_read_that_began_before_its_queue_was_deleted_ends_well_while_the_records_are_there() -> None:
    kit = NodeKit()
    filled(kit, 200)
    user = BulkUser.logged_in(kit)
    facts = user.facts("q")
    kit.node.client_paused(kit.now, user.conn)
    request = user.send("read", queue="q", id=facts["id"], start=1, end=facts["next"])
    kit.client().ask(methods.QueueDelete(queue="q"), methods.QueueDeleteOk)
    kit.advance(2)
    kit.node.client_writable(kit.now, user.conn)
    kit.advance(1)
    assert user.answer(request)["position"] == facts["next"]
    assert code_of(user, "read", queue="q", id=facts["id"], start=1, end=2) == bulk.NOT_FOUND


def test_a_cursor_of_the_other_mode_removes_nothing() -> None:
    kit = NodeKit()
    filled(kit)
    user = BulkUser.logged_in(kit)
    user.call("cursor_open", queue="q", name="c", at="earliest")
    assert code_of(user, "cursor_advance", queue="q", name="c", to=5, remove=True) == bulk.REFUSED
    assert user.facts("q")["messages"] == 10


# --- in a cluster -------------------------------------------------------------------------------------------


def mirrored(count: int = 10) -> MirroredKit:
    kit = MirroredKit()
    kit.policy()
    kit.confirm(kit.declare(), count)
    return kit


def asked(kit: MirroredKit, user: BulkUser, op: str, **fields: Any) -> dict[str, Any]:
    request = user.send(op, queue="q", **fields)
    kit.advance(0.3)
    return user.answer(request)


@pytest.mark.parametrize("mode", ["cursor", "consume"])
def test_a_cursor_opened_from_any_node_survives_a_fail_over(mode: str) -> None:
    kit = mirrored()
    user = BulkUser.logged_in(kit["b"])
    opened = asked(kit, user, "cursor_open", name="c", at="earliest", mode=mode, reader="r", query="job")
    assert opened["seq"] == 1
    asked(kit, user, "cursor_advance", name="c", to=4, reader="r", remove=mode == "consume")
    kit.advance(1)
    kit.kill("a")
    kit.advance(8)
    (row,) = asked(kit, user, "cursor_list")["cursors"]
    assert (row["seq"], row["mode"]) == (4, mode)
    asked(kit, user, "cursor_advance", name="c", to=6, reader="r", remove=mode == "consume")
    (facts,) = asked(kit, user, "queues")["queues"]
    # The first record is that of the epoch.
    assert facts["messages"] == (6 if mode == "consume" else 10)


def test_earliest_is_where_all_in_sync_members_have_everything() -> None:
    kit = mirrored()
    kit["c"].node.logs[kit.view().log_id].raise_low(5)
    user = BulkUser.logged_in(kit["b"])
    opened = asked(kit, user, "cursor_open", name="c", at="earliest", reader="r")
    assert (opened["seq"], opened["low"]) == (5, 5)
    assert asked(kit, user, "cursor_list")["cursors"][0]["seq"] == 5


def test_a_cursor_holds_on_a_mirror_from_the_moment_its_record_is_there() -> None:
    kit = mirrored()
    user = BulkUser.logged_in(kit["a"])
    copy = kit["c"].node.logs[kit.view().log_id].copy
    assert copy is not None
    before = copy.keep_from
    asked(kit, user, "cursor_open", name="c", at=3)
    assert copy.cursors_low == 3 < before
    asked(kit, user, "cursor_drop", name="c")
    assert copy.cursors_low > 3


def test_a_reader_on_another_node_keeps_others_out_until_its_connection_ends() -> None:
    kit = mirrored()
    first, second = BulkUser.logged_in(kit["b"]), BulkUser.logged_in(kit["c"])
    asked(kit, first, "cursor_open", name="c", reader="r1", query="one")
    with pytest.raises(BulkError, match="another live reader: one"):
        asked(kit, second, "cursor_open", name="c", reader="r2", query="two")
    first.close_socket()
    kit.advance(0.3)
    assert asked(kit, second, "cursor_open", name="c", reader="r2", query="two")["name"] == "c"


def test_the_reader_of_a_node_that_died_does_not_keep_others_out() -> None:
    kit = mirrored()
    first, second = BulkUser.logged_in(kit["b"]), BulkUser.logged_in(kit["c"])
    asked(kit, first, "cursor_open", name="c", reader="r1", query="one")
    kit.kill("b")
    kit.advance(8)
    assert asked(kit, second, "cursor_open", name="c", reader="r2", query="two")["name"] == "c"


def test_cursors_are_listed_and_dropped_by_an_administrator_of_any_node() -> None:
    kit = mirrored()
    user = BulkUser.logged_in(kit["b"])
    asked(kit, user, "cursor_open", name="c", at="earliest", reader="r", query="job")
    found = kit.ask(requests.ListCursors(vhost="/"), "c")
    assert [(row["queue"], row["name"], row["reader"]) for row in found["rows"]] == [("q", "c", "job")]
    assert found["missing"] == {}
    assert kit.refusal(requests.DropCursor(vhost="/", name="q", cursor="d"), "c")[0] == "no_such_cursor"
    kit.ask(requests.DropCursor(vhost="/", name="q", cursor="c"), "c")
    assert kit.ask(requests.ListCursors(vhost="/", name="q"), "a")["rows"] == []


def test_a_consuming_query_keeps_clients_of_all_nodes_out() -> None:
    kit = mirrored()
    user = BulkUser.logged_in(kit["b"])
    asked(kit, user, "cursor_open", name="c", at="earliest", mode="consume", reader="r", query="job")
    for at in ("a", "b", "c"):
        for method in (methods.BasicConsume(queue="q"), methods.BasicGet(queue="q")):
            client = kit[at].client()
            client.send(method)
            kit.advance(0.3)
            closed = client.expect(methods.ChannelClose)
            assert (closed.reply_code, "job" in closed.reply_text) == (403, True)
