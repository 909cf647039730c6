"""Digests: copies with the same confirmed records have the same ones, and any difference is found."""

import struct
from typing import Any

import pytest

from mirrormq.kernel import records
from mirrormq.kernel.crc32c import crc32c
from mirrormq.log.scan import scan
from mirrormq.wire import bulk, methods
from mirrormq.wire.bulk import BulkError
from tests.support.bulkkit import BulkUser, unpacked
from tests.support.mirroredkit import MirroredKit

Row = tuple[int, int, int, int]
MEMBERS = ("a", "b", "c")


def filled(count: int = 50) -> MirroredKit:
    kit = MirroredKit()
    kit.policy()
    kit.confirm(kit.declare(), count)
    return kit


def span(kit: MirroredKit, user: BulkUser) -> dict[str, Any]:
    request = user.send("queues", queue="q")
    kit.advance(0.3)
    facts = user.answer(request)["queues"][0]
    return {
        "queue": "q",
        "id": facts["id"],
        "start": facts["low"],
        "end": facts["next"],
        "upto": facts["next"],
    }


def digests(kit: MirroredKit, user: BulkUser, node: str, fields: dict[str, Any], step: int = 10) -> list[Row]:
    request = user.send("digest", **fields, node=node, step=step)
    kit.advance(0.5)
    user.answer(request)
    data = b"".join(frame.body for frame in user.inbox if frame.request == request)
    user.inbox.clear()
    return list(struct.iter_unpack("<QQQQ", data))


def alter(kit: MirroredKit, node: str, seq: int, change: str) -> None:
    """Change a record in the files of one member as no disk would: with checksums that fit."""
    disk = kit[node].disk
    log_id = kit.view().log_id
    for name in disk.list("journal/"):
        data = bytearray(disk.read(name))
        start = bytes(data).find(b"MQB1")
        for at, head in scan(bytes(data[start:])).batches:
            if head[1] != log_id or not head[3] <= seq <= head[3] + head[4] - 1:
                continue
            first = start + at + records.HEAD_BYTES
            for _ in range(seq - head[3]):
                first += 12 + struct.unpack_from("<I", data, first)[0]
            if change == "altered":
                data[first + 12 + struct.unpack_from("<I", data, first)[0] - 1] ^= 1
            elif change == "missing":
                data[first + 8] = records.HORIZON
            end = start + at + head[0] - 24
            begin = start + at
            struct.pack_into("<I", data, begin + 12, crc32c(bytes(data[begin + 56 : end])))
            struct.pack_into("<I", data, begin + 4, crc32c(bytes(data[begin + 8 : begin + 56])))
            disk._durable[name] = bytes(data)
            disk._ops.pop(name, None)
            return
    raise AssertionError(f"record {seq} is in no file of {node}")


def test_all_members_have_the_same_digests() -> None:
    kit = filled()
    user = BulkUser.logged_in(kit["a"])
    fields = span(kit, user)
    found = {node: digests(kit, user, node, fields) for node in MEMBERS}
    assert sum(row[2] for row in found["a"]) == 50
    assert found["a"] == found["b"] == found["c"]
    assert [row[0] for row in found["a"]] == [1, 11, 21, 31, 41, 51]


def test_what_is_removed_behind_the_mark_makes_no_difference_and_before_it_does() -> None:
    kit = filled()
    user = BulkUser.logged_in(kit["b"])
    request = user.send("cursor_open", queue="q", name="audit", at="earliest")
    kit.advance(0.3)
    user.answer(request)
    fields = span(kit, user)
    before = digests(kit, user, "a", fields)
    client = kit["c"].client()
    for _ in range(7):
        client.send(methods.BasicGet(queue="q", no_ack=True))
        kit.advance(0.1)
    kit.advance(1)
    assert {node: digests(kit, user, node, fields) for node in MEMBERS} == dict.fromkeys(MEMBERS, before)
    later = span(kit, user)
    after = {node: digests(kit, user, node, later) for node in MEMBERS}
    assert sum(row[2] for row in after["a"]) == 43
    assert after["a"] == after["b"] == after["c"]


def test_members_agree_after_a_fail_over_and_a_return() -> None:
    kit = filled()
    kit.kill("a")
    kit.advance(8)
    kit.start("a", *MEMBERS)
    kit.settle()
    kit.advance(10)
    user = BulkUser.logged_in(kit["b"])
    fields = span(kit, user)
    found = {node: digests(kit, user, node, fields) for node in MEMBERS}
    assert sum(row[2] for row in found["a"]) == 50
    assert found["a"] == found["b"] == found["c"]


@pytest.mark.parametrize("change", ["altered", "missing"])
def test_a_record_that_differs_on_one_mirror_is_found_and_can_be_read_there(change: str) -> None:
    kit = filled()
    user = BulkUser.logged_in(kit["a"])
    fields = span(kit, user)
    alter(kit, "c", 25, change)
    found = {node: digests(kit, user, node, fields) for node in MEMBERS}
    assert found["a"] == found["b"]
    assert [one[0] for one, other in zip(found["a"], found["c"], strict=True) if one != other] == [21]
    rows = {}
    for node in ("b", "c"):
        part = {**fields, "start": 21, "end": 31, "upto": 31, "node": node, "relay": True, "gaps": True}
        request = user.send("read", **part)
        kit.advance(0.3)
        user.answer(request)
        data = b"".join(frame.body for frame in user.inbox if frame.request == request)
        rows[node] = set(unpacked(data))
        user.inbox.clear()
    assert {seq for seq, _, _ in rows["b"] ^ rows["c"]} == {25}


def test_a_digest_of_live_records_or_with_a_silly_step_is_refused() -> None:
    kit = filled(3)
    user = BulkUser.logged_in(kit["a"])
    fields = span(kit, user)
    for wrong in ({"step": 0}, {"live": True}, {"end": 10**12, "upto": 10**12, "step": 1}):
        with pytest.raises(BulkError) as error:
            user.call("digest", **{**fields, **wrong})
        assert error.value.code in (bulk.LIMIT, bulk.REFUSED)
