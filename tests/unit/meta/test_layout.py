"""The files of the metadata: a torn end is cut, damage and later formats are refused with a sentence."""

import pytest

from mirrormq.meta import commands as c
from mirrormq.meta.codec import encode_command, encode_records
from mirrormq.meta.layout import (
    MetaDamaged,
    MetaTooNew,
    log_header,
    pack_chunk,
    pack_entry,
    read_log,
    read_snapshot,
    snapshot_header,
)
from mirrormq.meta.records import Record, VHost

NAME = "meta/log-0000000000000005"


def entry(index: int, flushed: int) -> bytes:
    return pack_entry(1, index, flushed, encode_command(c.DeleteVHost(f"v{index}")))


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]


HEADER = log_header(5, 1)
ENTRIES = [entry(5, 4), entry(6, 4), entry(7, 6), entry(8, 7)]
LOG = HEADER + b"".join(ENTRIES)
STARTS = [len(HEADER) + sum(map(len, ENTRIES[:at])) for at in range(5)]


def test_a_whole_log_is_read_to_its_end() -> None:
    found = read_log(NAME, LOG, 5)
    assert [e.index for e in found.entries] == [5, 6, 7, 8]
    assert [e.command for e in found.entries] == [c.DeleteVHost(f"v{n}") for n in (5, 6, 7, 8)]
    assert (found.whole_bytes, found.torn_bytes) == (len(LOG), 0)


def test_a_log_torn_at_any_byte_is_cut_at_the_last_whole_entry() -> None:
    for length in range(len(LOG)):
        found = read_log(NAME, LOG[:length], 5)
        whole = max([0] + [start for start in STARTS if start <= length])
        assert found.whole_bytes == whole
        assert found.torn_bytes == length - whole
        assert len(found.entries) == (STARTS.index(whole) if whole else 0)


def test_any_changed_byte_that_later_entries_rely_on_is_refused() -> None:
    for at in range(STARTS[3]):
        with pytest.raises((MetaDamaged, MetaTooNew), match=NAME):
            read_log(NAME, changed(LOG, at), 5)


def test_a_changed_byte_that_nothing_relies_on_is_a_torn_end() -> None:
    for at in range(STARTS[3], len(LOG)):
        assert [e.index for e in read_log(NAME, changed(LOG, at), 5).entries] == [5, 6, 7]


def test_a_lost_page_before_an_unflushed_entry_is_a_torn_end_not_damage() -> None:
    """After a power failure a later page may be there and an earlier one not, if neither was flushed."""
    data = HEADER + ENTRIES[0] + bytes(len(ENTRIES[1])) + entry(7, 5)
    assert [e.index for e in read_log(NAME, data, 5).entries] == [5]


def test_a_damaged_log_names_file_cause_and_cure() -> None:
    data = LOG[: STARTS[1]] + bytes(len(ENTRIES[1])) + LOG[STARTS[2] :]
    with pytest.raises(MetaDamaged) as caught:
        read_log(NAME, data, 5)
    assert str(caught.value) == (
        "meta/log-0000000000000005 is damaged: the checksum of entry 6 does not match, and later entries rely"
        " on it; restore the data folder from a backup, or start with an empty one and import exported"
        " definitions"
    )


def test_a_log_of_a_later_format_is_refused_and_not_called_damaged() -> None:
    data = LOG[:8] + (2).to_bytes(4, "big") + LOG[12:]
    with pytest.raises(
        MetaTooNew, match=r"its format is 2, this version reads up to 1; start the version that"
    ):
        read_log(NAME, data, 5)


def test_a_command_of_a_later_version_is_refused_and_not_skipped() -> None:
    data = HEADER + pack_entry(1, 5, 4, b"\x81\xa2do\xa5later")
    with pytest.raises(MetaTooNew, match="command 5 is unknown here"):
        read_log(NAME, data, 5)


def test_a_log_under_the_name_of_another_is_refused() -> None:
    with pytest.raises(MetaDamaged, match="begins with entry 5 instead of 6"):
        read_log(NAME, LOG, 6)


def test_entries_out_of_order_are_refused() -> None:
    with pytest.raises(MetaDamaged, match="entry 6 stands where 5 should"):
        read_log(NAME, HEADER + ENTRIES[1], 5)


RECORDS: list[Record] = [VHost("a"), VHost("b"), VHost("c")]
SNAPSHOT = (
    snapshot_header(9, 2, 17, 3)
    + pack_chunk(encode_records(RECORDS[:2]))
    + pack_chunk(encode_records(RECORDS[2:]))
)


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


GOLDEN_LOG_HEADER = "4d4d514d4c4f47000000000100000000000000050000000000000001ba65dd60"
GOLDEN_ENTRY = (
    "f54d516596f1883f0000001900000000000000010000000000000005000000000000000482a2646fac64656c65"
    "74652d76686f7374a46e616d65a27635"
)
GOLDEN_SNAPSHOT_HEADER = (
    "4d4d514d534e500000000001000000000000000900000000000000020000000000000011000000000000000341949151"
)
GOLDEN_CHUNK = (
    "0000003bae6d7bab9185a46b696e64a576686f7374a46e616d65a161ab6465736372697074696f6ea0a4746167"
    "7390b264656661756c745f71756575655f74797065a0"
)


def test_the_bytes_of_version_one_stay_as_they_are() -> None:
    """Files written by released versions must be readable for ever: this is what they look like."""
    assert log_header(5, 1).hex() == GOLDEN_LOG_HEADER
    assert entry(5, 4).hex() == GOLDEN_ENTRY
    assert snapshot_header(9, 2, 17, 3).hex() == GOLDEN_SNAPSHOT_HEADER
    assert pack_chunk(encode_records([VHost("a")])).hex() == GOLDEN_CHUNK
