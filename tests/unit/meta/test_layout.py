"""The snapshot of version 1: damage and later formats are refused with a sentence."""

import pytest

from mirrormq.meta.layout import MetaDamaged, MetaTooNew, read_snapshot
from mirrormq.meta.records import Record, VHost
from tests.support import version1


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]


RECORDS: list[Record] = [VHost("a"), VHost("b"), VHost("c")]
SNAPSHOT = version1.snapshot((9, 2), 17, RECORDS[:2], RECORDS[2:])


def test_a_snapshot_is_read_back() -> None:
    found = read_snapshot("meta/snapshot", SNAPSHOT)
    assert (found.index, found.term, found.last_id, found.records) == (9, 2, 17, RECORDS)


def test_a_snapshot_cut_anywhere_is_refused() -> None:
    for length in range(len(SNAPSHOT)):
        with pytest.raises(MetaDamaged):
            read_snapshot("meta/snapshot", SNAPSHOT[:length])


def test_a_snapshot_with_any_changed_byte_is_refused() -> None:
    for at in range(len(SNAPSHOT)):
        with pytest.raises((MetaDamaged, MetaTooNew)):
            read_snapshot("meta/snapshot", changed(SNAPSHOT, at))


def test_a_snapshot_of_a_later_format_is_refused() -> None:
    data = SNAPSHOT[:8] + (2).to_bytes(4, "big") + SNAPSHOT[12:]
    with pytest.raises(MetaTooNew, match="its format is 2"):
        read_snapshot("meta/snapshot", data)


GOLDEN = bytes.fromhex(
    "4d4d514d534e500000000001000000000000000900000000000000020000000000000011000000000000000341949151"
    "0000003bae6d7bab9185a46b696e64a576686f7374a46e616d65a161ab6465736372697074696f6ea0a4746167"
    "7390b264656661756c745f71756575655f74797065a0"
)


def test_the_bytes_of_version_one_are_read_for_ever() -> None:
    """Files written by released versions look like this; the header here announces three records."""
    with pytest.raises(MetaDamaged, match="it holds 1 of 3 records"):
        read_snapshot("meta/snapshot", GOLDEN)
