"""The bulk protocol on one node: log-in, facts about queues, and reading records."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.meta.commands import Command, PromoteMirror, PutUser, PutVHost, SetPermission
from mirrormq.meta.passwords import SHA256, salted_hash
from mirrormq.meta.records import Permission, User, VHost
from mirrormq.wire import bulk, methods
from mirrormq.wire.bulk import BulkError
from tests.support.adminkit import AdminKit
from tests.support.bulkkit import BulkUser, bodies, unpacked
from tests.support.nodekit import NodeKit

PERSISTENT = b"\x10\x00\x02"
EVERYTHING = Permission("eve", "/", ".*", ".*", ".*")


def filled(kit: NodeKit, count: int = 10, queue: str = "q") -> None:
    client = kit.client()
    client.declare(queue, durable=True)
    for number in range(count):
        client.publish(queue, b"m%d" % number, properties=PERSISTENT)


def asked(user: BulkUser, queue: str = "q", **more: object) -> dict[str, object]:
    facts = user.facts(queue)
    return {
        "queue": queue,
        "id": facts["id"],
        "start": facts["low"],
        "end": facts["next"],
        "end_epoch": facts["end_epoch"],
        **more,
    }


def test_a_client_logs_in_and_is_told_where_it_is() -> None:
    kit = NodeKit()
    user = BulkUser(kit)
    welcome = user.call("login", user="guest", password="guest", vhost="/", product="spark", query="q1")
    assert welcome["node"] == "mirrormq@test"
    assert welcome["vhost"] == "/"
    (row,) = kit.node.connections.values()
    assert row.protocol == "MMQB 1"
    assert row.user_provided_name == "q1"
    assert kit.node.census.connections == 1


def test_another_version_is_answered_with_the_one_that_is_spoken() -> None:
    kit = NodeKit()
    user = BulkUser(kit, header=b"MMQB\x00\x00\x00\x09")
    assert user.raw == bulk.HEADER
    assert user.is_closed


def test_nothing_is_served_before_log_in() -> None:
    kit = NodeKit()
    user = BulkUser(kit)
    with pytest.raises(BulkError, match="log in first"):
        user.call("queues", queue="q")
    assert user.is_closed


def test_a_wrong_password_is_refused_without_details() -> None:
    kit = AdminKit()
    user = BulkUser(kit)
    with pytest.raises(BulkError, match="Login was refused") as refused:
        user.call("login", user="guest", password="wrong", vhost="/")
    assert refused.value.code == bulk.ACCESS
    assert user.is_closed


def test_a_client_without_password_or_certificate_is_refused() -> None:
    kit = NodeKit()
    user = BulkUser(kit)
    with pytest.raises(BulkError, match="Login was refused"):
        user.call("login", user="guest", vhost="/")


def test_guest_may_log_in_from_this_machine_only() -> None:
    kit = NodeKit()
    user = BulkUser(kit, host="192.0.2.7")
    with pytest.raises(BulkError, match="Login was refused"):
        user.call("login", user="guest", password="guest", vhost="/")


def test_a_log_in_that_never_comes_is_not_waited_for() -> None:
    kit = NodeKit()
    user = BulkUser(kit)
    kit.advance(11)
    assert user.is_closed


def test_facts_about_a_queue() -> None:
    kit = NodeKit()
    filled(kit, 3)
    facts = BulkUser.logged_in(kit).facts("q")
    assert (facts["low"], facts["first"], facts["next"], facts["messages"]) == (1, 1, 4, 3)
    assert facts["master"] == "mirrormq@test"
    assert [member["node"] for member in facts["members"]] == ["mirrormq@test"]


def test_queues_are_found_by_a_pattern_that_matches_all_of_the_name() -> None:
    kit = NodeKit()
    for name in ("a1", "a2", "xa1"):
        filled(kit, 1, name)
    user = BulkUser.logged_in(kit)
    assert [row["queue"] for row in user.call("queues", pattern="a.")["queues"]] == ["a1", "a2"]


def test_many_queues_are_found_by_a_pattern_over_several_passes() -> None:
    kit = NodeKit()
    client = kit.client()
    for number in range(limits.automaton_slice_names * 5):
        client.declare(f"{'a' * 60}{number}", durable=True)
    user = BulkUser.logged_in(kit)
    found = user.call("queues", pattern="(a+)+[0-9]*")["queues"]
    assert len(found) == limits.automaton_slice_names * 5
    assert user.call("queues", pattern="(?i)(A+)+1")["queues"][0]["queue"] == "a" * 60 + "1"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [("(a+)+\\1x", "could take for ever"), ("a" * 300, "too long"), ("(", "not a valid regular expression")],
)
def test_a_pattern_that_cannot_be_used_is_refused_with_its_reason(pattern: str, why: str) -> None:
    kit = NodeKit()
    filled(kit, 1)
    with pytest.raises(BulkError, match=why) as error:
        BulkUser.logged_in(kit).call("queues", pattern=pattern)
    assert error.value.code == bulk.REFUSED


def test_a_queue_without_a_log_says_why_it_cannot_be_read() -> None:
    kit = NodeKit()
    kit.client().declare("t")
    facts = BulkUser.logged_in(kit).facts("t")
    assert facts["next"] is None
    assert "keeps no log" in facts["why"]


def test_an_unknown_queue_is_not_found() -> None:
    kit = NodeKit()
    with pytest.raises(BulkError) as error:
        BulkUser.logged_in(kit).facts("nowhere")
    assert error.value.code == bulk.NOT_FOUND


def do(kit: NodeKit, *commands: Command) -> None:
    for command in commands:
        kit.node.propose(command, lambda _: None, False)
    kit.run()


def test_who_may_not_read_a_queue_is_refused() -> None:
    kit = NodeKit()
    filled(kit, 1)
    do(kit, PutUser(User("eve", salted_hash(b"eve", b"salt"), SHA256)))
    with pytest.raises(BulkError, match="access to vhost '/' refused"):
        BulkUser.logged_in(kit, "eve", "eve")
    do(kit, SetPermission(Permission("eve", "/", "", "", "^x")))
    user = BulkUser.logged_in(kit, "eve", "eve")
    with pytest.raises(BulkError, match="access to queue 'q' in vhost '/' refused for user 'eve'") as error:
        user.facts("q")
    assert error.value.code == bulk.ACCESS
    assert user.call("queues", pattern=".*") == {"queues": []}


def test_a_range_is_read_in_order_and_whole() -> None:
    kit = NodeKit()
    filled(kit, 50)
    user = BulkUser.logged_in(kit)
    data = user.read(**asked(user))
    assert bodies(data) == [b"m%d" % number for number in range(50)]
    assert user.position == 51


def test_a_part_of_a_range_is_cut_out_of_its_batches() -> None:
    kit = NodeKit()
    client = kit.client()
    client.declare("q", durable=True)
    client.send(methods.TxSelect())
    for number in range(10):
        client.publish("q", b"m%d" % number, properties=PERSISTENT)
    client.send(methods.TxCommit())
    user = BulkUser.logged_in(kit)
    data = user.read(**asked(user, start=4, end=7, end_epoch=None))
    assert [seq for seq, _, _ in unpacked(data)] == [4, 5, 6]


def test_removals_behind_a_range_are_read_with_it_and_publishes_are_not() -> None:
    kit = NodeKit()
    filled(kit, 6)
    client = kit.client()
    client.ask(methods.BasicGet(queue="q", no_ack=True), methods.BasicGetOk)
    client.take()
    client.publish("q", b"late", properties=PERSISTENT)
    kit.advance(1)
    user = BulkUser.logged_in(kit)
    facts = user.facts("q")
    data = user.read(**asked(user, start=1, end=4, end_epoch=None, upto=facts["next"]))
    assert bodies(data) == [b"m0", b"m1", b"m2"]
    assert records.REMOVE in [kind for _, kind, _ in unpacked(data)]


def test_browsing_gives_what_is_live_only() -> None:
    kit = NodeKit()
    filled(kit, 6)
    client = kit.client()
    for _ in range(2):
        client.ask(methods.BasicGet(queue="q", no_ack=True), methods.BasicGetOk)
        client.take()
    kit.advance(1)
    user = BulkUser.logged_in(kit)
    data = user.read(**asked(user, live=True, end_epoch=None))
    assert bodies(data) == [b"m2", b"m3", b"m4", b"m5"]
    assert {kind for _, kind, _ in unpacked(data)} == {records.PUBLISH}


def test_browsing_reads_below_the_low_mark_where_records_are_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "journal_file_bytes", 2 * 1024)
    kit = NodeKit()
    client = kit.client()
    client.declare("q", durable=True)
    client.publish("q", b"gone", properties=PERSISTENT)
    client.ask(methods.BasicGet(queue="q", no_ack=True), methods.BasicGetOk)
    client.take()
    client.publish("q", b"old", properties=PERSISTENT)
    client.declare("busy", durable=True)
    for number in range(80):
        client.publish("busy", b"b%d" % number * 20, properties=PERSISTENT)
        client.ask(methods.BasicGet(queue="busy", no_ack=True), methods.BasicGetOk)
        client.take()
        if number % 10 == 0:
            client.publish("q", b"q%d" % number, properties=PERSISTENT)
            kit.advance(1)
    user = BulkUser.logged_in(kit)
    facts = user.facts("q")
    data = user.read(**asked(user, start=facts["first"], live=True, end_epoch=None))
    assert bodies(data)[0] == b"old"
    assert len(bodies(data)) == 9
    assert facts["low"] > 1


def test_a_queue_that_was_declared_again_is_a_loss() -> None:
    kit = NodeKit()
    filled(kit)
    user = BulkUser.logged_in(kit)
    before = asked(user)
    kit.client().ask(methods.QueueDelete(queue="q"), methods.QueueDeleteOk)
    filled(kit)
    with pytest.raises(BulkError) as error:
        user.read(**before)
    assert error.value.code == bulk.DATA_LOSS
    assert error.value.more["id"] == user.facts("q")["id"]


def test_nothing_beyond_the_durable_mark_is_given() -> None:
    kit = NodeKit(hold_flushes=True)
    kit.hold_flushes = False
    filled(kit, 3)
    user = BulkUser.logged_in(kit)
    before = asked(user)
    kit.hold_flushes = True
    kit.clients[1].publish("q", b"unflushed", properties=PERSISTENT)
    assert user.facts("q")["next"] == before["end"]
    with pytest.raises(BulkError) as error:
        user.read(**{**before, "end": 5, "end_epoch": None})
    assert error.value.code == bulk.UNAVAILABLE


def test_a_reader_that_takes_nothing_is_read_nothing_for() -> None:
    kit = NodeKit()
    filled(kit, 20)
    user = BulkUser.logged_in(kit)
    fields = asked(user)
    kit.node.client_paused(kit.now, user.conn)
    request = user.send("read", **fields)
    assert not [frame for frame in user.inbox if frame.kind == bulk.DATA]
    kit.node.client_writable(kit.now, user.conn)
    kit.run()
    assert user.answer(request)["position"] == 21


def test_only_the_end_of_a_stream_is_the_business_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "bulk_slice_bytes", 300)
    kit = NodeKit()
    filled(kit, 20)
    user = BulkUser.logged_in(kit)
    wants: list[bool] = []
    pieces: list[int] = []
    read, take = kit.node.disk_read, kit.node.take_output

    def disk_read(*args: Any) -> bool:
        wants.append(read(*args))
        return wants[-1]

    def take_output(conn: int) -> Sequence[bytes | memoryview]:
        found = take(conn)
        pieces.append(len(found))
        return found

    monkeypatch.setattr(kit.node, "disk_read", disk_read)
    monkeypatch.setattr(kit.node, "take_output", take_output)
    user.read(**asked(user))
    assert len(wants) > 3
    assert wants == [False] * (len(wants) - 1) + [True]
    assert 2 in pieces, "the head of a frame goes out with its slice"


def test_calls_behind_a_stream_wait_for_its_end() -> None:
    kit = NodeKit()
    filled(kit, 20)
    user = BulkUser.logged_in(kit)
    fields = asked(user)
    kit.node.client_paused(kit.now, user.conn)
    first = user.send("read", **fields)
    second = user.send("queues", queue="q")
    kit.node.client_writable(kit.now, user.conn)
    kit.run()
    kinds = [(frame.request, frame.kind) for frame in user.inbox if frame.kind != bulk.DATA]
    assert kinds == [(first, bulk.END), (second, bulk.ANSWER)]


def test_a_cancelled_stream_ends_and_the_next_call_is_served() -> None:
    kit = NodeKit()
    filled(kit, 20)
    user = BulkUser.logged_in(kit)
    fields = asked(user)
    kit.node.client_paused(kit.now, user.conn)
    request = user.send("read", **fields)
    user.feed(bulk.encode(bulk.CANCEL, request))
    assert user.answer(request) == {"cancelled": True}
    assert user.facts("q")["next"] == 21


def test_an_operator_can_close_it_and_it_hears_why() -> None:
    kit = NodeKit()
    user = BulkUser.logged_in(kit)
    kit.node.connections[user.conn].force_close("maintenance")
    kit.run()
    assert bulk.decode(user.inbox[-1].body)["text"] == "CONNECTION_FORCED - maintenance"
    assert user.is_closed
    assert kit.node.census.connections == 0


def test_a_silent_client_is_asked_whether_it_is_there() -> None:
    kit = NodeKit()
    user = BulkUser.logged_in(kit)
    kit.advance(11)
    assert user.inbox[-1].kind == bulk.PING
    user.feed(bulk.encode(bulk.PING, 7))
    assert user.inbox[-1].kind == bulk.PONG


def test_bytes_that_are_no_frame_cost_the_connection() -> None:
    kit = NodeKit()
    user = BulkUser.logged_in(kit)
    user.feed(b"\xff" * 64)
    assert bulk.decode(user.inbox[-1].body)["code"] == bulk.CLOSED
    assert user.is_closed


def test_definitions_travel_from_one_vhost_to_another_for_administrators_only() -> None:
    kit = AdminKit()
    filled(kit, 1)
    user = BulkUser.logged_in(kit)
    kit.node.client_paused(kit.now, user.conn)
    request = user.send("definitions", vhost="/")
    assert not user.inbox
    kit.node.client_writable(kit.now, user.conn)
    kit.run()
    user.answer(request)
    found = json.loads(b"".join(frame.body for frame in user.inbox if frame.request == request))
    assert [queue["name"] for queue in found["queues"]] == ["q"]
    do(kit, PutVHost(VHost("other")))
    assert user.call("define", vhost="other", definitions=found) == {}
    assert ("other", "q") in kit.node.meta.queues
    do(kit, PutUser(User("eve", salted_hash(b"eve", b"salt"), SHA256)), SetPermission(EVERYTHING))
    with pytest.raises(BulkError, match="no administrator"):
        BulkUser.logged_in(kit, "eve", "eve").call("definitions", vhost="/")


def test_a_mirror_is_made_and_its_definitions_changed_while_it_is_one() -> None:
    kit = AdminKit()
    user = BulkUser.logged_in(kit)
    assert user.call("vhost", vhost="m") == {"exists": False}
    assert user.call("mirror_vhost", vhost="m", mirror_of="west", via=["north"]) == {}
    assert user.call("vhost", vhost="m") == {"exists": True, "mirror_of": "west", "via": ["north"]}
    assert user.call("mirror_vhost", vhost="m", mirror_of="west") == {}
    assert user.call("vhost", vhost="m")["via"] == []
    with pytest.raises(BulkError, match="only a new vhost"):
        user.call("mirror_vhost", vhost="/", mirror_of="west")
    queue = {"name": "q", "durable": True, "auto_delete": False, "arguments": {"x-mirror-source": "id"}}
    binding = {"source": "x", "destination": "q", "destination_type": "queue", "routing_key": "k"}
    exchange = {"name": "x", "type": "direct"}
    policy = {"name": "p", "pattern": ".*", "definition": {"max-length": 5}}
    given = {"exchanges": [exchange], "queues": [queue], "bindings": [binding], "policies": [policy]}
    with pytest.raises(BulkError, match="mirrors 'west'"):
        user.call("define", vhost="m", definitions=given, origin="east")
    assert user.call("define", vhost="m", definitions=given, origin="west") == {}
    assert ("m", "q") in kit.node.meta.queues
    for _ in range(2):  # what is not there is passed over
        assert user.call("undefine", vhost="m", definitions=given, origin="west") == {}
        assert ("m", "q") not in kit.node.meta.queues
        assert ("m", "x") not in kit.node.meta.exchanges
    do(kit, PromoteMirror("m"))
    for op in ("define", "undefine"):
        with pytest.raises(BulkError, match="promoted"):
            user.call(op, vhost="m", definitions=given, origin="west")
    with pytest.raises(BulkError, match="no mirror"):
        user.call("undefine", vhost="m", definitions=given)


def test_an_unknown_operation_and_wrong_arguments_cost_only_their_call() -> None:
    kit = NodeKit()
    filled(kit, 1)
    user = BulkUser.logged_in(kit)
    with pytest.raises(BulkError) as error:
        user.call("fly")
    assert error.value.code == bulk.UNKNOWN_OP
    with pytest.raises(BulkError) as error:
        user.call("read", queue=1, id="x", start=-1, end="y")
    assert error.value.code == bulk.REFUSED
    assert user.facts("q")["next"] == 2
